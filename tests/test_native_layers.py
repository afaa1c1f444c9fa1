"""The frameworks' own layers and the book's, into ours and back: the same weights, output, weights per head, gradients.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d and dv widths of a query or key head and of a
value head.
"""

import numpy as np
import pytest

import mha
from mha import dispatch, native, parity
from mha.config import Config

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
# What each backend alone can convert: the layer that it makes of ours, and those that it brings.
KINDS = {
    "numpy": ["numpy"],
    "torch": ["torch", "torch.nn.MultiheadAttention", "mha.d2l.torch.MultiHeadAttention"],
    "tensorflow": ["tensorflow", "keras.layers.MultiHeadAttention", "mha.d2l.tensorflow.MultiHeadAttention"],
    "jax": [
        "jax",
        "flax.linen.MultiHeadDotProductAttention",
        "flax.linen.MultiHeadAttention",
        "flax.nnx.MultiHeadAttention",
        "mha.d2l.jax.MultiHeadAttention",
    ],
    "mxnet": ["mxnet", "mha.d2l.mxnet.MultiHeadAttention"],
}
# Each of them in each precision that it has: the book's layers are of float32.
PRECISE = {
    backend: [
        f"{kind} {dtype}"
        for kind in kinds
        for dtype in ("float64", "float32")
        if dtype == "float32" or "d2l" not in kind
    ]
    for backend, kinds in KINDS.items()
}


def pytest_generate_tests(metafunc):
    for name, each in {"kind": KINDS, "precise": PRECISE, "made": MADE, "refused": REFUSED}.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [one for backend in metafunc.config.backends for one in each[backend]])


def to_native(attention, kind):
    """A layer of any kind; that of a backend itself is ours."""
    return attention.to(kind).layer if kind in dispatch.FRAMEWORKS else attention.to_native(kind)


def backend_of(kind):
    return kind if kind in dispatch.FRAMEWORKS else native.KINDS[kind][1]


def dtypes(kind):
    return ("float32",) if "d2l" in kind else dispatch.load(backend_of(kind)).DTYPES


def random_layer(rng, options, dtype="float32"):
    attention = mha.MultiHeadAttention(**options, dtype=dtype, backend="numpy")
    attention.weights = {name: rng.normal(size=X.shape).astype(X.dtype) for name, X in attention.weights.items()}
    return attention


def same(weights, expected):
    assert list(weights) == list(expected)
    for name, X in weights.items():
        assert X.dtype == expected[name].dtype, name
        assert np.array_equal(X, expected[name]), name


# 1. What the layers compute themselves. Each function returns a dict of the output, the weights (B, H, Q, K) and the
# gradients by queries, keys, values and parameters, in our names and layouts, found without `mha.weights.schemes`.


def run_torch(layer, queries, keys, values, lengths, mask, cotangent):
    import torch

    layer.eval()
    inputs = [torch.tensor(X, requires_grad=True) for X in (queries, keys, values)]
    output, shares = layer(
        *(X if layer.batch_first else X.swapaxes(0, 1) for X in inputs),
        key_padding_mask=torch.tensor(np.arange(keys.shape[1]) >= lengths[:, None]),  # (B, K), True = hide
        attn_mask=torch.tensor(~mask).flatten(0, 1),  # (B*H, Q, K), True = hide
        average_attn_weights=False,
    )
    output = output if layer.batch_first else output.swapaxes(0, 1)
    (output * torch.tensor(cotangent)).sum().backward()
    own = {name: parameter.grad.numpy() for name, parameter in layer.named_parameters()}
    packed = np.split(own["in_proj_weight"], 3) if "in_proj_weight" in own else [own[f"{x}_proj_weight"] for x in "qkv"]
    by_all = {f"W_{x}.kernel": X.T for x, X in zip("qkv", packed, strict=True)} | {
        "W_o.kernel": own["out_proj.weight"].T
    }
    if "in_proj_bias" in own:
        by_all |= {f"W_{x}.bias": X for x, X in zip("qkv", np.split(own["in_proj_bias"], 3), strict=True)}
        by_all["W_o.bias"] = own["out_proj.bias"]
    by_all |= {name: X.grad.numpy() for name, X in zip(("queries", "keys", "values"), inputs, strict=True)}
    return {"output": output.detach().numpy(), "weights": shares.detach().numpy()} | by_all


def run_keras(layer, queries, keys, values, lengths, mask, cotangent):
    import tensorflow as tf

    inputs = [tf.constant(X) for X in (queries, keys, values)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output, shares = layer(
            inputs[0], inputs[2], inputs[1], attention_mask=seen(keys, lengths, mask), return_attention_scores=True
        )
    parts = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    own = {
        f"{name}.{kind}": getattr(part, kind) for name, part in zip(PROJECTIONS, parts, strict=True) for kind in KIND
    }
    own = {name: X.value for name, X in own.items() if X is not None}
    by_all = tape.gradient(output, [*inputs, *own.values()], tf.constant(cotangent))
    named = dict(zip(("queries", "keys", "values", *own), by_all, strict=True))
    return {"output": output.numpy(), "weights": shares.numpy()} | {name: merge(name, X) for name, X in named.items()}


def run_linen(layer, queries, keys, values, lengths, mask, cotangent):
    import jax

    module, variables = layer.unbind()

    def call(params, *inputs):
        options = {"mask": seen(keys, lengths, mask), "deterministic": True, "sow_weights": True}
        return module.apply({"params": params}, *inputs, **options, mutable=["intermediates"])

    output, pull_back, state = jax.vjp(call, variables["params"], queries, keys, values, has_aux=True)
    (shares,) = state["intermediates"]["attention_weights"]
    return gradients_in_heads(pull_back, output, shares, cotangent)


def run_nnx(layer, queries, keys, values, lengths, mask, cotangent):
    import jax
    from flax import nnx

    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def call(params, *inputs):
        forward = nnx.capture(nnx.merge(graph, params, rest), nnx.Intermediate)
        output, state = forward(*inputs, mask=seen(keys, lengths, mask), deterministic=True, sow_weights=True)
        return output, nnx.to_pure_dict(state)["attention_weights"]

    output, pull_back, (shares,) = jax.vjp(call, params, queries, keys, values, has_aux=True)

    def pull_back_plainly(cotangent):
        by_params, *by_inputs = pull_back(cotangent)
        return nnx.to_pure_dict(by_params), *by_inputs

    return gradients_in_heads(pull_back_plainly, output, shares, cotangent)


def gradients_in_heads(pull_back, output, shares, cotangent):
    """What Flax's two layers give, from what pulls the cotangent back to parameters and inputs."""
    by_params, *by_inputs = pull_back(np.asarray(cotangent))
    by_all = dict(zip(("queries", "keys", "values"), by_inputs, strict=True))
    for name, part in zip(PROJECTIONS, ("query", "key", "value", "out"), strict=True):
        by_all |= {f"{name}.{kind}": X for kind, X in by_params[part].items()}
    merged = {name: merge(name, X) for name, X in by_all.items()}
    return {"output": np.asarray(output), "weights": np.asarray(shares)} | merged


def run_book_jax(layer, queries, keys, values, lengths, mask, cotangent):
    import jax

    module, variables = layer.unbind()

    def call(variables, *inputs):
        return module.apply(variables, *inputs, lengths, mask, training=False)

    output, pull_back, shares = jax.vjp(call, variables, queries, keys, values, has_aux=True)
    by_variables, *by_inputs = pull_back(np.asarray(cotangent))
    by_all = {f"{part}.{kind}": X for part, kinds in by_variables["params"].items() for kind, X in kinds.items()}
    by_all |= dict(zip(("queries", "keys", "values"), by_inputs, strict=True))
    return {
        name: np.asarray(X) for name, X in ({"output": output, "weights": shares.reshape(mask.shape)} | by_all).items()
    }


def run_ours(layer, queries, keys, values, lengths, mask, cotangent):
    """The layer of a backend, or of `mha.d2l` in three of its tabs."""
    tab = dispatch.load("jax" if hasattr(layer, "scope") else dispatch.backend_of(layer) or "numpy")
    *inputs, cotangent, mask = (tab.tensor(X) for X in (queries, keys, values, cotangent, mask))
    hiding = {"valid_lens": tab.tensor(lengths), "mask": mask}
    output, shares = tab.attend(layer, *inputs, **hiding, training=False, return_weights=True)
    by_all = tab.gradients(layer, *inputs, **hiding, cotangent=cotangent)
    return {name: np.array(tab.to_numpy(X)) for name, X in ({"output": output, "weights": shares} | by_all).items()}


RUN = {
    "torch.nn.MultiheadAttention": run_torch,
    "keras.layers.MultiHeadAttention": run_keras,
    "flax.linen.MultiHeadDotProductAttention": run_linen,
    "flax.linen.MultiHeadAttention": run_linen,
    "flax.nnx.MultiHeadAttention": run_nnx,
    "mha.d2l.jax.MultiHeadAttention": run_book_jax,
}
KIND = ("kernel", "bias")


def seen(keys, lengths, mask):
    return mask & (np.arange(keys.shape[1]) < lengths[:, None, None, None])  # (B, H, Q, K)


def merge(name, X):
    """An array of kernels or biases whose heads have an axis of their own, in our layout."""
    X = np.asarray(X)
    if name == "W_o.kernel":
        return X.reshape(-1, X.shape[-1])  # (H*dv, D)
    if name.endswith("kernel"):
        return X.reshape(len(X), -1)  # (in, H*d)
    return X.reshape(-1) if name.endswith("bias") else X


def check_agreement(rng, layer, attention, run):
    """A layer and what was made of it give the same, by the rule of `mha.parity`, with lengths and mask."""
    config, dtype = attention.config, attention.config.dtype
    B, Q, K = 2, 3, 5
    shapes = (B, Q, config.query_size), (B, K, config.key_size), (B, K, config.value_size), (B, Q, config.num_hiddens)
    *inputs, cotangent = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    lengths, mask = np.array([5, 3], np.int32), rng.random((B, config.num_heads, Q, K)) < 0.6
    mask[..., 0] = True  # what a query without keys yields is each framework's own affair

    def ours(attention, *inputs, cotangent):
        output, weights = attention(*inputs, lengths, mask=mask, return_weights=True)
        gradients = attention.gradients(*inputs, lengths, mask=mask, cotangent=cotangent)
        return {"output": output, "weights": weights} | gradients

    oracle = ours(
        parity.in_dtype(attention.to("numpy"), "float64"),
        *(X.astype("float64") for X in inputs),
        cotangent=cotangent.astype("float64"),
    )
    base = ours(attention.to("numpy"), *inputs, cotangent=cotangent)
    with dispatch.load(attention.backend).context(dtype):
        theirs = run(layer, *inputs, lengths, mask, cotangent)
    for found in (theirs, ours(attention, *inputs, cotangent=cotangent)):
        assert found.keys() == oracle.keys()
        for name, expected in oracle.items():
            gradient, scale = name not in ("output", "weights"), parity.gradient_scale(name, oracle)
            limit = parity.bound(dtype, expected, base[name], gradient=gradient, scale=scale)
            assert found[name].dtype == dtype, name
            assert parity.error(found[name], expected) <= limit, name


# 2. Ours into theirs and back

# d is 4 or 1: Keras' own layer rounds 1 / sqrt(d) to float32, even in float64, and these need no rounding. There are
# not as many heads of width 1 as keys or queries, where Keras' layer adds the bias of a head to a position.
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
    "flax.linen.MultiHeadDotProductAttention": SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 4},
    "flax.linen.MultiHeadAttention": SIZES | {"query_size": 11, "key_dim": 4, "value_dim": 4},
    "flax.nnx.MultiHeadAttention": {
        "query_size": 11, "key_size": 13, "value_size": 13, "key_dim": 4, "value_dim": 4, "num_hiddens": 19,
    },
}  # fmt: skip


def options_of(kind, case):
    if case != "unequal widths":
        return CASES[case]
    widest = SIZES | {"query_size": 11} if "d2l" in kind else WIDEST["keras.layers.MultiHeadAttention"]
    return CASES["equal widths"] | WIDEST.get(kind, widest)


@pytest.mark.parametrize("case", [*CASES, "unequal widths"])
def test_a_layer_made_of_ours_agrees(rng, precise, case):
    kind, dtype = precise.split()
    attention = random_layer(rng, options_of(kind, case), dtype)
    layer = to_native(attention, kind)
    check_agreement(rng, layer, attention.to(backend_of(kind)), RUN.get(kind, run_ours))


@pytest.mark.parametrize("case", [*CASES, "unequal widths"])
def test_there_and_back(rng, kind, case):
    for dtype in dtypes(kind):
        attention = random_layer(rng, options_of(kind, case), dtype)
        back = mha.from_native(to_native(attention, kind))
        assert back.config == attention.config
        assert back.backend == "numpy"
        same(back.weights, attention.weights)


def test_any_backend_makes_and_takes_any_kind(rng, backend, kind):
    attention = random_layer(rng, CASES["equal widths"])
    there = mha.from_native(to_native(attention.to(backend), kind), backend=backend)
    assert there.backend == backend
    same(there.weights, attention.weights)


def test_nothing_is_shared(rng, kind):
    attention = random_layer(rng, CASES["equal widths"])
    layer = to_native(attention, kind)
    back = mha.from_native(layer, backend=backend_of(kind))
    weights = attention.weights
    back.weights = {name: X + 1 for name, X in weights.items()}
    same(mha.from_native(layer).weights, weights)
    attention.weights = {name: X + 2 for name, X in weights.items()}
    same(mha.from_native(layer).weights, weights)


def test_the_number_of_heads_may_be_said_again(rng, kind):
    layer = to_native(random_layer(rng, CASES["equal widths"]), kind)
    assert mha.from_native(layer, num_heads=3).config.num_heads == 3
    with pytest.raises(ValueError, match="num_heads is 4, expected 3 as the layer has"):
        mha.from_native(layer, num_heads=4)


@pytest.mark.parametrize("option", [{"scheme": "bert"}, {"prefix": ""}])
def test_scheme_and_prefix_are_for_named_arrays(rng, kind, option):
    layer = to_native(random_layer(rng, CASES["equal widths"]), kind)
    with pytest.raises(ValueError, match=f"{next(iter(option))} is .* expected .* for a layer"):
        mha.from_native(layer, **option)


def test_a_subclass_is_refused(rng, kind):
    layer = to_native(random_layer(rng, CASES["equal widths"]), kind)
    changed = type("Changed", (type(layer),), {})
    if kind == "flax.nnx.MultiHeadAttention" or backend_of(kind) != "jax":
        layer.__class__ = changed
    else:
        module, variables = layer.unbind()
        fields = {name: getattr(module, name) for name in module.__dataclass_fields__ if name not in ("parent", "name")}
        layer = changed(**fields).bind(variables)
    with pytest.raises(TypeError, match=r"source is a .*Changed, expected named arrays"):
        mha.from_native(layer)


WIDTH = [({"key_dim": 5, "value_dim": 4}, "key_dim=5, expected 4"), ({"value_dim": 5}, "value_dim=5, expected 4")]
ODD = [({"num_hiddens": 13, "key_dim": 4}, "key_dim=4, expected 4.33")]
WIDE = [({"dtype": "float64"}, "dtype='float64', expected 'float32'")]
IMPOSSIBLE = {
    "torch.nn.MultiheadAttention": [({"query_size": 11}, "query_size=11, expected 12"), *WIDTH, *ODD],
    "keras.layers.MultiHeadAttention": [],
    "flax.linen.MultiHeadDotProductAttention": WIDTH[1:],
    "flax.linen.MultiHeadAttention": WIDTH[1:],
    "flax.nnx.MultiHeadAttention": [*WIDTH[1:], ({"value_size": 11}, "value_size=11, expected 12")],
    **{f"mha.d2l.{name}.MultiHeadAttention": [*WIDTH, *ODD, *WIDE] for name in ("torch", "tensorflow", "jax", "mxnet")},
}


def test_what_a_kind_cannot_have_is_named(rng, kind):
    additive = random_layer(rng, CASES["equal widths"] | {"pooling": "additive"})
    if kind in dispatch.FRAMEWORKS:  # these have all that ours have
        same(mha.from_native(to_native(additive, kind)).weights, additive.weights)
        return
    with pytest.raises(ValueError, match=f"a {kind} cannot be made of a layer with pooling='additive', expected 'dot'"):
        additive.to_native(kind)
    for options, message in IMPOSSIBLE[kind]:
        attention = mha.MultiHeadAttention(**{"num_hiddens": 12, "num_heads": 3} | options, backend="numpy")
        with pytest.raises(ValueError, match=f"a {kind} cannot be made of a layer with .*{message}"):
            attention.to_native(kind)


# 3. Theirs, made by their own frameworks with their own options, into ours


def draw(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def torch_layer(**options):
    import torch

    torch.manual_seed(5)
    layer = torch.nn.MultiheadAttention(12, 3, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)  # the biases too, which begin as zeros
    return layer


def keras_layer(shapes=((2, 3, 11), (2, 5, 17), (2, 5, 13)), **options):
    import keras

    layer = keras.layers.MultiHeadAttention(
        **{"num_heads": 3, "key_dim": 4, "bias_initializer": keras.initializers.RandomNormal(seed=5)} | options
    )
    if shapes:
        layer.build(*shapes)
    return layer


def flax_options(**options):
    from flax import linen

    return {"num_heads": 3, "qkv_features": 12, "bias_init": linen.initializers.normal(1.0)} | options


def linen_layer(name="MultiHeadDotProductAttention", bind=True, **options):
    import jax
    from flax import linen

    module = getattr(linen, name)(**flax_options(**options))
    inputs = [jax.numpy.ones((1, 5, size)) for size in (11, 13, 17)]
    return module.bind(module.init(jax.random.key(5), *inputs, deterministic=True)) if bind else module


def rebound(**options):
    """A module whose options are not those of the variables that it is bound to."""
    _, variables = linen_layer().unbind()
    return linen_layer(bind=False, **options).bind(variables)


def nnx_layer(**options):
    from flax import nnx

    return nnx.MultiHeadAttention(
        **flax_options(in_features=11, in_kv_features=13, decode=False) | options, rngs=nnx.Rngs(5)
    )


def keras_called(rng):
    layer = keras_layer(None)
    layer(draw(rng, 2, 3, 11), draw(rng, 2, 5, 17))  # key = value, and the output is as wide as the queries
    return layer


MADE = {
    "numpy": [lambda rng: mha.MultiHeadAttention(6, 2, backend="numpy").layer],
    "torch": [
        lambda rng: torch_layer(),
        lambda rng: torch_layer(bias=False, batch_first=True, dropout=0.5),
        lambda rng: torch_layer(kdim=13, vdim=17),
        lambda rng: torch_layer(vdim=17, bias=False, batch_first=True),
    ],
    "tensorflow": [
        lambda rng: keras_layer(),
        lambda rng: keras_layer(value_dim=7, use_bias=False, dropout=0.5),
        lambda rng: keras_layer(output_shape=19),
        lambda rng: keras_layer(output_shape=(19,), attention_axes=1),
        keras_called,
    ],
    "jax": [
        lambda rng: linen_layer(),
        lambda rng: linen_layer("MultiHeadAttention", use_bias=False),
        lambda rng: linen_layer(dropout_rate=0.5, broadcast_dropout=False),
        lambda rng: nnx_layer(),
        lambda rng: nnx_layer(use_bias=False, out_features=19, dropout_rate=0.5, broadcast_dropout=False),
    ],
    "mxnet": [lambda rng: mha.MultiHeadAttention(6, 2, backend="mxnet").layer],
}


def test_a_layer_made_by_its_framework_agrees(rng, made):
    layer = made(rng)
    module = type(layer).__module__
    kind = next((kind for kind in RUN if module.startswith(OF[kind]) and kind.endswith(type(layer).__name__)), None)
    backend = backend_of(kind) if kind else module.rpartition(".")[2]
    attention = mha.from_native(layer, backend=backend)
    check_agreement(rng, layer, attention, RUN.get(kind, run_ours))
    rate = next((getattr(layer, name) for name in ("dropout", "_dropout", "dropout_rate") if hasattr(layer, name)), 0)
    assert attention.config.dropout == rate


# Where the classes are defined.
OF = {kind: ".".join(kind.split(".")[:-1]).replace("keras.layers", "keras.src") for kind in RUN}


# 4. The book's layers, as a reader defines them: attributes and nothing else, since the conversion calls nothing.


class DotProductAttention:
    def __init__(self, dropout):
        self.dropout = dropout


def printed_torch(rng):
    import torch

    class MultiHeadAttention(torch.nn.Module):
        def __init__(self, num_hiddens, num_heads, dropout, bias):
            super().__init__()
            self.num_heads = num_heads
            self.attention = DotProductAttention(torch.nn.Dropout(dropout))
            for name in PROJECTIONS:
                setattr(self, name, torch.nn.LazyLinear(num_hiddens, bias=bias))

    layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready():
        for name, size in {"W_q": 11, "W_k": 13, "W_v": 17, "W_o": 12}.items():
            getattr(layer, name)(torch.ones(2, size))

    def weights(name):
        part = getattr(layer, name)
        return {"kernel": part.weight.detach().numpy().T, "bias": part.bias.detach().numpy()}

    return layer, ready, weights, "call it once"


def printed_tensorflow(rng):
    import keras

    class MultiHeadAttention(keras.layers.Layer):
        def __init__(self, num_hiddens, num_heads, dropout, bias):
            super().__init__()
            self.num_heads = num_heads
            self.attention = DotProductAttention(keras.layers.Dropout(dropout))
            for name in PROJECTIONS:
                setattr(self, name, keras.layers.Dense(num_hiddens, use_bias=bias, bias_initializer="random_normal"))

    layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready():
        for name, size in {"W_q": 11, "W_k": 13, "W_v": 17, "W_o": 12}.items():
            getattr(layer, name).build((None, size))

    def weights(name):
        part = getattr(layer, name)
        return {"kernel": part.kernel.numpy(), "bias": part.bias.numpy()}

    return layer, ready, weights, "call it once"


def printed_jax(rng):
    import jax
    from flax import linen

    dot_product = type("DotProductAttention", (linen.Module,), {"__annotations__": {"dropout": float}})

    class MultiHeadAttention(linen.Module):
        num_hiddens: int
        num_heads: int
        dropout: float
        bias: bool = False

        def setup(self):
            self.attention = dot_product(self.dropout)
            self.W_q, self.W_k, self.W_v, self.W_o = (linen.Dense(self.num_hiddens, self.bias) for _ in PROJECTIONS)

        def __call__(self, *inputs):
            return self.W_o(self.W_q(inputs[0]) + self.W_k(inputs[1]) + self.W_v(inputs[2]))

    module = MultiHeadAttention(12, 3, 0.25, True)
    variables = module.init(jax.random.key(5), *(jax.numpy.ones((1, size)) for size in (11, 13, 17)))

    def weights(name):
        return {kind: np.asarray(X) for kind, X in variables["params"][name].items()}

    return module, lambda: module.bind(variables), weights, "bind"


def printed_mxnet(rng):
    from mxnet import np as mxnp
    from mxnet.gluon import nn

    class MultiHeadAttention(nn.Block):
        def __init__(self, num_hiddens, num_heads, dropout, use_bias):
            super().__init__()
            self.num_heads = num_heads
            self.attention = DotProductAttention(nn.Dropout(dropout))
            for name in PROJECTIONS:
                setattr(self, name, nn.Dense(num_hiddens, use_bias=use_bias, flatten=False))

    layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready():
        layer.initialize()
        with pytest.raises(ValueError, match="no weights yet"):
            mha.from_native(layer)
        with dispatch.load("mxnet").context("float32"):
            for name, size in {"W_q": 11, "W_k": 13, "W_v": 17, "W_o": 12}.items():
                getattr(layer, name)(mxnp.ones((2, size)))

    def weights(name):
        part = getattr(layer, name)
        return {"kernel": part.weight.data().asnumpy().T, "bias": part.bias.data().asnumpy()}

    return layer, ready, weights, "initialize"


def printed_numpy(rng):
    """The book has no tab of NumPy: our own layer stands in."""
    attention = random_layer(
        rng, {"num_hiddens": 12, "num_heads": 3, "dropout": 0.25, "bias": True, **SIZES, "query_size": 11}
    )

    def weights(name):
        return {kind: attention.weights[f"{name}.{kind}"] for kind in KIND}

    return None, lambda: attention.layer, weights, "source is a builtins.NoneType"


PRINTED = {
    "numpy": printed_numpy,
    "torch": printed_torch,
    "tensorflow": printed_tensorflow,
    "jax": printed_jax,
    "mxnet": printed_mxnet,
}


def test_a_layer_as_the_book_prints_it(rng, backend):
    layer, ready, weights, first = PRINTED[backend](rng)
    with pytest.raises((ValueError, TypeError), match=first):
        mha.from_native(layer)
    attention = mha.from_native(ready() or layer, backend=backend)
    assert attention.config == Config(12, 3, 0.25, True, query_size=11, key_size=13, value_size=17)
    expected = {f"{name}.{kind}": X for name in PROJECTIONS for kind, X in weights(name).items()}
    same(attention.weights, {name: expected[name] for name in attention.weights})


# 5. What is refused. Each entry is what makes a layer, the error, and what its message says.


def with_class(layer, cls, **attributes):
    """The same layer as one of a subclass."""
    layer.__class__ = type(cls, (type(layer),), attributes)
    return layer


def spoiled(layer, spoil):
    spoil(layer)
    return layer


def nan_numpy(layer):
    layer.W_q.kernel[0, 0] = np.nan


def parametrized(layer):
    import torch

    torch.nn.utils.parametrize.register_parametrization(layer.out_proj, "weight", torch.nn.Identity())
    return layer


def torch_printed(change):
    layer, ready, *_ = printed_torch(None)
    ready()
    change(layer)
    return layer


def more(layer):
    import torch

    layer.gate = torch.nn.Linear(2, 3)


def other_pooling(layer):
    layer.attention = type("AdditiveAttention", (), {"dropout": 0.0})()


def other_part(layer):
    import torch

    layer.W_q = torch.nn.Identity()


def tensorflow_printed(**options):
    import keras

    layer, ready, *_ = printed_tensorflow(None)
    layer.W_o = keras.layers.Dense(12, **options)
    ready()
    return layer


def mxnet_printed(activation):
    from mxnet.gluon import nn

    layer, ready, *_ = printed_mxnet(None)
    layer.W_o = nn.Dense(12, activation=activation, flatten=False)
    ready()
    return layer


def low_rank(layer):
    layer.query_dense.enable_lora(2)


def jax_precision():
    import jax

    return jax.lax.Precision.HIGHEST


REFUSED = {
    "numpy": [
        (
            lambda: spoiled(mha.MultiHeadAttention(6, 2).layer, nan_numpy),
            ValueError,
            "W_q.kernel holds NaN or infinity",
        ),
        (lambda: mha.MultiHeadAttention(6, 2), TypeError, "source is a mha.layer.MultiHeadAttention, expected named"),
    ],
    "torch": [
        (lambda: torch_layer(add_bias_kv=True), ValueError, "torch.nn.MultiheadAttention has add_bias_kv=True"),
        (lambda: torch_layer(add_zero_attn=True), ValueError, "has add_zero_attn=True, which no layer of mha has"),
        (lambda: torch_layer(add_zero_attn=True).state_dict() | {"bias_k": 1}, ValueError, "has bias_k, for which"),
        (
            lambda: torch_layer(device="meta"),
            TypeError,
            "in_proj_weight is a Tensor, expected a dense array whose numb",
        ),
        (lambda: parametrized(torch_layer()), ValueError, "has out_proj.parametrizations.weight.original, for which"),
        (lambda: with_class(torch_layer(), "MultiheadAttention"), TypeError, "source is a .*MultiheadAttention, expec"),
        (lambda: spoiled(torch_layer(), lambda X: X.out_proj.double()), TypeError, "out_proj.weight has dtype float64"),
        (lambda: torch_layer().out_proj, TypeError, "source is a torch.nn.modules.linear.NonDynamically"),
        (lambda: torch_printed(more), ValueError, "has gate.weight, gate.bias, for which scheme 'd2l' has no place"),
        (
            lambda: torch_printed(other_pooling),
            TypeError,
            "attention of the layer is a AdditiveAttention, expected a Dot",
        ),
        (lambda: torch_printed(other_part), TypeError, "W_q of the layer is a Identity, expected a Linear"),
        (
            lambda: spoiled(mha.MultiHeadAttention(6, 2, backend="torch").layer, lambda X: X.half()),
            TypeError,
            "float16",
        ),
    ],
    "tensorflow": [
        (lambda: keras_layer(None), ValueError, "MultiHeadAttention has no weights yet, expected one that was called"),
        (lambda: keras_layer(use_gate=True), ValueError, "keras.layers.MultiHeadAttention has use_gate=True"),
        (lambda: keras_layer(sliding_window=2), ValueError, "has sliding_window=2, which no layer of mha has"),
        (lambda: keras_layer(kernel_regularizer="l2"), ValueError, "has kernel_regularizer={"),
        (lambda: keras_layer(bias_regularizer="l2"), ValueError, "has bias_regularizer={"),
        (lambda: keras_layer(activity_regularizer="l2"), ValueError, "has activity_regularizer={"),
        (lambda: keras_layer(kernel_constraint="non_neg"), ValueError, "has kernel_constraint={"),
        (lambda: keras_layer(bias_constraint="non_neg"), ValueError, "has bias_constraint={"),
        (lambda: keras_layer(output_shape=(2, 3)), ValueError, r"has output_shape=\(2, 3\)"),
        (lambda: keras_layer(dtype="mixed_float16"), ValueError, "has dtype='mixed_float16'"),
        (lambda: keras_layer(((2, 3, 4, 5),) * 3), ValueError, r"has attention_axes=\(1, 2\)"),
        (lambda: keras_layer(((2, 3, 4, 5),) * 3, attention_axes=1), ValueError, r"has attention_axes=\(1,\)"),
        (
            lambda: spoiled(keras_layer(), low_rank),
            ValueError,
            "has query.lora_kernel_a, query.lora_kernel_b, for which",
        ),
        (
            lambda: with_class(keras_layer(), "MultiHeadAttention"),
            TypeError,
            "source is a .*MultiHeadAttention, expected",
        ),
        (lambda: tensorflow_printed(activation="relu"), ValueError, "layer has activation of W_o='relu'"),
        (
            lambda: spoiled(tensorflow_printed(), lambda X: X.W_k.enable_lora(2)),
            ValueError,
            "has kernel, lora_kernel_a, lora_kernel_b, for which",
        ),
    ],
    "jax": [
        (lambda: linen_layer(bind=False), ValueError, "holds no weights, expected `module.bind"),
        (lambda: linen_layer(bind=False).bind({}), ValueError, "lacks query.kernel, .* it has nothing"),
        (lambda: linen_layer(normalize_qk=True), ValueError, "has normalize_qk=True"),
        (lambda: linen_layer(decode=True), ValueError, "has decode=True"),
        (lambda: linen_layer(precision="highest"), ValueError, "has precision='highest'"),
        (lambda: linen_layer(attention_fn=lambda *X, **options: X[2]), ValueError, "has attention_fn=<function"),
        (lambda: linen_layer(dropout_rate=0.5), ValueError, "has broadcast_dropout=True"),
        (lambda: linen_layer(dtype="float16"), ValueError, "has dtype=float16 and weights of float32"),
        (lambda: rebound(use_bias=False), ValueError, "has use_bias=False, but its variables are .* use_bias=True"),
        (lambda: rebound(qkv_features=3), ValueError, "has qkv_features=3, but its variables are .* qkv_features=12"),
        (lambda: rebound(out_features=5), ValueError, "has out_features=5, but its variables are .* out_features=11"),
        (lambda: linen_layer("SelfAttention", bind=False), TypeError, "source is a .*SelfAttention, expected named"),
        (lambda: nnx_layer(normalize_qk=True), ValueError, "flax.nnx.MultiHeadAttention has normalize_qk=True"),
        (lambda: nnx_layer(decode=True), ValueError, "has decode=True"),
        (lambda: nnx_layer(num_kv_heads=1), ValueError, "has num_kv_heads=1, which no layer of mha has"),
        (lambda: nnx_layer(precision=jax_precision()), ValueError, "has precision="),
        (lambda: nnx_layer(attention_fn=lambda *X, **options: X[2]), ValueError, "has attention_fn=<function"),
        (lambda: nnx_layer(qkv_promote_dtype=lambda X, **_: X), ValueError, "has qkv_promote_dtype=<function"),
        (lambda: nnx_layer(out_promote_dtype=lambda X, **_: X), ValueError, "has out_promote_dtype=<function"),
        (lambda: nnx_layer(dropout_rate=0.5), ValueError, "has broadcast_dropout=True"),
        (lambda: nnx_layer(dtype=np.float16), ValueError, "has dtype=float16 and weights of float32"),
        (lambda: mha.MultiHeadAttention(6, 2, backend="jax").layer.unbind()[0], ValueError, "first take `module.bind"),
    ],
    "mxnet": [
        (lambda: book_mxnet(), ValueError, "has no weights yet, expected one that has: first call `initialize"),
        (lambda: mxnet_printed("relu"), ValueError, "layer has activation of W_o=Activation"),
    ],
}


def book_mxnet():
    from mha.d2l import mxnet as d2l

    return d2l.MultiHeadAttention(6, 2, 0.0)


def test_what_has_no_counterpart_is_named(refused):
    make, error, message = refused
    source = make()
    with pytest.raises(error, match=message):
        mha.from_native(source, num_heads=3 if isinstance(source, dict) else None)


# 6. The way that most call Flax nnx, without its weights, which takes another path


def test_nnx_called_plainly(backend, rng):
    if backend == "jax":
        layer, arrays = nnx_layer(), [rng.normal(size=(2, T, size)).astype("float32") for T, size in ((3, 11), (5, 13))]
        queries, keys = arrays
        assert parity.ratio(mha.from_native(layer), layer(queries, keys, keys), queries, keys, keys) <= 1


# 7. Named arrays of each framework


def arrays_torch():
    layer = torch_layer(kdim=13, vdim=17)
    return layer, layer.state_dict(), 3


def arrays_tensorflow():
    layer = keras_layer()
    return layer, {X.path: X for X in layer.weights}, None


def arrays_jax():
    layer = linen_layer()
    return layer, layer.variables, None


def arrays_mxnet():
    attention = mha.MultiHeadAttention(6, 2, bias=True, backend="mxnet")
    parts = {name: getattr(attention.layer, name) for name in PROJECTIONS}
    return attention.layer, {f"{name}.{X}": getattr(part, X).data() for name, part in parts.items() for X in BOTH}, 2


BOTH = ("weight", "bias")


def arrays_numpy():
    attention = mha.MultiHeadAttention(6, 2, bias=True)
    return attention.layer, attention.weights, 2


ARRAYS = {
    "numpy": arrays_numpy,
    "torch": arrays_torch,
    "tensorflow": arrays_tensorflow,
    "jax": arrays_jax,
    "mxnet": arrays_mxnet,
}


def test_named_arrays_of_a_framework_are_its_layer(backend):
    layer, arrays, num_heads = ARRAYS[backend]()
    attention = mha.from_native(arrays, num_heads=num_heads, backend=backend)
    same(attention.weights, mha.from_native(layer).weights)
    assert attention.backend == backend


def test_the_backend_is_the_one_that_is_asked_for(monkeypatch, kind, rng):
    layer = to_native(random_layer(rng, CASES["one head"]), kind)
    monkeypatch.setenv("MHA_BACKEND", backend_of(kind))
    assert mha.from_native(layer).backend == backend_of(kind)
    monkeypatch.setenv("MHA_BACKEND", "caffe")
    with pytest.raises(ValueError, match="MHA_BACKEND is 'caffe'"):
        mha.from_native(layer)
