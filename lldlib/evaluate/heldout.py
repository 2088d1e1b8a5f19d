"""Held-out scores of a policy; and does a searcher read? The same where facts are permuted."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lldlib.config import RolloutConfig, train_config_from
from lldlib.policy.load import Policy, check_device, load_as
from lldlib.policy.optimizer import put_weights
from lldlib.retrieval import BM25Retriever
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Run
from lldlib.types import Episode, Question, StopReason
from lldlib.world.atlas import Chain, World, WorldQuestion
from lldlib.world.environment import ATLAS, Environment, Rules, Split

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Scores of one policy on one set of questions."""

    reward: float  # mean, 0 to 1: exact match, or for maths the share of right answers
    scores: dict[str, float]  # means of what the rules report beside it, such as F1
    episodes: list[Episode]


def ask(
    policy: Policy,
    rollout: Rollout,
    questions: Sequence[Question],
    *,
    temperature: float,
    samples: int = 1,
) -> Evaluation:
    """Answer every question; `temperature` 0 is greedy.

    Where it samples there are `samples` answers to each. It draws from a fixed seed, so that two
    policies meet the same luck. An answer whose search tool was down has no score. ValueError for
    no questions, ConnectionError where the tool was down for more answers than it served.
    """
    if not questions:
        raise ValueError("no questions to evaluate: check the file or the slice")
    episodes = rollout.run(
        policy.model,
        list(questions),
        temperature=temperature,
        samples=samples if temperature else 1,
        generator=torch.Generator().manual_seed(0),
    )
    kept = [e for e in episodes if e.stop is not StopReason.TOOL_ERROR]
    if (lost := len(episodes) - len(kept)) > sum(e.valid_searches > 0 for e in kept):
        raise ConnectionError(
            f"the search tool was down for {lost} of {len(episodes)} held-out answers: start it, "
            "then ask again (a run goes on with --resume)"
        )
    scores = {
        name: sum(score(e.answer, e.question.answers) for e in kept) / len(kept)
        for name, score in rollout.rules.scores.items()
    }
    return Evaluation(sum(e.reward for e in kept) / len(kept), scores, episodes)


def pass_at(result: Evaluation, samples: int) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, ... up to `samples`: how likely one of k answers is right.

    The mean over questions of 1 - C(n - c, k) / C(n, k), with n = `samples` answers of which c are
    right: unbiased for each k. Source: arXiv 2107.03374 Eq. 1.
    """
    right = Counter(e.group for e in result.episodes if e.reward == 1.0)
    groups, found, k = {e.group for e in result.episodes}, {}, 1
    while k <= samples:
        missed = (math.comb(samples - right[group], k) for group in groups)
        found[k] = 1 - sum(missed) / math.comb(samples, k) / len(groups)
        k *= 2
    return found


@dataclass(frozen=True)
class PermutedControl:
    """Exact match on a permuted corpus, against its own answers and against the true ones."""

    questions: int  # those whose answer the permutation changed
    em_permuted: float  # 0 to 1; a reader keeps its held-out score
    em_true: float  # 0 to 1; what is answered from memory


def policy_of(run: Run, checkpoint: int | None, device: str | None = None) -> Policy:
    """The policy of a run as it was before batch `checkpoint`; None takes the latest checkpoint.

    On `device`; None takes the run's, or the CPU where that is not here. Raises FileNotFoundError
    if there is no such checkpoint, and ValueError for a device that is not here.
    """
    tensors, _ = run.load_checkpoint(checkpoint)
    config = train_config_from(run.config)
    load = config.load if device is None else replace(config.load, device=device)
    try:
        check_device(load.device)
    except ValueError as error:
        if device is not None:
            raise
        logger.warning("%s: the policy is asked on the CPU", error)
        load = replace(load, device="cpu")
    policy = load_as(config.policy, load)
    put_weights(tensors, policy.model)
    return policy


def heldout_em(policy: Policy, environment: Environment, rollout: RolloutConfig) -> float:
    """Exact match of greedy answers to what the environment holds out, 0 to 1."""
    return _greedy(policy, environment.rules, environment.heldout, rollout).reward


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
    split = Split(moved, BM25Retriever(permuted.passages("all")))
    result = _greedy(policy, ATLAS, split, rollout)
    true = [
        ATLAS.reward(episode.answer, question.answers)
        for episode, question in zip(result.episodes, asked, strict=True)
    ]
    return PermutedControl(len(asked), em_permuted=result.reward, em_true=sum(true) / len(true))


def _greedy(policy: Policy, rules: Rules, split: Split, rollout: RolloutConfig) -> Evaluation:
    runner = Rollout(policy.tokenizer, rules, split.tool, rollout)
    return ask(policy, runner, split.questions, temperature=0.0)


def _follow(world: World, chain: Chain) -> str | None:
    """Where the look-ups of the chain lead in this world; None where one finds nothing."""
    forward = {(fact.relation, fact.entity): fact.value for fact in world.facts}
    inverse = {(fact.relation, fact.value): fact.entity for fact in world.facts}
    key: str | None = chain[0].key
    for hop in chain:
        key = (inverse if hop.inverse else forward).get((hop.relation, key))
    return key
