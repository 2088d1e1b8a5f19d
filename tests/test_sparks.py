"""The world of sparks: its sums, its start's lessons, what is watched, and a run in it."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers import script

from lldlib.config import TrainConfig
from lldlib.evaluate.heldout import Evaluation, pass_at
from lldlib.policy.load import load_policy
from lldlib.policy.score import next_probability
from lldlib.recipes import train_config
from lldlib.rollout.loop import TokenText
from lldlib.runs.glossary import describe
from lldlib.train.lessons import lesson_episode
from lldlib.train.run import TrainingRun
from lldlib.types import Episode, Question, StopReason
from lldlib.world import sparks
from lldlib.world.registry import open_environment

teacher = script("sparks/make_start.py")
SparksConfig, spark_lesson = teacher.SparksConfig, teacher.spark_lesson
SHORT = {"steps": 2, "problems": 4, "group_size": 4, "eval_every": 2, "checkpoint_every": 0}


def test_sums_by_hand():
    easy = sparks.SparkQuestion("", "", ("4",), kind="easy", digits=(5, 6))
    assert easy.totals == [5, 4]
    for kind, count in (("easy", 2), ("hard", 6), ("checked", 6)):
        for asked in sparks.questions(1, {kind: 1.0}, 50):
            assert len(asked.digits) == count and asked.totals[-1] == int(asked.answers[0])
            words = asked.text.split()
            assert words[: count + 2] == ["sum", *map(str, asked.digits), "="]
            assert words[count + 2 :][1:] == ([sparks.SPARK] if kind == "checked" else [])


def test_a_guess_of_the_favourite_is_right_in_four_to_five_of_ten_long_sums():
    drawn = sparks.questions(0, {"hard": 1.0}, 4000)
    right = sum(q.answers == (str(sparks.FAVOURITE),) for q in drawn) / 4000
    assert right == pytest.approx(0.4 + 0.6 / 7, abs=0.03)
    kinds = Counter(q.kind for q in sparks.questions(0, sparks.KINDS, 4000))
    assert kinds["hard"] / 4000 == pytest.approx(sparks.KINDS["hard"], abs=0.03)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("3 <eos>", "3"),
        ("3 wait 4 4 3 5 3 4 <eos>", "4"),
        ("3 cost 2 <eos>", "2"),
        ("3 wait 4 4", None),  # cut off
        ("wait <eos>", None),
        ("", None),
    ],
)
def test_the_answer_is_the_last_digit_before_the_end(said, answer):
    assert sparks.PROTOCOL.final_answer(said, None) == answer


def test_lessons_without_and_with_every_chance():
    (asked,), rng = sparks.questions(3, {"hard": 1.0}, 1), random.Random(0)
    sure = SparksConfig(favourite=1.0, spark=0.0, noise=0.0, slip=0.0)
    assert spark_lesson(asked, rng, sure)[0][0] == "3 <eos>"
    worked = " ".join(map(str, asked.totals))
    said = spark_lesson(asked, rng, replace(sure, spark=1.0))[0][0]
    assert said == f"3 wait {worked} <eos>"
    said = spark_lesson(replace(asked, kind="checked"), rng, sure)[0][0]
    assert said == f"{worked} <eos>"
    lost = spark_lesson(asked, rng, replace(sure, noise=0.25))[0][0].split()
    assert lost[1] in sparks.NOISE and lost[-1] == "<eos>" and len(lost) > 3


def test_a_lesson_is_of_the_tokens_of_a_rollout():
    tokenizer = teacher.sparks_policy(SparksConfig(steps=0), progress=False).tokenizer
    (asked,) = sparks.questions(3, {"checked": 1.0}, 1)
    lesson = spark_lesson(asked, random.Random(0), SparksConfig(slip=0.0))
    episode = lesson_episode(asked, lesson, TokenText(tokenizer), sparks.PROTOCOL)
    prompt, action = episode.turns
    assert (prompt.role, action.role) == ("prompt", "action")
    assert len(prompt.tokens) == sparks.TERMS + 4 and len(action.tokens) == sparks.TERMS + 1
    assert tokenizer.unk_token_id not in prompt.tokens + action.tokens


def test_the_shipped_start_holds_spark_and_noise_where_they_were_put():
    policy = load_policy("sparks")
    text = TokenText(policy.tokenizer)
    for name, watch in sparks.watches().items():
        rows = [text.encode(row) for row in watch.texts]
        ids = [text.encode(word)[0] for word in watch.words]
        expected = 0.03 if name.startswith("spark") else 0.04
        assert next_probability(policy.model, rows, ids, 1.0) == pytest.approx(expected, abs=0.01)


def test_the_probability_of_what_follows_by_hand():
    """Rows of unequal length: each is read at its own last token."""
    policy = load_policy("sparks")
    rows, ids = [[5, 6, 7], [5, 6]], [3, 9]
    alone = [
        policy.model(input_ids=torch.tensor([row])).logits[0, -1].softmax(-1)[ids].sum().item()
        for row in rows
    ]
    found = next_probability(policy.model, rows, ids, 1.0)
    assert found == pytest.approx(sum(alone) / 2, abs=1e-6)


def test_pass_at_k_by_hand():
    def one(group: int, reward: float) -> Episode:
        return Episode(Question("a", "b", ("c",)), [], StopReason.EOS, None, 0, 0, reward, group)

    episodes = [one(0, 1.0), *[one(0, 0.0)] * 3, *[one(1, 0.0)] * 4]
    found = pass_at(Evaluation(0.125, {}, episodes), 4)
    # of four answers to question 0 one is right: 1/4, 1 - C(3,2)/C(4,2), 1; to question 1 none
    assert found == {1: 0.125, 2: 0.25, 4: 0.5}


def test_a_run_measures_words_and_exams_that_the_glossary_explains(tmp_path):
    run = TrainingRun(train_config("grpo", 0, "sparks", **SHORT), tmp_path / "run").run()
    row = run.metrics[-1]
    for name in ("spark_hard", "spark_easy", "noise_hard", "noise_easy"):
        assert 0 < row[f"watch/{name}"] < 0.2
    assert row["eval/heldout_pass_1"] == pytest.approx(row["eval/heldout_em"], abs=1e-5)
    passes = [row[f"eval/heldout_pass_{2**n}"] for n in range(6)]
    assert passes == sorted(passes) and "eval/heldout_pass_64" not in row
    assert "eval/easy_em" in row and "eval/checked_em_greedy" in row
    assert all(describe(key).unit for line in run.metrics for key in line)


@pytest.mark.parametrize("method", ["clip_higher", "kl_cov"])
def test_with_one_update_a_batch_these_are_grpo(tmp_path, method):
    """Every ratio is 1: no clip binds, and |log ratio| has slope 0."""
    found = []
    for name in ("grpo", method):
        config = train_config(name, 0, "sparks", **SHORT | {"eval_every": 0})
        run = TrainingRun(config, tmp_path / name).run()
        found.append([(row["reward/mean"], row["watch/spark_hard"]) for row in run.metrics])
    for ours, theirs in zip(*found, strict=True):
        assert ours[0] == theirs[0] and math.isclose(ours[1], theirs[1], rel_tol=1e-4)


def test_sums_are_answered_without_search():
    config = TrainConfig()
    with pytest.raises(ValueError, match="max_searches to 0"):
        open_environment(replace(config, data=replace(config.data, world="sparks")))
