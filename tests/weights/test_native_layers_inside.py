"""Layers of attention inside other modules are named, and kinds are known by a class or a short name.

What an error says is to be typed, so it is: it must give the layer.
"""

import re

import peers
import pytest
from layers import assert_same_weights

import mha


def ours(backend):
    """The framework's own object of a layer of ours."""
    return mha.MultiHeadAttention(6, 2, seed=0, backend=backend).layer


def plain_objects():
    model = type("Model", (), {})()
    model.attention = mha.MultiHeadAttention(6, 2, seed=0, backend="numpy")
    return model


def torch_model(count):
    import torch

    block = torch.nn.TransformerEncoderLayer(6, 2, 8)
    return torch.nn.TransformerEncoder(block, count, enable_nested_tensor=False) if count > 1 else block


def torch_model_of_ours():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Module())
    model[1].attention = model[1].again = ours("torch")
    return model


def keras_model():
    import keras

    X = keras.Input((3, 6))
    return keras.Model(X, keras.layers.MultiHeadAttention(2, 3)(X, X))


def keras_layers(attention):
    import keras

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(6)
            self.both = [keras.layers.Dense(6), attention]

    model = keras.Model()
    model.block = Block()
    return model


def nnx_model():
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(6, 6, rngs=nnx.Rngs(0))
            self.attention = peers.of("nnx").new()

    class Model(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Block()])

    return Model()


def gluon_model():
    from mxnet.gluon import nn

    model, block = nn.Sequential(), nn.Block()
    block.attention = ours("mxnet")
    model.add(nn.Dense(3), block)
    return model


def mlx_model():
    from mlx import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(6, 6)
            self.parts = {"first": [peers.of("mlx").new()]}

    return nn.Sequential(Block())


def mlx_model_of_ours():
    from mlx import nn

    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model.layers[1].attention = model.layers[1].again = ours("mlx")
    return model


# A module, and what is written after it to have each layer of attention in it, in the order of the module.
INSIDE = {
    "numpy": [
        (lambda: mha.MultiHeadAttention(6, 2, seed=0, backend="numpy"), [".layer"]),
        (plain_objects, [".attention.layer"]),
    ],
    "torch": [
        (lambda: torch_model(1), [".self_attn"]),
        (lambda: torch_model(2), [f".layers[{i}].self_attn" for i in range(2)]),
        (lambda: torch_model(5), [f".layers[{i}].self_attn" for i in range(5)]),
        (torch_model_of_ours, ["[1].attention"]),
    ],
    "tensorflow": [
        (keras_model, [".layers[1]"]),
        (lambda: keras_layers(ours("tensorflow")), [".block.both[1]"]),
        (lambda: keras_layers(keras_layers(peers.of("keras").new())), [".block.both[1].block.both[1]"]),
    ],
    "jax": [(nnx_model, [".blocks[0].attention"])],
    "mxnet": [(gluon_model, ["[1].attention"])],
    "mlx": [
        (mlx_model, [".layers[0].parts['first'][0]"]),
        (mlx_model_of_ours, [".layers[1].attention"]),
    ],
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize(
    ("make", "places"),
    [pytest.param(*case, marks=pytest.mark.backends(backend)) for backend, cases in INSIDE.items() for case in cases],
)
def test_the_layers_in_a_module_are_named(make, places):
    source = make()
    with pytest.raises(TypeError, match=r"^source is a \S+, expected named arrays, .*; it contains ") as raised:
        mha.from_native(source)
    said = str(raised.value).partition("; it contains ")[2]
    if len(places) == 1:
        assert said == f"one at {places[0]}: pass source{places[0]}"
    else:
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        listed = ", ".join(places[:3]) + more
        assert said == f"{len(places)}, at {listed}: pass one of them, as source{places[0]}"
    for place in places:
        assert mha.from_native(eval(f"source{place}")).config.num_heads > 1


NOTHING = {
    "numpy": [lambda: None, lambda: mha, lambda: type("Model", (), {"__slots__": ()})()],
    "torch": [lambda: torch_model(1).linear1, lambda: mha.ones(3, backend="torch"), lambda: type(torch_model(1))],
    "tensorflow": [lambda: keras_model().layers[0], lambda: mha.ones(3, backend="tensorflow")],
    "jax": [lambda: nnx_model().blocks[0].dense, lambda: mha.ones(3, backend="jax")],
    "mxnet": [lambda: gluon_model()[0], lambda: mha.ones(3, backend="mxnet")],
    "mlx": [lambda: mlx_model().layers[0].dense, lambda: mha.ones(3, backend="mlx")],
}


@pytest.mark.parametrize(
    "make", [pytest.param(case, marks=pytest.mark.backends(name)) for name, cases in NOTHING.items() for case in cases]
)
def test_where_there_is_none_named_arrays_are_asked_for(make):
    with pytest.raises(TypeError, match=r"^source is a .* For a whole model, or for a subclass, pass the named arrays"):
        mha.from_native(make())


# Kinds

SHORT = {
    "torch": "torch.nn.MultiheadAttention",
    "torch.nn": "torch.nn.MultiheadAttention",
    "tensorflow": "keras.layers.MultiHeadAttention",
    "keras": "keras.layers.MultiHeadAttention",
    "flax.nnx": "flax.nnx.MultiHeadAttention",
    "mlx": "mlx.nn.MultiHeadAttention",
    "mlx.nn": "mlx.nn.MultiHeadAttention",
    "mha.d2l.torch": "mha.d2l.torch.MultiHeadAttention",
    "mha.d2l.mxnet": "mha.d2l.mxnet.MultiHeadAttention",
}


@pytest.mark.parametrize(
    ("short", "kind"),
    [pytest.param(*pair, marks=pytest.mark.backends(peers.backend_of(pair[1]))) for pair in SHORT.items()],
)
def test_a_kind_by_a_short_name(short, kind):
    attention = mha.MultiHeadAttention(6, 2, seed=0, backend="numpy")
    layer = attention.to_native(short)
    assert type(layer) is type(attention.to_native(kind))
    assert_same_weights(mha.from_native(layer).weights, attention.weights)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("short", ["keras", "keras.layers", "tensorflow"])
def test_groups_tell_one_of_two_kinds(short):
    attention = mha.MultiHeadAttention(6, 2, num_key_value_heads=1, backend="numpy")
    assert type(attention.to_native(short)) is type(attention.to_native("keras.layers.GroupQueryAttention"))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.backends(peers.backend_of(kind))) for kind in peers.KINDS if "." in kind],
)
def test_a_kind_by_its_class(kind):
    attention = mha.MultiHeadAttention(6, 2, seed=0, backend="numpy")
    layer = attention.to_native(kind)
    again = attention.to_native(type(layer))
    assert type(again) is type(layer)
    assert_same_weights(mha.from_native(again).weights, attention.weights)


FLAX = tuple(kind for kind in peers.KINDS if kind.startswith("flax."))


@pytest.mark.parametrize(("short", "candidates"), [("jax", FLAX), ("flax", FLAX), ("flax.linen", FLAX[:2])])
def test_a_short_name_of_several_kinds_names_them(short, candidates):
    words = f"kind is {short!r}, which fits several kinds, expected one of {', '.join(candidates)}"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        mha.MultiHeadAttention(6, 2, backend="numpy").to_native(short)


@pytest.mark.parametrize("kind", ["numpy", "mxnet", "pytorch", "nn", "", "torch."])
def test_other_short_names_list_all_kinds(kind):
    with pytest.raises(ValueError, match=rf"^kind is {kind!r}, expected one of torch.nn.MultiheadAttention, keras"):
        mha.MultiHeadAttention(6, 2, backend="numpy").to_native(kind)


@pytest.mark.parametrize("kind", [int, mha.MultiHeadAttention])
def test_another_class_lists_all_kinds(kind):
    with pytest.raises(TypeError, match=r"^kind is <class .*> \(type\), expected one of torch.nn.MultiheadAttention,"):
        mha.MultiHeadAttention(6, 2, backend="numpy").to_native(kind)
