"""PyTorch's operations for planning a call."""

import torch

from mha.engine.operations import Operations

from ..heads import repeat_heads
from ..hiding import four_axes, signed, visible_keys


def _minimum(X, Y):
    return torch.clamp(X, max=Y) if isinstance(Y, int) else torch.minimum(X, Y)


OPERATIONS = Operations(
    any=torch.any,
    min=torch.amin,
    max=torch.amax,
    minimum=_minimum,
    maximum=lambda X, Y: torch.clamp(X, min=Y),  # Y is an int
    where=torch.where,
    broadcast_to=torch.broadcast_to,
    reshape=torch.reshape,
    arange=lambda size, like: torch.arange(size, device=like.device),
    signed=signed,
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
)
