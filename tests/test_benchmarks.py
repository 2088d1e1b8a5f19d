"""The table of benchmarks, the folder loader and the hub loader."""

import pytest
from benchmark_files import BENCHMARKS, needs_benchmarks, question_row, write_rows

from lldlib.types import Question
from lldlib.world.benchmarks import (
    GROUPS,
    TASKS,
    Hub,
    Task,
    find_tasks,
    load_benchmark,
    load_from_hub,
    map_rows,
    to_questions,
)

NQ = TASKS["nq"]


def test_the_table_holds_the_papers_tasks_and_protocol():
    qa = ["NQ", "TriviaQA", "PopQA", "HotpotQA", "2Wiki", "MuSiQue", "Bamboogle"]
    maths = ["AIME24", "AIME25", "MATH500", "Minerva", "Olympiad"]
    assert [TASKS[name].title for name in GROUPS["all"]] == qa + maths
    many = {name for name, task in TASKS.items() if task.samples != 1}
    assert many == {"aime24", "aime25"}
    assert {(TASKS[n].samples, TASKS[n].temperature) for n in many} == {(16, 0.6)}
    assert all(task.temperature == 0 for name, task in TASKS.items() if name not in many)
    assert all(task.hub is not None for task in TASKS.values())


@pytest.mark.parametrize("file", ["nq_open.jsonl", "nq_open.jsonl.gz"])
def test_a_folder_is_read_by_the_table_plain_or_packed(tmp_path, file):
    write_rows(tmp_path / file, [question_row("a", "x", "y"), question_row("b", "z")])
    assert load_benchmark(NQ, tmp_path) == [
        Question("a", "what is a?", ("x", "y")),
        Question("b", "what is b?", ("z",)),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([question_row("a", "x"), question_row("b")], "nq_open.jsonl:2: question 'b' has no ans"),
        ([question_row("a", "x")] * 2, "nq_open.jsonl:2: id 'a' is already taken"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, rows, message):
    write_rows(tmp_path / "nq_open.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        load_benchmark(NQ, tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nq_open\.jsonl: no such file"):
        load_benchmark(NQ, tmp_path)
    with pytest.raises(FileNotFoundError, match="dapo has no normalised file"):
        load_benchmark(TASKS["dapo"], tmp_path)


def test_tasks_are_found_by_group_name_and_file(tmp_path):
    write_rows(tmp_path / "my_own.jsonl", [question_row("a", "x")])
    found = find_tasks(["nq", "qa", "my_own", "nq"], tmp_path)
    assert [task.name for task in found] == [*GROUPS["qa"], "my_own"]
    assert found[-1] == Task("my_own", "my_own", "qa", "my_own", None)
    assert len(find_tasks(["all"], tmp_path)) == 12
    with pytest.raises(ValueError, match="unknown task 'my_other': use all, qa, maths, nq"):
        find_tasks(["my_other"], tmp_path)
    assert find_tasks(["dapo"], None) == [TASKS["dapo"]]
    with pytest.raises(ValueError, match="unknown task 'my_own'"):
        find_tasks(["my_own"], None)
    with pytest.raises(NotADirectoryError, match="no such folder"):
        find_tasks(["nq"], tmp_path / "none")


ROWS = {  # one row in the shape of each data set
    "nq": {"id": "test_0", "question": "who?", "golden_answers": ["Ann", "Anna"]},
    "aime24": {"id": 60, "problem": "who?", "answer": "Ann", "url": "u"},
    "aime25": {"problem": "who?", "answer": "Ann", "id": "0"},
    "math500": {"unique_id": "test/a/1.json", "problem": "who?", "answer": "Ann", "level": 2},
    "olympiadbench": {"id": 1606, "question": "who?", "final_answer": ["Ann"], "unit": None},
    "minerva": {"question": "who?", "answer": "Ann"},
    "dapo": {"prompt": "who?", "solution": "Ann", "extra_info": {"index": "u-1"}},
}
IDS = {
    "nq": "test_0",
    "aime24": "60",
    "aime25": "0",
    "math500": "test/a/1.json",
    "olympiadbench": "1606",
    "minerva": "0",
    "dapo": "u-1",
}


@pytest.mark.parametrize("name", ROWS)
def test_hub_columns_become_normalised_rows(name):
    (question,) = to_questions(map_rows([ROWS[name]], TASKS[name].hub), "x")
    answers = ("Ann", "Anna") if name == "nq" else ("Ann",)
    assert question == Question(IDS[name], "who?", answers)


def test_every_flashrag_row_has_the_same_columns():
    columns = {(t.hub.id, t.hub.question, t.hub.answers) for n in GROUPS["qa"] if (t := TASKS[n])}
    assert columns == {("id", "question", "golden_answers")}
    assert {TASKS[n].hub.path for n in GROUPS["qa"]} == {"RUC-NLPIR/FlashRAG_datasets"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROWS["nq"], {**ROWS["nq"], "golden_answers": []}], "test:1: id 'test_0' is already"),
        ([{**ROWS["nq"], "golden_answers": []}], "test:0: question 'test_0' has no answer"),
        ([{"id": "a", "question": "who?"}], "no column 'golden_answers' among id, question"),
    ],
)
def test_a_bad_hub_row_is_named(rows, message):
    with pytest.raises(ValueError, match=message):
        to_questions(map_rows(rows, NQ.hub), "x")


def test_the_hub_loader_reads_a_local_data_set(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="datasets is not installed (extra `benchmarks`)")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    write_rows(tmp_path / "set" / "test.jsonl", [ROWS["nq"], {**ROWS["nq"], "id": "test_1"}])
    hub = Hub(str(tmp_path / "set"), None, "test", "main", "id", "question", "golden_answers")
    found = load_from_hub(Task("nq", "NQ", "qa", None, hub))
    assert found == [Question(f"test_{i}", "who?", ("Ann", "Anna")) for i in range(2)]


def test_without_a_hub_row_or_the_library_it_says_so(monkeypatch):
    with pytest.raises(ValueError, match="the hub has no rows of 'x' to evaluate on"):
        load_from_hub(Task("x", "x", "qa", "x", None))
    with pytest.raises(ValueError, match="the hub has no rows of 'bamboogle' to train on"):
        load_from_hub(TASKS["bamboogle"], train=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the hub needs datasets"):
        load_from_hub(NQ)


@needs_benchmarks
def test_the_benchmark_folder_holds_all_twelve():
    sizes = {t.name: len(load_benchmark(t, BENCHMARKS)) for t in find_tasks(["all"], BENCHMARKS)}
    assert sizes == {
        "nq": 3610,
        "triviaqa": 1000,
        "popqa": 1000,
        "hotpotqa": 7405,
        "2wiki": 1656,
        "musique": 791,
        "bamboogle": 125,
        "aime24": 30,
        "aime25": 30,
        "math500": 500,
        "minerva": 272,
        "olympiadbench": 675,
    }


def test_no_task_trains_on_the_rows_that_it_evaluates_on():
    both = {name: task for name, task in TASKS.items() if task.train and name != "dapo"}
    assert set(both) == {"nq", "triviaqa", "hotpotqa", "2wiki", "musique"}
    for task in both.values():
        assert task.train.split == "train" != task.hub.split
        assert task.train.path == task.hub.path and task.train.config == task.hub.config
    assert not any(TASKS[name].train for name in (*GROUPS["maths"], "popqa", "bamboogle"))
