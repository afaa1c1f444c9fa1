"""The frameworks' own layers, given our weights in their layouts, compute what ours do: output, weights, gradients.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import numpy as np
import peers
import pytest
from layers import assert_within_bounds, ours, random_layer

from mha.core import dispatch

# d = 4 everywhere: Keras's own layer rounds 1 / sqrt(d) to float32, even in float64, and 1/2 needs no rounding.
SIZES = {"key_size": 13, "value_size": 17}
OWN = {
    # the peer, and the most unequal widths that it can have
    "torch": ("torch", SIZES),
    "tensorflow": ("keras", SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 3}),
    "jax": ("linen", SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 4}),
}


@pytest.mark.backends(*OWN)  # NumPy and MXNet bring no such layer, and MLX none that is of float64, MLX none of float64
@pytest.mark.parametrize(("equal", "dtype"), [(True, "float32"), (False, "float64")], ids=["equal", "unequal"])
def test_own_layer_of_the_framework_agrees(backend, rng, dtype, equal):
    name, widths = OWN[backend]
    peer, B, Q, K, D, H = peers.of(name), 3, 5, 7, 8, 2
    options = {"num_hiddens": D, "num_heads": H, "bias": True, **({} if equal else widths)}
    attention = random_layer(rng, options, dtype, backend)
    config = attention.config
    shapes = (B, Q, config.query_size), (B, K, config.key_size), (B, K, config.value_size), (B, Q, D)
    *inputs, cotangent = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    lengths, mask = np.array([7, 4, 2]), rng.random((B, H, Q, K)) < 0.6
    mask[..., 0] = True  # what a query without keys yields is each framework's own affair

    call = peers.Call(*inputs, lengths, mask, cotangent=cotangent)
    with dispatch.load(backend).context("float64"):
        wide = {name: X.astype("float64") for name, X in attention.weights.items()}
        layer = peer.make(options | {"dtype": "float64"}, wide, call.widened())
        oracle = peer.run(layer, call.widened())
    assert_within_bounds(ours(attention, call), oracle, ours(attention.to("numpy"), call), dtype)
