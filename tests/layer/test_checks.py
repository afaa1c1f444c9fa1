"""Checks of a call's arguments, where a short cut is taken: many lengths, and one array three times."""

import formula
import numpy as np
import pytest
from calls import own
from layers import agrees

import mha
from mha import parity
from mha.core.call import Call
from mha.core.call.check import limit_lengths
from mha.core.engine.visible_range import lengths_hide, longest
from mha.core.options import checks
from mha.core.options.config import Config, shapes

MANY = checks.FEW + 20


@pytest.mark.parametrize("place", [0, MANY // 2, MANY - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("size", [3, checks.FEW, checks.FEW + 1, MANY])
def test_extremes_may_be_anywhere(place, size):
    lengths = np.full(size, 5)
    lengths[min(place, size - 1)] = 9
    assert checks.extremes(lengths) == (5, 9)
    lengths[min(place, size - 1)] = -2
    assert checks.extremes(lengths) == (-2, 5)
    assert checks.extremes(lengths[:, None]) == (-2, 5)
    assert checks.extremes(lengths[:0]) == (0, 0)


@pytest.mark.parametrize("place", [0, MANY - 1], ids=["first", "last"])
def test_one_of_many_lengths_is_negative(place):
    attention = mha.MultiHeadAttention(4, 2, backend="numpy")
    X = np.ones((MANY, 3, 4), "float32")
    lengths = np.full(MANY, 2)
    lengths[place] = -1
    with pytest.raises(ValueError, match="valid_lens holds -1, expected 0 or more"):
        attention(X, X, X, lengths)


@pytest.mark.parametrize("place", [0, MANY - 1], ids=["first", "last"])
def test_one_of_many_lengths_is_the_longest(place):
    """Keys beyond the longest are left out; those of the longest are not."""
    attention = mha.MultiHeadAttention(4, 2, dtype="float64", backend="numpy")
    X = np.random.default_rng(0).normal(size=(MANY, 6, 4))
    lengths = np.full(MANY, 2)
    lengths[place] = 5
    call = Call(lengths).with_plan(known={"valid_lens": lengths})
    assert longest(call, 6) == 5
    assert lengths_hide(call, 5)
    output = attention(X, X, X, lengths)
    alone = attention(*3 * [X[place : place + 1]], [5])
    assert parity.error(output[place : place + 1], alone) <= parity.bound("float64", alone, alone)


@pytest.mark.parametrize(("num_keys", "dtype", "lengths", "expected"), [
    (7, "int64", [3, 7], [3, 7]), (7, "int64", [3, 8], [3, 7]), (7, "int64", [8, 9], [7, 7]),
    (7, "int8", [3, 7], [3, 7]), (200, "int8", [3, 127], [3, 127]), (200, "uint8", [3, 201], [3, 200]),
    (7, "uint64", [3, 2**64 - 1], [3, 7]), (None, "int64", [3, 2**31 - 1], [3, 2**31 - 1]),
    (None, "int64", [3, 2**40], [3, 2**31 - 1]),
])  # fmt: skip
def test_lengths_are_at_most_all_keys_and_fit_32_bits_where_these_are_not_known(num_keys, dtype, lengths, expected):
    found, extremes = limit_lengths(np.array(lengths, dtype), num_keys)
    assert found.tolist() == expected
    assert extremes == tuple(expected)
    assert found.dtype in ("int32", "int64")


@pytest.mark.parametrize(("size", "name"), [("query_size", "queries"), ("key_size", "keys"), ("value_size", "values")])
def test_one_array_three_times_where_widths_differ(size, name):
    """The one that does not fit is named, though all three are the same."""
    attention = mha.MultiHeadAttention(12, 3, **{size: 7}, backend="numpy")
    X = np.ones((2, 5, 12), "float32")
    with pytest.raises(ValueError, match=rf"^{name} has shape \(2, 5, 12\), expected \(batch, [a-z-]+(?: pairs)?, 7\)"):
        attention(X, X, X)


def test_a_weight_has_no_more_numbers_than_memory_can_hold():
    sizes = {"num_hiddens": 2, "num_heads": 1, "query_size": 2**30, "key_size": 2, "value_size": 2, "value_dim": 2}
    assert shapes(Config(**sizes, key_dim=2**30 - 1))["W_q.kernel"] == (2**30, 2**30 - 1)  # 2**63 bytes of float64
    with pytest.raises(ValueError, match=r"^W_q.kernel would have shape .1073741824, 1073741824., too many numbers"):
        shapes(Config(**sizes, key_dim=2**30))


@pytest.mark.parametrize("lengths", [[2, 4], [6, 7], [7, 7], [1, 7], [0, 2]])
def test_a_call_of_a_known_kind_hides_by_its_own_lengths(backend, lengths):
    """Two samples: lengths of 2 hide keys nevertheless."""
    attention, rng = mha.MultiHeadAttention(6, 3, dtype="float64", seed=0, backend=backend), np.random.default_rng(0)
    inputs = [rng.normal(size=(2, T, 6)) for T in (5, 7, 7)]
    arrays = [own(backend, X) for X in inputs]
    attention(*arrays, own(backend, np.array([3, 5])))
    output = attention(*arrays, own(backend, np.array(lengths)))
    assert agrees(mha.to_numpy(output), formula.attend(attention.config, attention.weights, *inputs, lengths))
