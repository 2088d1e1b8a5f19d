"""NTHR: scale down the wrong responses' tokens that hurt the right ones (arXiv 2505.18830)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.losses.term import Number


def prediction_error(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"]
) -> Float[Tensor, "B T V"]:
    """(B, T, V) e_token - softmax(logits): minus the gradient of -ln pi(token) in the logits.

    Keep only the columns of tokens that occur in the responses where V is large, as the paper does.
    """
    return torch.nn.functional.one_hot(tokens.long(), logits.shape[-1]) - logits.float().softmax(-1)


@torch.no_grad()
def nthr_weights(
    hidden: Float[Tensor, "B T H"],
    prediction_errors: Float[Tensor, "B T V"],
    advantages: Float[Tensor, " B"],
    group: Int[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
    *,
    beta: Number = 1.0,
) -> Float[Tensor, "B T"]:
    """(B, T) factor on negative advantages: eta on selected tokens of wrong rows, 1 elsewhere.

    `hidden`: the last layer's state that predicts token t; `prediction_errors`: of
    `prediction_error`. In each group right rows have A > 0, wrong ones A < 0, and p is the share of
    right rows. A wrong token is selected if its `nthr_scores` exceeds beta times the least mean
    score of a right row; eta = 2 |0.5 - p|. A group that is all right or all wrong keeps factor 1.
    All rows of a group must be present. Source: 2505.18830 (training: beta 1).
    """
    weights = torch.ones(action_mask.shape, device=action_mask.device)
    right, wrong = advantages > 0, advantages < 0
    for number in group.unique():
        rows = group == number
        mask = action_mask[rows]
        reference = right[rows] & mask.any(1)
        if not reference.any():
            continue
        scores = nthr_scores(hidden[rows], prediction_errors[rows], right[rows], mask)
        row_means = scores.sum(1) / mask.sum(1).clamp(min=1)
        threshold = beta * row_means[reference].min()
        selected = wrong[rows, None] & mask & (scores > threshold)
        eta = 2 * (0.5 - right[rows].float().mean()).abs()
        weights[rows] = torch.where(selected, eta, 1.0)
    return weights


@torch.no_grad()
def nthr_scores(
    hidden: Float[Tensor, "B T H"],
    prediction_errors: Float[Tensor, "B T V"],
    right: Bool[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """(B, T) how much raising each token raises the right rows of its one group; 0 off the mask.

    s = sum over tokens k of right rows of <g_k, g> <h_k, h> = g^T M h with M = sum_k g_k h_k^T
    (V, H), where g is the prediction error and h the hidden state. Source: 2505.18830.
    """
    outside = ~action_mask[..., None]
    g = prediction_errors.float().masked_fill(outside, 0.0)
    h = hidden.float().masked_fill(outside, 0.0)
    influence = torch.einsum("btv,bth->vh", g[right], h[right])
    return ((g @ influence) * h).sum(-1)
