"""Draw figure.png from the recorded runs: `python data/atlas/figure.py`."""

from pathlib import Path

from lldlib.runs.folder import Run
from lldlib.show.curves import collapse_figure
from lldlib.show.style import save
from lldlib.train.demo import NAMES

HERE = Path(__file__).parent


def main() -> None:
    """The curves of the three arms, over seeds."""
    arms = {}
    for arm, name in NAMES.items():
        folders = sorted((HERE / "main").glob(f"{arm}-seed*"))
        arms[name.replace(" at a lower learning rate", ", best rate")] = list(map(Run, folders))
    save(collapse_figure(arms), HERE / "figure.png")


if __name__ == "__main__":
    main()
