"""SmolLM2 in the shuffled atlas: python data/atlas/smollm2.py

Prints the tables of smollm2.md from the runs in the folders smollm2, from the start that never
answers at two hops; smollm2_two_hops, from the one that does at times; smollm2_card, from the
latter's made again on a graphics card; smollm2_moves, the twelfth rule's other arms, from the
same; smollm2_long, those that went on after 60 batches; and from smollm2_capped.jsonl. A run that
was ended by the rule, after three batches in a row under OVER, has a reward of 0 in the batches
that it was not given. Draws smollm2.png and smollm2_ends.png.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev

import pandas as pd
from collect import rate_text
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from scipy.stats import t as student

from lldlib.course import SMOLLM_COLOUR, fate, first_under, last_five, seed_digits, smollm_runs
from lldlib.files import markdown_table, read_jsonl
from lldlib.runs.folder import Run
from lldlib.show.style import BATCH, SMALL, WIDTH, save, style

HERE = Path(__file__).parent
FOLDERS = ("smollm2", "smollm2_two_hops", "smollm2_card", "smollm2_moves", "smollm2_long")
BATCHES, WINDOW, OVER = 20, 5, 0.02
FALLEN = 0.3  # share of the best window under which the last one counts as dead
COST = "displacement/correct"  # nats that a batch's updates add to a correct response
GRPO, LLDS, COOLER = "GRPO, 3e-4", "GRPO + LLDS, 3e-4", "GRPO, 1e-4"  # names in the course
LLDS_COOLER = "GRPO + LLDS, 1e-4"
NOTED = (6, 7, 8)  # seeds whose runs note their moves
MOVE = "update/move"  # a batch's mean over its updates
NEAR = 3  # batches from one without a mixed group
TOKEN = tuple(f"displacement/{whose}_token" for whose in ("correct", "all", "incorrect"))
PICTURE = {
    "reward": ("reward/mean", ".2f"),
    "added to a right answer": (COST, "+.1f"),
    "added to their tokens": (TOKEN[0], "+.3f"),
    "to all tokens": (TOKEN[1], "+.3f"),
    "share of right answers that lose": ("displacement/share_fallen", ".2f"),
    "log-prob of their tokens": ("likelihood/correct", ".3f"),
    "of the first action": ("likelihood/action_1", ".3f"),
    "added to the first": ("displacement/action_1", "+.3f"),
    "to the second": ("displacement/action_2", "+.3f"),
    "to the third": ("displacement/action_3", "+.3f"),
    "entropy": ("policy/entropy", ".2f"),
    "share of tokens under .05": ("low_prob/mass", ".3f"),
    "tokens an answer": ("length/tokens", ".0f"),
    "searches": ("search/valid", ".1f"),
    "gradient norm": ("grad/norm", ".2f"),
}
HEAD = (
    *("arm", "rate", "seed", "batches", "reward, first five", "best five", "last five", "dead"),
    *("worst cost of a correct response", "entropy, start and end", "groups mixed"),
    *("updates without a gradient", "endless, last five"),
    *("held out, start to end: sampled", "greedy"),
)


def arm(run: Run) -> str:
    """The method, and what it leaves out."""
    loss, kept = run.config["loss"], {"nonnegative": "A >= 0", "positive": "A > 0"}
    name = "GRPO"
    if loss["llds_coef"]:
        name += f" + LLDS {loss['llds_coef']:g}, {kept[loss['llds_preserve']]}"
    name += ", matched" * run.path.name.startswith("matched")
    return name + ", zero updates skipped" * run.config["skip_zero_updates"]


def rewards(run: Run) -> list[float]:
    """The mean reward of each batch, 0 in those that a dead run was not given."""
    found = run.column("reward/mean")
    ended = max(found[-3:]) < OVER
    return found + [0.0] * (BATCHES - len(found)) if ended else found


SEED_INK = ((2.8, "white", 0.45), (1.7, "white", 0.0), (1.0, "black", 0.55))  # width, shade


def arm_panels(
    arms: Mapping[str, Sequence[Run]],
    measures: Mapping[str, Callable[[Run], tuple]],
    height: float,
    squeezed: float | None = None,
) -> Figure:
    """A row of panels per measure, a column per arm of `SMOLLM_COLOUR`, a line per run.

    Seeds 0 to 2 differ in width and shade: pale, plain and dark. The first row's axis is
    logarithmic beyond +-`squeezed`.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    longest = max(len(run.metrics) for runs in arms.values() for run in runs)
    grid = figure.subplots(len(measures), len(arms), sharex=True, sharey="row", squeeze=False)
    for row, (label, curve) in zip(grid, measures.items(), strict=True):
        for ax, (name, runs) in zip(row, arms.items(), strict=True):
            for run in runs:
                width, shade, much = SEED_INK[seed := run.config["seed"]]
                ink = to_rgba_array([SMOLLM_COLOUR[name], shade])
                look = {"color": (1 - much) * ink[0] + much * ink[1], "linewidth": width}
                ax.plot(*curve(run), ".-", **look, markersize=4 + width, label=f"seed {seed}")
            style(ax, "", "").set_xticks(range(0, longest + 1, 5 if longest <= 20 else 10))
        row[0].set_ylabel(label)
    if squeezed is not None:
        grid[0][0].margins(y=0.1)
        grid[0][0].set_yscale("symlog", linthresh=squeezed)
        grid[0][0].set_yticks(ticks := [place * squeezed for place in (-10, -1, 0, 1)], ticks)
    for top, bottom, name in zip(grid[0], grid[-1], arms, strict=True):
        top.set_title(name, fontsize=SMALL)
        bottom.set_xlabel(BATCH)
    lines = grid[0][0].get_legend_handles_labels()
    figure.legend(*lines, frameon=False, fontsize=SMALL, loc="outside lower center", ncols=3)
    return figure


def windows(values: list[float]) -> list[float]:
    """Means of each WINDOW batches in a row."""
    return [fmean(values[i : i + WINDOW]) for i in range(len(values) - WINDOW + 1)]


def is_dead(run: Run) -> bool:
    """Whether the last five batches earn under FALLEN of the best five before."""
    means = windows(rewards(run))
    return means[-1] < FALLEN * max(means)


def present(run: Run, key: str) -> list[float]:
    """The values that were logged."""
    return [row[key] for row in run.metrics if row.get(key) is not None]


def cells(run: Run) -> list[str]:
    """A run's line in the table."""
    reward, entropy = windows(rewards(run)), present(run, "policy/entropy")
    exams = [
        " ".join(
            f"{v:.2f}"
            for v in present(run, f"eval/start_{key}") + present(run, f"eval/heldout_{key}")
        )
        for key in ("em", "em_greedy")
    ]
    return [
        *(arm(run), f"{run.config['lr']:g}", str(run.config["seed"]), str(len(run.metrics))),
        *(f"{v:.2f}" for v in (reward[0], max(reward), reward[-1])),
        "yes" if is_dead(run) else "no",
        f"{min(present(run, COST), default=float('nan')):+.1f}",
        f"{entropy[0]:.2f}, {entropy[-1]:.2f}",
        f"{fmean(present(run, 'reward/mixed_groups')):.2f}",
        f"{fmean(present(run, 'update/zero_gradient')):.2f}",
        f"{fmean(present(run, 'stop/token_budget')[-WINDOW:]):.2f}",
        *exams,
    ]


def tables(folder: str) -> None:
    """The table of a folder's runs, then the reward and the cost of every batch."""
    runs = [Run(path) for path in sorted((HERE / folder).iterdir()) if path.is_dir()]
    runs.sort(key=lambda run: (run.config["seed"], -run.config["lr"], arm(run)))
    print(f"\n{folder}\n\n{markdown_table(HEAD, map(cells, runs))}")
    longest = max(BATCHES, *(len(run.metrics) for run in runs))
    for title, key, shape in (("Reward", "reward/mean", ".2f"), ("Cost, nats", COST, "+.1f")):
        rows = []
        for run in runs:
            name = f"{arm(run)}, {run.config['lr']:g}, seed {run.config['seed']}"
            values = ["" if v is None or v != v else format(v, shape) for v in run.column(key)]
            rows.append([name, *values, *[""] * (longest - len(values))])
        print(f"\n{title} of each batch\n")
        print(markdown_table(["arm", *map(str, range(longest))], rows))


def ends(run: Run) -> list[float]:
    """Reward of batches 55 to 59, mean of the exams sampled and greedy; 0 after a death."""
    count = 60 // run.config["eval_every"]
    exams = (present(run, f"eval/heldout_{key}") for key in ("em", "em_greedy"))
    scores = (sum(found[:count]) / count for found in exams)
    return [last_five(run), *scores]


def noted() -> dict[str, list[Run]]:
    """The twelfth rule's runs, by arm."""
    arms = {arm: runs for arm, runs in smollm_runs().items() if arm != LLDS_COOLER}
    return {arm: [r for r in runs if r.config["seed"] in NOTED] for arm, runs in arms.items()}


def moves() -> None:
    """The twelfth rule's arms: ends, moves, losses, and what came after the largest move."""
    arms = noted()
    shared = {s: min(len(runs[i].metrics) for runs in arms.values()) for i, s in enumerate(NOTED)}
    rows, jumps = [], []
    for name, runs in arms.items():
        for run in runs:
            seed, reward = run.config["seed"], run.column("reward/mean")
            last, moved, cost = shared[seed], run.column(MOVE), run.column(COST)
            lost = sum(v is not None and v < 0 for v in cost[10:]), len(cost) - 10
            cell = [name, str(seed), str(len(reward)), f"{fmean(reward[last - 5 : last]):.2f}"]
            cell += [fate(run, 0.1), f"{median(moved[10:]):.4f}", f"{max(moved):.3f}"]
            cell += [f"{fmean(run.column('update/kept')):.2f}", "{} of {}".format(*lost)]
            cell += [f"{run.column('policy/entropy')[-1]:.2f}", *cells(run)[-2:]]
            rows.append(cell)
            top = moved.index(max(moved[:-3]))
            means = fmean(reward[max(0, top - 2) : top + 1]), fmean(reward[top + 1 : top + 4])
            jump = [name, str(seed), str(top), f"{moved[top]:.3f}"]
            jumps.append([*jump, *(f"{v:.2f}" for v in means), f"{means[1] - means[0]:+.2f}"])
    head = ["arm", "seed", "batches", "reward, last five that a seed's arms share", "fate"]
    head += ["median move, nats", "largest move of a batch", "share of a step kept"]
    head += ["right answers lost likelihood, batches after 10", "entropy at the end"]
    print(f"\nmoves\n\n{markdown_table([*head, 'held out: sampled', 'greedy'], rows)}")
    head = ["arm", "seed", "batch of the largest move", "move, nats", "reward, three batches to it"]
    print(f"\n{markdown_table([*head, 'three after it', 'change'], jumps)}")


def capped() -> None:
    """The thirteenth rule's runs beside the recorded ones, from batch 45 on."""
    rows = [row for _, row in read_jsonl(HERE / "smollm2_capped.jsonl")]
    print("\ncapped, then recorded: seed, rewards from batch 45 on, last five, of the best five")
    for run in smollm_runs()[GRPO][:2]:
        seed, best = run.config["seed"], max(windows(rewards(run)))
        for own in ([r for r in rows if r["seed"] == seed], run.metrics[45:]):
            found = [row["reward/mean"] for row in own]
            told = " ".join(f"{v:.2f}" for v in found)
            last = fmean(found[-5:])
            print(seed, told, f"{last:.2f} {last / best:.2f}")


def interval(first: str, second: str) -> None:
    """The second minus the first, reward of batches 55 to 59, with Student's t over the seeds."""
    arms = smollm_runs()
    ones, others = ({run.config["seed"]: run for run in arms[name]} for name in (first, second))
    gaps = [ends(others[s])[0] - ends(ones[s])[0] for s in sorted(ones.keys() & others.keys())]
    half = student.ppf(0.975, len(gaps) - 1) * stdev(gaps) / len(gaps) ** 0.5
    mean = fmean(gaps)
    low, high = mean - half, mean + half
    print(f"{second} minus {first}: {mean:+.2f} [{low:+.2f}, {high:+.2f}], {len(gaps)} seeds")


def pairs(first: str, second: str) -> None:
    """The numbers of the seventh, ninth and tenth rules: two arms, every seed that both have."""
    measures = ("reward, batches 55 to 59", "held out, sampled, mean of the exams", "greedy")
    arms = smollm_runs()
    ones, others = ({run.config["seed"]: run for run in arms[name]} for name in (first, second))
    rows = []
    for seed in sorted(ones.keys() & others.keys()):
        mine, theirs = ends(ones[seed]), ends(others[seed])
        row = [f"{v:.2f}" for v in mine + theirs]
        row += [f"{b - a:+.2f}" for a, b in zip(mine, theirs, strict=True)]
        rows.append([str(seed), *row])
    head = ["seed", *measures * 2, *(f"difference: {name}" for name in measures)]
    print(f"\n{first}, then {second}\n\n{markdown_table(head, rows)}")


def alarm() -> None:
    """Where notebook 7's alarm rings: the mean of three rewards under .36 of its best."""
    print("\nnotebook 7's alarm, batch of its ring by seed (nan: none)\n")
    for name, runs in smollm_runs().items():
        means = [
            pd.Series(run.column("reward/mean")).rolling(3, min_periods=1).mean() for run in runs
        ]
        print(name, *(f"{first_under(mean / mean.cummax(), 0.36):g}" for mean in means))


def every() -> dict[tuple[str, str], list[Run]]:
    """All runs by start and by arm and rate; a long one in place of its first 60 batches."""
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for folder in FOLDERS:  # the long ones come last
        for run in map(Run, (HERE / folder).iterdir()):
            start = "never" if folder == "smollm2" else "at times"
            name = f"{arm(run)}, {rate_text(run.config['lr'])}"
            found.setdefault((start, name), {})[run.config["seed"]] = run
    return {key: [found[key][seed] for seed in sorted(found[key])] for key in sorted(found)}


def span(values: Sequence[float], shape: str = "") -> str:
    """The lowest and the highest."""
    ends = dict.fromkeys(format(end(values), shape) for end in (min, max))
    return " to ".join(ends)


def average(rows: Sequence[dict], key: str) -> float:
    """The mean over the batches that logged it."""
    found = [row[key] for row in rows if row.get(key) is not None]
    return fmean(found) if found else float("nan")


def rungs() -> None:
    """The ladder: each start, arm and rate."""
    rows = []
    for (start, name), runs in every().items():
        fates = ["died" if is_dead(run) else fate(run) for run in runs]
        exams = [score for run in runs if (score := last_exam(run)) == score]
        moved = [median(run.column(MOVE)[10:]) for run in runs if MOVE in run.metrics[0]]
        row = [start, name, " ".join(str(run.config["seed"]) for run in runs)]
        row += [span([len(run.metrics) for run in runs])]
        row += [str(fates.count(end)) for end in ("died", "fell")]
        row += [f"{fmean(map(last_five, runs)):.2f}"]
        row += [f"{fmean(exams):.2f} ({len(exams)})" if exams else "not asked"]
        rows.append([*row, span(moved, ".4f") if moved else ""])
    head = ["start right at two hops", "arm, rate", "seeds", "batches", "died", "fell by .25"]
    head += ["reward, last five up to batch 60", "held out, sampled (runs)", "median move, nats"]
    print(f"\nladder\n\n{markdown_table(head, rows)}")


def tied() -> None:
    """Batches with right answers and no mixed group, mixed ones up to NEAR batches away, others."""
    rows = []
    for (start, name), runs in every().items():
        kinds: dict[str, list[dict]] = {"none mixed": [], "mixed, near": [], "mixed, all": []}
        for run in runs:
            right = [row for row in run.metrics if row["reward/mean"]]
            none = [row for row in right if not row["reward/mixed_groups"]]
            mixed = [row for row in right if row["reward/mixed_groups"]]
            near = [r for r in mixed if any(abs(r["step"] - n["step"]) <= NEAR for n in none)]
            for found, more in zip(kinds.values(), (none, near, mixed), strict=True):
                found.extend(more)
            if none:
                told = ", ".join(f"{row['step']} ({row[COST]:+.2f})" for row in none)
                print(f"no mixed group, {start}, {name}, seed {run.config['seed']}: {told}")
        if start == "never" or not kinds["none mixed"]:
            continue
        for kind, found in kinds.items():
            costs, moved = [r[COST] for r in found], [r[MOVE] for r in found if MOVE in r]
            row = [name, kind, str(len(found)), f"{average(found, 'reward/mean'):.2f}"]
            row += [f"{average(found, 'update/zero_gradient'):.2f}"]
            row += [f"{value:+.2f}" for value in (fmean(costs), median(costs), min(costs))]
            row += [str(sum(cost < 0 for cost in costs))]
            rows.append([*row, f"{median(moved):.4f} ({len(moved)})" if moved else ""])
    head = ["arm, rate", "groups", "batches", "reward", "updates without a gradient"]
    head += ["nats added to a right answer: mean", "median", "worst", "batches that cost it some"]
    print(f"\ntied\n\n{markdown_table([*head, 'median move, nats (batches)'], rows)}")


def end_of(run: Run) -> int:
    """The batch from which on no reward reaches half of the best five in a row; alive: the end."""
    half = max(windows(rewards(run))) / 2
    held = [row["step"] for row in run.metrics if row["reward/mean"] >= half]
    return held[-1] + 1 if is_dead(run) else len(run.metrics)


def displaced() -> None:
    """What a batch adds to a token of its right answers, of all and of its wrong ones."""
    rows = []
    for (start, name), runs in every().items():
        dead = [run for run in runs if is_dead(run)]
        told = {
            f"seed {run.config['seed']}, ten up to {(end := end_of(run)) - 1}": run.metrics[
                end - 10 : end
            ]
            for run in dead
        }
        lived = [run for run in runs if run not in dead]
        told[f"{len(lived)} not dead, last 30"] = [r for run in lived for r in run.metrics[-30:]]
        for label, found in told.items() if start == "at times" else ():
            both = [row for row in found if row.get(TOKEN[0]) is not None]
            above = sum(row[TOKEN[0]] > row[TOKEN[1]] for row in both)
            means = (f"{average(found, key):+.3f}" for key in TOKEN)
            rows.append([name, label, *means, f"{above} of {len(both)}"])
    head = ["arm, rate", "batches", "right answers", "all", "wrong answers", "right above all"]
    print(f"\na token\n\n{markdown_table(head, rows)}")


def parts_of(run: Run) -> tuple[list[dict], ...]:
    """The first ten batches, the last ten up to the end, the last one."""
    end = end_of(run)
    return run.metrics[:10], run.metrics[end - 10 : end], run.metrics[end - 1 : end]


def picture() -> None:
    """GRPO at 3e-4: means of the parts of the runs that died, and of those that live."""
    runs = every()["at times", GRPO]
    columns = [[run] for run in runs if is_dead(run)] + [[r for r in runs if not is_dead(r)]]
    rows = []
    for label, (key, shape) in PICTURE.items():
        row = [label]
        for some in columns:
            parts = zip(*map(parts_of, some), strict=True)
            means = (fmean(average(found, key) for found in part) for part in parts)
            row.append(", ".join(format(mean, shape) for mean in means))
        rows.append(row)
    for i, label in enumerate(("first ten", "ten up to the end")):
        gaps = []
        for some in columns:
            found = [parts_of(run)[i] for run in some]
            keys = ("likelihood/action_1", "likelihood/action_2")
            ones, twos = ([average(part, key) for part in found] for key in keys)
            gaps.append(" ".join(f"{a - b:+.3f}" for a, b in zip(ones, twos, strict=True)))
        rows.append([f"first less second, {label}, by run", *gaps])
    norms = [[max(run.column("grad/norm")[: end_of(run)]) for run in some] for some in columns]
    rows.append(["gradient norm, highest up to the end", *(span(some, ".2f") for some in norms)])
    late = [[*run.column("policy/entropy")[end_of(run) :], 0] for (run,) in columns[:-1]]
    rows.append(["entropy, highest after it", *(f"{max(some):.2f}" for some in late), ""])
    heads = [f"seed {run.config['seed']}" for (run,) in columns[:-1]]
    heads.append(f"the {len(columns[-1])} that live")
    print(f"\npicture\n\n{markdown_table(['', *heads], rows)}")


def hours() -> None:
    """What the batches of each folder took, by `time/step`."""
    rows = []
    for folder in FOLDERS:
        runs = [*map(Run, (HERE / folder).iterdir())]
        skip = 60 * (folder == "smollm2_long")  # these stand in smollm2_two_hops
        took = sum(sum(run.column("time/step")[skip:]) for run in runs)
        rows.append([f"`{folder}/`", str(len(runs)), f"{took / 3600:.2f}"])
    print(f"\nhours\n\n{markdown_table(['folder', 'runs', 'hours'], rows)}")


def draw() -> None:
    """The processor's seeds: right answers' likelihood, reward, held-out score, endless answers."""
    measures = {"change of right\nanswers (nats)": COST, "reward": "reward/mean"}
    measures |= {"held out": "eval/heldout_em", "share of\nendless answers": "stop/token_budget"}
    curves = {name: partial(Run.series, key=key) for name, key in measures.items()}
    runs = smollm_runs()
    shown = {name: runs[name][:3] for name in (GRPO, LLDS, COOLER)}
    save(arm_panels(shown, curves, 6.2, squeezed=1), HERE / "smollm2.png")


def last_exam(run: Run) -> float:
    """The last held-out score up to batch 60, sampled; 0 where a dead run was given no more."""
    if is_dead(run) and len(run.metrics) < 60:
        return 0.0
    found = present(run, "eval/heldout_em")[: 60 // (run.config["eval_every"] or 60)]
    return found[-1] if found else float("nan")


def draw_ends() -> None:
    """All runs from the better start, a digit for each seed: reward of the last five, held out."""
    figure = Figure(figsize=(8.5, 5.6), layout="constrained")
    left, right = figure.subplots(2, 1)
    title = "reward, batches 55 to 59"
    seed_digits(style(left, "", ""), smollm_runs(), lambda run: ends(run)[0]).set_title(title)
    title = "held out, sampled, after 60 batches (matched: after 40)"
    seed_digits(style(right, "", ""), smollm_runs(), last_exam).set_title(title)
    save(figure, HERE / "smollm2_ends.png")


def main() -> None:
    """The figures, then the tables of all starts."""
    draw()
    draw_ends()
    for folder in FOLDERS:
        tables(folder)
    pairs(GRPO, LLDS)
    pairs(COOLER, LLDS)
    pairs(COOLER, LLDS_COOLER)
    for one in (GRPO, COOLER):
        interval(one, LLDS)
    moves()
    for looked_at_later in (rungs, tied, displaced, picture, hours):
        looked_at_later()
    capped()
    alarm()


if __name__ == "__main__":
    main()
