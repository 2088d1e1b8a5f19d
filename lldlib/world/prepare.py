"""Official question files, as they are downloaded, made into train, held-out and corpus files.

What comes out are JSON lines: questions {id, question, golden_answers, ...}, with their paragraphs
and look-ups where the source has them (for `sft`), and passages {id, title, text}.
"""

import csv
import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lldlib.files import (
    load_json,
    missing,
    open_text,
    read_jsonl,
    reading,
    remade_folder,
    write_json,
    writing,
)
from lldlib.retrieval.passages import read_corpus
from lldlib.world.answers import normalise_answer

# all that a folder made here holds; one with anything else is left alone
PREPARED = "prepared.json"  # in every folder that was made here
MADE = ("train.jsonl", "heldout.jsonl", "corpus.jsonl")
HELD_OUT_SEED = 0
PARTS = {"train": ("train",), "heldout": ("dev", "valid", "test")}  # words of a file's name

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """One data set: how a row of its official files is read, and where these are."""

    title: str
    where: str  # what to download, and from where
    read: Callable[[Row], Row | None]  # an official row as a normalised one; None: no answer


@dataclass
class Counts:
    """What became of the rows."""

    files: dict[str, str] = field(default_factory=dict)  # part of each file
    read: int = 0
    without_answer: int = 0
    repeated: int = 0  # the same question again
    in_heldout: int = 0  # training questions that are held out too, and were dropped
    train: int = 0
    heldout: int = 0
    passages: int = 0
    sources: dict[str, int] = field(default_factory=dict)  # rows by their `data_source`
    answered: float | None = None  # share of held-out questions whose answer stands in the corpus


# -- the formats -----------------------------------------------------------------------------------


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """[[title, x], ...] as the official JSON has it; parquet holds columns, objects or JSON."""
    if isinstance(value, str):
        value = load_json(value)
    if isinstance(value, dict):
        return list(zip(*_title_and_other(value), strict=True))
    pairs = (_title_and_other(pair) if isinstance(pair, dict) else pair for pair in value)
    return [(title, other) for title, other in pairs]


def _title_and_other(fields: Row) -> tuple[Any, Any]:
    other = next((name for name in ("content", "sent_id") if name in fields), "sentences")
    return fields["title"], fields[other]


def _paragraphs(row: Row) -> Row:
    """What HotpotQA and 2Wiki have beside the question: paragraphs, and which of them are gold."""
    gold = [title for title, _ in _pairs(row["supporting_facts"])]
    return {
        "type": row.get("type", ""),
        "context": [
            {"title": title, "text": " ".join(map(str.strip, sentences))}
            for title, sentences in _pairs(row["context"])
        ],
        "supporting_titles": list(dict.fromkeys(gold)),
    }


def _multi_hop(row: Row) -> Row | None:
    answer = row.get("answer")
    if not answer:
        return None
    about = {"id": str(row.get("_id", row.get("id"))), "question": row["question"]}
    return about | {"golden_answers": [answer]} | _paragraphs(row)


def _musique(row: Row) -> Row | None:
    if not row.get("answerable", True) or not row.get("answer"):
        return None
    gold = [p["idx"] for p in row["paragraphs"] if p["is_supporting"]]
    titles = [p["title"] for p in row["paragraphs"]]
    return {
        "id": row["id"],
        "question": row["question"],
        "golden_answers": list(dict.fromkeys([row["answer"], *row.get("answer_aliases", [])])),
        "type": row["id"].split("__")[0],
        "context": [{"title": p["title"], "text": p["paragraph_text"]} for p in row["paragraphs"]],
        "supporting_idx": gold,
        "supporting_titles": [titles[i] for i in gold],
        "decomposition": [
            {"question": step["question"], "answer": step["answer"]}
            for step in row["question_decomposition"]
        ],
    }


def _nq(row: Row) -> Row | None:
    """NQ-open's own lines, FlashRAG's, or a row of Search-R1's parquet files."""
    if "supporting_facts" in row or "paragraphs" in row:
        raise ValueError("it has paragraphs, as HotpotQA, 2Wiki and MuSiQue do")
    answers = row.get("answer", row.get("golden_answers"))
    if answers is None and "reward_model" in row:
        answers = row["reward_model"]["ground_truth"]["target"]
    answers = [answers] if isinstance(answers, str) else list([] if answers is None else answers)
    if not any(answer.strip() for answer in answers):
        return None
    return {"id": str(row.get("id", "")), "question": row["question"], "golden_answers": answers}


def _triviaqa(row: Row) -> Row | None:
    if "golden_answers" in row or "reward_model" in row:
        return _nq(row)
    answer = row.get("Answer", row.get("answer"))
    if not answer:
        return None
    value = answer.get("Value", answer.get("value"))
    aliases = answer.get("Aliases", answer.get("aliases", []))
    return {
        "id": str(row.get("QuestionId", row.get("question_id"))),
        "question": row.get("Question", row.get("question")),
        "golden_answers": list(dict.fromkeys([value, *aliases])),
    }


SOURCES = {
    "hotpotqa": Source(
        "HotpotQA",
        "hotpot_train_v1.1.json and hotpot_dev_distractor_v1.json from hotpotqa.github.io",
        _multi_hop,
    ),
    "2wiki": Source(
        "2WikiMultihopQA",
        "train.json and dev.json from github.com/Alab-NII/2wikimultihop",
        _multi_hop,
    ),
    "musique": Source(
        "MuSiQue",
        "musique_ans_v1.0_train.jsonl and musique_ans_v1.0_dev.jsonl from "
        "github.com/StonyBrookNLP/musique",
        _musique,
    ),
    "nq": Source(
        "Natural Questions, open",
        "NQ-open.train.jsonl and NQ-open.dev.jsonl from "
        "github.com/google-research-datasets/natural-questions (nq_open)",
        _nq,
    ),
    "triviaqa": Source(
        "TriviaQA",
        "unfiltered-web-train.json and unfiltered-web-dev.json from nlp.cs.washington.edu/triviaqa",
        _triviaqa,
    ),
}
WIKI18 = (
    "wiki-18.jsonl.gz (PeterJinGo/wiki-18-corpus on the Hugging Face hub), or DPR's "
    "psgs_w100.tsv.gz from github.com/facebookresearch/DPR"
)
NAMES = (*SOURCES, "wiki18")


# -- reading ---------------------------------------------------------------------------------------


def official_rows(path: Path) -> Iterator[Row]:
    """The rows of an official file: JSON (a list, or a list under `Data`), JSON lines, or parquet.

    Raises FileNotFoundError for a missing file, and ValueError for one of another form.
    """
    if not path.is_file():
        raise FileNotFoundError(missing(path))
    if ".parquet" in path.suffixes:
        yield from _parquet(path)
        return
    with reading(path), open_text(path) as file:
        start = file.read(4096).lstrip()
    if start[:1] == "[" or '"Data"' in start.split("[")[0]:
        yield from _json_list(path)
        return
    for _, row in read_jsonl(path):
        yield row


def _json_list(path: Path) -> Iterator[Row]:
    with reading(path), open_text(path) as file:
        text = file.read()
    try:
        value = load_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); download it again") from error
    rows = value.get("Data") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: want a list of JSON objects, or one under 'Data'")
    yield from rows


def _parquet(path: Path) -> Iterator[Row]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError("a parquet file needs pyarrow: pip install 'lldlib[benchmarks]'")
    from pyarrow.parquet import ParquetFile

    for batch in ParquetFile(path).iter_batches(1000):
        yield from batch.to_pylist()


def part_of(path: Path) -> str:
    """Whether a file is for training or held out, by its name; ValueError where that is mute."""
    for part, words in PARTS.items():
        if any(word in path.name.lower() for word in words):
            return part
    raise ValueError(f"{path}: its name holds neither train nor dev: rename it, to say which it is")


# -- making ----------------------------------------------------------------------------------------


def prepare(name: str, files: Iterable[Path], out: Path, *, heldout: int = 500) -> Counts:
    """Make `out`/train.jsonl, heldout.jsonl and, where there are paragraphs, corpus.jsonl.

    A file's name says whether it is for training (train) or held out (dev, valid, test). Where no
    file is held out, `heldout` training questions are, drawn by a fixed seed. A training question
    that is held out too is dropped. For wiki18: `out`/corpus.jsonl alone. Raises ValueError for an
    unknown name, no file, a row of another form (naming file and row), or a folder that holds
    anything else, and FileNotFoundError for a missing file.
    """
    files = [Path(file) for file in files]
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}: use one of {', '.join(NAMES)}")
    source = SOURCES.get(name)  # None: wiki18, which has passages alone
    where = source.where if source else WIKI18
    if not files:
        raise ValueError(f"no files: name what you downloaded, --from FILES ({where})")
    if missing := [file for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{missing[0]}: no such file; {name} is {where}")
    out = Path(out)
    with remade_folder(out, "prepare", PREPARED, *MADE) as fresh:
        counts = (
            _questions(source, files, fresh, heldout) if source else _passages_only(files, fresh)
        )
        write_json(fresh / PREPARED, {"name": name, **vars(counts)})
    return counts


def _questions(source: Source, files: list[Path], out: Path, heldout: int) -> Counts:
    counts = Counts(files={str(file): part_of(file) for file in files})
    parts: dict[str, dict[str, Row]] = {"train": {}, "heldout": {}}
    for file in files:
        _gather(source, file, parts[counts.files[str(file)]], counts)
    if not any(parts.values()):
        raise ValueError(
            f"no question with an answer in {counts.read:,} rows of {files[0]}: want {source.where}"
        )
    if not parts["heldout"]:
        keys = sorted(parts["train"])
        if len(keys) <= heldout:
            raise ValueError(
                f"{len(keys)} questions, of which {heldout} would be held out: lower --heldout"
            )
        for key in random.Random(HELD_OUT_SEED).sample(keys, heldout):
            parts["heldout"][key] = parts["train"].pop(key)
    for key in parts["heldout"].keys() & parts["train"].keys():
        del parts["train"][key]
        counts.in_heldout += 1
    passages = _corpus(row for rows in parts.values() for row in rows.values())
    counts.train, counts.heldout = len(parts["train"]), len(parts["heldout"])
    counts.passages = len(passages)
    for part, rows in parts.items():
        if rows:
            _write(out / f"{part}.jsonl", _with_ids(rows.values()))
    if passages:
        counts.answered = _answered(parts["heldout"].values())
        _write(out / "corpus.jsonl", passages)
    return counts


def _gather(source: Source, file: Path, rows: dict[str, Row], counts: Counts) -> None:
    """Add a file's questions, each once, by their normalised text."""
    for number, official in enumerate(official_rows(file)):
        counts.read += 1
        try:
            row = source.read(official)
            if row is not None:
                key = " ".join(row["question"].lower().split()).rstrip("?").strip()
                _all_text(row["golden_answers"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                f"{file}, row {number}: not of {source.title} ({type(error).__name__}: {error}); "
                f"want {source.where}"
            ) from error
        if row is None:
            counts.without_answer += 1
            continue
        if kind := official.get("data_source"):
            counts.sources[kind] = counts.sources.get(kind, 0) + 1
        counts.repeated += key in rows
        rows.setdefault(key, row)


def _all_text(answers: Iterable[Any]) -> None:
    for answer in answers:
        if not isinstance(answer, str):
            raise TypeError(f"the answer {answer!r} is no text")


def _with_ids(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows whose ids are there and differ; one without gets its number."""
    taken: set[str] = set()
    for number, row in enumerate(rows):
        name = row["id"] or str(number)
        name = name if name not in taken else f"{name}-{number}"
        taken.add(name)
        yield row | {"id": name}


def _corpus(rows: Iterable[Row]) -> list[Row]:
    """Every paragraph once."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for paragraph in row.get("context", []):
            found.setdefault((paragraph["title"], paragraph["text"]))
    return [
        {"id": str(number), "title": title, "text": text}
        for number, (title, text) in enumerate(found)
    ]


def _answered(rows: Iterable[Row]) -> float:
    """The share of questions whose answer stands in their own paragraphs, or is yes or no."""
    right = total = 0
    for row in rows:
        read = " ".join(normalise_answer(p["text"]) for p in row.get("context", []))
        answers = [normalise_answer(answer) for answer in row["golden_answers"]]
        right += any(a in ("yes", "no") or f" {a} " in f" {read} " for a in answers)
        total += 1
    return right / max(1, total)


def _passages_only(files: list[Path], out: Path) -> Counts:
    counts = Counts(files={str(file): "corpus" for file in files})

    def rows() -> Iterator[Row]:
        for file in files:
            for passage in _tsv(file) if ".tsv" in file.suffixes else read_corpus(file):
                counts.read += 1
                yield passage if isinstance(passage, dict) else vars(passage)

    _write(out / "corpus.jsonl", rows())
    counts.passages = counts.read
    return counts


def _tsv(path: Path) -> Iterator[Row]:
    """DPR's passages: id, text, title."""
    csv.field_size_limit(sys.maxsize)
    with reading(path), open_text(path) as file:
        reader = csv.DictReader(file, delimiter="\t")
        if reader.fieldnames != ["id", "text", "title"]:
            raise ValueError(f"{path}: want the columns id, text, title")
        for row in reader:
            if None in row.values() or None in row:
                raise ValueError(f"{path}:{reader.line_num}: not three fields; download it again")
            yield {"id": row["id"], "title": row["title"], "text": row["text"]}


def _write(path: Path, rows: Iterable[Row]) -> None:
    with writing(path), path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def report(name: str, out: Path, counts: Counts) -> str:
    """What was made, line by line, and the command that comes next."""
    lines = [f"read {counts.read:,} rows of {len(counts.files)} files"]
    lines += [f"  {file}: {part}" for file, part in counts.files.items()]
    if len(counts.sources) > 1:
        told = ", ".join(f"{kind} {number:,}" for kind, number in counts.sources.items())
        lines.append(f"the files mix data sets, and all are kept: {told}")
    dropped = {
        "without an answer": counts.without_answer,
        "the same question again": counts.repeated,
        "held out too, so not trained on": counts.in_heldout,
    }
    lines += [f"dropped {number:,}: {why}" for why, number in dropped.items() if number]
    if name != "wiki18":
        lines.append(f"train.jsonl {counts.train:,} questions, heldout.jsonl {counts.heldout:,}")
    if counts.passages:
        lines.append(f"corpus.jsonl {counts.passages:,} passages")
    else:
        lines.append("no paragraphs in these files: search needs a corpus, such as wiki18")
    if counts.answered is not None:
        lines.append(f"{counts.answered:.0%} of the held-out answers stand in their paragraphs")
    return "\n".join([*lines, f"written to {out}"])
