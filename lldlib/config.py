"""Settings as frozen dataclasses, with a comment per field; the command line is made of them."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

Gate = Literal["action", "response", "token"]
AnswerSchedule = Literal["none", "paper", "code"]
Preserve = Literal["nonnegative", "positive", "negative"]
Precision = Literal["float32", "bfloat16"]
Kind = Literal["qa", "maths"]
Rewards = Literal["true", "coin", "shuffled"]
ExamHalf = Literal["validation", "test"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]

PROBE_ROWS = 48  # correct trajectories in the fixed probe set, at most
TRAIN_QUESTIONS = 1500  # questions that are drawn of the built-in world
HELDOUT_QUESTIONS = 120  # of its held-out ones


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are made."""

    problems: int = 16  # P, questions per rollout batch
    group_size: int = 5  # G, rollouts per question (at least 2)
    max_searches: int = 4  # turns that may search
    max_tokens: int = 160  # tokens of a row, prompt and retrieved text included
    top_k: int = 1  # passages per search
    passage_tokens: int = 0  # tokens of each passage, its title included, at most (0 = all)
    temperature: float = 1.0  # of the sampler and of every log-prob
    at_once: int = (
        0  # episodes generated at a time, exams included, which bounds memory (0 = a batch's)
    )


@dataclass(frozen=True)
class LossConfig:
    """The objective: a policy term and weighted regularizers; a weight of 0 leaves the term out."""

    scale_advantage: bool = True  # divide by the group's standard deviation (False: Dr. GRPO)
    aggregation: Aggregation = "token-mean"  # of the policy term, KL and entropy
    ratio_level: Literal["token", "sequence"] = "token"  # "sequence": GSPO
    clip_low: float = 0.2  # lower clip range of the ratio
    clip_high: float = 0.2  # upper clip range; larger than clip_low: Clip-Higher
    ratio_cap: float | None = None  # hard cap of the ratio (Lp-Reg's U)
    ratio_limit: float | None = (
        None  # largest ratio, before the clip (code of Search-R1, LLDS: 100; None: e^20)
    )
    negative_weight: float = 1.0  # factor on negative advantages (a causal control)
    top_entropy: float = (
        1.0  # share of tokens, highest entropy first, that get gradient (80/20: 0.2)
    )
    clip_cov_share: float = 0.0  # share of tokens whose gradient Clip-Cov drops
    kl_cov_coef: float = 0.0  # weight of KL-Cov's penalty
    kl_cov_share: float = 0.002  # share of tokens that KL-Cov penalises
    nthr: bool = False  # scale down negative tokens by NTHR
    entropy_coef: float = 0.0  # weight of the entropy bonus
    kl_coef: float = 0.001  # weight of the KL to the reference policy
    kl_estimator: Literal["k1", "k2", "k3", "low_var_kl"] = "low_var_kl"  # of that KL
    old_kl_coef: float = 0.0  # weight of a plain KL to the old policy (a causal control)
    old_kl_rows: Literal["all", "preserved"] = "all"  # where it pulls; preserved: those of LLDS
    llds_coef: float = 0.0  # lambda of LLDS
    llds_gate: Gate = "action"  # where LLDS may act
    llds_preserve: Preserve = (
        "nonnegative"  # rows LLDS keeps: A >= 0 (paper), A > 0, or (a causal control) A < 0
    )
    llds_normalizer: Literal["preserved", "all"] = (
        "preserved"  # the divisor: tokens of the rows it keeps (paper) or all (code)
    )
    llds_answer: AnswerSchedule = "none"  # LLDS-MA's weight on answer tokens
    lp_reg_coef: float = 0.0  # beta of Lp-Reg
    lp_reg_selection: Literal["paper", "code"] = (
        "paper"  # the quantile's tokens: a rollout batch's, or (code) a minibatch's with A < 0
    )
    lp_reg_kl: Literal["sample", "exact"] = (
        "sample"  # KL(proxy || policy): of the token drawn (code), or of all tokens (paper)
    )
    lp_reg_quantile: float = 0.01  # rho: share of tokens counted as low-probability
    lp_reg_filter: Literal["min-p", "fixed"] = "min-p"  # how the proxy drops noise tokens
    lp_reg_threshold: float = 0.02  # kappa (min-p) or tau (fixed)


@dataclass(frozen=True)
class LoadConfig:
    """How the policy's model is loaded."""

    quantize: Literal["nf4"] | None = None  # 4-bit weights (QLoRA); needs adapters
    lora_rank: int = 0  # of the adapters on all linear layers (0 = train all weights)
    lora_alpha: int = 64  # their output is scaled by alpha / rank
    dtype: Precision = "float32"  # of the model; adapters are float32
    device: str = "cpu"  # such as cuda
    gradient_checkpointing: bool = False  # less memory, a third more time


@dataclass(frozen=True)
class DataConfig:
    """Questions and passages of a run: from files, or without `train` those of a built-in world."""

    train: tuple[str, ...] = ()  # JSONL files of questions, or hub:NAME such as hub:dapo
    kind: Kind = "qa"  # qa: search, exact match; maths: no search, boxed answers by math-verify
    heldout: tuple[str, ...] = ()  # the same, for the held-out exact match
    heldout_limit: int = 120  # questions of each held-out file; of "shuffled": a number of hops
    retriever: str = "bm25"  # bm25, none, or the address of a /retrieve service
    corpus: str | None = None  # passages for bm25, as JSONL
    index: str | None = None  # folder for bm25's index on disk; large corpora: runs/index
    world: str = "atlas"  # without `train`: a name of world.registry.ENVIRONMENTS
    misses: float = 0.0  # of "shuffled": probability that a search finds a random passage
    hop_weights: tuple[float, ...] = (0.34, 0.33, 0.33)  # of "shuffled": 1 hop, 2, ... (at most 3)
    exam_half: ExamHalf = "validation"  # of "shuffled": settings are chosen on validation alone


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    seed: int = 0  # of questions, sampling and minibatch order
    steps: int = 150  # rollout batches
    updates_per_batch: int = 10  # optimiser updates per rollout batch (Search-R1: 10)
    lr: float = 3e-4  # AdamW learning rate after warm-up
    warmup_batches: int = 0  # linear learning-rate warm-up, in rollout batches
    grad_clip: float = 1.0  # largest gradient norm
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW
    eval_every: int = 10  # batches between held-out evaluations (0 = never)
    probe_every: int = 1  # batches between scorings of the fixed probe set (0 = no probe set)
    fresh_every: int = 0  # batches between rollouts that are measured, not trained on (0 = never)
    checkpoint_every: int = 25  # batches between checkpoints (0 = only the last)
    rollouts_logged: int = 2  # episodes written to rollouts.jsonl per batch
    rewards: Rewards = "true"  # trained on; "coin", "shuffled" in their groups: causal controls
    llds_target: float | None = (
        None  # nats a token that a batch may cost its correct rows: LLDS's lambda follows it
    )
    micro_rows: int = 0  # episodes scored or trained at a time, which bounds memory (0 = all)
    policy: str = "half_taught"  # or "sparks", "tiny", "smollm2", or a Hugging Face model
    method: str = "grpo"  # the preset that `loss` came from
    load: LoadConfig = field(default_factory=LoadConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    loss: LossConfig = field(default_factory=LossConfig)

    def check(self, questions: int) -> None:
        """ValueError, in one line, for settings under which no update means anything."""
        rollout = self.rollout
        if rollout.group_size < 2:
            raise ValueError(
                f"group_size is {rollout.group_size}: GRPO compares rollouts of one question, use 2"
                " or more"
            )
        if not 1 <= rollout.problems <= questions:
            raise ValueError(
                f"{questions} questions for batches of {rollout.problems}: change rollout.problems"
            )
        if not rollout.temperature > 0:
            raise ValueError(
                f"temperature is {rollout.temperature}: training samples, use more than 0"
            )
        if self.updates_per_batch < 1:
            raise ValueError(f"updates_per_batch is {self.updates_per_batch}: use 1 or more")
        if rollout.at_once < 0:
            raise ValueError(
                f"rollout.at_once is {rollout.at_once}: use 1 or more, or 0 for all of a batch"
            )
        if self.llds_target is not None and not (self.llds_target >= 0 and self.loss.llds_coef):
            raise ValueError(
                f"llds_target is {self.llds_target} with llds_coef {self.loss.llds_coef}: give a "
                "target of 0 or more nats a token, and a lambda to start from, such as 0.2"
            )
        if self.micro_rows < 0:
            raise ValueError(
                f"micro_rows is {self.micro_rows}: use 1 or more, or 0 for all at once"
            )
        self._check_ranges()

    def _check_ranges(self) -> None:
        """ValueError for a number out of its range, which else would end the run in its midst."""
        loss, rollout = self.loss, self.rollout
        for name in ("top_entropy", "kl_cov_share"):
            if not 0 < getattr(loss, name) <= 1:
                raise ValueError(f"{name} is {getattr(loss, name)}: give a share in (0, 1]")
        if not 0 < loss.lp_reg_quantile < 1:  # measured in every run, with Lp-Reg or without
            raise ValueError(
                f"lp_reg_quantile is {loss.lp_reg_quantile}: give a share between 0 and 1"
            )
        if not 0 <= loss.lp_reg_threshold < 1:
            raise ValueError(
                f"lp_reg_threshold is {loss.lp_reg_threshold}: give a number in [0, 1); at 1 the "
                "proxy drops every token"
            )
        if rollout.top_k < 1:
            raise ValueError(f"rollout.top_k is {rollout.top_k}: use 1 passage or more")
        if rollout.max_searches < 0:
            raise ValueError(f"rollout.max_searches is {rollout.max_searches}: use 0 or more")
        for name in ("eval_every", "probe_every", "fresh_every", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 (see its help) or more")


def train_config_from(raw: dict) -> TrainConfig:
    """The TrainConfig of a run folder's config.json; ValueError if of sft or another version."""
    if "files" in raw:
        raise ValueError("a run of sft, not of train: evaluate it with --policy RUN/policy")
    names = {f.name for f in fields(TrainConfig)}
    kept = {k: v for k, v in raw.items() if k in names}
    try:
        kept["rollout"], kept["loss"] = RolloutConfig(**kept["rollout"]), LossConfig(**kept["loss"])
        data = {k: tuple(v) if isinstance(v, list) else v for k, v in kept.get("data", {}).items()}
        kept |= {"load": LoadConfig(**kept.get("load", {})), "data": DataConfig(**data)}
        return TrainConfig(**(kept | {"betas": tuple(kept["betas"])}))
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"the run's config.json is of another version ({error}): start a new run"
        ) from error


@dataclass(frozen=True)
class DemonstrationConfig:
    """How noisy the demonstrations of the warm start are."""

    corrupt: float = 0.12  # probability that a hop searches for the wrong thing
    stop_early: float = (
        0.4  # probability, where another hop is needed, of answering what was just found
    )
    give_up: float = 0.3  # probability of answering from a wrong passage
    filler_words: float = 5.0  # mean filler words of a think block
    filler_words_failing: float = 9.0  # the same in a hop that fails
    max_searches: int = 4  # searches before the episode ends without an answer


@dataclass(frozen=True)
class WarmstartConfig:
    """Supervised training in the atlas: of the tiny searcher, or of a real model."""

    start: str | None = None  # the policy to go on from (None: a tiny one from nothing)
    seed: int = 0  # of initial weights, questions and demonstrations
    plain_steps: int = (
        500  # optimiser updates on demonstrations without noise or filler: learn to copy
    )
    steps: int = 2000  # optimiser updates in all
    batch: int = 64  # demonstrations an update
    steps_per_world: int = 2  # updates before the facts are permuted afresh
    lr: float = 2e-3  # AdamW, linear warm-up, then linear decay
    warmup: int = 100  # updates of the warm-up
    hop_weights: tuple[float, ...] = (0.2, 0.4, 0.4)  # share of 1-, 2- and 3-hop questions
    rows: int = 0  # demonstrations that go through the model at a time (0 = all)
    autocast: bool = False  # matrix products in bfloat16, weights as they are loaded
    width: int = 96  # hidden size of a tiny one
    layers: int = 3  # its transformer layers
    heads: int = 4  # its attention heads
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)


@dataclass(frozen=True)
class SftConfig:
    """One supervised warm start."""

    files: tuple[str, ...] = ()  # train files, JSONL; each is tried by the root of its rows
    policy: str = "smollm2"  # "smollm2", or a Hugging Face model name or path
    load: LoadConfig = field(default_factory=lambda: LoadConfig(lora_rank=32))
    seed: int = 0  # of the trajectories
    steps: int = 300  # optimiser updates
    batch: int = 8  # trajectories an update
    autocast: bool = False  # matrix products in bfloat16, weights as they are loaded
    rows: int = 4  # trajectories that are scored at a time
    lr: float = 3e-4  # AdamW after a linear warm-up, then linear decay to 0
    warmup: int = 20  # updates of the warm-up
    grad_clip: float = 1.0  # largest gradient norm
    search: bool = True  # False: trajectories that answer at once, a baseline without search
    top_k: int = 3  # passages after a search, one of them gold
    passage_tokens: int = 0  # tokens of each passage, its title included, at most (0 = all)
    max_tokens: int = 1024  # a longer trajectory is not used
    checkpoint_every: int = 50  # updates between checkpoints


@dataclass(frozen=True)
class ExamConfig:
    """How questions are asked; the defaults are Search-R1's and Lp-Reg's budgets."""

    limit: int | None = None  # questions a task; a larger limit only adds questions
    rows: int = 32  # episodes at a time
    max_searches: int = 4  # turns that may search
    top_k: int = 3  # passages per search
    passage_tokens: int = 0  # tokens of each passage, its title included, at most (0 = all)
    max_tokens: int = 4096  # tokens of a question's row, prompt and passages included
    maths_tokens: int = 8192  # tokens of a maths row, prompt included

    def check(self) -> None:
        """ValueError for a limit or a number of rows below 1."""
        if self.rows < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"rows={self.rows} and limit={self.limit} must be at least 1")


def data_dir() -> Path:
    """The data/ folder: the part of it inside an installed package, or the clone's own, beside it.

    Raises FileNotFoundError where there is neither.
    """
    package = Path(__file__).resolve().parent
    for path in (package / "data", package.parent / "data"):
        if (path / "models.json").is_file():  # site-packages may hold another project's data/
            return path
    raise FileNotFoundError(f"no data folder in {package} or beside it: install lldlib again")
