# The cells of the explorers' notebook.
# %%
import torch

from lldlib.show import widgets

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
# %%
widgets.GateExplorer(case)
# %%
draw = torch.Generator().manual_seed(0)
cases = {f"made up, scale {s}": s * torch.randn(600, generator=draw) for s in (1.0, 2.0, 4.0)}
widgets.ProxyExplorer([f"word{i}" for i in range(600)], cases)
