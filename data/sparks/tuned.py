"""Lp-Reg whose rho and kappa tune themselves: python data/sparks/tuned.py --seed 2 --out FOLDER.

After every batch kappa moves so that of the rare tokens a fixed share is protected, and rho grows
while the term is far from its limit of 10 nats per token, where it would have no gradient. Neither
knows which word is the spark. README.md has the rule and what came of it.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch

from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun

SHARE = 0.175  # of the rare tokens, protected: the middle of Lp-Reg's Fig. 16 (2510.03222)
SATURATED = 1.0  # nats per protected token
STEP, GROW, SHRINK = 1.0, 1.1, 0.8  # of ln kappa for each unit of share; factors of rho
KAPPA, RHO = (1e-4, 0.5), (0.01, 0.1)  # limits; both start at the paper's


def follow(rho: float, kappa: float, share: float, saturation: float) -> tuple[float, float]:
    """The next batch's rho and kappa, by what the filter and the term did in this one.

    nan, which is the share of no tokens and the saturation of a term that protects none, counts as
    none protected and not saturated.
    """
    share = 0.0 if math.isnan(share) else share
    kappa *= math.exp(STEP * (share - SHARE))
    rho *= SHRINK if saturation > SATURATED else GROW
    return min(RHO[1], max(RHO[0], rho)), min(KAPPA[1], max(KAPPA[0], kappa))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beta", type=float, default=1.0)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    config = train_config(
        "lp_reg",
        given.seed,
        "sparks",
        steps=given.steps,
        lr=given.lr,
        updates_per_batch=given.updates,
        lp_reg_coef=given.beta,
        checkpoint_every=0,
    )
    run = TrainingRun(config, given.out)
    while run.next_batch < config.steps:
        row, loss = run.step(), run.trainer.config.loss
        rho, kappa = follow(
            loss.lp_reg_quantile,
            loss.lp_reg_threshold,
            row["low_prob/protected_share"],
            row["lp_reg/saturation"],
        )
        run.trainer.turn(loss=replace(loss, lp_reg_quantile=rho, lp_reg_threshold=kappa))
        if run.next_batch % 25 == 0:
            print(f"batch {run.next_batch}: rho {rho:.3f}, kappa {kappa:.5f}", flush=True)
    run.writer.close()


if __name__ == "__main__":
    main()
