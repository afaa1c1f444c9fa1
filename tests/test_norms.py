"""The norm of queries and keys: what says it, how it is recorded, and what it computes, on every backend."""

import json

import numpy as np
import pytest
from layers import random_layer

import mha
from mha.weights import own_format


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("l2",), ValueError, "kind of Norm is 'l2', expected one of rms, layer"),
        ((True,), TypeError, r"kind of Norm is True \(bool\), expected one of rms, layer"),
        (("rms", 0.0), ValueError, "eps of Norm is 0.0, expected a finite number above 0"),
        (("rms", "1"), TypeError, "eps of Norm is '1'"),
    ],
)
def test_bad_norms_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        mha.Norm(*arguments)


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
