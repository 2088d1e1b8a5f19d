"""Lp-Reg: keep rare but sensible tokens alive with a filtered proxy policy (arXiv 2510.03222)."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses.term import (
    KL_LIMIT,
    NATS,
    SHARE,
    SMALL,
    Counts,
    LossInputs,
    Metric,
    Number,
    RowOrToken,
    Term,
    Value,
    action_mean,
    check_share,
    keep,
    log_ratio,
    logged_mean,
    per_token,
    rounded_up,
    smallest,
    token_share,
)

Selection = Literal["paper", "code"]


def proxy_logits(
    logits: Float[Tensor, "B T V"], *, kappa: Number | None = None, tau: Number | None = None
) -> Float[Tensor, "B T V"]:
    """(B, T, V) logits of the proxy: tokens with pi <= threshold at -inf, the rest unchanged.

    Threshold: kappa * max pi (min-p) or tau (fixed); the softmax of the result is the proxy, a
    constant. The paper keeps pi > threshold, as here; the official code keeps pi >= threshold.
    Raises ValueError unless exactly one threshold is given, in [0, 1). Source: 2510.03222v2 Eq. 5.
    """
    if (kappa is None) == (tau is None):
        raise ValueError(
            "the proxy needs one threshold: give kappa (min-p) or tau (fixed), not both"
        )
    if not 0 <= (kappa if tau is None else tau) < 1:
        raise ValueError("the proxy's threshold must be in [0, 1): at 1 it drops every token")
    logits = logits.detach().float()
    probs = logits.softmax(-1)
    threshold = tau if kappa is None else kappa * probs.amax(-1, keepdim=True)
    return torch.where(probs > threshold, logits, -math.inf)


def proxy_log_prob(
    logits: Float[Tensor, "B T V"],
    tokens: Int[Tensor, "B T"],
    *,
    kappa: Number | None = None,
    tau: Number | None = None,
) -> Float[Tensor, "B T"]:
    """(B, T) log-probability of `tokens` under the proxy (`proxy_logits`); -inf where dropped.

    A fixed tau can drop every token of a flat distribution; all of its tokens then get -inf.
    """
    kept = proxy_logits(logits, kappa=kappa, tau=tau)
    chosen = kept.gather(-1, tokens[..., None].long()).squeeze(-1)
    return torch.where(chosen > -math.inf, chosen - kept.logsumexp(-1), -math.inf)


def forward_kl(
    logits: Float[Tensor, "B T V"], proxy_logits: Float[Tensor, "B T V"]
) -> Float[Tensor, "B T"]:
    """(B, T) exact KL(proxy || policy) over the vocabulary, in nats; gradient in `logits` only.

    sum_v proxy_v (ln proxy_v - ln pi_v), so d/d logits = pi - proxy. A proxy that dropped every
    token gives 0. The official code estimates this from the sampled token alone
    (`lp_reg_penalty`). Source: 2510.03222v2 Eq. 6.
    """
    target = proxy_logits.detach().float().log_softmax(-1)
    kept = target > -math.inf  # False too for the nan of a proxy that dropped everything
    gap = torch.where(kept, target - logits.float().log_softmax(-1), 0.0)
    return (torch.where(kept, target.exp(), 0.0) * gap).sum(-1)


def lp_reg_penalty(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    proxy_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    quantile: Number = 0.01,
    beta: Number = 1.0,
    selection: Selection = "paper",
    low_logp: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "B T"]:
    """Per-token beta (e^d - d - 1), d = proxy_logp - logp, on the tokens of `lp_reg_mask`.

    The paper prints KL(proxy || policy); this is the estimate of its official code: k3 on the one
    sampled token, cut off at 10, so that a token with d above 2.6 is given up. The gradient in
    logp is beta (1 - proxy / pi): negative where the policy is below the proxy, so descent raises
    the token. `old_logp` is there so that all terms are called alike, and is not read: the proxy,
    built from the sampling policy, stands for it. Source: 2510.03222v2 Eq. 6.
    """
    selected = lp_reg_mask(
        logp,
        proxy_logp,
        advantages,
        action_mask,
        quantile=quantile,
        selection=selection,
        low_logp=low_logp,
    )
    return _proxy_kl(logp, proxy_logp, selected, beta)


def _proxy_kl(
    logp: Float[Tensor, "B T"],
    proxy_logp: Float[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    beta: Number,
) -> Float[Tensor, "B T"]:
    d = -log_ratio(logp, proxy_logp, selected)
    return keep(beta * (d.exp() - d - 1).clamp(max=KL_LIMIT), selected)


def lp_reg_mask(
    logp: Float[Tensor, "B T"],
    proxy_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    quantile: Number,
    selection: Selection = "paper",
    low_logp: Float[Tensor, ""] | None = None,
) -> Bool[Tensor, "B T"]:
    """(B, T) tokens that Lp-Reg protects: improbable, in a row with A < 0, and kept by the proxy.

    "paper": pi < delta (2510.03222v2 Eq. 6), where ln delta = `low_logp`, the rollout batch's
    `low_log_prob`; without it the tokens given are taken for the whole rollout batch.
    "code": the int(n * quantile) least likely of the n tokens with A < 0, of equal ones the first
    (none if fewer than two), and only where logp < proxy_logp; the official code takes them of a
    micro-batch, so of what is given, and `low_logp` is not read. Raises ValueError on a quantile
    outside (0, 1].
    """
    check_share(quantile, "quantile")
    logp, negative = logp.detach(), per_token(advantages, action_mask) < 0
    kept = action_mask & negative & (proxy_logp > -math.inf)
    if selection == "paper":
        if low_logp is None:
            low_logp = low_log_prob(logp, action_mask, quantile)
        return kept & (logp < low_logp)
    if selection != "code":
        raise ValueError(f"unknown Lp-Reg selection {selection!r}: use 'paper' or 'code'")
    among = action_mask & negative
    count = int(quantile * int(among.sum()))
    if count <= 1:
        return torch.zeros_like(kept)
    return kept & (logp < proxy_logp) & smallest(logp, among, count)


def low_log_prob(
    logp: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], quantile: Number
) -> Float[Tensor, ""]:
    """ln delta, in nats: below it lie the `quantile` least likely action tokens of the batch.

    `logp` is of the policy that sampled the batch, which is a whole rollout batch: delta is set
    once for all of its updates. It is a token's own log-prob, the first at or above the quantile;
    inf for a batch without an action token. Raises ValueError on a quantile outside (0, 1].
    Source: delta in 2510.03222v2 Eq. 6.
    """
    check_share(quantile, "quantile")
    values = logp.detach()[action_mask].sort().values
    if not len(values):
        return logp.new_tensor(math.inf)
    return values[rounded_up(quantile, len(values) - 1)]  # the quantile lies between two tokens


# -- the term ------------------------------------------------------------------------------------


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    """The "code" selection is taken within what is given: a micro-batch, if there are several.

    The exact KL has no cut-off: its slope in the logits, policy - proxy, is bounded.
    """
    selected = lp_reg_mask(
        x.logp,
        x.proxy_logp,
        x.advantages,
        x.action_mask,
        quantile=config.lp_reg_quantile,
        selection=config.lp_reg_selection,
        low_logp=x.low_logp,
    )
    if config.lp_reg_kl == "exact":
        term = keep(x.proxy_kl, selected)
    else:
        term = _proxy_kl(x.logp, x.proxy_logp, selected, 1.0)
    value = action_mean(term, config, x, counts)
    share = token_share(selected, x.action_mask, None if counts is None else counts.actions)
    return value, {"lp_reg/value": logged_mean(term, x, counts), "lp_reg/protected_share": share}


def _needs(config: LossConfig) -> set[str]:
    wanted = {
        "proxy_logp": True,
        "low_logp": config.lp_reg_selection == "paper",
        "proxy_kl": config.lp_reg_kl == "exact",
    }
    return {name for name, is_wanted in wanted.items() if is_wanted}


def _derived(config: LossConfig, means: Mapping[str, float]) -> dict[str, float]:
    if config.lp_reg_kl == "exact":  # which has no limit to sit on
        return {}
    value, share = means["lp_reg/value"], means["lp_reg/protected_share"]
    return {"lp_reg/saturation": value / share if share else math.nan}


LP_REG = Term(
    "lp_reg",
    "lp_reg_coef",
    _value,
    needs=_needs,
    metrics={
        "lp_reg/value": Metric(
            "Lp-Reg", "mean over updates of the Lp-Reg term before its weight", NATS, SMALL
        ),
        "lp_reg/protected_share": Metric(
            "Lp-Reg protected",
            "tokens that Lp-Reg regularizes / action tokens, mean over updates",
            SHARE,
            "at most the quantile rho",
        ),
        "lp_reg/saturation": Metric(
            "Lp-Reg per protected token",
            "lp_reg/value over lp_reg/protected_share, of the one-sample KL",
            NATS,
            "under 1; over 5 most protected tokens are past its limit of 10, "
            "where they have no gradient",
        ),
    },
    derived=_derived,
    symbol="Lp-Reg β",
)
