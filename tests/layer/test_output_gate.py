"""The output gate, the sigmoid of a projection of the queries: what the formula alone does not show."""

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch

B, T, D, H = 2, 7, 12, 3
LONG = pytest.mark.long(*adapters.COMPILED)
GATES = pytest.mark.parametrize("gate", ["element", "head"])


def layer(backend, gate="element", dtype="float64", **options):
    """A layer with a gate and random biases."""
    given = {"num_hiddens": D, "num_heads": H, "bias": True, "seed": 0, "dtype": dtype} | options
    attention = mha.MultiHeadAttention(**given, output_gate=gate, backend=backend)
    random = np.random.default_rng(1)
    attention.weights = {
        name: X if X.ndim > 1 else random.normal(size=X.shape).astype(X.dtype) for name, X in attention.weights.items()
    }
    return attention


@GATES
def test_other_weights_of_a_seed_are_as_without_it(gate):
    without = mha.MultiHeadAttention(D, H, seed=3, backend="numpy").weights
    gated = mha.MultiHeadAttention(D, H, seed=3, output_gate=gate, backend="numpy").weights
    assert gated.keys() - without.keys() == {"W_g.kernel"}
    assert gated["W_g.kernel"].shape == (D, D if gate == "element" else H)
    assert all(np.array_equal(gated[name], X) for name, X in without.items())


BLIND = {
    "no keys": {"valid_lens": [[0] + [5] * 6, [5] * 7]},
    "a mask": {"mask": np.arange(T)[:, None] + np.zeros((1, T)) > 0},
    "padding": {"positions": [[-1, *range(6)], list(range(7))]},
    "a segment of its own": {"segments": [[9, *[2] * 6], [2] * 7], "key_segments": [2] * 7},
}


@GATES
@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how == "no keys" else LONG) for how in BLIND])
@pytest.mark.parametrize("nothing", [np.nan, np.inf])
def test_a_query_that_sees_nothing_sends_nothing_through_its_gate(backend, rng, gate, how, nothing):
    attention, X, keys = layer(backend, gate), rng.normal(size=(B, T, D)), rng.normal(size=(B, T, D))
    X[0, 0] = X[1, 0] = 0
    call = BLIND[how] if how != "a mask" else {"mask": BLIND[how]["mask"][None]}
    expected, by_X = attention(X, keys, keys, **call), attention.gradients(X, keys, keys, **call)
    X[0, 0] = nothing
    if how == "a mask":
        X[1, 0] = nothing
    for found in (attention(X, keys, keys, **call), attention(X, keys, keys, **call, return_weights=True)[0]):
        assert parity.error(found, expected) <= parity.bound("float64", expected, expected)
    assert np.array_equal(found[0, 0], attention.weights["W_o.bias"])
    found = attention.gradients(X, keys, keys, **call)
    assert not found["queries"][0, 0].any()
    for name, right in by_X.items():
        assert parity.error(found[name], right) <= parity.bound("float64", right, right, gradient=True), name
    steps = attention.trace(X, keys, keys, **call)
    assert not steps["gated"].reshape(B, H, T, -1)[0, :, 0].any()


@GATES
def test_padding_in_a_call_with_a_cache_is_not_gated(backend, rng, gate):
    attention, X = layer(backend, gate, num_key_value_heads=1), rng.normal(size=(B, T, D))
    expected = attention(X[1:, 3:], X[1:, 3:], X[1:, 3:], causal=True)
    X[1, :3] = np.nan
    places = [[0, 1, 2, 3, 4, 5, 6], [-1, -1, -1, 0, 1, 2, 3]]
    found, cache = attention(X, X, X, causal=True, positions=places, cache=attention.cache(B, 11))
    assert parity.error(found[1:, 3:], expected) <= parity.bound("float64", expected, expected)
    assert np.array_equal(found[1, 0], attention.weights["W_o.bias"])
    token = np.stack([X[0, :1], X[1, :1]])  # a number, and none
    found, _ = attention(token, token, token, causal=True, positions=[[7], [-1]], cache=cache)
    assert np.isfinite(found).all()
    assert np.array_equal(found[1, 0], attention.weights["W_o.bias"])


@GATES
def test_gates_are_opened_in_float32(backend, gate):
    """In half precision, too, where an exponential of 20 overflows; a gate of -9 is not 0."""
    dtype = "float16" if "float16" in dispatch.FRAMEWORKS[backend].dtypes else "float32"
    attention = layer(backend, gate, dtype)
    bias = np.resize([-9.0, 20.0, -20.0], attention.weights["W_g.bias"].shape)
    zeros = {name: np.zeros_like(X) for name, X in attention.weights.items()}
    eye = {f"{name}.kernel": np.eye(D) for name in ("W_v", "W_o")}
    attention.weights = {name: X.astype(dtype) for name, X in (zeros | eye | {"W_g.bias": bias}).items()}
    X = np.full((B, 1, D), 64, dtype)
    expected = 64 / (1 + np.exp(-np.repeat(bias, D // len(bias))))
    assert np.allclose(attention(X, X, X), expected, rtol=2e-3, atol=1e-6)
    found = attention.gradients(X, X, X)
    assert all(np.isfinite(by_X).all() for by_X in found.values())
