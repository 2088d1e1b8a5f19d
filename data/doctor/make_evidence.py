"""Recorded runs -> lldlib/doctor/evidence.json: thresholds of warnings, odds, what remedies did.

    python data/doctor/make_evidence.py [--logs FOLDER]

`--logs` adds public logs of other people's runs to the odds; only counts of them are kept. Every
number is found anew from the runs, so the script is run again whenever they are recorded again.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np

from lldlib.doctor import judge as rules
from lldlib.doctor.judging import warnings as ringing
from lldlib.doctor.readers import Log, Unreadable, read_logs
from lldlib.doctor.reading.series import ENOUGH, LoggedRun, run_of
from lldlib.files import read_jsonl
from lldlib.runs.phases import find_collapse, trailing_mean

ROOT = Path(__file__).resolve().parents[2]
FIRST = ROOT / "data" / "first_world" / "metrics.jsonl.gz"
REAL = ROOT / "data" / "runs" / "smollm2"
ATLAS = ROOT / "data" / "atlas"
OUT = ROOT / "lldlib" / "doctor" / "evidence.json"
SAME = ("main", "longer", "longest")  # studies that run the same runs on: the longest counts
TUNED = ("-seed0", "-seed1", "-seed2")  # of the atlas: these runs are in its search as well
# settings that train nothing
SIDE = ("eval_every", "checkpoint_every", "probe_every", "policy", "exam_half", "steps", "seed")
MORE = 2.0  # standard errors by which a warning must ring more often before falls than elsewhere
RARE = 0.1  # share of living runs in which a warning may ring that is said of a living run
LLDS = "LLDS, arXiv 2512.04220"
TOY = "on this project's toy models of 0.4 million weights, not on yours"


def main() -> None:
    """Write the table and say its odds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=Path, help="a folder of public logs")
    given = parser.parse_args()
    groups = recorded() | (public(given.logs) if given.logs else {})
    table = {
        "made_by": "data/doctor/make_evidence.py",
        "runs": sum(map(len, groups.values())),
        "groups": len(groups),
        "warnings": {w.name: odds(w, list(groups.values())) for w in ringing.WARNINGS},
        "verdict": verdict_odds(recorded()),
        "remedies": remedies(),
    }
    OUT.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, kept in table["warnings"].items():
        said = f"use={kept['use']} rare={kept['rare']}  {ringing.odds_of(kept)}"
        print(f"{name:16} over {kept['threshold']:<5g} {said}")
    print(json.dumps(table["verdict"], indent=1))


# -- which runs ------------------------------------------------------------------------------------


@cache
def runs_of(path: Path) -> dict[str, LoggedRun]:
    """The runs of a file of metrics, by their folder's name; what has no reward is left out."""
    logs: dict[str, Log] = {}
    for _, row in read_jsonl(path):
        name = row.pop("run")
        logs.setdefault(name, Log(name, "lldlib")).add(row, {})
    return {name: run_of(log.close()) for name, log in logs.items()}


def folders(path: Path) -> dict[str, LoggedRun]:
    """The runs of a folder of run folders that have a reward."""
    found = {}
    for file in sorted(path.rglob("metrics.jsonl")):
        with suppress(Unreadable):
            found[str(file.parent.relative_to(ROOT))] = run_of(read_logs(file)[0])
    return found


def atlas() -> dict[str, LoggedRun]:
    """The runs of the atlas: those of the search, seeds 0 to 2, and the other seeds."""
    search = runs_of(ATLAS / "search.jsonl.gz")
    others = {n: run for n, run in folders(ATLAS / "main").items() if n[-6:] not in TUNED}
    return {f"atlas/{name}": run for name, run in search.items()} | others


def recorded() -> dict[str, list[LoggedRun]]:
    """Recorded runs with enough rows, a group for what is one run: a branch and its trunk."""
    groups: dict[str, dict[str, LoggedRun]] = defaultdict(dict)
    for name, run in (atlas() | folders(REAL)).items():
        if len(run.scored) >= ENOUGH:
            groups[name][name] = run
    for name, run in runs_of(FIRST).items():
        if len(run.scored) < ENOUGH:
            continue
        study, *rest = name.split("/")
        if study in SAME:
            key = groups[f"main/{rest[0]}"]
            old = key.get("run")
            key["run"] = run if old is None or len(run.steps) > len(old.steps) else old
        elif study == "no_return":
            groups[f"main/method=grpo,{rest[0]}"][name] = run
        else:
            groups[name][name] = run
    return {name: list(runs.values()) for name, runs in groups.items()}


def public(folder: Path) -> dict[str, list[LoggedRun]]:
    """Public logs; files whose names begin alike up to the first `_` twice over are one run."""
    groups: dict[str, list[LoggedRun]] = defaultdict(list)
    for file in sorted(folder.iterdir()):
        try:
            run = run_of(read_logs(file)[0])
        except (Unreadable, ValueError):
            continue
        if len(run.scored) >= ENOUGH:
            groups[_fingerprint(run)].append(run)
    return {name: runs[:1] for name, runs in groups.items()}


def _fingerprint(run: LoggedRun) -> str:
    """One run in two formats has the same first scores."""
    scores = run.signals["reward"][run.scored]
    return " ".join(f"{v:.4f}" for v in scores[:10])


# -- odds ------------------------------------------------------------------------------------------


def odds(warning: ringing.EarlyWarning, groups: Sequence[list[LoggedRun]]) -> dict:
    """The threshold, and how it did on each group when it was set on all the others."""
    facts = [[_facts(warning, run) for run in runs] for runs in groups]
    facts = [[f for f in group if f is not None] for group in facts]
    facts = [group for group in facts if group]
    tried: list[tuple[tuple, float]] = []
    for i in range(len(facts)):
        rest = [f for j, group in enumerate(facts) if j != i for f in group]
        best = _best(warning.grid, rest)
        tried += [(fact, best) for fact in facts[i]]
    threshold = _best(warning.grid, [f for group in facts for f in group])
    fell = [_rang(fact, x) for fact, x in tried if fact[0] is not None]
    lived = [_rang(fact, x) for fact, x in tried if fact[0] is None]
    leads = [fact[0] - row for (fact, x) in tried if (row := _ahead(fact, x)) is not None]
    warned, false = sum(fell), sum(lived)
    share, wrong = warned / max(len(fell), 1), false / max(len(lived), 1)
    rings = (warned + false) / max(len(fell) + len(lived), 1)
    spread = rings * (1 - rings) * (1 / max(len(fell), 1) + 1 / max(len(lived), 1))
    use = share - wrong > MORE * math.sqrt(spread)
    return {
        "threshold": threshold,
        "fell": len(fell),
        "warned": warned,
        "lead": median(leads) if leads else 0,
        "lived": len(lived),
        "false": false,
        "use": use,
        "rare": use and wrong <= RARE,
    }


def _facts(warning: ringing.EarlyWarning, run: LoggedRun) -> tuple | None:
    """(row of the fall or None, for each threshold the row at which it rings or None)."""
    strength = warning.strength(run)
    if not np.isfinite(strength).any():
        return None
    judged = rules.judge(run)
    row = judged.row if judged.verdict in ("collapsed", "degrading") else None
    if judged.verdict == "degrading" and row is None:
        return None
    return row, {x: ringing.first_row(strength, x) for x in warning.grid}


def _ahead(fact: tuple, x: float) -> int | None:
    row, rung = fact[0], fact[1][x]
    return rung if row is not None and rung is not None and rung < row else None


def _rang(fact: tuple, x: float) -> bool:
    return fact[1][x] is not None if fact[0] is None else _ahead(fact, x) is not None


def _best(grid: Iterable[float], facts: Sequence[tuple]) -> float:
    """The threshold with the largest share warned less the share of false alarms."""

    def worth(x: float) -> float:
        fell = [_rang(f, x) for f in facts if f[0] is not None]
        lived = [_rang(f, x) for f in facts if f[0] is None]
        return sum(fell) / max(len(fell), 1) - sum(lived) / max(len(lived), 1)

    return max(grid, key=worth)


GRID = {"SURE": (3.0, 3.5, 4.0), "FALLEN": (0.2, 0.25, 0.3), "LOST": (0.5, 0.6, 0.7)}


def verdict_odds(groups: dict[str, list[LoggedRun]]) -> dict:
    """Verdicts beside labels made another way, with the thresholds set on all other groups.

    A label reads the training reward alone, by `runs.phases`: dead, if it ends under 0.3 of its
    best trailing mean after a collapse; alive, if it never collapsed and ends at 0.8 or more. Runs
    between the two have no label. A verdict that rests on the held-out score is not counted.
    """
    cases = [(label(run), run, i) for i, runs in enumerate(groups.values()) for run in runs]
    cases = [case for case in cases if case[0] is not None]
    usual = {name: getattr(rules, name) for name in GRID}
    points = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    points.sort(key=lambda point: point != usual)  # of equal ones the thresholds in use
    said = [[_verdict(run, point) for _, run, _ in cases] for point in points]
    _verdict(cases[0][1], usual)
    left_out, in_use = ({"dead": defaultdict(int), "alive": defaultdict(int)} for _ in range(2))
    for k, (truth, _, group) in enumerate(cases):
        others = [j for j, case in enumerate(cases) if case[2] != group]
        wrong = [sum(_wrong(cases[j][0], row[j]) for j in others) for row in said]
        left_out[truth][said[int(np.argmin(wrong))][k]] += 1
        in_use[truth][said[0][k]] += 1
    return {"left_out": left_out, "in_use": in_use}


def _verdict(run: LoggedRun, point: dict[str, float]) -> str:
    for name, value in point.items():
        setattr(rules, name, value)
    return rules.judge(replace(run, heldout=np.full(len(run.steps), np.nan))).verdict


def _wrong(truth: str, verdict: str) -> bool:
    return verdict != "collapsed" if truth == "dead" else verdict in ("degrading", "collapsed")


def label(run: LoggedRun) -> str | None:
    """`dead`, `alive`, or None between them."""
    scores = [float(v) for v in run.signals["reward"][run.scored]]
    means = [m for m in trailing_mean(scores) if m == m]
    share, found = means[-1] / max(means), find_collapse(scores)
    if found.for_good or (found.known is not None and share < 0.3):
        return "dead"
    return "alive" if found.known is None and share >= 0.8 else None


# -- remedies --------------------------------------------------------------------------------------


def study(folder: str, **wanted: str) -> list[LoggedRun]:
    """The recorded runs of a study whose names hold these settings and no other method's."""
    found = []
    for name, run in sorted(runs_of(FIRST).items()):
        above, *_, last = name.split("/")
        settings = dict(p.split("=", 1) for p in last.split(",") if "=" in p)
        if above == folder and all(settings.get(k) == v for k, v in wanted.items()):
            found.append(run)
    return found


def searched(**wanted: str) -> dict[str, LoggedRun]:
    """The atlas's runs with exactly these settings, by seed; the search's own come first."""
    found = {}
    for file in ("search", "later", "methods"):
        for name, run in runs_of(ATLAS / f"{file}.jsonl.gz").items():
            settings = dict(p.split("=", 1) for p in name.split(","))
            if {k: v for k, v in settings.items() if k not in SIDE} == wanted:
                found.setdefault(settings["seed"], run)
    return found


def hot(arm: str, **wanted: str) -> list[LoggedRun]:
    """The twenty seeds of an arm at the hot rate: ten of the study, ten of its test."""
    first = [run for n, run in folders(ATLAS / "main").items() if f"/{arm}-seed" in n]
    test = searched(method=arm, lr="0.001", **wanted).items()
    return first + [run for seed, run in test if int(seed) >= len(first)]


def outcome(runs: Collection[LoggedRun]) -> str:
    """`collapses in 3 of 3, 0.02 at the end`: what the runs came to."""
    if not runs:
        return "not recorded"
    scores = [[float(v) for v in run.signals["reward"][run.scored]] for run in runs]
    dead = sum(find_collapse(s).known is not None for s in scores)
    end = fmean(fmean(s[-10:]) for s in scores)
    return f"the reward collapses in {dead} of {len(runs)} runs and ends at {end:.2f}"


def remedies() -> dict[str, dict[str, str]]:
    """What each remedy did here, or the source that says so; every number from the runs."""
    grpo, llds = outcome(hot("grpo")), outcome(hot("llds", llds_coef="0.5"))
    more = runs_of(ATLAS / "limits.jsonl.gz").items()  # at 6e-4, on other seeds of the planets
    rates = {
        text: outcome(
            [*searched(method="grpo", lr=rate).values()]
            + [run for name, run in more if f"arm=plain,lr={rate},misses=0," in name]
        )
        for text, rate in (("6e-4", "0.0006"), ("4e-4", "0.0004"), ("2e-4", "0.0002"))
    }
    updates = {
        u: outcome(searched(method="grpo", lr="0.001", updates_per_batch=u).values())
        for u in ("1", "4", "8")
    }
    steep = study("phase", method="grpo", lr="0.0032") + study("phase", method="llds", lr="0.0032")
    cool = outcome(searched(method="llds", llds_coef="0.5", lr="0.0002").values())
    weak = outcome(searched(method="llds", llds_coef="0.2", lr="0.001").values())
    table = {
        "llds": (
            "Add LLDS, a penalty on likelihood that correct answers lose within a batch (weight "
            "0.2, or 0.5 at a rate that kills GRPO; in verl the policy loss llds, in TRL "
            "LLDGRPOTrainer: data/scale_out.md has the lines)",
            f"{TOY}: at a hot rate, 1e-3, with GRPO {grpo}; with LLDS at "
            f"weight 0.5 {llds}, at 0.2 {weak}. At 2e-4 with GRPO {rates['2e-4']}; "
            f"with LLDS {cool}. So a lower rate alone does more",
            "one more pass without gradient a batch, and one weight to set",
            f"data/atlas/README.md; {LLDS}",
        ),
        "go back": (
            "Go back to a checkpoint well before the fall and go on from there at a fifth of the "
            "rate",
            f"{branches()}. On toy models too, a fifth of the rate saved branches "
            "about as late as LLDS with a new optimizer did, and ended higher by .17 +- .03",
            "the batches since the checkpoint; a branch within a few batches of the fall is late",
            "data/first_world/README.md, data/atlas/controls.md",
        ),
        "lower lr": (
            "Lower the learning rate, to a half or a fifth",
            f"{TOY}: with GRPO at 1e-3 {grpo}; "
            + "; ".join(f"at {rate} {said}" for rate, said in rates.items()),
            "slower learning",
            "data/atlas/README.md",
        ),
        "fewer updates": (
            "Take fewer updates of more rows from each rollout batch (verl: a larger "
            "ppo_mini_batch_size or ppo_epochs=1; TRL: steps_per_generation nearer to "
            "gradient_accumulation_steps, num_iterations=1)",
            f"{TOY}: with GRPO at 1e-3, by updates per batch of 320 rows, "
            + "; ".join(f"{u}: {said}" for u, said in updates.items())
            + f"; 16: {grpo}",
            "more rollouts for as many updates",
            "data/atlas/settings.md",
        ),
        "more rows": (
            "Give each update more rows: a larger batch, or more answers per question",
            f"{TOY}: just before a fall (one seed), with 4 and 16 times as many rows in as many "
            "updates the correct answers lost a half and a fifth as much likelihood",
            "more rollouts",
            "data/atlas/controls.md",
        ),
        "clip gradient": (
            "Check that the gradient norm is clipped at 1 (TRL and verl do so by default, and log "
            "the norm before the clip), and skip updates that are not finite",
            f"{TOY}: at a clip of 20 one update with a norm in the hundreds ended runs with "
            "and without LLDS; at 1 to 2 GRPO dipped and came back",
            "none",
            "data/first_world/README.md",
        ),
        "tight budget": (
            "Read ten answers that were cut off: raise the token budget if they are sensible; if "
            "they are endless, score what is cut as wrong",
            f"{TOY}: with a tight budget endless thoughts fail and are unlearned; DAPO reports "
            "that soft punishment of overlong answers steadies training",
            "answers that need the length",
            "data/first_world/README.md; DAPO, arXiv 2503.14476",
        ),
        "check tool": (
            "Look at the tool first: is the search server up, does it time out, did its address or "
            "quota change? Score a failed call as no episode, not as a wrong answer",
            "in a public Search-R1 log the score fell from 0.34 to 0.06 in one step, and the "
            "validation at that step counts time-outs where it had none; the policy was well",
            "none; go back to the checkpoint before",
            "the log itself; Search-R1 issue 88 asks the same",
        ),
        "check scoring": (
            "Look at the tool and the reward first: does every server answer, did a parser, a "
            "judge, a time limit or the questions change? Score ten old answers again",
            "the reward fell in one step, and what this log has of the policy did not move; a "
            "policy that dies moves its entropy, its gradient or its KL",
            "none; go back to the checkpoint before",
            "this log; data/doctor/symptoms.md, section 1",
        ),
        "check resume": (
            "Compare settings, data order and optimizer state before and after the stop",
            "a fall at a resume is more often a setting than a policy",
            "none",
            "this log",
        ),
        "find signal": (
            "Give the groups contrast: easier questions, more answers a group, a higher "
            "temperature, or drop groups of one reward (DAPO's dynamic sampling)",
            "a group whose answers score alike has advantage 0; noted here on a model of 135 "
            "million weights: at temperature 1 one of 12 groups was mixed, at 1.5 seven of 8",
            "more rollouts",
            "data/runs/smollm2/README.md; DAPO, arXiv 2503.14476",
        ),
        "warm start": (
            "Fine-tune on a few hundred good episodes first",
            "a policy that solves nothing gives GRPO nothing to prefer; the recorded runs of this "
            "project all start from one that solves some of its tasks",
            "gold episodes and one short training",
            "data/tiny/README.md, warm start; Search-R1, arXiv 2503.09516",
        ),
        "check start": (
            "Read ten answers of the start: wrong chat template, missing end-of-text token, broken "
            "weights or a token budget that is too small",
            "a policy that babbles at step 1 did not learn it in training",
            "none",
            "this log",
        ),
        "raise lr": (
            "Raise the learning rate (by 3 to 10), or train longer; check that it has not decayed "
            "to 0 and that the adapters are trained",
            "the KL of this log is near 0: the policy is still the one it began as",
            f"a step that is too large ends runs; {TOY}: at 8 times the rate {outcome(steep)}",
            "this log; data/first_world/README.md",
        ),
        "kl out": (
            "Take the KL penalty out of the reward and put it into the loss (verl: "
            "algorithm.use_kl_in_reward=False, actor.use_kl_loss=True)",
            "in a public verl log answers shrank to one token, because a shorter answer paid less "
            "penalty: the penalised reward rose from -13.6 to -1.3, the score fell to its floor",
            "none",
            "the log itself; GRPO, arXiv 2402.03300",
        ),
        "check reward": (
            "Read twenty answers with the highest reward: does the reward pay for what you want?",
            "a policy learns what its reward pays for, whether or not that was meant",
            "none",
            "this log",
        ),
        "keep best": (
            "Keep the checkpoint that is best on the held-out score, and stop there; more, or "
            "fresh, training questions",
            f"{TOY}: {overfit()}",
            "none",
            "data/first_world/README.md",
        ),
        "check sampler": (
            "Sample and train with the same precision and kernels, or correct the ratio",
            "a gap between the two sets of probabilities makes the update off-policy",
            "some speed",
            "verl documentation, rollout correction",
        ),
    }
    names = ("do", "evidence", "price", "source")
    return {key: dict(zip(names, entry, strict=True)) for key, entry in table.items()}


def branches() -> str:
    """What became of recorded GRPO runs that went on with LLDS before their fall."""
    early, late = [], []
    for name, run in runs_of(FIRST).items():
        above, *rest = name.split("/")
        trunk = study("main", method="grpo", seed=rest[0].removeprefix("seed="))
        if above != "no_return" or "llds_from=" not in name or not trunk:
            continue
        fell = find_collapse([float(v) for v in trunk[0].signals["reward"]]).known
        at = int(rest[1].removeprefix("llds_from="))
        end = fmean(run.signals["reward"][run.scored][-10:])
        if fell is not None:
            (late if fell - at < 5 else early).append(end > 0.4)
    return (
        f"{TOY}: of {len(early)} branches with LLDS taken 5 batches or more "
        f"before the fall {sum(early)} live; of {len(late)} taken later {sum(late)}"
    )


def overfit() -> str:
    """How the held-out score of GSPO's runs fell while their reward held."""
    runs = study("methods", method="gspo")
    ends = [(run.heldout[np.isfinite(run.heldout)], run) for run in runs]
    ends = [(held, run) for held, run in ends if len(held) > 1]
    if not ends:
        return "not recorded"
    first, last = fmean(h[0] for h, _ in ends), fmean(h[-1] for h, _ in ends)
    reward = fmean(fmean(run.signals["reward"][run.scored][-10:]) for _, run in ends)
    return (
        f"under GSPO the held-out score fell from {first:.2f} to {last:.2f} in {len(ends)} runs "
        f"while the reward ended at {reward:.2f}"
    )


if __name__ == "__main__":
    main()
