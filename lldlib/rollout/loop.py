"""Batched generate <-> search: many episodes at once over one key-value cache.

At each step every running row is fed what it waits for (a prompt, a passage, the token it has just
drawn) and draws its next token. Nothing is ever prefilled twice, and a row's masks are exact by
construction. Where a model can only be fed equally many tokens in every row, as many are fed as the
shortest waiting text has, and only rows that wait for nothing more draw. A row that ended makes
room at once.

Chance: row i's k-th own token is drawn with the k-th number of row i, so an episode depends neither
on how the others go nor on how tokens are fed.

Memory: never more rows at a time than training holds, whoever asks.

Why a row ends is a `types.StopReason`; it is set here, where the row ends.
"""

import logging
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib.config import RolloutConfig
from lldlib.files import Foreign, clean
from lldlib.policy.load import TAGS, check_length, end_tokens, unpacked
from lldlib.policy.rounding import rounded
from lldlib.retrieval import Retriever, RetrieverError
from lldlib.rollout.draw import Drawer
from lldlib.types import Episode, Question, StopReason, Turn
from lldlib.world.environment import Rules
from lldlib.world.protocol import Action, ends_turn, may_end_turn, parse_action, spans

TEXTS = 4096  # environment texts whose tokens are kept

logger = logging.getLogger(__name__)


class TokenText:
    """Token-level facts about a tokenizer that the loop needs at every step, worked out once."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.eos = tokenizer.eos_token_id
        self.pieces: dict[int, str] = {}
        self.closing: dict[int, bool] = {}
        self._control, self._unknown = _control_tokens(tokenizer)
        self._encoded = lru_cache(TEXTS, typed=True)(self._encode)

    def piece(self, token: int) -> str:
        """The text of one token, cached."""
        if token not in self.pieces:
            self.pieces[token] = self.tokenizer.decode([token])
        return self.pieces[token]

    def may_end_turn(self, token: int) -> bool:
        """Whether this token can complete a closing tag, cached."""
        if token not in self.closing:
            self.closing[token] = may_end_turn(self.piece(token))
        return self.closing[token]

    def encode(self, *pieces: str) -> list[int]:
        """Tokens of a text given in pieces, none added in front or behind; cached.

        The one door for text of others, which are the pieces of type `Foreign`: no special token
        comes out of them. The text is encoded as a whole; one in which that would happen, piece by
        piece. Tags of the protocol are text, in every vocabulary.
        """
        return list(self._encoded(*pieces))

    def harmless(self, text: str) -> str:
        """The text, cleaned, with a space in every special token's mark.

        For text of others that somebody else's loop will encode; `encode` is ours.
        """
        text = clean(text)
        for mark in self._control.values():
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _encode(self, *pieces: str) -> tuple[int, ...]:
        whole = self._tokens("".join(pieces))
        if not any(isinstance(piece, Foreign) for piece in pieces):
            return tuple(whole)
        own = [self._tokens(piece) for piece in pieces if not isinstance(piece, Foreign)]
        if self._controls(whole) == [token for part in own for token in self._controls(part)]:
            return tuple(whole)
        parts = [self._data(p) if isinstance(p, Foreign) else self._tokens(p) for p in pieces]
        return tuple(token for part in parts for token in part)

    def _tokens(self, text: str, **options: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, **options)

    def _controls(self, tokens: list[int]) -> list[int]:
        return [token for token in tokens if token in self._control]

    def _data(self, text: str) -> list[int]:
        """Special tokens' texts spelled out, or broken by a space where a vocabulary has no way."""
        tokens = self._tokens(text, split_special_tokens=True)
        if self._controls(tokens):
            tokens = self._tokens(self.harmless(text), split_special_tokens=True)
        left = [self._unknown if token in self._control else token for token in tokens]
        return [token for token in left if token is not None]


def _control_tokens(tokenizer) -> tuple[dict[int, str], int | None]:
    """Special tokens and other added marks, by number; and what an unknown word becomes."""
    marks = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    for number, token in tokenizer.added_tokens_decoder.items():
        if token.special or "<" in token.content or "[" in token.content:
            marks[number] = token.content
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(
            f"{type(tokenizer).__name__} is written in Python alone: save the policy with a fast "
            "tokenizer (tokenizer.json)"
        )
    word = getattr(tokenizer.backend_tokenizer.model, "unk_token", None)
    unknown = None if word is None else tokenizer.convert_tokens_to_ids(word)
    kept = {n: mark for n, mark in marks.items() if n != unknown and mark not in TAGS}
    return kept, unknown


@dataclass
class _Row:
    """One running episode."""

    question: Question
    group: int
    pending: list[int]  # tokens to be fed before the policy may speak again
    turns: list[Turn]
    number: int  # of the row among all that were asked for
    chosen: int = 0  # tokens that the policy has chosen
    length: int = 0  # tokens fed so far
    searches: int = 0
    invalid: int = 0
    answer: str | None = None
    stop: StopReason | None = None
    speaking: Turn | None = None


class Rollout:
    """Runs episodes by an environment's rules; `tool` and `config` may change between two runs."""

    def __init__(self, tokenizer, rules: Rules, tool: Retriever, config: RolloutConfig):
        self.text, self.protocol = TokenText(tokenizer), rules.protocol(tokenizer)
        self.rules, self.tool, self.config = rules, tool, config
        self.ends: frozenset[int] = frozenset()  # tokens that end a row, by the model that runs

    @torch.inference_mode()
    def run(
        self,
        model: nn.Module,
        questions: list[Question],
        *,
        temperature: float,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> list[Episode]:
        """`samples` episodes a question, in the given order; `temperature` 0 is greedy.

        At most `config.at_once` rows are generated at a time (0: the rows of a training batch).
        Where the config has a sampler that differs from the policy, that one draws.
        The `generator` is one of the CPU, wherever the model is. The model samples in evaluation
        mode, since gradient checkpointing in training mode would switch the cache off.
        A row whose prompt alone fills `max_tokens` is cut there, with a warning. Raises ValueError
        where the model cannot read so many tokens.
        """
        check_length(model, self.config.max_tokens)
        training, self.ends = model.training, end_tokens(model, self.text.tokenizer)
        model.eval()
        try:
            return self._run(model, questions, temperature, samples, generator)
        finally:
            model.train(training)

    def _run(
        self,
        model: nn.Module,
        questions: list[Question],
        temperature: float,
        samples: int,
        generator: torch.Generator | None,
    ) -> list[Episode]:
        asked = [pair for pair in enumerate(questions) for _ in range(samples)]
        size = (len(asked), self.config.max_tokens)
        # uniform in [0, 1): one for every token that a row's policy may choose
        chance = (
            torch.rand(size, generator=generator) if temperature else torch.zeros(1).expand(size)
        )
        rows = [self._start(row, *pair) for row, pair in enumerate(asked)]
        most = self.config.max_tokens
        if full := sum(len(row.pending) >= most for row in rows):
            told = "the prompts of %d of %d rows fill max_tokens %d, which leaves no room to answer"
            logger.warning(told, full, len(rows), most)
        left = rows
        with rounded(model, self.config.sampler_weights), unpacked(model):
            while left:
                left = self._wave(model, left, chance, temperature)
        return [self._end(row) for row in rows]

    def _wave(
        self, model: nn.Module, left: list[_Row], chance: Float[Tensor, "B T"], temperature: float
    ) -> list[_Row]:
        """Run as many rows as one cache takes, and those that can join them; what is left then."""
        config = self.config
        size = min(config.at_once or config.problems * config.group_size, len(left))
        how = {"noise": config.sampler_noise, "top_p": config.top_p}
        drawer = Drawer(model, size, config.max_tokens, temperature=temperature, **how)
        joining = len(left) if drawer.ragged else size
        self._roll(drawer, left[:size], left[size:joining], chance)
        return left[joining:]

    def _roll(
        self, drawer: Drawer, running: list[_Row], waiting: list[_Row], chance: Float[Tensor, "B T"]
    ) -> None:
        """Run rows to their ends; a waiting one takes the place of one that ended."""
        waiting, block, size = waiting[::-1], range(drawer.block), chance.shape[1]
        while running:
            fed = self._feed(running, drawer.ragged)
            # beyond the budget any number will do: no row takes such a token
            places = [
                [row.number * size + min(row.chosen + k, size - 1) for k in block]
                for row in running
            ]
            self._advance(
                running, *drawer.draw(fed, chance.take(torch.tensor(places, device=chance.device)))
            )
            for place, row in enumerate(running):
                if row.stop is not None and waiting:
                    running[place] = waiting.pop()
            drawer.rewind([row.length for row in running])
            running = self._drop_finished(running, drawer)

    def _start(self, number: int, group: int, question: Question) -> _Row:
        tokens = self.text.encode(*self.protocol.opening(question.text))
        return _Row(question, group, list(tokens), [Turn.given("prompt", tokens)], number)

    def _end(self, row: _Row) -> Episode:
        """The episode, with what its tokens are for and what it earned."""
        own = [turn for turn in row.turns if turn.role == "action"]
        for turn in own:
            turn.spans = spans([self.text.piece(token) for token in turn.tokens])
        said = self.text.tokenizer.decode([token for turn in own for token in turn.tokens])
        answer = self.protocol.final_answer(said, row.answer)
        return Episode(
            question=row.question,
            turns=row.turns,
            stop=row.stop,
            answer=answer,
            valid_searches=row.searches,
            invalid_actions=row.invalid,
            reward=self.rules.reward(answer, row.question.answers),
            group=row.group,
        )

    def _drop_finished(self, running: list[_Row], drawer: Drawer) -> list[_Row]:
        """Fill the places of rows that ended with running rows from the end of the batch."""
        size = sum(row.stop is None for row in running)
        if size == len(running):
            return running
        free = [i for i in range(size) if running[i].stop is not None]
        moving = [i for i in range(size, len(running)) if running[i].stop is None]
        drawer.move(moving, free, size)
        kept = running[:size]
        for source, target in zip(moving, free, strict=True):
            kept[target] = running[source]
        return kept

    def _feed(self, running: list[_Row], ragged: bool) -> list[list[int]]:
        """The next tokens of every row: all it waits for, or equally many in every row."""
        most = self.config.max_tokens
        if not ragged:
            most = min(len(row.pending) for row in running)
        fed = []
        for row in running:
            width = min(most, self.config.max_tokens - row.length)
            fed.append(row.pending[:width])
            row.pending = row.pending[width:]
            row.length += len(fed[-1])
        return fed

    def _advance(
        self, running: list[_Row], drawn: list[list[int]], logp: list[list[float]]
    ) -> None:
        """Take the drawn tokens in every row whose pending text has run out."""
        asking = []
        for row, tokens, values in zip(running, drawn, logp, strict=True):
            action = self._take(row, tokens, values)
            if action is not None and row.stop is None:
                asking.append((row, action))
        self._reply(asking)

    def _take(self, row: _Row, tokens: list[int], values: list[float]) -> Action | None:
        """Take tokens until the turn or the episode ends; the action of a turn that has closed.

        All but the last of them were fed when the next one was drawn.
        """
        for number, (token, value) in enumerate(zip(tokens, values, strict=True)):
            if number:
                row.length, row.pending = row.length + 1, []
            if row.length >= self.config.max_tokens:
                self._cut(row)
                return None
            if row.pending:
                return None
            self._speak(row, token, value)
            if row.stop is not None:
                return None
            if self.text.may_end_turn(token):
                said = self.text.tokenizer.decode(row.speaking.tokens)
                if ends_turn(said):
                    return self._act(row, parse_action(said))
        return None

    def _act(self, row: _Row, action: Action) -> Action:
        """Take note of the turn that has just closed; it may be the row's last."""
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
            row.turns[-1:] = [Turn.given(last.role, last.tokens[:keep])] if keep else []

    def _speak(self, row: _Row, token: int, logp: float) -> None:
        if row.speaking is None:
            row.speaking = Turn("action", [], [], [])
            row.turns.append(row.speaking)
        row.speaking.tokens.append(token)
        row.speaking.logp.append(logp)
        row.chosen += 1
        row.pending = [token]
        if token in self.ends:
            row.stop = StopReason.EOS

    def _reply(self, asking: list[tuple[_Row, Action]]) -> None:
        """Answer all searches of this step with one call, and invalid actions with a message."""
        searches = [(row, action.content) for row, action in asking if action.kind == "search"]
        if searches:
            self._search([row for row, _ in searches], [query for _, query in searches])
        for row, action in asking:
            if action.kind == "invalid":
                self._say(row, self.text.encode(self.protocol.invalid_message))

    def _search(self, rows: list[_Row], queries: list[str]) -> None:
        try:
            found = self.tool.search(queries, self.config.top_k)
        except RetrieverError as error:
            logger.warning("%d rollouts end without their search: %s", len(rows), error)
            for row in rows:
                row.stop = StopReason.TOOL_ERROR
            return
        for row, passages in zip(rows, found, strict=True):
            row.searches += 1
            limit = self.config.passage_tokens
            self._say(row, self.protocol.observe(passages, self.text.encode, limit))

    def _say(self, row: _Row, tokens: list[int]) -> None:
        row.turns.append(Turn.given("environment", tokens))
        row.pending = row.pending + tokens
        row.speaking = None
