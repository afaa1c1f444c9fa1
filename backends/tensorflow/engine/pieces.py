"""Compute a call that keeps no attention weights in pieces, where sizes may be known only in the call.

Letters as in the chapters; n stands for H/G, the heads of queries that share a head of keys. A piece is queries of some
heads of keys, or of all heads of some samples, that are attended together. Sizes that are known when the code is traced
stay ints.
"""

import keras
import tensorflow as tf

from mha.core.call import ALL, OF_PAIRS, ROWS
from mha.core.engine import blocks
from mha.core.engine.visible_range import reach, span
from mha.core.options import checks

from ..arrays import shape_of
from ..hiding import four_axes, places, signed
from .compiled import trace_with, tracing
from .operations import OPERATIONS, larger, smaller

FEW = 2  # times as many queries as elsewhere are in a block that packed texts make small: each costs a round of a loop
NARROW = 4  # times fewer keys than all are those of such a block, as a rule


def fits(scores):
    """Whether this number of scores is one piece, also where only the tracer of the code knows its sizes."""
    return blocks.fits(scores) if isinstance(scores, int) else tracing.fits


def whole(call, sizes):
    """The call with numbers in int32, and pairs of four axes, so that it can be cut anywhere; sizes: (B, H, Q, K).

    Segments, and positions beside them, are (B or 1, T).
    A size of pairs that may be 1, but is not known to be, is made whole.
    """
    lengths, offset = call.valid_lens, call.offset
    if lengths is not None and lengths.dtype != tf.int32:
        lengths = tf.cast(tf.clip_by_value(signed(lengths, sizes[3]), 0, tf.int32.max), tf.int32)
    if not isinstance(offset, int) and offset.dtype != tf.int32:
        offset = tf.cast(tf.clip_by_value(tf.cast(offset, tf.int64), -checks.FURTHEST, checks.FURTHEST), tf.int32)

    def fill_axes(pairs):
        pairs = four_axes(pairs)  # (B, 1 or H, Q, K)
        if None not in pairs.shape:
            return pairs
        known = zip(pairs.shape, sizes, strict=True)
        return tf.broadcast_to(pairs, [1 if size == 1 else full for size, full in known])  # (B, H, Q, K)

    given = call.of_tokens() if call.is_packed() else {}
    tokens = {name: tf.cast(places(None, X), tf.int32) for name, X in given.items()}  # (B or 1, T)
    pairs = {name: fill_axes(X) for name, X in call.pairs().items()}
    return call._replace(valid_lens=lengths, offset=offset, **pairs, **tokens)


def pool_pieces(pooling, queries, keys, values, call):
    """The pooled values (B, H, Q, dv) of an `AttentionPooling`, piece after piece; arguments as of its `pool`."""
    (B, H, Q, d), (_, G, K, _), dv = shape_of(queries), shape_of(keys), values.shape[3]
    n, in_window, packed = H // G, None not in reach(call), call.is_packed()
    # Pieces are some heads of keys of one sample, or of whole samples, and a block of queries; all of one size.
    of_pair = pooling.scores_of_pair(queries) // G
    size = smaller(Q, FEW * blocks.LEAST) if packed else blocks.block(call, Q, K, of_pair, of=OPERATIONS)
    width = larger(1, smaller(size + min(sum(reach(call)), checks.FURTHEST), K)) if in_window else K  # keys of a block
    width = -(-K // NARROW) if packed else width
    heads = blocks.heads(B * G, G, of_pair * size * width, OPERATIONS)
    rows, parts = heads * n, larger(1, G // heads)  # heads of queries in a piece, groups of heads of a sample
    groups, count = larger(1, -(-B * G // heads)), larger(1, -(-Q // size))
    more, late = groups * heads - B * G, count * size - Q  # heads of keys and queries, so that all pieces are full
    chunk = size if in_window or packed else None
    queries = pad(tf.reshape(queries, (B * H, Q, d)), more * n, late)  # (B*H + more, Q + late, d)
    queries = tf.reshape(queries, (groups, rows, count, size, d))  # (groups, rows, blocks, size, d)
    queries = tf.transpose(queries, (0, 2, 1, 3, 4))  # (groups, blocks, rows, size, d)
    queries = tf.reshape(queries, (groups * count, rows, size, d))  # (pieces, rows, size, d)
    flat = [tf.reshape(X, (B * G, K, width)) for X, width in ((keys, d), (values, dv))]  # (B*G, K, d or dv)
    chunks = [chunks_of(pad(X, more), groups, heads, chunk) for X in flat]
    of_one = isinstance(call.offset, int) or tuple(call.offset.shape) in ((), (1, 1))  # () where keys were cut off
    numbers = call._replace(
        **dict.fromkeys(OF_PAIRS), valid_lens=pad(call.valid_lens, more // G, late),
        offset=call.offset if of_one else pad(call.offset, more // G), **tokens_of(call, more // G, late),
    ).with_plan(known=None)  # fmt: skip
    ends = extents(*call.segment_ids().values()) if packed else []
    ends = [pad(X, 0 if X.shape[0] == 1 else more // G, late) for X in ends]
    sizes, counts = (larger(1, heads // G), smaller(rows, H), size), (groups // parts, parts, count)
    pairs = {name: pairs_of(X, sizes, counts) for name, X in call.of_scores().items()}
    seed = tracing.seed
    if seed is None:
        seed = pooling.dropping.seed_generator.next() if call.training and pooling.dropout else tf.zeros(2, tf.int32)
    of_sample = isinstance(heads, int) and heads <= G
    one_length = of_sample and call.valid_lens is not None and len(call.valid_lens.shape) == 1

    def cut_of(piece):  # what hides keys in it, and the keys that it needs
        head, first = piece // count * heads, piece % count * size
        samples = slice(head // G, (head + heads - 1) // G + 1)
        cut = numbers.part(samples, queries=slice(first, first + size))
        seen = span(cut, size, K, OPERATIONS)
        return cut, narrow_to_segments(seen, ends, samples, slice(first, first + size), K) if packed else seen

    @recompute
    def pool_some(piece, queries, keys, values, *others):
        cut, seen = cut_of(piece)
        start = start_of(seen, chunk)  # the first of the keys that came
        longest = seen.stop if cut.valid_lens is None else tf.reduce_max(cut.valid_lens)
        sees, seen = longest > seen.start, slice(seen.start, larger(seen.start + 1, smaller(longest, seen.stop)))
        if one_length:  # which the cut of the keys keeps, all by itself
            cut = cut._replace(valid_lens=None)
        cut = cut.with_arrays(dict(zip(pairs, others, strict=False))).part(keys=seen)
        seed_of_piece = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int32), piece)
        weights = zip(pooling.weights, others[len(pairs) :], strict=True)
        m, own = sizes[0], smaller(heads, G)
        queries = tf.reshape(queries, (m, own * n, size, d))  # (samples, heads, size, d)
        cuts = (X[:, seen.start - start : seen.stop - start] for X in (keys, values))  # (heads, K, d)
        k, v = (tf.reshape(X, (m, own, *shape_of(X)[1:])) for X in cuts)  # (samples, heads, K, d)
        with trace_with(seed=seed_of_piece), keras.StatelessScope(weights):
            pooled = pooling.pool_block(queries, k, v, n, cut)  # (samples, heads, size, dv)
        pooled = tf.reshape(pooled, (rows, size, dv))  # (rows, size, dv)
        return tf.where(sees, pooled, tf.zeros_like(pooled)) if one_length else pooled

    own = [X.value for X in pooling.weights]  # given by hand, as variables in a loop get no gradient

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
    pooled = tf.reshape(pooled, (groups * rows, count * size, dv))[: B * H, :Q]  # (B*H, Q, dv)
    return tf.reshape(pooled, (B, H, Q, dv))  # (B, H, Q, dv)


def pad(X, *more):
    """X with so many zeros more after those of its first axes; None stays None."""
    if X is None:
        return None
    return tf.pad(X, [(0, size) for size in (*more, *len(X.shape) * [0])][: len(X.shape)])


def tokens_of(call, more, late):
    """The numbers of a call's tokens, as of `whole`, with so many zeros more: samples, and queries."""
    found = {}
    for name, X in (call.segment_ids() | call.position_ids()).items() if call.is_packed() else ():
        if X is not None:
            found[name] = pad(X, 0 if X.shape[0] == 1 else more, late if "Q" in ROWS[name].axes else 0)
    return found


def extents(own, others):
    """How many keys are behind the first of each query's segment, this one too, and the place behind the last.

    (B or 1, Q) both, and 0 where a query has none; own (B or 1, Q), others (B or 1, K): the texts of queries and keys.
    """
    (rows, Q), (more, K) = shape_of(own), shape_of(others)
    rows = larger(rows, more)
    own, others = tf.broadcast_to(own, (rows, Q)), tf.broadcast_to(others, (rows, K))
    order = tf.argsort(others, stable=True)  # (B or 1, K)
    ranked = tf.gather(others, order, batch_dims=1)
    left, right = (tf.searchsorted(ranked, own, side=side) for side in ("left", "right"))  # (B or 1, Q)
    sees = (left < right) & (own >= 0)
    first = K - tf.gather(order, tf.minimum(left, K - 1), batch_dims=1)
    last = 1 + tf.gather(order, tf.maximum(right - 1, 0), batch_dims=1)
    return [tf.where(sees, X, 0) for X in (first, last)]


def narrow_to_segments(seen, ends, samples, queries, num_keys):
    """Narrow a slice of keys to those from the first to the last of the segments of some queries, at least one."""
    behind, last = (tf.reduce_max(X[ALL if X.shape[0] == 1 else samples, queries]) for X in ends)
    start = smaller(larger(seen.start, num_keys - behind), num_keys - 1)
    return slice(start, larger(start + 1, smaller(seen.stop, last)))


def chunks_of(X, groups, heads, size):
    """Turn keys or values (groups*heads, K, d) into a function of a group and a slice of keys: it gives a piece.

    size: of a chunk; all chunks that have some of these keys are given, (heads, chunks*size, d), and gradients add up
    chunk by chunk, in proportion to what was given. None = all keys are given, not as a copy.
    """
    (_, K, _), d = shape_of(X), X.shape[2]
    length = K if size is None else size
    count = larger(1, -(-K // larger(1, length)))
    X = pad(X, 0, count * length - K)  # (groups*heads, count*size, d)
    X = tf.reshape(X, (groups, heads, count, length, d))  # (groups, heads, count, size, d)
    X = tf.transpose(X, (0, 2, 1, 3, 4))  # (groups, count, heads, size, d)
    X = tf.reshape(X, (groups * count, heads, length, d))  # (groups*count, heads, size, d)
    array = tf.TensorArray(X.dtype, groups * count, clear_after_read=False).unstack(X)

    def of_piece(group, seen):
        if size is None:
            return array.read(group)  # (heads, K, d)
        first, last = start_of(seen, size) // size, -(-seen.stop // size)
        found = array.gather(group * count + tf.range(first, last))  # (chunks, heads, size, d)
        found = tf.transpose(found, (1, 0, 2, 3))  # (heads, chunks, size, d)
        return tf.reshape(found, (heads, (last - first) * size, d))  # (heads, chunks*size, d)

    return of_piece


def start_of(seen, size):
    """The first of the keys that `chunks_of` gives for a slice of them, in chunks of this size."""
    return 0 if size is None else seen.start // size * size


def pairs_of(pairs, sizes, counts):
    """Turn a mask or bias of four axes into a function of a group of heads and a block: it gives a piece.

    sizes: m samples, n*G heads and q queries of a piece; counts: the groups of samples, those of the heads of a sample,
    and blocks. It gives (m or 1, n*G or 1, q or 1, K or 1). Gradients add up piece by piece, not all pairs at a time.
    """
    own = [known != 1 for known in pairs.shape[:3]]

    def if_own(values):
        return [value if is_own else 1 for value, is_own in zip(values, own, strict=True)]

    (m, heads, q), (S, P, C) = if_own(sizes), if_own(counts)
    B, _, Q, K = shape_of(pairs)
    pairs = pad(pairs, S * m - B, 0, C * q - Q)  # (S*m, P*heads, C*q, K)
    pairs = tf.reshape(pairs, (S, m, P, heads, C, q, K))  # (S, m, P, heads, C, q, K)
    pairs = tf.transpose(pairs, (0, 2, 4, 1, 3, 5, 6))  # (S, P, C, m, heads, q, K)
    pairs = tf.reshape(pairs, (S * P * C, m, heads, q, K))  # (S*P*C, m, heads, q, K)
    array = tf.TensorArray(pairs.dtype, S * P * C, clear_after_read=False).unstack(pairs)

    def of_piece(group, block):
        places = group // counts[1], group % counts[1], block
        s, p, c = (place if is_own else 0 for place, is_own in zip(places, own, strict=True))
        return array.read((s * P + p) * C + c)  # (m, heads, q, K)

    return of_piece


def recompute(function):
    """Wrap a function so that its backward pass keeps nothing but the inputs, and computes the rest again.

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


def project_rows(dense, X, seen):
    """dense(X) for X (B, K, in), zeros where `seen` (B or 1, K) is False: rows that are not seen are not projected."""
    seen = tf.broadcast_to(seen, tf.shape(X)[:2])  # (B, K)
    projected = dense(tf.boolean_mask(X, seen))  # (rows, out)
    return tf.scatter_nd(tf.where(seen), projected, (*tf.unstack(tf.shape(X, tf.int64)[:2]), projected.shape[1]))
