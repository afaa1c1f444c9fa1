"""Rotations, norms, and biases of positions, without a layer: against numbers worked out by hand."""

import math

import numpy as np
import pytest

import mha


def test_frequencies_by_hand():
    assert mha.Rotary(4, base=100.0).angles() == (1.0, 0.1)
    assert mha.Rotary(frequencies=[2, 0.5, 0.25]).angles() == (2.0, 0.5, 0.25)
    assert mha.Rotary(frequencies=[2, 0.5, 0.25]).dim == 6


def test_frequencies_that_the_base_gives_are_no_others():
    layers = [mha.Rotary(), mha.Rotary(4), mha.Rotary(frequencies=(1.0, 0.01)), mha.Rotary(4, frequencies=(1.0, 0.01))]
    assert len({mha.MultiHeadAttention(12, 3, rotary=one, backend="numpy").config for one in layers}) == 1


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (mha.Rotary, {"dim": 3}, ValueError, "dim of Rotary is 3, expected an even number"),
        (mha.Rotary, {"dim": 0}, ValueError, "dim of Rotary is 0, expected at least 1"),
        (mha.Rotary, {"dim": 2.0}, TypeError, "dim of Rotary is 2.0"),
        (mha.Rotary, {"base": 0}, ValueError, "base of Rotary is 0, expected a finite number above 0"),
        (mha.Rotary, {"interleaved": 1}, TypeError, "interleaved of Rotary is 1"),
        (mha.Rotary, {"frequencies": []}, ValueError, "frequencies of Rotary are no list of finite numbers"),
        (mha.Rotary, {"frequencies": [1.0, float("nan")]}, ValueError, "frequencies of Rotary are no list of finite"),
        (mha.Rotary, {"frequencies": ["fast"]}, ValueError, "frequencies of Rotary are no list of finite numbers"),
        (mha.Rotary, {"dim": 4, "frequencies": [1.0]}, ValueError,
         "frequencies of Rotary are 1, expected half as many as dim = 4"),
        (mha.Temperature, {"scale": 0, "floor": 8}, ValueError,
         "scale of Temperature is 0, expected a finite number above 0"),
        (mha.Temperature, {"scale": 0.1, "floor": 8.5}, TypeError, "floor of Temperature is 8.5"),
        (mha.Temperature, {"scale": 0.1, "floor": 0}, ValueError, "floor of Temperature is 0, expected at least 1"),
        (mha.Temperature, {"scale": 0.1, "floor": 8, "shift": 0.5}, TypeError, "shift of Temperature is 0.5"),
        (mha.Temperature, {"scale": 0.1, "floor": 8, "shift": -1}, ValueError, "shift of Temperature is -1"),
        (mha.Norm, {"kind": "l2"}, ValueError, "kind of Norm is 'l2', expected one of rms, layer"),
        (mha.Norm, {"kind": True}, TypeError, r"kind of Norm is True \(bool\), expected one of rms, layer"),
        (mha.Norm, {"kind": "rms", "eps": 0.0}, ValueError, "eps of Norm is 0.0, expected a finite number above 0"),
        (mha.Norm, {"kind": "rms", "eps": "1"}, TypeError, "eps of Norm is '1'"),
    ],
)  # fmt: skip
def test_bad_rotations_temperatures_and_norms_are_refused(make, options, error, words):
    with pytest.raises(error, match=words):
        make(**options)


def test_queries_grow_warmer_with_their_positions(backend):
    attention = mha.MultiHeadAttention(
        2, 1, temperature=mha.Temperature(0.5, 3, 1), dtype="float64", backend=backend, seed=0
    )
    X = np.ones((2, 4, 2))
    steps = attention.trace(X, X, X, positions=[[-7, 0, 1, 2], [4, 5, 4, 8]])
    factors = mha.to_numpy(steps["tempered_q"] / steps["split_q"])[:, :, 0]  # log of 1 + floor((p + 1) / 3)
    expected = 1 + 0.5 * np.log([[1, 1, 1, 2], [2, 3, 2, 4]])
    np.testing.assert_allclose(factors, expected, rtol=1e-12)
    steps = {name: mha.to_numpy(X) for name, X in steps.items()}
    scores = steps["tempered_q"] @ steps["split_k"].swapaxes(1, 2) / 2**0.5  # keys are as they were
    np.testing.assert_allclose(steps["scores"][:, 1:], scores[:, 1:], rtol=1e-12)  # the first query is padding


def test_positions_below_0_are_as_cold_as_the_first(backend):
    options = {"temperature": mha.Temperature(0.5, 3, 0), "dtype": "float64", "backend": backend, "seed": 0}
    attention, X = mha.MultiHeadAttention(2, 1, **options), np.ones((1, 7, 2))
    steps = attention.trace(X, X, X, offset=-4)
    factors = mha.to_numpy(steps["tempered_q"] / steps["split_q"])[0, :, 0]
    np.testing.assert_allclose(factors, 1, rtol=1e-12)  # up to position 2
    gradients = attention.gradients(X, X, X, positions=[-1, -2, 0, 1, 2, 3, 4], key_positions=[0, 1, 2, 3, 4, 5, 6])
    assert all(np.isfinite(by).all() for by in gradients.values())


def test_slow_rotations_of_llama3_are_slower():
    # Turns within 100 positions: 100 / 2 pi = 15.9, 1.59, 0.159 of frequencies 1, 0.1 and 0.01. Between 1 and 4 turns
    # the second keeps (1.59 - 1) / 3 of its frequency, and the rest of it is divided by 8.
    found = mha.llama3_frequencies(6, base=1000.0, original_length=100)
    kept = (10 / (2 * math.pi) - 1) / 3
    np.testing.assert_allclose(found, [1.0, 0.1 * (kept + (1 - kept) / 8), 0.01 / 8], rtol=1e-14)


def test_slopes_by_hand():
    assert mha.alibi(2, 3).tolist() == [[[[0, 2**-4, 2**-3]], [[0, 2**-8, 2**-7]]]]
    # Of 3 heads, two have the slopes of 2, and the third the first one of 4.
    assert mha.alibi(3, 2, dtype="float64")[0, :, 0, 1].tolist() == [2**-4, 2**-8, 2**-2]
    assert mha.alibi(3, 2).dtype == np.float32


def test_buckets_by_hand():
    # Up to distance 3 exact; then 4 + floor(4 log(distance / 4) / log(16 / 4)): 4 and 5 in 4, 6 and 7 in 5, 8 to 11 in
    # 6, and 12 and more in 7.
    one_way = mha.t5_buckets(1, 20, bidirectional=False, num_buckets=8, max_distance=16, offset=19)[0]
    assert one_way[::-1].tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7]
    assert mha.t5_buckets(1, 4, bidirectional=False, num_buckets=8, max_distance=16)[0].tolist() == [0, 0, 0, 0]
    both = mha.t5_buckets(4, 4, num_buckets=8, max_distance=16)
    assert both.tolist() == [[0, 5, 6, 6], [1, 0, 5, 6], [2, 1, 0, 5], [2, 2, 1, 0]]
    with pytest.raises(ValueError, match="num_buckets is 2 and max_distance 128, expected at least 4 buckets"):
        mha.t5_buckets(3, 3, num_buckets=2)
