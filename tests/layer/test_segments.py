"""Segments of packed sequences: a query sees the keys of its own one alone, on every backend."""

import adapters
import formula
import numpy as np
import pytest

import mha
from mha import parity
from mha.core.call import Call
from mha.core.engine.visible_range import usage_if_known

from .modern import ALL, B, K, Q, agree, inputs, layer

SEGMENTS = np.array([[2, 2, -1, 0, 0], [1, 0, 1, 0, 5]])
KEYS = np.array([[2, 2, 2, -1, 0, 0, -3], [0, 1, 0, 1, -1, 1, 7]])
OF_ONE = np.array([0, 0, 3, 3, 1, 1, 1])
POSITIONS = np.array([0, 1, 0, 1, 0, 1, 2])
CALLS = {
    "of all": {"segments": OF_ONE[:Q], "key_segments": OF_ONE, "causal": True, "offset": 1},
    "in any order": {"segments": SEGMENTS, "key_segments": KEYS},
    "with restarts": {
        "segments": SEGMENTS, "key_segments": KEYS, "positions": POSITIONS[:Q], "key_positions": POSITIONS,
        "valid_lens": np.array([6, 7]), "causal": True,
    },
}  # fmt: skip
LONG = pytest.mark.long(*adapters.COMPILED)
EACH = [pytest.param(name, marks=LONG if name == "of all" else ()) for name in CALLS]


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("readable", [False, pytest.param(True, marks=LONG)], ids=["fast", "lesson"])
def test_the_formula(backend, rng, name, readable):
    attention, arrays, call = layer(backend, **ALL, readable=readable), inputs(rng), CALLS[name]
    output, weights = formula.both(attention.config, attention.weights, *arrays, **call)
    assert agree(attention(*arrays, **call), output)
    found = attention(*arrays, **call, return_weights=True)
    assert agree(found[0], output)
    assert agree(found[1], weights)


def test_packed_sequences_are_as_if_they_were_alone(backend, rng):
    attention, lengths = layer(backend, **ALL), (4, 1, 6)
    each = [rng.normal(size=(1, T, 11)) for T in lengths]
    rows = [each[0], np.full((1, 2, 11), np.nan), each[1], each[2], np.full((1, 3, 11), np.nan)]
    X, segments = np.concatenate(rows, 1), np.array([0] * 4 + [-1] * 2 + [9] + [4] * 6 + [-1] * 3)
    places = np.array([0, 1, 2, 3, 0, 0, 0, *range(6), 7, 7, 7])
    call = {"causal": True, "segments": segments, "positions": places, "key_positions": places}
    output = attention(X, X, X, **call)
    for one, first in zip(each, (0, 6, 7), strict=True):
        assert agree(output[:, first : first + one.shape[1]], attention(one, one, one, causal=True))
    gradients = attention.gradients(X, X, X, **call)
    assert (gradients["keys"][:, segments < 0] == 0).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert (attention.trace(X, X, X, **call)["merged"][:, segments < 0] == 0).all()


def test_segments_of_queries_are_those_of_as_many_keys(backend, rng):
    attention, (queries, keys, values) = layer(backend, **ALL), inputs(rng, num_queries=K)
    expected = attention(queries, keys, values, segments=KEYS, key_segments=KEYS)
    np.testing.assert_array_equal(attention(queries, keys, values, segments=KEYS), expected)
    np.testing.assert_array_equal(attention(queries, keys, values, key_segments=KEYS), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
def test_integers_of_any_width_are_segments(backend, rng, dtype):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    call = {"segments": np.array([3, 3, 0, 3, 1], dtype), "key_segments": np.array([0, 1, 3, 1, 0, 3, 2], dtype)}
    expected = attention(*arrays, **{name: X.tolist() for name, X in call.items()})
    np.testing.assert_array_equal(attention(*arrays, **call), expected)


def test_any_number_below_0_is_padding(backend, rng):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    call = {"segments": np.array([0, -1, -2, 0, -(2**40)]), "key_segments": np.array([0, -1, -2, 0, -(2**40), 0, 0])}
    weights = attention(*arrays, **call, return_weights=True)[1]
    assert (weights[:, :, [1, 2, 4]] == 0).all()
    assert (weights[..., [1, 2, 4]] == 0).all()
    assert (weights[:, :, 3, [0, 3, 5, 6]] > 0).all()


@pytest.mark.needs("a compiler of calls")
def test_a_compiler_takes_segments(backend, rng):
    attention, arrays = layer(backend, "float32", **ALL), inputs(rng, "float32")
    compiled, framework = adapters.of(backend).compile(attention.layer), adapters.of(backend)
    for segments in (SEGMENTS, SEGMENTS[::-1].copy()):  # the second time with other values
        call = {"segments": segments, "key_segments": KEYS}
        given = framework.own(*(X.astype("int32") for X in call.values()))
        output = compiled(*framework.own(*arrays), **dict(zip(call, given, strict=True)))
        assert parity.ratio(attention, output, *arrays, **call) <= 1


REFUSED = {
    "segments of queries alone": ({"segments": SEGMENTS}, "segments is given alone for 5 queries and 7 keys.*key_seg"),
    "segments of keys alone": ({"key_segments": KEYS}, "key_segments is given alone for 5 queries .*: write segments="),
    "positions of queries alone": (
        CALLS["of all"] | {"offset": 0, "positions": POSITIONS[:Q]}, "positions is given beside segments without key_p",
    ),
    "positions of keys alone": (
        CALLS["of all"] | {"key_positions": POSITIONS}, "key_positions is given beside segments without positions",
    ),
    "far": (CALLS["of all"] | {"segments": [2**31] * Q}, "segments holds 2147483648, expected none beyond "),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(backend, rng, name):
    attention, arrays, (call, message) = layer(backend), inputs(rng), REFUSED[name]
    with pytest.raises(ValueError, match=message):
        attention(*arrays, **call)


@pytest.mark.parametrize("kind", ["grows", "frozen"])
def test_a_cache_takes_no_segments(backend, rng, kind):
    attention, (X, keys, values) = layer(backend), inputs(rng)
    cache = attention.cache(B, 9) if kind == "grows" else attention.cache_of(keys, values)
    given = (X, X, X) if kind == "grows" else (X,)
    with pytest.raises(ValueError, match="segments are given beside a cache, expected none"):
        attention(*given, cache=cache, segments=SEGMENTS)


def test_segments_alone_hide_other_segments(backend, rng):
    attention, arrays = mha.MultiHeadAttention(11, 1, dtype="float64", seed=0, backend=backend), inputs(rng)
    weights = attention(*arrays, segments=SEGMENTS, key_segments=KEYS, return_weights=True)[1]
    seen = (SEGMENTS[:, None, :, None] == KEYS[:, None, None]) & (KEYS[:, None, None] >= 0)
    np.testing.assert_array_equal(weights != 0, np.broadcast_to(seen, weights.shape))


@pytest.mark.parametrize("order", [{}, {"causal": True}, {"window": (1, 2)}, {"causal": True, "offset": 1}], ids=str)
def test_what_packed_tokens_use_is_known_without_their_pairs_if_each_sees_itself(order):
    own = np.where(KEYS == 7, -1, KEYS)
    call = Call(segments=own, key_segments=own)
    call = call.with_plan(**order) if "window" in order else call._replace(**order)
    found = usage_if_known(call, K, K)
    if "offset" in order:
        assert found is None
    else:
        for used in found:
            np.testing.assert_array_equal(used, own >= 0)
