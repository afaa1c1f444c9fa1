"""`mha.testing.assert_parity` with a layer of one's own: calls long enough for its window and rotation; decoders."""

import numpy as np
import pytest
from ports import Port

import mha

WINDOWED = {"num_hiddens": 24, "num_heads": 4, "window": (7, None)}


class Unwindowed(Port):
    window = None, None


def outcome_of(port, attention, **options):
    """The outcome of the suite for a class of ports."""

    def run(attention, queries, keys, values, valid_lens=None, mask=None, causal=False, offset=0):
        return port(attention)(queries, keys, values, valid_lens, mask, causal, offset)

    return mha.testing.assert_parity(run, "numpy", attention=attention, **options)


@pytest.mark.parametrize("window", [(None, 7), (1023, 0)], ids=str)
def test_one_call_is_longer_than_the_window(window):
    options = WINDOWED | {"window": window}
    outcome = outcome_of(Port, options)
    long = ["float64, long sequence", "float64, long sequence, causal"]
    assert [name for name in outcome.reports if "long" in name and "64" in name] == long[: 1 + (window[1] != 0)]
    with pytest.raises(AssertionError, match="the window is ignored"):
        outcome_of(Unwindowed, options)


def test_one_call_is_long_enough_for_the_rotation():
    class Unscaled(Port):
        def frequencies(self, rotary):
            return rotary.base ** (-np.arange(rotary.dim // 2) / (rotary.dim // 2))

    n = 4
    scaled = mha.Rotary(8, 500000.0, frequencies=[500000.0 ** (-i / n) / (1 if i < 2 else 8) for i in range(n)])
    options = {"num_hiddens": 32, "num_heads": 4, "rotary": scaled}
    assert outcome_of(Port, options)
    with pytest.raises(AssertionError, match="without the model's own scaling"):
        outcome_of(Unscaled, options, dtypes="float64")


def test_the_added_cases_have_names_and_a_layers_own_dtype():
    layer = mha.MultiHeadAttention(**WINDOWED, backend="numpy")
    outcome = outcome_of(Port, layer, cases=["long sequence"])
    assert [*outcome.reports] == ["float32, long sequence"]
    with pytest.raises(ValueError, match="cases has 'long sequence'"):
        outcome_of(Port, {"num_hiddens": 24, "num_heads": 4}, cases=["long sequence"])


def test_a_decoder_gets_every_call_causal():
    def decoder(attention, queries, keys, values, valid_lens=None):
        return Port(attention)(queries, keys, values, valid_lens, causal=True)

    options = {"num_hiddens": 24, "num_heads": 4}
    outcome = mha.testing.assert_parity(decoder, "numpy", attention=options, causal=True)
    assert {"float64, no lengths", "float64, length zero", "float64, lengths per query"} <= {*outcome.reports}
    assert "it takes no mask" in str(outcome)
    with pytest.raises(AssertionError):
        mha.testing.assert_parity(decoder, "numpy", attention=options, cases=["lengths per sample"])

    class Late(Port):
        def seen(self, i, j, causal):
            return j <= i + 1

    def one_too_many(attention, X):
        return Late(attention)(X, X, X)

    def with_a_mask(attention, X, mask=None):
        return Late(attention)(X, X, X, mask=mask)

    # The mask that it is handed holds the causal order, too: then nothing is wrong.
    assert mha.testing.assert_parity(with_a_mask, "numpy", attention=options, causal=True)
    with pytest.raises(AssertionError, match="causal order is off by one"):
        mha.testing.assert_parity(
            lambda attention, X: one_too_many(attention, X), "numpy", attention=options, causal=True
        )


def test_a_port_says_what_it_cannot_take_and_gets_the_rest():
    def short(attention, queries, keys, values, causal=False):
        if queries.shape[1] > 8:
            raise NotImplementedError("up to 8 tokens")
        return Port(attention)(queries, keys, values, causal=causal)

    outcome = mha.testing.assert_parity(short, "numpy", attention=WINDOWED)
    assert outcome.left_out["float64, long sequence"] == "up to 8 tokens"
    assert "float64, causal" in outcome.reports
