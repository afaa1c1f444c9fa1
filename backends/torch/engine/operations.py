"""PyTorch's operations for planning a call."""

import torch

from mha.core.engine.operations import Operations

from ..arrays import tensor
from ..heads import repeat_heads
from ..hiding import four_axes, signed, visible_keys

OPERATIONS = Operations(
    any=torch.any,
    min=torch.amin,
    max=torch.amax,
    minimum=lambda X, Y: torch.clamp(X, max=Y),  # Y may be an int, here and below
    maximum=lambda X, Y: torch.clamp(X, min=Y),
    where=torch.where,
    broadcast_to=torch.broadcast_to,
    reshape=torch.reshape,
    arange=lambda size, like: torch.arange(size, device=like.device),
    tensor=lambda array, like: tensor(array, like.device),
    zeros=lambda shape, like: like.new_zeros(shape),
    signed=signed,
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
    same=lambda X, Y: X is Y,  # to compare values would be to wait for a GPU
    either=lambda same, these, those: these() if same else those(),
)
