"""Numbers of tokens that a call gives, on every backend: positions, and segments of packed sequences.

Queries and keys are where their positions say, and padding below 0; a query sees the keys of its own segment alone.
"""

import adapters
import formula
import numpy as np
import pytest

import mha
from mha import parity
from mha.core.call import Call
from mha.core.engine.visible_range import usage_if_known

from .modern import ALL, B, K, Q, agree, inputs, layer

POSITIONS = np.array([[-1, 0, 4, 2, 2], [3, 9, -7, 1, 5]])
PLACES = np.array([[-1, -1, 0, 1, 2, 3, 4], [6, 5, 3, -1, 2, 1, 0]])
SEGMENTS = np.array([[2, 2, -1, 0, 0], [1, 0, 1, 0, 5]])
KEYS = np.array([[2, 2, 2, -1, 0, 0, -3], [0, 1, 0, 1, -1, 1, 7]])
OF_ONE = np.array([0, 0, 3, 3, 1, 1, 1])
RESTARTS = np.array([0, 1, 0, 1, 0, 1, 2])
PACKED = {"segments": OF_ONE[:Q], "key_segments": OF_ONE, "causal": True, "offset": 1}
CALLS = {
    "positions of queries": {"positions": POSITIONS, "causal": True},
    "positions of keys": {"key_positions": PLACES[1], "offset": np.array([2, -1]), "causal": True},
    "positions of both": {
        "positions": POSITIONS[1], "key_positions": PLACES, "mask": np.tile(np.arange(K) != 4, (Q, 1)),
        "valid_lens": np.array([6, 7]),
    },
    "segments of all": PACKED,
    "segments in any order": {"segments": SEGMENTS, "key_segments": KEYS},
    "segments with restarts": {
        "segments": SEGMENTS, "key_segments": KEYS, "positions": RESTARTS[:Q], "key_positions": RESTARTS,
        "valid_lens": np.array([6, 7]), "causal": True,
    },
}  # fmt: skip
LONG = pytest.mark.long(*adapters.COMPILED)
EACH = [pytest.param(name, marks=LONG if name in ("positions of keys", "segments of all") else ()) for name in CALLS]


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("readable", [False, pytest.param(True, marks=LONG)], ids=["fast", "lesson"])
def test_the_formula(backend, rng, name, readable):
    attention, arrays, call = layer(backend, **ALL, readable=readable), inputs(rng), CALLS[name]
    output, weights = formula.both(attention.config, attention.weights, *arrays, **call)
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


def test_padding_sends_no_gradient(backend, rng):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    gradients = attention.gradients(*arrays, causal=True, positions=POSITIONS, key_positions=PLACES)
    assert (gradients["queries"][POSITIONS < 0] == 0).all()
    assert (gradients["keys"][PLACES < 0] == 0).all()
    assert (gradients["values"][PLACES < 0] == 0).all()
    assert np.abs(gradients["keys"]).max() > 0


def test_segments_of_queries_are_those_of_as_many_keys(backend, rng):
    attention, (queries, keys, values) = layer(backend, **ALL), inputs(rng, num_queries=K)
    expected = attention(queries, keys, values, segments=KEYS, key_segments=KEYS)
    np.testing.assert_array_equal(attention(queries, keys, values, segments=KEYS), expected)
    np.testing.assert_array_equal(attention(queries, keys, values, key_segments=KEYS), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
@pytest.mark.parametrize(
    "call",
    [{"positions": [2, 0, 3, 1, 4]}, {"segments": [3, 3, 0, 3, 1], "key_segments": [0, 1, 3, 1, 0, 3, 2]}],
    ids=["positions", "segments"],
)
def test_integers_may_have_any_width(backend, rng, dtype, call):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    found = attention(*arrays, causal=True, **{name: np.array(X, dtype) for name, X in call.items()})
    np.testing.assert_array_equal(found, attention(*arrays, causal=True, **call))


def test_any_position_below_0_is_padding(backend, rng):
    attention, arrays = layer(backend, "float32", **ALL), inputs(rng, "float32")
    outputs = [attention(*arrays, positions=np.array([0, 1, 2, far, 4])) for far in (3, -1, -(2**40))]
    np.testing.assert_array_equal(outputs[2], outputs[1])  # of a kind that was computed before
    assert (outputs[1][:, 3] == outputs[1][0, 3]).all()
    assert (outputs[0][:, 3] != outputs[1][:, 3]).any()


def test_any_segment_below_0_is_padding(backend, rng):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    call = {"segments": np.array([0, -1, -2, 0, -(2**40)]), "key_segments": np.array([0, -1, -2, 0, -(2**40), 0, 0])}
    weights = attention(*arrays, **call, return_weights=True)[1]
    assert (weights[:, :, [1, 2, 4]] == 0).all()
    assert (weights[..., [1, 2, 4]] == 0).all()
    assert (weights[:, :, 3, [0, 3, 5, 6]] > 0).all()


@pytest.mark.needs("a compiler of calls")
@pytest.mark.parametrize(
    ("call", "moved"),
    [
        ({"positions": POSITIONS, "key_positions": PLACES[0]}, "positions"),
        ({"segments": SEGMENTS, "key_segments": KEYS}, "segments"),
    ],
    ids=["positions", "segments"],
)
def test_a_compiler_takes_them(backend, rng, call, moved):
    attention, arrays = layer(backend, "float32", **ALL), inputs(rng, "float32")
    compiled, framework = adapters.of(backend).compile(attention.layer), adapters.of(backend)
    for given in (call, call | {moved: call[moved][::-1].copy()}):  # the second time with other values
        own = framework.own(*(X.astype("int32") for X in given.values()))
        output = compiled(*framework.own(*arrays), **dict(zip(given, own, strict=True)))
        assert parity.ratio(attention, output, *arrays, **given) <= 1


BOTH = "offset is .* beside positions, expected one of the two: .*leave offset out"
REFUSED = {
    "an offset": ({"positions": POSITIONS, "causal": True, "offset": 2}, BOTH),
    "offsets of samples": ({"positions": POSITIONS, "causal": True, "offset": np.array([0, 2])}, BOTH),
    "segments of queries alone": ({"segments": SEGMENTS}, "segments is given alone for 5 queries and 7 keys.*key_seg"),
    "segments of keys alone": ({"key_segments": KEYS}, "key_segments is given alone for 5 queries .*: write segments="),
    "positions of queries alone": (
        PACKED | {"offset": 0, "positions": RESTARTS[:Q]}, "positions is given beside segments without key_p",
    ),
    "positions of keys alone": (
        PACKED | {"key_positions": RESTARTS}, "key_positions is given beside segments without positions",
    ),
    "far": (PACKED | {"segments": [2**31] * Q}, "segments holds 2147483648, expected none beyond "),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(backend, rng, name):
    attention, arrays, (call, message) = layer(backend), inputs(rng), REFUSED[name]
    with pytest.raises(ValueError, match=message):
        attention(*arrays, **call)


def test_an_offset_of_0_beside_positions_says_nothing(backend, rng):
    assert layer(backend)(*inputs(rng), causal=True, positions=POSITIONS, offset=0).shape == (2, Q, 11)


@pytest.mark.parametrize("kind", ["grows", "frozen"])
def test_a_cache_takes_no_segments(backend, rng, kind):
    attention, (X, keys, values) = layer(backend), inputs(rng)
    cache = attention.cache(B, 9) if kind == "grows" else attention.cache_of(keys, values)
    given = (X, X, X) if kind == "grows" else (X,)
    with pytest.raises(ValueError, match="segments are given beside a cache, expected none"):
        attention(*given, cache=cache, segments=SEGMENTS)


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (
            {"positions": POSITIONS, "key_positions": PLACES},
            (POSITIONS[:, None, :, None] >= 0) & (PLACES[:, None, None] >= 0),
        ),
        (
            {"segments": SEGMENTS, "key_segments": KEYS},
            (SEGMENTS[:, None, :, None] == KEYS[:, None, None]) & (KEYS[:, None, None] >= 0),
        ),
    ],
    ids=["positions", "segments"],
)
def test_they_hide_without_another_option(backend, rng, call, seen):
    attention, arrays = mha.MultiHeadAttention(11, 1, dtype="float64", seed=0, backend=backend), inputs(rng)
    weights = attention(*arrays, **call, return_weights=True)[1]
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
