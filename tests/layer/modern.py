"""A small layer with the options of today's models, and inputs for it."""

import numpy as np

import mha
from mha import parity

B, Q, K, H, G, d = 2, 5, 7, 6, 2, 4
ALL = {
    "num_key_value_heads": G, "scale": 0.7, "softcap": 1.5, "window": (3, None), "qk_norm": mha.Norm("layer", 0.01),
    "rotary": mha.Rotary(2, base=100.0, interleaved=True),
}  # fmt: skip


def layer(backend, dtype="float64", **options):
    sizes = {"num_hiddens": 11, "num_heads": H, "key_dim": d, "value_dim": 3}
    attention = mha.MultiHeadAttention(**sizes | options, dtype=dtype, seed=0, backend=backend)
    random = np.random.default_rng(1)
    attention.weights = {
        name: random.normal(size=X.shape).astype(X.dtype) if name.endswith(("scale", "sinks")) else X
        for name, X in attention.weights.items()
    }
    return attention


def inputs(rng, dtype="float64", num_queries=Q):
    return [rng.normal(size=(B, T, 11)).astype(dtype) for T in (num_queries, K, K)]


def agree(found, expected):
    return parity.error(found, expected) <= parity.bound("float64", expected, expected)
