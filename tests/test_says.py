"""What the agent says now: the same two questions, right and wrong at first, and their words."""

import re

from lldlib.runs.folder import Run, RunWriter
from lldlib.show.says import outcome, said_html, said_now, transcripts


def record(question, answer, reward, words="<answer> x </answer>", logp=(-0.1, -6.0, 0.0)):
    turns = [
        {"role": "prompt", "text": f"Question: {question}", "logp": []},
        {"role": "action", "text": words, "logp": list(logp)},
    ]
    return {
        "question": question,
        "answers": ["Lima"],
        "answer": answer,
        "reward": reward,
        "stop": "answer",
        "turns": turns,
    }


def asked(path, *rounds) -> Run:
    """A run whose questions were answered so: of each round the rewards of three questions."""
    writer = RunWriter.create(path, {"method": "grpo", "seed": 0})
    for step, rewards in enumerate(rounds):
        for name, reward in zip(("first ?", "second ?", "third ?"), rewards, strict=True):
            writer.question(step, record(name, "Lima" if reward else "Oslo", reward))
    writer.close()
    return Run(path)


def test_the_two_questions_stay_when_their_answers_turn(tmp_path):
    run = asked(tmp_path / "run", (0.0, 1.0, 1.0), (1.0, 0.0, 0.0))
    now = [(found["question"], found["reward"], found["step"]) for found in said_now(run)]
    assert now == [("second ?", 0.0, 1), ("first ?", 1.0, 1)]
    page = said_html("GRPO + LLDS", run)
    assert "What GRPO + LLDS says after 1 batches" in page and "the same two questions" in page
    assert page.index("second ?") < page.index("✗ wrong, Oslo (wanted Lima)")
    assert page.index("first ?") < page.index("✓ right, Lima")
    assert "third ?" not in page and "Question:" not in page
    (faces,) = {tuple(re.findall(r"--logp-bg:(#\w+)", page)[:2])}
    assert faces[0] != faces[1]  # -0.1 and -6 nats


def test_a_run_that_asks_no_questions_shows_its_last_batch(tmp_path):
    writer = RunWriter.create(tmp_path / "run", {"method": "grpo", "seed": 0})
    assert said_now(Run(tmp_path / "run")) == []
    assert "has said nothing yet" in said_html("A", Run(tmp_path / "run"))
    for step, reward in ((0, 1.0), (1, 0.0), (1, 0.0), (1, 1.0)):
        writer.rollout(step, record(f"{step} ?", "Lima", reward))
    writer.close()
    found = said_now(Run(tmp_path / "run"))
    assert [(one["step"], one["reward"]) for one in found] == [(1, 1.0), (1, 0.0)]
    page = said_html("A", Run(tmp_path / "run"))
    assert "after 2 batches" in page and "two episodes of its last batch" in page


def test_words_of_another_tokenizer_are_plain_and_harmless(tmp_path):
    writer = RunWriter.create(tmp_path / "run", {"method": "grpo", "seed": 0})
    writer.rollout(0, record("why ?", None, 0.0, words="<answer> one two", logp=(-1.0,)))
    writer.close()
    page = said_html("A", Run(tmp_path / "run"))
    assert "&lt;answer&gt; one two" in page and "--logp-bg:" not in page
    assert "✗ no answer (wanted Lima)" in page


def test_transcripts_stand_under_their_names():
    shown = {"at the start": record("q ?", "Oslo", 0.0), "saved": record("q ?", "Lima", 1.0)}
    page = transcripts(shown).value
    assert page.index("at the start: ✗ wrong, Oslo") < page.index("saved: ✓ right, Lima")
    assert page.count("--logp-bg:") == 6
    assert outcome(shown["saved"]) == "✓ right, Lima"
