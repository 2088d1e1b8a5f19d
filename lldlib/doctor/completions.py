"""Completions of any framework -> answers in the order of training.

Read: this project's rollouts.jsonl; TRL's logged completions (parquet, with pyarrow, or JSONL);
verl's rollout_data_dir and validation_data_dir (N.jsonl); answers printed in a console log. Only
the policy's own words are kept: what tools returned is taken out.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from lldlib.files import LINE

PER_STEP = 64  # answers of a step that are read; a step of verl may have thousands
MOST = 20_000  # answers that are kept; of more every second one goes
HEAD, TAIL = 3_000, 1_000  # characters of a long text that are kept
FOLDERS = (  # where frameworks write answers; those of training come first
    *("completions", "rollout_data", "rollout_data_dir", "rollouts", "generations"),
    *("validation_data", "validation_data_dir", "val_generations"),
)
TEXTS = ("completion", "completions", "output", "response", "generation", "model_output", "text")
QUESTIONS = ("question", "prompt", "input", "query", "problem")
STEPS = ("step", "global_step", "global_steps", "training_step", "iteration")
SCORES = ("score", "reward", "rewards", "total_reward")
REASONS = ("stop", "stop_reason", "finish_reason", "truncated", "is_truncated")
CUT_WORDS = {"token_budget", "length", "max_tokens", "max_length", "truncated", "true", "1"}
TOOL_SPANS = re.compile(
    r"<(information|result|results|tool_response|tool_result|observation|documents|output)>"
    r".*?(</\1>|\Z)",
    re.DOTALL,
)
USER = re.compile(r"(?:^|\n)(?:<\|im_start\|>)?user\n")
TEMPLATE = re.compile(r"<\|[\w\s]*?\|>|<｜[^｜]*｜>|</?s>")


class NoAnswers(ValueError):
    """No answer was found; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """One completion: the policy's own words."""

    step: float | int
    question: str
    text: str
    score: float | int | None = None
    cut: bool | None = None  # None: the record does not say
    answered: bool | None = None  # a final answer was given; None: the record does not say


def find_answers(path: Path | str) -> Path | None:
    """Where answers lie beside a log: in its folder, or in the log itself."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    for place in (folder / "rollouts.jsonl", *(folder / name for name in FOLDERS)):
        if place.is_file() and place.stat().st_size and path.name != place.name:
            return place
        if place.is_dir() and _files(place):
            return place
    return path if path.is_file() and _prints_answers(path) else None


def read_answers(path: Path | str) -> list[Answer]:
    """Every answer of a file or folder, sorted by step; of a step at most PER_STEP.

    Raises NoAnswers, in one line, where none is found or a package is missing.
    """
    path = Path(path)
    if not path.exists():
        raise NoAnswers(f"{path}: no such file or folder")
    files = _files(path) if path.is_dir() else [path]
    found: list[Answer] = []
    counts: Counter[float] = Counter()
    for file in files:
        for answer in _read(file):
            if counts[answer.step] < PER_STEP:
                counts[answer.step] += 1
                found.append(answer)
            elif len(files) > 1:  # a file is a step
                break
            if len(found) > MOST:
                found = found[::2]
    if not found:
        raise NoAnswers(
            f"{path}: no answers found; read are rollouts.jsonl, TRL's completions, verl's "
            "rollout_data_dir, and JSONL rows with a prompt and a completion"
        )
    return sorted(found, key=lambda answer: answer.step)


def _files(folder: Path) -> list[Path]:
    found = [f for pattern in ("*.jsonl", "*.jsonl.gz", "*.parquet") for f in folder.glob(pattern)]
    if (folder / "rollouts.jsonl").is_file():  # a run folder: not its metrics
        return [folder / "rollouts.jsonl"]
    if not found:
        found = [f for name in FOLDERS for f in _inner(folder / name)]
    return sorted(found, key=lambda file: (_number(file), file.name))


def _inner(folder: Path) -> list[Path]:
    return _files(folder) if folder.is_dir() else []


def _number(file: Path) -> float:
    """The step in a file's name: verl's 120.jsonl, TRL's completions_00120.parquet."""
    digits = re.findall(r"\d+", file.name)
    return float(digits[-1]) if digits else -1.0


def _read(file: Path) -> Iterator[Answer]:
    if file.suffix == ".parquet":
        rows: Iterable[Any] = _parquet(file)
    else:
        first = next(_lines(file), "")
        if not first.lstrip().startswith(("{", "[")):
            yield from _console(file)
            return
        rows = _json(file)
    default = max(_number(file), 0.0)
    for row in rows:
        if isinstance(row, Mapping) and (answer := _answer(row, default)) is not None:
            yield answer


def _text(file: Path) -> TextIO:
    with file.open("rb") as start:
        packed = start.read(2) == b"\x1f\x8b"
    opened = gzip.open if packed else open
    return opened(file, "rt", encoding="utf-8", errors="replace")


def _lines(file: Path) -> Iterator[str]:
    """Its lines; NoAnswers for one that is over LINE long."""
    with _text(file) as text:
        for line in iter(lambda: text.readline(LINE + 1), ""):
            if len(line) > LINE:
                raise NoAnswers(f"{file}: a line of over {LINE:,} characters; break it up")
            yield line


def _json(file: Path) -> Iterator[Any]:
    for line in _lines(file):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):  # half-written, or no row
            continue


def _parquet(file: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise NoAnswers(f"{file}: reading parquet needs pyarrow: pip install pyarrow") from None
    try:
        return parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:
        raise NoAnswers(f"{file}: no whole parquet file ({' '.join(str(error).split())})") from None


# -- one record ------------------------------------------------------------------------------------


def _answer(row: Mapping[str, Any], default: float) -> Answer | None:
    turns = row.get("turns")
    if isinstance(turns, list):  # this project's
        own = [
            t.get("text", "") for t in turns if isinstance(t, dict) and t.get("role") == "action"
        ]
        text, answered = "\n".join(map(str, own)), row.get("answer") is not None
    else:
        name = next((n for n in TEXTS if row.get(n) is not None), None)
        if name is None:
            return None
        text, answered = _words(row[name], own=True), None
    question = next((_asked(_words(row[n], own=False)) for n in QUESTIONS if row.get(n)), "")
    step = next((s for n in STEPS if (s := _float(row.get(n))) is not None), default)
    score = next((s for n in SCORES if (s := _float(row.get(n))) is not None), None)
    reasons = [str(row[n]).lower() for n in REASONS if row.get(n) is not None]
    cut = any(reason in CUT_WORDS for reason in reasons) if reasons else None
    return Answer(step, _short(question), _short(_own(text)), score, cut, answered)


def _words(value: Any, own: bool) -> str:
    """A text, or the messages of a chat: the policy's (`own`), or the last that is a user's."""
    if not isinstance(value, list):
        return str(value)
    turns = [t for t in value if isinstance(t, Mapping)]
    said = [_said(t) for t in turns if (t.get("role") == "assistant") == own]
    if own:
        return "\n".join(said)
    users = [_said(t) for t in turns if t.get("role") == "user"]
    return (users or said or [""])[-1]


def _said(turn: Mapping[str, Any]) -> str:
    content = turn.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [str(p.get("text", "")) if isinstance(p, Mapping) else str(p or "") for p in parts]
    calls = turn.get("tool_calls") or []
    texts += [f"<tool_call>{json.dumps(call, default=str)}</tool_call>" for call in calls]
    return " ".join(texts)


def _asked(prompt: str) -> str:
    """What the user said last in a prompt written out by a chat template."""
    turns = USER.split(prompt)
    return re.split(r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?assistant\s*\Z", turns[-1])[0].strip()


def _own(text: str) -> str:
    """Without what tools returned and without the template's own tokens."""
    return TEMPLATE.sub(" ", TOOL_SPANS.sub(" ", text)).strip()


def _short(text: str) -> str:
    return text if len(text) <= HEAD + TAIL else text[:HEAD] + " " + text[-TAIL:]


def _float(value: Any) -> float | None:
    if isinstance(value, (bool, list, dict)) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == number else None


# -- printed in a console log ----------------------------------------------------------------------

PREFIX = re.compile(r"^(\x1b\[[\d;]*m)?\([^()]*pid=\d+[^()]*\)(\x1b\[[\d;]*m)? ?")
STEP = re.compile(r"\b(?:step|global_step|Step)[:= ]\s*(\d+)\b")
BEGINS = {  # what a print begins with -> what follows it
    "[prompt]": "question",
    "[response]": "text",
    "[ground_truth]": "",
    "[score]": "score",
    "prompt:": "question",
    "model output:": "text",
    "Completion:": "text",
    "Response:": "text",
    "Generated:": "text",
    "reward:": "score",
}
LOGGED = re.compile(r"^\d{4}-\d\d-\d\d[ T][\d:,.]+\s*(?:[-|]\s*[\w.]+\s*){1,3}[-|]\s*")
MARK = re.compile("^(" + "|".join(re.escape(mark) for mark in BEGINS) + r")\s*(.*)", re.DOTALL)
WORTH = re.compile("|".join(re.escape(mark) for mark in BEGINS) + "|[Ss]tep")
MOST_LINES = 400  # of one printed answer
LOOKED = 2_000_000  # characters of a log by which it is told whether it prints answers


def _prints_answers(path: Path) -> bool:
    """Whether a log prints several answers."""
    if path.suffix in (".parquet", ".csv", ".tsv", ".gz") or "tfevents" in path.name:
        return False
    with _text(path) as file:
        head = file.read(LOOKED)
    if head.lstrip().startswith(("{", "[{")):
        return False
    marks = ("[response]", "model output:", "Completion:", "Response:", "Generated:")
    return max(head.count(mark) for mark in marks) >= 4


def _console(path: Path) -> Iterator[Answer]:
    """Printed answers, each at the step that was named last; without steps they are counted."""
    step: float | None = None
    at, count = 0.0, 0  # of the answer that is being read; answers so far
    held: dict[str, list[str]] = {}
    for kind, line in _printed(path):
        if kind == "step":
            step = float(line)
        elif kind == "begin question" or (
            kind == "begin text" and ("question" not in held or "text" in held)
        ):
            if "text" in held:
                yield _from_print(held, at)
                count += 1
            held, at = {}, float(count) if step is None else step
        if kind in ("question", "text", "score"):
            held.setdefault(kind, []).append(line)
    if "text" in held:
        yield _from_print(held, at)


def _printed(path: Path) -> Iterator[tuple[str, str]]:
    """("begin question" or "begin text", ""), (kind, line of it), ("step", its number)."""
    kind, lines = "", 0
    for raw in _lines(path):
        if not kind and not WORTH.search(raw):
            continue
        bare = PREFIX.sub("", raw.rstrip("\n"))
        line = LOGGED.sub("", bare)
        found = MARK.match(line) or re.search(r"(Completion:)\s+(.*)", line)
        if found is not None:
            kind, lines = BEGINS[found[1]], 0
            if kind in ("question", "text"):
                yield f"begin {kind}", ""
            if kind:
                yield kind, found[2]
            continue
        named = STEP.search(line) if len(line) != len(bare) or " - " in line else None
        if named is not None:
            yield "step", named[1]
        lines += 1
        if len(line) != len(bare) or lines > MOST_LINES or named is not None:
            kind = ""  # the logger speaks again
        if kind in ("question", "text"):
            yield kind, line


def _from_print(held: Mapping[str, list[str]], step: float) -> Answer:
    text, question = "\n".join(held["text"]), _asked("\n".join(held.get("question", [])))
    numbers = re.findall(r"-?\d+\.?\d*", " ".join(held.get("score", [])))
    score = float(numbers[-1]) if numbers else None
    return Answer(step, _short(question), _short(_own(text)), score)
