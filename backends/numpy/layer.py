"""Multi-head attention in NumPy: one of five tabs, to be read beside the others.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens,
d width of a query or key head, dv width of a value head.

NumPy brings no layers and no automatic differentiation, so this tab alone has a `_Dense` layer, a `_softmax` and
hand-derived `backward` methods. In float64 it is the reference that the other four are measured against.

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention".
"""

import functools
import math

import ml_dtypes  # noqa: F401  (gives NumPy its bfloat16)
import numpy as np

from mha import arguments, blocks, checks
from mha.config import shapes

DTYPES = ("float32", "float64", "float16", "bfloat16")


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
    each_query = first + np.arange(queries.shape[1])  # (Q,)
    each_key = np.arange(keys.shape[1])  # (K,)
    if valid_lens is not None:
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < per_query[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        mask = mask[None] if len(mask.shape) == 2 else mask  # (B, Q, K) or (B, H, Q, K)
        conditions.append(mask[:, None] if len(mask.shape) == 3 else mask)  # (B, 1 or H, Q, K)
    if ordered:
        order = each_key <= each_query[:, None]  # (Q, K)
        conditions.append(order[None, None])  # (1, 1, Q, K)
    return functools.reduce(np.logical_and, conditions)


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
    if visible is None:
        return queries, keys, values
    return blank(queries, keys, values, visible.any(2), visible.any(1))


def blank(queries, keys, values, sees, seen):
    """Put zeros for queries, keys and values where `sees` (B, Q) or `seen` (B, K) is False; both may broadcast."""
    sees, seen = sees[:, :, None], seen[:, :, None]  # (B, Q, 1), (B, K, 1)
    queries = np.where(sees, queries, np.zeros_like(queries))
    keys = np.where(seen, keys, np.zeros_like(keys))
    values = np.where(seen, values, np.zeros_like(values))
    return queries, keys, values


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = part(None, mask)[1].any(1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal)[:, 0]  # (B, Q, K)
        return visible.any(2), visible.any(1)
    Q, K = queries.shape[1], keys.shape[1]
    limits = np.full((1, 1), K)  # (1, 1)
    if valid_lens is not None:
        limits = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
    if causal:
        limits = np.minimum(limits, np.arange(1, Q + 1))  # (B, Q)
    return limits > 0, np.arange(K) < limits.max(1)[:, None]


def visible_softmax(scores, visible):
    """Softmax over the visible keys, in float32 at least: hidden keys weigh exactly 0, and so does a row without keys.

    scores (B, Q, K), visible broadcasts against it or is None. Returns weights (B, Q, K).
    """
    scores = widen(scores)
    if visible is None:
        return _softmax(scores)
    hidden = np.where(visible.any(-1, keepdims=True), -np.inf, 0).astype(scores.dtype)  # (B, Q, 1)
    weights = _softmax(np.where(visible, scores, hidden))
    return np.where(visible, weights, np.zeros_like(weights))


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, integers (B,) or (B, Q); None hides nothing.

    Returns weights of X's shape and dtype. Unlike in the book, a length of 0 gives a row of zeros.
    """
    visible = visible_keys(X, X.swapaxes(1, 2), valid_lens)  # (B, 1, 1 or Q, K)
    weights = visible_softmax(X, None if visible is None else visible[:, 0])
    return weights.astype(X.dtype)


def widen(X):
    """X in float32 where it has half precision: scores overflow float16, and differences of them lose most bits."""
    return X.astype(np.promote_types(X.dtype, np.float32), copy=False)


# 2. Attention poolings


class AttentionPooling:
    """What all attention poolings share: weigh the values by a softmax of scores. Subclasses define the scores."""

    def __init__(self, dropout):
        self.dropout = dropout
        self.random = np.random.default_rng()

    def __call__(self, queries, keys, values, visible=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d); visible broadcasts against (B, Q, K).

        Returns the scores (B, Q, K), the weights (B, Q, K) before dropout, and the pooled values (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, training)

    def weigh(self, queries, keys, values, visible=None, training=None):
        """As a call, where queries, keys and values that are not used are blank already."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = _matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return scores, weights.astype(values.dtype), pooled.astype(values.dtype)

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        if not training or self.dropout == 0:
            return weights
        kept = self.random.random(weights.shape) >= self.dropout  # (B, Q, K)
        return (weights * kept / (1 - self.dropout)).astype(weights.dtype, copy=False)

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        Q, K = queries.shape[1], keys.shape[1]
        size = blocks.queries(Q, self.scores_of_query(queries, keys))
        if size >= Q:
            return self.pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, 0, training)
        pooled = []
        for first in range(0, Q, size):
            block, last = slice(first, first + size), first + size if causal else K
            hiding = *part(valid_lens, mask, queries=block, keys=slice(last)), causal, first
            inputs = queries[:, block], keys[:, :last], values[:, :last]
            pooled.append(self.pool_block(*inputs, num_heads, *hiding, training))  # (B*H, block, dv)
        return np.concatenate(pooled, 1)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        visible = visible_keys(queries, keys, valid_lens, mask, causal, first)
        visible = repeat_heads(visible, queries.shape[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training)[2]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return queries.shape[0] * keys.shape[1]

    def backward(self, queries, keys, values, visible, cotangent):
        """Gradients of a pooling without dropout by queries, keys, values and, by name, its own weights.

        cotangent (B, Q, dv): the gradient of the loss by the pooled values. With p = softmax(s), the gradient by s is
        p * (g - sum(p * g)); it is 0 wherever p is, so hidden keys and rows without keys receive nothing.
        """
        dtype = values.dtype
        queries, keys, values = map(widen, blank_unused(queries, keys, values, visible))
        cotangent = widen(cotangent)
        weights = visible_softmax(self.scores(queries, keys), visible)  # (B, Q, K)
        by_weights = cotangent @ values.swapaxes(1, 2)  # (B, Q, K)
        by_weights = by_weights if visible is None else np.where(visible, by_weights, 0)  # 0 * NaN is NaN
        by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))  # (B, Q, K)
        by_queries, by_keys, by_parameters = self.scores_backward(queries, keys, by_scores)
        by_values = weights.swapaxes(1, 2) @ cotangent  # (B, K, dv)
        by_inputs = blank_unused(by_queries, by_keys, by_values, visible)
        return *(X.astype(dtype) for X in by_inputs), by_parameters

    def pool_backward(self, queries, keys, values, num_heads, valid_lens, mask, causal, cotangent):
        """Gradients of `pool` without dropout by queries, keys, values and, by name, its weights, block by block."""
        Q, K = queries.shape[1], keys.shape[1]
        size = blocks.queries(Q, self.scores_of_query(queries, keys))
        by_queries, by_parameters = [], {}
        by_keys, by_values = np.zeros_like(widen(keys)), np.zeros_like(widen(values))
        for first in range(0, Q, size):
            block, last = slice(first, first + size), min(K, first + size) if causal else K
            hiding = *part(valid_lens, mask, queries=block, keys=slice(last)), causal, first
            inputs = queries[:, block], keys[:, :last], values[:, :last]
            visible = repeat_heads(visible_keys(*inputs[:2], *hiding), len(queries) // num_heads, num_heads)
            by_block, *by_pairs, by_weights = self.backward(*inputs, visible, cotangent[:, block])
            by_queries.append(by_block)  # (B*H, block, d)
            by_keys[:, :last] += by_pairs[0]
            by_values[:, :last] += by_pairs[1]
            by_parameters = _sum(by_parameters, by_weights)
        by_inputs = np.concatenate(by_queries, 1), by_keys, by_values  # (B*H, T, d)
        return *(X.astype(values.dtype, copy=False) for X in by_inputs), by_parameters


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(q k^T / sqrt(d)) v."""

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        d = queries.shape[-1]
        return _matmul(widen(queries), widen(keys).swapaxes(1, 2)) / math.sqrt(d)  # (B, Q, K)

    def scores_backward(self, queries, keys, cotangent):
        """Gradients of the scores by queries, keys and (there are none) weights; cotangent (B, Q, K)."""
        scaled = cotangent / math.sqrt(queries.shape[-1])  # (B, Q, K)
        return scaled @ keys, scaled.swapaxes(1, 2) @ queries, {}


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    def __init__(self, dropout, num_hiddens, query_size, key_size, dtype="float32"):
        super().__init__(dropout)
        self.W_q = dense(query_size, num_hiddens, False, dtype)
        self.W_k = dense(key_size, num_hiddens, False, dtype)
        self.w_v = dense(num_hiddens, 1, False, dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = self.features(queries, keys)  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)

    def features(self, queries, keys):
        """tanh(W_q q + W_k k) for all pairs of queries (B, Q, d) and keys (B, K, d): (B, Q, K, n), n = num_hiddens."""
        return np.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])

    def scores_backward(self, queries, keys, cotangent):
        """Gradients of the scores by queries, keys and, by name, the weights; cotangent (B, Q, K)."""
        features = self.features(queries, keys)  # (B, Q, K, n)
        by_features, by_w_v = self.w_v.backward("attention.w_v", features, cotangent[:, :, :, None])
        by_sum = by_features * (1 - features**2)  # (B, Q, K, n)
        by_queries, by_W_q = self.W_q.backward("attention.W_q", queries, by_sum.sum(2))
        by_keys, by_W_k = self.W_k.backward("attention.W_k", keys, by_sum.sum(1))
        return by_queries, by_keys, by_W_q | by_W_k | by_w_v

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
    B, T, width = X.shape
    X = X.reshape(B, T, num_heads, width // num_heads)  # (B, T, H, d)
    X = X.transpose(0, 2, 1, 3)  # (B, H, T, d)
    return X.reshape(B * num_heads, T, width // num_heads)  # (B*H, T, d)


def transpose_output(X, num_heads):
    """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
    BH, T, d = X.shape
    X = X.reshape(BH // num_heads, num_heads, T, d)  # (B, H, T, d)
    X = X.transpose(0, 2, 1, 3)  # (B, T, H, d)
    return X.reshape(BH // num_heads, T, num_heads * d)  # (B, T, H*d)


def repeat_heads(visible, batch_size, num_heads):
    """Give every head of a sample its row of `visible`, in the order of `transpose_qkv`.

    (B or 1, H or 1, Q or 1, K or 1) -> (B*H, Q or 1, K or 1); None stays None.
    """
    if visible is None:
        return None
    _, _, Q, K = visible.shape
    visible = np.broadcast_to(visible, (batch_size, num_heads, Q, K))  # (B, H, Q, K)
    return visible.reshape(batch_size * num_heads, Q, K)  # (B*H, Q, K)


# 4. The layer


class MultiHeadAttention:
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    def __init__(self, config):
        self.config = config
        self.W_q = dense(config.query_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_k = dense(config.key_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_v = dense(config.value_size, config.num_heads * config.value_dim, config.bias, config.dtype)
        self.W_o = dense(config.num_heads * config.value_dim, config.num_hiddens, config.bias, config.dtype)
        self.attention = pooling(config)

    def __call__(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        causal: query i sees key j only if j <= i; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        switches = causal, training, return_weights
        valid_lens, mask = arguments.settle("numpy", self, queries, keys, values, valid_lens, mask, *switches)
        queries, keys, values = map(checks.plain, (queries, keys, values))  # or the last bits depend on how they lie
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        if not return_weights and 0 not in (B, Q, K):
            return self.output(queries, keys, values, valid_lens, mask, causal, training)  # (B, Q, D)
        visible = visible_keys(queries, keys, valid_lens, mask, causal)
        somewhere = None if visible is None else visible.any(1)  # (B, Q, K), in any head
        queries, keys, values = blank_unused(queries, keys, values, somewhere)
        steps = self.steps(queries, keys, values, visible, training)
        weights = steps["weights"].reshape(B, H, Q, K)  # (B, H, Q, K)
        return (steps["output"], weights) if return_weights else steps["output"]  # (B, Q, D)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        groups = list(blocks.groups(B, H, Q, K, valid_lens, causal))
        if mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        size, merged = groups[0][0].stop, []
        each = (np.split(X, range(size, B, size)) for X in (self.W_q(queries), keys, values))  # (B, T, any)
        for (samples, longest, hides), W_q, keys, values in zip(groups, *each, strict=True):
            W_k, W_v = self.W_k(keys[:, :longest]), self.W_v(values[:, :longest])  # (B, K, H*d)
            split = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled = self.attention.pool(*split, H, *hiding, training)  # (B*H, Q, dv)
            merged.append(transpose_output(pooled, H))  # (B, Q, H*dv)
        return self.W_o(np.concatenate(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)

    def steps(self, queries, keys, values, visible=None, training=None):
        """Every step from inputs to output, by name and in order; visible broadcasts against (B, H, Q, K)."""
        B, H = queries.shape[0], self.config.num_heads
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

    def backward(self, queries, keys, values, valid_lens, mask, causal, cotangent):
        """Gradients of `output` without dropout by inputs and, by name, weights; arguments as there.

        cotangent (B, Q, D): the gradient of the loss by the output. Every step is rounded to the layer's dtype.
        """
        (B, Q, _), K, H, dv = queries.shape, keys.shape[1], self.config.num_heads, self.config.value_dim
        groups = list(blocks.groups(B, H, Q, K, valid_lens, causal)) if 0 not in (Q, K) else []
        if not groups:  # nobody sees anything
            queries, keys, values = map(np.zeros_like, (queries, keys, values))
        elif mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        split_q = transpose_qkv(self.W_q(queries), H)  # (B*H, Q, d)
        pooled = np.zeros((B * H, Q, dv), values.dtype)  # (B*H, Q, dv)
        calls = []
        for samples, longest, hides in groups:
            heads = slice(samples.start * H, samples.stop * H)
            W_k, W_v = self.W_k(keys[samples, :longest]), self.W_v(values[samples, :longest])  # (B, K, H*d)
            inputs = split_q[heads], transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled[heads] = self.attention.pool(*inputs, H, *hiding)
            calls.append((heads, samples, longest, (*inputs, H, *hiding)))
        by_merged, by_weights = self.W_o.backward("W_o", transpose_output(pooled, H), cotangent)  # (B, Q, H*dv)
        by_pooled = transpose_qkv(by_merged, H)  # (B*H, Q, dv)
        by_q, by_keys, by_values = map(np.zeros_like, (split_q, keys, values))
        for heads, samples, longest, call in calls:
            by_q[heads], by_k, by_v, by_pooling = self.attention.pool_backward(*call, by_pooled[heads])  # (B*H, T, d)
            k, v = keys[samples, :longest], values[samples, :longest]
            by_keys[samples, :longest], by_W_k = self.W_k.backward("W_k", k, transpose_output(by_k, H))
            by_values[samples, :longest], by_W_v = self.W_v.backward("W_v", v, transpose_output(by_v, H))
            by_weights = _sum(by_weights, by_W_k | by_W_v | by_pooling)
        by_queries, by_W_q = self.W_q.backward("W_q", queries, transpose_output(by_q, H))  # (B, Q, query_size)
        nothing = {name: np.zeros_like(X) for name, X in _parameters(self).items()}
        return {"queries": by_queries, "keys": by_keys, "values": by_values} | nothing | by_weights | by_W_q


class _Dense:
    """A dense layer: x @ kernel + bias, with kernel (in, out)."""

    def __init__(self, in_size, out_size, bias, dtype):
        self.kernel = np.zeros((in_size, out_size), dtype)
        self.bias = np.zeros((out_size,), dtype) if bias else None

    def __call__(self, X):
        X = _matmul(X, self.kernel)  # (..., out)
        return X if self.bias is None else X + self.bias

    def backward(self, name, X, cotangent):
        """Gradients by the input X (..., in) and, under `name`, by the weights; cotangent (..., out)."""
        axes = tuple(range(X.ndim - 1))
        by_weights = {f"{name}.kernel": np.tensordot(widen(X), widen(cotangent), (axes, axes))}  # (in, out)
        if self.bias is not None:
            by_weights[f"{name}.bias"] = widen(cotangent).sum(axes)  # (out,)
        return _matmul(cotangent, self.kernel.T), by_weights  # (..., in)


def _matmul(A, B):
    """A @ B in A's dtype, multiplied in float32 at least: NumPy's own half-precision product is slow and loses bits."""
    return np.matmul(widen(A), widen(B)).astype(A.dtype, copy=False)


def _softmax(X):
    """Softmax over the last axis, shifted by the largest score; NumPy has none of its own."""
    exponentials = np.exp(X - X.max(-1, keepdims=True, initial=np.finfo(X.dtype).min))
    return exponentials / exponentials.sum(-1, keepdims=True)


# 5. Arrays and weights in and out


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return _Dense(in_size, out_size, bias, dtype)


def build(config, arrays, seed=0):
    """The layer of a configuration with the given canonical weights; seed draws dropout where the layer owns it."""
    layer = MultiHeadAttention(config)
    layer.attention.random = np.random.default_rng(seed)
    return set_weights(layer, arrays)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: parameter.copy() for name, parameter in _parameters(layer).items()}


def set_weights(layer, arrays):
    """The layer with these canonical weights, which must fit it."""
    for name, parameter in _parameters(layer).items():
        parameter[...] = arrays[name]
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
    valid_lens, mask = arguments.settle("numpy", layer, queries, keys, values, valid_lens, mask, causal)
    inputs = [checks.plain(X) for X in (queries, keys, values)]
    if cotangent is None:
        cotangent = np.ones((*queries.shape[:2], layer.config.num_hiddens), layer.config.dtype)
    by_all = layer.backward(*inputs, valid_lens, mask, causal, cotangent)
    return {name: X.astype(layer.config.dtype, copy=False) for name, X in by_all.items()}


def trace(layer, queries, keys, values, valid_lens=None, mask=None, causal=False):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    valid_lens, mask = arguments.settle("numpy", layer, queries, keys, values, valid_lens, mask, causal)
    visible = visible_keys(queries, keys, valid_lens, mask, causal)
    return layer.steps(queries, keys, values, visible, training=False)


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return np.asarray(array)


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return np.asarray(X)


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return checks.is_numpy(X)


def known(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return to_numpy(X)


def context(dtype):
    """What a computation in this dtype runs inside of, where the framework asks for it."""
    # The other frameworks compute NaN and infinity without a word; NumPy would warn.
    return np.errstate(all="ignore")


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device():
    """What the framework computes on, in words."""
    return "cpu"


def _sum(these, those):
    """Arrays of the same names, added; a name that only one of the dicts has stays as it is."""
    return these | those | {name: these[name] + those[name] for name in these.keys() & those}


def _parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {name: functools.reduce(getattr, name.split("."), layer) for name in shapes(layer.config)}
