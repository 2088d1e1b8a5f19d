"""The optimiser, its rate, and a checkpoint's content: weights and AdamW's state by name."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

EPSILON = 1e-8  # AdamW's, as PyTorch has it


@dataclass(frozen=True)
class Schedule:
    """Learning rate: a linear warm-up to `lr`; with `steps` also a linear decay from the start."""

    lr: float
    warmup: int  # steps until it is reached
    steps: int | None = None  # at which the decay would be at 0; None: constant after the warm-up
    floor: float = 0.0  # share of `lr` under which the decay does not go

    def at(self, step: int) -> float:
        """The rate of step 0, 1, ...; unlike the schedulers of transformers, never 0 at step 0."""
        rising = min(1.0, (step + 1) / max(1, self.warmup))
        falling = 1.0 if self.steps is None else max(self.floor, 1 - step / self.steps)
        return self.lr * (rising * falling)


def adjust(optimizer: torch.optim.Optimizer, **settings) -> None:
    """Change settings of the updates to come, such as `lr` and `betas`."""
    for group in optimizer.param_groups:
        group.update(settings)


def make_optimizer(
    model: nn.Module,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW; paged and with 8-bit moments for a 4-bit model on a GPU.

    Weights below float32 get float32 copies that are the ones trained.

    Raises ValueError if the model has nothing to train.
    """
    parameters = list(trainable(model).values())
    if not parameters:
        raise ValueError("the policy has no weights to train: load a quantised one with lora=...")
    settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
    if getattr(model, "is_loaded_in_4bit", False) and parameters[0].is_cuda:
        from bitsandbytes.optim import PagedAdamW8bit

        return PagedAdamW8bit(parameters, **settings)
    if any(parameter.dtype.itemsize < 4 for parameter in parameters):
        return MasterAdamW(parameters, settings)
    return torch.optim.AdamW(parameters, fused=True, **settings)


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on float32 copies of the weights, which are rounded to the model's own after a step.

    At a learning rate of 1e-6 most updates are less than half of a bfloat16 weight's last bit and
    would be lost. One weight at a time, so that one gradient at a time exists in float32.
    """

    @torch.no_grad()
    def step(self) -> None:
        """One update of every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: nn.Parameter, group: dict) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["master"] = weight.float()
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        kept = [[state[name]] for name in ("exp_avg", "exp_avg_sq")]
        adamw(
            [state["master"]],
            [weight.grad.float()],
            *kept,
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=EPSILON,
            maximize=False,
        )
        weight.copy_(state["master"])


def trained(parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What the optimiser moves: float32 copies where it keeps some, else the parameters."""
    return [optimizer.state.get(p, {}).get("master", p) for p in parameters]


def pack(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Trainable parameters as `model.<name>`, their state as `optimizer.<kind>.<name>`.

    A count that the optimiser keeps as a plain number (bitsandbytes) becomes an int64 tensor.
    """
    tensors = {}
    for name, parameter in trainable(model).items():
        tensors[f"model.{name}"] = parameter
        for moment, value in optimizer.state.get(parameter, {}).items():
            is_tensor = isinstance(value, Tensor)
            tensors[f"optimizer.{moment}.{name}"] = value if is_tensor else torch.tensor(value)
    return tensors


@torch.no_grad()
def put_weights(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Put the weights of `pack` back.

    Raises ValueError, before any is, where names or shapes are not those that training moves.
    """
    lead, parameters = "model.", trainable(model)
    held = {key.removeprefix(lead): t for key, t in tensors.items() if key.startswith(lead)}
    ours, theirs = ({n: tuple(t.shape) for n, t in some.items()} for some in (parameters, held))
    if odd := sorted(ours.items() ^ theirs.items()):
        raise ValueError(
            f"the checkpoint's weights are not this policy's ({odd[0][0]}): was the policy, its "
            "LoRA or the version of a package changed since?"
        )
    for name, parameter in parameters.items():
        parameter.copy_(held[name])


@torch.no_grad()
def unpack(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the content of `pack` back; a parameter without moments has not been stepped yet."""
    put_weights(tensors, model)
    optimizer.state.clear()
    state = {key: value for key, value in tensors.items() if key.startswith("optimizer.")}
    parameters = trainable(model)
    for key, value in state.items():
        _, moment, name = key.split(".", 2)
        parameter = parameters[name]
        kept = value.clone().to(parameter.device) if value.dtype != torch.int64 else int(value)
        optimizer.state.setdefault(parameter, {})[moment] = kept


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
