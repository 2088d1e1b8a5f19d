"""The doctor on logs made here: every format, every mending, every verdict, every pattern."""

import itertools
import json
import logging
import math
import os

import numpy as np
import pytest
from matplotlib.text import Text

from lldlib.doctor.judge import judge
from lldlib.doctor.judging.warnings import evidence, useful
from lldlib.doctor.live import (
    Collapsed,
    Watcher,
    diagnose_command,
    follow,
    parse_map,
    trl_callback,
    watch_tracking,
)
from lldlib.doctor.page import (
    as_html,
    as_markdown,
    as_object,
    as_text,
    diagnose,
    diagnose_rows,
    runs_figure,
)
from lldlib.doctor.readers import Unreadable, number, read_logs
from lldlib.doctor.reading.series import run_of
from lldlib.doctor.reading.signals import GUESSED, SIGNALS, read_name

STEPS = 60


def rows(reward, **others):
    """One row a step; a number stands for a constant series, a callable for one of the step."""
    out = []
    for t in range(len(reward)):
        row = {"step": t + 1, "reward": float(reward[t])}
        row |= {k: float(v(t)) if callable(v) else float(v) for k, v in others.items()}
        out.append(row)
    return out


def noisy(mean, spread=0.03, seed=0):
    chance = np.random.default_rng(seed)
    return np.asarray(mean, dtype=float) + spread * chance.standard_normal(len(mean))


RISES = noisy(np.linspace(0.2, 0.8, STEPS))
FALLS = noisy(np.where(np.arange(STEPS) < 40, np.linspace(0.2, 0.9, STEPS), 0.02))
FLAT = noisy(np.full(STEPS, 0.4))
SLIDES = noisy(np.concatenate([np.linspace(0.3, 0.8, 25), np.linspace(0.8, 0.45, 35)]))


def verdict_of(reward, **others):
    return diagnose_rows(rows(reward, **others)).judged.verdict


# -- formats ---------------------------------------------------------------------------------------


def verl_line(t, value, prefix="", wrap="{}"):
    parts = {"critic/score/mean": wrap.format(value), "actor/entropy": "0.5", "actor/lr(1e-4)": 2}
    return f"{prefix}step:{t} - " + " - ".join(f"{k}:{v}" for k, v in parts.items())


RAY = "\x1b[36m(TaskRunner pid=12, ip=10.0.0.1)\x1b[0m "


def text_of(kind, values):
    lines = []
    for t, value in enumerate(values, start=1):
        trl = {"loss": 0.1, "reward": round(float(value), 6), "epoch": t / 100}
        lines += {
            "verl": [verl_line(t, value)],
            "ray": ["noise", verl_line(t, value, RAY)],
            "numpy": [verl_line(t, value, wrap="np.float64({})")],
            "bar": [f"Training:  {t}%|#  | {t}/99\r" + verl_line(t, value)],
            "lines": [f"step:{t} - actor/entropy:0.5", f" - critic/score/mean:{value}"],
            "trl": [f" {t}%|## | {t}/60 [00:01<1:00]{trl}"],
            "strings": [str({k: str(v) for k, v in trl.items()})],
            "percent": [f"{{'reward': '{100 * value}%', 'global_step/max_steps': '{t}/60'}}"],
            "pretty": json.dumps(trl, indent=1).split("\n"),
            "loose": [f"step {t} | reward={value} kl: 0.01"],
            "jsonl": [json.dumps({"step": t, "mean_reward": float(value)})],
        }[kind]
    return "\n".join(lines) + "\n"


KINDS = "verl ray numpy bar lines trl strings percent pretty loose jsonl".split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_log_is_read_however_it_was_written(tmp_path, kind, encoding):
    file = tmp_path / "run.log"
    file.write_text(text_of(kind, RISES), encoding=encoding)
    run = run_of(read_logs(file)[0])
    assert run.signals["reward"] == pytest.approx(RISES, abs=1e-5)
    assert run.steps.tolist() == list(range(1, STEPS + 1))


@pytest.mark.parametrize("mark", [",", "\t", ";"])
def test_a_table_is_read_and_its_cut_last_line_is_not(tmp_path, mark):
    file = tmp_path / "run.csv"
    lines = [mark.join(("actor_grad_norm", "critic_score_mean", "training_global_step"))]
    lines += [mark.join(("1.0", str(v), str(t + 1))) for t, v in enumerate(RISES)]
    file.write_text("\n".join(lines) + f"\n1.0{mark}0.0001{mark}6")
    run = run_of(read_logs(file)[0])
    assert run.steps[-1] == STEPS and run.signals["reward"][:60] == pytest.approx(RISES)


@pytest.mark.parametrize(
    ("last", "seldom", "read"),
    [("0.75", False, True), ("0.7", False, False), ("", False, False), ("", True, True)],
)
def test_a_last_line_without_its_end_counts_unless_its_number_may_be_cut(
    tmp_path, last, seldom, read
):
    file = tmp_path / "run.csv"
    cells = ["" if seldom and t % 20 else f"{v:.2f}" for t, v in enumerate(RISES)]
    lines = ["step,reward,eval_acc", *(f"{t + 1},{v:.2f},{cells[t]}" for t, v in enumerate(RISES))]
    file.write_text("\n".join(lines) + f"\n{STEPS + 1},0.5,{last}")
    run = run_of(read_logs(file)[0])
    assert len(run.scored) == STEPS + read and run.steps[-1] == STEPS + read


def test_a_chart_export_holds_several_runs(tmp_path):
    file = tmp_path / "chart.csv"
    names = ("Step", "a - critic/score/mean", "a - critic/score/mean__MIN", "b - critic/score/mean")
    body = [f'"{t}","{v}","0","{w}"' for t, (v, w) in enumerate(zip(RISES, FALLS, strict=True))]
    file.write_text("\n".join([",".join(f'"{n}"' for n in names), *body]) + "\n")
    found = diagnose(file)
    assert [one.judged.verdict for one in found] == ["healthy", "collapsed"]


def test_trainer_state_and_what_is_left_of_a_broken_one(tmp_path):
    whole = json.dumps({"global_step": STEPS, "log_history": rows(RISES)}, indent=2)
    file = tmp_path / "trainer_state.json"
    file.write_text(whole)
    assert diagnose(tmp_path)[0].run.signals["reward"] == pytest.approx(RISES)
    file.write_text(whole[: len(whole) // 2])
    half = diagnose(file)[0]
    assert 20 < len(half.run.steps) < 35 and half.run.notes


def test_wandb_cut_lines_lose_what_was_cut_and_nothing_else(tmp_path):
    long = verl_line(2, 0.5) + " - " + " - ".join(f"val/x{i}:0.123456789" for i in range(400))
    file = tmp_path / "output.log"
    file.write_text(
        "\n".join([verl_line(1, 0.4), long[:4095], verl_line(3, 0.6), "step:4 - critic"])
    )
    log = read_logs(file)[0]
    assert list(log.columns["critic/score/mean"])[:3] == [0.4, 0.5, 0.6]


def test_run_folders_and_folders_of_logs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        lines = [json.dumps({"step": t, "reward/mean": v}) for t, v in enumerate(RISES)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    cells = [{"seed": n, "lr": 1e-3, "end_reward": v} for n, v in enumerate(FALLS)]
    (tmp_path / "sweep.json").write_text(json.dumps(cells))  # a row a run, no log
    found = diagnose(tmp_path)
    assert [(one.run.name, one.run.format) for one in found] == [
        ("a", "lldlib run folder"),
        ("b", "lldlib run folder"),
    ]


def test_of_a_trainers_checkpoints_the_last_one_is_the_run(tmp_path):
    for step in (20, 100, 60):
        state = {"log_history": rows(RISES)[: step * STEPS // 100]}
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "checkpoint-200").mkdir()  # its state is not written yet
    (found,) = diagnose(tmp_path)
    assert found.run.name == "checkpoint-100" and len(found.run.steps) == STEPS


def test_event_files_of_one_folder_are_one_run_unless_they_begin_anew(tmp_path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    event_file(folder, 9, {t: {"reward": FALLS[t]} for t in range(35)})
    event_file(folder, 10, {t: {"reward": FALLS[t]} for t in range(25, STEPS)})
    event_file(folder, 11, {t: {"eval/reward": 0.5} for t in range(0, STEPS, 10)})
    (found,) = diagnose(folder)
    assert found.judged.verdict == "collapsed" and found.run.signals["reward"] == pytest.approx(
        FALLS
    )
    assert found.run.resumed == (25.0,) and np.isfinite(found.run.heldout).sum() == 6
    event_file(folder, 12, {t: {"reward": RISES[t]} for t in range(STEPS)})
    assert [one.judged.verdict for one in diagnose(folder)] == ["collapsed", "healthy"]


def event_file(folder, time, scalars):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / f"{time}"))
    for step, values in scalars.items():
        said = [Summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        writer.add_event(Event(step=step, wall_time=time + step, summary=Summary(value=said)))
    writer.close()
    (file,) = (folder / f"{time}").iterdir()
    file.rename(folder / f"events.out.tfevents.{time}.host.1.0")
    file.parent.rmdir()


def test_a_run_folder_with_one_batch_has_too_few_rows(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "reward/mean": 0.25}\n')
    (found,) = diagnose(tmp_path)
    assert found.run.format == "lldlib run folder" and found.run.steps.tolist() == [0.0]
    said = "Cannot say: the log has 1 row with a reward, and a verdict needs 20."
    assert found.judged.sentence == said and said.split(": ")[0] in as_html(found)


@pytest.mark.parametrize(
    ("broken", "notes"),
    [((), []), ((9,), ["1 broken line left out"]), ((9, 20, 31), ["3 broken lines left out"])],
)
def test_broken_lines_are_told(tmp_path, broken, notes):
    lines = text_of("jsonl", RISES).split("\n")[:-1]
    for at in broken:
        lines[at] = lines[at][:12]
    file = tmp_path / "run.jsonl"
    file.write_text("\n".join(lines) + '\n\n{"step": 61, "mean_rew')  # it is still written to
    run = diagnose(file)[0].run
    assert len(run.steps) == STEPS - len(broken) and run.notes == notes


@pytest.mark.parametrize(
    ("text", "value"),
    [("np.float64(0.5)", 0.5), ("12.5%", 0.125), ("2/4389", 2), ("1e-3", 0.001), ("'0.5'", 0.5)],
)
def test_numbers(text, value):
    assert number(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["np.float64(0.", "0.5\0", "", "abc", "1.2.3", None, True])
def test_what_is_no_number(text):
    assert number(text) is None


def test_a_file_without_a_log_is_refused_in_one_line(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("apples,pears\n1,2\n3,4\n")
    with pytest.raises(Unreadable, match=r"looked for a reward.*apples, pears.*--map reward="):
        read_logs(file)
    with pytest.raises(Unreadable, match="no such file"):
        read_logs(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for pipe in (tmp_path / "pipe", "-"):
        with pytest.raises(Unreadable, match="a pipe cannot be read; write it to a file first"):
            read_logs(pipe)
    (tmp_path / "empty.log").write_text("")
    with pytest.raises(Unreadable, match="no rows"):
        read_logs(tmp_path / "empty.log")


def test_columns_can_be_named(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("at,apples\n" + "\n".join(f"{t},{v}" for t, v in enumerate(RISES)) + "\n")
    found = diagnose(file, parse_map(["reward=apples,step=at"]))[0]
    assert found.judged.verdict == "healthy" and found.run.steps[-1] == STEPS - 1
    with pytest.raises(ValueError, match="no such signal"):
        diagnose(file, {"apples": "fruit"})
    with pytest.raises(ValueError, match="SIGNAL=COLUMN"):
        parse_map(["apples"])


# -- the table of signals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "signal"),
    [
        ("critic/score/mean", "reward"),
        ("critic_score_mean", "reward"),
        ("train/reward", "reward"),
        ("actor_train/grad_norm", "grad_norm"),
        ("completions/mean_length", "length"),
        ("actor/entropy_loss", "entropy"),
        ("length/cap_hit_rate", "clipped"),
        ("kl_divergence", "kl"),
        ("completions / mean_length", "length"),
        ("reward_avg", "reward"),
        ("entropy_avg", "entropy"),
        ("avg_kl", "kl"),
    ],
)
def test_names(column, signal):
    assert (signal, True) in [(found, rank < GUESSED) for found, rank in read_name(column).signals]


def test_the_critic_is_not_the_policy_and_a_unit_in_a_name_counts():
    assert read_name("critic/grad_norm").signals == ()
    assert read_name("actor/lr(1e-4)").scale == 1e-4
    assert read_name("val-core/nq/reward/mean@1").heldout is not None
    assert read_name("rewards/format_reward/mean").part == "format_reward"


def test_every_signal_is_named_once_in_its_row():
    for entry in SIGNALS.values():
        assert len(set(entry.names)) == len(entry.names)


def test_groups_that_are_all_wrong_are_not_all_groups_of_one_reward():
    assert "no_contrast" not in dict(read_name("group_reward_all_zero_rate").signals)


def test_score_is_read_and_not_the_reward_with_its_penalty():
    table = [
        {"step": t, "critic/score/mean": v, "critic/rewards/mean": 5 - v}
        for t, v in enumerate(RISES)
    ]
    assert diagnose_rows(table).run.columns["reward"] == "critic/score/mean"


# -- mending ---------------------------------------------------------------------------------------


def test_a_resume_keeps_the_later_values():
    first = rows(np.full(30, 0.1))
    again = [{"step": t, "reward": 0.2} for t in range(21, 51)]
    run = diagnose_rows(first + again).run
    assert run.steps.tolist() == list(range(1, 51))
    assert run.signals["reward"].tolist() == [0.1] * 20 + [0.2] * 30
    assert run.resumed == (21.0,) and run.notes == ["resumed at step 21: 10 rows were done again"]


def test_rows_that_were_done_again_are_those_that_were_read_and_not_used():
    again = [{"step": t, "reward": 0.2} for t in range(21, 51)]
    checks = [{"step": 30, "eval/reward": 0.1}]
    run = diagnose_rows(rows(np.full(30, 0.1)) + checks + again + again[-1:]).run
    assert run.notes == ["resumed at step 21: 10 rows were done again"]
    assert diagnose_rows(rows(np.full(30, 0.1)) + again[9:]).run.notes == []  # step 30 twice
    third = [{"step": t, "reward": 0.3} for t in (29, 30, *range(51, 61))]
    run = diagnose_rows(rows(np.full(30, 0.1)) + again + third).run
    assert run.read - len(run.scored) == 10 + 22 and "32 rows" in run.notes[0]


def test_the_step_of_the_training_counts_and_not_that_of_the_history(tmp_path):
    """W&B counts all rows that were logged; a column that jumps back and forth is no step."""
    lines = ["_step,train/global_step,rollout/step,train/reward"]
    for t, v in enumerate(RISES):
        lines += [f"{4 * t},,{t},", f"{4 * t + 1},{10 * t},{t % 7},{v}"]
    file = tmp_path / "history.csv"
    file.write_text("\n".join(lines) + "\n")
    (found,) = diagnose(file)
    assert found.run.steps[found.run.scored].tolist() == list(range(0, 10 * STEPS, 10))
    assert f"steps 0 to {10 * (STEPS - 1)} (train/global_step)" in as_text(found)


def test_the_evaluation_before_the_training_keeps_its_step(tmp_path):
    file = tmp_path / "run.log"
    lines = ["step:0 - val/test_score/gsm8k:0.1"]
    lines += [f"step:{t} - training/global_step:{t} - critic/score/mean:{t}" for t in range(1, 30)]
    file.write_text("\n".join(lines) + "\n")
    run = diagnose(file)[0].run
    assert run.steps.tolist() == list(range(30)) and run.heldout[0] == 0.1


def test_of_two_runs_in_one_file_the_last_long_one_is_judged():
    both = diagnose_rows(rows(FALLS) + rows(RISES))
    assert both.judged.verdict == "healthy" and "2 runs" in both.run.notes[0]
    stub = diagnose_rows(rows(FALLS) + rows(RISES)[:5])
    assert stub.judged.verdict == "collapsed"


def test_a_run_whose_first_rows_stand_twice_is_one_run():
    twice = diagnose_rows(rows(RISES)[:40] + rows(RISES))
    assert "the first 40 rows stand twice: taken once" in twice.run.notes
    assert len(twice.run.steps) == STEPS and not any("holds" in note for note in twice.run.notes)
    other = diagnose_rows(rows(FALLS)[:40] + rows(RISES))
    assert any("the file holds 2 runs" in note for note in other.run.notes)


def test_steps_that_start_anew_in_each_epoch_are_one_run():
    table = [{"step": t % 20, "epoch": t // 20, "reward": float(v)} for t, v in enumerate(RISES)]
    assert len(diagnose_rows(table).run.steps) == STEPS


def test_values_that_stand_ten_times_are_taken_once():
    run = diagnose_rows(rows(np.repeat(RISES, 10))).run
    assert len(run.steps) == STEPS and "10 times" in run.notes[0]


def test_zero_in_every_row_is_not_measured_and_shares_may_be_percent():
    run = diagnose_rows(rows(RISES, entropy=0, **{"completions/clipped_ratio": 40})).run
    assert "entropy" not in run.signals and "not measured" in run.notes[0]
    assert run.signals["clipped"].max() == pytest.approx(0.4)


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "verdict"),
    [
        (RISES, "healthy"),
        (FALLS, "collapsed"),
        (FLAT, "stagnating"),
        (SLIDES, "degrading"),
        (np.zeros(STEPS), "stagnating"),
        (np.ones(STEPS), "healthy"),
        (RISES[:19], "unknown"),
        (RISES - 1, "healthy"),
        (RISES - 0.5, "healthy"),
        (10 * FALLS, "collapsed"),
        (np.concatenate([noisy(np.full(11, -0.8), 0.05), np.full(50, -1.0)]), "collapsed"),
    ],
)
def test_verdicts(reward, verdict):
    assert verdict_of(reward) == verdict


@pytest.mark.parametrize(
    "entropy",
    [lambda t: 1 - t / 61, lambda t: 0.5 + t / 40, lambda t: 0.001],
    ids=["falls", "rises", "is 0"],
)
def test_a_run_that_learns_is_healthy_whatever_its_entropy(entropy):
    found = diagnose_rows(rows(RISES, entropy=entropy))
    assert found.judged.verdict == "healthy" and not found.patterns and not found.warnings


def test_a_wild_policy_is_told_under_a_good_verdict_and_no_more():
    found = diagnose_rows(rows(RISES, entropy=lambda t: 0.5 + t / 15, kl=lambda t: 0.01 + t / 4))
    assert found.judged.verdict == "healthy" and not found.advice
    assert [p.key for p in found.patterns] == ["entropy up", "kl"]


def test_where_it_collapsed():
    assert judge(diagnose_rows(rows(FALLS)).run).collapsed_at == 41


@pytest.mark.parametrize("living", [300, 1000])
def test_a_long_run_dies_in_ten_rows(living):
    rise = noisy(np.linspace(0.2, 0.6, living), 0.05)
    for dead, verdict in ((5, "healthy"), (10, "collapsed"), (20, "collapsed")):
        judged = diagnose_rows(rows(np.append(rise, noisy(np.full(dead, 0.02), 0.01)))).judged
        assert judged.verdict == verdict, dead
    assert judged.collapsed_at == living + 1
    assert "(mean of the last 10 rows): 97 % of it is lost" in judged.evidence[0]


def test_a_fall_on_a_high_base_is_no_less_a_fall():
    hill = np.concatenate([np.linspace(0, 0.3, 30), np.linspace(0.3, 0.02, 30)])
    for base in (1.0, 2.0):
        judged = diagnose_rows(rows(noisy(base + hill, 0.02))).judged
        assert (judged.verdict, judged.rule) == ("degrading", "unlearned")
        assert "% of what it had learned and has not come back" in judged.sentence
    sinks = noisy(np.concatenate([np.linspace(0.2, 0.62, 30), np.full(30, 0.51)]), 0.02)
    judged = diagnose_rows(rows(sinks)).judged
    assert judged.verdict == "healthy" and "lost 13 % of its best since" in judged.sentence
    falls = diagnose_rows(rows(noisy(np.where(np.arange(STEPS) < 30, 1.0, 0.9), 0.02))).judged
    assert falls.verdict == "stagnating" and "neither" not in falls.sentence
    assert "best 1 (" in falls.evidence[1] and "now 0.895" in falls.evidence[1]


@pytest.mark.parametrize(("reward", "verdict"), [(RISES, "healthy"), (FALLS, "collapsed")])
def test_one_glitch_changes_no_verdict(reward, verdict):
    reward = reward.copy()
    reward[[15, 30]] = -50, 40
    found = diagnose_rows(rows(reward))
    assert found.judged.verdict == verdict and len(found.run.scored) == STEPS - 2
    assert any("2 rows" in note and "-50 at step 16" in note for note in found.run.notes)
    seldom = np.zeros(STEPS)
    seldom[20] = 1.0  # the one success of a run is no glitch
    assert len(diagnose_rows(rows(seldom)).run.scored) == STEPS


@pytest.mark.parametrize("length", [300, 900])
def test_noise_alone_is_no_fall(length):
    for seed in range(20):
        assert verdict_of(noisy(np.full(length, 0.4), 0.1, seed)) != "degrading"


@pytest.mark.parametrize(
    ("first", "share", "over"),
    [(-0.2, 40, " (counted from its floor, -0.2)"), (0.0, 50, "")],  # 0.4 of 1.0, and of 0.8
)
def test_a_share_that_is_lost_names_its_floor(first, share, over):
    judged = diagnose_rows(rows([first] * 5 + [0.8] * 25 + [0.4] * 30)).judged
    sentence = f"Degrading: the reward lost {share} % of its best{over} and has not come back."
    assert judged.sentence == sentence
    assert judged.evidence[0].endswith(f": {share} % of it{over} is lost")


def test_without_a_reward_nothing_is_said():
    found = diagnose_rows([{"step": t, "loss": 1.0, "grad_norm": 1.0} for t in range(50)])
    assert found.judged.verdict == "unknown" and "no reward" in found.judged.sentence


@pytest.mark.parametrize("seed", range(200))
def test_shuffled_scores_never_collapse(seed):
    scores = np.array([RISES, FALLS, SLIDES, FLAT])[seed % 4].copy()
    np.random.default_rng(seed).shuffle(scores)
    assert verdict_of(scores) != "collapsed"


@pytest.mark.parametrize("size", range(10, STEPS, 7))
def test_a_cut_log_gets_the_verdict_of_its_prefix(tmp_path, size):
    file = tmp_path / "run.log"
    file.write_text("\n".join(text_of("verl", FALLS).split("\n")[:size]) + "\n")
    whole = diagnose_rows([{"step": t + 1, "critic/score/mean": v} for t, v in enumerate(FALLS)])
    assert judge(run_of(read_logs(file)[0])) == judge(whole.run.cut(size))


def test_a_held_out_score_outweighs_the_training_reward():
    table = rows(RISES)
    for t in range(0, STEPS, 5):
        table[t]["eval_reward"] = 0.6 if t < 30 else 0.1
    found = diagnose_rows(table)
    assert found.judged.rule == "held-out fall" and found.judged.verdict == "degrading"
    assert "held-out" in [p.key for p in found.patterns]


def test_a_held_out_score_that_loses_a_third_is_no_healthy_run():
    for last, verdict in ((0.4, "degrading"), (0.5, "healthy")):
        table = rows(RISES)
        for t in range(0, STEPS, 5):
            table[t]["eval_reward"] = (0.6 if t < 30 else last) + 0.01 * (-1) ** t
        found = diagnose_rows(table)
        assert found.judged.verdict == verdict
        assert [a.do[:4] for a in found.advice][:1] == (["Keep"] if last == 0.4 else [])


@pytest.mark.parametrize(
    ("part", "verdict"), [("correctness", "degrading"), ("brevity", "healthy")]
)
def test_a_part_for_right_answers_that_falls_is_no_healthy_run(part, verdict):
    falls, up = noisy(np.linspace(0.5, 0.1, STEPS), 0.02), noisy(np.linspace(0.1, 0.8, STEPS), 0.02)
    parts = {f"rewards/{part}": lambda t: falls[t], "rewards/style": lambda t: up[t]}
    found = diagnose_rows(rows(falls + up, **parts))
    assert found.judged.verdict == verdict and "parts" in [p.key for p in found.patterns]
    assert bool(found.advice) == (verdict == "degrading")


@pytest.mark.parametrize(("until", "verdict"), [(STEPS, "healthy"), (40, "collapsed")])
def test_a_reward_that_falls_while_the_held_out_score_rises(until, verdict):
    table = rows(noisy(np.where(np.arange(STEPS) < 30, 0.8, 0.3)))
    for t in range(0, until, 4):  # scores of before the fall say nothing of it
        table[t]["eval_reward"] = 0.3 + 0.004 * t + 0.003 * (-1) ** (t // 4)
    judged = diagnose_rows(table).judged
    assert judged.verdict == verdict
    assert any(line.startswith("held-out score (eval_reward): 0.3") for line in judged.evidence)
    assert any("64 % of it is lost" in line for line in judged.evidence)


def test_a_held_out_score_stands_under_every_verdict():
    table = rows(FLAT)
    for t, value in ((0, 0.05), (20, 0.1), (40, 0.28)):
        table[t]["eval_reward"] = value
    line = "held-out score (eval_reward): 0.05 in the first of 3 evaluations, 0.28 in the last"
    assert diagnose_rows(table).judged.evidence[-1] == line


def test_what_it_was_just_before_it_died():
    judged = diagnose_rows(rows(np.append(np.linspace(0.2, 0.8, 40), np.zeros(20)))).judged
    assert judged.rule == "dead floor" and "just before it was 0.762" in judged.evidence[0]


# -- patterns --------------------------------------------------------------------------------------


def dead(before, after, at=40):
    return lambda t: before if t < at else after


@pytest.mark.parametrize(
    ("key", "signals"),
    [
        ("entropy up", {"entropy": dead(0.5, 3.0)}),
        ("entropy down", {"entropy": lambda t: max(0.9 - t / 40, 0.001)}),
        ("length", {"completion_length": dead(100, 900, 38)}),
        ("short", {"completion_length": dead(300, 1)}),
        ("format", {"format_rate": dead(0.95, 0.1)}),
        ("spikes", {"grad_norm": lambda t: 50.0 if t in (33, 36) else 1.0}),
        ("numbers", {"grad_norm": lambda t: math.inf if t == 38 else 1.0}),
        ("kl", {"kl": dead(0.05, 4.0)}),
        ("displacement", {"displacement/correct_token": lambda t: -0.05}),
        ("kl in reward", {"critic/rewards/mean": dead(-13.0, -1.3)}),
        (
            "tool",
            {
                "actor/entropy": 0.4,
                "timing_s/gen": dead(4.0, 15.0),
                "num_turns/mean": dead(3.0, 2.0),
            },
        ),
    ],
)
def test_patterns_of_a_fall(key, signals):
    found = diagnose_rows(rows(FALLS, **signals))
    assert key in [p.key for p in found.patterns]
    assert found.advice and all(a.source and a.evidence and a.price for a in found.advice)


@pytest.mark.parametrize(
    ("key", "reward", "signals"),
    [
        ("no signal", np.zeros(STEPS), {"reward_std": 0, "grad_norm": 0}),
        ("broken start", FLAT, {"completions/clipped_ratio": 1.0, "entropy": 3.4}),
        ("hardly moves", FLAT, {"kl": 0.0005}),
        ("no signal", FLAT, {"kl": 0.0005, "frac_reward_zero_std": 0.97}),
        ("reference", FLAT, {"kl": 1.1}),
    ],
)
def test_patterns_of_a_run_that_stagnates(key, reward, signals):
    assert key in [p.key for p in diagnose_rows(rows(reward, **signals)).patterns]


def test_a_tool_that_died_hides_what_it_caused():
    found = diagnose_rows(
        rows(
            FALLS,
            **{
                "actor/entropy": 0.4,
                "timing_s/gen": dead(4, 15),
                "num_turns/mean": dead(3, 2),
                "completion_length": dead(300, 20),
            },
        )
    )
    assert [p.key for p in found.patterns] == ["tool"] and not found.warnings
    warned = " ".join(as_text(found).partition("First warning")[2].split())
    assert "not looked for: the tool died" in warned
    assert "rang before" not in warned and "has warned" not in warned


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ({"displacement/correct_token": lambda t: -0.2 if t > 30 else 0.01}, "rang before"),
        ({"displacement/correct_token": lambda t: 0.01}, "none of the warnings rang"),
        ({"actor/entropy": 0.4}, "no series of this log has warned"),
    ],
    ids=["rang", "silent", "unwatched"],
)
def test_first_warning_says_what_could_warn(signals, said):
    text = as_text(diagnose_rows(rows(FALLS, **signals)))
    assert said in " ".join(text.partition("First warning")[2].split())


def test_only_warnings_that_beat_chance_are_useful():
    """Each kept one rang before falls more often than in runs that lived, by 2 standard errors."""
    assert [warning.name for warning in useful()] == ["updates cost"]
    kept = evidence()["warnings"]["updates cost"]
    rates = kept["warned"] / kept["fell"], kept["false"] / kept["lived"]
    spread = sum(
        rate * (1 - rate) / count
        for rate, count in zip(rates, (kept["fell"], kept["lived"]), strict=True)
    )
    assert rates[0] - rates[1] > 2 * math.sqrt(spread)


@pytest.mark.parametrize("turns", [{}, {"num_turns/mean": 2}], ids=["no turns", "two each"])
def test_no_tool_died_where_there_is_none(turns):
    signals = {"entropy": 0.4, "timing_s/gen": dead(4, 15), "completion_length": dead(300, 900)}
    found = diagnose_rows(rows(FALLS, **signals, **turns))
    assert [p.key for p in found.patterns] == ["length"]


def test_a_fall_in_one_step_of_a_policy_that_does_not_move_is_no_matter_of_its_rate():
    still = {"entropy": 0.4, "grad_norm": 1.0}
    found = diagnose_rows(rows(FALLS, **still, response_length=dead(300, 200)))
    assert [p.key for p in found.patterns] == ["one step"]
    assert [a.do[:33] for a in found.advice] == ["Look at the tool and the reward f"]
    for moves in ({"entropy": dead(0.4, 4)}, {"grad_norm": dead(1, 9)}, {"entropy": math.nan}):
        found = diagnose_rows(rows(FALLS, **still | moves))
        assert "one step" not in [p.key for p in found.patterns]
        assert found.advice[0].do.startswith("Lower the learning rate")


def test_advice_on_the_learning_rate_quotes_the_one_in_the_log():
    moves = {"entropy": dead(0.4, 4), "grad_norm": 1.0}
    quoted = [
        a.do
        for a in diagnose_rows(
            rows(FALLS, **moves, **{"actor/lr": lambda t: 2e-6 / (t + 1)})
        ).advice
    ]
    assert quoted[0].endswith("to a half or a fifth (the highest rate in this log is 2e-06)")
    assert not any("highest" in a.do for a in diagnose_rows(rows(FALLS, **moves)).advice)
    assert sum("highest" in do for do in quoted) == 1


def test_a_score_within_a_whisker_of_its_floor_is_no_signal():
    seldom = (np.arange(STEPS) % 2 + 0.5) / 256  # one of 256 answers on average
    scale = {"critic/score/min": 0.0, "critic/score/max": 1.0, "actor/kl_loss": 0.0005}
    found = diagnose_rows(rows(seldom, **scale))
    assert [p.key for p in found.patterns] == ["no signal"]
    assert "the mean score is 0.0039, and single answers score 0 to 1" in found.patterns[0].evidence
    assert [a.do[:9] for a in found.advice] == ["Give the ", "Fine-tune"]
    lively = diagnose_rows(rows(50 * seldom, **scale))
    assert [p.key for p in lively.patterns] == ["hardly moves"]


def test_an_entropy_that_died_before_the_answers_shrank_is_said_first():
    def sinks(t):
        return 0.4 if t < 20 else max(0.4 * 0.75 ** (t - 20), 0.0015 * 0.97 ** (t - 35))

    first = diagnose_rows(rows(FALLS, entropy=sinks, completion_length=dead(300, 9)))
    assert [p.key for p in first.patterns] == ["entropy down", "short"]
    assert "Read twenty" not in first.advice[0].do
    (gone,) = (sign.says for sign in first.signs if sign.key == "entropy")
    assert gone.endswith("nats per token lately, under 0.005 since step 37")
    same = diagnose_rows(rows(FALLS, entropy=dead(0.4, 1e-3), completion_length=dead(300, 9)))
    assert [p.key for p in same.patterns] == ["short"]


def test_a_sampler_that_was_never_the_policy():
    gap = {"sampling/sampling_logp_difference/mean": 0.4, "kl": 0.0005}
    found = diagnose_rows(rows(FLAT, **gap))
    assert [p.key for p in found.patterns] == ["sampler"]
    assert [a.do[:6] for a in found.advice] == ["Sample"]
    assert not diagnose_rows(rows(RISES, **gap)).patterns


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward", [RISES, FALLS, FLAT, RISES[:5]], ids=["up", "down", "flat", "few"]
)
def test_pages_hold_the_verdict(reward):
    found = diagnose_rows(rows(reward, entropy=lambda t: 1.0 + t), name="<run> *one*")
    for page in (as_text(found), as_markdown(found), as_html(found)):
        assert found.judged.sentence.split(":")[0] in page
    assert "<run>" not in as_html(found)
    told = json.loads(json.dumps(as_object(found), allow_nan=False))
    wanted = "format steps verdict collapsed_at warned_at signals missing patterns advice".split()
    assert set(wanted) <= told.keys() and told["steps"] == len(reward)


@pytest.mark.parametrize(
    "ends", [[0.5, 0.51, 0.49, 0.5, 0.9, 0.1], [0.9] * 6, [0.1] * 6], ids=["between", "top", "end"]
)
def test_names_of_runs_do_not_touch(ends):
    found = [
        diagnose_rows(rows(np.append(RISES, [end] * 6)), name=f"run {i}")
        for i, end in enumerate(ends)
    ]
    drawn = runs_figure(found)
    drawn.draw_without_rendering()
    (ax,) = drawn.axes
    assert sorted(text.get_text() for text in ax.texts) == [f"run {i}" for i in range(6)]
    boxes = {text.get_text(): Text.get_window_extent(text) for text in ax.texts}
    stacked = sorted(boxes, key=lambda name: boxes[name].y0)
    assert [ends[int(name[-1])] for name in stacked] == sorted(ends)
    for low, high in itertools.pairwise(stacked):
        assert boxes[low].y1 < boxes[high].y0
    inside = drawn.bbox.padded(-1)
    assert all(inside.y0 < box.y0 and box.y1 < inside.y1 for box in boxes.values())


def run_command(paths, **options):
    said, errors = [], []
    status = diagnose_command(paths, said.append, errors.append, **options)
    return status, said, errors


def test_the_command(tmp_path):
    good, bad, no = tmp_path / "good.log", tmp_path / "bad.log", tmp_path / "no.log"
    good.write_text(text_of("verl", RISES))
    bad.write_text(text_of("trl", FALLS))
    no.write_text("nothing here\n")
    with pytest.raises(ValueError, match="name at least one log or run folder"):
        run_command([])
    assert run_command([good])[0] == 0
    assert run_command([bad])[0] == 0
    assert run_command([good], fail_on="degrading")[0] == 0
    assert run_command([good, bad], fail_on="degrading")[0] == 3
    status, said, errors = run_command([no])
    assert status == 2 and not said and len(errors) == 1 and "\n" not in errors[0]
    status, said, errors = run_command([good, bad, no], as_json=True, out=tmp_path / "pages")
    assert [json.loads(line)["verdict"] for line in said] == ["healthy", "collapsed"]
    assert {f.suffix for f in (tmp_path / "pages").iterdir()} == {".html", ".png", ".json"}
    assert run_command([good], markdown=True)[1][0].startswith("### good.log: healthy")
    assert "2 runs: 1 healthy, 1 collapsed" in run_command([good, bad])[1][0]


# -- live ------------------------------------------------------------------------------------------


def test_a_growing_file_is_followed(tmp_path):
    file, grown = tmp_path / "run.log", [text_of("verl", FALLS[:n]) for n in (10, 30, 60)]

    def grow(_):
        if grown:
            file.write_text(grown.pop(0))

    found = follow(file, sleep=grow)
    assert [next(found).judged.verdict for _ in range(3)] == ["unknown", "healthy", "collapsed"]


def test_of_several_runs_the_newest_is_followed(tmp_path):
    for name, reward, written in (("a", FALLS, 200), ("b", RISES, 100)):
        (tmp_path / f"{name}.log").write_text(text_of("verl", reward))
        os.utime(tmp_path / f"{name}.log", (written, written))
    assert next(follow(tmp_path)).run.name == "a.log"


def test_a_watcher_says_it_once_with_its_page(tmp_path, caplog):
    watcher = Watcher(tmp_path / "page")
    with caplog.at_level(logging.WARNING):
        said = [watcher.row(r["step"], r) for r in rows(FALLS)]
    verdicts = [one.judged.verdict for one in said if one is not None]
    assert verdicts[-1] == "collapsed" and len(set(verdicts)) == len(verdicts) <= 3
    assert str(tmp_path / "page" / "index.html") in caplog.text


class FakeTracking:
    """As verl's: log(data, step, backend)."""

    def __init__(self):
        self.logged = []

    def log(self, data, step, backend=None):
        self.logged.append(step)


@pytest.mark.parametrize("whole_class", [False, True])
def test_verl_tracking_is_watched_and_can_stop(whole_class):
    kind = type("Tracking", (FakeTracking,), {})
    tracking = kind()
    watch_tracking(kind if whole_class else tracking, stop=True)
    with pytest.raises(Collapsed, match="Collapsed at step 41"):
        for t, value in enumerate(FALLS):
            tracking.log(data={"critic/score/mean": value}, step=t + 1)
    assert 41 < len(tracking.logged) < STEPS


def test_trl_callback_stops_a_collapsed_run():
    from transformers import TrainerControl, TrainerState

    callback, control = trl_callback(stop=True), TrainerControl()
    for row in rows(RISES):
        state = TrainerState(global_step=row["step"], is_world_process_zero=True)
        callback.on_log(None, state, control, logs=row)
    assert not control.should_training_stop
    callback = trl_callback(stop=True)
    for row in rows(FALLS):
        state = TrainerState(global_step=row["step"], is_world_process_zero=True)
        callback.on_log(None, state, control, logs=row)
    assert control.should_training_stop


@pytest.mark.filterwarnings("error")
def test_numbers_near_the_largest_there_are_make_no_noise(tmp_path):
    logged = [
        {"step": i, "reward": 0.5 + i / 1000, "loss": 1e300 * (i % 7 + 1), "kl": 1e308}
        for i in range(STEPS)
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, logged)), encoding="utf-8")
    [found] = diagnose(file)
    assert "over 100 standard errors" in as_text(found)
