"""What `mha.testing.assert_parity` says of an implementation that raises: what it was given, and only there."""

import re

import pytest
from ports import Port

import mha


def failure_of(implementation, *cases):
    """The message of an assertion that must fail."""
    with pytest.raises(AssertionError) as failure:
        mha.testing.assert_parity(implementation, "numpy", cases=cases, dtypes="float64")
    return str(failure.value)


def test_what_was_given_is_said_where_an_implementation_raises():
    def of_samples(attention, queries, keys, values, valid_lens=None, mask=None, causal=False):
        if valid_lens is not None:
            (_B,) = valid_lens.shape  # another shape raises
        return Port(attention)(queries, keys, values, valid_lens, mask, causal)

    message = failure_of(of_samples, "lengths per sample", "lengths per query", "causal")
    given = r"queries \(2, 3, \d+\), keys \(2, 5, \d+\), values \(2, 5, \d+\), valid_lens=\[\[.*\]\]"
    assert re.search(rf"values to unpack .*\n  float64, lengths per query: it was called with {given}\n", message)
    assert "\n  only there it gets valid_lens (batch, queries)\n" in message
    assert "\ncalls that it is not made for are left out if it raises NotImplementedError, or by cases=" in message


def test_what_other_calls_have_too_is_not_said_to_be_the_reason():
    def broken(attention, queries, keys, values, valid_lens=None, mask=None, causal=False):
        if valid_lens is None:
            raise RuntimeError("no lengths")
        return Port(attention)(queries, keys, values, valid_lens, mask, causal)

    message = failure_of(broken, "lengths, mask, causal", "causal")
    assert "float64, causal: it was called with queries" in message
    assert "only there" not in message
