"""Measure how TensorFlow with Keras differs: its own attention is `keras.layers.MultiHeadAttention`.

Each function returns pairs of a word and a detail, as `mha.learn.page.measures` has them.
"""

import keras
import numpy as np
import tensorflow as tf

from mha.learn.page import measures


def layer():
    """The framework's own attention layer."""
    return [("", f"keras.layers.{keras.layers.MultiHeadAttention.__name__}")]


def kernel():
    """Which way round a dense layer stores its kernel."""
    made = keras.layers.Dense(5)
    made.build((None, 3))
    return [("", measures.orientation(tuple(made.kernel.shape), 3))]


def names():
    """The parameters of a fresh layer and their shapes, of 8 hidden units and 2 heads."""
    return measures.shapes({X.path.partition("/")[2]: tuple(X.shape) for X in _call(_layer()).weights})


def initial():
    """Mean and standard deviation of a fresh layer's query kernel, of 256 hidden units and 4 heads; its bias."""
    made = keras.layers.MultiHeadAttention(4, 64)
    X = tf.ones((1, 3, 256))
    made(X, X)
    kernel, bias = made.query_dense.kernel, made.query_dense.bias
    return [("", measures.spread(kernel.numpy())), ("of_bias", measures.spread(bias.numpy()))]


def lazy():
    """Whether a fresh layer has its weights before it is called."""
    made = _layer()
    return [
        ("eager" if made.weights else "lazy", f"len(layer.weights): {len(made.weights)} → {len(_call(made).weights)}")
    ]


def training():
    """Whether a fresh layer drops weights when nobody says whether it is training, and what says it."""
    made, X = _layer(dropout=0.5), tf.ones((1, 64, 8))
    fresh = measures.drops(lambda: made(X, X).numpy())
    said = [(measures.drops(lambda on=on: made(X, X, training=on).numpy()), f"training={on}") for on in (False, True)]
    return [(fresh, "layer(X, X)"), *said]


def weights():
    """Where the attention weights are found, and their shape for 1 sample, 2 heads, 3 queries and 4 keys."""
    _, found = _layer()(tf.ones((1, 3, 8)), tf.ones((1, 4, 8)), return_attention_scores=True)
    return [("", f"layer(X, Y, return_attention_scores=True)[1] {tuple(found.shape)}")]


def mask():
    """The meaning of True in a boolean mask of the framework's own attention."""
    one = tf.constant([[[True, False, False]]])
    _, found = _layer()(tf.ones((1, 1, 8)), tf.ones((1, 3, 8)), attention_mask=one, return_attention_scores=True)
    return [(measures.polarity(found.numpy()[0, 0, 0], 0), "attention_mask")]


def no_keys():
    """The weights of a query whose keys are all hidden."""
    X, hidden = tf.ones((1, 3, 8)), tf.zeros((1, 3, 3), tf.bool)
    _, found = _layer()(X, X, attention_mask=hidden, return_attention_scores=True)
    return [(measures.alone(found.numpy()[0, 0, 0]), "")]


def dtype():
    """The dtype of a fresh layer, and of an array that is made of Python's floats."""
    return [("of_layer", _call(_layer()).weights[0].dtype), ("of_array", tf.constant([1.0]).dtype.name)]


def random():
    """The way to make random numbers repeat, and whether a second draw is another."""
    draw = measures.repeats(lambda: keras.utils.set_random_seed(0), lambda: np.array(keras.random.normal((3,))))
    return [(draw, "keras.utils.set_random_seed(0)")]


def heads():
    """The result of 3 heads of 10 hidden units."""
    X = tf.ones((1, 2, 10))
    made = keras.layers.MultiHeadAttention(3, 10 // 3)
    return measures.outcome(lambda: f"MultiHeadAttention(3, 10 // 3)(X, X) {tuple(made(X, X).shape)}")


def compiled():
    """How many programs a compiled layer takes for sequences of 3 lengths."""
    traced, made = [], _call(_layer())

    def call(X):
        traced.append(X.shape)
        return made(X, X)

    function = tf.function(call, reduce_retracing=True)
    for T in (3, 4, 5):
        function(tf.ones((2, T, 8)))
    return [(measures.programs(len(traced), 3), f"tf.function(reduce_retracing=True): {len(traced)}")]


def _layer(**options):
    return keras.layers.MultiHeadAttention(2, 4, **options)


def _call(layer):
    X = tf.ones((1, 3, 8))
    layer(X, X)
    return layer
