"""Markdown tables of an evaluation: details, the papers' columns, and two policies compared."""

import math
from collections.abc import Iterable, Sequence

from lldlib.evaluate.published import (
    MATHS_COLUMNS,
    MATHS_TASKS,
    QA_COLUMNS,
    QA_TASKS,
    PublishedRow,
    maths_rows,
    qa_rows,
)
from lldlib.evaluate.scores import Estimate, Paired, TaskScores, macro_average, mean_of
from lldlib.files import markdown_table

DETAILS = (
    "task",
    "questions",
    "samples",
    "EM or accuracy [95 %]",
    "F1 [95 %]",
    "valid searches",
    "tokens written",
    "answered",
    "tool errors",
)
AVERAGES = {"Gen-Avg": QA_TASKS[:3], "MH-Avg": QA_TASKS[3:], "Avg": QA_TASKS}


def evaluation_report(policy: str, tasks: Sequence[TaskScores], pairs: Sequence[Paired]) -> str:
    """All that was measured, and beside it the papers' rows where a task of theirs was asked."""
    parts = [f"# {policy}", details_table(tasks)]
    if any(task.title in QA_TASKS for task in tasks):
        parts += ["## Question answering, exact match", qa_table(policy, tasks)]
    if any(task.title in MATHS_TASKS for task in tasks):
        parts += ["## Maths, percent", maths_table(policy, tasks)]
    if pairs:
        parts += ["## Against the other policy, same questions", paired_table(pairs)]
    return "\n\n".join(parts) + "\n"


def details_table(tasks: Sequence[TaskScores]) -> str:
    """One line a task: scores with intervals over questions, searches, length, failures."""
    rows = [
        [
            task.title,
            str(len(task.scores)),
            str(task.samples),
            _with_interval(mean_of(task.scores, task.title)),
            "" if task.f1 is None else _with_interval(mean_of(task.f1, task.title)),
            f"{task.searches:.2f}",
            f"{task.tokens:.0f}",
            f"{100 * task.answered:.0f} %",
            str(task.tool_errors),
        ]
        for task in tasks
    ]
    return markdown_table(DETAILS, rows)


def qa_table(policy: str, tasks: Sequence[TaskScores]) -> str:
    """Exact match in the papers' column order, the published rows below.

    An average stands only where all of its tasks were asked.
    """
    groups = {column: AVERAGES.get(column, (column,)) for column in QA_COLUMNS}
    mine = _own_rows(policy, groups, tasks, scale=1.0, digits=3)
    return _with_published(QA_COLUMNS, mine, qa_rows(), "published, other retriever", digits=3)


def maths_table(policy: str, tasks: Sequence[TaskScores]) -> str:
    """Accuracy in percent in Lp-Reg's column order, the published rows below."""
    groups = {column: (column,) for column in MATHS_TASKS} | {"Avg": MATHS_TASKS}
    mine = _own_rows(policy, groups, tasks, scale=100.0, digits=2)
    return _with_published(MATHS_COLUMNS, mine, maths_rows(), "published", digits=2)


def paired_table(pairs: Iterable[Paired]) -> str:
    """Differences of two policies' scores, question by question."""
    head = ("task", "questions", "difference [95 %]", "better on", "worse on")
    rows = [
        [p.title, str(p.questions), _with_interval(p.difference), str(p.wins), str(p.losses)]
        for p in pairs
    ]
    return markdown_table(head, rows)


def _own_rows(
    policy: str,
    groups: dict[str, Sequence[str]],
    tasks: Sequence[TaskScores],
    *,
    scale: float,
    digits: int,
) -> list[list[str]]:
    """Two lines: the scores, and their intervals."""
    asked = {task.title: task for task in tasks}
    means, intervals = [policy, "this run"], ["", "95 % interval"]
    for titles in groups.values():
        mean = interval = ""
        if all(title in asked for title in titles):
            found = macro_average([asked[title] for title in titles])
            mean = f"{scale * found.mean:.{digits}f}"
            interval = f"{scale * found.low:.{digits}f} to {scale * found.high:.{digits}f}"
        means.append(mean)
        intervals.append(interval)
    return [means, intervals]


def _with_published(
    columns: Sequence[str],
    mine: list[list[str]],
    published: Sequence[PublishedRow],
    mark: str,
    digits: int,
) -> str:
    rows = [
        [row.model, f"{row.method} ({mark})", *(_number(value, digits) for value in row.values)]
        for row in published
    ]
    return markdown_table(("model", "method", *columns), mine + rows)


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _with_interval(value: Estimate) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"
