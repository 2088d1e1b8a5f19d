"""Published results, as the papers print them; nothing here was measured with this code.

They lie in data/published, a column a task. qa.csv: exact match, 0 to 1, with Wikipedia 2018 and an
E5 retriever (2512.04220v2, tables 1, 2 and 4; rows marked (S) it takes from Search-R1, 2503.09516).
maths.csv: accuracy in percent, best score over training (Lp-Reg, 2510.03222v2, table 1). An empty
cell was not reported.
"""

import csv
import math
from dataclasses import dataclass

from lldlib.config import data_dir

QA_TASKS = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2Wiki", "MuSiQue", "Bamboogle")
QA_COLUMNS = (*QA_TASKS[:3], "Gen-Avg", *QA_TASKS[3:], "MH-Avg", "Avg")
MATHS_TASKS = ("AIME24", "AIME25", "MATH500", "Minerva", "Olympiad")
MATHS_COLUMNS = (*MATHS_TASKS, "Avg")


@dataclass(frozen=True)
class PublishedRow:
    """One row of a paper's table; `values` in the order of the columns, nan: not reported."""

    model: str
    method: str
    values: tuple[float, ...]


def qa_rows() -> list[PublishedRow]:
    """The rows of qa.csv, their values in the order of QA_COLUMNS."""
    return _rows("qa.csv", QA_COLUMNS)


def maths_rows() -> list[PublishedRow]:
    """The rows of maths.csv, their values in the order of MATHS_COLUMNS."""
    return _rows("maths.csv", MATHS_COLUMNS)


def _rows(name: str, columns: tuple[str, ...]) -> list[PublishedRow]:
    with open(data_dir() / "published" / name, encoding="utf-8", newline="") as file:
        return [
            PublishedRow(
                row["model"],
                row["method"],
                tuple(float(row[column]) if row[column] else math.nan for column in columns),
            )
            for row in csv.DictReader(file)
        ]
