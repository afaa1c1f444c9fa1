"""Rotations of models that read longer texts, against numbers worked out by hand."""

import math

import numpy as np
import pytest

import mha

THETA = 10000.0  # of four pairs: 1, 0.1, 0.01 and 0.001
PLAIN = np.array([1, 0.1, 0.01, 0.001])
SIZES = {"original_max_position_embeddings": 1000, "max_position_embeddings": 4000}


def test_linear_by_hand():
    found = mha.linear(8, rope_theta=THETA, factor=4.0, interleaved=True)
    np.testing.assert_allclose(found.angles(), PLAIN / 4, rtol=1e-14)
    assert (found.dim, found.interleaved, found.magnitude) == (8, True, 1.0)


def test_proportional_by_hand():
    found = mha.proportional(8, rope_theta=THETA, partial_rotary_factor=0.7, factor=2.0)
    np.testing.assert_allclose(found.angles(), [0.5, 0.05, 0, 0], rtol=1e-14)  # 0.7 * 8 / 2 pairs, rounded down
    np.testing.assert_allclose(mha.proportional(8, rope_theta=THETA).angles(), PLAIN, rtol=1e-14)


def test_dynamic_by_hand():
    call = {"rope_theta": THETA, "factor": 3.0, "max_position_embeddings": 100}
    for length in (None, 1, 100):
        np.testing.assert_allclose(mha.dynamic(8, **call, length=length).angles(), PLAIN, rtol=1e-14)
    longer = mha.dynamic(8, **call, length=150)  # 3 * 150 / 100 - 2 = 2.5
    assert math.isclose(longer.base, THETA * 2.5 ** (8 / 6))
    assert math.isclose(mha.dynamic(8, rope_theta=THETA, alpha=2.5).base, longer.base)
    assert math.isclose(longer.angles()[3], (THETA * 2.5 ** (8 / 6)) ** -0.75)


def test_yarn_by_hand():
    """Pairs turn 1000 / (2 pi) = 159, 15.9, 1.59 and 0.159 times: so many turns belong to pair log10(159 / turns)."""
    call = {"rope_theta": THETA, "factor": 8.0, "original_max_position_embeddings": 1000}
    found = mha.yarn(8, **call, beta_fast=50.0, beta_slow=1.0)
    # 50 turns belong to pair 0.50, one turn to pair 2.2: from pair 0 to pair 3.
    slowed = np.array([0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(found.angles(), PLAIN * (1 - slowed + slowed / 8), rtol=1e-12)
    assert math.isclose(found.magnitude, 0.1 * math.log(8) + 1)
    first, last = (math.log10(1000 / (turns * 2 * math.pi)) for turns in (50, 1))
    slowed = np.clip((np.arange(4) - first) / (last - first), 0, 1)
    exact = mha.yarn(8, **call, beta_fast=50.0, beta_slow=1.0, truncate=False)
    np.testing.assert_allclose(exact.angles(), PLAIN * (1 - slowed + slowed / 8), rtol=1e-12)
    # 32 turns belong to pair 0.70 and 0.00001 turns to pair 7.2, which is cut to 2n - 1 = 7.
    slowed = np.arange(4) / 7
    wide = mha.yarn(8, **call, beta_slow=0.00001)
    np.testing.assert_allclose(wide.angles(), PLAIN * (1 - slowed + slowed / 8), rtol=1e-12)
    # Where both ends are the same pair, it is a step.
    step = mha.yarn(8, **call, beta_fast=15.0, beta_slow=15.0, truncate=False)
    np.testing.assert_allclose(step.angles(), PLAIN / [1, 1, 8, 8], rtol=1e-12)


def test_magnitudes_of_yarn_by_hand():
    call = {"rope_theta": THETA, "factor": 8.0, "original_max_position_embeddings": 1000}
    grown = 0.1 * math.log(8)
    both = mha.yarn(8, **call, mscale=0.5, mscale_all_dim=2.0)
    assert math.isclose(both.magnitude, (0.5 * grown + 1) / (2 * grown + 1))
    for one in ({"mscale": 0.5}, {"mscale_all_dim": 0.5}, {"mscale": 0.5, "mscale_all_dim": 0}):
        assert math.isclose(mha.yarn(8, **call, **one).magnitude, grown + 1)
    assert mha.yarn(8, **call, attention_factor=1.5, mscale=0.5, mscale_all_dim=2.0).magnitude == 1.5
    assert mha.yarn(8, **call | {"factor": 0.5}).magnitude == 1


def test_longrope_by_hand():
    call = {"rope_theta": THETA, "short_factor": [1, 2, 4, 5], "long_factor": (2.0, 3.0, 7.0, 9.0)} | SIZES
    for length in (None, 1000):
        found = mha.longrope(8, **call, length=length)
        np.testing.assert_allclose(found.angles(), PLAIN / [1, 2, 4, 5], rtol=1e-14)
    np.testing.assert_allclose(mha.longrope(8, **call, length=1001).angles(), PLAIN / [2, 3, 7, 9], rtol=1e-14)
    assert math.isclose(found.magnitude, math.sqrt(1 + math.log(4) / math.log(1000)))
    assert mha.longrope(8, **call, attention_factor=1.25).magnitude == 1.25
    assert mha.longrope(8, **call | {"max_position_embeddings": 900}).magnitude == 1


def test_equal_factors_of_llama3_are_a_step():
    found = mha.llama3_frequencies(8, THETA, 8.0, 2.0, 2.0, 1000)  # pairs turn 159, 15.9, 1.59 and 0.159 times
    np.testing.assert_allclose(found, PLAIN / [1, 1, 8, 8], rtol=1e-14)
    with pytest.raises(ValueError, match=r"high_freq_factor is 1.0, expected at least low_freq_factor = 2.0"):
        mha.llama3_frequencies(8, low_freq_factor=2.0, high_freq_factor=1.0)


YARN = {"rope_theta": THETA, "factor": 8.0, "original_max_position_embeddings": 1000}
LONG = {"rope_theta": THETA, "short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0]} | SIZES


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (mha.linear, {"rope_theta": 0, "factor": 2.0}, ValueError, "rope_theta is 0, expected a finite number above 0"),
        (mha.linear, {"rope_theta": 9.0, "factor": "2"}, TypeError, "factor is '2'"),
        (mha.proportional, {"rope_theta": 9.0, "partial_rotary_factor": 1.5}, ValueError,
         "partial_rotary_factor is 1.5, expected at most 1: the share of the pairs that turn"),
        (mha.dynamic, {"rope_theta": 9.0}, TypeError, "max_position_embeddings is None"),
        (mha.dynamic, {"rope_theta": 9.0, "alpha": -1.0}, ValueError, "alpha is -1.0, expected a finite number"),
        (mha.dynamic, {"rope_theta": 9.0, "max_position_embeddings": 9, "length": 0}, ValueError, "length is 0"),
        (mha.yarn, YARN | {"beta_fast": 0.5}, ValueError, "beta_fast is 0.5, expected at least beta_slow = 1.0"),
        (mha.yarn, YARN | {"rope_theta": 1.0}, ValueError, "rope_theta is 1.0, expected more than 1"),
        (mha.yarn, YARN | {"truncate": 1}, TypeError, "truncate is 1"),
        (mha.yarn, YARN | {"attention_factor": 0}, ValueError, "attention_factor is 0, expected a finite"),
        (mha.yarn, YARN | {"mscale": -1.0, "mscale_all_dim": 1.0}, ValueError, "mscale is -1.0"),
        (mha.longrope, LONG | {"short_factor": [1.0]}, ValueError, "short_factor is .*, expected 2 numbers: one"),
        (mha.longrope, LONG | {"long_factor": [1.0, 0.0]}, ValueError, "long_factor is 0.0"),
        (mha.longrope, LONG | {"length": 2.5}, TypeError, "length is 2.5"),
    ],
)  # fmt: skip
def test_what_no_model_can_have_is_refused(make, options, error, words):
    with pytest.raises(error, match=words):
        make(4, **options)


@pytest.mark.parametrize("dim", [3, 0])
def test_an_odd_number_of_components_is_refused(dim):
    with pytest.raises(ValueError, match="dim"):
        mha.linear(dim, rope_theta=9.0, factor=2.0)
    with pytest.raises(ValueError, match="dim is 2, expected 4 or more"):
        mha.dynamic(2, rope_theta=9.0, alpha=2.0)


def test_a_magnitude_is_part_of_a_rotation():
    assert mha.Rotary(4, magnitude=2).magnitude == 2.0
    with pytest.raises(ValueError, match="magnitude of Rotary is 0, expected a finite number above 0"):
        mha.Rotary(magnitude=0)
    made = mha.MultiHeadAttention(12, 3, rotary=mha.Rotary(frequencies=(1.0, 0.01), magnitude=1.5), backend="numpy")
    assert made.config.rotary == mha.Rotary(4, magnitude=1.5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_magnitude_multiplies_what_turns(backend, dtype):
    """A query turns by a quarter, the key at position 0 by nothing: two of their four components are magnified."""
    rotary = mha.Rotary(frequencies=(math.pi / 2,), magnitude=3.0)
    attention = mha.MultiHeadAttention(4, 1, rotary=rotary, scale=1.0, dtype=dtype, backend=backend)
    attention.weights = {name: np.eye(4, dtype=dtype) for name in attention.weights}
    x = np.array([[[1, 2, 3, 5]]], dtype)
    steps = {name: mha.to_numpy(X) for name, X in attention.trace(x, x, x, offset=1).items()}
    for name, expected in {"rotate_q": [-6, 3, 3, 5], "rotate_k": [3, 6, 3, 5], "scores": [9 + 25]}.items():
        np.testing.assert_allclose(steps[name][0, 0], expected, rtol=1e-6)
