"""The options of today's models, on every backend: by hand, by what they must equal, and in files."""

import json

import adapters
import formula
import numpy as np
import pytest
import safetensors
from layers import assert_same_weights

import mha
from mha.core.options.config import MODERN
from mha.parity.cases import rare

from .modern import ALL, B, H, K, Q, agree, inputs, layer

SLOPES = pytest.mark.long("numpy")
LONG = pytest.mark.long(*adapters.COMPILED)  # they compile each combination


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(number, marks=LONG) for number in range(2, 24))])
def test_the_formula(backend, rng, number):
    case = rare.options(number)
    call, attention, arrays = case.call("float64"), layer(backend, **case.options), inputs(rng)
    expected = formula.attend(attention.config, attention.weights, *arrays, **call)
    assert agree(attention(*arrays, **call), expected)
    assert agree(attention(*arrays, **call, return_weights=True)[0], expected)


@pytest.mark.backends("numpy")
@pytest.mark.parametrize("number", [*range(3), *(pytest.param(number, marks=SLOPES) for number in range(3, 24))])
@pytest.mark.parametrize("readable", [False, True], ids=["fast", "lesson"])
def test_gradients_are_slopes_of_the_formula(backend, rng, readable, number):
    case = rare.options(number)
    attention, arrays = layer(backend, **case.options, readable=readable), inputs(rng)
    cotangent = rng.normal(size=(B, Q, 11))
    call = case.call("float64")
    given = dict(zip(("queries", "keys", "values"), arrays, strict=True)) | attention.weights
    given |= {name: call[name] for name in ("score_bias", "head_gates") if name in call}
    gradients = attention.gradients(*arrays, **call, cotangent=cotangent)
    assert set(gradients) == set(given)
    steps = {name: rng.normal(size=X.shape) for name, X in given.items()}
    for name in given:

        def loss(size, name=name):
            moved = given | {name: given[name] + size * steps[name]}
            again = call | {name: moved[name] for name in call if name in moved}
            inputs_and_weights = moved, *(moved[one] for one in ("queries", "keys", "values"))
            return (formula.attend(attention.config, *inputs_and_weights, **again) * cotangent).sum()

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        found = (gradients[name] * steps[name]).sum()
        assert abs(found - slope) <= 1e-6 * max(1, abs(slope)), name


def test_the_start_of_norms_is_a_scale_of_1(backend):
    weights = mha.MultiHeadAttention(12, 3, qk_norm="rms", backend=backend).weights
    assert weights["q_norm.scale"].tolist() == weights["k_norm.scale"].tolist() == [1, 1, 1, 1]


def test_a_rotation_by_hand(backend):
    # One head of width 4 and W = identity, so that the steps are the inputs turned; frequencies are 1 and 1 / 10.
    X = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    c, s, slow_c, slow_s = np.cos(2), np.sin(2), np.cos(0.2), np.sin(0.2)
    halves = [c - 3 * s, 2 * slow_c - 4 * slow_s, 3 * c + s, 4 * slow_c + 2 * slow_s]
    pairs = [c - 2 * s, 2 * c + s, 3 * slow_c - 4 * slow_s, 4 * slow_c + 3 * slow_s]
    for interleaved, expected in ((False, halves), (True, pairs)):
        rotary = mha.Rotary(base=100.0, interleaved=interleaved)
        attention = mha.MultiHeadAttention(4, 1, rotary=rotary, dtype="float64", backend=backend)
        attention.weights = dict.fromkeys(attention.weights, np.eye(4))
        steps = attention.trace(X, X, X, offset=2)
        assert np.allclose(steps["rotate_q"][0, 0], expected, rtol=1e-14, atol=0)
        assert np.array_equal(steps["rotate_k"][0, 0], X[0, 0])  # key 0 is at position 0


@pytest.mark.parametrize("offset", [131_072, [131_072, -131_073]], ids=["one", "of samples"])
def test_rotations_are_right_far_away(backend, rng, offset):
    arrays = inputs(rng, "float32")
    found = layer(backend, "float32", rotary=mha.Rotary()).trace(*arrays, offset=offset)["rotate_q"]
    expected = layer("numpy", rotary=mha.Rotary()).trace(*(X.astype("float64") for X in arrays), offset=offset)
    assert np.abs(found - expected["rotate_q"]).max() <= 2e-6 * np.abs(expected["rotate_q"]).max()


def test_minus_infinity_hides_as_a_mask_does_and_a_large_number_does_not(backend, rng):
    attention, arrays = layer(backend), inputs(rng)
    mask = rng.random((B, 1, Q, K)) < 0.6
    mask[1, :, 2] = False  # for one query, all
    bias = np.where(mask, 0.0, -np.inf)
    expected, weights = attention(*arrays, mask=mask, return_weights=True)
    output, found = attention(*arrays, score_bias=bias, return_weights=True)
    assert agree(output, expected)
    assert (found[~np.broadcast_to(mask, weights.shape)] == 0).all()
    lowest = np.full((1, K), np.finfo("float64").min)  # beside which no score counts
    assert np.allclose(attention(*arrays, score_bias=lowest, return_weights=True)[1], 1 / K, rtol=1e-12, atol=0)


def test_what_a_bias_holds_where_something_else_hides_does_not_matter(backend, rng):
    attention, arrays, bias = layer(backend, **ALL), inputs(rng), rng.normal(size=(B, H, Q, K))
    call = {"valid_lens": [3, 5], "causal": True, "offset": 1}
    output, pull_back = attention.vjp(*arrays, **call, score_bias=bias)
    hidden = attention(*arrays, **call, score_bias=bias, return_weights=True)[1] == 0
    for nothing in (np.nan, np.inf, -np.inf, 1e300):
        other, pull_other = attention.vjp(*arrays, **call, score_bias=np.where(hidden, nothing, bias))
        assert np.array_equal(output, other)
        for name, X in pull_back(np.ones_like(output)).items():
            assert np.array_equal(pull_other(np.ones_like(output))[name], X), name
    assert (pull_back(np.ones_like(output))["score_bias"][hidden] == 0).all()


def test_a_layer_with_all_options_moves(backend, rng, tmp_path):
    attention, arrays = layer(backend, **ALL), inputs(rng)
    output = attention(*arrays, [3, 7], causal=True)
    attention.save(tmp_path / "all.safetensors")
    loaded = mha.load(tmp_path / "all.safetensors", backend)
    assert loaded.config == attention.config
    assert np.array_equal(loaded(*arrays, [3, 7], causal=True), output)
    assert "window=(3, None)" in repr(attention)
    assert "window" not in repr(layer(backend))


LAYOUT_2 = [{}, *({name: value} for name, value in ALL.items()), ALL]
LAYOUT_3 = [
    {"qk_norm": mha.Norm("rms", 0.5, over="all")}, {"qk_norm": mha.Norm("rms", 0.5, after=True)},
    {"value_norm": mha.Norm("rms", 0.5)}, {"sinks": True}, {"output_gate": "element"}, {"output_gate": "head"},
]  # fmt: skip


@pytest.mark.parametrize("options", [*LAYOUT_2, *LAYOUT_3], ids=str)
def test_files_have_the_layout_that_they_need(tmp_path, options):
    """Older readers read layers without these options."""
    attention = layer("numpy", **options)
    attention.save(tmp_path / "layer.safetensors")
    with safetensors.safe_open(tmp_path / "layer.safetensors", "numpy") as file:
        layout, config = file.metadata()["layout"], json.loads(file.metadata()["config"])
    assert layout == ("3" if options in LAYOUT_3 else "2" if options else "1")
    assert options or not set(MODERN) & set(config)
    if "rotary" in options:
        assert config["rotary"] == {"dim": 2, "base": 100.0, "interleaved": True, "frequencies": [1.0]}
    again = mha.load(tmp_path / "layer.safetensors", "numpy")
    assert again.config == attention.config
    assert_same_weights(again.weights, attention.weights)


# The layers of others by their backend, each with those of these options that it has.
HAVE = {
    "torch": {"torch.nn.MultiheadAttention": (), "mha.d2l.torch": ()},
    "tensorflow": {
        "keras.layers.MultiHeadAttention": (), "keras.layers.GroupQueryAttention": ("num_key_value_heads",),
        "mha.d2l.tensorflow": (),
    },
    "jax": {
        "flax.linen.MultiHeadDotProductAttention": ("qk_norm",),
        "flax.nnx.MultiHeadAttention": ("num_key_value_heads", "qk_norm"),
    },
    "mxnet": {"mha.d2l.mxnet": ()},
}  # fmt: skip
WITHOUT = ALL | {"sinks": True, "temperature": mha.Temperature(0.1, 8), "output_gate": "head"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=pytest.mark.backends(backend))
        for backend, kinds in HAVE.items()
        for kind, own in kinds.items()
        for name in WITHOUT
        if name not in own
    ],
)
def test_layers_without_an_option_cannot_be_made_of_one_with_it(kind, name):
    attention = mha.MultiHeadAttention(24, 6, backend="numpy", **{name: WITHOUT[name]})
    with pytest.raises(ValueError, match=f"cannot be made of a layer with {name}="):
        attention.to_native(kind)


def test_a_hidden_score_may_overflow_under_a_cap(backend):
    """A pair that is hidden counts for nothing, though its query and its key are both seen: inf - inf is NaN."""
    attention = mha.MultiHeadAttention(2, 1, softcap=1.5, backend=backend)
    attention.weights = dict.fromkeys(attention.weights, np.eye(2, dtype="float32"))
    queries = np.array([[[1e30, -1e30], [0, 0]]], "float32")
    keys = np.array([[[0, 0], [1e30, 1e30]]], "float32")
    values, mask = np.eye(2, dtype="float32")[None], np.eye(2, dtype=bool)
    np.testing.assert_array_equal(attention(queries, keys, values, mask=mask), values)
    for name, X in attention.gradients(queries, keys, values, mask=mask).items():
        assert np.isfinite(X).all(), name
