# The cells of the lab's notebook: a replay, arms that train, and two predictions.
# %%
import tempfile
from pathlib import Path

from lldlib.config import data_dir
from lldlib.runs.folder import Run
from lldlib.show.lab import LiveLab
from lldlib.show.predict import DrawPrediction, Predict
from lldlib.train.live import Replay, live

folder = Path(tempfile.mkdtemp(prefix="lab-"))
hot = Run(data_dir() / "atlas/main/grpo-seed0")
quick = {"steps": 999, "problems": 4, "updates_per_batch": 4}
# %%
lab = LiveLab(
    {
        "GRPO": live("grpo", 0, folder / "lab", **quick),
        "GRPO + LLDS": live("llds", 0, folder / "llds", **quick),
    },
    ghost=hot,
)
lab
# %%
guess = DrawPrediction(hot, given=2)
guess
# %%
why = "The knob acts in the updates of 40, which the answers of 41 show."
asked = Predict("In which batch do the rewards differ first?", ["40", "41"], answer="41", why=why)
asked
# %%
number = Predict("How many of twenty runs die?", None, answer=20, why="All of them.")
number
# %%
LiveLab(Replay(hot, folder / "replay"))
# %%
busy = "this cell can be run while the lab plays"
