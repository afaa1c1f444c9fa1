"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a group is samples that are.
"""

import functools
import threading

import numpy as onp
from mxnet import autograd, np

from mha import blocks

from . import layer as lesson
from .arrays import _data, context, to_numpy
from .heads import positions
from .layer import blank, four_axes, repeat_heads, transpose_output, transpose_qkv, visible_keys

# 1. Which queries and keys count


def used(queries, keys, hiding):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; hiding: of the call.

    It takes no array of all pairs where each query sees the keys from a first to a last one, and no key between those
    of all queries is left out.
    """
    valid_lens, (left, right) = hiding.valid_lens, blocks.reach(hiding)
    per_query = valid_lens is not None and len(valid_lens.shape) == 2
    if hiding.mask is not None or hiding.score_bias is not None or (per_query and left is not None):
        visible = visible_keys(queries, keys, *hiding).any(1)  # (B, Q, K)
        return visible.any(2), visible.any(1)
    each_query, each_key = positions(queries, hiding.offset), positions(keys)  # (B or 1, Q), (1, K)
    K = keys.shape[1]
    first, last = np.zeros_like(each_query), np.full_like(each_query, K)  # (B or 1, Q)
    if left is not None:
        first = np.maximum(first, each_query - left)
    if right is not None:
        last = np.minimum(last, each_query + right + 1)
    if valid_lens is not None:
        last = np.minimum(last, (valid_lens if per_query else valid_lens[:, None]).astype("int64"))  # (B, Q)
    sees = first < last  # (B or 1, Q)
    first, last = np.where(sees, first, K), np.where(sees, last, 0)
    return sees, (first.min(1)[:, None] <= each_key) * (each_key < last.max(1)[:, None])


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, hiding, training):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        hiding: of the call. No weights are kept: blocks of queries follow each other, and are computed once more for
        their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window
        hide from all of it.
        """
        pieces = list(self.pieces(queries, keys, hiding))
        if len(pieces) == 1:
            return self.pool_block(queries, keys, values, num_heads, hiding, training)
        training = autograd.is_training() if training is None else training

        def pool_some(block, seen, queries, keys, values, score_bias=None):
            cut = _part(hiding, score_bias, queries=block, keys=seen)
            return self.pool_block(queries, keys, values, num_heads, cut, training)  # (B*H, block, dv)

        biases = () if hiding.score_bias is None else (four_axes(hiding.score_bias),)
        return _Recomputed.call(self, pool_some, pieces, training, queries, keys, values, *biases)

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As `pool`, for the queries of one block."""
        visible, score_bias = by_group(queries, keys, num_heads, hiding)
        folded = queries.reshape(len(keys), -1, queries.shape[2])  # (B*G, H/G*Q, d)
        pooled = self.weigh(folded, keys, values, visible, score_bias, training)["pooled"]  # (B*G, H/G*Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def pieces(self, queries, keys, hiding):
        """The blocks of queries of a call, and the keys that each needs."""
        sizes = queries.shape[1], keys.shape[1], self.scores_of_pair(queries)
        return blocks.pieces(hiding, *sizes, _known_offset(hiding))

    def drop(self, weights, training):
        """As the lesson's; a block that is computed again drops the same weights."""
        training = autograd.is_training() if training is None else training
        if training and self.dropout and _drawn.seed is not None:
            kept = onp.random.default_rng(_drawn.seed).random(weights.shape, "float32") >= self.dropout
            return weights * np.array(kept / (1 - self.dropout), dtype=weights.dtype)
        return super().drop(weights, training)

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return queries.shape[0]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


def by_group(queries, keys, num_heads, hiding):
    """What is visible and the bias for heads of keys (B*G, K, d), with the queries (B*H, Q, d) that share one in a row.

    Both broadcast against (B*G, H/G*Q, K), or are None.
    """
    (BH, Q, _), (BG, _, _), B = queries.shape, keys.shape, len(queries) // num_heads

    def folded(pairs):
        if pairs is None or BG == BH or pairs.shape[1] == pairs.shape[2] == 1:
            return repeat_heads(pairs, B, num_heads * BG // BH)  # (B*G, Q or 1, K)
        pairs = np.broadcast_to(pairs, (B, num_heads, Q, pairs.shape[3]))  # (B, H, Q, K or 1)
        return pairs.reshape(BG, BH // BG * Q, -1)  # (B*G, H/G*Q, K or 1)

    score_bias = None if hiding.score_bias is None else four_axes(hiding.score_bias)
    return folded(visible_keys(queries, keys, *hiding)), folded(score_bias)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, by `output` where that is enough."""
        if return_weights or self.needs_lesson(queries, keys):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        return self.output(queries, keys, values, hiding, head_gates, training)  # (B, Q, D)

    def needs_lesson(self, queries, keys):
        """Whether an array is empty or the pooling has been replaced."""
        return 0 in (*queries.shape[:2], keys.shape[1]) or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, hiding, head_gates, training):
        """The output (B, Q, D) alone, arguments as of `attend`: no weights are kept, keys that nobody sees left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        (B, Q, _), K, H, G = queries.shape, keys.shape[1], self.config.num_heads, self.config.num_key_value_heads
        valid_lens = None if hiding.valid_lens is None else to_numpy(hiding.valid_lens)
        groups, merged = blocks.groups(hiding, (B, H, Q, K), valid_lens, _known_offset(hiding)), []
        if not blocks.all_used(hiding, Q, groups):
            with autograd.pause():
                sees, seen = used(queries, keys, hiding)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        score_bias = None if hiding.score_bias is None else four_axes(hiding.score_bias)
        each = (_by_samples(X, groups) for X in (self.W_q(queries), keys, values, score_bias))
        for (samples, seen, hides), W_q, keys, values, score_bias in zip(groups, *each, strict=True):
            if seen != slice(0, K):  # to slice is to copy here
                keys, values = keys[:, seen], values[:, seen]  # (B, K, any)
                score_bias = blocks.of_pairs(score_bias, keys=seen)  # (B or 1, H or 1, Q or 1, K or 1)
            W_k, W_v = self.W_k(keys), self.W_v(values)  # (B, K, G*d)
            cut = _part(hiding if hides else hiding._replace(valid_lens=None), score_bias, samples, keys=seen)
            q, k, _ = self.turn(transpose_qkv(W_q, H), transpose_qkv(W_k, G), cut.offset)  # (B*H, T, d)
            pooled = self.attention.pool(q, k, transpose_qkv(W_v, G), H, cut, training)  # (B*H, Q, dv)
            merged.append(transpose_output(pooled, H))  # (B, Q, H*dv)
        merged = np.concatenate(merged) if len(merged) > 1 else merged[0]  # (B, Q, H*dv)
        if head_gates is not None:
            gates = np.broadcast_to(head_gates, (B, H))[:, None, :, None]  # (B, 1, H, 1)
            merged = (merged.reshape(B, Q, H, -1) * gates).reshape(B, Q, -1)  # (B, Q, H*dv)
        return self.W_o(merged)  # (B, Q, D)


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)


def _known_offset(hiding):
    """The offset as NumPy integers, where it is an array."""
    return None if isinstance(hiding.offset, int) else to_numpy(hiding.offset)


def _by_samples(X, groups):
    """X, or None, for each group. It is split at once: a slice's gradient is as large as what it is cut from."""
    if X is None or X.shape[0] == 1 or len(groups) == 1:
        return [X] * len(groups)
    return np.split(X, tuple(samples.start for samples, _, _ in groups[1:]))


def _part(hiding, score_bias, *cuts, **named):
    """As `blocks.part`, with a bias that is cut already, the one array in it whose graph counts.

    A block that is computed again would end in a graph that is gone.
    """
    with autograd.pause():
        return blocks.part(hiding._replace(score_bias=None), *cuts, **named)._replace(score_bias=score_bias)


class _Drawn(threading.local):
    seed = None


_drawn = _Drawn()
_again = threading.Lock()


class _Recomputed(autograd.Function):
    """A pooling block by block, whose backward pass keeps nothing but the inputs, and computes the rest again."""

    def __init__(self, pool_some, pieces, inputs, parameters, seed):
        super().__init__()
        self.pool_some, self.pieces, self.seed = pool_some, pieces, seed
        self.inputs, self.parameters = inputs, parameters

    @classmethod
    def call(cls, pooling, pool_some, pieces, training, *inputs):
        """pool_some(block, seen, *inputs) piece by piece, with gradients also by the pooling's weights.

        inputs: queries (B*H, Q, d), keys (B*G, K, d), values (B*G, K, dv), and a bias of four axes if there is one.
        """
        parameters = [_data(X) for X in pooling.collect_params().values() if X.grad_req != "null"]
        seed = int(np.random.randint(0, 2**31 - 1).item()) if training and pooling.dropout else None
        pool = cls(pool_some, pieces, [X.detach() for X in inputs], parameters, seed)
        if not autograd.is_recording():
            return pool.forward()
        # As one: where the gradient by the first input is not asked for, MXNet leaves out those by all the others.
        return pool(np.concatenate([X.reshape(-1) for X in (*inputs, *parameters)]))  # (B*H, Q, dv)

    def forward(self, packed=None):
        """The pooled values (B*H, Q, dv); packed: the inputs and weights, of which no copy is to be kept."""
        pooled = []
        for block, seen in self.pieces:
            pooled.append(self._draw(block, seen, *self._cut(block, seen)))  # (B*H, block, dv)
            pooled[-1].wait_to_read()  # else MXNet makes room for many blocks at once
        return np.concatenate(pooled, 1)

    def backward(self, cotangent):
        """Gradients by the inputs and the weights, packed as they are, in another thread than the call's."""
        with _again, context(None):
            own = isinstance(cotangent, np.ndarray)  # in MXNet 2.0; 1.9 asks for its older kind of array
            cotangent = cotangent.as_np_ndarray()
            found = [np.zeros_like(X) for X in (*self.inputs, *self.parameters)]
            for block, seen in self.pieces:
                inputs = self._cut(block, seen)
                for X in inputs:
                    X.attach_grad()
                with autograd.record():
                    result = self._draw(block, seen, *inputs)
                by_all = autograd.grad([result], [*inputs, *self.parameters], [cotangent[:, block]])
                cuts = [*self._cuts(block, seen), *[...] * len(self.parameters)]
                for total, cut, X in zip(found, cuts, by_all, strict=True):
                    total[cut] += X.as_np_ndarray()
                    total.wait_to_read()
            packed = np.concatenate([X.reshape(-1) for X in found])  # (numbers,)
            return packed if own else packed.as_nd_ndarray()

    def _cut(self, block, seen):
        """The parts of the inputs that one piece needs."""
        return [X[cut] for X, cut in zip(self.inputs, self._cuts(block, seen), strict=True)]

    def _cuts(self, block, seen):
        """Where they are."""
        cuts = [(blocks.ALL, cut) for cut in (block, seen, seen)]
        for score_bias in self.inputs[3:]:
            sizes = zip((block, seen), score_bias.shape[2:], strict=True)
            cuts.append((blocks.ALL, blocks.ALL, *(blocks.ALL if size == 1 else cut for cut, size in sizes)))
        return cuts

    def _draw(self, block, seen, *inputs):
        _drawn.seed = None if self.seed is None else self.seed + block.start
        try:
            return self.pool_some(block, seen, *inputs)
        finally:
            _drawn.seed = None
