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
def test_a_version_that_was_not_tried_is_warned_of(monkeypatch, caplog, found):
    pytest.importorskip("trl")
    pretend(monkeypatch, found)
    importlib.import_module(CONFIG)
    (said,) = [r.getMessage() for r in caplog.records if "TRL" in r.getMessage()]
    assert said.startswith(f"TRL {found} is installed; ") and ">=1.16" in said and "<1.17" in said
    assert "\n" not in said


def test_a_method_that_is_gone_is_named(monkeypatch):
    trl = pytest.importorskip("trl")
    config = importlib.import_module(CONFIG)
    lost = config.METHODS[2]

    class Changed:
        """A trainer of another TRL."""

    for name in config.METHODS:
        if name != lost:
            setattr(Changed, name, getattr(trl.GRPOTrainer, name))
    with pytest.raises(ImportError, match=rf"has no Changed\.{lost}; ") as refusal:
        config.check_methods(Changed)
    assert "\n" not in str(refusal.value)
    config.check_methods(trl.GRPOTrainer)


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
