import json
import os
import re
import signal
import subprocess
import sys

import pytest

from lldlib.recipes import SHUFFLED, WORLD, train_config
from lldlib.runs.folder import Run, RunWriter
from lldlib.train.demo import demo, table, verdict
from lldlib.train.run import describe, status

KEYS = [
    "arm",
    "seed",
    "peak_reward",
    "end_reward",
    "collapsed_at",
    "known_at",
    "alarm_at",
    "heldout_em",
    "seconds",
    "start_em",
    "best_em",
    "start_em_greedy",
    "heldout_em_greedy",
]


def test_the_demo_trains_both_arms_and_shows_them(micro, tmp_path):
    rows, runs, failures = demo(tmp_path, [0], 2, **micro)
    assert failures == {}
    assert {arm: [run.path.name for run in found] for arm, found in runs.items()} == {
        "grpo": ["grpo-seed0"],
        "llds": ["llds-seed0"],
    }
    assert [(row["arm"], row["seed"]) for row in rows] == [("grpo", 0), ("llds", 0)]
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert all(0 <= row["heldout_em"] <= 1 and row["seconds"] > 0 for row in rows)
    assert all(row["best_em"] == max(row["start_em"], row["heldout_em"]) for row in rows)
    assert json.loads((tmp_path / "summary.json").read_text()) == rows
    runs = [run for found in runs.values() for run in found]
    first = [run.metrics[0] for run in runs]
    # one start, one draw of questions and samples: the arms part only with the first update
    assert first[0]["reward/mean"] == first[1]["reward/mean"]
    assert first[0]["likelihood/incorrect"] == first[1]["likelihood/incorrect"]
    assert [run.config["loss"]["llds_coef"] > 0 for run in runs] == [False, True]
    # the same questions of both, asked from the start on
    asked = [[(row["step"], row["question"]) for row in run.questions] for run in runs]
    assert asked[0] == asked[1] and [step for step, _ in asked[0]] == [0] * 6 + [1] * 6 + [2] * 6
    assert runs[0].questions[:6] == runs[1].questions[:6]

    again, *_ = demo(tmp_path, [0], 2, **micro)  # all is done: nothing is trained again
    assert again == rows


@pytest.mark.long
def test_the_third_arm_is_grpo_at_its_own_best_rate(tmp_path):
    small = {"steps": 2, "problems": 4, "group_size": 2, "updates_per_batch": 2, "eval_every": 0}
    rows, runs, failures = demo(tmp_path, [0], 2, policy="half_taught", **small)
    assert failures == {}
    arms = {arm: found[0].config for arm, found in runs.items()}
    assert {arm: config["method"] for arm, config in arms.items()} == {
        "grpo": "grpo",
        "llds": "llds",
        "grpo_best_rate": "grpo",
    }
    assert [row["arm"] for row in rows] == list(arms)
    assert arms["grpo"]["lr"] == arms["llds"]["lr"] == SHUFFLED.demo_rate
    assert arms["grpo_best_rate"]["lr"] == SHUFFLED.best_rate != SHUFFLED.demo_rate


def test_the_verdict_is_in_plain_words():
    row = dict.fromkeys(KEYS, None) | {"start_em": 0.25, "seed": 0}
    died = row | {"arm": "grpo", "collapsed_at": 9, "best_em": 0.4, "heldout_em": 0.0}
    lived = row | {"arm": "grpo", "best_em": 0.5, "heldout_em": 0.5}
    other = row | {"arm": "llds", "best_em": 0.75, "heldout_em": 0.7}
    assert verdict([died, lived, other]).splitlines() == [
        "Questions it never saw, sampled answers: the start answered 25% of them.",
        "GRPO collapsed in 1 of 2 runs and ended at 25%, from 45% at its best.",
        "GRPO + LLDS did not collapse and ended at 70%.",
    ]
    late = [row | {"arm": "grpo", "collapsed_at": None, "heldout_em": em} for em in (0.2, 0.3)]
    assert verdict([died, *late]).splitlines()[1] == (
        "GRPO collapsed in 1 of 3 runs, sank under its start in 1 of 3 runs and ended at 17%, "
        "from 40% at its best."
    )
    assert verdict([row | {"arm": "grpo", "start_em": None}]) == ""


def test_runs_of_other_settings_are_left_alone(micro, tmp_path):
    for arm in ("grpo", "llds"):
        config = train_config(arm, 0, recipe=WORLD, **micro | {"steps": 7})
        RunWriter.create(tmp_path / f"{arm}-seed0", describe(config))
    rows, runs, failures = demo(tmp_path, [0], 1, **micro)
    assert rows == [] and runs == {}
    assert [path.name for path in failures] == ["grpo-seed0", "llds-seed0"]
    assert all("steps 7, not 2" in error for error in failures.values())


@pytest.mark.long
def test_ctrl_c_stops_both_arms_with_their_runs_intact(guesser, tmp_path):
    command = [sys.executable, "-m", "lldlib", "demo", "--out", str(tmp_path), "--policy", guesser]
    with subprocess.Popen(
        [*command, "--steps", "5000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        text = b""
        started = [re.compile(rb"%s-seed0:[^\r\n]*reward" % arm) for arm in (b"grpo", b"llds")]
        while not all(line.search(text) for line in started):
            piece = process.stderr.read1()
            assert piece, text
            text += piece
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        text += process.stderr.read()
        assert process.wait() == 130, text
    assert b"Traceback" not in text
    for run in (Run(tmp_path / f"{arm}-seed0") for arm in ("grpo", "llds")):
        done = len(run.metrics)
        assert 0 < done < 5000
        assert max(run.checkpoints)[0] == done  # nothing is to be done twice


def test_a_progress_line_says_where_a_run_stands():
    row = {"reward/mean": 0.25, "grad/norm": 9.0, "probe/logp": -1.2}
    assert status(row, "decay") == "reward 0.25  likelihood -1.20  decay (live)"
    assert status({}, "collapse", "with hindsight") == "collapse (with hindsight)"


def test_the_table_is_aligned():
    row = dict.fromkeys(KEYS, None) | {"arm": "grpo", "seed": 0, "peak_reward": 0.6875}
    lines = table([row, row | {"arm": "llds", "collapsed_at": 63}]).splitlines()
    titles = (
        "arm seed peak reward end reward collapsed at known at alarm at held-out EM seconds "
        "EM at start best EM greedy at start greedy EM"
    )
    assert lines[0].split() == titles.split()
    assert lines[1].split() == ["grpo", "0", "0.688", *"----------"]
    assert lines[2].split() == ["llds", "0", "0.688", "-", "63", *"--------"]
    assert len({len(line) for line in lines}) == 1
