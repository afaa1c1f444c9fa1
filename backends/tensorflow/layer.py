"""Multi-head attention in TensorFlow, with Keras' layers: the lesson, to be read beside those of the other frameworks.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, G heads of keys and values (H unless
they are grouped), D num_hiddens, d width of a query or key head, dv width of a value head.

Inside `tf.function` a size may be unknown until the call: `shape_of(X)` is asked where the others ask `X.shape`.
Keras hands `training` down from the outermost layer that was told; None stays None. Kernels are (in, out).

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention"; Ainslie et al., GQA: Training Generalized Multi-Query
Transformer Models from Multi-Head Checkpoints (2023), for the groups.
"""

import dataclasses
import functools
import math

import keras
import tensorflow as tf

from mha import arguments
from mha.arguments import Hiding
from mha.config import Config, shapes
from mha.positions import Rotary

from .arrays import must_fit, refuse_masks, row, shape_of
from .heads import HeadNorm, positions, rotate, widen

# 1. Masked softmax


def visible_keys(queries, keys, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, window=None):
    """Combine all that hides keys from queries into one array of booleans, True = may attend.

    Of queries (B, Q, any) and keys (B, K, any) only the sizes and the device matter. valid_lens: integers (B,) or
    (B, Q); mask: booleans (Q, K), (B, Q, K) or (B, H, Q, K); score_bias: floats in the mask's shapes, of which -inf
    hides; any may be None. Query i is at position offset + i, an int or integers (B or 1, 1), and key j at j; causal
    hides the keys after a query, and window = (left, right) those further before or after it, None = no bound.
    Returns booleans of four axes that broadcast against (B, H, Q, K), or None if nothing is hidden.
    """
    left, right = window or (None, None)
    if causal or 0 in (queries.shape[1], keys.shape[1]):  # an empty order: without queries no key is seen
        right = 0
    conditions = []
    (B, Q, _), K = shape_of(queries), shape_of(keys)[1]
    each_query = positions(queries, offset)  # (B or 1, Q)
    if each_query.shape[0] != 1:
        must_fit("offset", each_query, B)
    each_query = each_query[:, None, :, None]  # (B or 1, 1, Q, 1)
    each_key = positions(keys)[0]  # (K,)
    if valid_lens is not None:
        must_fit("valid_lens", valid_lens, *(B, Q)[: len(valid_lens.shape)])
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < _signed(per_query, K)[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        conditions.append(four_axes(mask))  # (B, 1 or H, Q, K)
        must_fit("mask", tf.reduce_any(conditions[-1], 1), B, Q, K, or_one=True)
    if score_bias is not None:
        conditions.append(four_axes(score_bias) != -math.inf)  # (B, 1 or H, Q, K)
        must_fit("score_bias", tf.reduce_any(conditions[-1], 1), B, Q, K, or_one=True)
    if left is not None:
        conditions.append(each_key + left >= each_query)  # (B or 1, 1, Q, K)
    if right is not None:
        conditions.append(each_key - right <= each_query)  # (B or 1, 1, Q, K)
    return functools.reduce(tf.logical_and, conditions) if conditions else None


def four_axes(pairs):
    """A mask or bias of pairs, (Q, K), (B, Q, K) or (B, H, Q, K), with all four axes, of which any size may be 1."""
    pairs = pairs[None] if len(pairs.shape) == 2 else pairs  # (B, Q, K) or (B, H, Q, K)
    return pairs[:, None] if len(pairs.shape) == 3 else pairs  # (B, 1 or H, Q, K)


def blank_unused(queries, keys, values, visible):
    """Put zeros for queries that see no key, and for keys and values that no query sees.

    queries (B, Q, any), keys and values (B, K, any), visible broadcasts against (B, Q, K) or is None. A weight of zero
    alone would not keep padding out: 0 * NaN is NaN, in the output and in every gradient.
    """
    must_fit("keys", keys, shape_of(queries)[0])
    must_fit("values", values, *shape_of(keys)[:2])
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


# 2. Attention poolings


class AttentionPooling(keras.layers.Layer):
    """What all attention poolings share: weigh the values by a softmax of scores. Subclasses define the scores."""

    def __init__(self, dropout, softcap=None):
        super().__init__(autocast=False)
        self.dropout, self.softcap = dropout, softcap
        self.dropping = keras.layers.Dropout(dropout, autocast=False)

    def call(self, queries, keys, values, visible=None, score_bias=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d).

        visible and score_bias, which is added to the scores, broadcast against (B, Q, K). Returns the steps by name:
        scores, capped and biased where they are, weights before dropout, all (B, Q, K), and pooled (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, score_bias, training)

    def weigh(self, queries, keys, values, visible=None, score_bias=None, training=None):
        """As a call, of queries, keys and values that are blank already where they are not used."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        steps = {"scores": scores}
        if self.softcap is not None:
            steps["capped"] = scores = cap(scores, self.softcap, visible)  # (B, Q, K)
        if score_bias is not None:
            steps["biased"] = scores = scores + widen(score_bias)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = tf.matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return steps | {"weights": tf.cast(weights, values.dtype), "pooled": tf.cast(pooled, values.dtype)}

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        return self.dropping(weights, training=training)


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(scale * q k^T) v, with scale = 1 / sqrt(d) unless given."""

    def __init__(self, dropout, scale=None, softcap=None):
        super().__init__(dropout, softcap)
        self.scale = scale

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        return tf.matmul(widen(queries), widen(keys), transpose_b=True) * scale  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    def __init__(self, dropout, num_hiddens, query_size, key_size, dtype="float32", softcap=None):
        super().__init__(dropout, softcap)
        self.W_q = dense(query_size, num_hiddens, False, dtype)
        self.W_k = dense(key_size, num_hiddens, False, dtype)
        self.w_v = dense(num_hiddens, 1, False, dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = tf.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)


def pooling(config, dot=DotProductAttention, additive=AdditiveAttention):
    """The attention pooling that a configuration asks for, one of two classes, acting on the split heads."""
    d = config.key_dim
    if config.pooling == "additive":
        return additive(config.dropout, d, d, d, config.dtype, config.softcap)
    return dot(config.dropout, config.scale, config.softcap)


def cap(scores, softcap, visible=None):
    """Scores (B, Q, K) bent so that none is beyond softcap either way; of hidden keys 0, as their own may be NaN."""
    scores = scores if visible is None else tf.where(visible, scores, tf.zeros_like(scores))
    return softcap * tf.tanh(scores / softcap)  # (B, Q, K)


# 3. The transposes


def transpose_qkv(X, num_heads):
    """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
    B, T, width = shape_of(X)
    X = tf.reshape(X, (B, T, num_heads, width // num_heads))  # (B, T, H, d)
    X = tf.transpose(X, (0, 2, 1, 3))  # (B, H, T, d)
    return tf.reshape(X, (B * num_heads, T, width // num_heads))  # (B*H, T, d)


def transpose_output(X, num_heads):
    """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
    BH, T, d = shape_of(X)
    X = tf.reshape(X, (BH // num_heads, num_heads, T, d))  # (B, H, T, d)
    X = tf.transpose(X, (0, 2, 1, 3))  # (B, T, H, d)
    return tf.reshape(X, (BH // num_heads, T, num_heads * d))  # (B, T, H*d)


def repeat_heads(visible, batch_size, num_heads):
    """Give every head of a sample its row of `visible`, in the order of `transpose_qkv`.

    (B or 1, H or 1, Q or 1, K or 1) -> (B*H, Q or 1, K or 1); None stays None.
    """
    if visible is None:
        return None
    _, _, Q, K = shape_of(visible)
    visible = tf.broadcast_to(visible, (batch_size, num_heads, Q, K))  # (B, H, Q, K)
    return tf.reshape(visible, (batch_size * num_heads, Q, K))  # (B*H, Q, K)


def repeat_groups(X, times):
    """Give every head of queries its head of keys, which so many in a row share: (B*G, T, d) -> (B*H, T, d)."""
    return X if times == 1 else tf.repeat(X, times, 0)  # (B*H, T, d)


# 4. The layer


@keras.saving.register_keras_serializable("mha.lesson")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    pooling = staticmethod(pooling)

    def __init__(self, config, **options):
        config = config if isinstance(config, Config) else _config(config)
        super().__init__(autocast=False, **(options | {"dtype": config.dtype}))
        self.config = config
        H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
        self.W_q = dense(config.query_size, H * d, config.bias, config.dtype)
        self.W_k = dense(config.key_size, G * d, config.bias, config.dtype)
        self.W_v = dense(config.value_size, G * dv, config.bias, config.dtype)
        self.W_o = dense(H * dv, config.num_hiddens, config.bias, config.dtype)
        self.attention = self.pooling(config)
        self.attention.built = True  # its parts are
        if config.qk_norm:
            self.q_norm = HeadNorm(config.qk_norm, d, config.qk_norm_eps, config.dtype)
            self.k_norm = HeadNorm(config.qk_norm, d, config.qk_norm_eps, config.dtype)
        self.supports_masking = True  # or Keras warns that `mask` gets lost: it takes every `mask` for its own kind

    def __call__(
        self,
        queries, keys, values, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, head_gates=None,
        training=None, return_weights=False,
    ):  # fmt: skip
        """Refuse what does not fit, before Keras converts it or puts words of its own around the error; then `call`."""
        refuse_masks(keys, values)
        call = valid_lens, mask, score_bias, causal, offset, head_gates, training, return_weights
        hiding, head_gates = arguments.check("tensorflow", self, queries, keys, values, *call)
        return super().__call__(
            queries, keys, values, valid_lens=hiding.valid_lens, mask=hiding.mask, score_bias=hiding.score_bias,
            causal=hiding.causal, offset=row(hiding.offset), head_gates=head_gates,
            training=training, return_weights=return_weights,
        )  # fmt: skip

    def call(
        self,
        queries, keys, values, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, head_gates=None,
        training=None, return_weights=False,
    ):  # fmt: skip
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        score_bias: floats in the mask's shapes, added to the scores, -inf hides; causal: query i sees key j only if
        j <= offset + i; offset: an int or integers (B,); head_gates: (H,) or (B, H) floats that multiply the pooled
        heads; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        offset = offset if isinstance(offset, int) else tf.reshape(offset, (-1, 1))  # (B or 1, 1)
        hiding = Hiding(valid_lens, mask, score_bias, causal, offset, self.config.window)
        return self.attend(queries, keys, values, hiding, head_gates, training, return_weights)  # (B, Q, D)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As a call, of arguments that are checked; all attention weights are kept."""
        (B, Q, _), K, H = shape_of(queries), shape_of(keys)[1], self.config.num_heads
        visible = visible_keys(queries, keys, *hiding)  # (B or 1, H or 1, Q or 1, K)
        in_any_head = None if visible is None else tf.reduce_any(visible, 1)  # (B, Q, K)
        queries, keys, values = blank_unused(queries, keys, values, in_any_head)
        steps = self.steps(queries, keys, values, visible, hiding.score_bias, hiding.offset, head_gates, training)
        weights = tf.reshape(steps["weights"], (B, H, Q, K))  # (B, H, Q, K)
        return (steps["output"], weights) if return_weights else steps["output"]  # (B, Q, D)

    def steps(self, queries, keys, values, visible=None, score_bias=None, offset=0, head_gates=None, training=None):
        """Every step from inputs to output, by name and in order; visible broadcasts against (B, H, Q, K)."""
        B, H, G = shape_of(queries)[0], self.config.num_heads, self.config.num_key_value_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        steps = {"W_q": W_q, "W_k": W_k, "W_v": W_v, "split_q": split_q, "split_k": split_k, "split_v": split_v}
        q, k, turned = self.turn(split_q, split_k, offset)
        steps |= turned
        k, v = repeat_groups(k, H // G), repeat_groups(split_v, H // G)  # (B*H, K, d)
        score_bias = None if score_bias is None else repeat_heads(four_axes(score_bias), B, H)  # (B*H, Q, K)
        steps |= self.attention(q, k, v, repeat_heads(visible, B, H), score_bias, training=training)
        pooled = steps["pooled"]  # (B*H, Q, dv)
        if head_gates is not None:
            must_fit("head_gates", head_gates, *(B, H)[-len(head_gates.shape) :])
            gates = tf.reshape(tf.broadcast_to(head_gates, (B, H)), (B * H, 1, 1))  # (B*H, 1, 1)
            steps["head_gated"] = pooled = pooled * gates  # (B*H, Q, dv)
        merged = transpose_output(pooled, H)  # (B, Q, H*dv)
        output = self.W_o(merged)  # (B, Q, D)
        return steps | {"merged": merged, "output": output}

    def turn(self, q, k, offset=0):
        """Heads of queries (B*H, Q, d) and of keys (B*G, K, d) as they are compared: normed and rotated, if at all.

        Returns both, and a dict of these steps.
        """
        config, steps = self.config, {}
        if config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)  # (B*H, T, d)
            steps |= {"norm_q": q, "norm_k": k}
        if config.rotary:
            q = rotate(q, positions(q, offset), config.rotary, config.num_heads)  # (B*H, Q, d)
            k = rotate(k, positions(k), config.rotary, config.num_key_value_heads)  # (B*G, K, d)
            steps |= {"rotate_q": q, "rotate_k": k}
        return q, k, steps

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


def attend(layer, queries, keys, values, *call, **options):
    """Call the layer, with its own arguments in its framework's own way."""
    return layer(queries, keys, values, *call, **options)


def vjp(layer, queries, keys, values, *call, training=False, **options):
    """The output (B, Q, D) of a call, and what pulls gradients back through it, arguments as for the layer.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, score_bias and head_gates where they are, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    checked = arguments.check("tensorflow", layer, queries, keys, values, *call, **options)
    given = {"queries": queries, "keys": keys, "values": values}
    given |= {"score_bias": checked.hiding.score_bias, "head_gates": checked.head_gates}
    inputs = {name: tf.identity(X) for name, X in given.items() if X is not None}
    parameters = {name: X.value for name, X in _parameters(layer).items()}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([*inputs.values(), *parameters.values()])
        queries, keys, values = (inputs[name] for name in ("queries", "keys", "values"))
        output = attend(layer, queries, keys, values, checked.replaced(inputs), training=training)

    def pull_back(cotangent):
        by_all = tape.gradient(output, [*inputs.values(), *parameters.values()], cotangent)
        return dict(zip([*inputs, *parameters], by_all, strict=True))

    return output, pull_back


def gradients(layer, queries, keys, values, *call, cotangent=None, **options):
    """The gradients of a call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, *call, **options)
    return pull_back(tf.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, *call, **options):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    hiding, head_gates = arguments.check("tensorflow", layer, queries, keys, values, *call, **options)
    visible = visible_keys(queries, keys, *hiding)
    return layer.steps(queries, keys, values, visible, hiding.score_bias, hiding.offset, head_gates, training=False)


def _signed(valid_lens, num_keys):
    """Lengths as int64, where those of uint64 may wrap around: these are beyond any number of keys."""
    signed = tf.cast(valid_lens, tf.int64)
    return tf.where(signed < 0, tf.cast(num_keys, tf.int64), signed) if valid_lens.dtype == tf.uint64 else signed


def _parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {name: functools.reduce(getattr, name.split("."), layer) for name in shapes(layer.config)}


def _config(told):
    """The configuration of which `get_config` told."""
    rotary = told.get("rotary")
    return Config(**told | {"rotary": Rotary(**rotary) if isinstance(rotary, dict) else rotary})
