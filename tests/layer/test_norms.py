"""The norms of queries, keys and values: how they are recorded, and what they compute, on every backend."""

import json

import numpy as np
import pytest
from layers import random_layer

import mha
from mha.weights import own_format


def test_a_kind_is_the_short_form_of_a_norm():
    made = mha.MultiHeadAttention(6, 2, qk_norm="layer", backend="numpy").config.qk_norm
    assert made == mha.Norm("layer") == mha.Norm("layer", eps=1e-6)
    for name in ("qk_norm_eps", "eps"):
        with pytest.raises(TypeError, match=name):
            mha.MultiHeadAttention(6, 2, qk_norm="rms", **{name: 1e-5}, backend="numpy")


def test_a_norm_is_recorded_as_its_kind_and_its_number(rng, tmp_path):
    layer = random_layer(rng, {"num_hiddens": 6, "num_heads": 2, "qk_norm": mha.Norm("layer", 0.5)})
    layer.save(tmp_path / "layer.safetensors")
    recorded = json.loads(own_format.config_text(layer.config))
    assert (recorded["qk_norm"], recorded["qk_norm_eps"]) == ("layer", 0.5)
    assert mha.load(tmp_path / "layer.safetensors", "numpy").config == layer.config
    with pytest.raises(ValueError, match="eps of Norm is 0, expected a finite number above 0"):
        own_format.parse_config(json.dumps(recorded | {"qk_norm_eps": 0}))


def test_a_head_is_divided_by_its_own_size(backend):
    attention = mha.MultiHeadAttention(4, 2, qk_norm=mha.Norm("rms", 3.0), dtype="float64", backend=backend)
    attention.weights = dict.fromkeys(attention.weights, np.eye(4)) | {
        "q_norm.scale": np.array([1.0, 10.0]),
        "k_norm.scale": np.ones(2),
    }
    steps = attention.trace(*3 * [np.array([[[3.0, 3, 1, 1]]])])  # roots of 9 + 3 and 1 + 3
    expected = np.array([[[3, 30]], [[1, 10]]]) / np.sqrt([12, 4])[:, None, None]
    np.testing.assert_allclose(mha.to_numpy(steps["norm_q"]), expected, rtol=1e-12)


EYE = np.eye(4)


def made(backend, **options):
    """A layer of two heads of width 2 whose projections do nothing, with scales of 1 to 4."""
    attention = mha.MultiHeadAttention(4, 2, dtype="float64", backend=backend, **options)
    scales = {name: np.arange(1.0, 1 + X.size) if X.ndim == 1 else EYE for name, X in attention.weights.items()}
    attention.weights = scales
    return attention


def test_heads_are_divided_by_the_size_of_all_together(backend):
    X = np.array([[[3.0, 3, 1, 1]]])  # the mean square is 5
    steps = made(backend, qk_norm=mha.Norm("rms", 4.0, over="all")).trace(X, X, X)
    for name in ("norm_q", "norm_k"):
        np.testing.assert_allclose(mha.to_numpy(steps[name]), [[[1.0, 2]], [[1, 4 / 3]]], rtol=1e-12)


def test_a_norm_comes_before_the_rotation_or_after_it(backend):
    X, options = np.array([[[3.0, 0, 0, 4]]]), {"rotary": mha.Rotary(2, frequencies=[np.pi / 2])}
    before, after = (made(backend, qk_norm=mha.Norm("rms", 1.0, after=last), **options) for last in (False, True))
    first, second = (layer.trace(X, X, X, offset=1) for layer in (before, after))
    assert [name for name in first if name[-2:] == "_q"] == ["W_q", "split_q", "norm_q", "rotate_q"]
    assert [name for name in second if name[-2:] == "_q"] == ["W_q", "split_q", "rotate_q", "norm_q"]
    found = [mha.to_numpy(steps[name]) for steps, name in ((first, "rotate_q"), (second, "norm_q"))]
    roots = np.sqrt([1 + 9 / 2, 1 + 16 / 2])[:, None, None]
    np.testing.assert_allclose(found[0], np.array([[[0, 3.0]], [[-8, 0]]]) / roots, atol=1e-12)  # scaled, and turned
    np.testing.assert_allclose(found[1], np.array([[[0, 6.0]], [[-4, 0]]]) / roots, atol=1e-12)


def test_values_are_normed_and_kept_so_in_a_cache(backend):
    X = np.array([[[3.0, 3, 1, 1]]])
    attention = made(backend, value_norm=mha.Norm("rms", 4.0, over="all"), seed=0)
    expected = [[[1.0, 2]], [[1, 4 / 3]]]
    steps = attention.trace(X, X, X)
    np.testing.assert_allclose(mha.to_numpy(steps["norm_v"]), expected, rtol=1e-12)
    np.testing.assert_allclose(mha.to_numpy(steps["pooled"]), expected, rtol=1e-12)  # the only key
    output, cache = attention(X, X, X, causal=True, cache=attention.cache(1, 3))
    np.testing.assert_allclose(mha.to_numpy(cache.values)[0, :, :1], expected, rtol=1e-12)
    np.testing.assert_allclose(mha.to_numpy(output)[0, 0], [1, 2, 1, 4 / 3], rtol=1e-12)


def test_values_do_not_turn():
    with pytest.raises(ValueError, match="value_norm has after=True, expected False: values do not turn"):
        mha.MultiHeadAttention(6, 2, value_norm=mha.Norm("rms", after=True), backend="numpy")


@pytest.mark.parametrize("name", ["qk_norm", "value_norm"])
def test_a_norm_over_all_heads_keeps_them_together(name):
    attention = mha.MultiHeadAttention(6, 2, **{name: mha.Norm("rms", over="all")}, backend="numpy", seed=0)
    with pytest.raises(ValueError, match=f'{name} has over="all", expected "head": without some heads'):
        mha.heads.prune(attention, [0])
    assert mha.heads.prune(attention, []).config == attention.config
