"""What a checkpoint holds: trainable weights and AdamW's moments as named tensors."""

import torch
from torch import Tensor, nn

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def pack(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Trainable parameters as `model.<name>`, their moments as `optimizer.<moment>.<name>`."""
    tensors = {}
    for name, parameter in trainable(model).items():
        tensors[f"model.{name}"] = parameter
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{moment}.{name}"] = value
    return tensors


@torch.no_grad()
def unpack(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the content of `pack` back; a parameter without moments has not been stepped yet."""
    optimizer.state.clear()
    for name, parameter in trainable(model).items():
        parameter.copy_(tensors[f"model.{name}"])
        moments = {moment: tensors.get(f"optimizer.{moment}.{name}") for moment in MOMENTS}
        if moments["step"] is not None:
            optimizer.state[parameter] = {
                moment: value.clone().to(parameter.device) for moment, value in moments.items()
            }


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
