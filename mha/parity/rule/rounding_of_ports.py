"""The layer as ports compute it in a low precision: they round more numbers on the way than plain NumPy does.

Letters as in the lessons; n pairs of components turn.
"""

import copy
import dataclasses
from functools import partial
from typing import Any

import numpy as np

from mha.core.call import record_step
from mha.core.options.config import numpy_dtype
from mha.core.options.names import FloatName
from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention, restore
from mha.parity.rule.rules import UNIT, of_rows

PROJECTIONS = "W_q", "W_k", "W_v", "W_o", "W_g"


class Rounding(float):
    """The magnitude of a rotation; it rounds the cosines and sines that it multiplies to a dtype."""

    dtype: FloatName

    def __mul__(self, X: Any) -> Any:
        """Multiply an array, and round the product."""
        return (float(self) * X).astype(numpy_dtype(self.dtype)).astype(X.dtype)


@dataclasses.dataclass(frozen=True)
class Coarse(Rotary):
    """A rotation whose frequencies and angles are float32, and its cosines and sines are rounded to a dtype."""

    dtype: FloatName = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        rounding = Rounding(self.magnitude)
        rounding.dtype = self.dtype
        object.__setattr__(self, "magnitude", rounding)

    def angles(self) -> tuple[Any, ...]:
        """Return the frequencies as NumPy's float32."""
        return tuple(map(np.float32, super().angles()))


def layers_of_ports(attention: MultiHeadAttention) -> list[MultiHeadAttention]:
    """Return the layer on NumPy as ports compute it; in half precision there are two, fused and in steps.

    Angles are float32. In half precision cosines and sines, and what they multiply, are rounded to it, and a projection
    is not before its bias is added; in steps dot products, scores and attention weights are rounded, too. In float64
    the layer is unchanged.
    """
    config = attention.config
    if config.dtype == "float64":
        return [attention]
    if config.rotary is not None:
        fields = {field.name: getattr(config.rotary, field.name) for field in dataclasses.fields(Rotary)}
        config = dataclasses.replace(config, rotary=Coarse(**fields, dtype=config.dtype))
    half = UNIT[config.dtype] >= UNIT["float16"]
    made = [restore(config, attention.weights, "numpy", attention.seed) for _ in range(1 + half)]
    if not half:
        return made
    for one in made:
        if config.rotary is not None:
            one.layer.transform_heads = partial(rotate_rounded, one.layer)
        for name in PROJECTIONS:
            if config.bias and hasattr(one.layer, name):
                setattr(one.layer, name, with_late_rounding(getattr(one.layer, name)))
    in_steps(made[1])
    return made


def with_late_rounding(dense: Any) -> Any:
    """Return a dense layer of the lesson that adds its bias before it rounds, as the products of frameworks do."""

    class Whole(type(dense)):  # type: ignore[misc]
        def __call__(self, X: Any) -> Any:
            wide, kernel, bias = (each.astype(np.float32) for each in (X, self.kernel, self.bias))
            return (wide @ kernel + bias).astype(X.dtype)  # (..., out)

    made = copy.copy(dense)
    made.__class__ = Whole
    return made


def rotate_rounded(layer: Any, q: Any, k: Any, call: Any) -> tuple[Any, Any]:
    """Rotate as `transform_heads` of the lesson, but round each product of the rotation before two are added."""
    norm, turn = layer.config.qk_norm, type(layer).transform_heads
    if norm and not norm.after:
        q, k = layer.norm_heads(q, k)  # (B*H, T, d)
    first = first_components(layer.config.rotary, q.shape[-1])  # (d,)
    alone = with_options(layer, qk_norm=None, temperature=None)
    (q, k), (q_second, k_second) = (
        turn(alone, np.where(own, q, 0).astype(q.dtype), np.where(own, k, 0).astype(k.dtype), call)
        for own in (first, ~first)
    )
    q, k = record_step("rotate_q", q + q_second), record_step("rotate_k", k + k_second)  # (B*H, T, d)
    if norm and norm.after:
        q, k = layer.norm_heads(q, k)  # (B*H, T, d)
    q, k = turn(with_options(layer, qk_norm=None, rotary=None), q, k, call)
    return q, k


def first_components(rotary: Rotary, width: int) -> np.ndarray:
    """Return which components of a head, (d,), are the first of their pairs; those that do not turn may be either."""
    at = np.arange(width)
    return at % 2 == 0 if rotary.interleaved else at < (rotary.dim or width) // 2  # (d,)


def with_options(layer: Any, **options: Any) -> Any:
    """Return the lesson's layer with other options, and the same weights."""
    other = copy.copy(layer)
    other.config = dataclasses.replace(layer.config, **options)
    return other


def in_steps(attention: MultiHeadAttention) -> None:
    """Round dot products, scores and attention weights to the layer's dtype, as code with an array for each does."""
    config, pooling = attention.config, attention.layer.attention
    dtype, products = numpy_dtype(config.dtype), pooling.scores
    scale = config.key_dim**-0.5 if config.scale is None else config.scale
    if config.pooling == "dot":
        pooling.scale = 1.0

    def round_to_dtype(X: Any) -> Any:
        return X.astype(dtype).astype(X.dtype)

    def scores(queries: Any, keys: Any) -> Any:
        found = round_to_dtype(products(queries, keys))  # (B, Q, K)
        return round_to_dtype(found * scale) if config.pooling == "dot" else found

    pooling.scores, pooling.drop = scores, lambda weights, training: round_to_dtype(weights)


def worst(oracle: np.ndarray, results: list[np.ndarray]) -> np.ndarray:
    """Take each row (..., features) of the result that errs most there, and is finite where the oracle is."""
    chosen = results[0]
    for one in results[1:]:
        finite = (np.isfinite(one) | ~np.isfinite(oracle)).all(-1)
        further = finite & (of_rows(one, oracle) > of_rows(chosen, oracle))
        chosen = np.where(further[..., None], one, chosen)
    return chosen
