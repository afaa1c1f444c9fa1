"""Chapter 1: what hides keys from queries, in MXNet: booleans, zeros, and a softmax over what is visible.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads.

Source: Dive into Deep Learning, section "Attention Scoring Functions".
"""

import functools
import math
import operator

import numpy as onp
from mxnet import np, npx

from mha.core.call import Call
from mha.core.options.checks import FURTHEST


def visible_keys(queries, keys, call):
    """Combine all that hides keys from queries into one array of booleans, True = may attend.

    Of queries (B, Q, any) and keys (B, K, any) only the sizes and the device are used. The rest is a checked
    `Call`. Lengths hide the keys from there on. A mask hides where it is False. A score_bias hides where it is
    -inf. Query i is at position offset + i and key j at j. Tokens are where positions and key_positions say instead;
    one at a position below 0 is padding: a key there is hidden, a query there sees nothing. A causal order hides the
    keys after a query. window = (left, right) hides those further before or after it; None = no bound. chunk = n hides
    those of other runs of n positions, counted from 0. segments and key_segments hide the keys of another segment than
    the query's, and those of one below 0, which is padding.

    Returns booleans of four axes that broadcast against (B, H, Q, K), or None if nothing is hidden.
    """
    left, right = call.plan.window or (None, None)
    chunk = call.plan.chunk
    causal = call.causal or 0 in (queries.shape[1], keys.shape[1])  # an empty order: without queries no key is seen
    conditions = []
    if call.valid_lens is not None:
        per_query = call.valid_lens[:, None] if call.valid_lens.ndim == 1 else call.valid_lens  # (B, 1 or Q)
        lengths = signed(per_query, keys.shape[1])[:, None, :, None]  # (B, 1, 1 or Q, 1)
        conditions.append(places(keys)[0] < lengths)  # (B, 1, 1 or Q, K)
    if call.mask is not None:
        conditions.append(four_axes(call.mask))  # (B, 1 or H, Q, K)
    if call.score_bias is not None:
        conditions.append(four_axes(call.score_bias) != -math.inf)  # (B, 1 or H, Q, K)
    if causal or call.by_positions() or not left is right is chunk is None:
        each_query = places(queries, call.positions, call.offset)[:, None, :, None]  # (B or 1, 1, Q, 1)
        each_key = places(keys, call.key_positions)[:, None, None]  # (B or 1, 1, 1, K)
    if call.positions is not None:
        conditions.append(each_query >= 0)  # (B or 1, 1, Q, 1)
    if call.key_positions is not None:
        conditions.append(each_key >= 0)  # (B or 1, 1, 1, K)
    if call.segments is not None:
        own, others = call.segment_ids().values()
        own = places(queries, own)[:, None, :, None]  # (B or 1, 1, Q, 1)
        others = places(keys, others)[:, None, None]  # (B or 1, 1, 1, K)
        conditions += [own >= 0, own == others]  # (B or 1, 1, Q, 1), (B or 1, 1, Q, K)
    if causal:
        conditions.append(each_key <= each_query)  # (B or 1, 1, Q, K)
    if left is not None:
        conditions.append(each_query - left <= each_key)  # (B or 1, 1, Q, K)
    if right is not None:
        conditions.append(each_key - right <= each_query)  # (B or 1, 1, Q, K)
    if chunk is not None:
        conditions.append(each_query - each_query % chunk == each_key - each_key % chunk)  # (B or 1, 1, Q, K)
    return functools.reduce(operator.mul, conditions) if conditions else None  # MXNet 1.9 has no `logical_and`


def places(X, given=None, offset=0):
    """Places (B or 1, T) of the rows of X (B, T, any), one after another.

    given: positions or segments instead, integers (T,) or (B, T). offset: that of the first, an int or (B or 1, 1).
    """
    if given is not None:
        return signed(given if len(given.shape) == 2 else given[None], FURTHEST)  # (B or 1, T)
    T = X.shape[1]
    return offset + np.arange(T, dtype="int64").reshape(1, T)  # (B or 1, T); `[None]` takes MXNet longer


def signed(numbers, most):
    """Lengths or positions as integers that are compared without wrapping around; beyond most, one is as another."""
    return numbers.astype("int64")


def four_axes(pairs):
    """A mask or bias of pairs, (Q, K), (B, Q, K) or (B, H, Q, K), with all four axes, of which any size may be 1."""
    pairs = pairs[None] if len(pairs.shape) == 2 else pairs  # (B, Q, K) or (B, H, Q, K)
    return pairs[:, None] if len(pairs.shape) == 3 else pairs  # (B, 1 or H, Q, K)


def zero_unused(queries, keys, values, visible):
    """Put zeros for queries that see no key, and for keys and values that no query sees.

    queries (B, Q, any), keys and values (B, K, any), visible broadcasts against (B, Q, K) or is None. A weight of zero
    alone would not keep padding out: 0 * NaN is NaN, in the output and in every gradient.
    """
    if visible is None:
        return queries, keys, values
    sees, seen = visible.any(2)[:, :, None], visible.any(1)[:, :, None]  # (B, Q, 1), (B, K, 1)
    queries = where(sees, queries, np.zeros_like(queries))
    keys = where(seen, keys, np.zeros_like(keys))
    values = where(seen, values, np.zeros_like(values))
    return queries, keys, values


def visible_softmax(scores, visible, sinks=None):
    """Softmax over the visible keys, in float32 at least: hidden keys weigh exactly 0, and so does a row without keys.

    scores (B, Q, K), visible broadcasts against it or is None. sinks: one more score of each row, (B or 1, Q or 1, 1),
    whose weight is left out; None = none. Returns weights (B, Q, K).
    """
    scores = widen(scores)
    if sinks is not None:
        return visible_softmax(*with_sinks(scores, visible, sinks))[..., :-1]  # (B, Q, K)
    if visible is None:
        return npx.softmax(scores)
    hidden = np.log(1 - visible.any(-1, keepdims=True).astype(scores.dtype))  # (B, Q, 1), of minus infinity and 0
    weights = npx.softmax(where(visible, scores, hidden))
    return where(visible, weights, np.zeros_like(weights))


def with_sinks(scores, visible, sinks):
    """Scores (B, Q, K) and what is visible, with sinks (B or 1, Q or 1, 1) as those of one more key, which all see."""
    column = (*scores.shape[:-1], 1)
    if visible is not None:
        visible = np.broadcast_to(visible, scores.shape)  # (B, Q, K)
        visible = np.concatenate([visible, np.ones(column, dtype="bool")], -1)  # (B, Q, K + 1)
    return np.concatenate([scores, np.broadcast_to(widen(sinks), column)], -1), visible  # (B, Q, K + 1)


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, integers (B,) or (B, Q); None hides nothing.

    Returns weights of X's shape and dtype. Unlike in the book, a length of 0 gives a row of zeros.
    """
    visible = visible_keys(X, X.swapaxes(1, 2), Call(valid_lens))  # (B, 1, 1 or Q, K)
    weights = visible_softmax(X, None if visible is None else visible[:, 0])
    return weights.astype(X.dtype)


def widen(X):
    """X in float32 where it has half precision: scores overflow float16, and differences of them lose most bits."""
    return X.astype(onp.promote_types(X.dtype, onp.float32), copy=False)


def where(condition, X, Y):
    """X where the condition holds, else Y: arrays both, as MXNet sends X no gradient if Y is a number.

    It crashes if it broadcasts to an empty array.
    """
    return X if X.size == 0 else np.where(condition, X, Y)


def over_axes(X, *sizes):
    """X, or None, to be broadcast over axes of these sizes. Over an empty one, zeros of X's shape in its graph.

    MXNet's gradient of what broadcasts over an empty axis is whatever the memory held; these zeros send X none.
    """
    if X is None or 0 not in sizes:
        return X
    return where(np.zeros(X.shape, dtype="bool"), X, np.zeros_like(X))
