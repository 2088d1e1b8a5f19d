"""Batched generate <-> search: many episodes in lock-step over one key-value cache.

At each step every running row moves on by one token: a row that waits for its prompt or a passage
is fed the next token of it, the others sample. So rows never need padding, nothing is ever
prefilled twice, and a row's masks are exact by construction. Where all rows wait (the prompts), the
shared part is fed in one go. Rows that ended are dropped from the cache once they are a quarter of
it.
"""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from lldlib.config import RolloutConfig
from lldlib.kvcache import keep_rows, new_cache
from lldlib.protocol import Action, Protocol, ends_turn, parse_action
from lldlib.retrieval import Retriever, RetrieverError
from lldlib.scoring import next_token
from lldlib.types import Episode, Question, StopReason, Turn

logger = logging.getLogger(__name__)


class TokenText:
    """Token-level facts about a tokenizer that the loop needs at every step, worked out once."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.eos = tokenizer.eos_token_id
        self.pieces: dict[int, str] = {}

    def piece(self, token: int) -> str:
        """The text of one token, cached."""
        if token not in self.pieces:
            self.pieces[token] = self.tokenizer.decode([token])
        return self.pieces[token]

    def encode(self, text: str) -> list[int]:
        """Tokens of an environment text, without special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)


@dataclass
class _Row:
    """One running episode."""

    question: Question
    pending: list[int]  # tokens to be fed before the policy may speak again
    turns: list[Turn]
    length: int = 0  # tokens fed so far
    searches: int = 0
    invalid: int = 0
    answer: str | None = None
    stop: StopReason | None = None
    speaking: Turn | None = None

    def episode(self) -> Episode:
        return Episode(
            self.question, self.turns, self.stop, self.answer, self.searches, self.invalid
        )


class Rollout:
    """Runs episodes of one policy against one retriever."""

    def __init__(self, tokenizer, protocol: Protocol, retriever: Retriever, config: RolloutConfig):
        self.text = TokenText(tokenizer)
        self.protocol, self.retriever, self.config = protocol, retriever, config

    @torch.no_grad()
    def run(
        self,
        model: nn.Module,
        questions: list[Question],
        *,
        temperature: float,
        generator: torch.Generator | None = None,
    ) -> list[Episode]:
        """One episode per question, in the given order; `temperature` 0 is greedy."""
        rows = [self._start(question) for question in questions]
        running = list(rows)
        device = next(model.parameters()).device
        cache = new_cache(model.config.num_hidden_layers, self.config.max_tokens)
        while any(row.stop is None for row in running):
            running = self._drop_finished(running, cache, device)
            fed = self._feed(running)
            inputs = torch.tensor(fed, device=device)
            drawn, logp = next_token(
                model, inputs, cache, temperature=temperature, generator=generator
            )
            self._advance(running, drawn.tolist(), logp.tolist())
        return [row.episode() for row in rows]

    def _start(self, question: Question) -> _Row:
        tokens = self.text.encode(self.protocol.prompt(question.text))
        return _Row(question, list(tokens), [Turn("prompt", tokens, [0.0] * len(tokens))])

    def _drop_finished(self, running: list[_Row], cache, device) -> list[_Row]:
        alive = [i for i, row in enumerate(running) if row.stop is None]
        if len(alive) > 0.75 * len(running):
            return running
        keep_rows(cache, alive, device)
        return [running[i] for i in alive]

    def _feed(self, running: list[_Row]) -> list[list[int]]:
        """The next tokens of every row: one each, or as many as the shortest waiting text has."""
        live = [row for row in running if row.stop is None]
        room = self.config.max_tokens - live[0].length  # live rows are all of one length
        width = min(room, *(len(row.pending) for row in live))
        fed = []
        for row in running:
            if row.stop is not None:
                fed.append([0] * width)  # a finished row's cache is never read again
                continue
            fed.append(row.pending[:width])
            row.pending = row.pending[width:]
            row.length += width
        return fed

    def _advance(self, running: list[_Row], drawn: list[int], logp: list[float]) -> None:
        """Take the drawn token in every row whose pending text has run out."""
        asking = []
        for row, token, value in zip(running, drawn, logp, strict=True):
            if row.stop is not None:
                continue
            if row.length >= self.config.max_tokens:
                self._cut(row)
            elif not row.pending:
                self._speak(row, token, value)
                if row.stop is None and self._closes(row, token):
                    action = self._act(row)
                    if row.stop is None:
                        asking.append((row, action))
        self._reply(asking)

    def _act(self, row: _Row) -> Action:
        """Read the turn that has just closed; it may be the row's last."""
        action = parse_action(self._spoken(row))
        spent = row.searches + row.invalid >= self.config.max_searches
        row.invalid += action.kind == "invalid"
        if action.kind == "answer":
            row.answer, row.stop = action.content, StopReason.ANSWER
        elif spent:
            row.stop = StopReason.TURN_BUDGET
        return action

    def _cut(self, row: _Row) -> None:
        """End a row at its token budget; text that was never fed is taken back."""
        row.stop = StopReason.TOKEN_BUDGET
        if row.pending:
            last = row.turns[-1]
            keep = len(last.tokens) - len(row.pending)
            last.tokens, last.logp = last.tokens[:keep], last.logp[:keep]
            if not keep:
                row.turns.pop()

    def _speak(self, row: _Row, token: int, logp: float) -> None:
        if row.speaking is None:
            row.speaking = Turn("action", [], [])
            row.turns.append(row.speaking)
        row.speaking.tokens.append(token)
        row.speaking.logp.append(logp)
        row.pending = [token]
        if token == self.text.eos:
            row.stop = StopReason.EOS

    def _closes(self, row: _Row, token: int) -> bool:
        return ">" in self.text.piece(token) and ends_turn(self._spoken(row))

    def _spoken(self, row: _Row) -> str:
        return self.text.tokenizer.decode(row.speaking.tokens)

    def _reply(self, asking: list[tuple[_Row, Action]]) -> None:
        """Answer all searches of this step with one call, and invalid actions with a message."""
        searches = [(row, action.content) for row, action in asking if action.kind == "search"]
        if searches:
            self._search([row for row, _ in searches], [query for _, query in searches])
        for row, action in asking:
            if action.kind == "invalid":
                self._say(row, self.protocol.invalid_message)

    def _search(self, rows: list[_Row], queries: list[str]) -> None:
        try:
            found = self.retriever.search(queries, self.config.top_k)
        except RetrieverError as error:
            logger.warning("%d rollouts end without their search: %s", len(rows), error)
            for row in rows:
                row.stop = StopReason.TOOL_ERROR
            return
        for row, passages in zip(rows, found, strict=True):
            row.searches += 1
            self._say(row, self.protocol.information([p.text for p in passages]))

    def _say(self, row: _Row, text: str) -> None:
        tokens = self.text.encode(text)
        row.turns.append(Turn("environment", tokens, [0.0] * len(tokens)))
        row.pending = row.pending + tokens
        row.speaking = None
