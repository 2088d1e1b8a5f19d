"""Episodes -> Batch: the only place where masks are built."""

import torch
from torch import Tensor

from lldlib.rollout.loop import TokenText
from lldlib.types import Batch, Episode
from lldlib.world.protocol import spans


def collate(
    episodes: list[Episode], rewards: list[float], groups: list[int], text: TokenText
) -> Batch:
    """Pad episodes on the right into one Batch.

    Masks come from the turns' lengths, never from token values, so a pad token equal to eos does no
    harm. `rewards` and `groups` have one entry per episode. An episode with no action token is
    legal: its row has an empty action mask. Raises ValueError without episodes.
    """
    if not episodes:
        raise ValueError("no episodes to collate: the rollout returned none")
    width = max(sum(len(turn.tokens) for turn in episode.turns) for episode in episodes)
    shape = (len(episodes), width)
    tokens, span = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    attention, action = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    logp = torch.zeros(shape)
    for row, episode in enumerate(episodes):
        at = 0
        for turn in episode.turns:
            end = at + len(turn.tokens)
            tokens[row, at:end] = torch.tensor(turn.tokens, dtype=torch.long)
            if turn.role == "action":
                action[row, at:end] = True
                logp[row, at:end] = torch.tensor(turn.logp)
                span[row, at:end] = _turn_spans(turn.tokens, text)
            at = end
        attention[row, :at] = True
    return Batch(
        tokens=tokens,
        attention_mask=attention,
        action_mask=action,
        span=span,
        sampler_logp=logp,
        rewards=torch.tensor(rewards, dtype=torch.float32),
        group=torch.tensor(groups),
    )


def _turn_spans(tokens: list[int], text: TokenText) -> Tensor:
    labels = spans([text.piece(token) for token in tokens])
    return torch.tensor([int(label) for label in labels], dtype=torch.long)
