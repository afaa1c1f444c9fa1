"""Ours into the frameworks' own layers and the book's, and back: the same weights, output, weights per head, gradients.

Letters: H heads, D num_hiddens, d and dv widths of a query or key head and of a value head.
"""

import adapters
import peers
import pytest
from layers import assert_agreement, assert_same_weights, random_layer

import mha
from mha.core import dispatch

# What layers can be converted: those that a backend makes of ours, and those that frameworks and the book bring.
KINDS = [pytest.param(kind, marks=pytest.mark.backends(peers.backend_of(kind))) for kind in peers.KINDS]
BROUGHT = [param for param in KINDS if param.values[0] not in dispatch.FRAMEWORKS]

MLX = "mlx.nn.MultiHeadAttention"
# d is 4 or 1: Keras's own layer rounds 1 / sqrt(d) to float32, even in float64, and these need no rounding. There are
# not as many heads of width 1 as keys or queries, where Keras's layer adds the bias of a head to a position.
CASES = {
    "equal widths": {"num_hiddens": 12, "num_heads": 3, "bias": True, "dropout": 0.25},
    "no bias": {"num_hiddens": 12, "num_heads": 3},
    "one head": {"num_hiddens": 4, "num_heads": 1, "bias": True},
    "heads of width 1": {"num_hiddens": 7, "num_heads": 7, "bias": True},
}
# The most unequal widths that each kind can have.
SIZES = {"key_size": 13, "value_size": 17}
WIDEST = {
    "torch.nn.MultiheadAttention": SIZES,
    "keras.layers.MultiHeadAttention": SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 7, "num_hiddens": 19},
    "keras.layers.GroupQueryAttention": SIZES | {"num_hiddens": 11, "key_dim": 4, "value_dim": 4},
    "flax.linen.MultiHeadDotProductAttention": SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 4},
    "flax.linen.MultiHeadAttention": SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 4},
    "flax.nnx.MultiHeadAttention": {
        "query_size": 11, "key_size": 13, "value_size": 13, "key_dim": 4, "value_dim": 4, "num_hiddens": 19,
    },
}  # fmt: skip
WIDEST["mlx.nn.MultiHeadAttention"] = WIDEST["keras.layers.MultiHeadAttention"]
# What some kinds have beside the sizes: groups that share a head of keys and values, norms of queries and keys, a gate.
GROUPS = {"num_hiddens": 11, "num_heads": 6, "num_key_value_heads": 2, "key_dim": 4, "value_dim": 4, "bias": True}
NORMS = {"num_hiddens": 12, "num_heads": 3, "bias": True, "qk_norm": "layer"}
HAVE = [
    ("keras.layers.GroupQueryAttention", GROUPS | {"dropout": 0.25} | SIZES),
    ("keras.layers.GroupQueryAttention", GROUPS | {"num_key_value_heads": 1, "bias": False}),
    ("keras.layers.MultiHeadAttention", CASES["equal widths"] | {"output_gate": "element"} | SIZES),
    ("keras.layers.MultiHeadAttention", CASES["no bias"] | {"output_gate": "element", "value_dim": 7}),
    ("keras.layers.GroupQueryAttention", GROUPS | {"output_gate": "element"} | SIZES),
    ("flax.nnx.MultiHeadAttention", GROUPS | {"dropout": 0.25, "qk_norm": "layer"}),
    ("flax.linen.MultiHeadDotProductAttention", NORMS),
]


def to_native(attention, kind):
    """A layer of any kind; that of a backend itself is ours."""
    return attention.to(kind).layer if kind in dispatch.FRAMEWORKS else attention.to_native(kind)


def options_of(kind, case):
    widest = SIZES | {"query_size": 11} if "d2l" in kind else WIDEST["keras.layers.MultiHeadAttention"]
    options = CASES.get(case) or CASES["equal widths"] | WIDEST.get(kind, widest)
    return options | {"dropout": 0.0} if kind == MLX else options


def layer_of(rng, kind, case="equal widths"):
    """A layer of a kind, made of a random one of ours."""
    return to_native(random_layer(rng, options_of(kind, case)), kind)


def is_tried(kind, dtype, case):
    """Whether a kind is tried in this dtype: the book's layers are of float32; elsewhere some compile for seconds.

    The softmax of MLX's own is one of float32, in float64 too.
    """
    if "d2l" in kind or kind == MLX:
        return dtype == "float32"
    return dtype == "float64" or case == "equal widths" or peers.backend_of(kind) not in adapters.COMPILED


def marks_of(kind, dtype, case):
    own = pytest.mark.backends(peers.backend_of(kind))
    only = dtype == "float64" or "d2l" in kind or kind == MLX
    quick = case == "unequal widths" and only
    return own if quick else (own, pytest.mark.long(*adapters.COMPILED))


@pytest.mark.parametrize(
    ("kind", "dtype", "case"),
    [
        pytest.param(kind, dtype, case, marks=marks_of(kind, dtype, case), id=f"{kind} {dtype}-{case}")
        for kind in peers.KINDS
        for dtype in ("float64", "float32")
        for case in (*CASES, "unequal widths")
        if is_tried(kind, dtype, case)
    ],
)
def test_a_layer_made_of_ours_agrees(rng, kind, dtype, case):
    attention = random_layer(rng, options_of(kind, case), dtype)
    assert_agreement(rng, to_native(attention, kind), kind, attention.to(peers.backend_of(kind)))


@pytest.mark.parametrize(
    ("kind", "options"),
    [pytest.param(*have, marks=pytest.mark.backends(peers.backend_of(have[0]))) for have in HAVE],
)
def test_groups_norms_and_gates_agree_there_and_back(rng, kind, options):
    """In float64; layers that their frameworks make, test_native_layers_made.py, are of float32."""
    attention = random_layer(rng, options, "float64")
    layer = to_native(attention, kind)
    back = mha.from_native(layer)
    assert back.config == attention.config
    assert_same_weights(back.weights, attention.weights)
    assert_agreement(rng, layer, kind, attention.to(peers.backend_of(kind)))


@pytest.mark.parametrize("case", ["heads of width 1", "unequal widths"])
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(rng, kind, case):
    for dtype in ("float32",) if "d2l" in kind else dispatch.load(peers.backend_of(kind)).DTYPES:
        attention = random_layer(rng, options_of(kind, case), dtype)
        back = mha.from_native(to_native(attention, kind))
        assert back.config == attention.config
        assert back.backend == "numpy"
        assert_same_weights(back.weights, attention.weights)


@pytest.mark.all_backends
@pytest.mark.parametrize("kind", KINDS)
def test_any_backend_makes_and_takes_any_kind(rng, backend, kind):
    attention = random_layer(rng, options_of(kind, "equal widths"))
    there = mha.from_native(to_native(attention.to(backend), kind), backend=backend)
    assert there.backend == backend
    assert_same_weights(there.weights, attention.weights)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_shared(rng, kind):
    attention = random_layer(rng, options_of(kind, "equal widths"))
    layer = to_native(attention, kind)
    back = mha.from_native(layer, backend=peers.backend_of(kind))
    weights = attention.weights
    back.weights = {name: X + 1 for name, X in weights.items()}
    assert_same_weights(mha.from_native(layer).weights, weights)
    attention.weights = {name: X + 2 for name, X in weights.items()}
    assert_same_weights(mha.from_native(layer).weights, weights)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_is_refused(rng, kind):
    layer = layer_of(rng, kind)
    changed = type("Changed", (type(layer),), {})
    if kind == "flax.nnx.MultiHeadAttention" or peers.backend_of(kind) != "jax":
        layer.__class__ = changed
    else:
        module, variables = layer.unbind()
        fields = {name: getattr(module, name) for name in module.__dataclass_fields__ if name not in ("parent", "name")}
        layer = changed(**fields).bind(variables)
    with pytest.raises(TypeError, match=r"source is a .*Changed, expected named arrays"):
        mha.from_native(layer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_backend_is_the_one_that_is_asked_for(monkeypatch, kind, rng):
    monkeypatch.setenv("MHA_BACKEND", peers.backend_of(kind))
    assert mha.from_native(layer_of(rng, kind)).backend == peers.backend_of(kind)


# What needs no framework


def test_the_number_of_heads_may_be_said_again(rng):
    layer = layer_of(rng, "numpy")
    assert mha.from_native(layer, num_heads=3).config.num_heads == 3
    with pytest.raises(ValueError, match="num_heads is 4, expected 3 as the layer has"):
        mha.from_native(layer, num_heads=4)


@pytest.mark.parametrize("option", [{"scheme": "bert"}, {"prefix": ""}])
def test_scheme_and_prefix_are_for_named_arrays(rng, option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} is .* expected .* for a layer"):
        mha.from_native(layer_of(rng, "numpy"), **option)


# What a kind cannot have

ADDITIVE = CASES["equal widths"] | {"pooling": "additive"}
WIDTH = [({"key_dim": 5, "value_dim": 4}, "key_dim=5, expected 4"), ({"value_dim": 5}, "value_dim=5, expected 4")]
ODD = [({"num_hiddens": 13, "key_dim": 4}, "key_dim=4, expected 4.33")]
WIDE = [({"dtype": "float64"}, "dtype='float64', expected 'float32'")]
IMPOSSIBLE = {
    "torch.nn.MultiheadAttention": [({"query_size": 11}, "query_size=11, expected 12"), *WIDTH, *ODD],
    "keras.layers.MultiHeadAttention": [],
    "keras.layers.GroupQueryAttention": [({"query_size": 11}, "num_hiddens=12, expected 11"), *WIDTH[1:]],
    "flax.linen.MultiHeadDotProductAttention": WIDTH[1:],
    "flax.linen.MultiHeadAttention": WIDTH[1:],
    "flax.nnx.MultiHeadAttention": [
        *WIDTH[1:],
        ({"qk_norm": "rms"}, r"qk_norm=Norm\(kind='rms', eps=1e-06"),
        ({"qk_norm": mha.Norm("layer", 0.5)}, r"eps=0.5.*, expected Norm\(kind='layer', eps=1e-06"),
        ({"value_size": 11}, "value_size=11, expected 12"),
    ],
    MLX: [({"dropout": 0.25}, "dropout=0.25, expected 0.0"), ({"softcap": 3.0}, "softcap=3.0, expected None")],
    **{f"mha.d2l.{name}.MultiHeadAttention": [*WIDTH, *ODD, *WIDE] for name in ("torch", "tensorflow", "jax", "mxnet")},
}


@pytest.mark.parametrize("kind", [param for param in KINDS if param not in BROUGHT])
def test_our_own_layers_have_additive_pooling(rng, kind):
    additive = random_layer(rng, ADDITIVE)
    assert_same_weights(mha.from_native(to_native(additive, kind)).weights, additive.weights)


@pytest.mark.parametrize("kind", BROUGHT)
def test_what_a_kind_cannot_have_is_named(rng, kind):
    for options, message in [*IMPOSSIBLE[kind], ({"pooling": "additive"}, "pooling='additive', expected 'dot'")]:
        attention = mha.MultiHeadAttention(**{"num_hiddens": 12, "num_heads": 3} | options, backend="numpy")
        with pytest.raises(ValueError, match=f"a {kind} cannot be made of a layer with .*{message}"):
            attention.to_native(kind)
