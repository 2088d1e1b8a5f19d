"""The adapters without their engine, or with another version of it: one line says what to do."""

import importlib
import subprocess
import sys
from importlib import metadata

import pytest

CONFIG = "lldlib.adapters.trl_config"


def pretend(monkeypatch, found: str | None) -> None:
    """TRL looks as if it were of version `found`; None: not installed."""
    real = metadata.version

    def version(package: str) -> str:
        if package == "trl":
            if found is None:
                raise metadata.PackageNotFoundError(package)
            return found
        return real(package)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.delitem(sys.modules, CONFIG, raising=False)


@pytest.mark.parametrize("found", ["1.15.2", "1.17.0", "2.0.0"])
def test_a_version_outside_the_range_is_refused(monkeypatch, found):
    pretend(monkeypatch, found)
    with pytest.raises(ImportError, match=rf"TRL {found} is installed; .*>=1.16") as refusal:
        importlib.import_module(CONFIG)
    assert "<1.17" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_missing_trl_is_told(monkeypatch):
    pretend(monkeypatch, None)
    with pytest.raises(ImportError, match=r"TRL is not installed; .*pip install 'trl") as refusal:
        importlib.import_module(CONFIG)
    assert "\n" not in str(refusal.value)


def test_the_package_needs_no_engine():
    """What is not an adapter of an engine imports neither TRL nor verl."""
    code = (
        "import sys, lldlib, lldlib.adapters.watch, lldlib.adapters.search;"
        "assert not {'trl', 'verl', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
