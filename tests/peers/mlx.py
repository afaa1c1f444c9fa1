"""`mlx.nn.MultiHeadAttention`: kernels (out, in), one bias for all; in its boolean masks True = may attend.

It gives no attention weights.
"""

import mlx.core as mx
import numpy as np
from mlx import nn

from mha.core import dispatch
from peers import INPUTS, own, own_inputs

PARTS = {"W_q": "query_proj", "W_k": "key_proj", "W_v": "value_proj", "W_o": "out_proj"}


def new(**options):
    layer = nn.MultiHeadAttention(12, 3, **options)
    for number, part in enumerate(PARTS.values()):
        for place, (name, X) in enumerate(layer[part].items()):
            layer[part][name] = mx.random.normal(X.shape, key=mx.random.key(2 * number + place))
    return layer


def make(options, weights, call):
    D, H = options["num_hiddens"], options["num_heads"]
    d, dv = (options.get(name) or D // H for name in ("key_dim", "value_dim"))
    sizes = {f"{name}_input_dims": options.get(f"{name}_size") or D for name in ("query", "key", "value")}
    layer = nn.MultiHeadAttention(
        H * d, H, **sizes, value_dims=H * dv, value_output_dims=D, bias=options.get("bias", False)
    )
    layer.set_dtype(getattr(mx, options.get("dtype", "float32")))
    for name, X in (weights or {}).items():
        part, kind = name.split(".")
        layer[PARTS[part]]["weight" if kind == "kernel" else kind] = own("mlx", np.ascontiguousarray(X.T))
    return layer


def run(layer, call):
    hiding = None
    if call.own_mask:
        hiding = own("mlx", call.mask)
    elif call.only_causal:
        hiding = "causal"
    elif (seen := call.seen()) is not None:
        hiding = own("mlx", seen)
    parts = [(part, name) for part in PARTS.values() for name in layer[part]]

    def attend(*arrays):
        for (part, name), X in zip(parts, arrays[3:], strict=True):
            layer[part][name] = X
        return layer(*arrays[:3], hiding)

    arrays = [*own_inputs(call, "mlx"), *(layer[part][name] for part, name in parts)]
    if call.cotangent is None:
        return {"output": dispatch.load("mlx").to_numpy(attend(*arrays))}
    (output,), pulled = mx.vjp(attend, arrays, [own("mlx", call.cotangent)])
    attend(*arrays)  # the layer has its own arrays again
    ours = {part: name for name, part in PARTS.items()}
    by = [*INPUTS, *(f"{ours[part]}.{'kernel' if name == 'weight' else name}" for part, name in parts)]
    found = {name: dispatch.load("mlx").to_numpy(X) for name, X in zip(by, pulled, strict=True)}
    found = {name: X.T if name.endswith("kernel") else X for name, X in found.items()}
    return {"output": dispatch.load("mlx").to_numpy(output)} | found
