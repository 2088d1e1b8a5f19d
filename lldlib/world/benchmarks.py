"""The benchmarks of the papers: one table of where each lies, and the two loaders."""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lldlib.config import Kind
from lldlib.files import read_jsonl, text_field
from lldlib.types import Question


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub; columns may be paths such as extra_info.index."""

    path: str
    config: str | None
    split: str
    revision: str = "main"  # a commit where one is known
    id: str | None = "id"  # column of the id; None: the number of the row
    question: str = "question"
    answers: str = "answer"  # column of one answer or of a list


@dataclass(frozen=True)
class Task:
    """One benchmark: how it is called, found and asked."""

    name: str
    title: str  # the papers' column
    kind: Kind
    file: str | None  # name in a folder of normalised files, without .jsonl or .jsonl.gz
    hub: Hub | None
    samples: int = 1  # answers to each question
    temperature: float = 0.0  # 0 is greedy
    train: Hub | None = None  # rows to train on


def _flashrag(config: str, split: str) -> Hub:
    return Hub("RUC-NLPIR/FlashRAG_datasets", config, split, answers="golden_answers")


def _both(config: str, split: str) -> dict[str, Hub]:
    """The rows that are evaluated on and those to train on, of a set that has both."""
    return {"hub": _flashrag(config, split), "train": _flashrag(config, "train")}


_AIME24 = Hub(
    "HuggingFaceH4/aime_2024", None, "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
    question="problem",
)  # fmt: skip
_AIME25 = Hub(
    "math-ai/aime25", None, "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b", question="problem"
)
_MATH500 = Hub(
    "HuggingFaceH4/MATH-500", None, "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    "unique_id", "problem",
)  # fmt: skip
_OLYMPIAD = Hub(
    "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train",
    "91184b52131e7fc9455fef848035173aea8cc01a", answers="final_answer",
)  # fmt: skip
_MINERVA = Hub("math-ai/minervamath", None, "test", id=None)
_DAPO = Hub(
    "open-r1/DAPO-Math-17k-Processed", "all", "train",
    id="extra_info.index", question="prompt", answers="solution",
)  # fmt: skip
_AIME = {"samples": 16, "temperature": 0.6}  # Lp-Reg, 2510.03222, section 5
TASKS = {
    task.name: task
    for task in (
        Task("nq", "NQ", "qa", "nq_open", **_both("nq", "test")),
        Task("triviaqa", "TriviaQA", "qa", "triviaqa", **_both("triviaqa", "test")),
        Task("popqa", "PopQA", "qa", "popqa", _flashrag("popqa", "test")),
        Task("hotpotqa", "HotpotQA", "qa", "hotpotqa_dev", **_both("hotpotqa", "dev")),
        Task("2wiki", "2Wiki", "qa", "2wiki_dev", **_both("2wikimultihopqa", "dev")),
        Task("musique", "MuSiQue", "qa", "musique_dev", **_both("musique", "dev")),
        Task("bamboogle", "Bamboogle", "qa", "bamboogle", _flashrag("bamboogle", "test")),
        Task("aime24", "AIME24", "maths", "aime24", _AIME24, **_AIME),
        Task("aime25", "AIME25", "maths", "aime25", _AIME25, **_AIME),
        Task("math500", "MATH500", "maths", "math500", _MATH500),
        Task("minerva", "Minerva", "maths", "minerva_math", _MINERVA),
        Task("olympiadbench", "Olympiad", "maths", "olympiadbench", _OLYMPIAD),
        Task("dapo", "DAPO-Math-17k", "maths", None, _DAPO, train=_DAPO),
    )
}
GROUPS = {
    "qa": [name for name, task in TASKS.items() if task.kind == "qa"],
    "maths": [name for name, task in TASKS.items() if task.kind == "maths" and task.file],
}
GROUPS["all"] = GROUPS["qa"] + GROUPS["maths"]


def find_tasks(names: Iterable[str], folder: Path | None) -> list[Task]:
    """The tasks of these names, each once: `all`, `qa`, `maths`, a name of TASKS, or a file.

    A file of `folder`, named without .jsonl, that is in no row of TASKS is a question-answering
    task; no folder means the hub. Raises NotADirectoryError where there is no such folder,
    ValueError for an unknown name.
    """
    if folder is not None and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: no such folder; give the one with the JSONL files")
    found = {}
    for name in names:
        for single in GROUPS.get(name, [name]):
            if single in TASKS:
                found[single] = TASKS[single]
            elif folder and any(path.is_file() for path in _paths(folder, single)):
                found[single] = Task(single, single, "qa", single, None)
            else:
                known = ", ".join(["all", "qa", "maths", *TASKS])
                raise ValueError(f"unknown task '{name}': use {known}, or a file of the folder")
    return list(found.values())


def load_benchmark(task: Task, folder: Path | str) -> list[Question]:
    """The questions of a task from a folder of normalised JSONL files.

    Raises FileNotFoundError naming the missing file, and what `load_questions` raises.
    """
    if task.file is None:
        raise FileNotFoundError(f"{task.name} has no normalised file: load it from the hub")
    plain, packed = _paths(folder, task.file)
    return load_questions(packed if packed.is_file() and not plain.is_file() else plain)


def _paths(folder: Path | str, file: str) -> tuple[Path, Path]:
    return Path(folder, f"{file}.jsonl"), Path(folder, f"{file}.jsonl.gz")


def load_from_hub(task: Task, *, train: bool = False) -> list[Question]:
    """The questions of a task by the `datasets` library; `hub.path` may be a local folder.

    `train` takes the rows to train on, which are never those that are evaluated on. Raises
    ValueError for a task without such rows, without `datasets`, or for a row that is malformed, has
    no answer or repeats an id.
    """
    hub = task.train if train else task.hub
    if hub is None:
        what = "train" if train else "evaluate"
        raise ValueError(f"the hub has no rows of '{task.name}' to {what} on: give a file")
    if importlib.util.find_spec("datasets") is None:
        raise ValueError("the hub needs datasets: pip install 'lldlib[benchmarks]'")
    from datasets import load_dataset

    rows = load_dataset(hub.path, hub.config, split=hub.split, revision=hub.revision)
    return to_questions(map_rows(rows, hub), f"{hub.path} {hub.split}")


def load_source(source: str, kind: Kind, *, train: bool = False) -> list[Question]:
    """The questions of a JSONL file, or of `hub:NAME`, a task of TASKS of this kind.

    `train`: to train on, so never the rows of a test. Raises ValueError for an unknown task or one
    of another kind, and what the loaders raise.
    """
    if not source.startswith("hub:"):
        return load_questions(source)
    task = TASKS.get(source.removeprefix("hub:"))
    if task is None or task.kind != kind:
        able = [t for t in TASKS.values() if t.kind == kind and (t.train if train else t.hub)]
        known = ", ".join(f"hub:{task.name}" for task in able)
        raise ValueError(f"{source} is no {kind} task: use a JSONL file, or one of {known}")
    return load_from_hub(task, train=train)


def map_rows(rows: Iterable[Mapping[str, Any]], hub: Hub) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("data set:row", normalised row) by the hub's columns; rows count from 0."""
    for number, row in enumerate(rows):
        answers = _column(row, hub.answers)
        yield (
            f"{hub.path} {hub.split}:{number}",
            {
                "id": str(number if hub.id is None else _column(row, hub.id)),
                "question": _column(row, hub.question),
                "golden_answers": [answers] if isinstance(answers, str) else answers,
                "type": row.get("type", ""),
            },
        )


def _column(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"no column '{path}' among {', '.join(row)}: mend its row in TASKS")
        value = value[name]
    return value


# -- questions from files ------------------------------------------------------------------------


def load_questions(path: Path | str) -> list[Question]:
    """Read questions from rows {id, question, golden_answers, ...}, in the order of the file.

    Raises FileNotFoundError for a missing file, and what `to_questions` raises, naming file and
    line.
    """
    return to_questions(read_jsonl(path), str(path))


def to_questions(rows: Iterable[tuple[str, dict]], source: str) -> list[Question]:
    """Questions from pairs of a row's place and the row {id, question, golden_answers, ...}.

    `hops` is the leading digit of a `type` such as "2hop" or "3hop1" (MuSiQue), else 0 = unknown.
    Raises ValueError, naming the place, for a row that is malformed, has no answer or repeats an
    id; and, naming the source, where there is no row.
    """
    questions: dict[str, Question] = {}
    for where, row in rows:
        name = text_field(row, "id", where)
        if name in questions:
            raise ValueError(f"{where}: id '{name}' is already taken; make ids unique")
        answers = row.get("golden_answers")
        if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
            raise ValueError(f"{where}: 'golden_answers' is missing or not a list of texts")
        if not any(answer.strip() for answer in answers):
            raise ValueError(f"{where}: question '{name}' has no answer; drop it or add one")
        hops = re.match(r"(\d)hop", str(row.get("type", "")))
        questions[name] = Question(
            id=name,
            text=text_field(row, "question", where),
            answers=tuple(answer for answer in answers if answer.strip()),
            hops=int(hops[1]) if hops else 0,
        )
    if not questions:
        raise ValueError(f"{source}: holds no question")
    return list(questions.values())
