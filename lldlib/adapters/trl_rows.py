"""What TRL knows of a rollout batch, made into what the terms read: masks, advantages, proxy.

TRL's loss never holds logits. For Lp-Reg's proxy the pass that scores a rollout batch is kept up to
the head, and the model's own forward then makes logits of it, with whatever scale or cap it has.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast
from trl.trainer.utils import nanstd

from lldlib.config import LossConfig
from lldlib.losses import proxy_log_prob

Rows = Mapping[str, Any]  # what TRL keeps of some rollouts, by its own names
Pass = tuple[Tensor, Float[Tensor, "B T D"]]  # log-probs as TRL returned them; the head's input
TIE = 1e-6  # rewards of a group tie where they differ by no more than this share of the largest


def action_mask(rows: Rows) -> Bool[Tensor, "B T"]:
    """Completion tokens that the policy chose. TRL pads `tool_mask` with 1, hence the product."""
    mask = rows["completion_mask"]
    return (mask * rows["tool_mask"] if "tool_mask" in rows else mask).bool()


def joined(rows: Rows) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
    """Prompt and completion together: tokens and attention mask."""
    return tuple(
        torch.cat([rows[f"prompt_{what}"], rows[f"completion_{what}"]], dim=1)
        for what in ("ids", "mask")
    )


def tied(
    parts: Float[Tensor, "B F"], weights: Float[Tensor, " F"], size: int, *, by_part: bool
) -> Bool[Tensor, " B"]:
    """(B,) rows of the groups, `size` rows each, whose rewards are all equal.

    parts: what each reward function gave, nan for None; a row that none of them scored neither
    makes a tie nor breaks one. by_part: each function is first normalised within the group, as
    TRL's "normalize_then_sum" does. In float64, where rounding cannot make a difference.
    """
    grouped = parts.double().view(-1, size, parts.shape[1])
    if by_part:
        centred = grouped - grouped.nanmean(1, keepdim=True)
        grouped = centred / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    total = (grouped * weights.double()).nansum(2)
    known = ~grouped.isnan().all(2)
    most = total.masked_fill(~known, -torch.inf).amax(1)
    least = total.masked_fill(~known, torch.inf).amin(1)
    return (most - least <= TIE * total.abs().amax(1).clamp(min=TIE)).repeat_interleave(size)


def silenced(trainer: Any, rows: Rows, logp: Float[Tensor, "B T"]) -> Bool[Tensor, "B #T"] | None:
    """Tokens whose policy term TRL drops for their sampler's sake; None: it drops none.

    The masks of its importance sampling (ratio 0), and rows of A < 0 that are too far off-policy.
    """
    ratio, far = rows.get("importance_sampling_ratio"), trainer.off_policy_mask_threshold
    silent = None if ratio is None else ratio == 0
    if far is not None:
        kept = trainer.get_off_policy_mask(
            advantages=rows["advantages"][:, None],
            per_token_logps=logp,
            sampling_per_token_logps=rows.get("sampling_per_token_logps", rows["lld_logp"]),
            mask=rows["lld_mask"].to(logp.dtype),
            off_policy_threshold=far,
        )
        silent = kept == 0 if silent is None else silent | (kept == 0)
    return silent


# -- Lp-Reg's proxy ------------------------------------------------------------------------------


def backbone(model: nn.Module) -> nn.Module:
    """What of a causal language model, with adapters or without, lies before its head."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


@contextmanager
def listening(part: nn.Module, width: int) -> Iterator[list[Float[Tensor, "N T D"]]]:
    """Collects the states from which `part`'s last `width` tokens were predicted, call by call."""
    heard: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: object) -> None:
        heard.append(output.last_hidden_state[:, -width - 1 : -1].detach())

    handle = part.register_forward_hook(keep)
    try:
        yield heard
    finally:
        handle.remove()


@contextmanager
def answering(part: nn.Module, states: Float[Tensor, "N T D"]) -> Iterator[None]:
    """`part` gives these states, whatever it is asked."""
    own = vars(part).get("forward")
    part.forward = lambda *args, **kwargs: MoeModelOutputWithPast(last_hidden_state=states)
    try:
        yield
    finally:
        if own is None:
            del part.forward
        else:
            part.forward = own


@torch.no_grad()
def proxy(
    model: nn.Module,
    accelerator: Accelerator,
    states: Float[Tensor, "B T D"],
    tokens: Int[Tensor, "B T"],
    wanted: Bool[Tensor, " B"],
    config: LossConfig,
    temperature: float,
) -> Float[Tensor, "B T"]:
    """`proxy_log_prob` of the tokens of the wanted rows under the policy that gave `states`.

    Row by row, so that the logits of one row are all that is held; -inf in the other rows. Where
    the weights are split over processes (ZeRO-3) each of them has to ask as often: of every row.
    """
    name = "kappa" if config.lp_reg_filter == "min-p" else "tau"
    part = backbone(accelerator.unwrap_model(model))
    if any(hasattr(weight, "ds_id") for weight in model.parameters()):
        wanted = torch.ones_like(wanted)
    out = torch.full(tokens.shape, -torch.inf, device=tokens.device)
    for row in wanted.nonzero()[:, 0].tolist():
        own = slice(row, row + 1)
        with accelerator.autocast(), answering(part, states[own]):
            logits = model(input_ids=tokens[own]).logits
        logits = logits.float() / temperature
        out[own] = proxy_log_prob(logits, tokens[own], **{name: config.lp_reg_threshold})
    return out
