"""The published rows agree with themselves, and the tables have the papers' columns."""

import math
from dataclasses import replace

import pytest

from lldlib.evaluate.published import (
    MATHS_COLUMNS,
    MATHS_TASKS,
    QA_COLUMNS,
    QA_TASKS,
    maths_rows,
    qa_rows,
)
from lldlib.evaluate.scores import Estimate, Paired, TaskScores
from lldlib.evaluate.tables import evaluation_report, maths_table, paired_table, qa_table


def test_the_columns_are_the_papers():
    assert QA_COLUMNS == (
        "NQ", "TriviaQA", "PopQA", "Gen-Avg",
        "HotpotQA", "2Wiki", "MuSiQue", "Bamboogle", "MH-Avg", "Avg",
    )  # fmt: skip
    assert MATHS_COLUMNS == ("AIME24", "AIME25", "MATH500", "Minerva", "Olympiad", "Avg")
    assert all(len(row.values) == len(QA_COLUMNS) for row in qa_rows())
    assert all(len(row.values) == len(MATHS_COLUMNS) for row in maths_rows())
    assert len(qa_rows()) == 40 and len(maths_rows()) == 20


@pytest.mark.parametrize("row", maths_rows(), ids=lambda row: f"{row.model} {row.method}")
def test_published_maths_averages_are_means(row):
    assert row.values[-1] == pytest.approx(sum(row.values[:-1]) / 5, abs=0.011)


def averages(row) -> list[float]:
    """How far each printed average of a row is from the mean of its printed values."""
    values = dict(zip(QA_COLUMNS, row.values, strict=True))
    groups = {"Gen-Avg": QA_TASKS[:3], "MH-Avg": QA_TASKS[3:], "Avg": QA_TASKS}
    return [
        abs(values[name] - sum(values[t] for t in tasks) / len(tasks))
        for name, tasks in groups.items()
    ]


def test_published_trained_rows_average_to_rounding():
    trained = [row for row in qa_rows() if "GRPO" in row.method or "GSPO" in row.method]
    assert len(trained) == 16
    for row in trained:
        if row.method != "Tree-GRPO":
            assert max(averages(row)) < 0.0016, row


def task(title: str, *scores: float, kind: str = "qa") -> TaskScores:
    values = [float(score) for score in scores]
    return TaskScores(title, kind, values, values if kind == "qa" else None, 1, 1.5, 40.0, 1.0, 0)


def cells(table: str, line: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[line].strip("|").split("|")]


def test_own_scores_stand_in_the_papers_columns_above_the_published_rows():
    tasks = [task("PopQA", 0, 0), task("NQ", 1, 1), task("TriviaQA", 1, 1), task("2Wiki", 1, 0)]
    table = qa_table("mine", tasks)
    assert cells(table, 0) == ["model", "method", *QA_COLUMNS]
    mine = dict(zip(QA_COLUMNS, cells(table, 2)[2:], strict=True))
    assert mine == {
        "NQ": "1.000", "TriviaQA": "1.000", "PopQA": "0.000", "Gen-Avg": "0.667",
        "HotpotQA": "", "2Wiki": "0.500", "MuSiQue": "", "Bamboogle": "", "MH-Avg": "", "Avg": "",
    }  # fmt: skip
    assert cells(table, 2)[:2] == ["mine", "this run"]
    interval = dict(zip(QA_COLUMNS, cells(table, 3)[2:], strict=True))
    assert interval["NQ"] == "1.000 to 1.000" and interval["2Wiki"] == "0.000 to 1.000"
    published = table.splitlines()[4:]
    assert len(published) == 40
    assert all("(published, other retriever)" in line for line in published)
    critic = cells(table, 4 + 11)
    assert critic[1].startswith("CriticSearch") and critic[2] == "" and critic[6] == "0.414"


def test_an_average_needs_all_of_its_tasks():
    table = qa_table("mine", [task(title, 1, 0) for title in QA_TASKS])
    assert cells(table, 2)[2:] == ["0.500"] * 10
    assert cells(qa_table("mine", [task(t, 1) for t in QA_TASKS[1:]]), 2)[-1] == ""


def test_maths_is_in_percent():
    tasks = [task(title, 1, 0, 0, kind="maths") for title in MATHS_TASKS]
    table = maths_table("mine", tasks)
    assert cells(table, 2)[2:] == ["33.33"] * 6
    assert cells(table, 4)[:3] == ["Qwen2.5-32B", "GRPO, off-policy (published)", "30.63"]


def test_the_report_shows_only_what_was_asked():
    text = evaluation_report("mine", [task("own", 1, 0)], [])
    assert text.startswith("# mine\n") and "| own | 2 | 1 | 0.500 [0.000, 1.000] |" in text
    assert "published" not in text and "nan" not in text
    text = evaluation_report("mine", [replace(task("NQ", 1), tool_errors=1)], [])
    assert "published, other retriever" in text and "Maths" not in text and "nan" not in text
    assert cells(text, 4)[-1] == "1"
    text = evaluation_report("mine", [task("AIME24", 1, kind="maths")], [])
    assert "## Maths, percent" in text and "other retriever" not in text


def test_a_comparison_is_a_row():
    table = paired_table([Paired("NQ", 8, Estimate(0.125, -0.1, 0.25), 2, 1)])
    assert cells(table, 2) == ["NQ", "8", "0.125 [-0.100, 0.250]", "2", "1"]
    assert not any(math.isnan(value) for row in maths_rows() for value in row.values)
