"""The frameworks' own layers and the book's, made by their users with options of their own, into ours."""

import adapters
import peers
import pytest
from layers import assert_agreement, assert_same_weights
from peers import printed

import mha
from mha import parity
from mha.core.options.config import Config

GROUPED = "keras.layers.GroupQueryAttention"
LINEN = "flax.linen.MultiHeadDotProductAttention"
MLX = "mlx.nn.MultiHeadAttention"
NNX = "flax.nnx.MultiHeadAttention"
# Kind, and options in its framework's own names.
MADE = [
    ("numpy", {}),
    ("torch.nn.MultiheadAttention", {}),
    ("torch.nn.MultiheadAttention", {"bias": False, "batch_first": True, "dropout": 0.5}),
    ("torch.nn.MultiheadAttention", {"kdim": 13, "vdim": 17}),
    ("torch.nn.MultiheadAttention", {"vdim": 17, "bias": False, "batch_first": True}),
    ("keras.layers.MultiHeadAttention", {}),
    ("keras.layers.MultiHeadAttention", {"value_dim": 7, "use_bias": False, "dropout": 0.5}),
    ("keras.layers.MultiHeadAttention", {"output_shape": 19}),
    ("keras.layers.MultiHeadAttention", {"output_shape": (19,), "attention_axes": 1}),
    (GROUPED, {"dropout": 0.5}),
    (GROUPED, {"num_key_value_heads": 1, "use_bias": False}),
    (GROUPED, {"num_key_value_heads": 6}),
    (LINEN, {}),
    ("flax.linen.MultiHeadAttention", {"name": "MultiHeadAttention", "use_bias": False}),
    (LINEN, {"dropout_rate": 0.5, "broadcast_dropout": False}),
    (LINEN, {"normalize_qk": True}),
    (NNX, {}),
    (NNX, {"num_kv_heads": 1, "normalize_qk": True}),
    (NNX, {"use_bias": False, "out_features": 19, "dropout_rate": 0.5, "broadcast_dropout": False}),
    ("mxnet", {"backend": "mxnet"}),
    (MLX, {"bias": True}),
    (MLX, {"query_input_dims": 11, "key_input_dims": 13, "value_dims": 21, "value_output_dims": 19}),
    (MLX, {"value_input_dims": 17, "bias": True}),
]


def marks_of(kind, options):
    """Flax compiles each for seconds: here it has one of each kind, and the groups of the newer one."""
    own = pytest.mark.backends(peers.backend_of(kind))
    return own if not options or "num_kv_heads" in options else (own, pytest.mark.long("jax"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [pytest.param(*made, marks=marks_of(*made)) for made in MADE],
)
def test_a_layer_made_by_its_framework_agrees(rng, kind, options):
    layer = peers.of_kind(kind).new(**options)
    attention = mha.from_native(layer, backend=peers.backend_of(kind))
    assert_agreement(rng, layer, kind, attention)
    assert attention.config.dropout == options.get("dropout", options.get("dropout_rate", 0))


@pytest.mark.backends("tensorflow")
def test_a_layer_of_keras_that_was_built_by_a_call(rng):
    layer = peers.of("keras").new(None)
    queries, values = (rng.normal(size=shape).astype("float32") for shape in ((2, 3, 11), (2, 5, 17)))
    layer(queries, values)  # key = value, and the output is as wide as the queries
    attention = mha.from_native(layer, backend="tensorflow")
    assert_agreement(rng, layer, "keras.layers.MultiHeadAttention", attention)


@pytest.mark.backends("jax")
@pytest.mark.parametrize("options", [{"num_heads": 6, "num_kv_heads": 2}], ids=["groups"])
def test_nnx_called_plainly(rng, options):
    """Without weights to return, as most call it, Flax takes another path."""
    layer = peers.of("nnx").new(**options)
    queries, keys = (rng.normal(size=shape).astype("float32") for shape in ((2, 3, 11), (2, 5, 13)))
    assert parity.ratio(mha.from_native(layer), layer(queries, keys, keys), queries, keys, keys) <= 1


# The book's layers, as a reader defines them


@pytest.mark.needs("a section of the book")
def test_a_layer_as_the_book_prints_it(backend):
    book = printed.of(backend)
    with pytest.raises((ValueError, TypeError), match=book.first):
        mha.from_native(book.layer)
    attention = mha.from_native(book.ready(), backend=backend)
    assert attention.config == Config(12, 3, 0.25, True, query_size=11, key_size=13, value_size=17)
    expected = book.weights()
    assert_same_weights(attention.weights, {name: expected[name] for name in attention.weights})


@pytest.mark.backends("mxnet")
def test_a_printed_layer_of_mxnet_that_was_only_initialized():
    layer = printed.of("mxnet").layer
    layer.initialize()
    with pytest.raises(ValueError, match="no weights yet"):
        mha.from_native(layer)


# Named arrays of each framework: of its own layer, or else of ours

NAMED = {
    "torch": lambda: peers.of("torch").new(kdim=13, vdim=17),
    "tensorflow": lambda: peers.of("keras").new(),
    "jax": lambda: peers.of("linen").new(),
    "mlx": lambda: peers.of("mlx").new(key_input_dims=13, value_output_dims=19, bias=True),
}


def test_named_arrays_of_a_framework_are_its_layer(backend):
    layer = NAMED[backend]() if backend in NAMED else mha.MultiHeadAttention(6, 2, bias=True, backend=backend).layer
    expected, arrays = mha.from_native(layer), adapters.of(backend).named_arrays(layer)
    attention = mha.from_native(arrays, num_heads=expected.config.num_heads, backend=backend)
    assert_same_weights(attention.weights, expected.weights)
    assert attention.backend == backend
