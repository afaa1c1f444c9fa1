"""The gradients of the lesson's classes, derived by hand: NumPy does not differentiate by itself.

In float64 they are the reference that the other frameworks' gradients are measured against. `by_X` is the gradient of
the loss by X. Letters as in layer.py.
"""

import copy
import functools
import math

import numpy as np

from mha.config import shapes

from . import layer as lesson
from .heads import positions, rotate, widen
from .layer import (
    blank_unused,
    four_axes,
    repeat_groups,
    repeat_heads,
    transpose_output,
    transpose_qkv,
    visible_softmax,
)

# 1. A dense layer, a norm, and what was broadcast


def through_dense(dense, name, X, by_output):
    """Gradients of dense(X) by X (..., in) and, in a dict, by the weights called `name`; by_output (..., out)."""
    axes = tuple(range(X.ndim - 1))
    by_weights = {f"{name}.kernel": np.tensordot(widen(X), widen(by_output), (axes, axes))}  # (in, out)
    if dense.bias is not None:
        by_weights[f"{name}.bias"] = widen(by_output).sum(axes)  # (out,)
    return lesson._matmul(by_output, dense.kernel.T), by_weights  # (..., in)


def through_norm(norm, name, X, by_output):
    """Gradients of norm(X) by X (B*H, T, d) and, in a dict, by the scale called `name`; by_output (B*H, T, d)."""
    normalized, roots = norm.normalize(X)  # (B*H, T, d), (B*H, T, 1)
    by_scale = (widen(by_output) * normalized).sum((0, 1))  # (d,)
    by_normalized = widen(by_output) * widen(norm.scale)  # (B*H, T, d)
    by_X = by_normalized - normalized * (by_normalized * normalized).mean(-1, keepdims=True)
    if norm.kind == "layer":
        by_X = by_X - by_normalized.mean(-1, keepdims=True)
    return (by_X / roots).astype(X.dtype), {f"{name}.scale": by_scale}


def summed(by_X, shape):
    """The gradient by an array of this shape, all axes kept, that was broadcast to that of by_X."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return by_X.sum(axes, keepdims=True)


def added(these, those):
    """Gradients of the same names, added; a name that only one of the dicts has stays as it is."""
    return these | those | {name: these[name] + those[name] for name in these.keys() & those}


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that knows its gradients."""

    def backward(self, queries, keys, values, visible, score_bias, training, by_pooled):
        """Gradients by queries, keys, values, biased scores and, by name, its own weights; it drops as `random` draws.

        by_pooled (B, Q, dv). With p = softmax(s), the gradient by s is p * (by_p - sum(p * by_p)); it is 0 wherever p
        is, so that hidden keys and rows without keys receive nothing.
        """
        dtype = values.dtype
        queries, keys, values = map(widen, blank_unused(queries, keys, values, visible))
        by_pooled = widen(by_pooled)
        scores = self.scores(queries, keys)  # (B, Q, K)
        capped = scores if self.softcap is None else lesson.cap(scores, self.softcap, visible)  # (B, Q, K)
        biased = capped if score_bias is None else capped + widen(score_bias)  # (B, Q, K)
        weights = visible_softmax(biased, visible)  # (B, Q, K)
        kept = self.drop(np.ones_like(weights), training)  # (B, Q, K)
        by_weights = kept * (by_pooled @ values.swapaxes(1, 2))  # (B, Q, K)
        by_weights = by_weights if visible is None else np.where(visible, by_weights, 0)  # 0 * NaN is NaN
        by_biased = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))  # (B, Q, K)
        by_scores = by_biased if self.softcap is None else by_biased * (1 - (capped / self.softcap) ** 2)  # (B, Q, K)
        by_queries, by_keys, by_parameters = self.scores_backward(queries, keys, by_scores)
        by_values = (kept * weights).swapaxes(1, 2) @ by_pooled  # (B, K, dv)
        by_inputs = blank_unused(by_queries, by_keys, by_values, visible)
        return *(X.astype(dtype) for X in (*by_inputs, by_biased)), by_parameters


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """Scaled dot-product attention that knows its gradients."""

    def scores_backward(self, queries, keys, by_scores):
        """Gradients of the scores by queries, keys and (there are none) weights; by_scores (B, Q, K)."""
        scaled = by_scores * (1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale)  # (B, Q, K)
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

    def vjp(self, queries, keys, values, hiding, head_gates, training):
        """The output (B, Q, D) of a call, arguments as of `attend`, and the function of its gradients.

        The function takes by_output (B, Q, D); it gives gradients by inputs and, by name, weights. Every step is
        rounded to the layer's dtype.
        """
        config, B, Q, K = self.config, queries.shape[0], queries.shape[1], keys.shape[1]
        H, G, bias = config.num_heads, config.num_key_value_heads, hiding.score_bias
        visible = lesson.visible_keys(queries, keys, *hiding)
        in_any_head = None if visible is None else visible.any(1)  # (B, Q, K)
        inputs = blank_unused(queries, keys, values, in_any_head)
        again = copied(self.attention)
        steps = self.steps(*inputs, visible, bias, hiding.offset, head_gates, training)
        visible = repeat_heads(visible, B, H)  # (B*H, Q, K)
        biases = None if bias is None else repeat_heads(four_axes(bias), B, H)  # (B*H, Q, K)

        def pool_backward(q, k, v, by_pooled):
            k, v = repeat_groups(k, H // G), repeat_groups(v, H // G)  # (B*H, K, d)
            by_all = copied(again).backward(q, k, v, visible, biases, training, by_pooled)
            by_q, by_k, by_v, by_biased, by_parameters = by_all
            by_k, by_v = (X.reshape(B * G, H // G, K, X.shape[2]).sum(1) for X in (by_k, by_v))  # (B*G, K, d)
            by_biased = by_biased.reshape(B, H, Q, K)  # (B, H, Q, K)
            by_bias = None if bias is None else summed(by_biased, four_axes(bias).shape)
            return by_q, by_k, by_v, by_bias, by_parameters

        return steps["output"], functools.partial(self.pull_back, inputs, hiding, head_gates, steps, pool_backward)

    def pull_back(self, inputs, hiding, head_gates, steps, pool_backward, by_output):
        """Gradients by inputs, score_bias and head_gates where they are, and weights, by name.

        inputs: queries, keys and values, blank where they are not used; steps: those of the call; by_output (B, Q, D).
        pool_backward(q, k, v, by_pooled) gives gradients by heads of queries, keys and values as the pooling got them,
        by score_bias with four axes or None, and by name by the pooling's weights.
        """
        (queries, keys, values), config, by_more = inputs, self.config, {}
        B, H, G = queries.shape[0], config.num_heads, config.num_key_value_heads
        by_merged, by_weights = through_dense(self.W_o, "W_o", steps["merged"], by_output)  # (B, Q, H*dv)
        by_pooled = transpose_qkv(by_merged, H)  # (B*H, Q, dv)
        if head_gates is not None:
            by_gates = (widen(by_pooled) * widen(steps["pooled"])).sum((1, 2)).reshape(B, H)  # (B, H)
            by_more["head_gates"] = by_gates if head_gates.ndim == 2 else by_gates.sum(0)
            by_pooled = by_pooled * np.broadcast_to(head_gates, (B, H)).reshape(B * H, 1, 1)  # (B*H, Q, dv)
        q, k = (steps.get(f"rotate_{one}", steps.get(f"norm_{one}", steps[f"split_{one}"])) for one in "qk")
        by_q, by_k, by_v, by_bias, by_pooling = pool_backward(q, k, steps["split_v"], by_pooled)
        if by_bias is not None:
            by_more = {"score_bias": by_bias.reshape(hiding.score_bias.shape)} | by_more  # (Q, K) and others
        if config.rotary:
            by_q = rotate(by_q, -positions(by_q, hiding.offset), config.rotary, H)  # (B*H, Q, d)
            by_k = rotate(by_k, -positions(by_k), config.rotary, G)  # (B*G, K, d)
        if config.qk_norm:
            by_q, by_q_scale = through_norm(self.q_norm, "q_norm", steps["split_q"], by_q)
            by_k, by_k_scale = through_norm(self.k_norm, "k_norm", steps["split_k"], by_k)
            by_weights |= by_q_scale | by_k_scale
        by_q, by_k, by_v = (transpose_output(X, n) for X, n in ((by_q, H), (by_k, G), (by_v, G)))  # (B, T, H*d)
        by_queries, by_W_q = through_dense(self.W_q, "W_q", queries, by_q)
        by_keys, by_W_k = through_dense(self.W_k, "W_k", keys, by_k)
        by_values, by_W_v = through_dense(self.W_v, "W_v", values, by_v)
        by_inputs = {"queries": by_queries, "keys": by_keys, "values": by_values} | by_more
        by_weights |= by_W_q | by_W_k | by_W_v | by_pooling
        return by_inputs | {name: by_weights[name] for name in shapes(config)}
