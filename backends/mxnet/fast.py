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
from .layer import blank, repeat_heads, transpose_output, transpose_qkv, visible_keys

# 1. Which queries and keys count


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = _part(None, mask)[1].any(1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal=causal)[:, 0]  # (B, Q, K)
        return visible.any(2), visible.any(1)
    Q, K = queries.shape[1], keys.shape[1]
    limits = np.full((1, 1), K, dtype="int64")  # (1, 1)
    if valid_lens is not None:
        limits = (valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens).astype("int64")  # (B, 1 or Q)
    if causal:
        limits = np.minimum(limits, np.arange(1, Q + 1, dtype="int64"))  # (B, Q)
    return limits > 0, np.arange(K, dtype="int64") < limits.max(1)[:, None]


def _part(*arguments, **options):
    """As `blocks.part`, outside of any graph: a block that is computed again would end in one that is gone."""
    with autograd.pause():
        return blocks.part(*arguments, **options)


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        Q, K = queries.shape[1], keys.shape[1]
        size = blocks.queries(Q, self.scores_of_query(queries, keys))
        if size >= Q:
            return self.pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, 0, training)
        training = autograd.is_training() if training is None else training

        def pool_some(first, queries, keys, values):
            last = min(K, first + size) if causal else K
            keys, values = (X[:, :last] if causal else X for X in (keys, values))  # to slice is to copy here
            hiding = *_part(valid_lens, mask, queries=slice(first, first + size), keys=slice(last)), causal, first
            return self.pool_block(queries, keys, values, num_heads, *hiding, training)  # (B*H, block, dv)

        return _Recomputed.call(self, pool_some, size, training, queries, keys, values)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        visible = visible_keys(queries, keys, valid_lens, mask, causal=causal, offset=first)
        visible = repeat_heads(visible, queries.shape[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training=training)["pooled"]  # (B*H, Q, dv)

    def drop(self, weights, training):
        """As the lesson's; a block that is computed again drops the same weights."""
        training = autograd.is_training() if training is None else training
        if training and self.dropout and _drawn.seed is not None:
            kept = onp.random.default_rng(_drawn.seed).random(weights.shape, "float32") >= self.dropout
            return weights * np.array(kept / (1 - self.dropout), dtype=weights.dtype)
        return super().drop(weights, training)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return queries.shape[0] * keys.shape[1]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, by `output` where that is enough."""
        if return_weights or self.needs_lesson(queries, keys, hiding, head_gates):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        call = hiding.valid_lens, hiding.mask, hiding.causal, training
        return self.output(queries, keys, values, *call)  # (B, Q, D)

    def needs_lesson(self, queries, keys, hiding, head_gates):
        """Whether an array is empty, an option is known to the lesson alone, or the pooling has been replaced."""
        empty = 0 in (*queries.shape[:2], keys.shape[1])
        plain = blocks.is_plain(self.config, hiding, head_gates)
        return empty or not plain or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        groups = list(blocks.groups(B, H, Q, K, None if valid_lens is None else to_numpy(valid_lens), causal))
        if mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        size, merged = groups[0][0].stop, []
        each = (np.split(X, tuple(range(size, B, size))) for X in (self.W_q(queries), keys, values))  # (B, T, any)
        for (samples, longest, hides), W_q, keys, values in zip(groups, *each, strict=True):
            W_k, W_v = self.W_k(keys[:, :longest]), self.W_v(values[:, :longest])  # (B, K, H*d)
            split = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *_part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled = self.attention.pool(*split, H, *hiding, training)  # (B*H, Q, dv)
            merged.append(transpose_output(pooled, H))  # (B, Q, H*dv)
        return self.W_o(np.concatenate(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)


class _Drawn(threading.local):
    seed = None


_drawn = _Drawn()
_again = threading.Lock()


class _Recomputed(autograd.Function):
    """A pooling block by block, whose backward pass keeps nothing but the inputs, and computes the rest again."""

    def __init__(self, pool_some, size, shapes, parameters, seed):
        super().__init__()
        self.pool_some, self.size, self.shapes, self.parameters, self.seed = pool_some, size, shapes, parameters, seed

    @classmethod
    def call(cls, pooling, pool_some, size, training, *inputs):
        """pool_some(first, *inputs) for queries in blocks of a size, with gradients also by the pooling's weights."""
        parameters = [_data(X) for X in pooling.collect_params().values() if X.grad_req != "null"]
        seed = int(np.random.randint(0, 2**31 - 1).item()) if training and pooling.dropout else None
        inputs = *inputs, *parameters
        # As one: where the gradient by the first input is not asked for, MXNet leaves out those by all the others.
        packed = np.concatenate([X.reshape(-1) for X in inputs])  # (numbers,)
        return cls(pool_some, size, [X.shape for X in inputs], parameters, seed)(packed)

    def forward(self, packed):
        """The pooled values (B*H, Q, dv) of queries (B*H, Q, d), keys (B*H, K, d) and values (B*H, K, dv), packed."""
        self.save_for_backward(packed)
        queries, keys, values = self._unpacked(packed)
        pooled = []
        for first in range(0, queries.shape[1], self.size):
            pooled.append(self._draw(first, queries[:, first : first + self.size], keys, values))  # (B*H, block, dv)
            pooled[-1].wait_to_read()  # else MXNet makes room for many blocks at once
        return np.concatenate(pooled, 1)

    def backward(self, cotangent):
        """Gradients by the inputs and the weights, packed as they are, in another thread than the call's."""
        with _again, context(None):
            (packed,) = self.saved_tensors
            queries, keys, values = self._unpacked(packed.as_np_ndarray().detach())
            own = isinstance(cotangent, np.ndarray)  # in MXNet 2.0; 1.9 asks for its older kind of array
            cotangent, by_queries, by_rest = cotangent.as_np_ndarray(), [], None
            for first in range(0, queries.shape[1], self.size):
                block = slice(first, first + self.size)
                inputs = queries[:, block], keys, values
                for X in inputs:
                    X.attach_grad()
                with autograd.record():
                    result = self._draw(first, *inputs)
                by_all = autograd.grad([result], [*inputs, *self.parameters], [cotangent[:, block]])
                by_block, *by_all = (X.as_np_ndarray() for X in by_all)
                by_queries.append(by_block)  # (B*H, block, d)
                by_rest = by_all if by_rest is None else [X + Y for X, Y in zip(by_rest, by_all, strict=True)]
                for X in by_rest:
                    X.wait_to_read()
            by_all = np.concatenate([X.reshape(-1) for X in (np.concatenate(by_queries, 1), *by_rest)])  # (numbers,)
            return by_all if own else by_all.as_nd_ndarray()

    def _unpacked(self, packed):
        """Queries, keys and values out of the packed inputs."""
        found, first = [], 0
        for shape in self.shapes[:3]:
            last = first + math.prod(shape)
            found.append(packed[first:last].reshape(shape))  # (B*H, T, any)
            first = last
        return found

    def _draw(self, first, *inputs):
        _drawn.seed = None if self.seed is None else self.seed + first
        try:
            return self.pool_some(first, *inputs)
        finally:
            _drawn.seed = None
