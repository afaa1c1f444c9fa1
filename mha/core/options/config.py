"""The sizes and options of a layer, checked once for every backend."""

import dataclasses
import math
import reprlib
import sys
from typing import Any, get_args

import numpy as np

from mha.core.options import checks
from mha.core.options.names import FloatName, GateName, PoolingName
from mha.core.options.norms import Norm, norm
from mha.core.options.positions import Rotary, Temperature

POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)
DTYPES = checks.FLOATS
GATES: tuple[GateName, ...] = get_args(GateName)
MODERN = (
    "num_key_value_heads",
    "scale",
    "softcap",
    "window",
    "chunk",
    "rotary",
    "qk_norm",
    "value_norm",
    "temperature",
    "sinks",
    "output_gate",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes and options of a multi-head attention layer, defaults filled in.

    Args:
        num_hiddens: width D of the output.
        num_heads: number of heads H.
        dropout: probability, in [0, 1), that training drops an attention weight.
        bias: whether the projections add a bias: four, and that of an output gate.
        query_size, key_size, value_size: widths of the inputs; None = num_hiddens.
        key_dim, value_dim: widths d and dv of one head; None = num_hiddens / num_heads. If num_hiddens is no multiple
            of num_heads, key_dim must be given; then value_dim = None means key_dim.
        num_key_value_heads: number G of heads of keys and values, a divisor of H: query head h uses head h // (H / G)
            of them; None = H.
        scale: factor of the dot products; None = 1 / sqrt(key_dim).
        softcap: number c of the cap c * tanh(scores / c); None = no cap.
        window: (left, right), the numbers of keys before and after its own position that a query may see; None = all.
        chunk: number of positions of a chunk, from 0 on: a query sees only the keys of its own; None = no chunks.
        rotary: rotation of queries and keys by their positions, an `mha.Rotary`; None = none.
        qk_norm: norm of queries and keys, an `mha.Norm`, or its kind alone, "rms" or "layer"; None = none.
        value_norm: norm of values, likewise, right after they are split into heads.
        temperature: factor of the queries that grows with their positions, an `mha.Temperature`; None = none.
        sinks: whether each head has a sink, a weight that is one more score in the softmax of every query, and pools
            nothing.
        output_gate: factors of the pooled heads, the sigmoid of a projection of the queries: "element", one of each
            feature, or "head", one of each head; None = none.
        pooling: "dot" (scaled dot product) or "additive", which takes no scale, rotary, qk_norm or temperature.
        dtype: dtype of inputs, weights and output: "float32", "float64", "float16" or "bfloat16".

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a size is not positive, dropout is outside [0, 1), a name is unknown, num_hiddens is no multiple
            of num_heads and key_dim is not given, or options do not go together.
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
    num_key_value_heads: int = None  # type: ignore[assignment]
    scale: float | None = None
    softcap: float | None = None
    window: tuple[int | None, int | None] | None = None
    chunk: int | None = None
    rotary: Rotary | None = None
    qk_norm: Norm | None = None
    value_norm: Norm | None = None
    temperature: Temperature | None = None
    sinks: bool = False
    output_gate: GateName | None = None
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
                "choose another number of heads, or give key_dim, the width of a head"
            )
        fill("key_dim", width if self.key_dim is None else checks.size("key_dim", self.key_dim))
        value_dim = self.key_dim if remainder else width
        fill("value_dim", value_dim if self.value_dim is None else checks.size("value_dim", self.value_dim))
        groups = self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads
        fill("num_key_value_heads", checks.size("num_key_value_heads", groups))
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}, expected a divisor of num_heads = "
                f"{self.num_heads}: each serves equally many heads"
            )
        for name in ("scale", "softcap"):
            value = getattr(self, name)
            fill(name, None if value is None else checks.positive(name, value))
        fill("window", checks.window(self.window))
        fill("chunk", None if self.chunk is None else checks.chunk(self.chunk))
        if self.rotary is not None:
            if not isinstance(self.rotary, Rotary):
                came = f"{reprlib.repr(self.rotary)} ({type(self.rotary).__name__})"
                raise TypeError(f"rotary is {came}, expected an mha.Rotary, such as mha.Rotary(base=10000.0)")
            fill("rotary", self.rotary.within(self.key_dim))
        for name in ("qk_norm", "value_norm"):
            fill(name, norm(name, getattr(self, name)))
        if self.value_norm and self.value_norm.after:
            raise ValueError("value_norm has after=True, expected False: values do not turn")
        if not isinstance(self.temperature, Temperature | None):
            came = f"{reprlib.repr(self.temperature)} ({type(self.temperature).__name__})"
            raise TypeError(f"temperature is {came}, expected an mha.Temperature, such as mha.Temperature(0.1, 8192)")
        fill("sinks", checks.flag("sinks", self.sinks))
        fill("output_gate", None if self.output_gate is None else checks.choice("output_gate", self.output_gate, GATES))
        fill("pooling", checks.choice("pooling", self.pooling, POOLINGS))
        fill("dtype", checks.choice("dtype", checks.dtype_name(self.dtype), DTYPES))
        for name in ("scale", "rotary", "qk_norm", "temperature"):
            if self.pooling == "additive" and getattr(self, name) is not None:
                raise ValueError(f"{name} is given, expected None with pooling='additive', which has no dot products")

    @property
    def gate_dim(self) -> int:
        """The number of gates of one head in the output gate."""
        return self.value_dim if self.output_gate == "element" else 1


def plain(config: Config) -> dict[str, Any]:
    """The defaults of the options of today's models, by name, for a layer of these sizes."""
    layer = Config(config.num_hiddens, config.num_heads, key_dim=config.key_dim)
    return {name: getattr(layer, name) for name in MODERN}


def special(config: Config) -> dict[str, Any]:
    """The options of today's models that are not at their defaults, by name; other layers and files may lack them."""
    return {name: getattr(config, name) for name, default in plain(config).items() if getattr(config, name) != default}


def of_recorded(options: dict[str, Any]) -> Config:
    """The configuration of options as `dataclasses.asdict` records one; raises as `Config` does.

    A norm may also be recorded as its kind, "qk_norm", and its number, "qk_norm_eps".
    """
    options = dict(options)
    if (eps := options.pop("qk_norm_eps", None)) is not None:
        recorded = Norm(options.get("qk_norm") or "rms", eps)
        options["qk_norm"] = recorded if options.get("qk_norm") else None
    kinds = {"rotary": Rotary, "qk_norm": Norm, "value_norm": Norm, "temperature": Temperature}
    made = {name: kind(**options[name]) for name, kind in kinds.items() if isinstance(options.get(name), dict)}
    return Config(**options | made)


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
    H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
    kernels = {
        "W_q": (config.query_size, H * d),
        "W_k": (config.key_size, G * d),
        "W_v": (config.value_size, G * dv),
        "W_o": (H * dv, config.num_hiddens),
    }
    if config.output_gate:
        kernels["W_g"] = config.query_size, H * config.gate_dim
    named: dict[str, tuple[int, ...]] = {}
    for name, kernel in kernels.items():
        named[f"{name}.kernel"] = kernel
        if config.bias:
            named[f"{name}.bias"] = kernel[1:]
    if config.pooling == "additive":
        named |= {"attention.W_q.kernel": (d, d), "attention.W_k.kernel": (d, d), "attention.w_v.kernel": (d, 1)}
    if config.qk_norm:
        named |= {"q_norm.scale": (config.qk_norm.size(H, d),), "k_norm.scale": (config.qk_norm.size(G, d),)}
    if config.value_norm:
        named["v_norm.scale"] = (config.value_norm.size(G, dv),)
    if config.sinks:
        named["sinks"] = (H,)
    for name, shape in named.items():
        if math.prod(shape) > sys.maxsize // 8:  # bytes of a float64
            raise ValueError(f"{name} would have shape {shape}, too many numbers for any memory; choose smaller sizes")
    return named
