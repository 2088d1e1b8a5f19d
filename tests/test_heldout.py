import json

import pytest
import torch
from helpers import micro_trainer

from lldlib.config import RolloutConfig
from lldlib.evaluate import heldout
from lldlib.evaluate.heldout import Evaluation, permuted_control, policy_of
from lldlib.policy.load import load_policy
from lldlib.recipes import WORLD, train_config
from lldlib.runs.folder import Run
from lldlib.runs.summary import summarise
from lldlib.train.run import TrainingRun
from lldlib.types import Episode, Question, StopReason
from lldlib.world.atlas import Fact, World

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}
ROLLOUT = RolloutConfig()


def world_of(capitals: dict[str, str]) -> World:
    """Capitals, and one element discovered in France."""
    facts = [Fact("capital", country, city, "heldout") for country, city in capitals.items()]
    return World([*facts, Fact("found", "Gallium", "France", "train")])


@pytest.fixture
def answering(monkeypatch):
    """Sets what a searcher answers: a function of the question."""

    def install(answer):
        def ask(policy, rollout, questions, *, temperature):
            assert temperature == 0.0
            episodes = [
                Episode(
                    q, [], StopReason.ANSWER, answer(q), 1, 0, float(answer(q) in q.answers), group
                )
                for group, q in enumerate(questions)
            ]
            return Evaluation(sum(e.reward for e in episodes) / len(episodes), {}, episodes)

        monkeypatch.setattr(heldout, "ask", ask)

    return install


@pytest.fixture
def moved(monkeypatch) -> World:
    """A world whose permuted copy has Paris and Madrid exchanged, and Rome where it was."""
    other = world_of({"France": "Madrid", "Spain": "Paris", "Italy": "Rome"})
    monkeypatch.setattr(World, "permuted", lambda self, seed: other)
    return world_of(CAPITALS)


def test_the_control_tells_reading_from_remembering(moved, answering, guesser):
    # Asked: the capitals of 3 countries, the countries of 3 capitals, and the capital of the
    # country where Gallium was discovered; Italy and Rome keep their answers, which leaves 5.
    policy, questions = load_policy(guesser), moved.questions("heldout")
    assert len(questions) == 7
    answering(lambda question: question.answers[0])  # as the passages at hand have it
    read = permuted_control(policy, moved, questions, ROLLOUT, seed=0)
    assert (read.questions, read.em_permuted, read.em_true) == (5, 1.0, 0.0)

    truth = {question.id: question.answers[0] for question in questions}
    answering(lambda question: truth[question.id])
    remembered = permuted_control(policy, moved, questions, ROLLOUT, seed=0)
    assert (remembered.questions, remembered.em_permuted, remembered.em_true) == (5, 0.0, 1.0)


def test_a_question_that_leads_nowhere_is_not_asked(monkeypatch, answering, guesser):
    world = world_of(CAPITALS)
    other = World([Fact("found", "Gallium", "Chad", "train")])  # and no capital is known
    monkeypatch.setattr(World, "permuted", lambda self, seed: other)
    with pytest.raises(ValueError, match="no question"):
        permuted_control(load_policy(guesser), world, world.questions("heldout"), ROLLOUT, seed=0)


def test_a_checkpoint_gives_its_own_weights(micro, tmp_path):
    config = train_config(
        "grpo_entropy", 0, recipe=WORLD, **micro | {"checkpoint_every": 1, "eval_every": 0}
    )
    run = TrainingRun(config, tmp_path / "run").run()
    for step in (0, 1, 2):
        tensors, _ = run.load_checkpoint(step)
        weights = dict(policy_of(run, step).model.named_parameters())
        assert all(torch.equal(weights[name], tensors[f"model.{name}"]) for name in weights)
    first, last = (policy_of(run, step).model.state_dict() for step in (0, None))
    assert any(not torch.equal(first[name], last[name]) for name in first)
    assert Run(run.path).checkpoints[-1][0] == 2


def test_a_run_of_a_device_that_is_not_here_is_asked_on_the_cpu(micro, tmp_path, caplog):
    run = TrainingRun(train_config("grpo", 0, recipe=WORLD, **micro), tmp_path / "run").run()
    config = json.loads((run.path / "config.json").read_text())
    config["load"]["device"] = "cuda:7"
    (run.path / "config.json").write_text(json.dumps(config))
    assert policy_of(Run(run.path), None).model.device.type == "cpu"
    assert "no device 'cuda:7' here" in caplog.text
    with pytest.raises(ValueError, match="no device 'cuda:7' here"):
        policy_of(Run(run.path), None, "cuda:7")


def test_an_answer_that_lost_its_tool_has_no_score(monkeypatch):
    run, question = micro_trainer(), Question("1", "q", ("yes",))

    def episode(right, stop):
        return Episode(question, [], stop, "yes" if right else None, int(right), 0, right, 0)

    def asked(served, lost):
        found = [episode(float(i < 2), StopReason.ANSWER) for i in range(served)]
        found += [episode(0.0, StopReason.TOOL_ERROR) for _ in range(lost)]
        monkeypatch.setattr(run.rollout, "run", lambda *_, **__: found)
        return heldout.ask(run.policy, run.rollout, [question], temperature=0.0)

    assert (asked(4, 0).reward, asked(4, 2).reward) == (0.5, 0.5)
    assert asked(4, 2).scores == asked(4, 0).scores and len(asked(4, 2).episodes) == 6
    for served, lost in ((4, 3), (0, 2)):
        with pytest.raises(ConnectionError, match=f"down for {lost} of {served + lost} held-out"):
            asked(served, lost)


def test_a_run_begins_with_the_scores_of_its_start(micro, tmp_path):
    config = train_config("grpo", 0, recipe=WORLD, **micro)
    run = TrainingRun(config, tmp_path / "run")
    before = run.heldout_metrics()
    first, second = run.run().metrics
    for key in ("em", "f1", "em_greedy"):
        assert first[f"eval/start_{key}"] == pytest.approx(before[f"eval/heldout_{key}"], abs=1e-6)
        assert f"eval/start_{key}" not in second
    assert summarise(Run(run.out))["start_em"] == first["eval/start_em"]
