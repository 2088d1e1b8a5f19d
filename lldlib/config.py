"""Settings as frozen dataclasses, with a comment per field; the command line is made of them.

A field's type says which numbers it may have, and `check` holds a config to them.
"""

import math
import sys
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

Gate = Literal["action", "response", "token"]
AnswerSchedule = Literal["none", "paper", "code"]
Preserve = Literal["nonnegative", "positive", "negative"]
Precision = Literal["float32", "bfloat16"]
Kind = Literal["qa", "maths"]
Rewards = Literal["true", "coin", "shuffled"]
ExamHalf = Literal["validation", "test"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]

PROBE_ROWS = 48  # correct trajectories in the fixed probe set, at most
QUESTIONS = 6  # held-out questions whose answers are recorded
TRAIN_QUESTIONS = 1500  # questions that are drawn of the built-in world
HELDOUT_QUESTIONS = 120  # of its held-out ones


@dataclass(frozen=True)
class Within:
    """The range of a number; infinity and nan are in none."""

    low: float | int = -math.inf
    high: float | int = math.inf
    open_low: bool = False  # the lowest number itself is not allowed
    open_high: bool = False  # nor is the highest

    def __contains__(self, value: float | int) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        # a whole number may be larger than any float
        return above and below and abs(value) <= sys.float_info.max

    def __str__(self) -> str:
        if self.high < math.inf:
            left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
            return f"a number in {left}{self.low:g}, {self.high:g}{right}"
        if self.low == -math.inf:
            return "a finite number"
        more = f"over {self.low:g}" if self.open_low else f"of {self.low:g} or more"
        return f"a finite number {more}"


@dataclass(frozen=True)
class Length:
    """How many values a list may have."""

    low: int
    high: int


Count = Annotated[int, Within(1)]
Whole = Annotated[int, Within(0)]
Seed = Annotated[int, Within(0, 10**8, open_high=True)]  # what `seeds.seed_for` takes
Positive = Annotated[float, Within(0, open_low=True)]
Weight = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1, open_low=True)]  # of something, and not of nothing
Chance = Annotated[float, Within(0, 1)]
Below1 = Annotated[float, Within(0, 1, open_high=True)]
Inside = Annotated[float, Within(0, 1, open_low=True, open_high=True)]
Hops = Annotated[tuple[Weight, ...], Length(1, 3)]  # an entry for 1 hop, for 2, for 3


def check(config: Any, prefix: str = "") -> None:
    """Hold a config, and the configs in it, to the types of its fields.

    Raises ValueError, in one line, for a number out of its range, infinity and nan included, a list
    of another length, and a word that is none of the choices.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for one in fields(config):
        value, name = getattr(config, one.name), prefix + one.name
        if is_dataclass(value):
            check(value, f"{name}.")
        else:
            require(name, value, hints[one.name])


def require(name: str, value: Any, hint: Any) -> None:
    """ValueError, in one line, for a value that is not of that type; see `check`."""
    if wrong := unfit(value, hint):
        said = "".join(c if c.isprintable() else " " for c in str(value)[:80])
        raise ValueError(f"{name} is {said}: use {wrong}")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that is none of those known: the near ones, or where none is, all."""
    if near := get_close_matches(name, known := list(known)):
        return f"unknown {what} {name!r}: did you mean {' or '.join(near)}?"
    return f"unknown {what} {name!r}: use one of {', '.join(known)}"


def unfit(value: Any, hint: Any) -> str:
    """What a value of that type has to be, where this one is not; else nothing."""
    if typing.get_origin(hint) is Annotated:
        hint, bounds = typing.get_args(hint)
    else:
        bounds = Within()
    if (kinds := _choices(hint)) is not None:  # X | None
        wrong = [unfit(value, kind) for kind in kinds]
        return "" if "" in wrong else " or ".join(text for text in wrong if text)
    if hint is type(None):
        return "" if value is None else "none"
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return "" if value in choices else f"one of {', '.join(map(str, choices))}"
    if typing.get_origin(hint) in (tuple, list):
        kinds = typing.get_args(hint)
        if not isinstance(value, typing.get_origin(hint)):
            return "a list"
        return _unfit_list(value, kinds if len(kinds) > 1 else (*kinds, ...), bounds)
    if hint in (str, bool):
        return "" if isinstance(value, hint) else {str: "a text", bool: "true or false"}[hint]
    if hint in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        fits = (whole or (hint is float and isinstance(value, float))) and value in bounds
        return "" if fits else str(bounds).replace("finite", "whole" if hint is int else "finite")
    return ""


def _choices(hint: Any) -> tuple[Any, ...] | None:
    union = typing.get_origin(hint) in (typing.Union, type(int | None))
    return typing.get_args(hint) if union else None


def _unfit_list(value: Any, kinds: tuple[Any, ...], bounds: Within | Length) -> str:
    each = [kinds[0]] * len(value) if kinds[-1] is ... else list(kinds)
    low, high = (bounds.low, bounds.high) if isinstance(bounds, Length) else (0, math.inf)
    if kinds[-1] is not ...:
        low = high = len(kinds)
    if not low <= len(value) <= high:
        return f"{low} values" if low == high else f"{low} to {high} values"
    wrong = [unfit(one, kind) for one, kind in zip(value, each, strict=True)]
    return next((f"for each {text}" for text in wrong if text), "")


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are made."""

    problems: Count = 16  # P, questions per rollout batch
    group_size: Annotated[int, Within(2)] = 5  # G, rollouts per question, which GRPO compares
    max_searches: Whole = 4  # turns of an episode that may search
    max_tokens: Count = 160  # tokens of a row, prompt and retrieved text included
    top_k: Count = 1  # passages that a search finds; a real model is shown 500 tokens of them
    passage_tokens: Whole = 0  # tokens of each passage, its title included, at most (0 = all)
    temperature: Positive = 1.0  # temperature of the sampler and of every log-prob
    # episodes generated at a time, exams included, which bounds memory (0 = a batch's)
    at_once: Whole = 0
    # a sampler that is not quite the policy in training, as a rollout engine can be; exams ask the
    # policy itself
    sampler_weights: Literal["same", "bfloat16", "int8"] = "same"  # rounding of its weights
    sampler_noise: Weight = 0.0  # deviation of noise on the sampler's logits, nats
    # share of the probability that is sampled from, likeliest tokens first (code of LLDS: 0.95)
    top_p: Share = 1.0

    @property
    def exact(self) -> "RolloutConfig":
        """The same, sampled by the policy itself."""
        return replace(self, sampler_weights="same", sampler_noise=0.0, top_p=1.0)


@dataclass(frozen=True)
class LossConfig:
    """The objective: a policy term and weighted regularizers; a weight of 0 leaves the term out."""

    scale_advantage: bool = True  # divide by the group's standard deviation (False: Dr. GRPO)
    aggregation: Aggregation = "token-mean"  # how the policy term, KL and entropy become one number
    ratio_level: Literal["token", "sequence"] = "token"  # whose ratio is clipped; "sequence": GSPO
    clip_low: Weight = 0.2  # lower clip range of the ratio
    clip_high: Weight = 0.2  # upper clip range; larger than clip_low: Clip-Higher
    ratio_cap: Positive | None = None  # hard cap of the ratio (Lp-Reg's U)
    # largest ratio, before the clip (code of Search-R1 and LLDS: 100; None: e^20)
    ratio_limit: Positive | None = None
    # gain of a token: ppo, the clipped ratio; cispo, its log-prob by a clipped constant ratio;
    # reinforce, its log-prob
    surrogate: Literal["ppo", "cispo", "reinforce"] = "ppo"
    # importance weight of a token, policy over sampler, at most its limit, or 0 beyond it
    sampler_correction: Literal["none", "truncated", "masked"] = "none"
    # over 1, or tokens on which the two agree are cut too
    sampler_limit: Annotated[float, Within(1, open_low=True)] = 2.0  # limit of that weight
    negative_weight: Weight = 1.0  # factor on negative advantages (a causal control)
    # share of tokens, highest entropy first, that get gradient (80/20: 0.2)
    top_entropy: Share = 1.0
    clip_cov_share: Chance = 0.0  # share of tokens whose gradient Clip-Cov drops
    kl_cov_coef: Weight = 0.0  # weight of KL-Cov's penalty
    kl_cov_share: Share = 0.002  # share of tokens that KL-Cov penalises
    nthr: bool = False  # scale down negative tokens by NTHR
    entropy_coef: Weight = 0.0  # weight of the entropy bonus
    kl_coef: Weight = 0.001  # weight of the KL to the reference policy
    # estimator of the KL to the reference policy
    kl_estimator: Literal["k1", "k2", "k3", "low_var_kl"] = "low_var_kl"
    old_kl_coef: Weight = 0.0  # weight of a plain KL to the old policy (a causal control)
    # where the KL to the old policy pulls; preserved: on the rows of LLDS
    old_kl_rows: Literal["all", "preserved"] = "all"
    llds_coef: Weight = 0.0  # lambda, the weight of LLDS
    llds_gate: Gate = "action"  # where LLDS may act
    # rows that LLDS keeps: A >= 0 (paper), A > 0, or (a causal control) A < 0
    llds_preserve: Preserve = "nonnegative"
    # divisor of LLDS: tokens of the rows it keeps (paper) or all (code)
    llds_normalizer: Literal["preserved", "all"] = "preserved"
    llds_answer: AnswerSchedule = "none"  # LLDS-MA's weight on answer tokens
    lp_reg_coef: Weight = 0.0  # beta, the weight of Lp-Reg
    # tokens of Lp-Reg's quantile: a rollout batch's, or (code) a minibatch's with A < 0
    lp_reg_selection: Literal["paper", "code"] = "paper"
    # KL(proxy || policy) of Lp-Reg: of the token drawn (code), or of all tokens (paper)
    lp_reg_kl: Literal["sample", "exact"] = "sample"
    lp_reg_quantile: Inside = 0.01  # rho, the share of tokens counted as low-probability
    lp_reg_filter: Literal["min-p", "fixed"] = "min-p"  # how the proxy drops noise tokens
    lp_reg_threshold: Below1 = 0.02  # threshold of that filter: kappa (min-p) or tau (fixed)
    sapo_coef: Weight = 0.0  # weight of SAPO, on the rows that LLDS keeps
    # largest ratio of a token that SAPO pulls back; at 1 it is LLDS with the gate "token"
    sapo_ratio: Share = 0.8


@dataclass(frozen=True)
class LoadConfig:
    """How the policy's model is loaded."""

    quantize: Literal["nf4"] | None = None  # 4-bit weights (QLoRA); needs adapters
    lora_rank: Whole = 0  # rank of the adapters on all linear layers (0 = train all weights)
    lora_alpha: Count = 64  # scale of the adapters: their output is multiplied by alpha / rank
    dtype: Precision = "float32"  # number format of the model; adapters are float32
    device: str = "cpu"  # device of the model, such as cuda
    gradient_checkpointing: bool = False  # less memory, a third more time

    def check_trainable(self) -> None:
        """ValueError where nothing could be trained."""
        if self.quantize and not self.lora_rank:
            raise ValueError("load.quantize trains adapters alone: give load.lora_rank, such as 16")


@dataclass(frozen=True)
class DataConfig:
    """Questions and passages of a run: from files, or without `train` those of a built-in world."""

    train: tuple[str, ...] = ()  # JSONL files of questions, or hub:NAME such as hub:dapo
    kind: Kind = "qa"  # qa: search, exact match; maths: no search, boxed answers by math-verify
    heldout: tuple[str, ...] = ()  # JSONL files or hub:NAME, for the held-out exact match
    # questions of each held-out file, or in "shuffled" of each number of hops, at most
    heldout_limit: Count = 120
    retriever: str = "bm25"  # bm25, none, or the address of a /retrieve service
    corpus: str | None = None  # passages for bm25, as JSONL
    index: str | None = None  # folder for bm25's index on disk, such as runs/index/wiki
    world: str = "atlas"  # world, where `train` is left out: atlas, shuffled, or sparks
    misses: Chance = 0.0  # probability that a search of "shuffled" finds a random passage
    hop_weights: Hops = (0.34, 0.33, 0.33)  # shares of 1, 2 and 3 hops in "shuffled"
    exam_half: ExamHalf = "validation"  # half asked in "shuffled"; test: not for choosing

    def check(self) -> None:
        """ValueError, naming it, for a setting that nothing would read."""
        if not any(self.hop_weights):
            raise ValueError("data.hop_weights are all 0: give at least one number of hops a share")
        given = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        if not self.train and (idle := given & {"kind", "heldout", "retriever", "corpus", "index"}):
            raise ValueError(
                f"data.{min(idle)} belongs to questions from files: name them too, data.train"
            )
        of_files = bool(self.train)
        shuffled = given & {"misses", "hop_weights", "exam_half"}
        if shuffled and (of_files or self.world != "shuffled"):
            here = "questions from files" if of_files else f"the world {self.world!r}"
            raise ValueError(
                f"data.{min(shuffled)} belongs to the world 'shuffled', and is not read with {here}"
            )


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    seed: Seed = 0  # seed of questions, sampling and minibatch order
    steps: Count = 150  # rollout batches to train
    updates_per_batch: Count = 10  # optimiser updates per rollout batch (Search-R1: 10)
    lr: Positive = 3e-4  # AdamW learning rate after warm-up
    warmup_batches: Whole = 0  # linear learning-rate warm-up, in rollout batches
    grad_clip: Positive = 1.0  # largest gradient norm; a longer gradient is scaled to it
    # how much of their past AdamW's two moving averages keep
    betas: tuple[Below1, Below1] = (0.9, 0.999)
    # leave out updates whose gradient is exactly 0, in which Adam's momentum alone moves the policy
    skip_zero_updates: bool = False
    # nats that an update may move the policy on its own rows; a longer one is shortened, for which
    # a copy of the trained weights is kept (0 = no limit)
    move_limit: Weight = 0.0
    eval_every: Whole = 10  # batches between held-out evaluations (0 = never)
    probe_every: Whole = 1  # batches between scorings of the fixed probe set (0 = no probe set)
    # batches between rollouts that are measured, not trained on (0 = never)
    fresh_every: Whole = 0
    checkpoint_every: Whole = 25  # batches between checkpoints (0 = only the last)
    rollouts_logged: Whole = 2  # episodes written to rollouts.jsonl per batch
    # batches between greedy answers to the same few held-out questions (0 = never)
    questions_every: Whole = 0
    # rewards trained on; "coin", or "shuffled" in their groups, are causal controls
    rewards: Rewards = "true"
    # share of the deviation of rewards that is trained on, most mixed groups first (RAGEN-2: 0.9)
    keep_mixed: Share = 1.0
    # nats per token that a batch may cost its correct rows: LLDS's lambda follows it
    llds_target: Weight | None = None
    # episodes scored or trained at a time, which bounds memory (0 = all)
    micro_rows: Whole = 0
    # policy to start from: "half_taught", "sparks", "tiny", "smollm2", or a Hugging Face model
    policy: str = "half_taught"
    method: str = "grpo"  # name of the preset that the loss starts from
    load: LoadConfig = field(default_factory=LoadConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    loss: LossConfig = field(default_factory=LossConfig)

    def check(self, questions: int | None = None) -> None:
        """ValueError, in one line, for settings under which no update means anything.

        `questions` is how many there are to draw a batch from, where that is known already.
        """
        check(self)
        self.data.check()
        self.load.check_trainable()
        if self.llds_target is not None and not self.loss.llds_coef:
            raise ValueError(
                f"llds_target is {self.llds_target} with llds_coef 0: give a lambda to start from, "
                "such as 0.2"
            )
        if questions is not None and self.rollout.problems > questions:
            raise ValueError(
                f"{questions} questions for batches of {self.rollout.problems}: change "
                "rollout.problems"
            )


def train_config_from(raw: dict) -> TrainConfig:
    """The TrainConfig of a run folder's config.json; ValueError if of sft or another version."""
    if "files" in raw:
        raise ValueError("a run of sft, not of train: evaluate it with --policy RUN/policy")
    if "engine" in raw:
        raise ValueError(f"a run of {raw['engine']}, not of train: go on with it there")
    names = {f.name for f in fields(TrainConfig)}
    kept = {k: v for k, v in raw.items() if k in names}
    try:
        kept["rollout"], kept["loss"] = RolloutConfig(**kept["rollout"]), LossConfig(**kept["loss"])
        data = {k: tuple(v) if isinstance(v, list) else v for k, v in kept.get("data", {}).items()}
        kept |= {"load": LoadConfig(**kept.get("load", {})), "data": DataConfig(**data)}
        config = TrainConfig(**(kept | {"betas": tuple(kept["betas"])}))
    except (AttributeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"the run's config.json is of another version ({reason}): start a new run"
        ) from error
    check(config)
    return config


@dataclass(frozen=True)
class DemonstrationConfig:
    """How noisy the demonstrations of the warm start are."""

    corrupt: Chance = 0.12  # probability that a hop searches for the wrong thing
    # probability, where another hop is needed, of answering what was just found
    stop_early: Chance = 0.4
    give_up: Chance = 0.3  # probability of answering from a wrong passage
    filler_words: Weight = 5.0  # mean filler words of a think block
    filler_words_failing: Weight = 9.0  # mean filler words in a hop that fails
    max_searches: Whole = 4  # searches before the episode ends without an answer


@dataclass(frozen=True)
class WarmstartConfig:
    """Supervised training in the atlas: of the tiny searcher, or of a real model."""

    start: str | None = None  # policy to go on from (None: a tiny one from nothing)
    seed: Seed = 0  # seed of initial weights, questions and demonstrations
    # optimiser updates on demonstrations without noise or filler: learn to copy
    plain_steps: Whole = 500
    steps: Whole = 2000  # optimiser updates in all (0 = untrained)
    batch: Count = 64  # demonstrations of an update
    steps_per_world: Count = 2  # updates before the facts are permuted afresh
    lr: Positive = 2e-3  # AdamW learning rate: linear warm-up, then linear decay
    warmup: Whole = 100  # updates of the warm-up
    hop_weights: Hops = (0.2, 0.4, 0.4)  # share of 1-, 2- and 3-hop questions
    rows: Whole = 0  # demonstrations that go through the model at a time (0 = all)
    autocast: bool = False  # matrix products in bfloat16, weights as they are loaded
    device: str = "cpu"  # device of the model, such as cuda
    width: Count = 96  # hidden size of a tiny searcher
    layers: Count = 3  # number of a tiny searcher's transformer layers
    heads: Count = 4  # number of a tiny searcher's attention heads
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)

    def check(self) -> None:
        """ValueError, in one line, for a number out of its range."""
        check(self)
        if not any(self.hop_weights):
            raise ValueError("hop_weights are all 0: give at least one number of hops a share")
        if self.width % self.heads:
            raise ValueError(
                f"width is {self.width}: use a multiple of the {self.heads} attention heads"
            )


@dataclass(frozen=True)
class SftConfig:
    """One supervised warm start."""

    files: tuple[str, ...] = ()  # train files, JSONL; each is tried by the root of its rows
    policy: str = "smollm2"  # model to teach: "smollm2", or a Hugging Face name or path
    load: LoadConfig = field(default_factory=lambda: LoadConfig(lora_rank=32))
    seed: Seed = 0  # seed of the trajectories
    steps: Count = 300  # optimiser updates in all
    batch: Count = 8  # trajectories of an update
    autocast: bool = False  # matrix products in bfloat16, weights as they are loaded
    rows: Count = 4  # trajectories that are scored at a time
    lr: Positive = 3e-4  # AdamW learning rate after a linear warm-up, then linear decay to 0
    warmup: Whole = 20  # updates of the warm-up
    grad_clip: Positive = 1.0  # largest gradient norm; a longer gradient is scaled to it
    search: bool = True  # False: trajectories that answer at once, a baseline without search
    top_k: Count = 3  # passages after a search, one of them gold
    passage_tokens: Whole = 0  # tokens of each passage, its title included, at most (0 = all)
    max_tokens: Count = 1024  # tokens of a trajectory, at most; a longer one is not used
    checkpoint_every: Whole = 50  # updates between checkpoints (0 = only the last)

    def check(self) -> None:
        """ValueError, in one line, for a number out of its range."""
        check(self)
        self.load.check_trainable()


@dataclass(frozen=True)
class ExamConfig:
    """How questions are asked; the defaults are Search-R1's and Lp-Reg's budgets."""

    limit: Count | None = None  # questions a task; a larger limit only adds questions
    rows: Count = 32  # episodes asked at a time
    max_searches: Whole = 4  # turns of an episode that may search
    top_k: Count = 3  # passages that a search finds; a real model is shown 500 tokens of them
    passage_tokens: Whole = 0  # tokens of each passage, its title included, at most (0 = all)
    max_tokens: Count = 4096  # tokens of a question's row, prompt and passages included
    maths_tokens: Count = 8192  # tokens of a maths row, prompt included

    def check(self) -> None:
        """ValueError, in one line, for a number out of its range."""
        check(self)


def data_dir() -> Path:
    """The data/ folder: the part of it inside an installed package, or the clone's own, beside it.

    Raises FileNotFoundError where there is neither.
    """
    package = Path(__file__).resolve().parent
    for path in (package / "data", package.parent / "data"):
        if (path / "models.json").is_file():  # site-packages may hold another project's data/
            return path
    raise FileNotFoundError(f"no data folder in {package} or beside it: install lldlib again")
