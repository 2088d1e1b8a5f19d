"""One scalar to minimise: the sum of `TERMS`, each by its weight.

A weight of 0 leaves a term out altogether, so that training is bit for bit the same without it.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import torch

from lldlib.config import LossConfig
from lldlib.losses.entropy import ENTROPY
from lldlib.losses.kl import KL
from lldlib.losses.kl_cov import KL_COV
from lldlib.losses.llds import LLDS
from lldlib.losses.lp_reg import LP_REG
from lldlib.losses.old_kl import OLD_KL
from lldlib.losses.policy_gradient import POLICY
from lldlib.losses.sapo import SAPO
from lldlib.losses.term import Counts, LossInputs, Term, Value

TERMS: tuple[Term, ...] = (  # in the order in which they are added up
    POLICY,
    ENTROPY,
    KL,
    OLD_KL,
    KL_COV,
    LLDS,
    LP_REG,
    SAPO,
)
REGULARIZERS = tuple(term for term in TERMS if term.coef)  # all but the policy term


def needs(config: LossConfig) -> frozenset[str]:
    """The optional fields of LossInputs that the config's terms read."""
    return _needed(TERMS, config)


def compute_loss(config: LossConfig, x: LossInputs) -> Value:
    """The loss of one minibatch, and detached statistics of its terms (0-dim tensors).

    Terms are averaged by `config.aggregation` over ALL action tokens, also where 80/20 or Clip-Cov
    silence some (as in their papers). But LLDS is a token mean over the tokens that
    `config.llds_normalizer` names, and SAPO, and a KL to the old policy on preserved rows, one over
    the tokens of the rows that LLDS keeps. Raises ValueError on a missing input.
    """
    return _weighted_sum(TERMS, config, x, None)


def regularizers(config: LossConfig, x: LossInputs, counts: Counts) -> Value:
    """The weighted terms of a micro-batch but the policy's, divided by the whole update's counts.

    For trainers that have a policy term of their own. Over the micro-batches of an update losses
    and statistics add up to those of `compute_loss`; but the shares of KL-Cov and of Lp-Reg's
    "code" selection are taken within each micro-batch. Raises ValueError on a missing input, or an
    aggregation that is not a token mean.
    """
    if config.aggregation != "token-mean":
        raise ValueError(f"micro-batches of {config.aggregation} do not add up: use token-mean")
    return _weighted_sum(REGULARIZERS, config, x, counts)


def derived(config: LossConfig, means: Mapping[str, float]) -> dict[str, float]:
    """What the terms derive from their statistics' means over a rollout batch's updates."""
    active = (term for term in TERMS if term.weight(config))
    return {key: value for term in active for key, value in term.derived(config, means).items()}


def policy_only(config: LossConfig) -> LossConfig:
    """The config with every regularizer's weight at 0."""
    return dataclasses.replace(config, **{term.coef: 0.0 for term in REGULARIZERS})


def _needed(terms: Iterable[Term], config: LossConfig) -> frozenset[str]:
    return frozenset().union(*(term.needs(config) for term in terms if term.weight(config)))


def _weighted_sum(
    terms: Iterable[Term], config: LossConfig, x: LossInputs, counts: Counts | None
) -> Value:
    if missing := sorted(name for name in _needed(terms, config) if getattr(x, name) is None):
        raise ValueError(f"this loss reads {', '.join(missing)}: pass it in LossInputs")
    loss, stats = x.logp.new_zeros((), dtype=torch.float32), {}
    for term in terms:
        if weight := term.weight(config):
            value, told = term.value(config, x, counts)
            loss, stats = loss + weight * value, stats | told
    return loss, {name: value.detach() for name, value in stats.items()}
