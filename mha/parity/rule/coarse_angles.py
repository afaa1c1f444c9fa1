"""Angles of rotations in float32, as ports compute them."""

import dataclasses
from typing import Any

import numpy as np

from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention, restore


@dataclasses.dataclass(frozen=True)
class CoarseRotary(Rotary):
    """A rotation whose frequencies and angles are float32."""

    def angles(self) -> tuple[Any, ...]:
        """Return the frequencies as NumPy's float32."""
        return tuple(map(np.float32, super().angles()))


def coarse(rotary: Rotary) -> CoarseRotary:
    """Return a rotation with angles in float32."""
    return CoarseRotary(**{field.name: getattr(rotary, field.name) for field in dataclasses.fields(Rotary)})


def with_coarse_angles(attention: MultiHeadAttention) -> MultiHeadAttention:
    """Return the layer on NumPy with angles in float32; in float64 it is unchanged, as without a rotation."""
    config = attention.config
    if config.dtype == "float64" or config.rotary is None:
        return attention
    config = dataclasses.replace(config, rotary=coarse(config.rotary))
    return restore(config, attention.weights, "numpy", attention.seed)
