"""Does a searcher read? Held-out exact match, and the same where the facts are permuted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lldlib.config import RolloutConfig
from lldlib.evaluate.score import evaluate
from lldlib.policy.load import Policy, load_as
from lldlib.retrieval import BM25Retriever
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Run
from lldlib.train.run import saved_config
from lldlib.types import Question
from lldlib.world.answers import exact_match
from lldlib.world.atlas import Chain, World, WorldQuestion


@dataclass(frozen=True)
class PermutedControl:
    """Exact match on a permuted corpus, against its own answers and against the true ones."""

    questions: int  # those whose answer the permutation changed
    em_permuted: float  # 0 to 1; a reader keeps its held-out score
    em_true: float  # 0 to 1; what is answered from memory


def policy_of(run: Run, checkpoint: int | None) -> Policy:
    """The policy of a run as it was before batch `checkpoint`; None takes the latest checkpoint.

    Raises FileNotFoundError if there is no such checkpoint.
    """
    tensors, _ = run.load_checkpoint(checkpoint)
    config = saved_config(run.config)
    policy = load_as(config.policy, config.load)
    prefix = "model."
    weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    policy.model.load_state_dict(weights, strict=False)  # tied and frozen weights are not in there
    return policy


def heldout_em(
    policy: Policy, world: World, questions: Sequence[Question], rollout: RolloutConfig
) -> float:
    """Exact match of greedy answers, 0 to 1, with the passages of the whole world to search."""
    retriever = BM25Retriever(world.passages("all"))
    runner = Rollout(policy.tokenizer, policy.protocol, retriever, rollout)
    return evaluate(policy, runner, list(questions), temperature=0.0).em


def permuted_control(
    policy: Policy,
    world: World,
    questions: Sequence[WorldQuestion],
    rollout: RolloutConfig,
    *,
    seed: int,
) -> PermutedControl:
    """Ask the questions in a copy of the world whose facts are permuted by `seed`.

    A question counts where following its look-ups there gives another answer than in the world.
    Raises ValueError if there is no such question.
    """
    permuted = world.permuted(seed)
    asked, moved = [], []
    for question in questions:
        answer = _follow(permuted, question.chain)
        if answer is not None and (answer,) != question.answers:
            asked.append(question)
            moved.append(replace(question, answers=(answer,)))
    retriever = BM25Retriever(permuted.passages("all"))
    runner = Rollout(policy.tokenizer, policy.protocol, retriever, rollout)
    result = evaluate(policy, runner, moved, temperature=0.0)
    true = [
        exact_match(episode.answer, question.answers)
        for episode, question in zip(result.episodes, asked, strict=True)
    ]
    return PermutedControl(len(asked), em_permuted=result.em, em_true=sum(true) / len(true))


def _follow(world: World, chain: Chain) -> str | None:
    """Where the look-ups of the chain lead in this world; None where one finds nothing."""
    forward = {(fact.relation, fact.entity): fact.value for fact in world.facts}
    inverse = {(fact.relation, fact.value): fact.entity for fact in world.facts}
    key: str | None = chain[0].key
    for hop in chain:
        key = (inverse if hop.inverse else forward).get((hop.relation, key))
    return key
