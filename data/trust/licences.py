"""The licences of what the README's commands install: python data/trust/licences.py > licences.md

Follows the requirements of requirements.txt and of this package's extra "dev" through the metadata
of what is installed here. Prints a table; what names no permissive licence comes first.
"""

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lldlib.files import markdown_table

ROOT = Path(__file__).resolve().parent.parent.parent
PERMISSIVE = re.compile(
    r"\b(MIT|MIT-0|BSD|0BSD|Apache|ISC|PSF|Python Software|HPND|Zlib|Unlicense|CC0|CNRI|BSL|"
    r"Historical Permission|Public Domain)",
    re.I,
)
COPYLEFT = re.compile(r"\b(A|L)?GPL|GNU|MPL|Mozilla|EPL|CDDL|proprietary|NVIDIA", re.I)


def licence(package: metadata.Distribution) -> str:
    """What the metadata names: an expression, else classifiers, else the field's first line."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return expression
    classes = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if "Licen" in c]
    first = (about.get("License") or "").strip().split("\n")[0][:60]
    return "; ".join(classes) or first or "not named"


def needed(names: Iterable[str]) -> Iterator[metadata.Distribution]:
    """The packages of these requirements, and all that they need here; each once."""
    seen, waiting = set(), [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        extras = wanted.extras or {""}
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        key = canonicalize_name(wanted.name), frozenset(extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            package = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # of another system
        yield package
        for text in package.requires or []:
            inner = Requirement(text)
            if not inner.marker or any(inner.marker.evaluate({"extra": e}) for e in extras):
                inner.marker = None
                waiting.append(inner)


def main() -> None:
    """Print the table."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = {p.name: (p.version, licence(p)) for p in needed([*lines, "lldlib[dev]"])}
    found.pop("lldlib", None)

    def free(text: str) -> bool:
        return bool(PERMISSIVE.search(text)) and not COPYLEFT.search(text)

    rows = sorted(
        (free(text), name.lower(), name, *of) for name, of in found.items() if (text := of[1])
    )
    print(
        f"{sum(not row[0] for row in rows)} of {len(rows)} packages name no permissive licence.\n"
    )
    cells = [
        (name, version, text, "yes" if ok else "**no**") for ok, _, name, version, text in rows
    ]
    print(markdown_table(["package", "version", "licence", "permissive"], cells))


if __name__ == "__main__":
    main()
