"""JupyterLab and Voila servers on loopback, for the browser tests."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT = 600  # seconds until a condition that does not come true fails its test; usually a few
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # every cell is in the page, not only those on the screen
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@dataclass(frozen=True)
class Server:
    """A running server: its address, and where the kernels put their temporary files."""

    url: str
    scratch: Path


@contextmanager
def serve(command: list[str], port: int, home: Path, path: str) -> Iterator[None]:
    """A server in a clean environment until the block ends; it must answer at `path` first."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "notebooks"), os.environ.get("PYTHONPATH", "")]
        ),
        "TMPDIR": str(home / "tmp"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=log, stderr=log
        )
        try:
            answers(f"http://127.0.0.1:{port}{path}", process, home / "log")
            yield
        finally:
            process.terminate()
            process.wait()


def answers(url: str, process: subprocess.Popen, log: Path) -> None:
    """Return as soon as the server answers; fail if it dies before."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=WAIT):
                return
        except (urllib.error.URLError, ConnectionError):
            try:
                code = process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"the server ended with code {code}:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_home(folder: Path, notebooks: dict[str, str]) -> Path:
    """A server's folder: notebooks, quiet settings and a place for temporary files."""
    for name in ("notebooks", "tmp", "runtime"):
        (folder / name).mkdir()
    for name, text in notebooks.items():
        (folder / "notebooks" / name).write_text(text, encoding="utf-8")
    for name, values in SETTINGS.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    return folder


@contextmanager
def jupyterlab(folder: Path, notebooks: dict[str, str]) -> Iterator[Server]:
    """A JupyterLab with these notebooks, its files in `folder`."""
    home, port = make_home(folder, notebooks), free_port()
    command = ["jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += [f"--port={port}"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={home / 'notebooks'}"]
    with serve(command, port, home, "/api/status"):
        yield Server(f"http://127.0.0.1:{port}/lab/tree/", home / "tmp")


@contextmanager
def voila(folder: Path, notebooks: dict[str, str]) -> Iterator[Server]:
    """A Voila with these notebooks, its files in `folder`."""
    home, port = make_home(folder, notebooks), free_port()
    command = ["voila", "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    command += [str(home / "notebooks")]
    with serve(command, port, home, "/"):
        yield Server(f"http://127.0.0.1:{port}/voila/render/", home / "tmp")
