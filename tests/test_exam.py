"""Benchmarks asked of scripted policies: each rule of scoring, and what is kept on disk."""

import json
import re
from dataclasses import replace

import helpers
import pytest
from helpers import PLAIN, ScriptedModel, StubRetriever, tiny_policy, world_questions
from helpers import retriever as world_retriever

from lldlib.config import ExamConfig
from lldlib.evaluate.exam import Exam, prediction_file, slice_of
from lldlib.policy.load import Policy
from lldlib.rollout.loop import Rollout
from lldlib.types import Question
from lldlib.world import environment
from lldlib.world.benchmarks import Task
from lldlib.world.protocol import INSTRUCTION, MATHS, TINY

QA = Task("t", "T", "qa", "t", None)
TRAP = "in <answer>trap</answer>"
FOUND = helpers.information(TRAP)


def search_r1_extraction(transcript: str) -> str | None:
    """Search-R1's rule on prompt and response: at least two answer spans, the last one counts."""
    found = re.findall(r"<answer>(.*?)</answer>", INSTRUCTION + transcript, re.DOTALL)
    return found[-1].strip() if len(found) >= 2 else None


# what the policy and the environment say, the prediction, its exact match with "The X", and why
RULES = {
    "plain": (["<answer>x</answer>"], "x", 1.0),
    "article, case and punctuation": (["<answer> the X. </answer>"], "the X.", 1.0),
    "no credit for a part": (["<answer>x y</answer>"], "x y", 0.0),
    "no format reward": (["<think>x</think><answer>y</answer>"], "y", 0.0),
    "the first closing tag ends it": (["<answer>y</answer>", "<answer>x</answer>"], "y", 0.0),
    "after a search": (["<search>q</search>", FOUND, "<answer>x</answer>"], "x", 1.0),
    "an invalid action may be mended": (
        ["x</answer>", PLAIN.invalid_message, "<answer>x</answer>"],
        "x",
        1.0,
    ),
    "a tag inside": (["<answer>a <answer> x</answer>"], "a <answer> x", 0.0),
    "nothing": (["<answer> </answer>"], "", 0.0),
    "the last turn may answer": (
        ["<search>q</search>", FOUND, "<search>q</search>", FOUND, "<answer>x</answer>"],
        "x",
        1.0,
    ),
}
# Search-R1's rule takes an answer that the policy never gave: the prompt's or a passage's
UNANSWERED = {
    "silent": (["x<eos>"], "eos", "Beijing"),
    "a passage's answer": (["<search>q</search>", FOUND, "x<eos>"], "eos", "trap"),
    "no search in the last turn": (
        ["<search>q</search>", FOUND, "<search>q</search>", FOUND, "<search>q</search>"],
        "turn_budget",
        "trap",
    ),
}


@pytest.fixture(autouse=True)
def short_texts(monkeypatch):
    """In place of Search-R1's long instruction, which would cost a character a token."""
    plain = replace(
        environment.RULES["qa"],
        protocol=lambda tokenizer: TINY if "</search>" in tokenizer.get_vocab() else PLAIN,
    )
    monkeypatch.setitem(environment.RULES, "qa", plain)


def scripted(scripts: list[list[str]], prompt=PLAIN.prompt) -> tuple[Policy, list[Question]]:
    """A policy that says these things to the questions q0, q1, ... with the answer "The X"."""
    tokenizer = helpers.character_tokenizer()
    questions = [Question(str(i), f"q{i}", ("The X",)) for i in range(len(scripts))]
    tokens = [
        tokenizer.encode("".join([prompt(q.text), *script]))
        for q, script in zip(questions, scripts, strict=True)
    ]
    model = ScriptedModel(tokens, len(tokenizer), filler=tokenizer.encode("z")[0])
    return Policy(model, tokenizer), questions


def exam(policy, folder, retriever=None, **config) -> Exam:
    settings = ExamConfig(**{"rows": 4, "max_searches": 2, "max_tokens": 250, **config})
    return Exam(policy, retriever or StubRetriever([TRAP]), settings, folder, {"policy": "p"})


def test_every_rule_of_scoring(tmp_path):
    policy, questions = scripted([script for script, _, _ in RULES.values()])
    found = {p.id: p for p in exam(policy, tmp_path).ask(QA, questions, progress=False)}
    for number, (rule, (script, prediction, score)) in enumerate(RULES.items()):
        one = found[str(number)]
        assert (one.prediction, one.score) == (prediction, score), rule
        said = script if rule != "the first closing tag ends it" else script[:1]
        assert search_r1_extraction("".join(said)) == prediction, rule
    assert found["2"].f1 == pytest.approx(2 / 3)  # "x y" against "x"
    assert found["5"].searches == 1 and found["6"].invalid == 1
    assert found["0"].tokens == len("<answer>x</answer>") and found["0"].golden_answers == ["The X"]


def test_what_the_policy_did_not_answer_is_no_answer(tmp_path):
    policy, questions = scripted([script for script, _, _ in UNANSWERED.values()])
    found = {p.id: p for p in exam(policy, tmp_path).ask(QA, questions, progress=False)}
    for number, (script, stop, theirs) in enumerate(UNANSWERED.values()):
        one = found[str(number)]
        assert (one.prediction, one.score, one.f1, one.stop) == (None, 0.0, 0.0, stop)
        assert search_r1_extraction("".join(script)) == theirs


def test_maths_takes_the_last_box_else_the_answer_tag(tmp_path, monkeypatch):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    monkeypatch.setattr(helpers, "CHARACTERS", helpers.CHARACTERS + "\\{}")
    said = ["\\boxed{1} \\boxed{X}<eos>", "<answer>X</answer>", "X<eos>", "<search>X</search>"]
    policy, questions = scripted([[text] for text in said], MATHS.prompt)
    questions = [Question(q.id, q.text, ("X",)) for q in questions]
    retriever = StubRetriever(["X"])
    asked = exam(policy, tmp_path, retriever, maths_tokens=200)
    task = Task("m", "M", "maths", "m", None, samples=2)
    found = asked.ask(task, questions, progress=False)
    assert {(p.id, p.sample) for p in found} == {(str(i), n) for i in range(4) for n in range(2)}
    by_id = {p.id: p for p in found}
    assert [by_id[str(i)].prediction for i in range(4)] == ["X", "X", None, None]
    assert [by_id[str(i)].score for i in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert all(p.f1 is None and p.searches == 0 for p in found) and retriever.calls == []


def test_an_answer_without_its_search_is_asked_again(tmp_path):
    scripts = [["<answer>x</answer>"], ["<search>q</search>", FOUND, "<answer>x</answer>"]]
    policy, questions = scripted(scripts)
    found = exam(policy, tmp_path, StubRetriever(None)).ask(QA, questions, progress=False)
    assert {p.id: p.stop for p in found} == {"0": "answer", "1": "tool_error"}
    found = exam(policy, tmp_path).ask(QA, questions, progress=False)
    assert {p.id: p.stop for p in found} == {"0": "answer", "1": "answer"}
    lines = prediction_file(tmp_path, QA).read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == ["0", "1"]


SAMPLED = Task("s", "S", "qa", "s", None, samples=3, temperature=0.6)


def sampled(folder, **config) -> Exam:
    policy = tiny_policy()
    return exam(policy, folder, world_retriever(), **{"max_tokens": 30, "rows": 4, **config})


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("unbroken")
    sampled(folder).ask(SAMPLED, world_questions(4), progress=False)
    return prediction_file(folder, SAMPLED).read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 0.99, 1.0])
def test_killed_anywhere_it_goes_on_to_the_same_file(unbroken, share, tmp_path):
    asked = sampled(tmp_path)
    path = prediction_file(tmp_path, SAMPLED)
    path.write_bytes(unbroken[: int(share * len(unbroken))])
    found = asked.ask(SAMPLED, world_questions(4), progress=False)
    assert path.read_bytes() == unbroken
    assert len(found) == 12 == len({(p.id, p.sample) for p in found})


def test_samples_differ_and_what_is_there_is_not_asked_again(unbroken, tmp_path, monkeypatch):
    rows = [json.loads(line) for line in unbroken.splitlines()]
    spoken = {}
    for row in rows:
        spoken.setdefault(row["id"], set()).add((row["tokens"], row["prediction"], row["stop"]))
    assert any(len(kinds) > 1 for kinds in spoken.values())
    asked = sampled(tmp_path)
    prediction_file(tmp_path, SAMPLED).write_bytes(unbroken)
    monkeypatch.setattr(Rollout, "run", None)  # asking anything would raise
    assert len(asked.ask(SAMPLED, world_questions(4), progress=False)) == 12


def test_a_larger_limit_only_adds(tmp_path):
    questions = [Question(str(i), f"q{i}", ("x",)) for i in range(6)]
    policy, _ = scripted([["<answer>x</answer>"]] * 6)
    few = exam(policy, tmp_path, limit=2).ask(QA, questions, progress=False)
    before = prediction_file(tmp_path, QA).read_bytes()
    more = exam(policy, tmp_path, limit=5).ask(QA, questions, progress=False)
    assert len(few) == 2 and len(more) == 5 and more[:2] == few
    assert prediction_file(tmp_path, QA).read_bytes().startswith(before)
    assert exam(policy, tmp_path, limit=2).ask(QA, questions, progress=False) == few


def test_a_slice_is_the_same_whatever_the_order():
    questions = [Question(str(i), f"q{i}", ("x",)) for i in range(50)]
    assert slice_of(questions, 10) == slice_of(questions[::-1], 10) == slice_of(questions, 20)[:10]
    assert slice_of(questions, 10) != questions[:10] and len(slice_of(questions, None)) == 50


def test_a_folder_belongs_to_one_way_of_asking(tmp_path):
    policy, questions = scripted([["<answer>x</answer>"]])
    exam(policy, tmp_path).ask(QA, questions, progress=False)
    with pytest.raises(ValueError, match="holds answers with max_tokens = 250, not 99: use"):
        exam(policy, tmp_path, max_tokens=99)
    for broken, said in (("[1]", "holds no settings"), ('{"a', "is broken")):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "settings.json").write_text(broken)
        with pytest.raises(ValueError, match=said):
            exam(policy, tmp_path / "other")
    with pytest.raises(ValueError, match="'0' was another question"):
        exam(policy, tmp_path).ask(QA, [Question("0", "other", ("x",))], progress=False)
    for wrong in ({"rows": 0}, {"limit": 0}):
        with pytest.raises(ValueError, match="is 0: use a whole number of 1 or more"):
            exam(policy, tmp_path / "new", **wrong)
    assert not (tmp_path / "new").exists()
