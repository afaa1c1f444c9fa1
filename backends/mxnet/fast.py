"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A block is queries that are attended together; a group is samples that are.
"""

import functools
import math
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


def _part(hiding, *cuts, **named):
    """As `blocks.part`, outside of any graph but for the bias: a block made again would end in one that is gone."""
    with autograd.pause():
        found = blocks.part(hiding._replace(score_bias=None), *cuts, **named)
    return found._replace(score_bias=blocks.of_pairs(hiding.score_bias, *cuts, **named))


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, hiding, training=None):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        hiding: of the call. No weights are kept: blocks of queries follow each other, and are computed once more for
        their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window
        hide from all of it.
        """
        pieces = list(self.pieces(queries, keys, hiding))
        if len(pieces) == 1:
            return self.pool_block(queries, keys, values, num_heads, hiding, training)
        training = autograd.is_training() if training is None else training
        unbiased = hiding._replace(score_bias=None)

        def pool_some(block, seen, queries, keys, values, score_bias=None):
            cut = _part(unbiased, queries=block, keys=seen)._replace(score_bias=score_bias)
            return self.pool_block(queries, keys, values, num_heads, cut, training)  # (B*H, block, dv)

        inputs = [queries, keys, values, blocks.of_pairs(hiding.score_bias)]
        return _Recomputed.call(self, pool_some, pieces, training, *(X for X in inputs if X is not None))

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As `pool`, for the queries of one block."""
        visible, score_bias = by_group(queries, keys, num_heads, hiding)
        folded = queries.reshape(len(keys), -1, queries.shape[2])  # (B*G, H/G*Q, d)
        pooled = self.weigh(folded, keys, values, visible, score_bias, training)["pooled"]  # (B*G, H/G*Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def pieces(self, queries, keys, hiding):
        """The blocks of queries of a call, and the keys that each needs."""
        scores, offset = self.scores_of_pair(queries), known(hiding.offset)
        return blocks.pieces(hiding, queries.shape[1], keys.shape[1], scores, offset)

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


def known(offset):
    """Offsets as NumPy integers; None if they are one int."""
    return None if isinstance(offset, int) else to_numpy(offset)


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
        groups, merged = blocks.groups(hiding, (B, H, Q, K), valid_lens, known(hiding.offset)), []
        if not blocks.all_used(hiding, Q, groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, hiding))
        bounds = tuple(samples.start for samples, _, _ in groups[1:])
        each = (np.split(X, bounds) if bounds else [X] for X in (self.W_q(queries), keys, values))  # (B, T, any)
        for (samples, seen, hides), W_q, keys, values in zip(groups, *each, strict=True):
            keys, values = (X if seen == slice(0, K) else X[:, seen] for X in (keys, values))  # to slice is to copy
            W_k, W_v = self.W_k(keys), self.W_v(values)  # (B, K, G*d)
            cut = _part(hiding if hides else hiding._replace(valid_lens=None), samples, keys=seen)
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


class _Drawn(threading.local):
    seed = None


_drawn = _Drawn()
_again = threading.Lock()


class _Recomputed(autograd.Function):
    """A pooling block by block, whose backward pass keeps nothing but the inputs, and computes the rest again."""

    def __init__(self, pool_some, pieces, shapes, parameters, seed):
        super().__init__()
        self.pool_some, self.pieces, self.shapes = pool_some, pieces, shapes
        self.parameters, self.seed = parameters, seed

    @classmethod
    def call(cls, pooling, pool_some, pieces, training, *inputs):
        """pool_some(block, seen, *inputs) piece by piece, with gradients also by the pooling's weights.

        inputs: queries (B*H, Q, d), keys (B*G, K, d), values (B*G, K, dv), and a bias of four axes if there is one.
        """
        parameters = [_data(X) for X in pooling.collect_params().values() if X.grad_req != "null"]
        seed = int(np.random.randint(0, 2**31 - 1).item()) if training and pooling.dropout else None
        shapes = [X.shape for X in inputs]
        # As one: where the gradient by the first input is not asked for, MXNet leaves out those by all the others.
        packed = np.concatenate([X.reshape(-1) for X in (*inputs, *parameters)])  # (numbers,)
        return cls(pool_some, pieces, shapes, parameters, seed)(packed)

    def forward(self, packed):
        """The pooled values (B*H, Q, dv) of the inputs, packed."""
        self.save_for_backward(packed)
        arrays, pooled = self._unpacked(packed), []
        for block, seen in self.pieces:
            pooled.append(self._draw(block, seen, *_cut(arrays, block, seen)))  # (B*H, block, dv)
            pooled[-1].wait_to_read()  # else MXNet makes room for many blocks at once
        return np.concatenate(pooled, 1)

    def backward(self, cotangent):
        """Gradients by the inputs and the weights, packed as they are, in another thread than the call's."""
        with _again, context(None):
            (packed,) = self.saved_tensors
            arrays = self._unpacked(packed.as_np_ndarray().detach())
            own = isinstance(cotangent, np.ndarray)  # in MXNet 2.0; 1.9 asks for its older kind of array
            cotangent = cotangent.as_np_ndarray()
            by_inputs = [np.zeros_like(X) for X in arrays]
            by_parameters = [np.zeros_like(X) for X in self.parameters]
            for block, seen in self.pieces:
                inputs = _cut(arrays, block, seen)
                for X in inputs:
                    X.attach_grad()
                with autograd.record():
                    result = self._draw(block, seen, *inputs)
                by_all = autograd.grad([result], [*inputs, *self.parameters], [cotangent[:, block]])
                found = [X.as_np_ndarray() for X in by_all]
                for total, part, cut in zip(by_inputs, found, _cuts(arrays, block, seen), strict=False):
                    total[cut] = total[cut] + part
                by_parameters = [X + Y for X, Y in zip(by_parameters, found[len(inputs) :], strict=True)]
                for X in (*by_inputs, *by_parameters):
                    X.wait_to_read()
            by_all = np.concatenate([X.reshape(-1) for X in (*by_inputs, *by_parameters)])  # (numbers,)
            return by_all if own else by_all.as_nd_ndarray()

    def _unpacked(self, packed):
        """Queries, keys, values and the bias out of the packed inputs."""
        found, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            found.append(packed[first:last].reshape(shape))  # (B*H, T, any), (B or 1, H or 1, Q or 1, K or 1)
            first = last
        return found

    def _draw(self, block, seen, *inputs):
        _drawn.seed = None if self.seed is None else self.seed + block.start
        try:
            return self.pool_some(block, seen, *inputs)
        finally:
            _drawn.seed = None


def _cuts(arrays, block, seen):
    """Where the parts of the arrays, queries, keys, values and a bias of four axes, are that one piece needs."""
    cuts = [(blocks.ALL, cut) for cut in (block, seen, seen)]
    for score_bias in arrays[3:]:
        sizes = zip((block, seen), score_bias.shape[2:], strict=True)
        cuts.append((blocks.ALL, blocks.ALL, *(blocks.ALL if size == 1 else cut for cut, size in sizes)))
    return cuts


def _cut(arrays, block, seen):
    """The parts of the arrays that one piece needs."""
    return [X[cut] for X, cut in zip(arrays, _cuts(arrays, block, seen), strict=True)]
