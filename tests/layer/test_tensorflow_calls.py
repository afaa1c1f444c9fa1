"""TensorFlow's compiled calls: few functions for any sizes, which follow what changes in a layer and keep none."""

import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest

import mha
from mha import parity
from mha.core.engine import blocks

pytestmark = pytest.mark.backends("tensorflow")


@pytest.fixture
def tf():
    import tensorflow

    return tensorflow


@pytest.fixture
def functions():
    """The compiled functions, by kind of call; none at first."""
    from mha.backends.tensorflow.engine import compiled

    compiled._functions.clear()
    return compiled._functions


def make(**options):
    return mha.MultiHeadAttention(12, 3, **{"dtype": "float64", "seed": 0, **options}, backend="tensorflow")


def draw(rng, B=2, Q=5, K=7):
    return tuple(rng.normal(size=(B, T, 12)) for T in (Q, K, K))


def close(found, expected, scale=0.0):
    found, expected = np.asarray(found), np.asarray(expected)
    assert parity.error(found, expected) <= parity.bound("float64", expected, expected, gradient=True, scale=scale)


HIDING = {
    "nothing": lambda B, Q, K: {},
    "lengths": lambda B, Q, K: {"valid_lens": np.arange(B) + 1},
    "lengths per query": lambda B, Q, K: {"valid_lens": np.arange(B * Q).reshape(B, Q) % (K + 1)},
    "mask": lambda B, Q, K: {"mask": np.arange(Q * K).reshape(Q, K) % 3 > 0},
    "mask of every head": lambda B, Q, K: {"mask": np.arange(B * Q * K).reshape(B, 1, Q, K) % 3 > 0},
    "causal": lambda B, Q, K: {"causal": True},
}
CALLS = {
    "output": lambda attention, *arrays, **hiding: {"output": attention(*arrays, **hiding)},
    "weights": lambda attention, *arrays, **hiding: {"w": attention(*arrays, **hiding, return_weights=True)[1]},
    "gradients": lambda attention, *arrays, **hiding: attention.gradients(*arrays, **hiding),
    "trace": lambda attention, *arrays, **hiding: attention.trace(*arrays, **hiding),
}


SIZES = list(itertools.product((2, 3, 4), (2, 5, 8), (2, 3, 6, 9)))


WAYS = [(hiding, "output") for hiding in HIDING] + [("mask of every head", call) for call in CALLS if call != "output"]


@pytest.mark.parametrize(("hiding", "call"), WAYS)
def test_any_sizes_are_one_function(rng, functions, hiding, call):
    attention = make(bias=True)
    oracle = attention.to("numpy")
    for B, Q, K in SIZES[::5]:
        arrays, hidden = draw(rng, B, Q, K), HIDING[hiding](B, Q, K)
        found, expected = (CALLS[call](one, *arrays, **hidden) for one in (attention, oracle))
        assert list(found) == list(expected)
        for name, X in expected.items():
            close(found[name], X, parity.gradient_scale(name, expected))
    assert len(functions) == 1


def test_every_kind_of_call_is_a_function(rng, functions):
    """Two layers of one configuration share theirs; what takes pieces is another kind, and so is a mask's size of 1."""
    arrays = draw(rng)
    for attention in (make(), make(seed=1)):
        for call, hiding in itertools.product(CALLS.values(), ("lengths", "mask")):
            call(attention, *arrays, **HIDING[hiding](2, 5, 7))
    assert len(functions) == len(CALLS) * 2
    make()(*arrays, mask=np.ones((1, 7), bool))
    make()(*arrays)
    make()(*arrays, training=True)  # without dropout this is nothing else
    assert len(functions) == len(CALLS) * 2 + 2


def test_calls_in_pieces_are_another_function(rng, functions, monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)
    attention = make()
    oracle = attention.to("numpy")
    for Q in (1, 2, 5, 9, 17):  # 42 scores are one piece
        arrays = draw(rng, 2, Q, 7)
        close(attention(*arrays, [3, 7]), oracle(*arrays, [3, 7]))
    assert len(functions) == 2


def test_only_so_many_functions_are_kept(rng, functions, monkeypatch):
    from mha.backends.tensorflow.engine import compiled

    monkeypatch.setattr(compiled, "MOST", 2)
    attention, arrays = make(), draw(rng)
    oracle = attention.to("numpy")
    for hiding in (*list(HIDING.values())[:4], HIDING["nothing"]):
        close(attention(*arrays, **hiding(2, 5, 7)), oracle(*arrays, **hiding(2, 5, 7)))
        assert len(functions) <= 2


@pytest.mark.parametrize(
    "scores", [blocks.SCORES, pytest.param(60, marks=pytest.mark.long("tensorflow"))], ids=["one piece", "pieces"]
)
def test_a_layer_that_is_dropped_is_freed(rng, tf, functions, monkeypatch, scores):
    monkeypatch.setattr(blocks, "SCORES", scores)
    attention, arrays = make(bias=True), draw(rng)
    with tf.GradientTape() as tape:
        output = attention.layer(*arrays, [3, 7])
    tape.gradient(output, [W.value for W in attention.layer.weights])
    for call in CALLS.values():
        call(attention, *arrays)
    kept = [weakref.ref(X) for X in (attention.layer, *attention.layer.weights)]
    del attention, tape, output
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)
    assert functions


def test_weights_that_are_assigned_count(rng, functions):
    attention, arrays = make(), draw(rng)
    before = attention(*arrays), attention.gradients(*arrays)["queries"]
    attention.layer.W_v.kernel.assign(2 * attention.layer.W_v.kernel)
    close(attention(*arrays), 2 * before[0])
    close(attention.layer(*arrays), 2 * before[0])
    close(attention.gradients(*arrays)["queries"], 2 * before[1])
    attention.weights = attention.weights | {"W_o.kernel": 0 * attention.weights["W_o.kernel"]}
    close(attention(*arrays), 0 * before[0])
    assert len(functions) == 2


def replaced(attention):
    layer = make(seed=1).layer
    attention.layer.W_v = layer.W_v


def activated(attention):
    attention.layer.W_v.activation = abs


def wrapped(attention):
    part = attention.layer.W_v
    part.call = lambda X, training=None, call=part.call: 2 * call(X)


def adapted(attention):
    attention.layer.W_v.enable_lora(2, b_initializer="ones")


def convolved(attention):
    """Layers that take three axes, as Keras's dense one need not."""
    import keras

    for name in ("W_q", "W_v", "W_o"):
        setattr(attention.layer, name, keras.layers.Conv1D(12, 3, padding="same", use_bias=False, dtype="float64"))


def capped(attention):
    attention.layer.attention.softcap = 0.1


def scaled(attention):
    attention.layer.attention.scale = 3.0


def normed(attention):
    attention.layer.q_norm.norm = mha.Norm("rms", 3.0)


def normed_by_another(attention):
    norm = attention.layer.k_norm

    class Doubled(type(norm)):
        def call(self, X):
            return 2 * super().call(X)

    attention.layer.k_norm = Doubled(norm.norm, norm.num_heads, 4, "float64")


def pooled(attention):
    pool = attention.layer.attention
    pool.scores = lambda queries, keys, scores=pool.scores: 2 * scores(queries, keys)


def subclassed(attention):
    bases = type(attention.layer.attention).__mro__
    lesson = next(base for base in bases if base.__module__.endswith("tensorflow.pooling"))

    class Doubled(lesson):
        def scores(self, queries, keys):
            return 2 * super().scores(queries, keys)

    attention.layer.attention = Doubled(0.0)


CHANGES = [replaced, activated, wrapped, pooled, subclassed]
NORMS = {"qk_norm": "rms"}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        *((one, {}) for one in (*CHANGES, adapted, convolved, capped, scaled)),
        (normed, NORMS),
        (normed_by_another, NORMS),
    ],
)
def test_a_part_that_is_changed_counts(rng, tf, functions, change, options):
    attention, arrays = make(**options), draw(rng)
    before = make(**options)(*arrays)  # of the same configuration: the function is there
    close(attention.trace(*arrays)["output"], before)
    change(attention)
    traced = tf.function(attention.layer, autograph=False)(*map(tf.constant, arrays))
    assert np.abs(traced - before).max() > 0.01
    for output in (attention(*arrays), attention.layer(*arrays), attention.trace(*arrays)["output"]):
        close(output, traced)


@pytest.mark.parametrize("change", [wrapped, pooled])
def test_a_part_that_is_changed_counts_in_gradients(rng, tf, functions, change):
    attention, arrays = make(), draw(rng)
    before = make().gradients(*arrays)["values"]
    change(attention)
    with tf.GradientTape() as tape:
        values = tf.Variable(arrays[2])
        output = tf.function(attention.layer, autograph=False)(*arrays[:2], values)
    expected = tape.gradient(output, values)
    assert np.abs(expected - before).max() > 0.01
    close(attention.gradients(*arrays)["values"], expected)
    output, pull_back = attention.vjp(*arrays)
    close(pull_back(np.ones_like(output))["values"], expected)


def test_a_dropout_that_is_changed_counts(rng, functions):
    attention, arrays = make(dropout=0.5), draw(rng)
    before = make(dropout=0.5)(*arrays, training=True)
    attention.layer.attention.dropping.rate = 0
    expected = attention(*arrays)
    assert np.abs(before - expected).max() > 0.01
    close(attention(*arrays, training=True), expected)


def test_a_part_of_another_precision_counts(rng, functions):
    import keras

    attention, arrays = make(dtype="float32"), [X.astype("float32") for X in draw(rng)]
    expected = attention(*arrays)
    attention.layer.W_v.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    found = attention(*arrays)
    assert (found != expected).any()
    assert parity.error(found, expected) <= parity.bound("bfloat16", expected, expected)


def test_a_part_that_is_new_is_built_by_the_call(rng, functions):
    import keras

    attention, arrays = make(), draw(rng)
    attention.layer.W_v = keras.layers.Dense(12, use_bias=False, dtype="float64")
    output = attention.layer(*arrays, training=False)
    assert np.abs(output - make()(*arrays)).max() > 0.01
    close(attention.layer(*arrays, training=False), output)


def test_the_loss_of_a_part_is_the_layers(rng, functions):
    import keras

    attention, arrays = make(), draw(rng)
    attention.layer(*arrays, training=False)
    attention.layer.W_v.activity_regularizer = keras.regularizers.L2(1.0)
    for weights in (False, True):
        attention.layer(*arrays, training=False, return_weights=weights)
        (found,) = attention.layer.losses
        close(found, np.square(arrays[2] @ attention.weights["W_v.kernel"]).sum() / 2)  # of two samples


def test_scores_of_ones_own_may_be_infinite_where_lengths_hide(rng, tf, functions):
    """Hidden keys are blank, and have no direction."""
    attention, (queries, keys, values) = make(), draw(rng)
    attention.layer.attention.scores = lambda q, k: -tf.math.log(tf.matmul(q, k, transpose_b=True) ** 2)
    attend = tf.function(attention.layer, autograph=False)
    output = attend(queries, keys, values, tf.constant([3, 5]))
    for sample, length in enumerate((3, 5)):
        own = slice(sample, sample + 1)
        close(output[own], attend(queries[own], keys[own, :length], values[own, :length]))


def test_a_part_that_looks_at_neighbours_has_them_in_pieces(rng, tf, functions, monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 40)
    attention, arrays = make(), draw(rng)
    convolved(attention)
    close(attention(*arrays, [7, 5]), attention(*arrays, [7, 5], return_weights=True)[0])


def test_variables_of_tensorflow_are_arrays(rng, tf, functions):
    attention, arrays = make(), draw(rng)
    variables = [*map(tf.Variable, arrays)]
    with tf.GradientTape() as tape:
        output = attention.layer(*variables, training=False)
    close(output, attention(*arrays))
    for found, expected in zip(tape.gradient(output, variables), attention.gradients(*arrays).values(), strict=False):
        close(found, expected)


def test_a_layer_of_several_replicas(rng, tf, functions):
    attention, arrays = make(), draw(rng)
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        copied = make()
    close(copied(*arrays), attention(*arrays))


def test_dropout_draws_anew_and_by_the_seed(rng, functions):
    import keras

    def calls(seed):
        keras.utils.set_random_seed(seed)
        attention = make(dropout=0.5)
        return [attention(*arrays, training=True) for _ in range(3)] + [attention.layer(*arrays, training=True)]

    arrays = draw(rng)
    first, again, other = calls(1), calls(1), calls(2)
    for one, two in itertools.combinations(first, 2):
        assert (np.asarray(one) != np.asarray(two)).any()
    for one, two, three in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, two)
        assert (np.asarray(one) != np.asarray(three)).any()
    assert len(functions) == 1


def test_gradients_of_a_tape_around_the_call(rng, tf, functions):
    attention, arrays = make(bias=True), [tf.constant(X) for X in draw(rng)]
    layer = attention.layer
    expected = attention.gradients(*arrays, [3, 7])
    for call in (attention, layer):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            output = call(*arrays, [3, 7], training=False)
        found = tape.gradient(output, [*arrays, *(W.value for W in layer.weights)])
        for one, two in zip(found, expected.values(), strict=True):
            close(one, two)
    layer.trainable = False
    for name, gradient in attention.gradients(*arrays, [3, 7]).items():
        close(gradient, expected[name], parity.gradient_scale(name, expected))


def test_gradients_of_gradients(rng, tf, functions):
    attention, arrays = make(), [tf.constant(X) for X in draw(rng)]

    def twice(call):
        with tf.GradientTape() as outer:
            outer.watch(arrays)
            with tf.GradientTape() as inner:
                inner.watch(arrays)
                output = call(*arrays)
            gradient = inner.gradient(output, arrays[0])
        return outer.gradient(gradient, arrays)

    for found, expected in zip(twice(attention.layer), tf.function(twice)(attention.layer), strict=True):
        close(found, expected)


def test_weights_of_a_stateless_call(rng, tf, functions):
    attention, other, arrays = make(), make(seed=1), [tf.constant(X) for X in draw(rng)]
    attention(*arrays)
    weights = [W.value for W in other.layer.trainable_variables]
    for given in (weights, [tf.convert_to_tensor(W) for W in weights]):
        output, _ = attention.layer.stateless_call(given, [], *arrays, training=False)
        close(output, other(*arrays))


def test_a_layer_around_it_with_another_precision(rng, tf, functions):
    import keras

    attention, arrays = make(), [tf.constant(X) for X in draw(rng)]

    class Around(keras.layers.Layer):
        def call(self, X):
            return attention.layer(*arrays, training=False), attention(*arrays)

    expected = attention(*arrays)
    for output in Around(dtype="mixed_float16")(arrays[0]):
        np.testing.assert_array_equal(output, expected)


def test_functions_that_run_eagerly_are_not_compiled(rng, tf, functions):
    attention, arrays = make(), draw(rng)
    tf.config.run_functions_eagerly(True)
    try:
        found = attention(*arrays, [3, 7])
    finally:
        tf.config.run_functions_eagerly(False)
    assert not functions
    close(attention(*arrays, [3, 7]), found)
    assert len(functions) == 1


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_copies_after_a_call(rng, functions):
    attention, arrays = make(bias=True), draw(rng)
    output = attention(*arrays)
    for made in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
        np.testing.assert_array_equal(made(*arrays), output)
        made.layer.W_v.kernel.assign(0 * made.layer.W_v.kernel)
        np.testing.assert_array_equal(attention(*arrays), output)
    assert len(functions) == 1
