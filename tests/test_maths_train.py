"""Maths as a training task: what an episode answers, what it earns, and a run that trains on it."""

import importlib.util
import json
import random
from dataclasses import replace

import pytest
import torch
from benchmark_files import write_rows
from helpers import play

from lldlib.cli import main
from lldlib.config import DataConfig, LossConfig, RolloutConfig, TrainConfig
from lldlib.policy.load import EOS, Policy, save_policy, tiny_model, word_tokenizer
from lldlib.policy.optimizer import Schedule
from lldlib.retrieval import NoRetriever
from lldlib.rollout.loop import TokenText
from lldlib.runs.folder import Run
from lldlib.train import setup as setting
from lldlib.train.lessons import lesson_episode
from lldlib.train.run import TrainingRun
from lldlib.train.supervised import Supervised
from lldlib.types import Episode, Question, StopReason
from lldlib.world import benchmarks
from lldlib.world.answers import is_right
from lldlib.world.benchmarks import load_source
from lldlib.world.environment import RULES
from lldlib.world.protocol import MATHS, TINY, MathsProtocol

DIGITS = [Question(digit, f"{digit} = ?", (digit,)) for digit in "12345"]

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed"
)


def digit_guesser(steps: int) -> Policy:
    """So few updates teach the form of an answer, and the digit in the box is a guess."""
    words = [*"12345=?", "so", "but", "\\boxed{", "}", *MATHS.instruction.split()]
    tokenizer = word_tokenizer(words)
    policy = Policy(tiny_model(len(tokenizer), width=32, layers=1, heads=2, seed=0), tokenizer)
    text, rng = TokenText(tokenizer), random.Random(0)

    def draw(step: int) -> list[Episode]:
        return [
            lesson_episode(q, [(f"\\boxed{{ {q.id} }} {EOS}", ())], text, MATHS)
            for q in rng.choices(DIGITS, k=16)
        ]

    return Supervised(policy, Schedule(1e-2, 20, steps), draw).run(progress=False)


# -- what an episode answers and earns -----------------------------------------------------------


@needs_math_verify
@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("so it is \\boxed{\\frac{1}{2}}.", 1.0),
        ("\\boxed{0.5}", 1.0),
        ("\\boxed{2} no, \\boxed{\\dfrac{2}{4}}", 1.0),  # the last box
        ("\\boxed{\\frac{1}{2}} no, \\boxed{2}", 0.0),
        ("the answer is 1/2", 0.0),  # no box
        ("\\boxed{1/2", 0.0),  # never closed
        ("", 0.0),
    ],
)
def test_the_reward_is_of_the_last_box(said, reward):
    assert is_right(MATHS.final_answer(said, None), ("\\frac12",)) == reward


@needs_math_verify
def test_intervals_are_equal_as_sets():
    assert is_right("[0.5,1)", ("$[\\frac{1}{2},1)$",)) == 1.0
    assert is_right("[0.5,1]", ("$[\\frac{1}{2},1)$",)) == 0.0


def test_question_answering_keeps_the_tag_and_the_exact_match():
    assert TINY.final_answer("\\boxed{7} <answer> 8 </answer>", "8") == "8"
    assert TINY.final_answer("\\boxed{7}", None) is None
    assert RULES["qa"].reward("The Paris", ("paris",)) == 1.0
    assert RULES["qa"].reward("0.5", ("1/2",)) == 0.0


@pytest.mark.parametrize(
    ("said", "answer", "stop"),
    [
        (f"so \\boxed{{ 3 }} but \\boxed{{ 4 }} {EOS}", "4", StopReason.EOS),
        (f"so 3 {EOS}", None, StopReason.EOS),
        ("<answer> 5 </answer>", "5", StopReason.ANSWER),
    ],
)
def test_a_rollout_ends_with_the_boxed_answer(said, answer, stop):
    tokenizer = digit_guesser(steps=0).tokenizer
    limits = {"max_searches": 0, "max_tokens": 60}
    (episode,), _ = play(
        tokenizer, [[("a", said)]], retriever=NoRetriever(), protocol=MATHS, **limits
    )
    assert (episode.answer, episode.stop) == (answer, stop)


# -- the setting ---------------------------------------------------------------------------------


def test_a_source_is_a_file_or_a_task_of_the_hub(tmp_path, monkeypatch):
    write_rows(tmp_path / "m.jsonl", [{"id": "a", "question": "q", "golden_answers": ["1"]}])
    assert load_source(str(tmp_path / "m.jsonl"), "maths") == [Question("a", "q", ("1",))]
    asked = Question("u-1", "q", ("34",))
    hub = {("dapo", True): [asked]}
    monkeypatch.setattr(benchmarks, "load_from_hub", lambda task, train: hub[task.name, train])
    assert load_source("hub:dapo", "maths", train=True) == [asked]
    with pytest.raises(ValueError, match=r"hub:dapo is no qa task: .* hub:nq"):
        load_source("hub:dapo", "qa")
    with pytest.raises(ValueError, match="hub:none is no maths task"):
        load_source("hub:none", "maths")


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    """A small run on digits to be copied, by a model that guesses them."""
    folder = tmp_path_factory.mktemp("maths")
    save_policy(digit_guesser(steps=80), folder / "policy")
    rows = [
        {"id": q.id, "question": q.text, "golden_answers": [f"${q.answers[0]}.0$"]} for q in DIGITS
    ]
    write_rows(folder / "math.jsonl", rows)
    return TrainConfig(
        steps=3,
        updates_per_batch=2,
        eval_every=2,
        probe_every=0,
        checkpoint_every=1,
        rollouts_logged=20,
        policy=str(folder / "policy"),
        data=DataConfig((str(folder / "math.jsonl"),), "maths", (str(folder / "math.jsonl"),)),
        rollout=RolloutConfig(problems=5, group_size=4, max_searches=0, max_tokens=24),
        loss=LossConfig(kl_coef=0.0),
    )


def test_maths_is_asked_without_search(config, monkeypatch):
    made = setting.make_setting(config)
    assert isinstance(made.environment.training(0).tool, NoRetriever)
    assert isinstance(made.environment.rules.protocol(made.policy.tokenizer), MathsProtocol)
    searching = replace(config, rollout=replace(config.rollout, max_searches=1))
    with pytest.raises(ValueError, match=r"set rollout\.max_searches to 0"):
        setting.make_setting(searching)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="maths needs math-verify"):
        setting.make_setting(config)


# -- a run ---------------------------------------------------------------------------------------


def untimed(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in run.metrics]


@needs_math_verify
def test_a_run_is_paid_for_equal_numbers_and_resumes(config, tmp_path):
    start = setting.make_setting(config).policy.model.state_dict()
    whole = TrainingRun(config, tmp_path / "whole")
    run = whole.run()
    logged = [json.loads(line) for line in (run.path / "rollouts.jsonl").open()]
    # "3" is never the accepted text "$3.0$": exact match would pay nothing
    paid = [row["answer"] == row["answers"][0].strip("$").removesuffix(".0") for row in logged]
    assert [row["reward"] for row in logged] == list(map(float, paid))
    rewards = run.column("reward/mean")
    assert rewards == pytest.approx([sum(paid[at : at + 20]) / 20 for at in (0, 20, 40)])
    assert 0 < rewards[0] < 1 and run.column("eval/heldout_em")[1] is not None
    assert "eval/heldout_f1" not in run.metrics[1]
    after = whole.trainer.policy.model.state_dict()
    assert any(not torch.equal(start[name], after[name]) for name in start)

    broken = TrainingRun(config, tmp_path / "broken")
    broken.step()
    broken.writer.close()
    again = TrainingRun(config, tmp_path / "broken", resume=True).run()
    assert untimed(again) == untimed(run)


@needs_math_verify
def test_the_command_line_trains_on_maths(config, tmp_path):
    (file,) = config.data.train
    given = ["train", "--out", str(tmp_path / "run"), "--policy", config.policy, "--steps", "1"]
    given += ["--data.kind", "maths", "--data.train", file, "--eval-every", "0"]
    given += ["--probe-every", "0", "--rollout.problems", "3", "--rollout.max-tokens", "24"]
    assert main(given) == 2  # the default allows searches
    assert main([*given, "--rollout.max-searches", "0"]) == 0
    assert Run(tmp_path / "run").column("reward/mean")[0] is not None
