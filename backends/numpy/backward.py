"""The gradients of the lesson's classes, derived by hand: NumPy does not differentiate by itself.

In float64 they are the reference that the other frameworks' gradients are measured against. `by_X` is the gradient of
the loss by X. Letters as in layer.py.
"""

import copy
import functools
import math

import numpy as np

from . import layer as lesson
from .layer import blank_unused, transpose_output, transpose_qkv, visible_softmax, widen

# 1. A dense layer


def through_dense(dense, name, X, by_output):
    """Gradients of dense(X) by X (..., in) and, in a dict, by the weights called `name`; by_output (..., out)."""
    axes = tuple(range(X.ndim - 1))
    by_weights = {f"{name}.kernel": np.tensordot(widen(X), widen(by_output), (axes, axes))}  # (in, out)
    if dense.bias is not None:
        by_weights[f"{name}.bias"] = widen(by_output).sum(axes)  # (out,)
    return lesson._matmul(by_output, dense.kernel.T), by_weights  # (..., in)


def added(these, those):
    """Gradients of the same names, added; a name that only one of the dicts has stays as it is."""
    return these | those | {name: these[name] + those[name] for name in these.keys() & those}


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that knows its gradients."""

    def backward(self, queries, keys, values, visible, training, by_pooled):
        """Gradients of a call by queries, keys, values and, by name, its own weights; it drops what `random` draws.

        by_pooled (B, Q, dv). With p = softmax(s), the gradient by s is p * (by_p - sum(p * by_p)); it is 0 wherever p
        is, so that hidden keys and rows without keys receive nothing.
        """
        dtype = values.dtype
        queries, keys, values = map(widen, blank_unused(queries, keys, values, visible))
        by_pooled = widen(by_pooled)
        weights = visible_softmax(self.scores(queries, keys), visible)  # (B, Q, K)
        kept = self.drop(np.ones_like(weights), training)  # (B, Q, K)
        by_weights = kept * (by_pooled @ values.swapaxes(1, 2))  # (B, Q, K)
        by_weights = by_weights if visible is None else np.where(visible, by_weights, 0)  # 0 * NaN is NaN
        by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))  # (B, Q, K)
        by_queries, by_keys, by_parameters = self.scores_backward(queries, keys, by_scores)
        by_values = (kept * weights).swapaxes(1, 2) @ by_pooled  # (B, K, dv)
        by_inputs = blank_unused(by_queries, by_keys, by_values, visible)
        return *(X.astype(dtype) for X in by_inputs), by_parameters


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that knows its gradients."""

    def scores_backward(self, queries, keys, by_scores):
        """Gradients of the scores by queries, keys and (there are none) weights; by_scores (B, Q, K)."""
        scaled = by_scores / math.sqrt(queries.shape[-1])  # (B, Q, K)
        return scaled @ keys, scaled.swapaxes(1, 2) @ queries, {}


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """Additive attention that knows its gradients."""

    def scores_backward(self, queries, keys, by_scores):
        """Gradients of the scores by queries, keys and, by name, the weights; by_scores (B, Q, K)."""
        features = self.features(queries, keys)  # (B, Q, K, n)
        by_features, by_w_v = through_dense(self.w_v, "attention.w_v", features, by_scores[:, :, :, None])
        by_sum = by_features * (1 - features**2)  # (B, Q, K, n)
        by_queries, by_W_q = through_dense(self.W_q, "attention.W_q", queries, by_sum.sum(2))
        by_keys, by_W_k = through_dense(self.W_k, "attention.W_k", keys, by_sum.sum(1))
        return by_queries, by_keys, by_W_q | by_W_k | by_w_v


def copied(pooling):
    """A pooling with the same weights that draws for its dropout what this one would draw next."""
    twin = copy.copy(pooling)
    twin.random = copy.deepcopy(pooling.random)
    return twin


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer, which knows its gradients."""

    pooling = staticmethod(pooling)

    def vjp(self, queries, keys, values, valid_lens, mask, causal, training):
        """The output (B, Q, D) of a call, arguments as of `attend`, and the function of its gradients.

        The function takes by_output (B, Q, D); it gives gradients by inputs and, by name, weights. Every step is
        rounded to the layer's dtype.
        """
        visible = lesson.visible_keys(queries, keys, valid_lens, mask, causal)
        in_any_head = None if visible is None else visible.any(1)  # (B, Q, K)
        queries, keys, values = blank_unused(queries, keys, values, in_any_head)
        again = copied(self.attention)
        steps, B, H = self.steps(queries, keys, values, visible, training), len(queries), self.config.num_heads

        def backward(by_output):
            by_merged, by_W_o = through_dense(self.W_o, "W_o", steps["merged"], by_output)  # (B, Q, H*dv)
            heads = steps["split_q"], steps["split_k"], steps["split_v"], lesson.repeat_heads(visible, B, H)
            by_pooled = transpose_qkv(by_merged, H)  # (B*H, Q, dv)
            *by_heads, by_pooling = copied(again).backward(*heads, training, by_pooled)  # (B*H, T, d)
            by_q, by_k, by_v = (transpose_output(X, H) for X in by_heads)  # (B, T, H*d)
            by_queries, by_W_q = through_dense(self.W_q, "W_q", queries, by_q)
            by_keys, by_W_k = through_dense(self.W_k, "W_k", keys, by_k)
            by_values, by_W_v = through_dense(self.W_v, "W_v", values, by_v)
            by_inputs = {"queries": by_queries, "keys": by_keys, "values": by_values}
            return by_inputs | by_W_q | by_W_k | by_W_v | by_W_o | by_pooling

        return steps["output"], backward
