"""Official files into train, held-out and corpus files: cuts of the official forms, made here."""

import gzip
import json

import pytest
from pyarrow import Table
from pyarrow.parquet import write_table

from lldlib.files import read_jsonl
from lldlib.retrieval.passages import load_corpus
from lldlib.train.lessons import load_gold_paths
from lldlib.world.benchmarks import load_questions
from lldlib.world.prepare import NAMES, SOURCES, part_of, prepare, report

HOTPOT = {
    "_id": "5a7a",
    "question": "Who directed the film of 1994?",
    "answer": "Ann Lee",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["The Film", 0], ["Ann Lee", 1]],
    "context": [
        ["The Film", ["The Film is of 1994.", " Ann Lee directed it."]],
        ["Ann Lee", ["Ann Lee is a director.", " She was born in Rome."]],
        ["Rome", ["Rome is a city."]],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was the director of The Film born?",
    "answer": "Rome",
    "answer_aliases": ["Roma"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Oslo", "paragraph_text": "Oslo is cold.", "is_supporting": False},
        {"idx": 1, "title": "The Film", "paragraph_text": "By Ann Lee.", "is_supporting": True},
        {"idx": 2, "title": "Ann Lee", "paragraph_text": "Born in Rome.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "The Film >> director", "answer": "Ann Lee"},
        {"id": 2, "question": "#1 >> place of birth", "answer": "Rome"},
    ],
}
TRIVIA = {
    "QuestionId": "tc_1",
    "Question": "Which city lies on the Tiber?",
    "Answer": {"Value": "Rome", "Aliases": ["Roma", "Rome"], "NormalizedAliases": ["rome"]},
}


def like(row, **changes):
    return {**row, **changes}


def save(path, rows):
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def save_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def save_parquet(path, rows):
    write_table(Table.from_pylist(rows), path)
    return path


def rows_of(path):
    return [row for _, row in read_jsonl(path)]


def test_hotpotqa_as_it_is_downloaded(tmp_path):
    other = like(HOTPOT, _id="b", question="What else?", answer="yes")
    train = save(tmp_path / "hotpot_train_v1.1.json", [HOTPOT, other, other])
    dev = save(
        tmp_path / "hotpot_dev_distractor_v1.json",
        [like(HOTPOT, _id="c"), like(HOTPOT, _id="d", question="New?", answer="Nobody")],
    )
    counts = prepare("hotpotqa", [train, dev], tmp_path / "out")
    assert (counts.read, counts.repeated, counts.in_heldout) == (5, 1, 1)
    assert (counts.train, counts.heldout, counts.passages, counts.answered) == (1, 2, 3, 0.5)
    assert [q.id for q in load_questions(tmp_path / "out/train.jsonl")] == ["b"]
    (first, _) = rows_of(tmp_path / "out/heldout.jsonl")
    assert first["golden_answers"] == ["Ann Lee"]
    assert first["supporting_titles"] == ["The Film", "Ann Lee"]
    assert first["context"][0] == {
        "title": "The Film",
        "text": "The Film is of 1994. Ann Lee directed it.",
    }
    assert [p.title for p in load_corpus(tmp_path / "out/corpus.jsonl")] == [
        *("The Film", "Ann Lee", "Rome")
    ]
    path = load_gold_paths(tmp_path / "out/heldout.jsonl")[0]
    assert [hop.query for hop in path.hops] == ["The Film", "Ann Lee"]
    told = report("hotpotqa", tmp_path / "out", counts)
    assert "read 5 rows of 2 files" in told and "50% of the held-out answers" in told


TITLES = [title for title, _ in HOTPOT["context"]]
SENTENCES = [text for _, text in HOTPOT["context"]]
GOLD = {"title": ["The Film", "Ann Lee"], "sent_id": [0, 1]}
IN_PARQUET = {  # context and gold facts, as the hub's files of HotpotQA and of 2Wiki have them
    "columns": ({"title": TITLES, "sentences": SENTENCES}, GOLD),
    "columns, other name": ({"title": TITLES, "content": SENTENCES}, GOLD),
    "JSON": (json.dumps(HOTPOT["context"]), json.dumps(HOTPOT["supporting_facts"])),
    "objects": (
        [{"title": title, "sentences": text} for title, text in HOTPOT["context"]],
        [{"title": title, "sent_id": number} for title, number in HOTPOT["supporting_facts"]],
    ),
}


@pytest.mark.parametrize("kind", IN_PARQUET)
@pytest.mark.parametrize("name", ["hotpotqa", "2wiki"])
def test_parquet_files_hold_the_same_rows(tmp_path, name, kind):
    context, facts = IN_PARQUET[kind]
    row = like(HOTPOT, context=context, supporting_facts=facts)
    if name == "hotpotqa":  # the hub's has id for _id
        row["id"] = row.pop("_id")
    others = [like(row, question=f"{letter}?") for letter in "BC"]
    files = [
        save_parquet(tmp_path / "train-00000-of-00002.parquet", [row]),
        save_parquet(tmp_path / "train-00001-of-00002.parquet", others[:1]),
        save_parquet(tmp_path / "validation-00000-of-00001.parquet", others[1:]),
    ]
    one = prepare(name, files, tmp_path / "one")
    assert (one.train, one.heldout, one.passages, one.answered) == (2, 1, 3, 1)
    plain = [
        save(tmp_path / "train.json", [HOTPOT, like(HOTPOT, question="B?")]),
        save(tmp_path / "dev.json", [like(HOTPOT, question="C?")]),
    ]
    prepare(name, plain, tmp_path / "two")
    for part in ("train", "heldout", "corpus"):
        assert rows_of(tmp_path / f"one/{part}.jsonl") == rows_of(tmp_path / f"two/{part}.jsonl")
    assert len(load_gold_paths(tmp_path / "one/train.jsonl")[0].hops) == 2


SEARCH_R1 = {  # a row of its train.parquet
    "id": "train_0",
    "question": "who saw it",
    "golden_answers": ["Cy", "C. Y."],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer the given question. who saw it?"}],
    "ability": "fact-reasoning",
    "reward_model": {"ground_truth": {"target": ["Cy", "C. Y."]}, "style": "rule"},
    "extra_info": {"index": 0, "split": "train"},
}


@pytest.mark.parametrize("name", ["nq", "triviaqa"])
@pytest.mark.parametrize("without", [None, "golden_answers", "reward_model"])
def test_parquet_files_of_search_r1(tmp_path, name, without):
    rows = [SEARCH_R1, like(SEARCH_R1, id="train_1", question="who sang it")]
    rows += [like(SEARCH_R1, question="who asks", golden_answers=[], reward_model=no_answer())]
    rows = [{key: value for key, value in row.items() if key != without} for row in rows]
    file = save_parquet(tmp_path / "train.parquet", rows)
    counts = prepare(name, [file], tmp_path / "out", heldout=1)
    assert (counts.read, counts.without_answer) == (3, 1)
    assert (counts.train, counts.heldout, counts.passages) == (1, 1, 0)
    both = [*rows_of(tmp_path / "out/train.jsonl"), *rows_of(tmp_path / "out/heldout.jsonl")]
    assert {row["id"] for row in both} == {"train_0", "train_1"}
    assert all(row["golden_answers"] == ["Cy", "C. Y."] for row in both)


def test_files_that_mix_data_sets_are_told_of(tmp_path):
    kinds = ("nq", "hotpotqa", "nq")
    rows = [like(SEARCH_R1, question=f"q{n}", data_source=kind) for n, kind in enumerate(kinds)]
    file, out = save_parquet(tmp_path / "train.parquet", rows), tmp_path / "out"
    counts = prepare("nq", [file], out, heldout=1)
    assert "the files mix data sets, and all are kept: nq 2, hotpotqa 1" in report(
        "nq", out, counts
    )
    alone = prepare("nq", [save_parquet(tmp_path / "train1.parquet", rows[::2])], out, heldout=1)
    assert "all are kept" not in report("nq", out, alone)


def no_answer():
    return {"ground_truth": {"target": []}, "style": "rule"}


def test_parquet_files_of_triviaqa_and_nq_on_the_hub(tmp_path):
    answer = {"aliases": ["Roma", "Rome"], "value": "Rome", "normalized_aliases": ["rome"]}
    rows = [{"question": q, "question_id": q[-2], "answer": answer} for q in ("q1?", "q2?")]
    prepare("triviaqa", [save_parquet(tmp_path / "train.parquet", rows)], tmp_path / "t", heldout=1)
    (row,) = rows_of(tmp_path / "t/train.jsonl")
    assert row["golden_answers"] == ["Rome", "Roma"] and row["id"] in "12"
    rows = [{"question": q, "answer": ["Ann Lee", "A. Lee"]} for q in ("q1", "q2")]
    prepare("nq", [save_parquet(tmp_path / "train.parquet", rows)], tmp_path / "n", heldout=1)
    assert rows_of(tmp_path / "n/train.jsonl")[0]["golden_answers"] == ["Ann Lee", "A. Lee"]


def test_parquet_without_pyarrow_is_one_line(tmp_path, monkeypatch):
    file = save_parquet(tmp_path / "train.parquet", [{"question": "q", "answer": ["a"]}])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'lldlib\[benchmarks\]'"):
        prepare("nq", [file], tmp_path / "out")


def test_musique_keeps_its_steps_and_drops_what_cannot_be_answered(tmp_path):
    lost = like(MUSIQUE, id="2hop__3", question="Lost?", answerable=False)
    train = save_lines(tmp_path / "musique_ans_v1.0_train.jsonl", [MUSIQUE, lost])
    dev = save_lines(tmp_path / "musique_ans_v1.0_dev.jsonl", [like(MUSIQUE, question="Dev?")])
    counts = prepare("musique", [train, dev], tmp_path / "out")
    assert (counts.without_answer, counts.train, counts.heldout) == (1, 1, 1)
    (row,) = rows_of(tmp_path / "out/train.jsonl")
    assert row["golden_answers"] == ["Rome", "Roma"]
    assert row["supporting_idx"] == [1, 2] and row["type"] == "2hop"
    (path,) = load_gold_paths(tmp_path / "out/train.jsonl")
    assert [hop.query for hop in path.hops] == ["The Film director", "Ann Lee place of birth"]
    assert load_questions(tmp_path / "out/train.jsonl")[0].hops == 2


def test_nq_in_its_three_forms(tmp_path):
    official = {"question": "who wrote it", "answer": ["Ann Lee", "A. Lee"]}
    flash = {"id": "train_7", "question": "who sang it?", "golden_answers": ["Bo"]}
    search_r1 = {
        "question": "who saw it",
        "reward_model": {"ground_truth": {"target": ["Cy"]}, "style": "rule"},
    }
    empty = {"question": "who knows", "answer": []}
    file = save_lines(tmp_path / "NQ-open.train.jsonl", [official, flash, search_r1, empty])
    counts = prepare("nq", [file], tmp_path / "out", heldout=1)
    assert (counts.train, counts.heldout, counts.passages) == (2, 1, 0)
    assert counts.without_answer == 1 and not (tmp_path / "out/corpus.jsonl").exists()
    both = load_questions(tmp_path / "out/train.jsonl") + load_questions(
        tmp_path / "out/heldout.jsonl"
    )
    assert {q.text: q.answers for q in both} == {
        "who wrote it": ("Ann Lee", "A. Lee"),
        "who sang it?": ("Bo",),
        "who saw it": ("Cy",),
    }
    assert "search needs a corpus" in report("nq", tmp_path / "out", counts)


def test_triviaqa_has_its_rows_under_data(tmp_path):
    rows = [TRIVIA, like(TRIVIA, QuestionId="tc_2", Question="Who?")]
    file = save(tmp_path / "unfiltered-web-train.json", {"Data": rows, "Domain": "unfiltered"})
    prepare("triviaqa", [file], tmp_path / "out", heldout=1)
    both = rows_of(tmp_path / "out/train.jsonl") + rows_of(tmp_path / "out/heldout.jsonl")
    assert {row["id"] for row in both} == {"tc_1", "tc_2"}
    assert all(row["golden_answers"] == ["Rome", "Roma"] for row in both)


def test_the_two_forms_of_wiki18(tmp_path):
    lines = [{"id": "0", "contents": '"Rome"\nRome is a city.\nIt is old.'}]
    packed = tmp_path / "wiki-18.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(lines[0]).encode()))
    table = tmp_path / "psgs_w100.tsv"
    table.write_text('id\ttext\ttitle\n1\t"Oslo is ""cold""."\tOslo\n', encoding="utf-8")
    counts = prepare("wiki18", [packed, table], tmp_path / "out")
    assert counts.passages == 2
    assert rows_of(tmp_path / "out/corpus.jsonl") == [
        {"id": "0", "text": "Rome is a city.\nIt is old.", "title": "Rome"},
        {"id": "1", "title": "Oslo", "text": 'Oslo is "cold".'},
    ]
    assert load_corpus(packed)[0].title == "Rome"  # a run may also read it as it is


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    file = save_lines(
        tmp_path / "train.jsonl", [{"question": f"q{i}", "answer": "a"} for i in "ab"]
    )
    out = tmp_path / "mine"
    out.mkdir()
    for name in ("thesis.txt", "corpus.jsonl"):  # a name that a made folder may have proves nothing
        (out / name).write_text("mine")
        with pytest.raises(ValueError, match=f"mine holds {name}, which prepare did not make"):
            prepare("nq", [file], out, heldout=1)
        assert [path.name for path in out.iterdir()] == [name]
        (out / name).unlink()
    for _ in range(2):  # its own may be made again
        prepare("nq", [file], tmp_path / "own", heldout=1)


@pytest.mark.parametrize(
    ("name", "file", "text", "says"),
    [
        ("squad", "train.json", "[]", "unknown data set 'squad': use one of hotpotqa"),
        ("nq", "answers.jsonl", '{"question": "a", "answer": ["b"]}', "neither train nor dev"),
        ("hotpotqa", "train.json", "[1]", "want a list of JSON objects"),
        ("hotpotqa", "train.json", '[{"question": "a", "answer": "b"}]', "row 0: not of HotpotQA"),
        (
            "hotpotqa",
            "train.json",
            '[{"_id": "a", "question": "b", "answer": "c", "supporting_facts": {"title": ["d"]}}]',
            r"row 0: not of HotpotQA \(KeyError: 'sentences'\)",
        ),
        (
            "nq",
            "train.json",
            '[{"question": "a", "answer": "b", "supporting_facts": [], "context": []}]',
            r"row 0: not of Natural Questions, open \(ValueError: it has paragraphs, as HotpotQA",
        ),
        ("hotpotqa", "train.json", "[", "not JSON"),
        (
            "hotpotqa",
            "train.json",
            '[{"_id": "a", "question": "b"}]',
            r"no question with an answer in 1 rows of .*train\.json: want hotpot_train",
        ),
        ("nq", "train.jsonl", '{"question": "a", "answer": ["b"]}', "would be held out"),
        ("wiki18", "wiki.tsv", "a\tb\n", "want the columns id, text, title"),
    ],
)
def test_what_is_refused(tmp_path, name, file, text, says):
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        prepare(name, [tmp_path / file], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_one_line(tmp_path):
    packed = gzip.compress(json.dumps([HOTPOT] * 50).encode())
    half = tmp_path / "hotpot_train.json.gz"
    half.write_bytes(packed[: len(packed) // 2])
    plain = tmp_path / "hotpot_train2.json.gz"
    plain.write_text(json.dumps([HOTPOT]))
    latin = tmp_path / "hotpot_train3.json"
    latin.write_bytes('[{"question": "Où?"}]'.encode("latin-1"))
    for file, says in ((half, "damaged gzip"), (plain, "damaged gzip"), (latin, "not UTF-8")):
        with pytest.raises(ValueError, match=f"{file.name}: {says}"):
            prepare("hotpotqa", [file], tmp_path / "out")
    cut = tmp_path / "psgs_w100.tsv"
    cut.write_text("id\ttext\ttitle\n1\tBorn in Rome.\tAnn Lee\n2\tOslo is")
    with pytest.raises(ValueError, match=r"psgs_w100\.tsv:3: not three fields"):
        prepare("wiki18", [cut], tmp_path / "out")


@pytest.mark.parametrize("change", [{"question": None}, {"answer": 1994}])
def test_a_row_whose_question_or_answer_is_no_text_is_named(tmp_path, change):
    file = save(tmp_path / "hotpot_train.json", [HOTPOT, like(HOTPOT, **change)])
    with pytest.raises(ValueError, match=r"hotpot_train\.json, row 1: not of HotpotQA"):
        prepare("hotpotqa", [file], tmp_path / "out")


def test_without_files_it_says_where_they_are(tmp_path):
    for name in NAMES:
        with pytest.raises(ValueError, match=r"--from FILES \(.*(from|hub)"):
            prepare(name, [], tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"nq is NQ-open\.train"):
        prepare("nq", [tmp_path / "NQ-open.train.jsonl"], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "part"),
    [("hotpot_dev_fullwiki_v1.json", "heldout"), ("NQ-open.train.jsonl", "train")],
)
def test_a_name_says_which_part_it_is(tmp_path, name, part):
    assert part_of(tmp_path / name) == part
    assert set(SOURCES) < set(NAMES)
