"""What kind of log a file is, before anything is judged: told by the names of its columns."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lldlib.doctor.reading.log import Log
from lldlib.doctor.reading.signals import ACCURACY, GUESSED, canonical, read_name

Word = Literal["rl", "supervised", "preference", "answers", "summary", "none"]
TITLES: dict[Word, str] = {
    "rl": "reinforcement learning",
    "supervised": "supervised training, as far as its columns tell",
    "preference": "preference tuning (DPO, ORPO or a reward model)",
    "answers": "single answers, as an evaluation or a rollout dump writes them",
    "summary": "the summary of a run",
    "none": "no training",
}
MANY = 3  # rows of one step from which on rows are answers, not steps
ENOUGH_FOR_STEPS = 20  # rows without a step and with text under which a log is a summary
FEW = 2  # rows up to which a log may be a summary

_PREFERENCE = re.compile(
    r"(?:.*[/_])?(?:rewards?_(?:chosen|rejected|margins?|accuracies)|(?:chosen|rejected)_rewards?|"
    r"logps_(?:chosen|rejected)|log_odds_(?:ratio|chosen)|odds_ratio_loss|(?:dpo|orpo|kto|simpo|ipo|"
    r"cpo)_loss|reward_margins?|margin|chosen_last_scores|rejected_last_scores|rejected)"
)
_SUPERVISED = re.compile(
    r"(?:.*[/_])?(?:mean_token_accuracy|token_accuracy|token_acc|perplexity|ppl|sft_loss|nll_loss|"
    r"lm_loss|ce_loss)"
)
_RL = re.compile(
    r"(?:.*[/_])?(?:kl\w*|\w*kl_(?:loss|div\w*|coef)|advantages?\w*|adv_\w+|returns?_\w+|pg_loss|"
    r"ppo\w*|grpo\w*|actor|critic|rollouts?|completions?_(?:mean_)?length|response_length\w*|"
    r"clip_?frac\w*|clip_ratio\w*|reward_std\w*|std_reward|frac_reward_zero_std|value_loss|"
    r"policy_loss|rl_loss|actor_loss|episode\w*|group_(?:size|reward)\w*|n_groups|entropy_bonus|num_turns\w*|"
    r"env_all_\w+)(?:_.*)?"
)
_ITEM = re.compile(
    r"(?:(?:sample|question|example|problem|prompt|task|item|instance|query|data|doc|qa)_?(?:id|idx|"
    r"index|no|num)|q?id|idx|index|uid|sample|rank_in_group)"
)
_TEXT = re.compile(
    r".*(?:question|prompt|completion|response|answer|output|prediction|target|gold|gts|solution|"
    r"ground_truth|messages|input|text|query).*"
)
_MEAN = re.compile(r"mean|avg|average|total", re.I)
_TRAINS = re.compile(
    r"(?:.*[/_])?(?:loss|\w+_loss|learning_rate|lr|grad_?norm|gradient_norm|grad_norm_\w+|l2_norm)"
)


@dataclass(frozen=True)
class Kind:
    """What a log is, and by which of its columns that is known."""

    word: Word
    by: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.word]

    @property
    def says(self) -> str:
        """The sentence at the head of a page."""
        return f"This is {self.title}" + (f": {self.by}" if self.by else "")


NONE = Kind("none")


def kind_of(log: Log) -> Kind:
    """The kind of a log that was read to its end."""
    names = {canonical(name): name for name in log.seen}
    words = {canonical(name): name for name in log.words}
    if any(ours in log.mapped for ours in _rewards(log, sure=True)):
        return Kind("rl", "you named its reward")
    signs = _matching(_RL, names)
    stepless = not any(read_name(name).step is not None for name in log.columns)
    sure, guessed = _rewards(log, sure=True), _rewards(log, sure=False)
    trains = _matching(_TRAINS, names)
    answers = _answers(log, names, words, trains)
    if answers:
        return Kind("answers", answers)
    if stepless and words and not trains and log.rows < ENOUGH_FOR_STEPS:
        shown = _some([*sure, *guessed, *log.words])
        return Kind("summary", f"its {log.rows} rows hold {shown}, and no step") if shown else NONE
    rewards = [*sure, *guessed]
    bare = stepless and rewards and not any(_MEAN.search(name) for name in rewards)
    if bare and log.format.startswith("console log with") and not trains and not signs:
        said = f"it prints {_some(rewards)} without a step, a loss or a learning rate"
        return Kind("answers", said)
    preference = _matching(_PREFERENCE, names)
    if preference and not (sure and signs):
        return Kind("preference", f"it logs {_some(preference)}")
    supervised = _matching(_SUPERVISED, names)
    scores = [name for name in guessed if not ACCURACY.fullmatch(canonical(name))]
    if sure or scores or (guessed and signs):
        reward = (sure or scores or guessed)[0]
        if supervised and not sure and not signs:
            return Kind("supervised", f"it logs {_some(supervised)} and no reward")
        known = [name for name in log.columns if name in trains or name in signs]
        beside = [name for name in [*_telling(log), *known, *signs, *trains] if name != reward]
        return Kind("rl", f"it logs {_some([reward, *beside])}")
    if signs and trains and not supervised:
        return Kind("rl", f"it logs {_some([*_telling(log), *signs])}, but no reward known here")
    if trains or supervised:
        return _without_reward(log, names, [*supervised, *trains])
    if log.latest and log.rows <= FEW:
        return Kind("summary", f"it holds {_some(log.latest)} and no steps")
    return NONE


def _telling(log: Log) -> list[str]:
    """Columns that only reinforcement learning has, as far as the table names them."""
    return [
        name
        for ours in ("kl", "entropy", "clip_share", "length", "no_contrast", "reward_std", "loss")
        for name in log.columns
        if any(s == ours and rank < GUESSED for s, rank in read_name(name).signals)
    ]


def _without_reward(log: Log, names: dict[str, str], shown: list[str]) -> Kind:
    if "accuracy" in names and "current_steps" in names:  # LLaMA-Factory logs it for pairs only
        return Kind("preference", "LLaMA-Factory logs an accuracy for pairs of answers only")
    if log.rows <= FEW and log.latest:
        return Kind("summary", f"it holds {_some(log.latest)} and no steps")
    known = any(read_name(name).signals for name in log.columns)
    return Kind("supervised", f"it logs {_some(shown)} and no reward") if known else Kind("none")


def _rewards(log: Log, sure: bool) -> list[str]:
    """Columns that are a reward by the table, or (not `sure`) by a guess."""
    found = []
    for name, column in log.columns.items():
        ranks = [rank for signal, rank in read_name(name).signals if signal == "reward"]
        if ranks and (min(ranks) < GUESSED) == sure and any(v == v for v in column):
            found.append((min(ranks), name))
    return [name for _, name in sorted(found)]


def _answers(log: Log, names: dict, words: dict, trains: list[str]) -> str:
    """Why the rows are answers and not steps, or nothing."""
    if trains:
        return ""
    items = [n for b, n in [*names.items(), *words.items()] if _ITEM.fullmatch(b)]
    texts = [n for b, n in words.items() if _TEXT.fullmatch(b)]
    step = next((c for n, c in log.columns.items() if read_name(n).step is not None), None)
    if step is None:
        shown = items + [t for t in texts if t not in items]
        enough = items or len(texts) > 1 or (texts and log.rows > FEW)
        return f"its rows name {_some(shown)}, and no step, loss or learning rate" if enough else ""
    values = np.asarray(step)
    values = values[np.isfinite(values)]
    crowded = len(values) and len(values) >= MANY * len(np.unique(values))
    if texts and (items or crowded):
        return f"its rows hold {_some([*items, *texts])}, and no loss or learning rate"
    return ""


def _matching(pattern: re.Pattern, names: dict[str, str]) -> list[str]:
    return [name for bare, name in names.items() if pattern.fullmatch(bare)]


def _some(names: Iterable[str], most: int = 3) -> str:
    kept = list(dict.fromkeys(names))[:most]
    return ", ".join(kept[:-1]) + f" and {kept[-1]}" if len(kept) > 1 else "".join(kept)
