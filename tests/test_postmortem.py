"""The post-mortem of synthetic runs: phases, order of falling, words, suspects."""

import pytest

from lldlib.runs.folder import Run, RunWriter
from lldlib.runs.phases import collapse_batch
from lldlib.runs.postmortem import mean_logp, post_mortem
from lldlib.show.curves import post_mortem_figure


def record(step, reward, text, logp):
    turns = [{"role": "prompt", "text": "Question: x ?", "logp": []}]
    turns.append({"role": "action", "text": text, "logp": logp})
    return {"question": f"q{step}", "answers": ["y"], "answer": None, "reward": reward} | {
        "turns": turns
    }


@pytest.fixture
def dead(tmp_path) -> Run:
    """Wording falls from batch 10, content from 30, the reward from 40; "so" gets unlikely."""
    writer = RunWriter.create(tmp_path / "dead", {"method": "grpo", "seed": 0})
    for step in range(70):
        late = max(0, step - 40)
        row = {
            "reward/mean": max(0.0, 0.6 - 0.06 * late),
            "probe/free": -1.0 - 0.05 * max(0, step - 10),
            "probe/content": -0.2 - 0.05 * max(0, step - 30),
            "policy/entropy": 0.8 + 0.1 * late,
            "grad/norm": 1.0 + late,
        }
        writer.metrics(step, row)
        writer.rollout(step, record(step, 0.0, "so it", [-0.1 - 0.1 * step, -1.0]))
        writer.rollout(step, record(step, 1.0, "it", [-9.0]))  # unlikelier, but right
    writer.close()
    return Run(tmp_path / "dead")


def test_the_story(dead):
    found = post_mortem(dead)
    # from batch 30 the probe loses half a nat in ten batches, after 40 the reward falls
    assert list(found.begins) == ["steady", "decay", "collapse"]
    assert found.told == "with hindsight"
    assert found.begins["collapse"] == found.collapse.began == 40
    assert found.collapse.known == found.end == collapse_batch(dead.column("reward/mean"))
    # the mean of 5 batches is 0.1 nats under its best where 0.05 (t - 2 - start) > 0.1
    assert found.fallen == [("wording", 15), ("queries and answers", 35)]


def test_words_and_suspects(dead):
    found = post_mortem(dead)
    word = found.words[0]
    assert word.word == "so" and word.count == 20
    assert word.before == pytest.approx(-0.1 - 0.1 * 9.5)
    assert word.after == pytest.approx(-0.1 - 0.1 * (found.end - 9.5))
    assert {s["reward"] for s in found.suspects} == {0.0}
    assert [s["step"] for s in found.suspects] == [found.end - i for i in range(5)]
    assert mean_logp(found.suspects[0]) == pytest.approx((-0.1 - 0.1 * found.end - 1.0) / 2)


def test_a_run_without_records_or_probe(tmp_path):
    writer = RunWriter.create(tmp_path / "bare", {"method": "grpo", "seed": 0})
    for step in range(12):
        writer.metrics(step, {"reward/mean": 0.5})
    writer.close()
    found = post_mortem(Run(tmp_path / "bare"))
    assert (found.end, found.collapse.known, found.alarm) == (11, None, None)
    assert not found.fallen and not found.words and not found.suspects
    assert post_mortem_figure(Run(tmp_path / "bare"), found).axes


def test_the_figure_marks_what_fell(dead):
    figure = post_mortem_figure(dead, post_mortem(dead))
    probe = figure.axes[1]
    marks = [line for line in probe.lines if line.get_marker() == "v"]
    assert [line.get_xdata()[0] for line in marks] == [15, 35]
    assert {text.get_text() for text in probe.texts} == {"wording", "queries and answers"}
