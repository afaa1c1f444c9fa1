"""The calls of the page: one layer and one call of it, its inputs, and changes of them.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d width of a head.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import peers

from mha.core import dispatch
from mha.core.options.config import Config, numpy_dtype, shapes

# Distinct primes; D = H * d.
B, Q, K, H, D = 2, 5, 7, 3, 33
POSITIONS = np.arange(K)

# The options that decide the shapes and dtypes of a layer's weights, besides the bias.
SIZING = {"num_hiddens", "num_heads", "num_key_value_heads", "query_size", "key_size", "value_size"}
SIZING |= {"key_dim", "value_dim", "pooling", "dtype"}


@dataclasses.dataclass(frozen=True)
class Call(peers.Call):
    """One layer and one call of it, by the names of `mha.MultiHeadAttention`; options: of the layer."""

    options: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"num_hiddens": D, "num_heads": H, "bias": True}
    )

    def but(self, options: dict[str, Any] | None = None, **changes: Any) -> "Call":
        """The same call with other arguments, and some other options."""
        return dataclasses.replace(self, options=self.options | (options or {}), **changes)

    def widened(self) -> "Call":
        """The same call in float64."""
        return super().widened().but({"dtype": "float64"})

    @property
    def dtype(self) -> str:
        """The dtype of the layer."""
        return self.options.get("dtype", "float32")

    def weights(self) -> dict[str, np.ndarray] | None:
        """Draw canonical weights, the same for the same sizes; None if no layer has such sizes."""
        sizes = {name: value for name, value in self.options.items() if name in SIZING}
        try:
            config = Config(**sizes, bias=bool(self.options["bias"]))
        except (TypeError, ValueError):
            return None
        random = np.random.default_rng(3)
        # Rounded to the narrowest dtype, so that layers of all dtypes have the same weights.
        return {
            name: (random.normal(size=shape) / math.sqrt(shape[0])).astype("float16").astype(numpy_dtype(config.dtype))
            for name, shape in shapes(config).items()
        }


_random = np.random.default_rng(20170612)
PLAIN = Call(*(_random.normal(size=(B, T, D)).astype("float16").astype("float32") for T in (Q, K, K)))
COTANGENT = _random.normal(size=(B, Q, D)).astype("float32")
LENGTHS = np.array([3, 5], "int32")
MASK = _random.random((Q, K)) < 0.6
MASK[:, 0] = True
MASKS = {
    "(Q, K)": MASK,
    "(B, Q, K)": np.stack([MASK, MASK[::-1]]),
    "(B, H, Q, K)": np.stack([np.stack([MASK, MASK[::-1], MASK & MASK[::-1]])] * B),
}
SHORT = PLAIN.but(valid_lens=LENGTHS)


def padded(filling: float, call: Call = SHORT) -> Call:
    """The call with this value in all keys and values that its lengths hide."""
    hidden = call.valid_lens[:, None] <= POSITIONS  # (B, K)
    keys, values = (np.where(hidden[:, :, None], X.dtype.type(filling), X) for X in (call.keys, call.values))
    return call.but(keys=keys, values=values)


def changed(X: np.ndarray, at: Any, value: float) -> np.ndarray:
    """A copy with another value at some place."""
    X = X.copy()
    X[at] = value
    return X


def in_dtype(call: Call, dtype: str) -> Call:
    """The call with layer and inputs in this dtype."""
    inputs = {name: getattr(call, name).astype(numpy_dtype(dtype)) for name in peers.INPUTS}
    return call.but({"dtype": dtype}, **inputs)


def foreign(X: np.ndarray) -> Callable[[str], Any]:
    """An array of PyTorch, or for PyTorch one of JAX."""
    return lambda backend: dispatch.load("jax" if backend == "torch" else "torch").tensor(X)


def meta(backend: str) -> Any:
    """Queries with a shape and a dtype, but without numbers."""
    import torch

    return torch.empty((B, Q, D), device="meta")


def lens(*lengths: Any, dtype: str = "int32") -> Call:
    """The plain call with these lengths."""
    return PLAIN.but(valid_lens=np.array(lengths, dtype))


def each(change: Callable[[np.ndarray], Any], *names: str) -> Call:
    """The plain call with some inputs changed, by default all three."""
    return PLAIN.but(**{name: change(getattr(PLAIN, name)) for name in names or peers.INPUTS})


def scaled(call: Call, factor: float) -> Call:
    """The call with all inputs times a number."""
    inputs = {name: getattr(call, name) for name in peers.INPUTS}
    return call.but(**{name: X * X.dtype.type(factor) for name, X in inputs.items()})


ZERO = lens(0, 5)
HALF_ZERO = in_dtype(ZERO, "float16")
LARGE = scaled(lens(1, 5), 1e4)
ONE_EMPTY = lens([1, 0, 2, 7, 5], [5, 2, 4, 1, 6])
NOT_NEGATIVE = lens([K, 0, K, 3, 2], [K, 0, K, 3, 2])
NEGATIVE = lens([K, -1, K, 3, 2], [K, -1, K, 3, 2])
EACH_QUERY = lens([1, 3, 2, 7, 5], [5, 2, 4, 1, 6])
