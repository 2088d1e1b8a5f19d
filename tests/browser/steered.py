# The cells of the lab's notebook: arms that train, tokens, predictions, and a replay.
# %%
import tempfile
from pathlib import Path

from lldlib.config import data_dir
from lldlib.runs.folder import Run
from lldlib.show.lab import LiveLab
from lldlib.show.predict import DrawPrediction, Predict
from lldlib.show.says import TokenView
from lldlib.train.live import Replay, live
from lldlib.types import TokenInfo

folder = Path(tempfile.mkdtemp(prefix="lab-"))
hot = Run(data_dir() / "atlas/demo/grpo-seed0")
quick = {"steps": 60, "problems": 4, "updates_per_batch": 4}
# %%
(
    lab := LiveLab(
        {
            "GRPO": live("grpo", 0, folder / "lab", **quick),
            "GRPO + LLDS": live("llds", 0, folder / "llds", **quick),
        },
        ghost=hot,
    )
)
# %%
(guess := DrawPrediction(hot, given=2))
# %%
DrawPrediction(hot)
# %%
why = "The knob acts in the updates of 40, which the answers of 41 show."
question = "In which batch do the rewards differ first?"
(asked := Predict(question, ["40", "41"], answer="41", why=why))
# %%
(number := Predict("How many of twenty runs die?", None, answer=20, why="All of them."))
# %%
LiveLab(Replay(hot, folder / "replay"))
# %%
busy = "this cell can be run while the lab plays"
# %%
words = ["<think>", "so", "Rome", "Lima", "</think>", "<answer>", "Lima", "</answer>"]
tokens = [
    TokenInfo(word, "action", logp=-0.5 * place, change=0.1 * place - 0.3, protected=place > 3)
    for place, word in enumerate(words)
]
TokenView([("A = +1", [TokenInfo("Question", "prompt"), *tokens])], 220)
