# The cells of the explorers' notebook, over recorded runs and a made-up sweep.
# %%
import itertools
import tempfile
from pathlib import Path

import torch

from lldlib.config import data_dir
from lldlib.recipes import train_config
from lldlib.runs.folder import Run, RunWriter
from lldlib.show import widgets
from lldlib.train.run import describe

words = (
    "<think> so </think> <search> capital Laos </search> Vientiane is <answer> Vientiane </answer>"
)
policy = torch.tensor([[True] * 7 + [False] * 2 + [True] * 3])
change = torch.tensor([[0.1, -0.3, 0.05, -0.1, -0.4, 0.2, 0.0, 0.0, 0.0, 0.1, -0.05, 0.1]])
case = widgets.GateCase(
    words=(tuple(words.split()),),
    old_logp=torch.full((1, 12), -1.0),
    new_logp=change - 1.0,
    advantages=torch.tensor([1.0]),
    action_mask=policy,
    answer_mask=torch.tensor([[False] * 9 + [True] * 3]),
)
folder, sweep = Path(tempfile.mkdtemp(prefix="sweep-")), []
grid = itertools.product(("grpo", "llds"), (1e-4, 2e-4, 4e-4), (4, 16, 64), (0, 1))
for place, (method, lr, updates, seed) in enumerate(grid):
    config = train_config(method, seed, lr=lr, updates_per_batch=updates)
    writer = RunWriter.create(folder / str(place), describe(config))
    loss = lr * updates / (0.05 if method == "llds" else 0.0256) * (1 + 0.2 * seed)
    for step in range(40):
        writer.metrics(step, {"reward/mean": max(0.0, 0.7 - loss * step / 40)})
    writer.close()
    sweep.append(Run(writer.path))
runs = {path.name: Run(path) for path in sorted((data_dir() / "atlas" / "main").glob("*seed4"))}
# %%
widgets.GateExplorer(case)
# %%
draw = torch.Generator().manual_seed(0)
cases = {f"made up, scale {s}": s * torch.randn(600, generator=draw) for s in (1.0, 2.0, 4.0)}
widgets.ProxyExplorer([f"word{i}" for i in range(600)], cases)
# %%
widgets.PhaseDiagram(sweep)
# %%
widgets.PostMortemView(runs)
