"""Positions that a call gives: where queries and keys are, and which of them are padding, on every backend."""

import adapters
import formula
import numpy as np
import pytest

import mha
from mha import parity

from .modern import ALL, K, Q, agree, inputs, layer

POSITIONS = np.array([[-1, 0, 4, 2, 2], [3, 9, -7, 1, 5]])
KEYS = np.array([[-1, -1, 0, 1, 2, 3, 4], [6, 5, 3, -1, 2, 1, 0]])
CALLS = {
    "of queries": {"positions": POSITIONS, "causal": True},
    "of keys": {"key_positions": KEYS[1], "offset": [2, -1], "causal": True},
    "of both": {"positions": POSITIONS[1], "key_positions": KEYS, "mask": np.arange(K) != 4, "valid_lens": [6, 7]},
}
LONG = pytest.mark.long(*adapters.COMPILED)
EACH = [pytest.param(name, marks=LONG if name == "of keys" else ()) for name in CALLS]


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("readable", [False, pytest.param(True, marks=LONG)], ids=["fast", "lesson"])
def test_the_formula(backend, rng, name, readable):
    attention, arrays, call = layer(backend, **ALL, readable=readable), inputs(rng), dict(CALLS[name])
    if "mask" in call:
        call["mask"] = np.broadcast_to(call["mask"], (Q, K))
    given = {one: X if isinstance(X, bool) else np.array(X) for one, X in call.items()}
    output, weights = formula.both(attention.config, attention.weights, *arrays, **given)
    assert agree(attention(*arrays, **call), output)
    found = attention(*arrays, **call, return_weights=True)
    assert agree(found[0], output)
    assert agree(found[1], weights)


def test_positions_one_after_another_are_an_offset(backend, rng):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    expected = attention(*arrays, causal=True, offset=3)
    assert agree(attention(*arrays, causal=True, positions=np.arange(3, 3 + Q)), expected)
    assert agree(attention(*arrays, causal=True, offset=3, key_positions=np.arange(K)), expected)
    moved = {"positions": [np.arange(8, 8 + Q), np.arange(103, 103 + Q)]}
    moved["key_positions"] = [np.arange(5, 5 + K), np.arange(100, 100 + K)]  # distances alone count
    assert agree(attention(*arrays, causal=True, **moved), expected)


def test_padding_on_either_side_is_as_if_it_were_not_there(backend, rng):
    attention = layer(backend, **ALL)
    short, long = rng.normal(size=(1, 4, 11)), rng.normal(size=(1, 6, 11))
    empty = np.full((1, 2, 11), np.nan)
    left, right = np.concatenate([empty, short], 1), np.concatenate([short, empty], 1)
    X = np.concatenate([left, right, long])
    places = np.array([[-1, -1, 0, 1, 2, 3], [0, 1, 2, 3, -1, -1], [0, 1, 2, 3, 4, 5]])
    output = attention(X, X, X, causal=True, positions=places, key_positions=places)
    alone = attention(short, short, short, causal=True)
    assert agree(output[:1, 2:], alone)
    assert agree(output[1:2, :4], alone)
    assert agree(output[2:], attention(long, long, long, causal=True))
    nothing = attention.trace(X, X, X, causal=True, positions=places, key_positions=places)["merged"]
    assert (nothing[0, :2] == 0).all()
    assert (nothing[1, 4:] == 0).all()


def test_padding_sends_no_gradient(backend, rng):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    gradients = attention.gradients(*arrays, causal=True, positions=POSITIONS, key_positions=KEYS)
    assert (gradients["queries"][POSITIONS < 0] == 0).all()
    assert (gradients["keys"][KEYS < 0] == 0).all()
    assert (gradients["values"][KEYS < 0] == 0).all()
    assert np.abs(gradients["keys"]).max() > 0


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
def test_integers_of_any_width_are_positions(backend, rng, dtype):
    attention, arrays, places = layer(backend, **ALL), inputs(rng), [2, 0, 3, 1, 4]
    expected = attention(*arrays, causal=True, positions=places)
    found = attention(*arrays, causal=True, positions=np.array(places, dtype))
    np.testing.assert_array_equal(found, expected)


def test_any_position_below_0_is_padding(backend, rng):
    attention, arrays = layer(backend, "float32", **ALL), inputs(rng, "float32")
    outputs = [attention(*arrays, positions=np.array([0, 1, 2, far, 4])) for far in (3, -1, -(2**40))]
    np.testing.assert_array_equal(outputs[2], outputs[1])  # of a kind that was computed before
    assert (outputs[1][:, 3] == outputs[1][0, 3]).all()
    assert (outputs[0][:, 3] != outputs[1][:, 3]).any()


@pytest.mark.needs("a compiler of calls")
def test_a_compiler_takes_positions(backend, rng):
    attention, arrays = layer(backend, "float32", **ALL), inputs(rng, "float32")
    compiled, framework = adapters.of(backend).compile(attention.layer), adapters.of(backend)
    for places in (POSITIONS, POSITIONS[::-1].copy()):  # the second time with other values
        call = {"positions": places, "key_positions": KEYS[0]}
        names, given = call.keys(), framework.own(*(X.astype("int32") for X in call.values()))
        output = compiled(*framework.own(*arrays), **dict(zip(names, given, strict=True)))
        assert parity.ratio(attention, output, *arrays, **call) <= 1


@pytest.mark.parametrize("offset", [2, np.array([0, 2])], ids=["one", "of samples"])
def test_an_offset_beside_positions_is_refused(backend, rng, offset):
    attention, arrays = layer(backend), inputs(rng)
    with pytest.raises(ValueError, match=r"offset is .* beside positions, expected one of the two: .*leave offset out"):
        attention(*arrays, causal=True, positions=POSITIONS, offset=offset)
    assert attention(*arrays, causal=True, positions=POSITIONS, offset=0).shape == (2, Q, 11)


def test_positions_alone_hide_padding(backend, rng):
    attention, arrays = mha.MultiHeadAttention(11, 1, dtype="float64", seed=0, backend=backend), inputs(rng)
    weights = attention(*arrays, positions=POSITIONS, key_positions=KEYS, return_weights=True)[1]
    seen = (POSITIONS[:, None, :, None] >= 0) & (KEYS[:, None, None] >= 0)
    np.testing.assert_array_equal(weights != 0, np.broadcast_to(seen, weights.shape))
