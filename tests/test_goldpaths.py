"""Gold trajectories from made rows."""

import json
import random
from pathlib import Path

import pytest
from benchmark_files import BENCHMARKS, needs_benchmarks, write_rows
from gold_rows import HOTPOT, MUSIQUE, paragraph

from lldlib.train.lessons import gold_lesson, load_gold_paths
from lldlib.world.protocol import parse_action

TRAIN = ("2wiki_context_train", "hotpotqa_distractor_train", "musique_context_train")


@pytest.fixture
def file(tmp_path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", (MUSIQUE, HOTPOT))


def test_hops_follow_the_decomposition_or_else_the_titles(file):
    decomposed, titled = load_gold_paths(file)
    assert [(h.query, h.passage.title, h.finding) for h in decomposed.hops] == [
        ("Blue Song writer", "Blue Song", "Ann Lee"),
        ("Where was Ann Lee born?", "Ann Lee", "Lima"),
    ]
    # the title that the question names comes first
    assert [h.query for h in titled.hops] == ["Blue Song", "Ann Lee"]
    # each passage tells the next title, the last one the answer
    assert [h.finding for h in titled.hops] == ["Ann Lee", "Lima"]
    for path in (decomposed, titled):
        assert [p.title for p in path.others] == ["Noise", "Other"]


def test_a_step_may_name_its_passage_and_a_row_its_last_thought(tmp_path):
    steps = [{"question": "about Lima", "answer": "Blue Song", "title": "Blue Song"}]
    row = MUSIQUE | {"decomposition": steps, "last_thought": "Both in Lima."}
    (path,) = load_gold_paths(write_rows(tmp_path / "rows.jsonl", [row]))
    assert [(h.passage.title, h.finding) for h in path.hops] == [("Blue Song", "Blue Song")]
    last = gold_lesson(path, random.Random(0), top_k=2)[-1][0]
    assert last == "<think> Both in Lima. </think>\n<answer> Lima </answer>"


def test_a_passage_that_does_not_name_what_comes_next_has_no_finding(tmp_path):
    context = [paragraph("Blue Song (1972)", "A song."), paragraph("Ann Lee", "Born in Lima.")]
    row = HOTPOT | {"context": context, "supporting_titles": ["Blue Song (1972)", "Ann Lee"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    path = load_gold_paths(tmp_path / "rows.jsonl")[0]
    assert [(h.query, h.finding) for h in path.hops] == [
        ("Blue Song (1972)", ""),
        ("Ann Lee", "Lima"),
    ]
    assert "Blue Song (1972)." in gold_lesson(path, random.Random(0), top_k=1)[1][0]  # the title


def test_a_no_is_not_found_in_a_longer_word(tmp_path):
    context = [paragraph("Ann Lee", "She won a Nobel prize."), paragraph("Bo", "Bo came north.")]
    row = HOTPOT | {"context": context, "supporting_titles": ["Ann Lee", "Bo"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"golden_answers": ["no"]}))
    assert load_gold_paths(tmp_path / "rows.jsonl")[0].hops[-1].finding == ""  # not in "north"


def test_ten_sub_questions_are_told_apart(tmp_path):
    steps = [{"question": f"step {n}", "answer": f"a{n}"} for n in range(1, 11)]
    row = MUSIQUE | {"decomposition": [*steps, {"question": "#1 and #10", "answer": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    assert load_gold_paths(tmp_path / "rows.jsonl")[0].hops[-1].query == "a1 and a10"


def test_a_row_without_gold_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(HOTPOT) + "\n" + json.dumps(HOTPOT | {"id": "x", "context": []}))
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: no paragraph"):
        load_gold_paths(path)


def test_a_demonstration_asks_reads_and_answers(file):
    path = load_gold_paths(file)[0]
    seen = set()
    for seed in range(20):
        turns = gold_lesson(path, random.Random(seed), top_k=2)
        actions = [parse_action(text) for text, _ in turns]
        assert [(a.kind, a.content) for a in actions] == [
            ("search", "Blue Song writer"),
            ("search", "Where was Ann Lee born?"),
            ("answer", "Lima"),
        ]
        assert [len(read) for _, read in turns] == [2, 2, 0]
        for hop, (_, read) in zip(path.hops, turns, strict=False):
            assert hop.passage in read and len(set(read)) == 2
            seen.add(read.index(hop.passage))
        assert "Ann Lee" in turns[1][0].split("</think>")[0]  # what was found is taken up
    assert seen == {0, 1}
    again = gold_lesson(path, random.Random(0), top_k=2)
    assert again == gold_lesson(path, random.Random(0), top_k=2)
    assert len(gold_lesson(path, random.Random(0), top_k=99)[0][1]) == 3  # all there is


@needs_benchmarks
@pytest.mark.parametrize("name", TRAIN)
def test_real_rows(name):
    """Every hop's passage is gold, and most passages hold what the hop finds."""
    paths = load_gold_paths(BENCHMARKS / f"{name}.jsonl")
    assert len(paths) >= 100
    hops = [hop for path in paths for hop in path.hops]
    assert all(1 <= len(path.hops) <= 6 for path in paths)
    assert all(hop.passage not in path.others for path in paths for hop in path.hops)
    if name == "musique_context_train":
        held = [hop.finding.lower() in hop.passage.text.lower() for hop in hops]
        assert sum(held) / len(held) > 0.8
        assert not any("#" in hop.query for hop in hops)
