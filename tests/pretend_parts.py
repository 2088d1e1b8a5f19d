"""The paths of the package that a pretend accelerator goes through, a process of its own.

The model is on the second device, while the first is the current one.

Usage: pretend_parts.py GUESSER FOLDER. One JSON line a part on standard output: its name, and the
error, which is null where it passed.
"""

import contextlib
import dataclasses
import functools
import gc
import inspect
import json
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path

import helpers  # one thread, as in the tests
import torch
from benchmark_files import write_rows
from gold_rows import HOTPOT, MUSIQUE
from pretend_gpu import NAME, Graph, Pretend, pretend
from transformers import AutoModelForCausalLM, LlamaConfig

from lldlib.config import ExamConfig, LoadConfig, LossConfig, RolloutConfig, SftConfig, TrainConfig
from lldlib.evaluate.exam import Exam
from lldlib.policy.load import Policy, load_policy, save_policy, tiny_model
from lldlib.recipes import METHODS
from lldlib.rollout import draw, loop
from lldlib.rollout.cache import RaggedCache
from lldlib.rollout.decode import LockstepDecoder
from lldlib.rollout.draw import Drawer
from lldlib.runs.folder import Run
from lldlib.train import setup
from lldlib.train import supervised as warm
from lldlib.train import trainer as train
from lldlib.train.run import TrainingRun
from lldlib.train.supervised import SftRun
from lldlib.train.trainer import Trainer
from lldlib.types import Batch
from lldlib.world import atlas
from lldlib.world.benchmarks import Task
from lldlib.world.registry import open_environment

PLACE = f"{NAME}:1"
GPU = LoadConfig(device=PLACE)
PARTS: dict[str, Callable[[str, Path], None]] = {}


def even(answer: str | None, accepted: tuple[str, ...]) -> float:
    """A reward that so small a policy earns now and then."""
    return float(answer is not None and len(answer) % 2 == 0)


def part(function: Callable[[str, Path], None]) -> Callable[[str, Path], None]:
    PARTS[function.__name__] = function
    return function


def config(guesser: str, **changes) -> TrainConfig:
    """Two batches that go through everything a run has."""
    settings = {
        "policy": guesser,
        "steps": 2,
        "updates_per_batch": 2,
        "lr": 1e-3,
        "eval_every": 1,
        "checkpoint_every": 1,
        "load": GPU,
        "rollout": RolloutConfig(problems=3, group_size=4, max_tokens=40),
        "loss": METHODS["llds"],
    }
    return TrainConfig(**settings | changes)


def run(config: TrainConfig, out: Path) -> TrainingRun:
    """The whole run, whose weights must have stayed where they were."""
    training = TrainingRun(config, out)
    training.run()
    on_gpu(training.trainer)
    return training


def on_gpu(trainer: Trainer) -> None:
    assert all(isinstance(p, Pretend) for p in trainer.policy.model.parameters())
    moments = [v for state in trainer.optimizer.state.values() for v in state.values() if v.dim()]
    assert moments and all(isinstance(value, Pretend) for value in moments)


@part
def run_resume_branch(guesser, folder):
    """Probe set, rollouts, searches, scoring, updates, evaluation, checkpoints; then go on."""
    training = TrainingRun(config(guesser, steps=3), folder / "run")
    training.step()
    training.writer.close()  # killed here
    resumed = TrainingRun(training.config, folder / "run", resume=True)
    assert resumed.next_batch == 1
    resumed.run()
    run_ = Run(folder / "run")
    branch = TrainingRun.branch(run_, 1, folder / "branch", lr=1e-4)
    branch.step()
    on_gpu(branch.trainer)
    cpu = TrainingRun(config(guesser, steps=3, load=LoadConfig()), folder / "cpu").run()
    assert run_.column("reward/mean") == cpu.column("reward/mean")
    pairs = zip(run_.column("grad/norm"), cpu.column("grad/norm"), strict=True)
    assert all(one > 0 and abs(one - other) < 1e-3 * other for one, other in pairs)


@part
def pieces(guesser, folder):
    """Scored and trained two rows at a time, generated five at a time, in blocks of six tokens."""
    loop.Drawer = functools.partial(Drawer, block=6)
    small = config(guesser, steps=1, micro_rows=2)
    run(dataclasses.replace(small, rollout=dataclasses.replace(small.rollout, at_once=5)), folder)
    loop.Drawer = Drawer


@part
def recorded(guesser, folder):
    """The steps of a block as graphs: the episodes of the CPU, and no cache after its rollout."""
    gc.disable()
    before, wanted, got = Graph.replays, talk("cpu"), talk(PLACE)
    assert Graph.replays > before + 5 and torch.equal(wanted.tokens, got.tokens)
    assert (wanted.sampler_logp - got.sampler_logp).abs().max() < 1e-5
    assert not [x for x in gc.get_objects() if isinstance(x, (RaggedCache, Graph))]
    gc.enable()


@part
def current_device(guesser, folder):
    """Graphs of the device that happens to be current record nothing, and the draws are wrong."""
    real, draw.current = draw.current, lambda device: contextlib.nullcontext()
    assert not torch.equal(talk("cpu").tokens, talk(PLACE).tokens)
    draw.current = real


def talk(device: str) -> Batch:
    """Episodes of a talkative searcher in blocks of four tokens."""
    policy = helpers.tiny_policy()
    policy.model.to(device)
    loop.Drawer = functools.partial(Drawer, block=4)
    batch, _ = helpers.random_batch(policy, 12, max_tokens=80)
    loop.Drawer = Drawer
    return batch


@part
def lockstep(guesser, folder):
    """Every model but Qwen2 and Llama."""
    real = draw.make_decoder
    draw.make_decoder = lambda model, rows, capacity: LockstepDecoder(
        model.get_decoder(), model.config.num_hidden_layers, capacity
    )
    run(config(guesser, steps=1), folder)
    draw.make_decoder = real


@part
def adapters(guesser, folder):
    """LoRA and gradient checkpointing."""
    load = dataclasses.replace(GPU, lora_rank=2, lora_alpha=4, gradient_checkpointing=True)
    TrainingRun(config(guesser, load=load), folder).run()


@part
def bfloat16(guesser, folder):
    """All weights in bfloat16."""
    TrainingRun(config(guesser, load=dataclasses.replace(GPU, dtype="bfloat16")), folder).run()


@part
def supervised(guesser, folder):
    """The supervised warm start, on the accelerator from its config."""
    folder.mkdir()
    file = write_rows(folder / "rows.jsonl", (MUSIQUE, HOTPOT))
    tokenizer = helpers.character_tokenizer()
    model = tiny_model(len(tokenizer), width=16, layers=1, heads=2, seed=0)
    save_policy(Policy(model.eval(), tokenizer), folder / "start")
    settings = SftConfig(
        files=(str(file),),
        policy=str(folder / "start"),
        load=dataclasses.replace(GPU, lora_rank=2, lora_alpha=4),
        steps=2,
        batch=2,
        rows=1,
        max_tokens=2000,
        top_k=2,
    )
    # transformers looks for tied weights by their addresses, which a pretended one lacks
    warm.save_policy = lambda policy, path: save_policy(Policy(policy.model.cpu(), tokenizer), path)
    SftRun(settings, folder / "run").run(progress=False)


@part
def exam(guesser, folder):
    """Questions of a benchmark."""
    policy = load_policy(guesser, device=PLACE)
    questions = helpers.world_questions(6)
    settings = ExamConfig(rows=4, max_tokens=40)
    taken = Exam(policy, helpers.retriever(), settings, folder, {})
    taken.ask(Task("t", "T", "qa", "t", None), questions, False)


@part
def llama(guesser, folder):
    """SmolLM2's architecture at a small size, with rows in blocks."""
    tokenizer = load_policy(guesser).tokenizer
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval().to(PLACE)
    loop.Drawer = functools.partial(Drawer, block=4)
    trainer(Policy(model, tokenizer), config(guesser)).step()
    loop.Drawer = Drawer


def trainer(policy: Policy, config: TrainConfig) -> Trainer:
    return Trainer(config, policy, open_environment(config))


def method(loss: LossConfig) -> Callable[[str, Path], None]:
    """One batch by a preset."""

    def step(guesser, folder):
        settings = config(guesser, loss=loss)
        on = trainer(load_policy(guesser, device=PLACE), settings)
        on.step()
        on_gpu(on)

    return step


PARTS |= {f"method {name}": method(loss) for name, loss in METHODS.items()}
PARTS["exact_kl"] = method(
    dataclasses.replace(METHODS["lp_reg"], lp_reg_kl="exact", lp_reg_quantile=0.5)
)


def refused(step: Callable[[], object], why: str) -> None:
    try:
        step()
    except RuntimeError as error:
        assert why in str(error), error
    else:
        raise AssertionError(f"not refused: {why}")


@part
def old_defect(guesser, folder):
    """A trainer that draws from a generator on the model's device, as ours once did."""
    source = inspect.getsource(train)
    ours, theirs = "torch.Generator().manual", "torch.Generator(self.device).manual"
    assert ours in source
    old = types.ModuleType("old_trainer")
    sys.modules[old.__name__] = old
    exec(source.replace(ours, theirs), old.__dict__)
    parts = (config(guesser), load_policy(guesser, device=PLACE))
    made = old.Trainer(*parts, open_environment(parts[0]))
    refused(made.step, "generator")


@part
def what_is_refused(guesser, folder):
    """Mixed devices, and an accelerator's numbers from a generator of the CPU."""
    here, there = torch.ones(2), torch.ones(2, device=NAME)
    refused(lambda: here + there, "meets cpu")
    refused(lambda: there[torch.tensor([0])] + here, "meets cpu")
    refused(lambda: torch.rand(2, device=NAME, generator=torch.Generator()), "generator")
    refused(lambda: there + torch.ones(2, device=PLACE), "meets")
    assert (there + 1.0).tolist() == [2.0, 2.0] and there.cpu().sum() == 2


def main(guesser: str, folder: Path) -> None:
    atlas.HELDOUT_QUESTIONS, atlas.TRAIN_QUESTIONS, setup.PROBE_ROWS = 6, 60, 6
    atlas.ATLAS = dataclasses.replace(atlas.ATLAS, reward=even)
    torch.cuda.get_device_name = lambda device: NAME
    with pretend():
        for name, function in PARTS.items():
            error = None
            try:
                function(guesser, folder / name)
            except Exception:
                error = traceback.format_exc()
            print(json.dumps({"part": name, "error": error}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
