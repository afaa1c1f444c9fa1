"""Multi-head attention in TensorFlow, with Keras' layers: the lesson, to be read beside those of the other frameworks.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens,
d width of a query or key head, dv width of a value head.

Inside `tf.function` a size may be unknown until the call: `tf.shape(X)` is asked where the others ask `X.shape`.
Keras hands `training` down from the outermost layer that was told; None stays None. Kernels are (in, out).

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention".
"""

import dataclasses
import functools
import math

import keras
import tensorflow as tf

from mha import arguments
from mha.config import Config, shapes

from .arrays import must_fit, refuse_masks

# 1. Masked softmax


def visible_keys(queries, keys, valid_lens=None, mask=None, causal=False, offset=0):
    """Combine lengths, mask and causal order into one array of booleans, True = may attend.

    Of queries (B, Q, any) and keys (B, K, any) only the sizes and the device matter. valid_lens: integers (B,) or
    (B, Q); mask: booleans (Q, K), (B, Q, K) or (B, H, Q, K); either may be None. offset: position of the first query.
    Returns booleans of four axes that broadcast against (B, H, Q, K), or None if nothing is hidden.
    """
    ordered = causal or 0 in (queries.shape[1], keys.shape[1])  # an empty order: without queries no key is seen
    if valid_lens is None and mask is None and not ordered:
        return None
    conditions = []
    B, Q, K = tf.shape(queries)[0], tf.shape(queries)[1], tf.shape(keys)[1]
    each_query = tf.cast(offset, tf.int64) + tf.range(tf.shape(queries, tf.int64)[1])  # (Q,)
    each_key = tf.range(tf.shape(keys, tf.int64)[1])  # (K,)
    if valid_lens is not None:
        must_fit("valid_lens", valid_lens, *(B, Q)[: len(valid_lens.shape)])
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < _signed(per_query, K)[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        mask = mask[None] if len(mask.shape) == 2 else mask  # (B, Q, K) or (B, H, Q, K)
        conditions.append(mask[:, None] if len(mask.shape) == 3 else mask)  # (B, 1 or H, Q, K)
        must_fit("mask", tf.reduce_any(conditions[-1], 1), B, Q, K, or_one=True)
    if ordered:
        order = each_key <= each_query[:, None]  # (Q, K)
        conditions.append(order[None, None])  # (1, 1, Q, K)
    return functools.reduce(tf.logical_and, conditions)


def blank_unused(queries, keys, values, visible):
    """Put zeros for queries that see no key, and for keys and values that no query sees.

    queries (B, Q, any), keys and values (B, K, any), visible broadcasts against (B, Q, K) or is None. A weight of zero
    alone would not keep padding out: 0 * NaN is NaN, in the output and in every gradient.
    """
    must_fit("keys", keys, tf.shape(queries)[0])
    must_fit("values", values, *tf.unstack(tf.shape(keys))[:2])
    if visible is None:
        return queries, keys, values
    return blank(queries, keys, values, tf.reduce_any(visible, 2), tf.reduce_any(visible, 1))


def blank(queries, keys, values, sees, seen):
    """Put zeros for queries, keys and values where `sees` (B, Q) or `seen` (B, K) is False; both may broadcast."""
    sees, seen = sees[:, :, None], seen[:, :, None]  # (B, Q, 1), (B, K, 1)
    queries = tf.where(sees, queries, tf.zeros_like(queries))
    keys = tf.where(seen, keys, tf.zeros_like(keys))
    values = tf.where(seen, values, tf.zeros_like(values))
    return queries, keys, values


def visible_softmax(scores, visible):
    """Softmax over the visible keys, in float32 at least: hidden keys weigh exactly 0, and so does a row without keys.

    scores (B, Q, K), visible broadcasts against it or is None. Returns weights (B, Q, K).
    """
    scores = widen(scores)
    if visible is None:
        return tf.nn.softmax(scores, -1)
    hidden = tf.cast(tf.where(tf.reduce_any(visible, -1, keepdims=True), -math.inf, 0), scores.dtype)  # (B, Q, 1)
    weights = tf.nn.softmax(tf.where(visible, scores, hidden), -1)
    return tf.where(visible, weights, tf.zeros_like(weights))


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, integers (B,) or (B, Q); None hides nothing.

    Returns weights of X's shape and dtype. Unlike in the book, a length of 0 gives a row of zeros.
    """
    X = tf.convert_to_tensor(X)  # a variable of Keras names its dtype otherwise
    visible = visible_keys(X, tf.transpose(X, (0, 2, 1)), valid_lens)  # (B, 1, 1 or Q, K)
    weights = visible_softmax(X, None if visible is None else visible[:, 0])
    return tf.cast(weights, X.dtype)


def widen(X):
    """X in float32 where it has half precision: scores overflow float16, and differences of them lose most bits."""
    return tf.cast(X, tf.float32) if X.dtype.size < 4 else X


# 2. Attention poolings


class AttentionPooling(keras.layers.Layer):
    """What all attention poolings share: weigh the values by a softmax of scores. Subclasses define the scores."""

    def __init__(self, dropout):
        super().__init__(autocast=False)
        self.dropout, self.dropping = dropout, keras.layers.Dropout(dropout, autocast=False)

    def call(self, queries, keys, values, visible=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d); visible broadcasts against (B, Q, K).

        Returns the scores (B, Q, K), the weights (B, Q, K) before dropout, and the pooled values (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, training)

    def weigh(self, queries, keys, values, visible=None, training=None):
        """As a call, of queries, keys and values that are blank already where they are not used."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = tf.matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return scores, tf.cast(weights, values.dtype), tf.cast(pooled, values.dtype)

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        return self.dropping(weights, training=training)


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(q k^T / sqrt(d)) v."""

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        d = queries.shape[-1]
        return tf.matmul(widen(queries), widen(keys), transpose_b=True) / math.sqrt(d)  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    def __init__(self, dropout, num_hiddens, query_size, key_size, dtype="float32"):
        super().__init__(dropout)
        self.W_q = dense(query_size, num_hiddens, False, dtype)
        self.W_k = dense(key_size, num_hiddens, False, dtype)
        self.w_v = dense(num_hiddens, 1, False, dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = tf.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)


def pooling(config, dot=DotProductAttention, additive=AdditiveAttention):
    """The attention pooling that a configuration asks for, one of two classes, acting on the split heads."""
    if config.pooling == "additive":
        return additive(config.dropout, config.key_dim, config.key_dim, config.key_dim, config.dtype)
    return dot(config.dropout)


# 3. The transposes


def transpose_qkv(X, num_heads):
    """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
    B, T, width = keras.ops.shape(X)
    X = tf.reshape(X, (B, T, num_heads, width // num_heads))  # (B, T, H, d)
    X = tf.transpose(X, (0, 2, 1, 3))  # (B, H, T, d)
    return tf.reshape(X, (B * num_heads, T, width // num_heads))  # (B*H, T, d)


def transpose_output(X, num_heads):
    """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
    BH, T, d = keras.ops.shape(X)
    X = tf.reshape(X, (BH // num_heads, num_heads, T, d))  # (B, H, T, d)
    X = tf.transpose(X, (0, 2, 1, 3))  # (B, T, H, d)
    return tf.reshape(X, (BH // num_heads, T, num_heads * d))  # (B, T, H*d)


def repeat_heads(visible, batch_size, num_heads):
    """Give every head of a sample its row of `visible`, in the order of `transpose_qkv`.

    (B or 1, H or 1, Q or 1, K or 1) -> (B*H, Q or 1, K or 1); None stays None.
    """
    if visible is None:
        return None
    _, _, Q, K = keras.ops.shape(visible)
    visible = tf.broadcast_to(visible, (batch_size, num_heads, Q, K))  # (B, H, Q, K)
    return tf.reshape(visible, (batch_size * num_heads, Q, K))  # (B*H, Q, K)


# 4. The layer


@keras.saving.register_keras_serializable("mha.lesson")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    pooling = staticmethod(pooling)

    def __init__(self, config, **options):
        config = config if isinstance(config, Config) else Config(**config)
        super().__init__(autocast=False, **(options | {"dtype": config.dtype}))
        self.config = config
        self.W_q = dense(config.query_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_k = dense(config.key_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_v = dense(config.value_size, config.num_heads * config.value_dim, config.bias, config.dtype)
        self.W_o = dense(config.num_heads * config.value_dim, config.num_hiddens, config.bias, config.dtype)
        self.attention = self.pooling(config)
        self.attention.built = True  # its parts are
        self.supports_masking = True  # or Keras warns that `mask` gets lost: it takes every `mask` for its own kind

    def __call__(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Refuse what does not fit, before Keras converts it or puts words of its own around the error; then `call`."""
        refuse_masks(keys, values)
        options = {"causal": causal, "training": training, "return_weights": return_weights}
        checked = arguments.check("tensorflow", self, queries, keys, values, valid_lens, mask, **options)
        return super().__call__(queries, keys, values, **checked._asdict(), **options)

    def call(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        causal: query i sees key j only if j <= i; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        return self.attend(queries, keys, values, valid_lens, mask, causal, training, return_weights)  # (B, Q, D)

    def attend(self, queries, keys, values, valid_lens, mask, causal, training, return_weights):
        """As a call, of arguments that are checked; all attention weights are kept."""
        (B, Q, _), K, H = keras.ops.shape(queries), keras.ops.shape(keys)[1], self.config.num_heads
        visible = visible_keys(queries, keys, valid_lens, mask, causal)  # (B or 1, H or 1, Q or 1, K)
        in_any_head = None if visible is None else tf.reduce_any(visible, 1)  # (B, Q, K)
        queries, keys, values = blank_unused(queries, keys, values, in_any_head)
        steps = self.steps(queries, keys, values, visible, training)
        weights = tf.reshape(steps["weights"], (B, H, Q, K))  # (B, H, Q, K)
        return (steps["output"], weights) if return_weights else steps["output"]  # (B, Q, D)

    def steps(self, queries, keys, values, visible=None, training=None):
        """Every step from inputs to output, by name and in order; visible broadcasts against (B, H, Q, K)."""
        B, H = keras.ops.shape(queries)[0], self.config.num_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        visible = repeat_heads(visible, B, H)  # (B*H, Q, K)
        scores, weights, pooled = self.attention(split_q, split_k, split_v, visible, training=training)  # (B*H, ...)
        merged = transpose_output(pooled, H)  # (B, Q, H*dv)
        output = self.W_o(merged)  # (B, Q, D)
        return {
            "W_q": W_q, "W_k": W_k, "W_v": W_v,
            "split_q": split_q, "split_k": split_k, "split_v": split_v,
            "scores": scores, "weights": weights, "pooled": pooled,
            "merged": merged, "output": output,
        }  # fmt: skip

    def compute_mask(self, inputs, previous_mask):
        """No mask for the layers that follow: ours is about queries and keys, not about the output."""

    def get_config(self):
        """The options from which Keras' own saver makes the layer again."""
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}


# 5. Weights and gradients in and out


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    layer = keras.layers.Dense(out_size, use_bias=bias, dtype=dtype, autocast=False)
    if in_size is not None:
        layer.build((None, in_size))
    return layer


def build(config, arrays, seed=0, kind=MultiHeadAttention):
    """A layer, of this class, with the given canonical weights; seed draws dropout where the layer owns it."""
    return set_weights(kind(config), arrays)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: X.numpy().copy() for name, X in _parameters(layer).items()}


def set_weights(layer, arrays):
    """The layer with these canonical weights, which must fit it."""
    for name, parameter in _parameters(layer).items():
        parameter.assign(arrays[name])
    return layer


def attend(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False):
    """Call the layer, with its own arguments in its framework's own way."""
    return layer(
        queries, keys, values, valid_lens, mask=mask, causal=causal, training=training, return_weights=return_weights
    )


def vjp(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, training=False):
    """The output (B, Q, D) of a call, and what pulls gradients back through it, arguments as for the layer.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values and each canonical weight: of this call, whatever becomes of the layer, and as often as one likes.
    """
    inputs = [tf.identity(X) for X in (queries, keys, values)]
    parameters = {name: X.value for name, X in _parameters(layer).items()}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([*inputs, *parameters.values()])
        output = attend(layer, *inputs, valid_lens, mask, causal, training)

    def pull_back(cotangent):
        by_all = tape.gradient(output, [*inputs, *parameters.values()], cotangent)
        return dict(zip(("queries", "keys", "values", *parameters), by_all, strict=True))

    return output, pull_back


def gradients(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, cotangent=None):
    """The gradients of a call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, valid_lens, mask, causal)
    return pull_back(tf.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, valid_lens=None, mask=None, causal=False):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    valid_lens, mask = arguments.check("tensorflow", layer, queries, keys, values, valid_lens, mask, causal)
    visible = visible_keys(queries, keys, valid_lens, mask, causal)
    return layer.steps(queries, keys, values, visible, training=False)


def _signed(valid_lens, num_keys):
    """Lengths as int64, where those of uint64 may wrap around: these are beyond any number of keys."""
    signed = tf.cast(valid_lens, tf.int64)
    return tf.where(signed < 0, tf.cast(num_keys, tf.int64), signed) if valid_lens.dtype == tf.uint64 else signed


def _parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {name: functools.reduce(getattr, name.split("."), layer) for name in shapes(layer.config)}
