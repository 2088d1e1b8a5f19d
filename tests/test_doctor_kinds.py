"""What a log is, which of its rows are the training's, and what is dead in it."""

import json
import math

import numpy as np
import pytest

from lldlib.doctor.judging.advice import several_updates
from lldlib.doctor.judging.levels import slope
from lldlib.doctor.judging.vital import signs
from lldlib.doctor.page import (
    as_html,
    as_markdown,
    as_object,
    as_text,
    diagnose,
    diagnose_rows,
    runs_figure,
    side_by_side,
)
from lldlib.doctor.readers import Unreadable, count_in_file, lines_of, read_logs
from lldlib.doctor.reading.console import ending
from lldlib.doctor.reading.kind import kind_of
from lldlib.doctor.reading.signals import read_name

STEPS = 60
CHANCE = np.random.default_rng(1)
UP = np.round(np.linspace(0.2, 0.8, STEPS) + 0.03 * CHANCE.standard_normal(STEPS), 4)
FLAT = np.round(0.4 + 0.03 * CHANCE.standard_normal(STEPS), 4)
CRASH = [
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "    trainer.train()",
]


def write(folder, lines, name="run.log"):
    file = folder / name
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def jsonl(folder, rows, name="run.jsonl"):
    return write(folder, [json.dumps(row) for row in rows], name)


def one(file, mapping=None):
    (found,) = diagnose(file, mapping)
    return found


# -- what is this? ---------------------------------------------------------------------------------

KINDS = {  # a row of each kind of log, by its number
    "supervised": [
        lambda t: {"loss": "0.9", "mean_token_accuracy": str(0.5 + t / 200), "epoch": t / 9},
        lambda t: {"loss": 2 - t / 100, "grad_norm": 1.2, "learning_rate": 1e-5, "epoch": t / 9},
        lambda t: {"step": t, "train/loss": 1.0, "train/lr": 1e-5, "val/loss": 1.1},
    ],
    "preference": [
        lambda t: {"step": t, "loss": 0.6, "rewards/chosen": t, "rewards/accuracies": t / 90},
        lambda t: {"current_steps": t, "total_steps": 90, "loss": 0.6, "accuracy": 0.5, "lr": 1e-9},
        lambda t: {"step": t, "loss": 0.6, "margin": 0.1, "mean_reward": t / 90, "accuracy": 0.6},
        lambda t: {"step": t, "loss": 0.6, "log_odds_ratio": -0.1, "rewards/accuracies": t / 90},
        lambda t: {"step": t, "loss": 0.6, "rewards/chosen": t, "kl": 0.1},
    ],
    "answers": [
        lambda t: {"sample_idx": t, "target": "a", "reward": float(t < 30), "ok": t < 30},
        lambda t: {"id": f"q{t}", "prediction": "x", "score": float(t < 30), "tokens": 99},
        lambda t: {"prompt": "p", "completion": "c", "reward": float(t < 30)},
        lambda t: {"input": "q", "output": "a", "score": float(t < 30), "step": t // 10},
    ],
    "rl": [
        lambda t: {"step": t, "reward": t / 90},
        lambda t: {"step": t, "mean_reward": t / 90, "sample_prompt": "what?"},
        lambda t: {"loss": 0.1, "kl": 0.01, "accuracy": t / 90, "step": t},
        lambda t: {"step": t, "actor/pg_loss": 0.1, "actor/kl_loss": 0.1, "actor/grad_norm": 1.0},
    ],
}


@pytest.mark.parametrize(
    ("word", "row"), [(word, row) for word, rows in KINDS.items() for row in rows]
)
def test_a_log_says_what_it_is(tmp_path, word, row):
    found = one(jsonl(tmp_path, [row(t) for t in range(1, STEPS + 1)]))
    assert found.run.kind.word == word
    if word != "rl":
        assert found.judged.verdict == "unknown" and not found.advice and not found.signs
        assert found.judged.sentence.startswith("No verdict: this is ")
        assert found.run.kind.by in as_text(found).replace("\n", " ")
        assert "What to try" not in as_text(found)


def test_a_log_without_a_reward_is_refused_with_its_columns_or_asks_for_one(tmp_path):
    file = jsonl(tmp_path, [{"epoch": 0, "step": t, "mean": 0.2, "max": 1.0} for t in range(30)])
    with pytest.raises(Unreadable, match=r"looked for a reward.*epoch, step, mean, max.*--map"):
        read_logs(file)
    assert one(file, {"mean": "reward"}).run.columns["reward"] == "mean"
    found = one(jsonl(tmp_path, [KINDS["rl"][-1](t) for t in range(30)]))
    assert found.judged.sentence.endswith("name its column: --map reward=COLUMN.")


def test_a_column_that_is_mapped_and_is_not_there_is_an_error(tmp_path):
    file = jsonl(tmp_path, [{"step": t, "reward": 0.5} for t in range(30)])
    with pytest.raises(Unreadable, match="no column 'nosuch' to map; found its columns: step"):
        diagnose(file, {"nosuch": "reward"})


def test_a_page_names_the_column_that_was_mapped(tmp_path):
    file = jsonl(tmp_path, [{"step": t, "mean": float(v)} for t, v in enumerate(UP)])
    text = as_text(one(file, {"mean": "reward"}))
    assert "mean: 0." in text and "critic/score" not in text and "you named its reward" in text


# -- which rows are the training's -----------------------------------------------------------------


def trl(value, **more):
    return str({"loss": "0.01", "reward": f"{value:.4f}", "kl": "0.01"} | more)


def printed(t, value):
    return [f"answer {i}: reward={value + (i - 4.5) / 10:.3f}" for i in range(8)]


SHAPES = {  # lines that are printed for a step, and the steps that are read: by name or counted
    "bar": (lambda t, v: [f"[run]  {t}/{STEPS} | loss=-0.5 | reward={v}"], True),
    "brackets": (lambda t, v: [f"Epoch:[1/1]({t}/{STEPS}), Reward: {v}, Actor Loss: 0.0"], True),
    "heading": (lambda t, v: [f"=== Iteration {t} ===", f" reward: {v}", " loss: 0.1"], True),
    "episode": (lambda t, v: [f"Episode {t} - reward={v} loss=0.2"], True),
    "slime": (lambda t, v: [f"data.py:1 - rollout {t}: {{'rollout/raw_reward': {v}}}"], True),
    "nested": (lambda t, v: [json.dumps({"step": t, "logs": {"loss": 0.1, "reward": v}})], True),
    "twice": (
        lambda t, v: [f"Step {t} | reward={v} loss=1", f"INFO Step {t} | reward={v} loss=1"],
        True,
    ),
    "sums": (
        lambda t, v: [f"rl_loss: 1, data: {{'total_num': 10000, 'total_reward': {v * 1e4}}}"],
        False,
    ),
    "statistics": (lambda t, v: [f"[x] Batch reward stats - mean: {v}, min: 0, max: 1"], False),
    "trl": (lambda t, v: [trl(v)], False),
    "openrlhf": (
        lambda t, v: [f"Train: {t}%|#| {t}/99 [1s, act_loss=0.1, reward={v}, kl=0]"],
        False,
    ),
    "two lines": (lambda t, v: [f"reward: {v}", "loss: 0.1"], False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_step_is_one_row(tmp_path, shape):
    lines, stepped = SHAPES[shape]
    file = write(tmp_path, [x for t, v in enumerate(UP, 1) for x in lines(t, float(v))])
    run = one(file).run
    assert run.signals["reward"] == pytest.approx(UP, abs=1e-3)
    assert run.stepped == stepped and run.steps.tolist() == list(range(1, STEPS + 1))


@pytest.mark.parametrize(
    ("stray", "at"),
    [
        ("[run] Steps: 60 | Group: 4 | LR: 5e-06", [60]),
        ("[DEBUG] step=20, sample[0]", [20, 40, 60]),
        ("{'step': 0, 'agent_id': 'maker', 'reward': -0.67}", [20]),
        ("INFO - reward: {'format_reward': 1.0, 'reward': 0.0}", [10, 20, 30]),
        ("GSM8K eval:  1%|#  | 1/150 [00:02, score=0.999, reward=0.9]", range(60)),
        ("{'type': 'config', 'reward': 7.0, 'loss': 0.0}", [1]),
    ],
)
@pytest.mark.parametrize("row", [trl, lambda v: f"Reward: {v:.4f}, Loss: 0.1"])
def test_what_is_printed_between_the_rows_is_no_row(tmp_path, stray, at, row):
    lines = [line for t, v in enumerate(UP, 1) for line in [row(v), *[stray] * (t in at)]]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"][run.scored] == pytest.approx(UP, abs=1e-4)


def test_answers_that_are_printed_one_by_one_are_averaged(tmp_path):
    lines = [x for t, v in enumerate(UP, 1) for x in [f"Step {t}", *printed(t, v)]]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"] == pytest.approx(UP - 0.1, abs=1e-3)
    assert run.steps.tolist() == list(range(1, STEPS + 1))
    with_mean = [
        x
        for t, v in enumerate(UP, 1)
        for x in [f"Step {t}", *printed(t, v), f"Rewards: min=0, max=1, mean={v}"]
    ]
    run = one(write(tmp_path, with_mean)).run
    assert run.columns["reward"] == "Rewards/mean" and run.signals["reward"] == pytest.approx(UP)


def test_scores_that_are_printed_without_a_step_or_a_loss_are_answers(tmp_path):
    found = one(write(tmp_path, [f"[judge] score: {v}" for v in UP]))
    assert found.run.kind.word == "answers" and found.judged.verdict == "unknown"
    found = one(write(tmp_path, [f"[train] mean score: {v}" for v in UP]))
    assert found.run.kind.word == "rl" and found.judged.verdict == "healthy"


def test_two_guesses_are_never_joined(tmp_path):
    lines = [
        x
        for t in range(40)
        for x in (f"step_reward/mean: {t / 1000:.4f}", f"sample/return_mean: {t / 10 - 3:.4f}")
    ]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"] == pytest.approx(np.arange(40) / 1000)
    assert run.guessed == {"reward"}


def test_a_guess_carries_no_advice_and_a_weak_one_no_fall(tmp_path):
    fall = np.where(np.arange(STEPS) < 40, UP, 0.0)
    strong = diagnose_rows([{"step": t, "my_reward": v, "kl": 0.1} for t, v in enumerate(fall)])
    assert strong.judged.verdict == "collapsed" and not strong.advice
    assert "name it: --map reward=COLUMN" in as_text(strong).replace("\n    ", " ")
    weak = diagnose_rows([{"step": t, "my_return": v, "kl": 0.1} for t, v in enumerate(fall)])
    assert weak.judged.verdict == "unknown" and "--map reward=my_return" in weak.judged.sentence
    assert side_by_side([weak])[1][-1] == "my_return may not be the reward"


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("sibling_group_mean_reward_span", "reward"),
        ("mean_token_accuracy", "reward"),
        ("rewards/accuracies", "reward"),
        ("kl_horizon", "kl"),
        ("optim/kl_sample_train_v1", "kl"),
        ("actor_continuation_ppo_kl", "kl"),
        ("objective/kl", "kl"),
        ("entropy_beta", "entropy"),
        ("objective/entropy", "entropy"),
        ("mismatch_kl/mean", "kl"),
        ("rollout_is/some_kl", "kl"),
        ("Val Reward", "reward"),
        ("eval/tool/error_rate", "tool_failure"),
        ("critic/response_length", "length"),
        ("rollout.prompt.length.mean", "length"),
    ],
)
def test_names_that_are_something_else(name, signal):
    assert signal not in dict(read_name(name).signals)


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("Seq. Length", "length"),
        ("Avg Response Len", "length"),
        ("Learning Rate", "learning_rate"),
        ("KL_ref", "kl"),
        ("l2_norm", "grad_norm"),
        ("token_entropy", "entropy"),
        ("rollout/truncated", "clipped"),
        ("objective/kl", "kl_sum"),
        ("optim/entropy", "entropy"),
        ("reward score", "reward"),
        ("Mismatch KL", "sampler_gap"),
        ("Generation KL Error", "sampler_gap"),
        ("train/train_rollout_logprob_abs_diff", "sampler_gap"),
        ("rollout.tool.error_rate", "tool_failure"),
        ("rollout/tool/error_rate/mean", "tool_failure"),
        ("agent.math.tool_success_rate", "tool_success"),
        ("env/tools.failure_rate", "tool_failure"),
        ("rollout.response_length", "length"),
        ("train.length.mean", "length"),
        ("train/length/truncated", "clipped"),
        ("mean_response_tokens", "length"),
        ("stats/zero_std_groups", "no_contrast"),
    ],
)
def test_names_of_other_frameworks(name, signal):
    assert signal in dict(read_name(name).signals)


@pytest.mark.parametrize(
    ("printed", "signal", "guessed"),
    [
        ("Mean Policy KL", "kl", False),
        ("Teacher KL", "kl", True),
        ("Best Reward", None, False),
        ("Mismatch KL", "sampler_gap", False),
        ("Critic Warmup Loss", "loss", False),
    ],
)
def test_words_before_a_printed_name_may_say_that_it_is_something_else(
    tmp_path, printed, signal, guessed
):
    lines = [f"Step {t} | Reward: {v} | {printed}: {0.1 + t / 999}" for t, v in enumerate(UP)]
    run = one(write(tmp_path, lines)).run
    assert set(run.columns) - {"reward"} == ({signal} if signal else set())
    assert run.columns["reward"] == "Reward" and run.guessed == ({signal} if guessed else set())


@pytest.mark.parametrize(
    "name",
    [
        "test/env/all/reward/total",
        "eval/gsm8k/accuracy",
        "val_pass@1",
        "heldout_success_rate",
        "dev/score/mean",
        "eval_avg_reward",
        "eval/aime24/avg@32",
        "eval/all/pass_at_1",
        "eval/aime_pass1",
        "val-core/aime/acc/maj@8/mean",
    ],
)
def test_held_out_scores_of_any_framework(name):
    assert read_name(name).heldout is not None and not read_name(name).signals


def test_an_evaluation_by_its_data_set_is_a_score_if_its_numbers_are_shares():
    other = {"eval/aime-truncated_ratio": 0.1, "eval/entropy": 0.3, "eval/response_len/mean": 1.0}
    rows = [{"step": t, "reward": v} | other for t, v in enumerate(UP)]
    run = diagnose_rows([row | {"eval/aime": v} for row, v in zip(rows, FLAT, strict=True)]).run
    assert run.heldout_name == "eval/aime" and run.heldout == pytest.approx(FLAT)
    assert "eval/aime is taken for a held-out score: a guess by its name" in run.notes
    assert (
        diagnose_rows([row | {"eval/aime": 3 * row["reward"]} for row in rows]).run.heldout_name
        == ""
    )
    better = [row | {"eval/aime": 0.5, "eval/reward": v} for row, v in zip(rows, FLAT, strict=True)]
    assert diagnose_rows(better).run.heldout_name == "eval/reward"


def test_what_stands_under_a_heading_of_an_evaluation_is_its_own(tmp_path):
    lines = []
    for t, v in enumerate(UP, 1):
        lines += [f"==== Step {t}/{STEPS} ====", "📊 Training Results:"]
        lines += ["  • Loss: 0.1", f"  • Reward: {v}", "  • Response Length: 500"]
        if t % 10 == 0:
            lines += ["📊 Validation Results:", f"    • Accuracy: {v / 2}"]
            lines += ["    • Response Length: 900", "    • Loss: 0.5"]
    run = one(write(tmp_path, lines)).run
    assert run.heldout_name == "validation/Accuracy"
    assert (
        run.heldout[9::10] == pytest.approx(UP[9::10] / 2) and np.isfinite(run.heldout).sum() == 6
    )
    assert set(run.signals["length"]) == {500} and set(run.signals["loss"]) == {0.1}


OPENRLHF = "2025-08-03 00:00:51.210 INFO     ppo_trainer:330 - ✨ "
EVALUATIONS = {  # a line of an evaluation -> its held-out score, by its value
    OPENRLHF + "Evaluation completed in 00:01:12, global_step {t}, eval_metrics: "
    "{{'eval_aime_pass1': {v}, 'length': 900}}": "eval_aime_pass1",
    "00:17 SUCCESS Evaluated math500 in 44.1s (Avg@4={v}, Pass@4: 0.9, Response Length: 900, "
    "Truncated: 1.2%)": "eval/math500/Avg@4",
    "Evaluation at step {t}: Reward={v}, Response Length: 900": "eval/Reward",
    "[eval] reward: {v} | Response Length: 900": "eval/reward",
}


@pytest.mark.parametrize(("line", "name"), EVALUATIONS.items())
def test_the_numbers_of_an_evaluations_line_are_its_own(tmp_path, line, name):
    lines, dicts = [], line.startswith(OPENRLHF)
    for t, v in enumerate(UP, 1):
        row = {"policy_loss": 0.1, "reward": v, "response_length": 500}
        loose = f"Step {t} | Loss: 0.1 | Reward: {v} | Response Length: 500"
        lines += [f"{OPENRLHF}Global step {t}: {row}" if dicts else loose]
        lines += [line.format(t=t, v=round(v / 2, 4))] if t % 10 == 0 else []
    run = one(write(tmp_path, lines)).run
    assert run.heldout_name == name and np.isfinite(run.heldout).sum() == STEPS // 10
    assert run.heldout[9::10] == pytest.approx(UP[9::10] / 2, abs=1e-4)
    assert run.signals["reward"] == pytest.approx(UP) and "clipped" not in run.signals
    assert set(run.signals["length"]) == {500} and run.steps.tolist() == list(range(1, STEPS + 1))


def test_an_evaluations_row_is_no_row_of_the_training(tmp_path):
    lines = ["{'eval_reward': 0.1, 'eval_loss': 0.1, 'epoch': 0.0}"]
    for t, v in enumerate(UP, 1):
        lines += [str({"loss": 0.1, "reward": float(v), "epoch": t / 99})]
        lines += [str({"eval_loss": 0.1, "eval_reward": 0.2, "epoch": t / 99})] * (t % 10 == 0)
    run = one(write(tmp_path, lines)).run
    assert run.steps.tolist() == list(range(1, STEPS + 1)) and not run.stepped
    assert np.flatnonzero(np.isfinite(run.heldout)).tolist() == [0, 9, 19, 29, 39, 49, 59]
    assert run.signals["reward"] == pytest.approx(UP)


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("Global step {t}: {{'policy_loss': 0.1, 'reward': {v}}}", "OpenRLHF console log"),
        ("rollout {t}: {{'rollout/raw_reward': {v}, 'train/loss': 0.1}}", "slime console log"),
        ("5%|# | 5/9 {{'loss': 0.1, 'reward': {v}, 'epoch': 0.{t}}}", "TRL console log"),
        ("{{'loss': 0.1, 'reward': {v}, 'step': {t}}}", "console log"),
        ("step {t} | loss: 0.1 | reward: {v}", "console log with key: value pairs"),
    ],
)
def test_a_console_is_named_by_the_form_of_its_lines(tmp_path, line, form):
    run = one(write(tmp_path, [line.format(t=t, v=v) for t, v in enumerate(UP, 1)])).run
    assert run.format == form and run.signals["reward"] == pytest.approx(UP)


def test_settings_are_no_signals(tmp_path):
    rows = [{"type": "config", "args": {"lr": 1e-5, "entropy_beta": 0.01, "kl_horizon": 10000}}]
    rows += [{"args": {"entropy": 0.3}, "step": t, "mean_reward": v} for t, v in enumerate(UP)]
    found = one(jsonl(tmp_path, rows))
    assert set(found.run.columns) == {"reward"} and len(found.run.steps) == STEPS
    assert "left out: 1 row, settings" in found.run.notes


def test_numbers_in_several_levels_are_read(tmp_path):
    deep: dict = {}
    for _ in range(500):
        deep = {"in": deep}
    rows = [
        {
            "step": t,
            "metrics": {"reward": {"mean": float(v)}, "kl": {"mean": 0.1}, "config": {"lr": 9}},
        }
        for t, v in enumerate(UP)
    ]
    run = one(jsonl(tmp_path, [row | {"deep": deep} for row in rows])).run
    assert run.signals["reward"] == pytest.approx(UP) and set(run.columns) == {"reward", "kl"}
    run = one(write(tmp_path, [str(row) for row in rows])).run
    assert run.signals["reward"] == pytest.approx(UP)


def test_negative_numbers_without_a_leading_digit(tmp_path):
    lines = [f"Epoch {t}: 0it [04:20, ?it/s, loss=1.33, avg_reward=-.{t + 10}]" for t in range(30)]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"] == pytest.approx([-(t + 10) / 100 for t in range(30)])


def test_a_comma_in_a_number_is_of_thousands_or_a_decimal_mark(tmp_path):
    """Which it is a file's other numbers tell; a setting such as gpus: 0,1 tells nothing."""
    lengths = np.linspace(300, 3000, STEPS).round()
    lines = [
        f"step {t:,} | gpus: 0,1 | reward: {v:.3f} | response_length: {n:,.0f} | kl: 0.1,lr: 1"
        for t, v, n in zip(range(950, 950 + STEPS), UP, lengths, strict=True)
    ]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"] == pytest.approx(UP, abs=1e-3)
    assert run.signals["length"] == pytest.approx(lengths)
    assert run.steps.tolist() == list(range(950, 950 + STEPS)) and run.signals["kl"][0] == 0.1
    lines = [
        f"step {t} | reward: {v:.3f} | loss: 1.25e-2, x".replace(".", ",") for t, v in enumerate(UP)
    ]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"] == pytest.approx(UP, abs=1e-3)
    assert run.signals["loss"] == pytest.approx(0.0125)
    lines = [f"step {t} | reward: {v:.3f} | response_length: 7,8" for t, v in enumerate(UP)]
    run = one(write(tmp_path, lines)).run
    assert "length" not in run.signals and len(run.scored) == STEPS  # two numbers, not one


def test_a_table_may_have_commas_of_thousands(tmp_path):
    lines = ["step,reward,zero_std_groups,mean_response_tokens,kl"]
    lines += [f'{t},{v:.3f},31.2%,"{1000 + t:,}",0.0{t}' for t, v in enumerate(UP, 1)]
    run = one(write(tmp_path, lines)).run
    assert run.signals["length"] == pytest.approx(1000 + np.arange(1, STEPS + 1))
    assert set(run.signals["no_contrast"]) == {0.312} and "length" not in run.guessed
    unclear = [line.replace(".", "") for line in lines]  # 1,475 may be one and a half
    assert "length" not in one(write(tmp_path, unclear)).run.signals


def test_a_count_of_groups_is_no_share_of_them():
    table = rows(UP, zero_std_groups=31)
    assert "no_contrast" not in diagnose_rows(table).run.signals


def test_a_nested_tool_that_fails_is_told(tmp_path):
    failed = np.where(np.arange(STEPS) < 40, 0.02, 0.97)
    table = [
        {"step": t, "reward": v, "rollout": {"tool": {"error_rate": f}}}
        for t, (v, f) in enumerate(zip(UP, failed, strict=True))
    ]
    run = one(jsonl(tmp_path, table)).run
    assert run.columns["tool_failure"] == "rollout/tool/error_rate" and not run.guessed
    assert run.signals["tool_failure"] == pytest.approx(failed)


def test_numbers_with_a_spread_or_a_unit(tmp_path):
    lines = [
        f"step {t} | reward: {v:.4f}±0.31 | kl: 0.2+/-0.1 | resp len: 1.5k tokens | trunc: 40%"
        for t, v in enumerate(UP)
    ]
    run = one(write(tmp_path, lines)).run
    assert run.signals["reward"] == pytest.approx(UP, abs=1e-4)
    found = [run.signals[name][0] for name in ("kl", "length", "clipped")]
    assert found == pytest.approx([0.2, 1500, 0.4])


def test_a_table_with_semicolons_may_have_decimal_commas(tmp_path):
    lines = ["step;reward;kl;note"]
    lines += [
        f"{t};{v:.4f};1.234.5;fine".replace(".5;f", ",5;f").replace("0.", "0,")
        for t, v in enumerate(UP)
    ]
    file = tmp_path / "run.csv"
    file.write_text("\n".join(lines) + "\n")
    run = one(file).run
    assert run.signals["reward"] == pytest.approx(UP, abs=1e-4) and run.signals["kl"][0] == 1234.5
    with pytest.raises(Unreadable, match=r"no number in the column 'note' to map.*number: note"):
        diagnose(file, {"note": "reward"})


def test_a_notebook_log_in_pieces_and_a_notebook(tmp_path):
    pieces = [
        {"stream_name": "stdout", "time": t, "data": f"\r {t}%| | {t}/60 [0:1]\r{trl(v)[:9]}"}
        if half == 0
        else {"stream_name": "stdout", "time": t, "data": trl(v)[9:] + "\n"}
        for t, v in enumerate(UP)
        for half in (0, 1)
    ]
    text = "[" + "\n,".join(json.dumps(piece) for piece in pieces) + "\n]"
    run = one(write(tmp_path, [text])).run
    assert run.signals["reward"] == pytest.approx(UP, abs=1e-4) and "Kaggle" in run.format
    rows = "".join(f"<tr><td>{t}</td><td>{v}</td></tr>" for t, v in enumerate(UP))
    table = f"<table><tr><th>Step</th><th>reward</th></tr>{rows}</table>"
    cell = {"outputs": [{"data": {"text/html": [table]}}, {"text": ["done\n"]}]}
    file = write(tmp_path, [json.dumps({"cells": [cell]}, indent=1)], "book.ipynb")
    run = one(file).run
    assert run.signals["reward"] == pytest.approx(UP) and run.steps[-1] == STEPS - 1
    assert list(lines_of(file))[-1] == "done"


def test_a_wandb_file_is_read_or_says_how_to_export_it(tmp_path):
    file = tmp_path / "run-x.wandb"
    file.write_bytes(b":W&B\x2a\xee\x00")
    try:
        logs = read_logs(file)
    except Unreadable as error:
        assert "pip install 'wandb<0.30'" in str(error) or "found no rows" in str(error)
    else:
        assert logs


def test_lone_impossible_steps_are_left_out_and_are_no_resume():
    steps = [t if t not in (10, 30) else 1000 * t for t in range(STEPS)]
    run = diagnose_rows([{"step": s, "reward": v} for s, v in zip(steps, UP, strict=True)]).run
    assert len(run.steps) == STEPS - 2 and not run.resumed
    assert run.notes == ["2 rows left out: impossible step numbers such as 10000, 30000"]


def test_rows_in_the_file_that_were_not_read_are_said_first(tmp_path):
    lines = [f"step {t} | reward={v} loss=0.1" for t, v in enumerate(UP)]
    file = write(tmp_path, lines)
    assert count_in_file(file, "reward") == STEPS and count_in_file(file, "rew") is None
    found = one(file)
    assert f"reward: {STEPS} times in the file with a number, {STEPS} read" in as_text(found)
    long = [line + " " + "x" * 6000 for line in lines[:30]] + lines[30:]
    found = one(write(tmp_path, long))
    said = "The file names reward 60 times with a number, and 30 were read"
    assert said in as_text(found) and as_text(found).index(said) < as_text(found).index("Why")
    assert as_object(found)["rows"] == {"in_file": 60, "read": 30, "used": 30}


# -- never healthy over a corpse -------------------------------------------------------------------


def rows(reward, **others):
    out = []
    for t, value in enumerate(reward):
        more = {k: float(v(t)) if callable(v) else float(v) for k, v in others.items()}
        out.append({"step": t + 1, "reward": float(value)} | more)
    return out


def later(before, after, at=40):
    return lambda t: before if t < at else after


CORPSES = {  # what is dead from step 41 on, and the verdict that a rising reward then gets
    "numbers": ({"loss": later(0.1, math.nan)}, "collapsed"),
    "two": ({"kl": later(0.1, math.inf), "grad_norm": later(0.1, math.nan)}, "collapsed"),
    "cut": ({"completions/clipped_ratio": later(0.2, 1.0)}, "stagnating"),
    "tokens": ({"completions/mean_length": later(200.0, 2.0)}, "stagnating"),
    "format": ({"format_reward": later(0.9, 0.0)}, "stagnating"),
    "contrast": ({"frac_reward_zero_std": later(0.2, 0.95)}, "stagnating"),
    "spread": ({"reward_std": later(0.2, 0.0)}, "stagnating"),
    "entropy": ({"entropy": later(0.8, 1e-5)}, "stagnating"),
    "gradient": ({"grad_norm": later(0.5, 0.0)}, "stagnating"),
    "frozen": ({"loss": lambda t: max(40 - t, 0), "eval_win": lambda t: min(t, 40)}, "collapsed"),
}


@pytest.mark.parametrize("key", CORPSES)
@pytest.mark.parametrize("reward", [UP, FLAT, -UP[::-1]], ids=["up", "flat", "negative"])
def test_a_corpse_is_said_under_every_verdict_and_is_never_healthy(key, reward):
    others, verdict = CORPSES[key]
    found = diagnose_rows(rows(reward, **others))
    assert found.signs and all(sign.says in _flat(as_text(found)) for sign in found.signs)
    steps = [found.run.steps[sign.row] for sign in found.signs]
    assert any(abs(step - 41) <= 9 for step in steps)
    if key == "cut" and reward is not FLAT:  # a reward that rises does so whatever is cut
        assert found.judged.verdict == "healthy"
        assert "and holds, though 100 % of the answers are cut off" in found.judged.sentence
        return
    assert found.judged.verdict == (verdict if verdict == "collapsed" else "stagnating")
    if verdict == "collapsed":
        assert found.judged.collapsed_at == 41


def _flat(text):
    """The text in lower case without its line breaks."""
    said = " ".join(text.split())
    return said + said.replace("- A", "- a").replace("- T", "- t").replace("- N", "- n")


def test_zero_is_a_value_and_a_solved_task_is_no_corpse():
    run = diagnose_rows(rows(FLAT, frac_reward_zero_std=0, reward_std=0.3, clip_ratio=0)).run
    assert {"no_contrast", "clip_share"} <= run.signals.keys() and not run.notes
    solved = np.minimum(np.linspace(0.5, 1.4, STEPS), 1.0)
    others = {"frac_reward_zero_std": later(0.2, 1.0), "entropy": later(0.5, 1e-5)}
    found = diagnose_rows(rows(solved, **others, grad_norm=later(0.5, 0.0)))
    assert found.judged.verdict == "healthy"
    assert {sign.grave for sign in found.signs} == {"told"}


def test_a_lone_column_that_is_not_finite_is_no_collapse():
    for name in ("kl", "grad_norm"):
        found = diagnose_rows(rows(UP, **{name: later(0.1, math.inf)}))
        assert found.judged.verdict == "degrading" and found.judged.collapsed_at is None
        assert f"but {name} is not finite from step 41 on" in found.judged.sentence


def test_a_policy_without_entropy_and_gradient_is_dead_unless_it_may_have_solved_its_task():
    gone = {"entropy": later(0.8, 1e-5), "grad_norm": later(0.5, 0.0)}
    assert diagnose_rows(rows(FLAT, **gone)).judged.verdict == "collapsed"
    assert diagnose_rows(rows(4 * UP, **gone)).judged.verdict == "stagnating"
    cut = gone | {"completions/clipped_ratio": later(0.1, 1.0)}
    assert diagnose_rows(rows(4 * UP, **cut)).judged.verdict == "collapsed"
    never = {"entropy": 1e-5, "grad_norm": 0.0}
    assert diagnose_rows(rows(FLAT, **never)).judged.verdict == "stagnating"


def test_a_frozen_evaluation_at_its_top_is_no_corpse():
    still = {"loss": lambda t: max(40 - t, 0)}
    top = diagnose_rows(rows(4 * UP, eval_accuracy=lambda t: min(t, 40) / 40, **still))
    low = diagnose_rows(rows(4 * UP, eval_accuracy=lambda t: min(t, 40) / 80, **still))
    assert (top.judged.verdict, low.judged.verdict) == ("healthy", "collapsed")


def test_a_rare_infinite_gradient_early_on_is_told_and_no_more():
    found = diagnose_rows(rows(UP, grad_norm=lambda t: math.inf if t == 5 else 1.0))
    assert found.judged.verdict == "healthy"
    assert found.signs[0].says == "grad_norm is not finite in 1 of 60 rows, first at step 6"


@pytest.mark.parametrize(
    ("end", "how", "verdict"),
    [
        ([*CRASH, "RuntimeError: CUDA error: device-side assert triggered"], "crash", "degrading"),
        (["bash: line 1: 77 Killed    python train.py"], "killed", "degrading"),
        ([*CRASH, "KeyboardInterrupt"], "stopped", "healthy"),
        ([*CRASH, "    torch.save(state, path)", "OSError: No space left"], "saving", "healthy"),
        ([*CRASH, "ValueError: bad answer", *["step done"] * 20], None, "healthy"),
        (["ERROR:tool:Traceback (most recent call last):", "ValueError: x"], None, "healthy"),
        ([*CRASH, "ValueError: no funds", "Model saved to out/final"], None, "healthy"),
        (
            [*CRASH, "RuntimeError: probability tensor contains either `inf`, `nan`"],
            "crash",
            "collapsed",
        ),
    ],
)
def test_how_the_process_ended(tmp_path, end, how, verdict):
    assert (ending(end).how if how else ending(end)) == how
    found = one(write(tmp_path, [trl(v) for v in UP] + end))
    assert found.judged.verdict == verdict
    if how:
        assert f"after row {STEPS}" in as_text(found)


def test_a_last_row_of_nan_and_a_crash_is_a_collapse(tmp_path):
    lines = [trl(v) for v in UP[:-1]] + [trl(UP[-1], loss="nan", grad_norm="nan")]
    found = one(write(tmp_path, [*lines, *CRASH, "RuntimeError: CUDA error"]))
    assert found.judged.verdict == "collapsed" and found.judged.collapsed_at == STEPS


def test_a_floor_over_zero_counts():
    fall = np.where(np.arange(STEPS) < 40, 0.33, 0.12) + 0.005 * (-1.0) ** np.arange(STEPS)
    free = diagnose_rows(rows(fall)).judged
    held = diagnose_rows(rows(fall, **{"critic/score/min": 0.1})).judged
    assert "64 %" in free.sentence and "(counted from its floor, 0.1)" in held.sentence
    assert held.verdict == "collapsed" and "91 %" in held.sentence


def test_a_short_log_is_judged_by_all_of_its_rows():
    wave = 0.06 * np.sin(np.arange(40) * 1.9)
    scores = -0.6 + 0.0035 * np.arange(40) + wave
    found = diagnose_rows(rows(scores))
    assert found.judged.rule in ("learned", "learned slowly") and slope(scores) > 3
    assert diagnose_rows(rows(-0.6 + wave)).judged.verdict == "stagnating"


def test_a_line_through_all_rows():
    assert slope(np.array([0.0, 1.0, 2.0, 3.0])) == math.inf
    assert slope(np.array([1.0, 0.0, 0.0, 1.0])) == 0.0


def test_a_held_out_score_that_rises_counts_for_a_run():
    table = rows(FLAT)
    for i, t in enumerate(range(0, STEPS, 4)):
        table[t]["test/env/all/reward/total"] = 0.5 + 0.01 * i + 0.003 * (-1) ** i
    found = diagnose_rows(table)
    assert found.judged.rule == "held-out rise" and found.judged.verdict == "healthy"
    assert "heldout" not in found.missing


def test_a_curve_that_rises_until_it_breaks_is_at_its_best_there():
    mean = np.where(np.arange(400) < 240, np.linspace(0.2, 0.8, 400), 0.385)
    breaks = mean + np.resize([0.03, -0.03], 400)
    judged = diagnose_rows([{"step": t, "reward": v} for t, v in enumerate(breaks)]).judged
    assert judged.verdict == "degrading" and "lost 27 % of its best" in judged.sentence
    assert "best 0.53" in judged.evidence[0] and "(mean around step 220)" in judged.evidence[0]


def test_a_fall_that_is_too_small_to_count_is_not_called_none():
    less = np.where(np.arange(STEPS) < 40, 0.5, 0.42) + np.resize([0.01, -0.01], STEPS)
    held = {"eval_reward": lambda t: (0.4 if t < 40 else 0.2) if t % 4 == 0 else math.nan}
    judged = diagnose_rows(rows(less, **held)).judged
    assert judged.sentence == (
        "Degrading: the held-out score lost 50 % of its best, and the training reward 16 %."
    )
    assert judged.evidence[1].startswith("reward: best 0.5 (mean around step 28), now 0.42")
    flat = diagnose_rows(rows(FLAT, **held)).judged
    assert flat.sentence.endswith("while the training reward held.")
    assert flat.evidence[1] == "the training reward did not fall"


def test_eight_values_each_and_then_one_for_good():
    scores = np.repeat([-10, 0.1, 0.7, -5, -0.39], 8).tolist() + [-5.0] * 80
    judged = diagnose_rows(rows(scores)).judged
    assert (judged.verdict, judged.collapsed_at, judged.rule) == ("collapsed", 41, "stuck")


# -- pages that are true ---------------------------------------------------------------------------


def test_a_small_rise_is_told_as_one():
    scores = np.where(np.arange(STEPS) < 20, 1.0, 1.03) + 0.005 * (-1.0) ** np.arange(STEPS)
    judged = diagnose_rows(rows(scores)).judged
    assert judged.verdict == "stagnating" and "rises by more than its noise, but" in judged.sentence
    assert "less than 5 % of it" in judged.evidence[0]


def test_a_part_of_the_reward_that_never_moves_is_told():
    parts = {"rewards/format/mean": lambda t: t / STEPS, "rewards/search/mean": -0.5}
    found = diagnose_rows(rows(UP, **parts))
    assert [s.says for s in found.signs] == [
        f"rewards/search is -0.5 in all {STEPS} rows: it teaches nothing"
    ]
    assert found.judged.verdict == "healthy"
    assert not diagnose_rows(rows(UP, **{"rewards/search/mean": -0.5})).signs


def test_a_noisy_start_hides_no_dead_floor():
    chance = np.random.default_rng(3)
    noisy = np.where(chance.random(60) < 0.3, 0.0, 0.5)
    dies = diagnose_rows(rows(np.append(noisy, np.zeros(60)))).judged
    assert (dies.rule, dies.verdict) == ("dead floor", "collapsed") and 55 < dies.collapsed_at < 63
    rare = np.where(chance.random(60) < 0.9, 0.0, 0.5)  # a score that was seldom there
    assert diagnose_rows(rows(np.append(rare, np.zeros(60)))).judged.rule != "dead floor"


def test_a_format_that_came_back_was_not_lost():
    falls = np.where(np.arange(STEPS) < 40, UP, 0.02)
    dips = {"format_reward": lambda t: 0.2 if 38 <= t < 44 else 0.9}
    lost = {"format_reward": lambda t: 0.2 if t >= 38 else 0.9}
    keys = [[p.key for p in diagnose_rows(rows(falls, **d)).patterns] for d in (dips, lost)]
    assert ["format" in found for found in keys] == [False, True]


def test_most_answers_cut_off_is_told_and_changes_no_verdict():
    others = {"completions/clipped_ratio": 0.84, "frac_reward_zero_std": 0.6}
    found = diagnose_rows(rows(UP, **others))
    assert found.judged.verdict == "healthy"
    assert [sign.says for sign in found.signs] == [
        "84 % of the answers are cut off lately",
        "60 % of the groups score all their answers alike lately",
    ]


def test_rows_that_are_counted_are_not_called_steps(tmp_path):
    fall = np.where(np.arange(STEPS) < 40, UP, 0.02 * (np.arange(STEPS) % 2))
    found = one(write(tmp_path, [trl(v) for v in fall]))
    assert found.judged.sentence.startswith("Collapsed at row 41:")
    assert "step" not in as_text(found).partition("What was read")[0].replace("steps", "")


def test_no_kl_no_word_on_a_kl_and_no_advice_without_its_measurement():
    bare = diagnose_rows(rows(FLAT))
    assert not bare.advice and "does not say why" in as_text(bare)
    large = diagnose_rows(rows(FLAT, kl=0.05, frac_reward_zero_std=0))
    assert not large.advice and "hardly moves" not in as_text(large)
    small = diagnose_rows(rows(FLAT, kl=0.0005))
    assert [a.do[:9] for a in small.advice] == ["Raise the"]
    guess = diagnose_rows(rows(FLAT, optim_kl_x=lambda t: 0.0005 + t * 1e-9))
    assert "kl" in guess.run.guessed and not guess.advice


@pytest.mark.parametrize(
    ("signals", "several"),
    [
        ({}, None),
        ({"clip_ratio": 0}, False),
        ({"clip_ratio": 0.02}, True),
        ({"actor/ppo_kl": 1e-6}, False),
        ({"actor/ppo_kl": 0.001}, True),
    ],
)
def test_llds_is_advised_only_where_a_batch_has_several_updates(signals, several):
    fall = np.where(np.arange(STEPS) < 40, UP, 0.02)
    found = diagnose_rows(rows(fall, grad_norm=later(1.0, 1.0), **signals))
    assert several_updates(found.run) is several
    told = [piece.do.split(" ")[0] + piece.do.split(" ")[1] for piece in found.advice]
    assert told[0] == "Lowerthe" and ("AddLLDS," in told) == bool(several)


def test_a_kl_that_is_summed_over_an_answer_is_no_run_away():
    table = rows(FLAT, **{"objective/kl": lambda t: 0.3 + 0.3 * t, "policy/entropy_avg": 0.9})
    found = diagnose_rows(table)
    assert not found.patterns and found.run.columns["kl_sum"] == "objective/kl"


def test_hours_after_the_fall():
    fall = np.where(np.arange(STEPS) < 40, UP, 0.02)
    found = diagnose_rows(rows(fall, **{"timing_s/step": 360}))
    assert found.hours == pytest.approx((2.0, 6.0))
    assert "2.0 hours ran after the fall, of 6.0 hours in all" in as_text(found)
    clock = diagnose_rows(rows(fall, _timestamp=lambda t: 1.7e9 + 90 * t))
    assert clock.hours == pytest.approx((19 * 90 / 3600, 59 * 90 / 3600))
    assert diagnose_rows(rows(fall)).hours is None


def test_how_sure_stands_only_under_verdicts_that_it_is_about():
    assert "How sure" in as_text(diagnose_rows(rows(UP)))
    assert "toy models" in as_text(diagnose_rows(rows(UP)))
    for found in (diagnose_rows(rows(UP[:9])), diagnose_rows(rows(UP, loss=later(0.1, math.nan)))):
        assert "How sure" not in as_text(found)


NASTY = "my\x1b[31m reward $x_{1$ \x07<b>"


def test_names_can_neither_steer_a_terminal_nor_break_a_page(tmp_path):
    file = jsonl(
        tmp_path,
        [{"step": t, NASTY: float(v), "kl_$a": t % 7 + 1.0} for t, v in enumerate(UP)],
        "run$x_{1$\x1b[2J.jsonl",
    )
    found = one(file)
    assert found.run.columns["reward"] == "my reward $x_{1$ <b>"
    for page in (as_text(found), as_markdown(found), as_html(found), str(side_by_side([found]))):
        assert "\x1b" not in page and "\x07" not in page
    assert "<b>" not in as_html(found).replace("<b>1", "")
    runs_figure([found, found]).draw_without_rendering()
    with pytest.raises(Unreadable) as error:
        read_logs(tmp_path / "no\x1b[31mfile")
    assert "\x1b" not in str(error.value)


def test_rows_that_share_a_name_show_their_folder(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        jsonl(tmp_path / folder, rows(UP), "log.jsonl")
    names = [row[0] for row in side_by_side(diagnose(tmp_path))[1:]]
    assert names == ["a/log.jsonl", "b/log.jsonl"]


def test_a_page_has_a_figure_for_a_narrow_screen(tmp_path):
    page = as_html(diagnose_rows(rows(UP)))
    assert page.count("data:image/png;base64,") == 2 and 'media="(max-width:600px)"' in page


def test_the_signs_of_a_prefix_are_those_of_the_prefix():
    run = diagnose_rows(rows(UP, loss=later(0.1, math.nan))).run
    assert [sign.key for sign in signs(run)] == ["numbers"] and not signs(run.cut(40))


def test_kinds_are_told_from_a_log_that_was_read(tmp_path):
    (log,) = read_logs(jsonl(tmp_path, rows(UP)))
    assert kind_of(log).says == "This is reinforcement learning: it logs reward"


@pytest.mark.parametrize(
    ("logged", "says"),
    [
        ({"actor/lld_loss": lambda t: 0.0}, "actor/lld_loss is 0 in all 60 rows, so LLDS does not"),
        ({"lld_active_ratio": lambda t: 0.0}, "lld_active_ratio is 0 in all 60 rows, so LLDS does"),
        ({"lld_active_ratio": lambda t: 1.0}, "100% in the median, so no gate is at work"),
        ({"llds/value": lambda t: 0.0 if t % 7 else 1e-4}, None),  # it acts now and then
        ({"llds/open_gate_share": lambda t: 0.3}, None),
    ],
)
def test_an_llds_that_does_nothing_is_told_under_a_good_verdict(tmp_path, logged, says):
    rows = [
        {"step": t, "critic/score/mean": float(UP[t])} | {k: f(t) for k, f in logged.items()}
        for t in range(STEPS)
    ]
    found = one(jsonl(tmp_path, rows))
    assert found.judged.verdict == "healthy"
    text = " ".join(as_text(found).split())
    assert (says is None) == ("lldlib check-llds" not in text)
    assert says is None or says in text


def test_means_over_all_micro_batches_are_divided_by_the_share_that_counted(tmp_path):
    rows = [
        f"step:{i} - critic/score/mean:0.5 - actor/likelihood_positive:-0.125 - "
        f"actor/positive_here:{0.125 if i else 0.0} - actor/llds_open_gate_share:0.2 - "
        "actor/llds_kept_here:0.5"
        for i in range(30)
    ]
    path = tmp_path / "verl.log"
    path.write_text("\n".join(rows) + "\n")
    signals = one(path).run.signals
    assert np.isnan(signals["likelihood"][0]) and set(signals["likelihood"][1:]) == {-1.0}
    assert set(signals["llds_active"]) == {0.4}
