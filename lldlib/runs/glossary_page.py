"""The glossary as a Markdown page: every logged key and every symbol, for readers on GitHub.

`python -m lldlib.runs.glossary_page` writes it anew.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lldlib.config import data_dir
from lldlib.runs.glossary import GLOSSARY
from lldlib.runs.symbols import SYMBOLS

VERBATIM = re.compile(r"(`[^`]*`|\$[^$]*\$)|[|*_<]")  # kept as it is | escaped

INTRODUCTION = """# Glossary

Every key that a run logs and every symbol of the notebooks. Made of `lldlib/runs/glossary.py` and
`lldlib/runs/symbols.py` by `python -m lldlib.runs.glossary_page`: change those, not this page.

"Batch" is a rollout batch; `k` in a key is the number of an action, `<reason>` a reason to stop.
Log-probs are natural logarithms, in nats.
"""


def page_path() -> Path:
    """Where the page lies: beside the notebooks."""
    return data_dir().parent / "notebooks" / "GLOSSARY.md"


def glossary_page() -> str:
    """The page's text: a table of symbols, then a table of keys for each family of keys."""
    symbols = [(f"${s.written}$", s.shape, s.meaning) for s in SYMBOLS]
    parts = [INTRODUCTION, "## Symbols\n", _table(("symbol", "shape", "meaning"), symbols)]
    families = dict.fromkeys(key.partition("/")[0] for key in GLOSSARY)
    for family in families:
        rows = [
            (f"`{key}`", metric.formula, metric.unit, metric.healthy)
            for key, metric in GLOSSARY.items()
            if key.partition("/")[0] == family
        ]
        head = ("key", "formula", "unit", "a healthy run")
        parts += [f"## Keys: {family}\n", _table(head, rows)]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    """Escape what Markdown would read, outside code and formulas; a bar would end the cell."""
    return VERBATIM.sub(lambda found: found[0] if found[1] else f"\\{found[0]}", text)


if __name__ == "__main__":
    page_path().write_text(glossary_page(), encoding="utf-8")
