"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a piece is a block of some heads, or of all heads
of some samples.
"""

import functools

import keras
import tensorflow as tf

from mha import arguments, blocks, checks
from mha.arguments import Checked
from mha.config import shapes

from . import compiled, pieces
from . import layer as lesson
from .arrays import must_fit, refuse_masks, shape_of
from .compiled import telling, told
from .heads import positions
from .layer import blank, four_axes, repeat_heads, transpose_output, transpose_qkv, visible_keys
from .pieces import fits, limited, of_seen, padded, shared

# 1. Which queries and keys count


def used(queries, keys, hiding):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; hiding: of the call.

    It takes no array of all pairs where each query sees the keys from a first to a last one, and no key between those
    of all queries is left out.
    """
    valid_lens, (left, right) = hiding.valid_lens, blocks.reach(hiding)
    per_query = valid_lens is not None and len(valid_lens.shape) == 2
    if hiding.mask is not None or hiding.score_bias is not None or (per_query and left is not None):
        visible = tf.reduce_any(visible_keys(queries, keys, *hiding), 1)  # (B, Q, K)
        return tf.reduce_any(visible, 2), tf.reduce_any(visible, 1)
    each_query, each_key = positions(queries, hiding.offset), positions(keys)  # (B or 1, Q), (1, K)
    K = tf.cast(shape_of(keys)[1], tf.int64)
    first, last = tf.zeros_like(each_query), tf.fill(tf.shape(each_query), K)  # (B or 1, Q)
    if left is not None:
        first = tf.maximum(first, each_query - left)
    if right is not None:
        last = tf.minimum(last, each_query + right + 1)
    if valid_lens is not None:
        last = tf.minimum(last, valid_lens if per_query else valid_lens[:, None])  # (B, Q)
    sees = first < last  # (B or 1, Q)
    first, last = tf.where(sees, first, K), tf.where(sees, last, 0)
    first, last = tf.reduce_min(first, 1)[:, None], tf.reduce_max(last, 1)[:, None]  # (B or 1, 1)
    return sees, (first <= each_key) & (each_key < last)


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def drop(self, weights, training):
        """As the lesson's, from the seed that was told: a piece that is computed again has to drop the same."""
        if training and self.dropout and told.seed is not None:
            return tf.nn.experimental.stateless_dropout(weights, self.dropout, seed=told.seed)
        return super().drop(weights, training)

    def pool(self, queries, keys, values, num_heads, hiding, training):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        hiding: of the call. No weights are kept: blocks of queries follow each other, and are computed once more for
        their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window
        hide from all of it.
        """
        (BH, Q, d), (BG, K, _), dv = shape_of(queries), shape_of(keys), values.shape[2]
        if fits(self.scores_of_pair(queries) * Q * K):
            return self.pool_block(queries, keys, values, num_heads, hiding, training)
        # Pieces are some heads of keys of one sample, or of whole samples, and a block of queries; all of one size.
        n = shared(queries, keys)
        G, of_pair = num_heads // n, limited(self.scores_of_pair(queries[:1]), 1) * n
        size = pieces.block(hiding, Q, K, of_pair)
        reach = blocks.reach(hiding)
        width = K if None in reach else limited(size + min(sum(reach), checks.FURTHEST), 1, K)  # keys of a block
        heads = pieces.heads(BG, G, num_heads, of_pair * size * width)
        rows, parts = heads * n, limited(G // heads, 1)  # heads of queries in a piece, groups of heads of a sample
        groups, count = limited(-(-BG // heads), 1), limited(-(-Q // size), 1)
        more, late = groups * heads - BG, count * size - Q  # heads of keys and queries, so that all pieces are full
        queries, chunk = padded(queries, more * n, late), None if None in reach else size
        queries = tf.reshape(queries, (groups, rows, count, size, d))  # (groups, rows, blocks, size, d)
        queries = tf.transpose(queries, (0, 2, 1, 3, 4))  # (groups, blocks, rows, size, d)
        queries = tf.reshape(queries, (groups * count, rows, size, d))  # (pieces, rows, size, d)
        chunks = [pieces.chunked(padded(X, more), groups, heads, chunk) for X in (keys, values)]
        offset = tf.zeros((1, 1), tf.int64) + hiding.offset  # (B or 1, 1)
        numbers = hiding._replace(
            mask=None, score_bias=None, valid_lens=padded(hiding.valid_lens, more // G, late),
            offset=offset if offset.shape[0] == 1 else padded(offset, more // G),
        )  # fmt: skip
        sizes, counts = (limited(heads // G, 1), limited(rows, 1, num_heads), size), (groups // parts, parts, count)
        pairs = {name: getattr(hiding, name) for name in ("mask", "score_bias")}
        pairs = {name: pieces.listed(X, sizes, counts) for name, X in pairs.items() if X is not None}
        seed = told.seed
        if seed is None:
            seed = self.dropping.seed_generator.next() if training and self.dropout else tf.zeros(2, tf.int32)
        of_sample = isinstance(heads, int) and isinstance(G, int) and heads <= G
        one_length = of_sample and hiding.valid_lens is not None and len(hiding.valid_lens.shape) == 1

        def cut_of(piece):  # what hides keys in it, and the keys that it needs
            head, first = piece // count * heads, piece % count * size
            samples = pieces.cut(head // G, (head + heads - 1) // G + 1)
            cut = blocks.part(numbers, samples, pieces.cut(first, first + size))
            return cut, pieces.span(cut, size, K)

        @pieces.recomputed
        def pool_some(piece, queries, keys, values, *others):
            cut, seen = cut_of(piece)
            start = pieces.start(seen, chunk)  # the first of the keys that came
            longest = seen.stop if cut.valid_lens is None else tf.reduce_max(cut.valid_lens)
            sees, seen = longest > seen.start, slice(seen.start, limited(longest, seen.start + 1, seen.stop))
            if one_length:  # which the cut of the keys keeps, all by itself
                cut = cut._replace(valid_lens=None)
            cut = blocks.part(cut._replace(**dict(zip(pairs, others, strict=False))), keys=seen)
            seed_of_piece = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int32), piece)
            weights = zip(self.weights, others[len(pairs) :], strict=True)
            with telling(seed=seed_of_piece), keras.StatelessScope(weights):
                inputs = queries, *(X[:, seen.start - start : seen.stop - start] for X in (keys, values))
                pooled = self.pool_block(*inputs, limited(rows, 1, num_heads), cut, training)  # (rows, size, dv)
            return tf.where(sees, pooled, tf.zeros_like(pooled)) if one_length else pooled

        own = [X.value for X in self.weights]  # given by hand, as variables in a loop get no gradient

        def pool_piece(inputs):
            group, block = inputs[0] // count, inputs[0] % count
            others = [of_piece(group, block) for of_piece in pairs.values()]
            _, seen = cut_of(inputs[0])
            return pool_some(*inputs, *(of_piece(group, seen) for of_piece in chunks), *others, *own)

        pooled = tf.map_fn(
            pool_piece,
            (tf.range(groups * count), queries),
            fn_output_signature=values.dtype,
            parallel_iterations=1,
        )  # (pieces, rows, size, dv)
        pooled = tf.reshape(pooled, (groups, count, rows, size, dv))  # (groups, blocks, rows, size, dv)
        pooled = tf.transpose(pooled, (0, 2, 1, 3, 4))  # (groups, rows, blocks, size, dv)
        return tf.reshape(pooled, (groups * rows, count * size, dv))[:BH, :Q]  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As `pool`, for the queries of one block."""
        visible, score_bias = by_group(queries, keys, num_heads, hiding)
        (BH, Q, d), BG, dv = shape_of(queries), shape_of(keys)[0], values.shape[2]
        folded = tf.reshape(queries, (BG, shared(queries, keys) * Q, d))  # (B*G, H/G*Q, d)
        pooled = self.weigh(folded, keys, values, visible, score_bias, training)["pooled"]  # (B*G, H/G*Q, dv)
        return tf.reshape(pooled, (BH, Q, dv))  # (B*H, Q, dv)

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return shape_of(queries)[0]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


POOLINGS = {"dot": DotProductAttention, "additive": AdditiveAttention}
pooling = functools.partial(lesson.pooling, **POOLINGS)


def by_group(queries, keys, num_heads, hiding):
    """What is visible and the bias for heads of keys (B*G, K, d), with the queries (B*H, Q, d) that share one in a row.

    Both broadcast against (B*G, H/G*Q, K), or are None.
    """
    n, BG, Q = shared(queries, keys), shape_of(keys)[0], shape_of(queries)[1]
    G = num_heads // n
    B = BG // G

    def folded(pairs):
        if pairs is None or pairs.shape[1] == pairs.shape[2] == 1:
            return repeat_heads(pairs, B, G)  # (B*G, 1, K)
        pairs = tf.broadcast_to(pairs, (B, num_heads, Q, shape_of(pairs)[3]))  # (B, H, Q, K or 1)
        return tf.reshape(pairs, (BG, n * Q, shape_of(pairs)[3]))  # (B*G, H/G*Q, K or 1)

    score_bias = None if hiding.score_bias is None else four_axes(hiding.score_bias)
    one_head = queries[::num_heads]  # of each sample: sizes that are learnt late are compared
    one_head = tf.ensure_shape(one_head, (None, *queries.shape[1:]))  # which a late stride has lost
    return folded(visible_keys(one_head, keys, *hiding)), folded(score_bias)


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
        if return_weights or self.needs_lesson(queries, keys):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        return self.output(queries, keys, values, hiding, head_gates, training)  # (B, Q, D)

    def needs_lesson(self, queries, keys):
        """Whether an array is empty or the pooling has been replaced."""
        empty = 0 in (*queries.shape[:2], keys.shape[1])  # None where it is learnt only in a call
        return empty or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, hiding, head_gates, training):
        """The output (B, Q, D) alone, arguments as of `attend`: no weights are kept, keys that nobody sees left out.

        The steps are those of `steps`, and the pooling works on blocks.
        """
        (B, Q, _), K, config = shape_of(queries), shape_of(keys)[1], self.config
        H, G = config.num_heads, config.num_key_value_heads
        must_fit("keys", keys, B)
        must_fit("values", values, B, K)
        hiding = pieces.whole(hiding, B, H, Q, K)
        span = pieces.span(hiding, Q, K)
        keys, values, hiding = keys[:, span], values[:, span], blocks.part(hiding, keys=span)
        K = shape_of(keys)[1]
        if not pieces.all_used(hiding, Q, K):
            sees, seen = used(queries, keys, hiding)  # (B, Q), (B, K)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        if hiding.valid_lens is None or fits(B * H * Q * K):
            W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        else:
            W_q, W_k, W_v = self.W_q(queries), of_seen(self.W_k, keys, seen), of_seen(self.W_v, values, seen)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        q, k, _ = self.turn(split_q, split_k, hiding.offset)
        pooled = self.attention.pool(q, k, split_v, H, hiding, training)  # (B*H, Q, dv)
        if head_gates is not None:
            must_fit("head_gates", head_gates, *(B, H)[-len(head_gates.shape) :])
            pooled = pooled * tf.reshape(tf.broadcast_to(head_gates, (B, H)), (B * H, 1, 1))  # (B*H, Q, dv)
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
