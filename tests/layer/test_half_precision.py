"""Half precision on NumPy, which is the yardstick of the other backends there and so is measured by itself here."""

import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.options.config import numpy_dtype

ROWS = 2053  # over which a bias adds its gradient up: in half precision, each addition would round


@pytest.mark.margin(1, 2)  # a number of it is a sixteenth of a bound
@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_many_rows_are_rounded_once(dtype, pooling):
    """Each step of a backward pass is rounded to half precision, and a sum is one step: its terms are not."""
    rng = np.random.default_rng(6)
    options = {"num_hiddens": 6, "num_heads": 2, "bias": True, "pooling": pooling, "backend": "numpy"}
    attention = mha.MultiHeadAttention(**options, dtype=dtype)
    oracle = parity.in_dtype(attention, "float64")
    shapes = {"queries": (1, ROWS, 6), "keys": (1, 3, 6), "values": (1, 3, 6)}
    inputs = [rng.normal(size=shape).astype(numpy_dtype(dtype)) for shape in shapes.values()]
    cotangent = (1 + 0.1 * rng.normal(size=(1, ROWS, 6))).astype(numpy_dtype(dtype))
    found = attention.gradients(*inputs, cotangent=cotangent)
    wide = [X.astype(np.float64) for X in (*inputs, cotangent)]
    expected = oracle.gradients(*wide[:3], cotangent=wide[3])
    worst = {}
    for name, X in expected.items():
        scale = parity.gradient_scale(name, expected)
        bound = parity.bound(dtype, X, X, gradient=True, scale=scale)  # the bound of one whose base is without error
        worst[name] = parity.error(found[name], X) / bound
    assert max(worst.values()) <= 1, worst
    assert worst["W_o.bias"] <= 1 / 16 + 1e-6  # a sum of the cotangent alone: rounded once, by half a unit at most


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_gates_of_heads_are_sums_that_are_rounded_once(backend, dtype, rng):
    if dtype not in dispatch.load(backend).DTYPES:
        return
    options = {"num_hiddens": 96, "num_heads": 6, "seed": 0, "dtype": dtype}
    shapes = {"X": (3, 64, 96), "head_gates": (3, 6), "cotangent": (3, 64, 96)}
    means = zip((2, 2, 0), shapes.values(), strict=True)
    X, head_gates, cotangent = (rng.normal(mean, 1, shape).astype(numpy_dtype(dtype)) for mean, shape in means)
    call = {"head_gates": head_gates, "cotangent": cotangent}
    found = mha.MultiHeadAttention(**options, backend=backend).gradients(X, X, X, **call)
    oracle = mha.MultiHeadAttention(**options, backend="numpy")
    assert parity.compare(oracle, {"gradient.head_gates": found["head_gates"]}, X, X, X, **call)
