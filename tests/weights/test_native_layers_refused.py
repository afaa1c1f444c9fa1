"""Layers and options that have no counterpart here are refused by name, never dropped."""

import importlib

import numpy as np
import peers
import pytest
from peers import printed

import mha

# 1. Options, in the framework's own names, that no layer of ours has: the peer, the options, what the message says

FOUR_AXES = ((2, 3, 4, 5),) * 3  # of Keras' queries, values and keys


def unlike(X, **_):
    """An option that is a function, and not the one that Flax' layers have by default."""
    return X


OPTIONS = [
    ("torch", {"add_bias_kv": True}, "torch.nn.MultiheadAttention has add_bias_kv=True"),
    ("torch", {"add_zero_attn": True}, "has add_zero_attn=True, which no layer of mha has"),
    ("keras", {"shapes": None}, "MultiHeadAttention has no weights yet, expected one that was called"),
    ("keras", {"sliding_window": 2}, "has sliding_window=2, which no layer of mha has"),
    ("keras", {"kernel_regularizer": "l2"}, "has kernel_regularizer={"),
    ("keras", {"bias_constraint": "non_neg"}, "has bias_constraint={"),
    ("keras", {"output_shape": (2, 3)}, r"has output_shape=\(2, 3\)"),
    ("keras", {"dtype": "mixed_float16"}, "has dtype='mixed_float16'"),
    ("keras", {"shapes": FOUR_AXES}, r"has attention_axes=\(1, 2\)"),
    ("keras", {"shapes": FOUR_AXES, "attention_axes": 1}, r"has attention_axes=\(1,\)"),
    ("keras_grouped", {"shapes": None}, "GroupQueryAttention has no weights yet, expected one that was called"),
    ("keras_grouped", {"sliding_window": 2}, "has sliding_window=2, which no layer of mha has"),
    ("linen", {"bind": False}, "holds no weights, expected `module.bind"),
    ("linen", {"precision": "highest"}, "has precision='highest'"),
    ("linen", {"attention_fn": lambda *X, **options: X[2]}, "has attention_fn=<function"),
    ("linen", {"dropout_rate": 0.5}, "has broadcast_dropout=True"),
    ("linen", {"dtype": "float16"}, "has dtype=float16 and weights of float32"),
    ("nnx", {"ln_promote_dtype": unlike, "normalize_qk": True}, "has ln_promote_dtype=<function"),
    ("nnx", {"precision": "highest"}, "has precision="),
    ("nnx", {"attention_fn": lambda *X, **options: X[2]}, "has attention_fn=<function"),
    ("nnx", {"qkv_promote_dtype": unlike}, "has qkv_promote_dtype=<function"),
    ("nnx", {"out_promote_dtype": unlike}, "has out_promote_dtype=<function"),
    ("nnx", {"dropout_rate": 0.5}, "has broadcast_dropout=True"),
    ("nnx", {"dtype": np.float16}, "has dtype=float16 and weights of float32"),
]
BACKENDS = dict(peers.KINDS.values())  # by peer


@pytest.mark.parametrize(
    ("peer", "options", "message"),
    [pytest.param(*case, marks=pytest.mark.backends(BACKENDS.get(case[0]))) for case in OPTIONS],
)
def test_an_option_without_counterpart_is_named(peer, options, message):
    source = peers.of(peer).new(**options)
    with pytest.raises(ValueError, match=message):
        mha.from_native(source)


# 2. Layers that have been changed, or are of no known kind: what makes one, the error, what its message says


def torch_layer(**options):
    return peers.of("torch").new(**options)


def keras_layer(**options):
    return peers.of("keras").new(**options)


def linen_layer(*name, **options):
    return peers.of("linen").new(*name, **options)


def rebound(**options):
    """A module whose options are not those of the variables that it is bound to."""
    _, variables = linen_layer().unbind()
    return linen_layer(bind=False, **options).bind(variables)


def mlx_layer():
    return peers.of("mlx").new(query_input_dims=64, bias=True)


def mlx_quantised(layer):
    layer.query_proj = layer.query_proj.to_quantized()


def mlx_with_an_array(layer):
    layer.extra = layer.query_proj.bias


def mlx_without_a_bias(layer):
    del layer.value_proj["bias"]


def nnx_normed():
    return peers.of("nnx").new(normalize_qk=True)


def with_rms(layer):
    from flax import nnx

    layer.key_ln = nnx.RMSNorm(4, rngs=nnx.Rngs(0))


def with_another_epsilon(layer):
    layer.key_ln.epsilon = 1e-3


def with_shift(layer):
    from flax import nnx

    layer.query_ln = nnx.LayerNorm(4, rngs=nnx.Rngs(0))


def subclassed(layer):
    """The same layer as one of a subclass that has the same name."""
    layer.__class__ = type(type(layer).__name__, (type(layer),), {})
    return layer


def changed(layer, change):
    """The layer, after a change of it."""
    change(layer)
    return layer


def printed_with(backend, change):
    """The book's layer, with something changed before it has weights."""
    book = printed.of(backend)
    change(book.layer)
    return book.ready()


def with_nan(layer):
    layer.W_q.kernel[0, 0] = np.nan


def parametrized(layer):
    import torch

    torch.nn.utils.parametrize.register_parametrization(layer.out_proj, "weight", torch.nn.Identity())


def with_gate(layer):
    import torch

    layer.gate = torch.nn.Linear(2, 3)


def with_identity(layer):
    import torch

    layer.W_q = torch.nn.Identity()


def with_other_pooling(layer):
    layer.attention = type("AdditiveAttention", (), {"dropout": 0.0})()


def with_low_rank(layer):
    layer.query_dense.enable_lora(2)


def relu_in_keras(layer):
    import keras

    layer.W_o = keras.layers.Dense(12, activation="relu")


def relu_in_mxnet(layer):
    from mxnet.gluon import nn

    layer.W_o = nn.Dense(12, activation="relu", flatten=False)


def ours(backend):
    return mha.MultiHeadAttention(6, 2, backend=backend).layer


REFUSED = {
    "numpy": [
        (lambda: changed(ours("numpy"), with_nan), ValueError, "W_q.kernel holds NaN or infinity"),
        (lambda: mha.MultiHeadAttention(6, 2), TypeError, "source is a mha.layer.MultiHeadAttention, expected named"),
        (lambda: None, TypeError, "source is a builtins.NoneType"),
    ],
    "torch": [
        (
            lambda: torch_layer(device="meta"),
            TypeError,
            "in_proj_weight is a Tensor, expected a dense array whose numb",
        ),
        (
            lambda: changed(torch_layer(), parametrized),
            ValueError,
            "has out_proj.parametrizations.weight.original, for which",
        ),
        (lambda: subclassed(torch_layer()), TypeError, "source is a .*MultiheadAttention, expec"),
        (
            lambda: changed(torch_layer(), lambda layer: layer.out_proj.double()),
            TypeError,
            "out_proj.weight has dtype float64",
        ),
        (lambda: torch_layer().out_proj, TypeError, "source is a torch.nn.modules.linear.NonDynamically"),
        (
            lambda: printed_with("torch", with_gate),
            ValueError,
            "has gate.weight, gate.bias, for which scheme 'd2l' has no place",
        ),
        (
            lambda: printed_with("torch", with_other_pooling),
            TypeError,
            "attention of the layer is a AdditiveAttention, expected a Dot",
        ),
        (
            lambda: changed(printed.of("torch").ready(), with_identity),
            TypeError,
            "W_q of the layer is a Identity, expected a Linear",
        ),
        (lambda: ours("torch").half(), TypeError, "float16"),
    ],
    "tensorflow": [
        (
            lambda: changed(keras_layer(), with_low_rank),
            ValueError,
            "has query.lora_kernel_a, query.lora_kernel_b, for which",
        ),
        (lambda: subclassed(keras_layer()), TypeError, "source is a .*MultiHeadAttention, expected"),
        (lambda: printed_with("tensorflow", relu_in_keras), ValueError, "layer has activation of W_o='relu'"),
        (
            lambda: changed(printed.of("tensorflow").ready(), lambda layer: layer.W_k.enable_lora(2)),
            ValueError,
            "has kernel, lora_kernel_a, lora_kernel_b, for which",
        ),
    ],
    "jax": [
        (lambda: linen_layer(bind=False).bind({}), ValueError, "lacks query.kernel, .* it has nothing"),
        (
            lambda: rebound(use_bias=False),
            ValueError,
            "has use_bias=False, but its variables are .* use_bias=True",
        ),
        (
            lambda: rebound(qkv_features=3),
            ValueError,
            "has qkv_features=3, but its variables are .* qkv_features=12",
        ),
        (
            lambda: rebound(out_features=5),
            ValueError,
            "has out_features=5, but its variables are .* out_features=11",
        ),
        (
            lambda: rebound(normalize_qk=True),
            ValueError,
            "has normalize_qk=True, but its variables are .* normalize_qk=False",
        ),
        (lambda: changed(nnx_normed(), with_rms), ValueError, "MultiHeadAttention has key_ln=RMSNorm"),
        (lambda: changed(nnx_normed(), with_another_epsilon), ValueError, "MultiHeadAttention has key_ln=LayerNorm"),
        (lambda: changed(nnx_normed(), with_shift), ValueError, "has query_ln.bias, for which scheme 'flax' has no"),
        (
            lambda: linen_layer("SelfAttention", bind=False),
            TypeError,
            "source is a .*SelfAttention, expected named",
        ),
        (lambda: ours("jax").unbind()[0], ValueError, "first take `module.bind"),
    ],
    "mlx": [
        (lambda: subclassed(mlx_layer()), TypeError, "source is a .*MultiHeadAttention, expected"),
        (
            lambda: changed(mlx_layer(), mlx_quantised),
            TypeError,
            "query_proj of the mlx.nn.MultiHeadAttention is a QuantizedLinear, expected an mlx.nn.Linear",
        ),
        (lambda: changed(mlx_layer(), mlx_with_an_array), ValueError, "has extra, for which scheme 'mlx' has no place"),
        (lambda: changed(mlx_layer(), mlx_without_a_bias), ValueError, "the layer lacks value_proj.bias, though other"),
    ],
    "mxnet": [
        (
            lambda: importlib.import_module("mha.d2l.mxnet").MultiHeadAttention(6, 2, 0.0),
            ValueError,
            "has no weights yet, expected a layer with weights: first call `initialize",
        ),
        (lambda: printed_with("mxnet", relu_in_mxnet), ValueError, "layer has activation of W_o=Activation"),
    ],
}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(*case, marks=pytest.mark.backends(backend))
        for backend, cases in REFUSED.items()
        for case in cases
    ],
)  # fmt: skip
def test_a_layer_without_counterpart_is_named(make, error, message):
    source = make()
    with pytest.raises(error, match=message):
        mha.from_native(source)


@pytest.mark.backends("torch")
def test_an_array_without_counterpart_is_named():
    source = torch_layer(add_zero_attn=True).state_dict() | {"bias_k": 1}
    with pytest.raises(ValueError, match="has bias_k, for which"):
        mha.from_native(source, num_heads=3)
