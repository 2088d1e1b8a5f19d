"""Small policies, scripted models and stub retrievers that several tests share."""

import copy
import dataclasses
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from lldlib.config import LossConfig, RolloutConfig, TrainConfig, WarmstartConfig
from lldlib.files import Foreign
from lldlib.losses.objective import LossInputs
from lldlib.policy.load import Policy, tiny_model
from lldlib.retrieval import BM25Retriever, Passage, RetrieverError
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.train import trainer as train
from lldlib.train.supervised import make_tiny
from lldlib.train.trainer import Trainer
from lldlib.types import Batch, Episode, Question
from lldlib.world.answers import exact_match, f1
from lldlib.world.atlas import World
from lldlib.world.environment import RULES, Environment, Rules, Split
from lldlib.world.protocol import Protocol

torch.set_num_threads(1)  # one thread, so that equal programs give equal bits

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n<>/?!.,:;'()-+"
PLAIN = Protocol("", "! try again !")  # short texts for the character tokenizer


def information(*texts: str) -> str:
    """What a protocol without numbers answers to a search."""
    return f"\n\n<information> {' '.join(texts)} </information>\n\n"


@cache
def world() -> World:
    """The built-in world."""
    return World.load()


@cache
def retriever() -> BM25Retriever:
    """BM25 over the world's train passages."""
    return BM25Retriever(world().passages("train"))


def tiny_policy(seed: int = 0) -> Policy:
    """A random searcher of the world that often writes the protocol's tags."""
    made = _tiny_policy(seed)
    return Policy(copy.deepcopy(made.model), made.tokenizer)


@cache
def _tiny_policy(seed: int) -> Policy:
    """Made talkative by hand.

    The last layer's value bias adds one direction to every state, and the tags' embeddings point
    that way; what else the model says stays random.
    """
    policy = make_tiny(world(), WarmstartConfig(seed=seed, width=16, layers=2, heads=2))
    tags = ["<search>", "</search>", "<answer>", "</answer>"]
    rows = policy.tokenizer.convert_tokens_to_ids(tags)
    embeddings = policy.model.get_input_embeddings().weight
    attention = policy.model.get_decoder().layers[-1].self_attn
    with torch.no_grad():
        embeddings.mul_(10)  # peaked, so that errors would show
        direction = nn.functional.normalize(torch.ones(embeddings.shape[1]), dim=0)
        attention.v_proj.bias.copy_(torch.linalg.solve(attention.o_proj.weight, direction))
        embeddings[rows] += torch.tensor([[1.6], [1.5], [1.4], [1.4]]) * direction
    policy.model.eval()
    return policy


@cache
def _train_questions() -> list[Question]:
    return world().questions("train")


def worded(protocol: Protocol) -> Rules:
    """Question answering in the texts of this protocol, whatever the tokenizer."""
    return Rules(lambda tokenizer: protocol, exact_match, {"f1": f1})


def answered(answer: str | None, accepted: tuple[str, ...]) -> float:
    """A reward for any answer: a random policy never gives a right one."""
    return float(answer is not None)


def asking(questions: list[Question]) -> Environment:
    """An environment of these questions and the world's train passages."""
    return Environment.fixed(RULES["qa"], Split(questions, retriever()))


def world_questions(count: int) -> list[Question]:
    """Train questions of the world, of one to three hops."""
    every = _train_questions()
    return every[:: len(every) // count][:count]


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, so that a tag spans many tokens; pad and eos are one token."""
    vocabulary = {c: i for i, c in enumerate(["<eos>", "<unk>", *CHARACTERS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<eos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def character_policy() -> Policy:
    """A random model over characters."""
    tokenizer = character_tokenizer()
    model = tiny_model(len(tokenizer), width=16, layers=2, heads=2, seed=0)
    return Policy(model.eval(), tokenizer)


class StubRetriever:
    """Gives the same passages to every query and keeps the queries; None: the service is down."""

    def __init__(self, texts: list[str] | None):
        self.texts, self.calls = texts, []

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """The stub's passages, `k` at most, for each query."""
        self.calls.append(list(queries))
        if self.texts is None:
            raise RetrieverError("connection refused")
        found = [Passage(str(i), text) for i, text in enumerate(self.texts[:k])]
        return [found for _ in queries]


class ScriptedModel(nn.Module):
    """Forces known trajectories: where a row's history is the start of one, its next token follows.

    The history is read back from the cache, so a fault in feeding or in dropping rows shows as
    another episode. `fed` counts the tokens of the longest row.
    """

    def __init__(self, trajectories: list[list[int]], vocabulary: int, filler: int):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))  # a rollout asks a parameter for its device
        self.config = SimpleNamespace(num_hidden_layers=1)
        self.trajectories, self.vocabulary, self.filler = trajectories, vocabulary, filler
        self.fed, self.widths = 0, []

    def get_decoder(self) -> nn.Module:
        """The part that maps tokens to the state which the head turns into logits."""
        return self

    def get_output_embeddings(self) -> nn.Module:
        """The head: states are logits already."""
        return nn.Identity()

    def forward(self, input_ids: Tensor, past_key_values, use_cache: bool):
        """Logits of the last position, from all that was fed so far."""
        assert use_cache
        states = input_ids[:, None, :, None].float()
        history, _ = past_key_values.update(states, states, 0)
        rows = history[:, 0, :, 0].long().tolist()
        self.fed = len(rows[0])
        self.widths.append(input_ids.shape[1])
        logits = torch.full((len(rows), 1, self.vocabulary), -100.0)
        for number, row in enumerate(rows):
            logits[number, 0, self._next(row)] = 100.0
        return SimpleNamespace(last_hidden_state=logits)

    def _next(self, history: list[int]) -> int:
        size = len(history)
        for trajectory in self.trajectories:
            if trajectory[:size] == history and size < len(trajectory):
                return trajectory[size]
        return self.filler


def play(
    tokenizer: PreTrainedTokenizerFast,
    scripts: list[list[tuple[str, str]]],
    *,
    retriever,
    protocol: Protocol,
    **config,
) -> tuple[list[Episode], ScriptedModel]:
    """Run one scripted episode a row; each script alternates ("a", action) and ("e", environment).

    The questions are "q0", "q1", ... An environment text is only what the script expects: the
    rollout has to say the same, or the episode leaves the script.
    """
    questions = [Question(str(i), f"q{i}", ("x",)) for i in range(len(scripts))]
    rollout = Rollout(tokenizer, worded(protocol), retriever, RolloutConfig(**config))
    encode = rollout.text.encode
    trajectories = []
    for question, script in zip(questions, scripts, strict=True):
        tokens = encode(protocol.prompt(question.text))
        for author, text in script:
            tokens = tokens + encode(text if author == "a" else Foreign(text))
        trajectories.append(tokens)
    model = ScriptedModel(trajectories, len(tokenizer), filler=encode("z")[0])
    return rollout.run(model, questions, temperature=1.0), model


def random_batch(
    policy: Policy,
    rows: int,
    *,
    seed: int = 0,
    questions: list[Question] | None = None,
    rules: Rules = RULES["qa"],
    **config,
) -> tuple[Batch, list[Episode]]:
    """Sampled episodes of the policy on the world, said to be in groups of two."""
    rollout = Rollout(policy.tokenizer, rules, retriever(), RolloutConfig(**config))
    episodes = rollout.run(
        policy.model,
        questions or world_questions(rows),
        temperature=rollout.config.temperature,
        generator=torch.Generator().manual_seed(seed),
    )
    for row, episode in enumerate(episodes):
        episode.reward, episode.group = float(row % 3 == 0), row // 2
    return collate(episodes), episodes


def padded(batch: Batch, columns: int, token: int) -> Batch:
    """The batch with `columns` more columns of padding, of an arbitrary token, on the right."""
    names = ("tokens", "attention_mask", "action_mask", "span", "sampler_logp")
    wide = {n: nn.functional.pad(getattr(batch, n), (0, columns)) for n in names}
    wide["tokens"] = torch.where(wide["attention_mask"], wide["tokens"], token)
    return dataclasses.replace(batch, **wide)


def naive_logits(model: nn.Module, batch: Batch, temperature: float) -> Tensor:
    """(B, T, V) logits that predict each token, by a plain forward; column 0 is of no use."""
    logits = model(input_ids=batch.tokens, use_cache=False).logits / temperature
    return nn.functional.pad(logits[:, :-1], (0, 0, 1, 0))


BARE = LossConfig(kl_coef=0.0)
MICRO = TrainConfig(
    lr=1e-3,
    updates_per_batch=3,
    rollout=RolloutConfig(problems=4, group_size=4, max_tokens=40, max_searches=4),
    loss=BARE,
)


def micro_trainer(config: TrainConfig = MICRO, **kwargs) -> Trainer:
    """A trainer of a random searcher on eight questions of the world."""
    return Trainer(config, tiny_policy(3), asking(world_questions(8)), **kwargs)


def weights(of: Trainer) -> dict[str, Tensor]:
    """A copy of the policy's parameters."""
    return {k: v.detach().clone() for k, v in of.policy.model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of parameters are equal to the bit."""
    return all(torch.equal(one[k], other[k]) for k in one)


def after(config: TrainConfig, steps: int = 1) -> tuple[dict, dict]:
    """The weights and the metrics of the last step."""
    run = micro_trainer(config)
    for _ in range(steps):
        metrics, _ = run.step()
    return weights(run), metrics


def spied(monkeypatch) -> list[LossInputs]:
    """The inputs of every loss that is asked for."""
    seen, real = [], train.compute_loss

    def spy(config, inputs):
        seen.append(inputs)
        return real(config, inputs)

    monkeypatch.setattr(train, "compute_loss", spy)
    return seen


def script(path: str) -> ModuleType:
    """A script of data/ as a module, without running it."""
    file = Path(__file__).parents[1] / "data" / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
