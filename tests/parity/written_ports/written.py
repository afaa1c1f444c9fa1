"""A port as somebody wrote it, with the layer and the call in which it is compared."""

import dataclasses
from typing import Any

import numpy as np

import mha
from mha import parity
from mha.core.options.config import numpy_dtype

PLAIN = {"num_hiddens": 24, "num_heads": 4, "bias": True}
GROUPED = {"num_hiddens": 48, "num_heads": 6, "num_key_value_heads": 2, "bias": True}
LLAMA = GROUPED | {"bias": False, "rotary": mha.Rotary(8)}
GEMMA = GROUPED | {
    "bias": False, "qk_norm": "rms", "softcap": 2.0, "scale": 0.4, "window": (4, 0), "rotary": mha.Rotary(8),
}  # fmt: skip
INTERLEAVED = LLAMA | {"rotary": mha.Rotary(8, interleaved=True)}
CAUSAL, LENGTHS = {"causal": True}, {"valid_lens": ...}


@dataclasses.dataclass(frozen=True)
class Written:
    """A port, and what is to be found about it.

    id: what is special about it; port: a class of ports, or a function of a layer, queries, keys, values and the call,
    which returns what `parity.compare` takes; layer: the layer's options; call: the other arguments of the call, ... =
    random ones. wrong: whether its output differs. mistake: the name that the catalogue has for it, "" = none;
    described: names of arguments that may have been described wrongly. compared: further arguments of `parity.compare`.
    dtype: of the layer; backend: of the port's arrays; cross: True = keys and values are other inputs than queries.
    """

    id: str
    port: Any
    layer: dict[str, Any] = dataclasses.field(default_factory=lambda: PLAIN)
    call: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrong: bool = False
    mistake: str = ""
    described: tuple[str, ...] = ()
    compared: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    backend: str = "numpy"
    cross: bool = False


def report_of(written: Written, whole: bool = True) -> parity.Report:
    """The comparison of a port, whole or of the output alone: random biases and scales, inputs and arguments."""
    rng = np.random.default_rng(7)
    layer = mha.MultiHeadAttention(**written.layer, dtype=written.dtype, seed=0, backend="numpy")
    dtype, T = numpy_dtype(written.dtype), 13
    layer.weights = {
        name: X if X.ndim == 2 else rng.normal("norm" in name, 0.5, X.shape).astype(dtype)
        for name, X in layer.weights.items()
    }
    B, H = 3, layer.config.num_heads
    queries, keys, values = (rng.normal(size=(B, T, layer.config.num_hiddens)).astype(dtype) for _ in range(3))
    if not written.cross:
        keys = values = queries
    drawn = {
        "mask": rng.random((B, 1, T, T)) < 0.6, "valid_lens": np.array([T, 5, 7]),
        "score_bias": rng.normal(size=(1, H, T, T)).astype(dtype), "head_gates": rng.normal(1, 0.5, H).astype(dtype),
    }  # fmt: skip
    drawn["mask"][..., 0] = True
    call = {name: drawn[name] if X is ... else X for name, X in written.call.items()}
    inputs = queries, keys, values
    is_class = isinstance(written.port, type)
    theirs = written.port(layer)(*inputs, **call) if is_class else written.port(layer, *inputs, **call)
    if not whole and isinstance(theirs, tuple):
        theirs = theirs[0]
    return parity.compare(layer, theirs, *inputs, **call, **written.compared)
