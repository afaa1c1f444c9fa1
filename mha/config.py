"""The sizes and options of a layer: checked once, the same for every backend."""

import dataclasses
import math
import sys
from typing import get_args

import numpy as np

from mha import checks
from mha.names import FloatName, PoolingName

POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)
DTYPES = checks.FLOATS


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes and options of a multi-head attention layer, defaults filled in.

    Args:
        num_hiddens: width D of the output.
        num_heads: number of heads H.
        dropout: probability, in [0, 1), that training drops an attention weight.
        bias: whether the four projections add a bias.
        query_size, key_size, value_size: widths of the inputs; None = num_hiddens.
        key_dim, value_dim: widths d and dv of one head; None = num_hiddens / num_heads. Where num_hiddens is no
            multiple of num_heads, key_dim must be given, and value_dim is key_dim unless given.
        pooling: "dot" (scaled dot product) or "additive".
        dtype: "float32", "float64", "float16" or "bfloat16", of inputs, weights and output.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a size is not positive, dropout is outside [0, 1), a name is unknown, or num_hiddens is no
            multiple of num_heads and key_dim is not given.
    """

    num_hiddens: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = False
    _: dataclasses.KW_ONLY
    query_size: int = None  # type: ignore[assignment]
    key_size: int = None  # type: ignore[assignment]
    value_size: int = None  # type: ignore[assignment]
    key_dim: int = None  # type: ignore[assignment]
    value_dim: int = None  # type: ignore[assignment]
    pooling: PoolingName = "dot"
    dtype: FloatName = "float32"

    def __post_init__(self) -> None:
        def fill(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        fill("num_hiddens", checks.size("num_hiddens", self.num_hiddens))
        fill("num_heads", checks.size("num_heads", self.num_heads))
        fill("dropout", checks.probability("dropout", self.dropout))
        fill("bias", checks.flag("bias", self.bias))
        for name in ("query_size", "key_size", "value_size"):
            value = getattr(self, name)
            fill(name, self.num_hiddens if value is None else checks.size(name, value))
        width, remainder = divmod(self.num_hiddens, self.num_heads)
        if remainder and self.key_dim is None:
            raise ValueError(
                f"num_hiddens is {self.num_hiddens}, expected a multiple of num_heads = {self.num_heads}; "
                "choose another number of heads, or say with key_dim how wide a head is"
            )
        fill("key_dim", width if self.key_dim is None else checks.size("key_dim", self.key_dim))
        value_dim = self.key_dim if remainder else width
        fill("value_dim", value_dim if self.value_dim is None else checks.size("value_dim", self.value_dim))
        fill("pooling", checks.choice("pooling", self.pooling, POOLINGS))
        fill("dtype", checks.choice("dtype", checks.dtype_name(self.dtype), DTYPES))


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of this name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a layer, in canonical order.

    Raises ValueError if one would have more numbers than any memory can hold.
    """
    H, d, dv = config.num_heads, config.key_dim, config.value_dim
    kernels = {
        "W_q": (config.query_size, H * d),
        "W_k": (config.key_size, H * d),
        "W_v": (config.value_size, H * dv),
        "W_o": (H * dv, config.num_hiddens),
    }
    named: dict[str, tuple[int, ...]] = {}
    for name, kernel in kernels.items():
        named[f"{name}.kernel"] = kernel
        if config.bias:
            named[f"{name}.bias"] = kernel[1:]
    if config.pooling == "additive":
        named |= {"attention.W_q.kernel": (d, d), "attention.W_k.kernel": (d, d), "attention.w_v.kernel": (d, 1)}
    for name, shape in named.items():
        if math.prod(shape) > sys.maxsize // 8:  # bytes of a float64
            raise ValueError(f"{name} would have shape {shape}, too many numbers for any memory; choose smaller sizes")
    return named
