"""SmolLM2 in the shuffled atlas: python data/atlas/smollm2.py

Prints the tables of smollm2.md from the runs in the folders smollm2, from the start that never
answers at two hops, and smollm2_two_hops, from the one that does at times; smollm2_card has the
latter's made again on a graphics card. A run that was ended by the rule, after three batches in a
row under OVER, has a reward of 0 in the batches that it was not given. Draws smollm2.png and
smollm2_ends.png.
"""

from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from lldlib.course import SMOLLM_COLOUR, arm_panels, smollm_runs
from lldlib.files import markdown_table
from lldlib.runs.folder import Run
from lldlib.show.style import save, style

HERE = Path(__file__).parent
FOLDERS = ("smollm2", "smollm2_two_hops", "smollm2_card")
BATCHES, WINDOW, OVER = 20, 5, 0.02
FALLEN = 0.3  # share of the best window under which the last one counts as dead
COST = "displacement/correct"  # nats that a batch's updates add to a correct response
GRPO, LLDS, COOLER = "GRPO, 3e-4", "GRPO + LLDS, 3e-4", "GRPO, 1e-4"  # names in the course
LLDS_COOLER = "GRPO + LLDS, 1e-4"
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
    return name + ", zero updates skipped" * run.config["skip_zero_updates"]


def rewards(run: Run) -> list[float]:
    """The mean reward of each batch, 0 in those that a dead run was not given."""
    found = run.column("reward/mean")
    ended = max(found[-3:]) < OVER
    return found + [0.0] * (BATCHES - len(found)) if ended else found


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


def ends(run: Run, to: int = 60) -> list[float]:
    """Reward of the last five of `to` batches, mean of the exams; 0 after a death."""
    every = run.config["eval_every"]
    exams = (present(run, f"eval/heldout_{key}") for key in ("em", "em_greedy"))
    scores = (sum(found[: to // every]) / (to // every) for found in exams)
    return [sum(run.column("reward/mean")[to - WINDOW : to]) / WINDOW, *scores]


def pairs(start: str, first: str, second: str) -> None:
    """The numbers of the seventh, ninth and tenth rules: two arms from the start that is at times
    right."""
    measures = ("reward, batches 55 to 59", "held out, sampled, mean of the exams", "greedy")
    runs = smollm_runs(start)
    rows = []
    for one, other in zip(runs[first], runs[second], strict=True):
        assert one.config["seed"] == other.config["seed"]
        mine, theirs = ends(one), ends(other)
        row = [f"{v:.2f}" for v in mine + theirs]
        row += [f"{b - a:+.2f}" for a, b in zip(mine, theirs, strict=True)]
        rows.append([str(one.config["seed"]), *row])
    head = ["seed", *measures * 2, *(f"difference: {name}" for name in measures)]
    print(f"\n{start}: {first}, then {second}\n\n{markdown_table(head, rows)}")


def draw() -> None:
    """From the better start: right answers' likelihood, reward, held-out score, endless answers."""
    measures = {"change of right\nanswers (nats)": COST, "reward": "reward/mean"}
    measures |= {"held out": "eval/heldout_em", "share of\nendless answers": "stop/token_budget"}
    curves = {name: partial(Run.series, key=key) for name, key in measures.items()}
    runs = smollm_runs("two_hops")
    shown = {name: runs[name] for name in (GRPO, LLDS, COOLER)}
    save(arm_panels(shown, curves, 6.2, squeezed=1), HERE / "smollm2.png")


def draw_ends() -> None:
    """All runs from the better start, a digit for each seed: reward of the last five, held out."""
    figure = Figure(figsize=(8.5, 3.2), layout="constrained")
    arms = (GRPO, LLDS, COOLER, LLDS_COOLER)
    runs = [smollm_runs(start) for start in ("two_hops", "card")]
    titles = ("reward, batches 55 to 59", "held out, sampled, after 60 batches")
    for ax, title, exam in zip(figure.subplots(1, 2), titles, (False, True), strict=True):
        for place, name in enumerate(arms):
            for run in [run for found in runs for run in found.get(name, ())]:
                score = 0.0 if len(run.metrics) < 60 else present(run, "eval/heldout_em")[-1]
                value = score if exam else ends(run)[0]
                seed, colour = run.config["seed"], SMOLLM_COLOUR[name]
                across = place + 0.13 * (seed - 2.5)
                ax.plot(
                    across, value, marker=f"${seed}$", color=colour, markersize=7, clip_on=False
                )
        style(ax, "", "").set_title(title, fontsize=11)
        ax.set(ylim=(0, 1), xlim=(-0.5, 3.5))
        ax.set_xticks(range(4), [name.replace(", ", "\n") for name in arms])
    save(figure, HERE / "smollm2_ends.png")


def main() -> None:
    """The figures, then the tables of all starts."""
    draw()
    draw_ends()
    for folder in FOLDERS:
        tables(folder)
    for start in ("two_hops", "card"):
        pairs(start, GRPO, LLDS)
        pairs(start, COOLER, LLDS)
    pairs("card", COOLER, LLDS_COOLER)


if __name__ == "__main__":
    main()
