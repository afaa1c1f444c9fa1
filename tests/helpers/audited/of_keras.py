"""Models of Keras."""

import keras
import numpy as np
import tensorflow as tf

import audited
from audited import D, H, Model, attend, d

BACKEND = "tensorflow"
KINDS = "own", "taught"
LIKE = "own"


def state(model):
    """What an audit has to leave as it was."""
    layers = [sorted(vars(one)) for one in model._flatten_layers()]
    functions = tf.nn.softmax, tf.nn.dropout, keras.ops.dot_product_attention, keras.random.dropout
    return layers, functions, tf.config.functions_run_eagerly(), model.get_weights()


def drawn(model):
    """The model with random numbers in each array."""
    model(audited.inputs())
    return drawn_of(model)


def drawn_of(model):
    """The same for a model that is built."""
    rng = np.random.default_rng(5)
    for X in model.trainable_variables:
        X.assign(rng.normal(size=X.shape, scale=0.4))
    return model


class Wrong(keras.layers.MultiHeadAttention):
    """The framework's layer, which forgets the order, or its scale."""

    mistake = ""

    def call(self, query, value, **options):
        if self.mistake == "mask":
            options["use_causal_mask"] = False
        if self.mistake == "scale":
            self._inverse_sqrt_key_dim = 1.0
        return super().call(query, value, **options)


class Block(keras.layers.Layer):
    """A layer with a residual and dropout."""

    def __init__(self, attention, **options):
        super().__init__(**options)
        self.attention, self.drop, self.norm = attention, keras.layers.Dropout(0.5), keras.layers.LayerNormalization()

    def build(self, shape):
        if not self.attention.built:
            self.attention.build(shape, shape)
        self.norm.build(shape)

    def call(self, X, training=None):
        Y = self.norm(X)
        return X + self.drop(self.attention(Y, Y, use_causal_mask=True, training=training), training=training)


class Stack(keras.Model):
    """A subclassed model of two blocks."""

    def __init__(self, first, second):
        super().__init__()
        self.blocks = [Block(first), Block(second)]

    def call(self, X, training=None):
        for block in self.blocks:
            X = block(X, training=training)
        return X


def own(mistake):
    """A subclassed model with the framework's layer."""
    second = Wrong(H, d, dropout=0.3)
    second.mistake = mistake
    model = drawn(Stack(keras.layers.MultiHeadAttention(H, d, dropout=0.3), second))
    if mistake == "kernel":
        kernel = model.blocks[1].attention._query_dense.kernel
        kernel.assign(keras.ops.reshape(keras.ops.transpose(keras.ops.reshape(kernel, (D, H * d))), (D, H, d)))
    paths = ["blocks.0.attention", "blocks.1.attention"]
    return Model(model, (audited.inputs(),), paths, state, {"training": True})


class Dense(keras.layers.Layer):
    """A layer by hand, of projections without and with an axis for heads."""

    def __init__(self, mistake, **options):
        super().__init__(**options)
        self.to_q, self.to_v = keras.layers.Dense(D), keras.layers.Dense(D)
        self.to_k = keras.layers.EinsumDense("btc,chd->bthd", (None, H, d), bias_axes="hd")
        self.to_out = keras.layers.EinsumDense("bthd,hdc->btc", (None, D), bias_axes="c")
        self.mistake = mistake

    def call(self, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        pooled = attend(keras.ops, keras.ops.softmax, q, k, v, self.mistake)
        return X + self.to_out(keras.ops.reshape(pooled, (-1, audited.T, H, d)))  # (B, T, D)


def taught(mistake):
    """A model of a graph of layers by hand, in a model inside."""
    X = keras.Input((audited.T, D), audited.B)
    inner = keras.Model(X, Dense("", name="first")(X), name="inner")
    Y = keras.Input((audited.T, D), audited.B)
    model = drawn(keras.Model(Y, Dense(mistake, name="second")(inner(Y))))
    return Model(
        model, (audited.inputs(),), ["inner.first", "second"], state,
        layers={"inner.first": audited.TAUGHT, "second": audited.TAUGHT},
    )  # fmt: skip
