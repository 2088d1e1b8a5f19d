"""The same few held-out questions, asked of the policy from birth to death."""

from dataclasses import replace

import pytest
import torch
from helpers import naive_logits, tiny_policy

from lldlib.config import TrainConfig
from lldlib.evaluate.heldout import policy_of
from lldlib.recipes import WORLD, train_config
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import QUESTIONS, Run, RunWriter
from lldlib.train import measure
from lldlib.train.run import TrainingRun
from lldlib.types import Question
from lldlib.world.registry import open_environment


@pytest.fixture
def config(micro) -> TrainConfig:
    """The micro run with a checkpoint after every batch; a guess at temperature 0.5 is sharper."""
    own = {"questions_every": 1, "checkpoint_every": 1, "eval_every": 0, "temperature": 0.5}
    own |= {"lr": 1e-2, "warmup_batches": 0, "rewards": "coin"}  # every batch changes the policy
    return train_config("grpo", 0, recipe=WORLD, **micro | own)


def lines(run: Run | TrainingRun) -> bytes:
    return ((run.path if isinstance(run, Run) else run.out) / QUESTIONS).read_bytes()


def numbers(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in run.metrics]


def question(name: str, hops: int) -> Question:
    return Question(name, name, ("x",), hops=hops)


def test_the_first_of_each_number_of_hops_in_turn():
    every = [question(f"{hops}{letter}", hops) for hops in (2, 1, 3) for letter in "abcd"]
    names = [one.text for one in measure.fixed_questions(every)]
    assert names == ["1a", "2a", "3a", "1b", "2b", "3b"]
    assert measure.fixed_questions(every[:5]) == [every[i] for i in (4, 0, 1, 2, 3)]
    assert measure.fixed_questions([]) == []


def test_greedy_answers_at_the_start_and_after_every_batch(config, tmp_path):
    """Each token is the likeliest one, and its log-prob that of the temperature of training."""
    run = TrainingRun(config, tmp_path / "run").run()
    environment = open_environment(config)
    asked = measure.fixed_questions(environment.heldout.questions)
    assert sorted({one.hops for one in asked}) == [1, 2, 3] and len(asked) == 6
    rows = run.questions
    assert [row["step"] for row in rows] == [0] * 6 + [1] * 6 + [2] * 6
    assert [row["question"] for row in rows] == [one.text for one in asked] * 3
    for step in range(3):
        policy = policy_of(run, step)
        rollout = Rollout(
            policy.tokenizer, environment.rules, environment.heldout.tool, config.rollout
        )
        batch = collate(rollout.run(policy.model, asked, temperature=0.0))
        logits = naive_logits(policy.model, batch, 0.5)
        assert torch.equal(logits.argmax(-1)[batch.action_mask], batch.tokens[batch.action_mask])
        top = logits.log_softmax(-1).amax(-1)
        for row, one, values, mask in zip(
            rows[6 * step :][:6], asked, top, batch.action_mask, strict=True
        ):
            logged = [v for turn in row["turns"] for v in turn["logp"]]
            assert logged == pytest.approx(values[mask].tolist(), abs=1e-4)
            assert row["answers"] == list(one.answers) and row["stop"] == "answer"
            assert row["reward"] == float(row["answer"] == one.answers[0])
            assert (row["turns"][0]["role"], row["turns"][0]["logp"]) == ("prompt", [])
    assert rows[0]["turns"] != rows[6]["turns"]


def test_training_is_the_same_to_the_bit(config, tmp_path):
    """A measurement draws nothing and moves nothing."""
    asked = TrainingRun(config, tmp_path / "asked").run()
    plain = TrainingRun(replace(config, questions_every=0), tmp_path / "plain").run()
    assert numbers(asked) == numbers(plain) and lines(plain) == b""
    for (tensors, _), (others, _) in zip(
        *([run.load_checkpoint(n) for n, _ in run.checkpoints] for run in (asked, plain)),
        strict=True,
    ):
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_every_few_batches_and_at_the_end(config, tmp_path):
    run = TrainingRun(replace(config, steps=3, questions_every=2), tmp_path / "run").run()
    assert sorted({row["step"] for row in run.questions}) == [0, 2, 3]
    assert [row["step"] for row in Run(run.path, batches=2).questions] == [0] * 6 + [2] * 6


class Killed(BaseException):
    """Ends a run where it stands."""


def dies_after(monkeypatch, name: str, count: int) -> None:
    """The writer's method of that name kills the run at its call number `count`."""
    real, calls = getattr(RunWriter, name), []

    def call(*args, **kwargs):
        calls.append(name)
        if len(calls) == count:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(RunWriter, name, call)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("question", 3),  # of the start
        ("checkpoint", 1),
        ("question", 9),  # of the first batch
        ("checkpoint", 2),
        ("metrics", 2),
        ("question", 18),
    ],
)
def test_a_run_killed_anywhere_writes_the_lines_of_an_unbroken_one(
    config, tmp_path, monkeypatch, name, count
):
    whole = TrainingRun(config, tmp_path / "whole").run()
    with monkeypatch.context() as patch:
        dies_after(patch, name, count)
        with pytest.raises(Killed):
            TrainingRun(config, tmp_path / "run").run()
    run = TrainingRun(config, tmp_path / "run", resume=True).run()
    assert lines(run) == lines(whole) and numbers(run) == numbers(whole)
    again = TrainingRun(config, tmp_path / "run", resume=True).run()  # it is whole already
    assert lines(again) == lines(whole)


def test_rewind_and_branch_drop_what_comes_later(config, tmp_path):
    run = TrainingRun(config, tmp_path / "run")
    run.step()
    first = lines(run)
    run.step()
    whole = lines(run)
    assert whole.startswith(first) and len(whole) > len(first)
    branch = TrainingRun.branch(Run(run.out), 1, tmp_path / "branch", lr=1.0)
    assert lines(branch) == first
    branch.step()
    assert lines(branch).startswith(first) and lines(branch) != whole
    run.rewind(1)
    assert lines(run) == first
    run.step()
    assert lines(run) == whole
    run.rewind(0)
    assert [row["step"] for row in Run(run.out).questions] == [0] * 6


def test_a_run_without_held_out_questions_cannot_ask_them(config, tmp_path):
    file = tmp_path / "train.jsonl"
    row = '{"id": "%d", "question": "what is %d", "golden_answers": ["x"]}\n'
    file.write_text("".join(row % (n, n) for n in range(4)))
    data = replace(config.data, train=(str(file),), retriever="none")
    rollout = replace(config.rollout, max_searches=0)
    bare = replace(config, data=data, probe_every=0, rollout=rollout)
    with pytest.raises(ValueError, match=r"no held-out questions: .*, or questions_every 0"):
        TrainingRun(bare, tmp_path / "run")
    run = TrainingRun(replace(bare, questions_every=0), tmp_path / "other")
    with pytest.raises(ValueError, match="questions_every cannot be turned: the run has no held"):
        run.turn(questions_every=1)


def test_an_answer_may_be_long(tmp_path):
    """A policy that never ends is cut at its budget, and its log-probs are as long as its turns."""
    policy, config = tiny_policy(), TrainConfig()
    environment = open_environment(config)
    rollout = Rollout(
        policy.tokenizer,
        environment.rules,
        environment.heldout.tool,
        replace(config.rollout, max_tokens=40),
    )
    episodes = measure.answers(
        policy.model, rollout, measure.fixed_questions(environment.heldout.questions), config
    )
    assert len(episodes) == 6
    for turn in (turn for episode in episodes for turn in episode.turns):
        assert len(turn.logp) == len(turn.tokens)
        assert turn.role == "action" or set(turn.logp) == {0.0}
