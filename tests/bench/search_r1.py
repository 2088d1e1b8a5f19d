"""The rollout loop to compare with: at every turn, generate again over the whole text so far.

The scheme is that of Search-R1's generation manager (arXiv 2503.09516): the rows still active are
padded on the left to the longest and handed to one batched `generate`; the reply is cut at the
first closing tag; what was found is appended; repeat. It is spared three costs of the original:
rows stop at a closing tag while others go on (the original generates to the limit and cuts
afterwards), they stop at their own token budget, and replies stay tokens (the original decodes and
tokenises again). Tags, messages and budgets are those of `lldlib.rollout.loop`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import StoppingCriteria, StoppingCriteriaList

from lldlib.config import RolloutConfig
from lldlib.retrieval import Retriever
from lldlib.rollout.loop import TokenText
from lldlib.types import Episode, Question, StopReason, Turn
from lldlib.world.environment import Rules
from lldlib.world.protocol import CLOSING_TAGS, ends_turn, parse_action


@dataclass
class _Row:
    question: Question
    tokens: list[int]  # the whole text so far
    turns: list[Turn] = field(default_factory=list)
    searches: int = 0
    invalid: int = 0
    answer: str | None = None
    stop: StopReason | None = None

    def add(self, role: str, tokens: list[int]) -> None:
        self.tokens = self.tokens + tokens
        self.turns.append(Turn.given(role, tokens))


class _RowBudget(StoppingCriteria):
    """Stops every row at its own number of new tokens."""

    def __init__(self, prompt_width: int, room: list[int]):
        self.width, self.room = prompt_width, torch.tensor(room)

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        return input_ids.shape[1] - self.width >= self.room


class SearchR1Loop:
    """A drop-in for `lldlib.rollout.loop.Rollout` that prefills every row again at every turn."""

    def __init__(self, tokenizer, rules: Rules, retriever: Retriever, config: RolloutConfig):
        """Raises ValueError for a tokenizer in which a closing tag is not one token."""
        vocabulary = tokenizer.get_vocab()
        if missing := [tag for tag in CLOSING_TAGS if tag not in vocabulary]:
            raise ValueError(
                f"{', '.join(missing)} is not one token here: "
                "give a policy with the tiny vocabulary"
            )
        self.tokenizer, self.rules = tokenizer, rules
        self._encode = TokenText(tokenizer).encode
        self.protocol = rules.protocol(tokenizer)
        self.retriever, self.config = retriever, config
        self.ends = [tokenizer.eos_token_id, *(vocabulary[tag] for tag in CLOSING_TAGS)]

    @torch.no_grad()
    def run(
        self, model: nn.Module, questions: list[Question], *, temperature: float
    ) -> list[Episode]:
        """One episode per question, in order; `temperature` 0 is greedy."""
        rows = [self._start(question) for question in questions]
        while active := [row for row in rows if row.stop is None]:
            replies = self._generate(model, active, temperature)
            self._environment(active, replies)
        return [self._end(row, group) for group, row in enumerate(rows)]

    def _start(self, question: Question) -> _Row:
        row = _Row(question, [])
        self._append(row, "prompt", self._encode(*self.protocol.opening(question.text)))
        return row

    def _end(self, row: _Row, group: int) -> Episode:
        """Without log-probs and spans, which nobody asks this loop for."""
        reward = self.rules.reward(row.answer, row.question.answers)
        counts = row.searches, row.invalid
        return Episode(row.question, row.turns, row.stop, row.answer, *counts, reward, group)

    def _generate(self, model: nn.Module, rows: list[_Row], temperature: float) -> list[list[int]]:
        width = max(len(row.tokens) for row in rows)
        pads = [width - len(row.tokens) for row in rows]
        pad = self.tokenizer.pad_token_id
        room = [self.config.max_tokens - len(row.tokens) for row in rows]
        sampling = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        out = model.generate(
            input_ids=torch.tensor(
                [[pad] * p + row.tokens for p, row in zip(pads, rows, strict=True)]
            ),
            attention_mask=torch.tensor([[0] * p + [1] * (width - p) for p in pads]),
            max_new_tokens=max(room),
            eos_token_id=self.ends,
            pad_token_id=pad,
            stopping_criteria=StoppingCriteriaList([_RowBudget(width, room)]),
            **sampling,
        )
        new = out[:, width:].tolist()
        return [self._cut(reply, limit) for reply, limit in zip(new, room, strict=True)]

    def _cut(self, reply: list[int], limit: int) -> list[int]:
        """Up to the first end token, or the row's budget: what follows is padding."""
        for at, token in enumerate(reply[:limit]):
            if token in self.ends:
                return reply[: at + 1]
        return reply[:limit]

    def _environment(self, rows: list[_Row], replies: list[list[int]]) -> None:
        """Read the replies, run all searches in one call, append what the environment says."""
        searching, queries = [], []
        for row, reply in zip(rows, replies, strict=True):
            row.add("action", reply)
            text = self.tokenizer.decode(reply)
            if reply[-1] == self.tokenizer.eos_token_id:
                row.stop = StopReason.EOS
            elif not ends_turn(text):
                row.stop = StopReason.TOKEN_BUDGET
            elif query := self._act(row, text):
                searching.append(row)
                queries.append(query)
        found = self.retriever.search(queries, self.config.top_k) if queries else []
        for row, passages in zip(searching, found, strict=True):
            row.searches += 1
            self._append(row, "environment", self.protocol.observe(passages, self._encode, 0))

    def _act(self, row: _Row, text: str) -> str | None:
        """Take the action of a closed turn; returns the query of a search that is to be run."""
        action = parse_action(text)
        spent = row.searches + row.invalid >= self.config.max_searches
        row.invalid += action.kind == "invalid"
        if action.kind == "answer":
            row.answer, row.stop = action.content, StopReason.ANSWER
        elif spent:
            row.stop = StopReason.TURN_BUDGET
        elif action.kind == "invalid":
            self._append(row, "environment", self._encode(self.protocol.invalid_message))
        else:
            return action.content
        return None

    def _append(self, row: _Row, role: str, tokens: list[int]) -> None:
        """Append tokens that the policy did not write, as much of it as the budget holds."""
        tokens = tokens[: self.config.max_tokens - len(row.tokens)]
        if tokens:
            row.add(role, tokens)
        if len(row.tokens) >= self.config.max_tokens:
            row.stop = StopReason.TOKEN_BUDGET
