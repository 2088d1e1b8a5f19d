"""How long a command takes to start: fresh processes, the least of several.

Wall seconds hold what other processes took: measure on a quiet core. CPU seconds do not.
"""

import resource
import subprocess
import sys
import time

STARTS = {  # what is started: its arguments, and the wall seconds it may take
    "import lldlib": (["-c", "import lldlib"], 0.3),
    "lldlib --help": (["-m", "lldlib", "--help"], 0.5),
}
REPEATS = 9


def report(repeats: int = REPEATS) -> str:
    """The markdown table."""
    lines = ["| started | wall, s | CPU, s | aim, wall | met |", "|---|---|---|---|---|"]
    for name, (arguments, aim) in STARTS.items():
        wall, cpu = map(min, zip(*(seconds(arguments) for _ in range(repeats)), strict=True))
        verdict = "yes" if wall <= aim else "NO"
        lines.append(f"| {name} | {wall:.2f} | {cpu:.2f} | ≤ {aim} | {verdict} |")
    return "\n".join(lines)


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one python; CalledProcessError if it fails."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
