"""The legend of shapes and masks, and the records that travel between layers.

Letters: P problems, G rollouts per problem, B = P*G rows, T tokens of the longest row, V
vocabulary.

All per-token tensors are aligned with `tokens` (B, T): `logp[b, t]` is the log-probability of
`tokens[b, t]` given `tokens[b, :t]`; column 0 has no prefix, so its value is 0 and no mask covers
it.

- `attention_mask`  a real token (not padding).
- `action_mask`     the policy chose this token: its closing tag and end-of-sequence included; the
                    prompt, retrieved text and environment messages excluded.
- `answer_mask`     inside `action_mask`: the final `<answer>...</answer>` span.
- an ACTION is one maximal run of `action_mask` in a row, which is one turn of the policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.files import clean


class StopReason(StrEnum):
    """Why a rollout ended."""

    ANSWER = "answer"  # the policy closed an <answer> tag
    EOS = "eos"  # the policy ended the sequence without an answer
    TURN_BUDGET = "turn_budget"  # no turns left
    TOKEN_BUDGET = "token_budget"  # no tokens left
    TOOL_ERROR = "tool_error"  # the retriever stayed down


class Span(IntEnum):
    """What an action token is for: read off the tags the policy wrote."""

    NONE = 0  # not an action token
    FREE = 1  # reasoning, or anything outside the two spans below
    QUERY = 2  # <search> ... </search>, tags included
    ANSWER = 3  # <answer> ... </answer>, tags included


@dataclass(frozen=True)
class Question:
    """One question with its accepted answers, cleaned; `hops`: facts it needs (0 = unknown)."""

    id: str
    text: str
    answers: tuple[str, ...]
    hops: int = 0

    def __post_init__(self):
        object.__setattr__(self, "id", clean(self.id))
        object.__setattr__(self, "text", clean(self.text))
        object.__setattr__(self, "answers", tuple(map(clean, self.answers)))


@dataclass(frozen=True)
class WatchedWords:
    """The probability that one of `words` follows, in the mean over `texts`."""

    texts: Sequence[str]
    words: tuple[str, ...]


@dataclass
class Turn:
    """A piece of an episode: `role` is "prompt", "action" (the policy's) or "environment"."""

    role: str
    tokens: list[int]
    logp: list[float]  # the sampler's log-probs; zeros where the policy did not choose
    spans: list[Span]  # what each token is for; NONE where the policy did not choose

    @classmethod
    def given(cls, role: str, tokens: list[int]) -> "Turn":
        """A turn that the policy did not choose: its prompt, or what the environment says."""
        return cls(role, tokens, [0.0] * len(tokens), [Span.NONE] * len(tokens))


@dataclass
class Episode:
    """One rollout: its turns in order, why it stopped, and what it answered (None = no answer).

    `reward` and `group` are set once, by the rollout: episodes of one question in one call share
    a group, which is the question's place among those asked.
    """

    question: Question
    turns: list[Turn]
    stop: StopReason
    answer: str | None
    valid_searches: int
    invalid_actions: int
    reward: float  # by the environment's rule
    group: int


@dataclass(frozen=True)
class TokenInfo:
    """One token of a trajectory as it is shown; None where a number is unknown or means nothing."""

    text: str
    role: str  # as in Turn
    logp: float | None = None  # nats, of the policy that sampled
    change: float | None = None  # new - old log-prob over one batch's updates, nats
    gate_open: bool | None = None  # LLDS's gate after those updates
    protected: bool | None = None  # by Lp-Reg
    score: float | None = None  # any other number that the caller has
    marked: bool = False  # drawn with a thick border


@dataclass(frozen=True)
class TokenStep(TokenInfo):
    """One token that the policy chose, in one update; here `change` is by this update alone.

    Its loss is policy_share * policy + lambda * llds_share * charge + other terms. `gate_open` is
    None on a row that LLDS does not keep. Log-probs, charge and loss are in nats.
    """

    now: float = 0.0  # log-prob right before the update
    advantage: float = 0.0  # as the policy term reads it
    ratio: float = 1.0  # of the new to the old policy
    clipped: bool = False  # the clip leaves no gradient
    policy: float = 0.0  # the token's policy term
    policy_share: float = 0.0  # its part in the mean
    charge: float = 0.0  # LLDS's, before lambda; LLDS-MA's weight is in it
    llds_share: float = 0.0  # its part in LLDS's mean
    gradient: float = 0.0  # of the whole loss in `now`
    gradients: tuple[tuple[str, float], ...] = ()  # of each term, weighted, by its name


@dataclass(frozen=True)
class Batch:
    """Padded rollouts; rows of one problem share a `group` number. See the module's legend."""

    tokens: Int[Tensor, "B T"]
    attention_mask: Bool[Tensor, "B T"]
    action_mask: Bool[Tensor, "B T"]
    span: Int[Tensor, "B T"]  # a Span per token
    sampler_logp: Float[Tensor, "B T"]  # 0 outside action_mask
    rewards: Float[Tensor, " B"]
    group: Int[Tensor, " B"]

    @property
    def answer_mask(self) -> Bool[Tensor, "B T"]:
        """(B, T) True on the final answer span."""
        return self.span == Span.ANSWER

    def rows(self, index: Int[Tensor, " n"]) -> "Batch":
        """The chosen rows, trimmed to their own longest row (which changes no log-prob)."""
        width = int(self.attention_mask[index].sum(1).max())
        cut = {
            name: getattr(self, name)[index, :width]
            for name in ("tokens", "attention_mask", "action_mask", "span", "sampler_logp")
        }
        return replace(self, **cut, rewards=self.rewards[index], group=self.group[index])

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`."""
        return replace(self, **{k: v.to(device) for k, v in self.__dict__.items()})
