"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A piece is heads of one sample, or whole samples, or queries of one head, that are attended
together.
"""

import functools

import keras
import tensorflow as tf

from mha import arguments, blocks
from mha.arguments import Checked
from mha.config import shapes

from . import compiled
from . import layer as lesson
from .arrays import must_fit, refuse_masks
from .compiled import telling, told
from .layer import blank, repeat_heads, transpose_output, transpose_qkv, visible_keys

# 1. Which queries and keys count


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = tf.reduce_any(blocks.part(None, mask)[1], 1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal=causal)[:, 0]  # (B, Q, K)
        return tf.reduce_any(visible, 2), tf.reduce_any(visible, 1)
    Q, K = tf.unstack(tf.stack([tf.shape(queries, tf.int64)[1], tf.shape(keys, tf.int64)[1]]))
    limits = tf.fill((1, 1), K)  # (1, 1)
    if valid_lens is not None:
        must_fit("valid_lens", valid_lens, *tf.unstack(tf.shape(queries)[:2])[: len(valid_lens.shape)])
        limits = lesson._signed(valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens, K)  # (B, 1 or Q)
    if causal:
        limits = tf.minimum(limits, tf.range(1, Q + 1))  # (B, Q)
    return limits > 0, tf.range(K) < tf.reduce_max(limits, 1)[:, None]


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def drop(self, weights, training):
        """As the lesson's, from the seed that was told: a piece that is computed again has to drop the same."""
        if training and self.dropout and told.seed is not None:
            return tf.nn.experimental.stateless_dropout(weights, self.dropout, seed=told.seed)
        return super().drop(weights, training)

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        (BH, Q, d), (_, K, _), dv = keras.ops.shape(queries), keras.ops.shape(keys), values.shape[2]
        of_head = _limited(self.scores_of_query(queries[:1], keys[:1]), 1)
        if _fits(BH * Q * of_head):
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
        seed = told.seed
        if seed is None:
            seed = self.dropping.seed_generator.next() if training and self.dropout else tf.zeros(2, tf.int32)
        of_sample = isinstance(heads, int) and heads <= num_heads
        one_length = of_sample and valid_lens is not None and len(valid_lens.shape) == 1

        @_recomputed
        def pool_some(piece, queries, keys, values, *weights):
            head, first = piece // count * heads, piece % count * size
            samples = slice(head // num_heads, (head + heads - 1) // num_heads + 1)
            lens, seen = blocks.part(valid_lens, mask, samples, slice(first, first + size))
            if lens is not None:
                lens = tf.cast(tf.minimum(lesson._signed(lens, K), tf.cast(K, tf.int64)), tf.int32)
            longest = K if lens is None else tf.reduce_max(lens)
            last = _limited(tf.minimum(longest, first + size) if causal else longest, 1)
            if one_length:  # which the cut at `last` keeps, all by itself
                lens = None
            if seen is not None and seen.shape[1] != 1:
                seen = seen[:, head % num_heads :][:, :heads]  # all of them, where the piece has whole samples
            hiding = *blocks.part(lens, seen, keys=slice(last)), causal, first
            seed_of_piece = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int32), piece)
            with telling(seed=seed_of_piece), keras.StatelessScope(zip(self.weights, weights, strict=True)):
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
        visible = visible_keys(one_head, keys, valid_lens, mask, causal=causal, offset=first)
        visible = repeat_heads(visible, keras.ops.shape(queries)[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training=training)["pooled"]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return keras.ops.shape(queries)[0] * keras.ops.shape(keys)[1]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


POOLINGS = {"dot": DotProductAttention, "additive": AdditiveAttention}
pooling = functools.partial(lesson.pooling, **POOLINGS)


# 3. The layer


@keras.saving.register_keras_serializable("mha")
class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def __call__(
        self,
        queries, keys, values, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, head_gates=None,
        training=None, return_weights=False,
    ):  # fmt: skip
        """As the lesson's; without what Keras does around `call` where that is compiled and needs nothing of it."""
        refuse_masks(keys, values)
        call = valid_lens, mask, score_bias, causal, offset, head_gates, training, return_weights
        inputs = queries, keys, values
        checked = arguments.check("tensorflow", self, *inputs, *call)
        variables = _compiles(self, inputs, checked) if self.built and training is not None else None
        if variables is not None:
            return _attend(self, variables, inputs, checked, training, return_weights)  # (B, Q, D)
        return super().__call__(*inputs, checked, training=training, return_weights=return_weights)  # (B, Q, D)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, compiled where it runs by itself, and by `output` where that is enough."""
        inputs, checked = (queries, keys, values), Checked(hiding, head_gates)
        variables = _compiles(self, inputs, checked)
        if variables is not None:
            return _attend(self, variables, inputs, checked, training, return_weights)  # (B, Q, D)
        if return_weights or self.needs_lesson(queries, keys, hiding, head_gates):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        call = hiding.valid_lens, hiding.mask, hiding.causal, training
        return self.output(queries, keys, values, *call)  # (B, Q, D)

    def needs_lesson(self, queries, keys, hiding, head_gates):
        """Whether an array is empty, an option is known to the lesson alone, or the pooling has been replaced."""
        empty = 0 in (*queries.shape[:2], keys.shape[1])  # None where it is learnt only in a call
        plain = blocks.is_plain(self.config, hiding, head_gates)
        return empty or not plain or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        (B, Q, _), K, H = keras.ops.shape(queries), keras.ops.shape(keys)[1], self.config.num_heads
        must_fit("keys", keys, B)
        must_fit("values", values, B, K)
        mask = _whole(blocks.part(None, mask)[1], B, H, Q, K)
        known = all(isinstance(size, int) for size in (B, Q, K))
        last = K if not causal else min(Q, K) if known else tf.minimum(Q, K)
        keys, values = keys[:, :last], values[:, :last]
        hiding = *blocks.part(valid_lens, mask, keys=slice(last)), causal
        K = last
        if mask is not None or valid_lens is not None:
            sees, seen = used(queries, keys, *hiding)  # (B, Q), (B, K)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        if valid_lens is None or _fits(B * H * Q * K):
            W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        else:
            W_q, W_k, W_v = self.W_q(queries), _of_seen(self.W_k, keys, seen), _of_seen(self.W_v, values, seen)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        pooled = self.attention.pool(split_q, split_k, split_v, H, *hiding, training)  # (B*H, Q, dv)
        return self.W_o(transpose_output(pooled, H))  # (B, Q, D)


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)


def vjp(layer, queries, keys, values, *call, training=False, **options):
    """As the lesson's, compiled; what pulls gradients back makes the call once more, as one function of both."""
    inputs = queries, keys, values
    checked = arguments.check("tensorflow", layer, *inputs, *call, **options)
    variables = _compiles(layer, inputs, checked)
    if variables is None:
        return lesson.vjp(layer, *inputs, checked, training=training)
    seed = compiled.drawn_seed(layer) if training else None
    same_call = layer, variables, [tf.convert_to_tensor(X.value) for X in variables], seed, inputs, checked
    output = compiled.prepare(lesson.attend, *same_call, training=seed is not None)()
    pulled = compiled.prepare(_pulled, *same_call, output, training=seed is not None)
    return output, lambda cotangent: _in_order(layer, pulled(cotangent))


def gradients(layer, queries, keys, values, *call, cotangent=None, **options):
    """As the lesson's, compiled."""
    inputs = queries, keys, values
    checked = arguments.check("tensorflow", layer, *inputs, *call, **options)
    variables = _compiles(layer, inputs, checked)
    if variables is None:
        return lesson.gradients(layer, *inputs, checked, cotangent=cotangent)
    return _in_order(layer, compiled.run(lesson.gradients, layer, variables, inputs, checked, cotangent))


def trace(layer, queries, keys, values, *call, **options):
    """As the lesson's, compiled."""
    inputs = queries, keys, values
    checked = arguments.check("tensorflow", layer, *inputs, *call, **options)
    variables = _compiles(layer, inputs, checked)
    if variables is None:
        return lesson.trace(layer, *inputs, checked)
    return compiled.run(lesson.trace, layer, variables, inputs, checked)


def _pulled(layer, queries, keys, values, checked, training, cotangent):
    """The gradients of a call for a cotangent."""
    return lesson.vjp(layer, queries, keys, values, checked, training=training)[1](cotangent)


def _in_order(layer, found):
    """Gradients by name, which a compiled function gives in the names' order."""
    names = "queries", "keys", "values", "score_bias", "head_gates", *shapes(layer.config)
    return {name: found[name] for name in names if name in found}


def _compiles(layer, inputs, checked):
    """The variables of a layer that runs compiled on these arrays; None if it does not, as of a subclass."""
    if type(layer) is not MultiHeadAttention:
        return None
    return compiled.variables(layer, POOLINGS, *inputs, *checked.arrays())


def _attend(layer, variables, inputs, checked, training, return_weights):
    """A call of the layer, compiled."""
    switches = {"training": bool(training and layer.config.dropout), "return_weights": return_weights}
    return compiled.run(lesson.attend, layer, variables, inputs, checked, **switches)


def _recomputed(function):
    """The function, of which the backward pass keeps nothing but the inputs, and computes the rest again.

    `tf.recompute_grad` does too, but raises under a persistent tape, which asks for second derivatives in advance.
    """

    @tf.custom_gradient
    def call(*inputs):
        def backward(cotangent):
            with tf.control_dependencies([cotangent]):  # or TensorFlow may keep what it has
                again = [tf.identity(X) for X in inputs]
            with tf.GradientTape() as tape:
                tape.watch([X for X in again if X.dtype.is_floating])
                result = function(*again)
            return tape.gradient(result, again, cotangent)

        return function(*inputs), backward

    return call


def _fits(scores):
    """Whether so many scores are one piece; the caller may have told it of those that only the call itself knows."""
    return blocks.fits(scores) if isinstance(scores, int) else told.fits


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
