"""The experience of a rollout batch: what its updates read, from the policy that made it."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lldlib.config import TrainConfig
from lldlib.losses import group_advantages, low_log_prob, needs, nthr_weights
from lldlib.policy.head import Proxy
from lldlib.policy.load import adapters_off
from lldlib.policy.score import ROWS, Scores, score, score_sorted
from lldlib.types import Batch


@dataclass(frozen=True)
class Experience:
    """A rollout batch with all that its updates read and that does not change between them."""

    batch: Batch
    old: Scores  # of the policy that made the batch
    advantages: Float[Tensor, " B"]
    ref_logp: Float[Tensor, "B T"] | None
    negative_token_weights: Float[Tensor, "B T"] | None
    low_logp: Float[Tensor, ""] | None
    mean_valid_searches: float
    finite: Bool[Tensor, " B"]  # rows whose numbers are all finite; no other is trained on

    def minibatch(self, rows: Int[Tensor, " n"]) -> tuple[Batch, Proxy | None]:
        """The chosen rows, and Lp-Reg's proxy of the policy that sampled, if its KL is exact."""
        part, full = self.batch.rows(rows), self.old.proxy
        return part, None if full is None else full.at(rows, slice(part.tokens.shape[1]))


@torch.no_grad()
def make_experience(
    model: nn.Module,
    reference: nn.Module | None,
    batch: Batch,
    mean_valid_searches: float,
    config: TrainConfig,
) -> Experience:
    """Score the batch under the policy that made it, and what else the objective needs."""
    loss = config.loss
    wanted = needs(loss)
    old = scored(model, batch, config, entropy=True, proxy=loss if "proxy_logp" in wanted else None)
    advantages = group_advantages(batch.rewards, batch.group, scale=loss.scale_advantage)
    if old.proxy is not None:  # Lp-Reg acts on rows of A < 0 alone
        count = old.proxy.count * (advantages < 0)[:, None]
        old = dataclasses.replace(old, proxy=dataclasses.replace(old.proxy, count=count))
    ref_logp = weights = low = None
    if "ref_logp" in wanted:
        with adapters_off(reference):
            ref_logp = scored(reference, batch, config).logp
    if "negative_token_weights" in wanted:
        weights = _nthr(model, batch, advantages, config)
    # of the proxy, -inf is a token that it drops
    proxy = None if old.proxy_logp is None else old.proxy_logp.clamp(min=0)
    finite = _finite(advantages, batch.action_mask, old.logp, ref_logp, weights, proxy)
    if "low_logp" in wanted:
        known = batch.action_mask & finite[:, None]
        low = low_log_prob(old.logp, known, loss.lp_reg_quantile)
    return Experience(batch, old, advantages, ref_logp, weights, low, mean_valid_searches, finite)


def _finite(
    advantages: Float[Tensor, " B"], mask: Bool[Tensor, "B T"], *scores: Float[Tensor, "B T"] | None
) -> Bool[Tensor, " B"]:
    """Rows whose advantage, and whose scores at the tokens of `mask`, are all finite."""
    each = [(one.isfinite() | ~mask).all(1) for one in scores if one is not None]
    return torch.stack([advantages.isfinite(), *each]).all(0)


def scored(model: nn.Module, batch: Batch, config: TrainConfig, **wanted) -> Scores:
    """Scores without gradient, of no more rows at a time than an update may hold."""
    rows = config.micro_rows or ROWS
    return score_sorted(model, batch, config.rollout.temperature, chunk=rows, **wanted)


def _nthr(
    model: nn.Module, batch: Batch, advantages: Float[Tensor, " B"], config: TrainConfig
) -> Float[Tensor, "B T"]:
    """NTHR's factors; where memory is bounded, of one group at a time, which is the least."""
    parts = batch.group.unique() if config.micro_rows else [None]
    device = batch.tokens.device
    weights = torch.ones(batch.action_mask.shape, device=device)
    for group in parts:
        rows = torch.arange(len(advantages), device=device)
        if group is not None:
            rows = rows[batch.group == group]
        part = batch.rows(rows)
        inner = score(model, part, config.rollout.temperature, internals=True)
        weights[rows, : part.tokens.shape[1]] = nthr_weights(
            inner.hidden, inner.errors, advantages[rows], part.group, part.action_mask
        )
    return weights
