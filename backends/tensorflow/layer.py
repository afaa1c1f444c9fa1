"""Multi-head attention in TensorFlow, with Keras' layers: one of five tabs, to be read beside the others.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens,
d width of a query or key head, dv width of a value head.

Inside `tf.function` a size may be unknown until the call: `tf.shape(X)` is asked where the other tabs ask `X.shape`.
Keras hands `training` down from the outermost layer that was told; None stays None. Kernels are (in, out).

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention".
"""

import contextlib
import dataclasses
import functools
import math
import threading

import keras
import numpy as np
import tensorflow as tf

from mha import arguments, blocks, checks
from mha.config import Config, shapes

DTYPES = ("float32", "float64", "float16", "bfloat16")

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras runs on {keras.backend.backend()}, expected tensorflow: set KERAS_BACKEND=tensorflow before its import"
    )


# 1. Masked softmax


def visible_keys(queries, keys, valid_lens=None, mask=None, causal=False, first=0):
    """Combine lengths, mask and causal order into one array of booleans, True = may attend.

    Of queries (B, Q, any) and keys (B, K, any) only the sizes and the device matter. valid_lens: integers (B,) or
    (B, Q); mask: booleans (Q, K), (B, Q, K) or (B, H, Q, K); either may be None. first: place of the first query.
    Returns booleans of four axes that broadcast against (B, H, Q, K), or None if nothing is hidden.
    """
    ordered = causal or 0 in (queries.shape[1], keys.shape[1])  # an empty order: without queries no key is seen
    if valid_lens is None and mask is None and not ordered:
        return None
    conditions = []
    B, Q, K = tf.shape(queries)[0], tf.shape(queries)[1], tf.shape(keys)[1]
    each_query = tf.cast(first, tf.int64) + tf.range(tf.shape(queries, tf.int64)[1])  # (Q,)
    each_key = tf.range(tf.shape(keys, tf.int64)[1])  # (K,)
    if valid_lens is not None:
        _must_fit("valid_lens", valid_lens, *(B, Q)[: len(valid_lens.shape)])
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < _signed(per_query, K)[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        mask = mask[None] if len(mask.shape) == 2 else mask  # (B, Q, K) or (B, H, Q, K)
        conditions.append(mask[:, None] if len(mask.shape) == 3 else mask)  # (B, 1 or H, Q, K)
        _must_fit("mask", tf.reduce_any(conditions[-1], 1), B, Q, K, or_one=True)
    if ordered:
        order = each_key <= each_query[:, None]  # (Q, K)
        conditions.append(order[None, None])  # (1, 1, Q, K)
    return functools.reduce(tf.logical_and, conditions)


def part(valid_lens, mask, samples=slice(None), queries=slice(None), keys=slice(None)):
    """Lengths, and a mask of four axes, of some samples, queries and keys, which are slices; either may be None."""
    if valid_lens is not None:
        valid_lens = valid_lens[samples] if len(valid_lens.shape) == 1 else valid_lens[samples, queries]
    if mask is not None:
        mask = mask[(None,) * (3 - len(mask.shape))]  # (B, Q, K) or (B, H, Q, K)
        mask = mask[:, None] if len(mask.shape) == 3 else mask  # (B, 1 or H, Q, K)
        cuts = zip((samples, slice(None), queries, keys), mask.shape, strict=True)
        mask = mask[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]
    return valid_lens, mask


def blank_unused(queries, keys, values, visible):
    """Put zeros for queries that see no key, and for keys and values that no query sees.

    queries (B, Q, any), keys and values (B, K, any), visible broadcasts against (B, Q, K) or is None. A weight of zero
    alone would not keep padding out: 0 * NaN is NaN, in the output and in every gradient.
    """
    _must_fit("keys", keys, tf.shape(queries)[0])
    _must_fit("values", values, *tf.unstack(tf.shape(keys))[:2])
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


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = tf.reduce_any(part(None, mask)[1], 1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal)[:, 0]  # (B, Q, K)
        return tf.reduce_any(visible, 2), tf.reduce_any(visible, 1)
    Q, K = tf.unstack(tf.stack([tf.shape(queries, tf.int64)[1], tf.shape(keys, tf.int64)[1]]))
    limits = tf.fill((1, 1), K)  # (1, 1)
    if valid_lens is not None:
        _must_fit("valid_lens", valid_lens, *tf.unstack(tf.shape(queries)[:2])[: len(valid_lens.shape)])
        limits = _signed(valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens, K)  # (B, 1 or Q)
    if causal:
        limits = tf.minimum(limits, tf.range(1, Q + 1))  # (B, Q)
    return limits > 0, tf.range(K) < tf.reduce_max(limits, 1)[:, None]


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
        self.dropout = dropout
        self.dropping = keras.layers.Dropout(dropout, autocast=False)

    def call(self, queries, keys, values, visible=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d); visible broadcasts against (B, Q, K).

        Returns the scores (B, Q, K), the weights (B, Q, K) before dropout, and the pooled values (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, training)

    def weigh(self, queries, keys, values, visible=None, training=None):
        """As a call, where queries, keys and values that are not used are blank already."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = tf.matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return scores, tf.cast(weights, values.dtype), tf.cast(pooled, values.dtype)

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        if training and _drawn.seed is not None:
            return tf.nn.experimental.stateless_dropout(weights, self.dropout, seed=_drawn.seed)
        return self.dropping(weights, training=training)

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        (BH, Q, d), (_, K, _), dv = keras.ops.shape(queries), keras.ops.shape(keys), values.shape[2]
        of_head = _limited(self.scores_of_query(queries[:1], keys[:1]), 1)
        if isinstance(BH * Q * of_head, int) and blocks.fits(BH * Q * of_head):
            return self.pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, 0, training)
        # Pieces are heads of one sample, or whole samples, or queries of one head; all are of the same sizes.
        heads = _heads(BH, num_heads, of_head, Q)
        size = _limited(blocks.SCORES // (heads * of_head), 1, _limited(Q, 1))
        groups, count = _limited(-(-BH // heads), 1), _limited(-(-Q // size), 1)
        arrays = _padded(queries, keys, values, valid_lens, mask, num_heads, groups * heads - BH, count * size - Q)
        queries, keys, values, valid_lens, mask = arrays
        queries = tf.reshape(queries, (groups, heads, count, size, d))  # (groups, heads, blocks, size, d)
        queries = tf.transpose(queries, (0, 2, 1, 3, 4))  # (groups, blocks, heads, size, d)
        queries = tf.reshape(queries, (groups * count, heads, size, d))  # (pieces, heads, size, d)
        keys, values = (tf.reshape(X, (groups, heads, K, X.shape[2])) for X in (keys, values))  # (groups, heads, K, d)
        keys, values = (tf.TensorArray(X.dtype, groups, clear_after_read=False).unstack(X) for X in (keys, values))
        seed = self.dropping.seed_generator.next() if training and self.dropout else tf.zeros(2, tf.int32)
        of_sample = isinstance(heads, int) and heads <= num_heads
        one_length = of_sample and valid_lens is not None and len(valid_lens.shape) == 1

        @tf.recompute_grad
        def pool_some(piece, queries, keys, values, *weights):
            head, first = piece // count * heads, piece % count * size
            samples = slice(head // num_heads, (head + heads - 1) // num_heads + 1)
            lens, seen = part(valid_lens, mask, samples, slice(first, first + size))
            if lens is not None:
                lens = tf.cast(tf.minimum(_signed(lens, K), tf.cast(K, tf.int64)), tf.int32)
            longest = K if lens is None else tf.reduce_max(lens)
            last = _limited(tf.minimum(longest, first + size) if causal else longest, 1)
            if one_length:  # which the cut at `last` keeps, all by itself
                lens = None
            if seen is not None and seen.shape[1] != 1:
                seen = seen[:, head % num_heads :][:, :heads]  # all of them, where the piece has whole samples
            hiding = *part(lens, seen, keys=slice(last)), causal, first
            seed_of_piece = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int32), piece)
            with _drawing(seed_of_piece), keras.StatelessScope(zip(self.weights, weights, strict=True)):
                inputs = queries, keys[:, :last], values[:, :last], _limited(heads, 1, num_heads)
                pooled = self.pool_block(*inputs, *hiding, training)  # (heads, size, dv)
            return tf.where(longest > 0, pooled, tf.zeros_like(pooled)) if one_length else pooled

        own = [X.value for X in self.weights]  # given by hand, as variables in a loop get no gradient
        pooled = tf.map_fn(
            lambda inputs: pool_some(*inputs, keys.read(inputs[0] // count), values.read(inputs[0] // count), *own),
            (tf.range(groups * count), queries),
            fn_output_signature=values.dtype,
            parallel_iterations=1,
        )  # (pieces, heads, size, dv)
        pooled = tf.reshape(pooled, (groups, count, heads, size, dv))  # (groups, blocks, heads, size, dv)
        pooled = tf.transpose(pooled, (0, 2, 1, 3, 4))  # (groups, heads, blocks, size, dv)
        return tf.reshape(pooled, (groups * heads, count * size, dv))[:BH, :Q]  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        one_head = queries[::num_heads]  # of each sample: sizes that are learnt late are compared
        visible = visible_keys(one_head, keys, valid_lens, mask, causal, first)
        visible = repeat_heads(visible, keras.ops.shape(queries)[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training)[2]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return keras.ops.shape(queries)[0] * keras.ops.shape(keys)[1]


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

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


def pooling(config):
    """The attention pooling that a configuration asks for, acting on the split heads."""
    if config.pooling == "additive":
        return AdditiveAttention(config.dropout, config.key_dim, config.key_dim, config.key_dim, config.dtype)
    return DotProductAttention(config.dropout)


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


@keras.saving.register_keras_serializable("mha")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    def __init__(self, config, **options):
        config = config if isinstance(config, Config) else Config(**config)
        super().__init__(autocast=False, **(options | {"dtype": config.dtype}))
        self.config = config
        self.W_q = dense(config.query_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_k = dense(config.key_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_v = dense(config.value_size, config.num_heads * config.value_dim, config.bias, config.dtype)
        self.W_o = dense(config.num_heads * config.value_dim, config.num_hiddens, config.bias, config.dtype)
        self.attention = pooling(config)
        self.attention.built = True  # its parts are
        self.supports_masking = True  # or Keras warns that `mask` gets lost: it takes every `mask` for its own kind

    def __call__(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Refuse what does not fit, before Keras converts it or puts words of its own around the error; then `call`."""
        for name, X in {"keys": keys, "values": values}.items():
            if getattr(X, "_keras_mask", None) is not None:  # of an Embedding with mask_zero, say
                raise ValueError(f"{name} carries a mask of Keras', expected it as mask= or valid_lens=; take it off")
        switches = causal, training, return_weights
        valid_lens, mask = arguments.settle("tensorflow", self, queries, keys, values, valid_lens, mask, *switches)
        options = {"causal": causal, "training": training, "return_weights": return_weights}
        return super().__call__(queries, keys, values, valid_lens=valid_lens, mask=mask, **options)

    def call(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        causal: query i sees key j only if j <= i; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        (B, Q, _), K, H = keras.ops.shape(queries), keras.ops.shape(keys)[1], self.config.num_heads
        if not return_weights and not any(isinstance(size, int) and size == 0 for size in (B, Q, K)):
            return self.output(queries, keys, values, valid_lens, mask, causal, training)  # (B, Q, D)
        visible = visible_keys(queries, keys, valid_lens, mask, causal)
        somewhere = None if visible is None else tf.reduce_any(visible, 1)  # (B, Q, K), in any head
        queries, keys, values = blank_unused(queries, keys, values, somewhere)
        steps = self.steps(queries, keys, values, visible, training)
        weights = tf.reshape(steps["weights"], (B, H, Q, K))  # (B, H, Q, K)
        return (steps["output"], weights) if return_weights else steps["output"]  # (B, Q, D)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        (B, Q, _), K, H = keras.ops.shape(queries), keras.ops.shape(keys)[1], self.config.num_heads
        _must_fit("keys", keys, B)
        _must_fit("values", values, B, K)
        mask = _whole(part(None, mask)[1], B, H, Q, K)
        known = all(isinstance(size, int) for size in (B, Q, K))
        last = K if not causal else min(Q, K) if known else tf.minimum(Q, K)
        keys, values = keys[:, :last], values[:, :last]
        hiding = *part(valid_lens, mask, keys=slice(last)), causal
        K = last
        if mask is not None or valid_lens is not None:
            sees, seen = used(queries, keys, *hiding)  # (B, Q), (B, K)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        if valid_lens is None or (known and blocks.fits(B * H * Q * K)):
            W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        else:
            W_q, W_k, W_v = self.W_q(queries), _of_seen(self.W_k, keys, seen), _of_seen(self.W_v, values, seen)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        pooled = self.attention.pool(split_q, split_k, split_v, H, *hiding, training)  # (B*H, Q, dv)
        return self.W_o(transpose_output(pooled, H))  # (B, Q, D)

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


# 5. Arrays and weights in and out


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    layer = keras.layers.Dense(out_size, use_bias=bias, dtype=dtype, autocast=False)
    if in_size is not None:
        layer.build((None, in_size))
    return layer


def build(config, arrays, seed=0):
    """The layer of a configuration with the given canonical weights; seed draws dropout where the layer owns it."""
    return set_weights(MultiHeadAttention(config), arrays)


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


def gradients(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, cotangent=None):
    """Gradients of sum(output * cotangent), without dropout, by queries, keys, values and each canonical weight.

    Arguments as for the layer; cotangent (B, Q, D), None = ones.
    """
    inputs = [tf.identity(X) for X in (queries, keys, values)]
    parameters = {name: X.value for name, X in _parameters(layer).items()}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = attend(layer, *inputs, valid_lens, mask, causal, training=False)
    cotangent = tf.ones_like(output) if cotangent is None else cotangent
    by_all = tape.gradient(output, [*inputs, *parameters.values()], cotangent)
    return dict(zip(("queries", "keys", "values", *parameters), by_all, strict=True))


def trace(layer, queries, keys, values, valid_lens=None, mask=None, causal=False):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    valid_lens, mask = arguments.settle("tensorflow", layer, queries, keys, values, valid_lens, mask, causal)
    visible = visible_keys(queries, keys, valid_lens, mask, causal)
    return layer.steps(queries, keys, values, visible, training=False)


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return tf.constant(array)


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return np.asarray(X.numpy())  # of a scalar, TensorFlow makes a NumPy scalar


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, (tf.Tensor, tf.Variable, keras.Variable, keras.KerasTensor)) or checks.is_numpy(X)


def known(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    if isinstance(X, tf.Variable):
        return to_numpy(X) if tf.executing_eagerly() else None
    return None if isinstance(X, keras.KerasTensor) or tf.is_symbolic_tensor(X) else to_numpy(X)


def context(dtype):
    """What a computation in this dtype runs inside of, where the framework asks for it."""
    return contextlib.nullcontext()


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device():
    """What the framework computes on, in words."""
    return ", ".join(sorted({device.device_type.lower() for device in tf.config.list_logical_devices()}))


def _must_fit(name, X, *sizes, or_one=False):
    """Stop where only a call inside `tf.function` shows that X has other sizes; TensorFlow would broadcast."""
    if tf.executing_eagerly():
        return  # they were known, and checked
    for axis, size in enumerate(sizes):
        given = tf.shape(X)[axis]
        fits = tf.logical_or(tf.equal(given, size), tf.logical_and(or_one, tf.equal(given, 1)))
        tf.debugging.Assert(fits, [f"axis {axis} of {name} has size", given, "but expected was", size])


class _Drawn(threading.local):
    seed = None


_drawn = _Drawn()


@contextlib.contextmanager
def _drawing(seed):
    """Dropout inside draws from this seed, (2,) integers: a block that is computed again has to drop the same."""
    _drawn.seed = seed
    try:
        yield
    finally:
        _drawn.seed = None


def _of_seen(dense, X, seen):
    """dense(X) for X (B, K, in), zeros where `seen` (B or 1, K) is False: rows that are not seen are not projected."""
    seen = tf.broadcast_to(seen, tf.shape(X)[:2])  # (B, K)
    projected = dense(tf.boolean_mask(X, seen))  # (rows, out)
    return tf.scatter_nd(tf.where(seen), projected, (*tf.unstack(tf.shape(X, tf.int64)[:2]), projected.shape[1]))


def _limited(size, least, most=None):
    """A size of at least and at most so much, as an int if all are known."""
    if most is None:
        return max(least, size) if isinstance(size, int) else tf.maximum(least, size)
    known = isinstance(size, int) and isinstance(most, int)
    return max(least, min(size, most)) if known else tf.clip_by_value(size, least, most)


def _heads(total, num_heads, of_head, num_queries):
    """As `blocks.heads`, also of sizes that are known only in the call."""
    if all(isinstance(size, int) for size in (total, of_head, num_queries)):
        return blocks.heads(total, num_heads, of_head * num_queries)
    most = tf.maximum(1, blocks.SCORES // of_head // tf.maximum(1, num_queries))
    samples = tf.minimum(most // num_heads, total // num_heads)
    divisors = [part for part in range(1, num_heads + 1) if num_heads % part == 0]
    return tf.where(samples > 0, samples * num_heads, tf.reduce_max(tf.where(divisors <= most, divisors, 1)))


def _padded(queries, keys, values, valid_lens, mask, num_heads, more_heads, more_queries):
    """Arrays of heads (B*H, T, d), lengths, and a mask of four axes, with zeros for more heads and queries."""
    queries = tf.pad(queries, ((0, more_heads), (0, more_queries), (0, 0)))  # (more, more, d)
    keys, values = (tf.pad(X, ((0, more_heads), (0, 0), (0, 0))) for X in (keys, values))  # (more, K, d)
    samples = -(-more_heads // num_heads)
    if valid_lens is not None:
        valid_lens = tf.pad(valid_lens, ((0, samples), (0, more_queries))[: len(valid_lens.shape)])
    if mask is not None:
        sizes = samples, 0, more_queries, 0
        mask = tf.pad(mask, [(0, 0 if known == 1 else size) for known, size in zip(mask.shape, sizes, strict=True)])
    return queries, keys, values, valid_lens, mask


def _whole(mask, *sizes):
    """A mask of four axes whose sizes may be 1 where that is known now alone: others become as large as can be."""
    if mask is None or None not in mask.shape:
        return mask
    return tf.broadcast_to(mask, [1 if known == 1 else size for known, size in zip(mask.shape, sizes, strict=True)])


def _signed(valid_lens, num_keys):
    """Lengths as int64, where those of uint64 may wrap around: these are beyond any number of keys."""
    signed = tf.cast(valid_lens, tf.int64)
    return tf.where(signed < 0, tf.cast(num_keys, tf.int64), signed) if valid_lens.dtype == tf.uint64 else signed


def _parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {name: functools.reduce(getattr, name.split("."), layer) for name in shapes(layer.config)}
