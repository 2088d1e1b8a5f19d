"""The spiral as one page: curves with a cursor over the batches, and what each arm answers there.

The page needs no kernel and no network: the runs are in it as JSON, `spiral.html` is the rest.
"""

import base64
import hashlib
import html
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from lldlib.files import write_whole
from lldlib.recipes import built_in
from lldlib.runs.folder import Run
from lldlib.runs.phases import find_collapse, phases_of
from lldlib.runs.summary import arm_labels
from lldlib.show.colouring import LOGP, paint
from lldlib.show.style import COLOURS, SHADES, stretches
from lldlib.show.tokens import turn_words
from lldlib.types import TokenInfo

TEMPLATE = Path(__file__).with_name("spiral.html")
MADE_BY = "lldlib explore</code>"  # in the last line of every page
LIMIT = 5_000_000  # bytes of a page
STEPS = 100  # of the scale of colours
NATS = "nats/token"
PANELS = (  # logged keys, of which the first that any run has is drawn; their titles; the unit
    (("reward/mean",), ("mean reward",), ""),
    (
        ("probe/logp", "likelihood/correct"),
        ("log-prob of fixed correct answers", "log-prob of correct answers"),
        NATS,
    ),
    (("policy/entropy",), ("entropy",), NATS),
    (("grad/norm",), ("gradient norm",), ""),
)
TITLES = {"grpo": "GRPO", "llds": "GRPO + LLDS"}
COOLER = "GRPO, cooler"  # at its own best learning rate
OWN = {"GRPO": 0, "GRPO + LLDS": 1, COOLER: 2}  # places in COLOURS, the same in every figure
DASHES = ("", "9 4", "2 3", "9 3 2 3", "14 4", "5 2", "1 5")  # a style of line for each arm


def spiral_page(runs: Sequence[Run], *, play: bool = False) -> str:
    """One self-contained HTML page of some runs; with `play` it plays as soon as it is opened.

    Where it would be over 5 MB, answers are left out: it keeps those of every second batch, every
    fourth, ... and says so. Raises ValueError without runs, for more runs than colours, and for a
    run that has logged no batch.
    """
    data, every = _data(runs, play), 1
    while len((page := _page(data)).encode()) > LIMIT and any(
        len(arm["steps"]) > 2 for arm in data["arms"]
    ):
        every *= 2
        data["arms"] = [_thinned(arm, every) for arm in data["arms"]]
        data["notes"] = f"{_told(data['arms'])} Answers are those of every {every} batches."
    return page


def save_spiral(runs: Sequence[Run], path: Path | str, *, play: bool = False) -> Path:
    """Write the page; ValueError where the file is something else than such a page."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, such as {path}/spiral.html")
    if path.is_file() and MADE_BY.encode() not in path.read_bytes():
        raise ValueError(f"{path} is no page of explore: name another file")
    write_whole(path, spiral_page(runs, play=play))
    return path


# -- what is in the page --------------------------------------------------------------------------


def _data(runs: Sequence[Run], play: bool) -> dict[str, Any]:
    if not runs:
        raise ValueError("no runs to show: give at least one run folder")
    for run in runs:
        if not run.metrics:
            raise ValueError(f"{run.path} has no batch yet: train it first")
    panels = _panels(runs)
    arms = [
        _arm(run, name, place, [panel["key"] for panel in panels])
        for run, name, place in zip(runs, _names(runs), _places(runs), strict=True)
    ]
    asked = {row["question"]: row["answers"] for run in runs for row in run.questions}
    return {
        "play": play,
        "last": max(len(run.metrics) for run in runs),
        "panels": panels,
        "palette": [paint(TokenInfo("", "action", value), LOGP) for value in _scale()],
        "ends": LOGP.ends,
        "shades": SHADES,
        "arms": arms,
        "questions": [{"text": text, "answers": known} for text, known in asked.items()],
        "shown": _shown(runs, list(asked)),
        "notes": _told(arms),
    }


def _shown(runs: Sequence[Run], asked: Sequence[str]) -> int:
    """The place of the question that is shown first: one to which the arms' last answers differ."""
    last = [{row["question"]: row["reward"] for row in run.questions} for run in runs]
    for place, question in enumerate(asked):
        if len({rewards[question] for rewards in last if question in rewards}) > 1:
            return place
    return 0


def _scale() -> list[float]:
    low, high = LOGP.ends
    return [low + (high - low) * step / STEPS for step in range(STEPS + 1)]


def _panels(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What is drawn, on axes that hold every run in full and stay as they are."""
    found = []
    for keys, title, unit in PANELS:
        for key, name in zip(keys, title, strict=True):
            values = [v for run in runs for v in run.series(key)[1]]
            if values:
                found.append({"key": key, "title": name, "unit": unit} | _axis(key, values))
                break
    return found


def _axis(key: str, values: Sequence[float]) -> dict[str, Any]:
    """Ends and ticks: rewards from 0 to 1, log-probs up to 0, whole decades of a gradient norm."""
    low, high = min(values), max(values)
    if key == "grad/norm" and (some := [v for v in values if v > 0]):
        ends = math.floor(math.log10(min(some))), math.ceil(math.log10(high))
        ticks = [10.0**n for n in range(ends[0], max(ends[1], ends[0] + 1) + 1)]
        return {"low": ticks[0], "high": ticks[-1], "ticks": ticks, "log": True}
    low, high = (min(low, 0.0), max(high, 1.0 if key == "reward/mean" else 0.0))
    ticks = [round(float(tick), 6) for tick in MaxNLocator(4).tick_values(low, high)]
    return {"low": ticks[0], "high": ticks[-1], "ticks": ticks, "log": False}


def _title(config: Mapping[str, Any]) -> str:
    """The name of an arm that every figure knows, or its method."""
    best = _best_rate(config)
    if config["method"] == "grpo" and best is not None and config.get("lr") == best:
        return COOLER
    return TITLES.get(config["method"], config["method"])


def _best_rate(config: Mapping[str, Any]) -> float | None:
    """The best learning rate of GRPO that is known for a run's world; None: none is."""
    policy, data = config.get("policy"), config.get("data")
    world = data.get("world") if isinstance(data, dict) else None
    world = world if isinstance(world, str) else None
    return built_in(policy, world).best_rate if isinstance(policy, str) else None


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each run: equal ones are told apart by settings, by seed, by folder."""
    settings = [label.partition(" ")[2] for label in arm_labels(runs)]
    names = [_title(run.config) for run in runs]
    seeds = [f"seed {run.config.get('seed', '?')}" for run in runs]
    for more in (settings, seeds, [str(run.path) for run in runs]):
        counts = Counter(names)
        names = [
            f"{name}, {text}" if counts[name] > 1 and text else name
            for name, text in zip(names, more, strict=True)
        ]
    return names


def _places(runs: Sequence[Run]) -> list[int]:
    """A colour and a style of line for each run, by their place; an arm's own where it is free."""
    if len(runs) > len(COLOURS):
        raise ValueError(f"{len(runs)} runs but only {len(COLOURS)} colours: show fewer at once")
    titles = [_title(run.config) for run in runs]
    own = {OWN[title]: titles.index(title) for title in OWN if title in titles}
    free = iter([place for place in range(len(COLOURS)) if place not in own])
    taken = {run: place for place, run in own.items()}
    return [taken[number] if number in taken else next(free) for number in range(len(runs))]


def _arm(run: Run, name: str, place: int, keys: Sequence[str]) -> dict[str, Any]:
    phases, fate = phases_of(run), find_collapse(run.column("reward/mean"))
    kind = "questions" if run.questions else "rollouts"
    answers: dict[int, list[dict[str, Any]]] = {}
    for record in getattr(run, kind):
        answers.setdefault(record["step"], []).append(_packed(record))
    note = ""
    if kind == "rollouts":
        note = "No answers to fixed questions: train with --questions-every 1 to record them."
        if not answers:
            note += " Nor any rollouts: --rollouts-logged was 0."
    return {
        "name": name,
        "colour": COLOURS[place],
        "dash": DASHES[place],
        "values": {key: run.column(key) for key in keys},
        "batches": len(run.metrics),
        "phases": stretches(phases.labels),
        "told": phases.told,
        "began": fate.began,
        "known": fate.known,
        "kind": kind,
        "note": note,
        "steps": sorted(answers),
        "answers": answers,
    }


def _packed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its prompt; log-probs in hundredths of a nat, which are whole numbers."""
    turns = [
        [
            int(turn["role"] == "action"),
            turn["text"],
            [None if value is None else round(100 * value) for value in turn["logp"]],
        ]
        for turn in map(_in_words, record["turns"])
        if turn["role"] != "prompt"
    ]
    return {key: record[key] for key in ("question", "answer", "reward", "stop")} | {"turns": turns}


def _in_words(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """A turn of a tokenizer of parts of words, as one of words."""
    if "pieces" not in turn:
        return turn
    words = turn_words(turn)
    return {
        "role": turn["role"],
        "text": " ".join(word for word, _ in words),
        "logp": [value for _, value in words],
    }


def _thinned(arm: Mapping[str, Any], every: int) -> dict[str, Any]:
    """The arm with the answers of every so many batches, and of the last that has any."""
    steps = [step for step in arm["steps"] if step % every == 0 or step == arm["steps"][-1]]
    return {**arm, "steps": steps, "answers": {step: arm["answers"][step] for step in steps}}


def _told(arms: Sequence[Mapping[str, Any]]) -> str:
    told = {arm["told"] for arm in arms}
    if len(told) == 1:
        return f"Phases are told {told.pop()}."
    return f"Phases are told: {', '.join(arm['name'] + ' ' + arm['told'] for arm in arms)}."


def _page(data: Mapping[str, Any]) -> str:
    """The template with the runs in it; nothing of them can end the element that holds them."""
    page = TEMPLATE.read_text(encoding="utf-8")
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    names = " · ".join(arm["name"] for arm in data["arms"])
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"HASH": digest, "TITLE": html.escape(f"The death spiral: {names}"), "DATA": text}
    for name in ("HASH", "TITLE", "DATA"):  # the runs last: what stands in them is no part
        page = page.replace(f"{{{{{name}}}}}", parts[name])
    return page
