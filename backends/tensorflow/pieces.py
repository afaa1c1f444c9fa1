"""How a call that keeps no attention weights is cut where sizes and offsets may be known only in the call.

Letters as in layer.py; n stands for H/G, the heads of queries that share a head of keys. A piece is queries of some
heads of keys, or of whole samples, that are attended together. What is known when the code is traced stays an int.
"""

import tensorflow as tf

from mha import blocks

from . import layer as lesson
from .arrays import must_fit, shape_of
from .compiled import told
from .layer import four_axes


def fits(scores):
    """Whether so many scores are one piece; the caller may have told it of those that only the call itself knows."""
    return blocks.fits(scores) if isinstance(scores, int) else told.fits


def limited(size, least, most=None):
    """A size of at least and at most so much, as an int if all are known."""
    if most is None:
        return max(least, size) if isinstance(size, int) else tf.maximum(size, least)
    known = isinstance(size, int) and isinstance(most, int)
    return max(least, min(size, most)) if known else tf.clip_by_value(size, least, most)


def shared(queries, keys):
    """How many heads of queries (B*H, Q, d) share a head of keys (B*G, K, d); 1 where there are none."""
    return limited(shape_of(queries)[0], 1) // limited(shape_of(keys)[0], 1)


def whole(hiding, *sizes):
    """`hiding` in numbers of int64 and pairs of four axes, of which `blocks.part` can be taken; sizes: (B, H, Q, K).

    An offset that is not 0 becomes an array. A size of pairs that may be 1, but is not known to be, is made whole.
    """
    B, _, Q, K = sizes
    valid_lens, offset = hiding.valid_lens, hiding.offset
    if valid_lens is not None:
        must_fit("valid_lens", valid_lens, *(B, Q)[: len(valid_lens.shape)])
        valid_lens = lesson._signed(valid_lens, K)
    if not isinstance(offset, int) or offset != 0:
        offset = tf.reshape(tf.cast(offset, tf.int64), (-1, 1))  # (B or 1, 1)
        if offset.shape[0] != 1:
            must_fit("offset", offset, B)

    def made(pairs):
        pairs = None if pairs is None else four_axes(pairs)  # (B, 1 or H, Q, K)
        if pairs is None or None not in pairs.shape:
            return pairs
        known = zip(pairs.shape, sizes, strict=True)
        return tf.broadcast_to(pairs, [1 if size == 1 else full for size, full in known])  # (B, H, Q, K)

    return hiding._replace(
        valid_lens=valid_lens, mask=made(hiding.mask), score_bias=made(hiding.score_bias), offset=offset
    )


def cut(first, last):
    """A slice of places in int64, as offsets and lengths are."""
    return slice(tf.cast(first, tf.int64), tf.cast(last, tf.int64))


def span(hiding, num_queries, num_keys):
    """As `blocks.span`."""
    left, right = blocks.reach(hiding)
    if _are_known(hiding.offset, num_queries, num_keys):
        return blocks.span(hiding, num_queries, num_keys)
    num_queries, num_keys, offset = (tf.cast(X, tf.int64) for X in (num_queries, num_keys, hiding.offset))
    first, last = 0, num_keys
    if left is not None and not isinstance(hiding.offset, int):  # of which 0 alone is left by `whole`
        first = tf.clip_by_value(tf.reduce_min(offset) - left, 0, num_keys - 1)
    if right is not None:
        last = tf.minimum(tf.reduce_max(offset) + num_queries + right, num_keys)
    return slice(first, limited(last, first + 1))


def all_used(hiding, num_queries, num_keys):
    """Whether every query sees a key, and every key of the `span` is seen: as far as is known without looking."""
    left, _ = blocks.reach(hiding)
    if any(X is not None for X in (hiding.valid_lens, hiding.mask, hiding.score_bias)) or not isinstance(
        hiding.offset, int
    ):
        return False
    return left is None or (_are_known(num_queries, num_keys) and num_queries - 1 - left < num_keys)


def block(hiding, num_queries, num_keys, scores):
    """As `blocks.block`."""
    if _are_known(num_queries, num_keys, scores):
        return blocks.block(hiding, num_queries, num_keys, scores)
    (left, right), most = blocks.reach(hiding), blocks.SCORES // scores
    size = limited(most // limited(num_keys, 1), 1)
    if left is not None and right is not None:
        others = left + right  # keys of a query, beside its own; in float64, as they may be 2**31
        most = float(others**2) + 4 * tf.cast(most, tf.float64)
        size = tf.maximum(size, tf.cast((tf.sqrt(most) - others) / 2, tf.int32))
        size = tf.minimum(size, max((others + 1) // 2, blocks.LEAST))
    return limited(-(-num_queries // limited(-(-num_queries // size), 1)), 1)


def heads(total, num_heads, most, scores):
    """As `blocks.heads`, of num_heads that are at most so many."""
    if _are_known(total, num_heads, scores):
        return blocks.heads(total, num_heads, scores)
    fitting = limited(blocks.SCORES // limited(scores, 1), 1)
    samples = tf.minimum(fitting // num_heads, total // num_heads)
    parts = tf.range(1, most + 1)
    part = tf.reduce_max(tf.where((num_heads % parts == 0) & (parts <= fitting), parts, 1))
    return tf.where(samples > 0, samples * num_heads, part)


def padded(X, *more):
    """X with so many zeros more after those of its first axes; None stays None."""
    if X is None:
        return None
    return tf.pad(X, [(0, size) for size in (*more, *len(X.shape) * [0])][: len(X.shape)])


def chunked(X, groups, heads, size):
    """Keys or values (groups*heads, K, d) as what gives those of a piece: a function of its group and a slice of keys.

    size: of a chunk; all chunks that have some of these keys are given, (heads, chunks*size, d), and gradients add up
    chunk by chunk, in proportion to what was given. None = all keys are given, not as a copy.
    """
    (_, K, _), d = shape_of(X), X.shape[2]
    length = K if size is None else size
    count = limited(-(-K // limited(length, 1)), 1)
    X = padded(X, 0, count * length - K)  # (groups*heads, count*size, d)
    X = tf.reshape(X, (groups, heads, count, length, d))  # (groups, heads, count, size, d)
    X = tf.transpose(X, (0, 2, 1, 3, 4))  # (groups, count, heads, size, d)
    X = tf.reshape(X, (groups * count, heads, length, d))  # (groups*count, heads, size, d)
    array = tf.TensorArray(X.dtype, groups * count, clear_after_read=False).unstack(X)

    def of_piece(group, seen):
        if size is None:
            return array.read(group)  # (heads, K, d)
        first, last = tf.cast(start(seen, size), tf.int32) // size, -(-tf.cast(seen.stop, tf.int32) // size)
        found = array.gather(group * count + tf.range(first, last))  # (chunks, heads, size, d)
        found = tf.transpose(found, (1, 0, 2, 3))  # (heads, chunks, size, d)
        return tf.reshape(found, (heads, (last - first) * size, d))  # (heads, chunks*size, d)

    return of_piece


def start(seen, size):
    """The first of the keys that `chunked` gives for a slice of them, in chunks of this size."""
    return 0 if size is None else seen.start // tf.cast(size, tf.int64) * tf.cast(size, tf.int64)


def listed(pairs, sizes, counts):
    """A mask or bias of four axes as what gives those of a piece: a function of its group of heads and its block.

    sizes: m samples, n*G heads and q queries of a piece; counts: the groups of samples, those of the heads of a sample,
    and blocks. It gives (m or 1, n*G or 1, q or 1, K or 1). Gradients add up piece by piece, not all pairs at a time.
    """
    own = [known != 1 for known in pairs.shape[:3]]

    def if_own(values):
        return [value if is_own else 1 for value, is_own in zip(values, own, strict=True)]

    (m, heads, q), (S, P, C) = if_own(sizes), if_own(counts)
    B, _, Q, K = shape_of(pairs)
    pairs = padded(pairs, S * m - B, 0, C * q - Q)  # (S*m, P*heads, C*q, K)
    pairs = tf.reshape(pairs, (S, m, P, heads, C, q, K))  # (S, m, P, heads, C, q, K)
    pairs = tf.transpose(pairs, (0, 2, 4, 1, 3, 5, 6))  # (S, P, C, m, heads, q, K)
    pairs = tf.reshape(pairs, (S * P * C, m, heads, q, K))  # (S*P*C, m, heads, q, K)
    array = tf.TensorArray(pairs.dtype, S * P * C, clear_after_read=False).unstack(pairs)

    def of_piece(group, block):
        places = group // counts[1], group % counts[1], block
        s, p, c = (place if is_own else 0 for place, is_own in zip(places, own, strict=True))
        return array.read((s * P + p) * C + c)  # (m, heads, q, K)

    return of_piece


def recomputed(function):
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


def of_seen(dense, X, seen):
    """dense(X) for X (B, K, in), zeros where `seen` (B or 1, K) is False: rows that are not seen are not projected."""
    seen = tf.broadcast_to(seen, tf.shape(X)[:2])  # (B, K)
    projected = dense(tf.boolean_mask(X, seen))  # (rows, out)
    return tf.scatter_nd(tf.where(seen), projected, (*tf.unstack(tf.shape(X, tf.int64)[:2]), projected.shape[1]))


def _are_known(*sizes):
    return all(isinstance(size, int) for size in sizes)
