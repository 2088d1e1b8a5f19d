"""What the notebooks of the course import, and the loop that notebook 3 writes."""

import csv
import math
import re
from pathlib import Path

import nbformat
import pytest
import torch
from helpers import script

from lldlib import course
from lldlib.losses import aggregate, group_advantages, preserved_mask
from lldlib.losses.llds import llds_parts
from lldlib.policy.load import load_policy
from lldlib.policy.score import score
from lldlib.recipes import train_config
from lldlib.seeds import seed_for
from lldlib.train.trainer import Trainer
from lldlib.world.registry import open_environment


def test_every_name_that_a_notebook_gets_is_there():
    assert len(set(course.__all__)) == len(course.__all__)
    assert all(hasattr(course, name) for name in course.__all__)


def test_recorded_runs_are_whole_and_in_order_of_seed():
    seeds = {arm: [run.config["seed"] for run in course.recorded(arm)] for arm in course.ARMS}
    assert seeds["grpo"] == seeds["llds"] == list(range(10))
    assert seeds["cooler"] == [0, 1, 3, 4, 5, 6, 7, 8, 9]  # seed 2 stands with the ladder of rates
    rates = {arm: {run.config["lr"] for run in course.recorded(arm)} for arm in course.ARMS}
    assert rates == {"grpo": {1e-3}, "llds": {1e-3}, "cooler": {2e-4}}


def test_the_demos_runs_are_of_one_seed():
    runs = {arm: course.demo(arm) for arm in course.ARMS}
    assert {arm: run.config["method"] for arm, run in runs.items()} == {
        "grpo": "grpo",
        "llds": "llds",
        "cooler": "grpo",
    }
    assert all(len(run.metrics) == 25 and run.config["seed"] == 0 for run in runs.values())


@pytest.mark.parametrize("of", [course.recorded, course.demo])
def test_an_unknown_arm_is_told(of):
    with pytest.raises(ValueError, match="no recorded arm 'ppo': use grpo, llds, cooler"):
        of("ppo")


def test_a_figure_is_shown_with_its_alt_text(monkeypatch):
    shown = []
    monkeypatch.setattr(course, "display", lambda *given, **more: shown.append((given, more)))
    course.show(course.Figure(), "an empty figure")
    ((picture,), more) = shown[0]
    assert picture["image/png"].startswith(b"\x89PNG")
    assert picture["text/plain"] == "an empty figure"
    assert more == {"raw": True, "metadata": {"image/png": {"alt": "an empty figure"}}}


def test_a_table_is_markdown(monkeypatch):
    shown = []
    monkeypatch.setattr(course, "display", lambda given: shown.append(given.data))
    course.table(("arm", 1), [("GRPO", 0.5)])
    assert shown == ["| arm | 1 |\n| --- | --- |\n| GRPO | 0.5 |"]


def test_a_replay_plays_the_recorded_run():
    lab = course.replay("cooler")
    lab.step(2)
    played, run = course.Run(lab.runs["GRPO, cooler"].out), course.demo("cooler")
    assert played.metrics == run.metrics[:2]


def test_transcripts_stand_under_their_names():
    records = course.demo("grpo").rollouts
    figure = course.transcript_figure({"at the start": records[0], "dead": records[-1]})
    titles = [ax.get_title(loc="left") for ax in figure.axes[:2]]
    assert titles[0].startswith("at the start: ") and titles[1].startswith("dead: ✗ no answer")
    shown = [len(figure.axes[0].texts), len(figure.axes[1].texts)]
    cut = course.transcript_figure({"at the start": records[0]}, longest=3).axes[0]
    assert len(cut.texts) < shown[0] and cut.texts[-1].get_text() == "..."


def test_the_graders_are_those_beside_the_notebooks():
    import exercises

    assert course.checks is exercises


def test_the_map_is_what_the_recorded_runs_say():
    for name in ("collect", "ends"):
        script(f"atlas/{name}.py")
    made = script("atlas/map.py")
    with (made.HERE / "map.csv").open(encoding="utf-8") as file:
        written = list(csv.reader(file))
    assert written == [list(map(str, row)) for row in [made.HEAD, *made.lines()]]
    grpo = [row for row in written if row[:6] == ["40", "0.0", "0.0002", "16", "20", "0.0"]]
    ends = [f"{float(row[8]):.2f}" for row in grpo[:3]]  # seeds 0 to 2, as on settings.md
    assert ends == ["0.78", "0.89", "0.93"]


def test_answers_come_in_groups_and_a_seed_fixes_them():
    policy = course.load_policy("half_taught")
    one, other = (course.roll_out(policy, planet=1, problems=3, seed=5) for _ in range(2))
    assert [e.group for e in one] == [0] * 5 + [1] * 5 + [2] * 5
    assert [e.turns for e in one] == [e.turns for e in other]


def test_the_planet_of_the_answers_can_be_searched():
    policy, planet = course.load_policy("half_taught"), course.open_planet(1)
    asked = {question.text for question in planet.questions}
    answers = course.roll_out(policy, planet=1, problems=2)
    assert {e.question.text for e in answers} <= asked
    (found,) = planet.tool.search(["largest neighbour Portugal"], 1)[0]
    assert found.text.startswith("The largest neighbour of Portugal is")


def test_without_a_mask_the_loss_is_of_two_authors():
    """Together they wrote all after the question; the agent was not taught to say passages."""
    policy = course.load_policy("half_taught")
    answers = course.roll_out(policy, planet=1, problems=6, seed=1)
    (_, mine, sure, _), (_, theirs, unsure, length) = course.gradients_by_author(policy, answers)
    assert int(mine[:-1]) + int(theirs[:-1]) == 100
    assert float(unsure) < -5 < float(sure) < 0 < float(length)


def test_a_third_batch_is_trained_without_an_answer_or_with_llds():
    """The answers are the same; what the updates do to them is not."""
    runs = [course.third_batch(), course.third_batch(without=[0]), course.third_batch(llds=0.5)]
    logps, changes = (
        [[getattr(t, key) for answer in run for t in answer.tokens] for run in runs]
        for key in ("logp", "change")
    )
    assert logps[0] == logps[1] == logps[2] and len(runs[0]) == 80
    assert changes[0] != changes[1] and changes[0] != changes[2]


def test_an_update_of_the_third_batch_can_be_inspected():
    """The last of its four: 20 answers, some of whose tokens LLDS charges."""
    update = course.third_update(3, llds=0.5)
    assert (update.batch, update.number, update.loss.llds_coef, len(update.rows)) == (2, 3, 0.5, 20)
    written = [t for row in update.rows for t in row.tokens if t.role == "action"]
    assert any(t.charge for t in written)


def test_a_run_of_ones_own_has_the_rate_the_method_and_the_limit_that_were_asked_for(monkeypatch):
    asked = []

    def told(trainer):
        asked.append(trainer.config)
        return {"reward/mean": 0.5}, []

    monkeypatch.setattr(Trainer, "step", told)
    assert course.train_at(1e-3, batches=1).reward.tolist() == [0.5]
    course.train_at(2e-3, llds=True, limit=0.01, batches=1)
    found = [(one.lr, one.method, one.move_limit, one.seed) for one in asked]
    assert found == [(1e-3, "grpo", 0.0, 20), (2e-3, "llds", 0.01, 20)]


# -- the loop of notebook 3 ------------------------------------------------------------------------

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks/03_train_it_yourself.ipynb"


def test_the_alarm_to_take_home_is_that_of_notebook_7():
    """Its `rings`, given the rewards so far, says at which batch `rings_at` rings."""
    (path,) = NOTEBOOK.parent.glob("07_*.ipynb")
    texts = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    (block,) = [x for x in re.findall(r"```python\n(.*?)```", texts, re.DOTALL) if "def rings" in x]
    exec(block, names := {})
    for run in [run for arm in course.ARMS for run in course.recorded(arm)]:
        rewards = run.column("reward/mean")
        hits = [t for t in range(len(rewards)) if names["rings"](rewards[: t + 1])]
        at = course.rings_at(run, 0.36, 3)
        assert hits[0] == at if hits else math.isnan(at)


def solution(name: str) -> str:
    """The folded solution of notebook 3 that defines `name`."""
    texts = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells]
    blocks = re.findall(r"```python\n(.*?)```", "\n".join(texts), re.DOTALL)
    return next(block for block in blocks if block.startswith(f"def {name}("))


def loop_cells() -> list[str]:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    return [cell.source for cell in cells if "loop" in cell.metadata.get("tags", [])]


def losses_of(names: dict) -> dict:
    """`names` with what a reader whose exercises are solved has in the end."""
    for name in ("my_grpo", "my_llds"):
        exec(solution(name), names)
    grpo, llds = names["my_grpo"], names["my_llds"]
    both = {"grpo_llds": lambda *given: grpo(*given) + 0.5 * llds(*given)}
    return names | {"grpo": grpo, "llds": llds} | both


@pytest.fixture(scope="module")
def loop() -> dict:
    """What the cells of notebook 3 that carry the tag "loop" define, and its solutions."""
    names = {name: getattr(course, name) for name in course.__all__}
    for source in loop_cells():
        exec(source, names)
    return losses_of(names)


def test_the_loop_has_thirty_lines_and_llds_ten_more():
    def lines(source: str) -> list[str]:
        return [x for x in source.splitlines() if x.strip() and not x.startswith(("from ", "#"))]

    *loop, helper = loop_cells()
    assert len(loop) == 3 and sum(len(lines(source)) for source in loop) <= 33
    helper = helper.split("\n\n\n")[0]  # without its example
    assert len(lines(helper)) + len(lines(solution("my_llds"))) == 10


@pytest.mark.parametrize(("method", "loss"), [("grpo", "grpo"), ("llds", "grpo_llds")])
def test_the_loop_and_the_package_make_one_policy_of_one_batch(loop, method, loss):
    """The same answers, the same order of rows: the same log-probs after the batch's updates."""
    settings = {"problems": 16, "kl_coef": 0.0, "warmup_batches": 0, "eval_every": 0}
    config = train_config(method, 4, "half_taught", probe_every=0, **settings)
    theirs, mine = load_policy("half_taught"), load_policy("half_taught")
    trainer = Trainer(config, theirs, open_environment(config))
    batch = trainer.collect()[1]
    with torch.no_grad():
        old = score(mine.model, batch, 1.0).logp
    A = loop["advantages"](batch.rewards, batch.group)
    torch.testing.assert_close(A, group_advantages(batch.rewards, batch.group, scale=True))
    draw = torch.Generator().manual_seed(seed_for("order", 4, 0))
    order = torch.randperm(len(A), generator=draw)
    adam = torch.optim.AdamW(mine.model.parameters(), lr=config.lr, weight_decay=0.0)
    loop["updates"](mine.model, adam, old, A, batch, loop[loss], order)
    trainer.step()
    with torch.no_grad():
        after = [score(policy.model, batch, 1.0).logp for policy in (mine, theirs)]
    assert (after[0] - old).abs().max() > 0.1  # the batch has moved the policy
    torch.testing.assert_close(*after, atol=1e-3, rtol=0)


def test_the_loops_llds_is_the_packages(loop):
    draw = torch.Generator().manual_seed(0)
    old, new = (-torch.rand(6, 9, generator=draw) for _ in range(2))
    mask = torch.rand(6, 9, generator=draw) < 0.6
    mask[:, 0] = False
    A = torch.tensor([1.0, -1.0, 0.0, 2.0, 0.5, -0.5])
    kept = preserved_mask(A, mask, "positive")
    parts = llds_parts(new, old, A, mask, gate="action", preserve="positive")
    theirs = aggregate(parts.penalty, kept, "token-mean")
    assert theirs > 0
    torch.testing.assert_close(loop["llds"](new, old, A, mask), theirs)


def test_a_term_of_ones_own_trains_in_the_same_loop():
    """`train_with` a term is the notebook's loop with that term, on as many questions."""
    names = {name: getattr(course, name) for name in course.__all__}
    exec("\n".join(loop_cells()).replace("problems=64", "problems=4"), names)
    names = losses_of(names)
    rewards = names["train"](names["grpo_llds"], 1e-3, 4, seed=1)
    own = course.train_with(names["llds"], 4, problems=4, seed=1)
    assert own == pytest.approx(rewards, abs=1e-6)
    assert len(set(rewards)) > 1
