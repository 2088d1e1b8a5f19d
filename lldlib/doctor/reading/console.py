"""Console logs: verl's `step:N - key:value`, printed dicts, and any `key: value` pairs.

What is printed beside the training's own rows is told apart: answers with their rewards, progress
bars of an evaluation, the settings at the start, and the error at the end.
"""

import ast
import json
import re
import warnings
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from lldlib.doctor.reading.log import (
    MOST_NAMES,
    NAN,
    Columns,
    Ending,
    Log,
    Row,
    is_settings,
    is_summary,
    number,
    numbers,
    plain,
    printable,
)
from lldlib.doctor.reading.signals import GUESSED, GUESSES, read_name

WANDB_CUT = 4_095  # W&B's output.log cuts its lines at 4,096 characters: the last number is half
SHORT_LINE = 100  # characters of a line that may name a step and nothing else
LOOSE_LINE = 5_000  # characters of a line of loose pairs; a longer one is text
TAIL = 80  # lines after the last row that are kept, to see how the process ended
AFTER_ERROR = 12  # lines that may follow an error that ended the process
APART = "rewards printed apart from the training's rows"
AGAIN = "printed again with the same numbers"
SAMPLES = 3  # values of one column a step from which on they are printed answers

_RAY = re.compile(r"^\s*\([\w.:<>-]+(?: pid=\d+)?(?:, ip=[\d.]+)?\)\s?(?:\[repeated[^\]]*\])?\s*")
_VERL = re.compile(r"(?:^|[\s(])(?:step|global_step)\s*:\s*(\d+)(?=\s*(?:- |$|\0))")
_NUMERAL = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?%?(?:/\d+)?|nan|NaN|[-+]?inf|[-+]?Infinity"
_QUOTED = re.compile(
    rf"""['"]([^'"]{{1,120}})['"]\s*:\s*((?:np\.\w+\()?['"]?(?:{_NUMERAL})['"]?\)?)\s*(?=[,}}])"""
)
_COMMA = r"[-+]?\d+(?:,\d+)+(?:\.\d+)?(?:[eE][-+]?\d+)?%?"  # of thousands, or a decimal one
_LOOSE = re.compile(
    r"(?<![A-Za-z0-9_/.@-])"
    r"(/?[A-Za-z_][\w/.@-]*+%?(?:\(\w+\))?(?: [A-Za-z_][\w.]*+){0,3}+)\s*+[:=]\s*"
    rf"({_COMMA}|{_NUMERAL})([kKM]?)(?=[\s;|)\]±]|\+/?-|,(?!\d)|$)"
)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?%?")
_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}
_PAIR = re.compile(r"[:=]\s*(?:[-+]?\.?\d|nan|[-+]?inf)", re.I)
_UNDER = re.compile(  # a heading such as `Validation Results:`
    r"\W*(validation|eval|evaluation|test|heldout)"
    r"(?: (?:results?|metrics|scores?|set|summary))*\W*",
    re.I,
)
_BRACE = re.compile(r"[{}]")
_FLAT = re.compile(r"\{[^{}]*\}")
_SAYS_NOTHING = re.compile(  # of which number it is
    r"mean|avg\.?|average|total|overall|current|running|final|train(?:ing|er)?|(?:mini)?batch|epoch|"
    r"step|iter(?:ation)?|update|rollout|episode|group|sample|policy|actor|model|agent|the|new|info|"
    r"debug|log|results?|metrics|stats|rl|ppo|grpo",
    re.I,
)
_STATISTIC = re.compile(r"/?(?:mean|avg|average|min|max|std|median|sum)", re.I)
_COUNT = r"(\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_STEP_WORD = re.compile(
    r"\b(?:global[_ ]step|step|iter(?:ation)?|batch|update|rollout|round|episode)\s*[#:=]?\s*"
    rf"\[?{_COUNT}",
    re.I,
)
_STEP_OF = re.compile(
    rf"^\W*(?:\[[^\]]*\]\s*)?{_COUNT}\s*/\s*[\d,]*\d\s*[|,:\]\-]|\]\s*\({_COUNT}/[\d,]*\d\)"
)
_BEFORE_DICT = re.compile(
    rf"\b(?:rollout|(?:global_)?step|iter(?:ation)?|update)\s*[#:=]?\s*{_COUNT}\W*"
    r"(?:\beval\w*\s*[:=]\s*)?$",
    re.I,
)
_EVALUATES = re.compile(  # a line that tells of an evaluation and of nothing else
    r"(?:\[(?!e?val)[^\]]*+\]|[^\w\[]++|\[|\d[\d:.,T-]*+|(?:INFO|SUCCESS|WARNING|DEBUG)\b|"
    r"[\w.]++:\d++\s+-)*+"
    r"(?:evaluated|evaluation|eval|validated|validation|val)\b(?![/.@:=-]\w)"
    r"(?:(?<=ated)(?: on)?\s+(?!(?:the|an?|all|at|in|on|after|model|policy|checkpoint|step)\b)"
    r"([a-z][\w./-]*))?",
    re.I,
)
_OF_EVALUATION = re.compile(r"(?:eval|val|validation|test|heldout|held_out|dev)(?:[ _/.]|$)", re.I)
_NAMED = re.compile(r"([A-Za-z_][\w/.-]*)\s*[:=]\s*$")
_EVAL_BAR = re.compile(r"\b(?:eval|test|valid|predict)\w*\b[^|]*\d+%\|", re.I)
_TRAINS = re.compile(r"loss|learning|\blr\b|grad|l2_norm|kl|entropy|adv", re.I)
_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")


@dataclass
class _Rows:
    """The rows of one way to print them; `own` says that a row stands beside a loss or a rate."""

    log: Log
    own: array = field(default_factory=lambda: array("b"))
    near: array = field(default_factory=lambda: array("d"))  # the last step that was named before

    def add(self, row: Row, wanted: Columns, own: bool = False, near: float = NAN) -> bool:
        if not self.log.add(row, wanted):
            return False
        self.own.append(own)
        self.near.append(near)
        return True


class Console:
    """Takes a console log line by line."""

    def __init__(self, name: str, wanted: Columns):
        self.wanted = wanted
        self.verl = _Rows(Log(name, "verl console log"))
        self.dicts = _Rows(Log(name, "console log"))
        self.forms: Counter[str] = Counter()  # who prints dicts like that -> how many of them
        self.loose = _Rows(Log(name, "console log with key: value pairs"))
        self.pending: Row = {}  # a verl step that may go on in the next line
        self.waiting: Row = {}  # loose pairs that the next lines may add to
        self.waiting_own = False
        self.waiting_step = NAN
        self.before = "\n"  # the line before
        self.scales: dict[str, float | None] = {}  # a verl column -> its factor, None if unread
        self.names: dict[str, str] = {}  # loose names -> the part of them that is in the table
        self.step = NAN  # the last step named in a loose line
        self.brace = ""  # a dict that is printed over several lines
        self.under = ""  # the evaluation whose heading stands over the lines
        self.decimal = ""  # the mark that decimals have, once a number has shown it
        self.clock = NAN  # seconds, from the last line that begins with a time
        self.tail: deque[str] = deque(maxlen=TAIL)  # lines since the last row

    def line(self, raw: str, cut: bool) -> None:
        """Take one line; the last number of a line that was cut is half a number."""
        text = plain(raw)
        text = _RAY.sub("", text) if text.lstrip().startswith("(") else text
        time = _CLOCK.search(text[:40]) if "-" in text[:16] else None
        if time:
            self.clock = _seconds(time[1])
        if self._take(text, cut):
            self.tail.clear()
        elif text.strip():
            self.tail.append(text[:400])

    def _take(self, line: str, cut: bool) -> bool:
        found = _VERL.search(line) if "step" in line and ":" in line else None
        if found and " - " in line:
            self._verl_row()
            self.pending = {"step": float(found[1])} | self._pairs(line[found.end(1) :], cut)
            return len(self.pending) > 1
        if self.pending and line.lstrip().startswith("- ") and ":" in line:
            self.pending |= self._pairs(" " + line.lstrip(), cut)  # metrics over more lines
            return True
        if self.brace or "{" in line:
            return self._dict(line)
        heading = _UNDER.fullmatch(line)
        if heading or line[:1] not in " \t•*-":
            self.under = heading[1].lower().replace("evaluation", "eval") if heading else ""
        pairs = "=" in line or ":" in line or "/" in line
        if not self.verl.log.rows and (
            pairs or (len(line) < SHORT_LINE and _STEP_WORD.search(line))
        ):
            return self._loose_row(line, {}, cut)
        return False

    # -- verl --------------------------------------------------------------------------------------

    def _verl_row(self) -> None:
        if self.pending:
            self.verl.add(self.pending | self._time(), self.wanted, own=True)
            self.pending = {}

    def _pairs(self, text: str, cut: bool) -> Row:
        """`- key:value` pairs that are wanted."""
        row: Row = {}
        for part in text.split(" - ")[: -1 if cut else None]:
            name, colon, value = part.strip().rpartition(":")
            if not colon:
                continue
            scale = self.scales[name] if name in self.scales else self._scale(name)
            known = None if scale is None else number(value)
            if known is not None:
                row[name] = known * scale
        return row

    def _scale(self, name: str) -> float | None:
        """The factor of a verl column's unit; None for one that nothing reads."""
        self.verl.log.saw(name)
        kept = name in self.wanted or read_name(name)
        scale = read_name(name).scale if kept else None
        if len(self.scales) < MOST_NAMES:
            self.scales[name] = scale
        return scale

    # -- dicts -------------------------------------------------------------------------------------

    def _dict(self, line: str) -> bool:
        """TRL's `{'loss': 0.1, ...}` on one line or on several, and dicts that a name leads."""
        text = self.brace + line
        took = False
        for before, whole in _braces(text):
            row = _mapping(whole)
            if row is None or is_settings(row):
                continue
            if is_summary(row):
                self.dicts.log.refused["a summary at the end"] += 1
                self.dicts.log.latest = numbers(row)
                continue
            values = numbers(row, self.dicts.log)
            lead, step = _NAMED.search(before), _BEFORE_DICT.search(before)
            under = _evaluation(before) or ("eval" if lead and lead[1].startswith("eval") else "")
            values = {_beneath(under, name): v for name, v in values.items()} if under else values
            if step and "step" not in values:
                values["step"] = _count(step[1])
            elif lead and len(_LOOSE.findall(before)) > 0:  # the dict is one value of the line
                inside = numbers({lead[1]: row})
                took = self._loose_row(before[: lead.start()], inside, False) or took
                continue
            own = any(_TRAINS.search(name) for name in values)
            self.forms[_form(before, values)] += own
            took = self.dicts.add(values | self._time(), self.wanted, own) or took
        rest = text[text.rfind("{") :] if text.rfind("{") > text.rfind("}") else ""
        opened = rest[:2] in ("{'", '{"') or rest.strip() == "{"
        self.brace = rest + " " if opened and len(rest) < 20_000 else ""
        return took

    # -- loose pairs -------------------------------------------------------------------------------

    def _loose_row(self, line: str, inside: Row, cut: bool) -> bool:
        """`step 10 | reward=0.3, kl: 0.01`; lines that follow each other add to one row."""
        if cut or len(line) > LOOSE_LINE or ("%|" in line and _EVAL_BAR.search(line)):
            return False
        row, own = self._loose_pairs(line) if _PAIR.search(line) else ({}, False)
        if not row and not inside and len(line) > SHORT_LINE:
            return False
        row |= inside
        found = _STEP_OF.search(line) or _STEP_WORD.search(line)
        step = _count(found[1] or found[2]) if found else self.step
        useful = {n: v for n, v in row.items() if n in self.wanted or read_name(n)}
        if (found and _STEP_OF.match(line)) or (
            found and "step" not in useful and _signals(useful)
        ):
            useful["step"] = step
        bare, before = line.strip(), self.before
        self.before = bare or before
        again = bare != before and (bare.endswith(before) or before.endswith(bare))
        if again and useful and all(self.waiting.get(n) == v for n, v in useful.items()):
            self.loose.log.refused[AGAIN] += 1  # by a second handler, which adds the time
            return True
        clash = any(n in self.waiting for n in useful.keys() - {"step"})
        if clash or (found and not _signals(useful)):
            self._flush()
        self.step = step
        if not _signals(useful) and not (useful and self.waiting):
            return False
        if not self.waiting:
            self.waiting_step = self.step
        self.waiting |= useful
        self.waiting_own |= own
        return True

    def _loose_pairs(self, line: str) -> tuple[Row, bool]:
        """The pairs of a line by the names that are known; whether a loss or a rate is among them.

        `Rewards: min=0, mean=0.5` is read as Rewards/min and Rewards/mean.
        """
        row: Row = {}
        own, head = False, ""
        under = _evaluation(line)
        pairs = list(_LOOSE.finditer(line))
        if not self.decimal:
            marks = (_mark(found[2]) for found in pairs if self._measured(found[1]))
            self.decimal = next(filter(None, marks), "")
        for found in pairs:
            name, value = found[1], self._number(found[2])
            if value is None:
                continue
            value *= _UNITS[found[3]]
            last = name.split()[-1]
            if _STATISTIC.fullmatch(last):
                words = name.split()[:-1]
                head = " ".join(words) if words else head or _heading(line[: found.start()])
                name = f"{head}/{last.lstrip('/')}" if head else last
            else:
                head = (
                    name.rpartition("/")[0] if _STATISTIC.fullmatch(name.rpartition("/")[2]) else ""
                )
            own = own or (not (under or self.under) and bool(_TRAINS.search(name)))
            if under:
                name = _beneath(under, name)
                known = self._name(name)
                name = known if known.startswith(under) else name
            else:
                name = self._name(f"{self.under}/{name}" if self.under else name)
            row[name] = value * read_name(name).scale
        return row, own

    def _measured(self, name: str) -> bool:
        """Whether a loose name is one that is read, and no setting such as gpus: 0,1."""
        known = _known(name, self.wanted)
        return known in self.wanted or bool(read_name(known) or _STATISTIC.fullmatch(name))

    def _number(self, text: str) -> float | None:
        """A number with or without a comma, which is read once the file's decimals are known."""
        if "," not in text:
            return number(text)
        if self.decimal == ",":
            return number(text.replace(",", "."))
        thousands = self.decimal == "." and _THOUSANDS.fullmatch(text)
        return number(text.replace(",", "")) if thousands else None

    def _name(self, name: str) -> str:
        """Of a loose name the part that is in the table, remembered."""
        known = self.names.get(name)
        if known is None:
            known = _known(name, self.wanted)
            self.loose.log.saw(known)
            if len(self.names) < MOST_NAMES:
                self.names[name] = known
        return known

    def _flush(self) -> None:
        row, self.waiting = self.waiting, {}
        own, self.waiting_own = self.waiting_own, False
        if _signals(row):
            self.loose.add(row | self._time(), self.wanted, own, row.get("step", self.waiting_step))

    def _time(self) -> Row:
        return {"_timestamp": self.clock} if self.clock == self.clock else {}

    # -- what it all is ----------------------------------------------------------------------------

    def close(self) -> Log:
        """The log of the way of printing that holds the most rewards, with its end."""
        self._verl_row()
        self._flush()
        for rows in (self.dicts, self.loose):
            _refuse_answers(rows, rows is self.dicts)
        _take_steps(self.loose)
        all_rows = (self.verl, self.dicts, self.loose)
        form = max(self.forms, key=self.forms.__getitem__, default="")
        self.dicts.log.format = f"{form} console log".strip()
        best = self.verl if _rewards(self.verl) else self.dicts
        if best is self.dicts and _rewards(best) <= _rewards(self.loose) // 2:
            best = self.loose
        if not _rewards(best):
            best = max(all_rows, key=lambda rows: rows.log.rows)
        log = best.log.close()
        for rows in all_rows:
            log.seen |= rows.log.seen
            log.latest |= rows.log.latest
        log.ending = ending(self.tail)
        return log


def console(path: Path, lines: Iterable[str], wanted: Columns) -> Log:
    """A console log; a line that ends in a NUL was cut by the end of the file."""
    reader = Console(path.name, wanted)
    for raw in lines:
        cut = raw.endswith("\0") or WANDB_CUT <= len(raw) <= WANDB_CUT + 2
        reader.line(raw.rstrip("\0"), cut)
    return reader.close()


def _count(text: str) -> float:
    """A step, which may be written with commas: 1,204."""
    return float(text.replace(",", ""))


def _mark(text: str) -> str:
    """The mark of decimals that a number shows; of 1,204 it may be either, and nothing is said."""
    thousands = bool(_THOUSANDS.fullmatch(text))
    if "." in text or (thousands and text.count(",") > 1):
        return "."
    return "," if text.count(",") == 1 and not thousands else ""


def _evaluation(line: str) -> str:
    """The group of an evaluation's numbers, `eval` or `eval/math500`; nothing for other lines."""
    found = _EVALUATES.match(line)
    if not found or "train" in line.lower():
        return ""
    return f"eval/{found[1]}" if found[1] else "eval"


def _form(before: str, row: Row) -> str:
    """Which framework prints a dict of the training like this, where its form tells it."""
    if "Global step" in before:
        return "OpenRLHF"
    if _BEFORE_DICT.search(before):
        return "slime" if any(name.startswith(("rollout/", "train/")) for name in row) else ""
    return "TRL" if not row.keys().isdisjoint(("epoch", "training_loss")) else ""


def _beneath(group: str, name: str) -> str:
    """The name of an evaluation's number: reward is eval/reward, eval_reward stays as it is."""
    bare = re.sub(r"^evaluation\s+", "", name, flags=re.I)
    kept = _OF_EVALUATION.match(bare) or read_name(bare).step is not None or bare == "epoch"
    return bare if kept else f"{group}/{bare}"


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("T", " ")).timestamp()
    except (ValueError, OverflowError, OSError):
        return NAN


def _signals(row: Row) -> bool:
    return any(read_name(name).signals or read_name(name).heldout is not None for name in row)


def _heading(before: str) -> str:
    """The words before the first statistic of a line: `Batch reward stats - `."""
    words = re.findall(r"[A-Za-z_][\w/]*", re.split(r"[\]|]", before.rstrip(" :=-"))[-1])
    return " ".join(words[-3:])


def _known(name: str, wanted: Columns) -> str:
    """Of a name of several words the longest end that is a name in the table.

    Words that may say what else it is stay: Mismatch KL is no KL, Best Reward no reward.
    """
    words = name.split(" ")
    ends = [" ".join(words[i:]) for i in range(len(words))]
    for i, end in enumerate(ends):
        if end in wanted:
            return end
        sure = {signal for signal, rank in read_name(end).signals if rank < GUESSED}
        if sure:
            tells = sure & GUESSES.keys() and not all(_SAYS_NOTHING.fullmatch(w) for w in words[:i])
            return name if tells else end
        if read_name(end).heldout is not None:
            return end
    for end in ends:
        if read_name(end):
            return end
    return ends[-1] if len(words) > 2 else name


def _braces(text: str) -> Iterator[tuple[str, str]]:
    """(what stands before it, the text of it) for each outermost pair of braces of a line."""
    depth, begin, last = 0, 0, 0
    for found in _BRACE.finditer(text):
        if found[0] == "{":
            depth += 1
            begin = found.start() if depth == 1 else begin
        elif depth:
            depth -= 1
            if not depth:
                yield text[last:begin], text[begin : found.end()]
                last = found.end()
    if depth:  # one that was never closed hides whole ones
        yield from ((text[last : f.start()], f[0]) for f in _FLAT.finditer(text, begin))


def _literal(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text that is no Python may warn before it fails
        return ast.literal_eval(text)


def _mapping(text: str) -> dict | None:
    """A dict as Python or JSON prints it; of one that is neither its `'name': number` pairs."""
    pairs: dict = dict(_QUOTED.findall(text))
    if "{" in text[1:] or "type" in text:
        for parse in (json.loads, _literal):
            try:
                whole = parse(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                continue
            if isinstance(whole, dict):
                return whole
        inner: dict = {}
        for found in _FLAT.finditer(text):
            inner |= dict(_QUOTED.findall(found[0]))
        pairs = inner | pairs
    return pairs or None


# -- what is a row of the training -----------------------------------------------------------------


def _reward_columns(log: Log) -> dict[str, np.ndarray]:
    log.close()
    return {
        name: np.asarray(column)
        for name, column in log.columns.items()
        if any(signal == "reward" for signal, _ in read_name(name).signals)
    }


def _rewards(rows: _Rows) -> int:
    """Rows with a reward: of those beside a loss or a rate, if there are any."""
    own = np.asarray(rows.own, dtype=bool)
    columns = _reward_columns(rows.log)
    beside = max((int((~np.isnan(v) & own).sum()) for v in columns.values()), default=0)
    return beside or max((int((~np.isnan(v)).sum()) for v in columns.values()), default=0)


def _refuse_answers(rows: _Rows, dicts: bool) -> None:
    """Leave out rewards of single answers that stand among rows with a loss."""
    own, log = np.asarray(rows.own, dtype=bool), rows.log
    columns = _reward_columns(log)
    beside = {name: int((~np.isnan(v) & own).sum()) for name, v in columns.items()}
    most = max(beside.values(), default=0)
    alone = max((int((~np.isnan(v) & ~own).sum()) for v in columns.values()), default=0)
    if not own.any() or not alone or own.all():
        return
    if most >= 5 or (dicts and own.sum() >= 5 and not most):
        steps = np.asarray(log.columns.get("step", array("d", [NAN] * len(own))))
        passing = ~own if most else ~own & np.isnan(steps)
        drop = np.zeros(len(own), dtype=bool)
        for values in columns.values():
            drop |= ~np.isnan(values) & passing
        log.refused[APART] += int(drop.sum())
        log.keep((~drop).tolist())
        rows.own = array("b", own[~drop].tolist())
        rows.near = array("d", np.asarray(rows.near)[~drop].tolist())


def _take_steps(rows: _Rows) -> None:
    """Steps for loose rows that name none: the last one named, unless many rows share it.

    Where the answers of a step are printed one by one and nothing else, their mean is the reward.
    """
    log = rows.log.close()
    columns = _reward_columns(log)
    if not columns:
        return
    step = np.asarray(log.columns.get("step", array("d", [NAN] * log.rows)), dtype=float)
    near, own = np.asarray(rows.near, dtype=float), np.asarray(rows.own, dtype=bool)
    for name, values in list(columns.items()):
        known = ~np.isnan(values)
        if not known.any() or np.isfinite(step[known]).mean() > 0.5:
            continue
        at = near[known & np.isfinite(near)]
        distinct = len(np.unique(at))
        if distinct and len(at) >= 0.9 * known.sum() and len(at) <= 1.5 * distinct + 2:
            step = np.where(np.isnan(step), near, step)
        elif not own[known].any() and distinct >= 5 and known.sum() >= SAMPLES * distinct:
            if any(
                n != name and 5 <= (~np.isnan(v)).sum() <= 2 * distinct for n, v in columns.items()
            ):
                del log.columns[name]
                log.refused[APART] += int(known.sum())
                continue
            for where in np.unique(at):
                here = np.flatnonzero(known & (near == where))
                log.columns[name][int(here[-1])] = float(np.mean(values[here]))
                for i in here[:-1]:
                    log.columns[name][int(i)] = NAN
            step = np.where(np.isnan(step), near, step)
            log.notes.append(f"{name}: the mean of the answers that a step prints is taken")
    if np.isfinite(step).any():
        log.columns["step"] = array("d", step.tolist())


# -- how it ended ----------------------------------------------------------------------------------

_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit|Failure)\b.*")
_KILLED = re.compile(
    r"^(?:\S+:.*)?\b(?:Killed|Terminated|Segmentation fault|SIGKILL|SIGTERM|core dumped|"
    r"oom[-_]kill|CANCELLED AT|exitcode: -9|Signal 9)\b.*",
    re.I,
)
_WRITES = re.compile(
    r"save_|torch\.save|\bsave\b|json\.dump|in dump\b|inline_container|No space left|Disk quota|"
    r"push_to_hub|serializ|wandb.*finish"
)
_DONE = re.compile(
    r"TrainOutput\(|\btraining (?:is )?(?:complete|finished|done)|"
    r"\bmodel (?:was )?(?:saved|pushed)",
    re.I,
)
_BY_HAND = re.compile(r"KeyboardInterrupt|SystemExit|DUE TO TIME LIMIT|CANCELLED AT")


def ending(lines: Iterable[str]) -> Ending | None:
    """How the process ended, if the lines after the last row show an error that ended it."""
    tail = [line.rstrip() for line in lines if line.strip()]
    start = next((i for i, x in enumerate(tail) if x.lstrip().startswith("Traceback (most")), None)
    at = [i for i, x in enumerate(tail) if _ERROR.match(x) or _KILLED.match(x)]
    at = [i for i in at if len(tail) - 1 - i <= AFTER_ERROR]
    if not at or any(_DONE.search(line) for line in tail[at[-1] + 1 :]):
        return None  # what goes on to its end did not die
    last = tail[at[-1]]
    killed = bool(_KILLED.match(last))
    if start is None and not killed:
        return None  # an error that was caught and printed
    says = printable(last)[:160]
    around = " ".join(tail[start or 0 : at[-1] + 1])
    if _BY_HAND.search(last):
        return Ending("stopped", says)
    if not killed and _WRITES.search(around):
        return Ending("saving", says)
    return Ending("killed" if killed else "crash", says)
