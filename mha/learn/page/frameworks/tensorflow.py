"""Measure how TensorFlow with Keras differs: its own attention is `keras.layers.MultiHeadAttention`."""

import keras
import numpy as np
import tensorflow as tf

from mha.learn.page import measures


def layer():
    return [("", f"keras.layers.{keras.layers.MultiHeadAttention.__name__}")]


def kernel():
    made = keras.layers.Dense(5)
    made.build((None, 3))
    return [("", measures.orientation(tuple(made.kernel.shape), 3))]


def names():
    return measures.shapes({X.path.partition("/")[2]: tuple(X.shape) for X in _call(_layer()).weights})


def initial():
    made = keras.layers.MultiHeadAttention(4, 64)
    X = tf.ones((1, 3, 256))
    made(X, X)
    kernel, bias = made.query_dense.kernel, made.query_dense.bias
    return [("", measures.spread(kernel.numpy())), ("of_bias", measures.spread(bias.numpy()))]


def lazy():
    made = _layer()
    return [
        ("eager" if made.weights else "lazy", f"len(layer.weights): {len(made.weights)} → {len(_call(made).weights)}")
    ]


def training():
    made, X = _layer(dropout=0.5), tf.ones((1, 64, 8))
    fresh = measures.drops(lambda: made(X, X).numpy())
    said = [(measures.drops(lambda on=on: made(X, X, training=on).numpy()), f"training={on}") for on in (False, True)]
    return [(fresh, "layer(X, X)"), *said]


def weights():
    _, found = _layer()(tf.ones((1, 3, 8)), tf.ones((1, 4, 8)), return_attention_scores=True)
    return [("", f"layer(X, Y, return_attention_scores=True)[1] {tuple(found.shape)}")]


def mask():
    one = tf.constant([[[True, False, False]]])
    _, found = _layer()(tf.ones((1, 1, 8)), tf.ones((1, 3, 8)), attention_mask=one, return_attention_scores=True)
    return [(measures.polarity(found.numpy()[0, 0, 0], 0), "attention_mask")]


def no_keys():
    X, hidden = tf.ones((1, 3, 8)), tf.zeros((1, 3, 3), tf.bool)
    _, found = _layer()(X, X, attention_mask=hidden, return_attention_scores=True)
    return [(measures.alone(found.numpy()[0, 0, 0]), "")]


def dtype():
    return [("of_layer", _call(_layer()).weights[0].dtype), ("of_array", tf.constant([1.0]).dtype.name)]


def random():
    draw = measures.repeats(lambda: keras.utils.set_random_seed(0), lambda: np.array(keras.random.normal((3,))))
    return [(draw, "keras.utils.set_random_seed(0)")]


def heads():
    X = tf.ones((1, 2, 10))
    made = keras.layers.MultiHeadAttention(3, 10 // 3)
    return measures.outcome(lambda: f"MultiHeadAttention(3, 10 // 3)(X, X) {tuple(made(X, X).shape)}")


def compiled():
    traced, made = [], _call(_layer())

    def call(X):
        traced.append(X.shape)
        return made(X, X)

    function = tf.function(call, reduce_retracing=True)
    return measures.programs("tf.function(reduce_retracing=True)", traced, lambda T: function(tf.ones((2, T, 8))))


def _layer(**options):
    return keras.layers.MultiHeadAttention(2, 4, **options)


def _call(layer):
    X = tf.ones((1, 3, 8))
    layer(X, X)
    return layer
