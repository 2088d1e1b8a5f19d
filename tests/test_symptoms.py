"""The page of symptoms: twenty, each short enough to quote and honest about its evidence."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "data/doctor/symptoms.md"
PARTS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def test_there_are_twenty():
    assert [part.split(".")[0] for part in PARTS] == [str(i) for i in range(1, 21)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.split("\n")[0])
def test_each_can_be_quoted(part):
    lines = [line for line in part.splitlines()[1:] if line.strip()]
    assert len(lines) <= 10 and len(part) < 1700
    assert lines[0].startswith("Asked")
    labels = [re.match(r"- \*\*([\w ]+):\*\*", line)[1] for line in lines[1:]]
    assert labels == ["May be", "How to tell", "Try first", "Evidence"]
    evidence = lines[-1]
    assert "](" in evidence or "not tested by us" in evidence or "`" in evidence
    if "../atlas" in evidence or "../sparks" in evidence:
        assert "mall" in evidence or "estimate" in evidence or "On a CPU" in evidence, (
            "whose model?"
        )
