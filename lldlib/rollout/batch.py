"""Episodes -> Batch: the only place where masks are built."""

from collections.abc import Iterable, Sequence

import torch

from lldlib.rollout.loop import TokenText
from lldlib.types import Batch, Episode, Question, Span, StopReason, Turn
from lldlib.world.protocol import parse_action, spans


def collate(episodes: Sequence[Episode]) -> Batch:
    """Pad episodes on the right into one Batch.

    Masks come from the turns' spans and lengths, never from token values, so a pad token equal to
    eos does no harm. An episode with no action token is legal: its row has an empty action mask.
    Raises ValueError without episodes.
    """
    if not episodes:
        raise ValueError("no episodes to collate: the rollout returned none")
    width = max(sum(len(turn.tokens) for turn in episode.turns) for episode in episodes)
    shape = (len(episodes), width)
    tokens, span = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    attention, logp = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for row, episode in enumerate(episodes):
        at = 0
        for turn in episode.turns:
            end = at + len(turn.tokens)
            tokens[row, at:end] = torch.tensor(turn.tokens, dtype=torch.long)
            logp[row, at:end] = torch.tensor(turn.logp)
            span[row, at:end] = torch.tensor(turn.spans, dtype=torch.long)
            at = end
        attention[row, :at] = True
    return Batch(
        tokens=tokens,
        attention_mask=attention,
        action_mask=span != Span.NONE,
        span=span,
        sampler_logp=logp,
        rewards=torch.tensor([episode.reward for episode in episodes], dtype=torch.float32),
        group=torch.tensor([episode.group for episode in episodes]),
    )


def demonstration(
    text: TokenText, question: Question, pieces: Iterable[tuple[str | list[int], bool]]
) -> Episode:
    """An episode that shows the policy what to write, for supervised training.

    `pieces` are (text or tokens, whether the policy is the author), in order and encoded one by
    one; the first is the prompt. The sampler's log-probs are 0, so are reward and group.
    """
    turns, actions = [], []
    for said, own in pieces:
        tokens = text.encode(said) if isinstance(said, str) else list(said)
        if own:
            parts = [text.piece(token) for token in tokens]
            turns.append(Turn("action", tokens, [0.0] * len(tokens), spans(parts)))
            actions.append(parse_action(text.tokenizer.decode(tokens)))
        else:
            turns.append(Turn.given("environment" if turns else "prompt", tokens))
    answers = [action.content for action in actions if action.kind == "answer"]
    searches = sum(action.kind == "search" for action in actions)
    invalid = sum(action.kind == "invalid" for action in actions)
    stop = StopReason.ANSWER if answers else StopReason.EOS
    answer = answers[-1] if answers else None
    return Episode(question, turns, stop, answer, searches, invalid, reward=0.0, group=0)
