"""NumPy, one token: our layer with a cache, beside the products that it needs."""

from typing import Any

import numpy as np

from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first."""
    layer: Any = attention.layer
    x = shape.inputs()

    def ours() -> Step:
        return decoding.decoder(attention, shape, lambda cache: layer(x, x, x, causal=True, cache=cache))

    def products() -> Step:
        keys, values = (X.reshape(-1, *X.shape[2:])[:, : shape.T] for X in decoding.heads(shape))  # (B*G, T, d)
        kernels = [attention.weights[f"W_{one}.kernel"] for one in "qkvo"]
        row = x.reshape(shape.B, shape.D)  # (B, D)

        def step() -> Results:
            W_q, _, _ = (row @ kernel for kernel in kernels[:3])  # (B, H*d)
            scores = W_q.reshape(len(keys), -1, keys.shape[2]) @ keys.swapaxes(1, 2)  # (B*G, H/G, T)
            np.matmul((scores @ values).reshape(shape.B, -1), kernels[3])  # (B, D)
            return Results()

        return step

    return {
        "attention.layer": Implementation("layer", ours),
        "the products alone": Implementation("kernel", products),
    } | decoding.user_calls(attention, shape, np.asarray)
