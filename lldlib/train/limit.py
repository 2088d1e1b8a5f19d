"""A limit on how far one optimiser update moves the policy.

The move of an update is half of the mean squared change of a log-prob, over the agent's tokens in
the update's own rows: about the KL divergence of the policy before from the policy after, in nats.
An update that goes further is drawn back along its own line, as in TRPO's line search (1502.05477,
appendix C). AdamW's moments are those of the whole update.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from lldlib.policy.optimizer import trained

ENOUGH = 1.02  # of the limit: near enough
TRIES = 8  # shortenings, after which the update is not made at all


class Limit:
    """Keeps the weights from before an update, to which `shorten` draws them back."""

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer):
        self.parameters, self.optimizer = parameters, optimizer
        self.start = [p.detach().clone() for p in trained(parameters, optimizer)]

    @torch.no_grad()
    def shorten(self, moved: Callable[[], float], limit: float) -> tuple[float, float]:
        """Shorten the update until `moved` is at most the limit, both in nats.

        Returns the move, and the share of the update that is kept, 0 to 1. A move grows about as
        the square of the share. One that is not finite is halved.
        """
        move, share = moved(), 1.0
        for _ in range(TRIES):
            if move <= ENOUGH * limit:
                return move, share
            ratio = min(0.9, (limit / move) ** 0.5) if move < float("inf") else 0.5
            share *= ratio
            self._draw_back(ratio)
            move = moved()
        if move <= ENOUGH * limit:
            return move, share
        self._draw_back(0.0)
        return 0.0, 0.0

    def _draw_back(self, ratio: float) -> None:
        weights = trained(self.parameters, self.optimizer)
        for parameter, weight, start in zip(self.parameters, weights, self.start, strict=True):
            # an end that is not finite times 0 is not finite
            near = torch.lerp(start.to(weight), weight, ratio) if ratio else start
            weight.copy_(near)
            if weight is not parameter:
                parameter.copy_(weight)
