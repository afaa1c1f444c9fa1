"""`mha.heads`: the importance of each head, and layers without some, against the plain formula of `formula.py`."""

import adapters
import formula
import numpy as np
import pytest
from calls import B, Q, draw, make, own, same_bits
from layers import agrees, assert_same_weights

import mha
from mha import parity
from mha.core import dispatch
from mha.core.options.config import numpy_dtype

HEADS = 6
LENS = [3, 5]
# Layers of six heads, and heads that can be pruned from them.
LAYERS = {
    "plain": ({"bias": True}, [0, 3, 4]),
    "groups": ({"num_key_value_heads": 3, "bias": True}, [0, 1, 3, 4]),
    "additive": ({"pooling": "additive", "bias": True, "output_gate": "head"}, [5, 1]),
    "all options": (
        {"num_key_value_heads": 2, "rotary": mha.Rotary(base=100.0), "qk_norm": "rms", "window": (2, 3), "softcap": 4.0,
         "scale": 0.7, "sinks": True, "output_gate": "element"},
        [5, 0],
    ),
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", LAYERS)
EAGER = pytest.mark.backends(*adapters.EAGER)
METHODS = pytest.mark.parametrize("method", ["ablation", "gradient"])


def layer(backend, rng, name="plain", dtype="float64", **options):
    """A layer of LAYERS whose weights and biases are all random."""
    attention = make(backend, num_heads=HEADS, dtype=dtype, **LAYERS[name][0], **options)
    attention.weights = {name: (rng.normal(size=X.shape) / 2).astype(X.dtype) for name, X in attention.weights.items()}
    return attention


def gated(attention, inputs, head=None, **call):
    """The formula's output (B, Q, D) in float64, without one head."""
    gates = np.ones(attention.config.num_heads)
    if head is not None:
        gates[head] = 0
    weights = {name: X.astype(np.float64) for name, X in attention.weights.items()}
    return formula.attend(attention.config, weights, *inputs, head_gates=gates, **call)


def expected(attention, inputs, method, by_output=lambda Y: Y, **call):
    """The importance of each head (H,) by the formula alone: its output is linear in each gate.

    by_output: the gradient of the loss by the output, of the default one the output itself.
    """
    whole, found = gated(attention, inputs, **call), []
    for head in range(attention.config.num_heads):
        change = whole - gated(attention, inputs, head, **call)  # (B, Q, D)
        of_samples = (
            np.sqrt((change**2).sum((1, 2))) if method == "ablation" else (by_output(whole) * change).sum((1, 2))
        )
        found.append(np.mean([abs(value) for value in of_samples]))
    return np.array(found)


def close(found, oracle, base=None, dtype="float64", scale=0.0):
    """Whether an importance is the oracle's, by the rule of `mha.parity`."""
    assert found.dtype == np.float64
    limit = parity.bound(dtype, oracle, oracle if base is None else base, gradient=True, scale=scale)
    return parity.error(found, oracle) <= limit


def everywhere(others, *chosen):
    """Every layer of LAYERS with each of the others; on backends that compile, the chosen pairs alone."""
    pairs = [(name, other) for name in LAYERS for other in others]
    return [pytest.param(*pair, marks=() if pair in chosen else EAGER) for pair in pairs]


@pytest.mark.parametrize(
    ("name", "method"), everywhere(("ablation", "gradient"), ("groups", "ablation"), ("all options", "gradient"))
)
def test_importance_is_that_of_the_formula(backend, rng, name, method):
    attention, inputs = layer(backend, rng, name), draw(rng, "float64")
    found = mha.heads.importance(attention, [(*inputs, LENS)], method=method)
    assert close(found, expected(attention, inputs, method, valid_lens=LENS))


@METHODS
def test_importance_agrees_in_every_dtype(backend, rng, method):
    for dtype in ("bfloat16",) if backend in adapters.COMPILED else dispatch.load(backend).DTYPES:
        attention, inputs = layer(backend, rng, dtype=dtype), draw(rng, dtype)
        wide = [X.astype(np.float64) for X in inputs]
        oracle = expected(attention, wide, method)
        base = mha.heads.importance(attention.to("numpy"), [inputs], method=method)
        size = np.linalg.norm(gated(attention, wide)) ** (1 if method == "ablation" else 2)
        found = mha.heads.importance(attention, [inputs], method=method)
        assert close(found, oracle, base, dtype, scale=size), dtype


def squares_to(backend):
    """A loss in the framework's own words: half the squares of the output's distance to the batch's targets."""

    def loss(output, batch):
        difference = output - own(backend, batch["targets"])
        squares = difference * difference / 2
        if adapters.lacks(backend, "automatic differentiation"):
            return squares.sum(), difference
        return summed(backend, squares)

    return loss


def summed(backend, X):
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.reduce_sum(X)
    return X.sum()


def test_a_loss_of_ones_own(backend, rng):
    attention, inputs = layer(backend, rng), draw(rng, "float64")
    targets = rng.normal(size=(B, Q, attention.config.num_hiddens))
    batch = dict(zip(("queries", "keys", "values"), inputs, strict=True)) | {"targets": targets, "causal": True}
    loss = squares_to(backend)

    found = mha.heads.importance(attention, [batch], loss, "gradient")
    assert close(found, expected(attention, inputs, "gradient", lambda Y: Y - targets, causal=True))

    whole = gated(attention, inputs, causal=True)
    grown = [
        (((gated(attention, inputs, head, causal=True) - targets) ** 2).sum() - ((whole - targets) ** 2).sum()) / 2 / B
        for head in range(HEADS)
    ]
    found = mha.heads.importance(attention, [batch], loss)
    assert close(found, np.array(grown), scale=((whole - targets) ** 2).sum())
    assert min(grown) < 0 < max(grown)  # so that a sign that is lost is seen


def test_a_loss_may_bring_its_gradient(backend, rng):
    attention, inputs = layer(backend, rng), draw(rng, "float64")

    def loss(output, batch):
        assert dispatch.backend_of(output) == adapters.of_arrays(backend)
        return 0.0, 3 * output

    found = mha.heads.importance(attention, [tuple(inputs)], loss, "gradient")
    assert close(found, 3 * expected(attention, inputs, "gradient"))


@EAGER
@METHODS
def test_importance_takes_the_frameworks_own_arrays(backend, rng, method):
    attention, inputs = layer(backend, rng), draw(rng, "float64")
    found = mha.heads.importance(attention, [tuple(own(backend, X) for X in inputs)], method=method)
    assert close(found, expected(attention, inputs, method))


@pytest.mark.backends("numpy")
@METHODS
def test_how_samples_are_cut_into_batches_does_not_matter(rng, method):
    attention = layer("numpy", rng)
    before = attention.weights
    many = [np.concatenate([one, other]) for one, other in zip(draw(rng, "float64"), draw(rng, "float64"), strict=True)]
    cuts = [slice(0, 1), slice(1, 4)]
    parts = ({"queries": many[0][cut], "keys": many[1][cut], "values": many[2][cut]} for cut in cuts)
    found = mha.heads.importance(attention, parts, method=method)
    assert agrees(found, mha.heads.importance(attention, [many], method=method))
    assert same_bits(attention.weights, before)


@pytest.mark.backends("numpy")
def test_a_loss_may_be_a_number_of_bfloat16(rng):
    attention = make("numpy", dtype="bfloat16")
    inputs = [X.astype(attention.weights["W_q.kernel"].dtype) for X in draw(rng, "float32")]
    found = mha.heads.importance(attention, [inputs], lambda output, _: output.sum(), "ablation")
    assert found.tolist() == [
        pytest.approx(float(mha.heads.importance(attention, [inputs], lambda output, _: float(output.sum()))[head]))
        for head in range(attention.config.num_heads)
    ]


@pytest.mark.parametrize(
    ("batches", "loss", "method", "kind", "text"),
    [
        ([], None, "ablation", ValueError, "batches holds no sample, expected at least one"),
        ("own", None, "ablating", ValueError, "method is 'ablating', expected one of ablation, gradient; did you mean"),
        ("own", 3, "ablation", TypeError, "loss is 3 .int., expected a function of the output and the batch, or None"),
        ("alone", None, "ablation", TypeError, "batches.0. is a ndarray, expected a tuple .*; pass one .* as .batch."),
        ("short", None, "ablation", ValueError, "batches.0. holds 2 things, expected queries, keys, values and maybe"),
        ("lacking", None, "ablation", ValueError, "batches.0. lacks keys, values; expected queries, keys and values"),
        ("unknown", None, "ablation", TypeError, "batches.0. has head_gates, expected some of queries, .* and targets"),
        ("dict", None, "ablation", TypeError, "batches is .*dict.*, expected a list of batches; pass one as .batch."),
        ("no array", None, "ablation", TypeError, "queries is a int, expected a NumPy array"),
        ("no array", None, "gradient", TypeError, "queries is a int, expected a NumPy array"),
        ("own", lambda output, _: output, "ablation", ValueError, "loss gave an array of shape"),
        ("own", lambda output, _: np.inf, "ablation", ValueError, "loss gave inf, expected a finite number"),
        ("own", lambda output, _: "much", "ablation", TypeError, "loss gave 'much' .str., expected one number"),
        ("own", lambda output, _: (1, 2, 3), "gradient", TypeError, "loss gave 3 things, expected one number"),
        ("own", lambda output, _: output.sum(), "gradient", ValueError, "functions of numpy, and return the pair"),
        ("own", lambda output, _: (np.inf, output), "gradient", ValueError, "loss gave inf, expected a finite number"),
    ],
)  # fmt: skip
def test_what_importance_refuses(rng, batches, loss, method, kind, text):
    inputs = draw(rng, "float64")
    by_name = dict(zip(("queries", "keys", "values"), inputs, strict=True))
    given = {
        "own": [inputs], "alone": inputs, "short": [inputs[:2]], "lacking": [{"queries": inputs[0]}],
        "unknown": [by_name | {"head_gates": np.ones(HEADS)}], "dict": by_name, "no array": [(3, *inputs[1:])],
    }  # fmt: skip
    with pytest.raises(kind, match=text):
        mha.heads.importance(layer("numpy", rng), given.get(batches, batches) if batches else [], loss, method)


def test_a_loss_without_gradients_is_refused(backend, rng):
    with pytest.raises(ValueError, match="loss gave a number without its gradient by the output; compute it from"):
        mha.heads.importance(layer(backend, rng), [draw(rng, "float64")], lambda output, batch: 3.0, "gradient")


@pytest.mark.parametrize(("name", "readable"), everywhere((False, True), ("all options", False)))
def test_a_pruned_layer_computes_what_gates_of_0_do(backend, rng, name, readable):
    attention, heads = layer(backend, rng, name, readable=readable), LAYERS[name][1]
    inputs, gates = draw(rng, "float64"), np.ones(HEADS)
    gates[heads] = 0
    oracle, weights = formula.both(attention.config, attention.weights, *inputs, LENS, head_gates=gates)
    kept = np.flatnonzero(gates)
    smaller = mha.heads.prune(attention, heads)
    assert (smaller.backend, smaller.readable, smaller.seed) == (backend, readable, attention.seed)
    assert smaller.config.num_heads == len(kept)
    output, found = smaller(*inputs, LENS, return_weights=True)
    assert agrees(output, oracle)
    assert agrees(found, weights[:, kept])


@pytest.mark.parametrize(
    "name", [name if name == "all options" else pytest.param(name, marks=EAGER) for name in LAYERS]
)
def test_a_pruned_layer_has_the_gradients_of_what_is_kept(backend, rng, name):
    attention, heads = layer(backend, rng, name), LAYERS[name][1]
    inputs, gates = draw(rng, "float64"), np.ones(HEADS)
    gates[heads] = 0
    cotangent = rng.normal(size=(B, Q, attention.config.num_hiddens))
    found = mha.heads.prune(attention, heads).gradients(*inputs, LENS, cotangent=cotangent)
    whole = attention.to("numpy").gradients(*inputs, LENS, head_gates=gates, cotangent=cotangent)
    wanted = cut(attention.config, whole, heads)
    del wanted["head_gates"]
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert agrees(found[name], gradient, gradient=True), name


def cut(config, arrays, heads):
    """Canonical arrays without what belongs to some heads alone: an axis of heads, from which these are deleted."""
    share = config.num_heads // config.num_key_value_heads
    groups = [g for g in range(config.num_key_value_heads) if set(range(g * share, (g + 1) * share)) <= set(heads)]
    widths = {"W_q": (config.key_dim, heads), "W_k": (config.key_dim, groups), "W_v": (config.value_dim, groups)}
    widths["W_g"] = config.value_dim if config.output_gate == "element" else 1, heads
    made = dict(arrays)
    for name, (width, gone) in widths.items():
        for weight in {f"{name}.kernel", f"{name}.bias"} & made.keys():
            split = made[weight].reshape(*made[weight].shape[:-1], -1, width)  # (..., H, d)
            made[weight] = np.delete(split, gone, -2).reshape(*split.shape[:-2], -1)  # (..., H*d)
    split = made["W_o.kernel"].reshape(config.num_heads, config.value_dim, -1)  # (H, dv, D)
    made["W_o.kernel"] = np.delete(split, heads, 0).reshape(-1, split.shape[-1])  # (H*dv, D)
    return made | ({"sinks": np.delete(made["sinks"], heads)} if config.sinks else {})


@NAMES
@pytest.mark.backends("numpy")
def test_a_pruned_layer_saves_loads_and_syncs(rng, name, tmp_path):
    attention, heads = layer("numpy", rng, name, dropout=0.25), LAYERS[name][1]
    before, smaller = attention.weights, mha.heads.prune(attention, heads)
    assert_same_weights(smaller.weights, cut(attention.config, before, heads))
    assert_same_weights(attention.weights, before)
    same = {"num_hiddens", "key_dim", "value_dim", "query_size", "key_size", "value_size", "scale", "dropout", "rotary"}
    for option in same:
        assert getattr(smaller.config, option) == getattr(attention.config, option), option

    smaller.save(tmp_path / "smaller.safetensors")
    loaded = mha.load(tmp_path / "smaller.safetensors")
    assert loaded.config == smaller.config
    assert_same_weights(loaded.weights, smaller.weights)
    other = mha.heads.prune(layer("numpy", rng, name), heads)
    mha.sync(smaller, other)
    assert_same_weights(other.weights, smaller.weights)


@pytest.mark.backends("tensorflow")
def test_a_pruned_layer_becomes_a_frameworks_own(rng):
    attention = mha.MultiHeadAttention(12, 4, bias=True, seed=0, dtype="float64", backend="tensorflow")
    smaller = mha.heads.prune(attention, [2])
    back = mha.from_native(smaller.to_native("keras.layers.MultiHeadAttention"))
    assert (back.config.num_heads, back.config.key_dim, back.config.num_hiddens) == (3, 3, 12)
    X = rng.normal(size=(B, Q, 12))
    assert agrees(back(X, X, X), formula.attend(attention.config, attention.weights, X, X, X, head_gates=[1, 1, 0, 1]))


def test_halves_are_pruned_bit_for_bit(backend, rng):
    for dtype in dispatch.load(backend).DTYPES:
        attention = layer(backend, rng, dtype=dtype)
        smaller = mha.heads.prune(attention, [4])
        assert_same_weights(smaller.weights, cut(attention.config, attention.weights, [4]))
        assert smaller.weights["W_o.kernel"].dtype == numpy_dtype(dtype)


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(
    ("heads", "kind", "text"),
    [
        (range(6), ValueError, "heads holds all 6 heads of the layer, expected at most 5 of them; keep one"),
        ([0, 6], ValueError, r"heads\[1\] is 6, expected 0 to 5, a head of the layer"),
        ([-1], ValueError, r"heads\[0\] is -1, expected 0 to 5, a head of the layer"),
        ([2, 2], ValueError, "heads holds 2 twice, expected each head once; leave one out"),
        ([1.0], TypeError, r"heads\[0\] is 1.0 \(float\), expected an int"),
        ([True], TypeError, r"heads\[0\] is True \(bool\), expected an int"),
        (2, TypeError, r"heads is 2 \(int\), expected a list of ints, such as \[0, 2\]"),
        ("02", TypeError, r"heads is '02' \(str\), expected a list of ints, such as \[0, 2\]"),
        ([0, 2, 3], ValueError, r"\(group 0: 1, group 2: 2 heads of 2\), .*; prune \[5\] as well, or keep \[0\]$"),
        ([0], ValueError, r"unequal groups \(group 0: 1, .*; prune \[3, 5\] as well, or keep \[0\]$"),
    ],
)
def test_what_prune_refuses(rng, heads, kind, text):
    attention = layer("numpy", rng, "groups")
    with pytest.raises(kind, match=text):
        mha.heads.prune(attention, heads)
    with pytest.raises(TypeError, match=r"attention is a dict, expected an mha\.MultiHeadAttention"):
        mha.heads.prune(attention.weights, [0])


@pytest.mark.backends("numpy")
def test_none_or_a_whole_group_may_go(rng):
    attention = layer("numpy", rng, "groups")
    assert_same_weights(mha.heads.prune(attention, []).weights, attention.weights)
    smaller = mha.heads.prune(attention, np.array([2, 3]))
    assert (smaller.config.num_heads, smaller.config.num_key_value_heads) == (4, 2)
