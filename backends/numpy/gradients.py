"""Chapter 5: how NumPy differentiates: not at all. Here are the gradients of the steps, derived by hand.

In float64 they are the reference that the other frameworks' gradients are measured against. `by_X` is the gradient of
the loss by X. Letters as in layer.py.
"""

import copy
import math

import numpy as np

from mha.core.call import ALL, Call, record_steps, trace_call
from mha.core.options import checks
from mha.core.options.config import shapes

from .heads import repeat_groups, repeat_heads, rotate, sigmoid, temper, transpose_output, transpose_qkv
from .hiding import four_axes, places, visible_keys, visible_softmax, widen, with_sinks, zero_unused
from .pooling import AdditiveAttention
from .slots import take
from .weights import matmul

# What the steps of a call give


def vjp(layer, queries, keys, values, call):
    """The output (B, Q, D) of a checked call, a `Call`, and what pulls gradients back through it.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, the call's floats where they are given, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    twin = copy.deepcopy(layer)  # the layer itself may change
    if call.training:
        twin.attention.random = np.random.default_rng(layer.attention.random.integers(2**63))
    again, inputs, kept = twin_of(twin.attention), [checks.plain(X) for X in (queries, keys, values)], []
    parts = layer.parts(queries, keys, call) if hasattr(layer, "parts") else [ALL]  # samples that are computed together
    for samples in parts:
        with record_steps() as steps:  # what an engine decided is for the whole call, not for its parts
            twin.attend(*(X[samples] for X in inputs), call.part(samples).with_plan(engine=None))
        kept.append(steps)
    output = np.concatenate([steps["output"] for steps in kept])  # (B, Q, D)

    def pull_back(cotangent):
        given = dict(zip(("queries", "keys", "values"), inputs, strict=True)) | call.differentiable()
        found = {name: np.zeros_like(widen(X)) for name, X in given.items()}
        by_call = Call(**{name: found[name] for name in call.differentiable()})
        attention = twin_of(again)
        for samples, steps in zip(parts, kept, strict=True):
            by_part = through_steps(twin, attention, steps, cotangent[samples])
            seen = steps.get("seen", ALL)
            places = {name: found[name][samples, seen if name != "queries" else ALL] for name in list(found)[:3]}
            for name, place in (places | by_call.part(samples, keys=seen).arrays()).items():
                place += by_part.pop(name)
            found |= add_by_name({name: X for name, X in found.items() if name in by_part}, by_part)
        names = [*given, *shapes(layer.config)]
        return {name: found[name].astype(layer.config.dtype, copy=False) for name in names}

    return output, pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, call._replace(training=False))
    return pull_back(np.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    return trace_call(layer.attend, queries, keys, values, call, take, repeat_groups)


# Back through the steps, the last one first


def through_steps(layer, attention, steps, by_output):
    """Gradients by inputs, the floats of the call, and weights, by name; by_output (B, Q, D).

    steps: those that the call kept; attention: the pooling, which drops what it dropped then. Every step is rounded to
    the layer's dtype.
    """
    (queries, keys, values, call), config, by_more = steps["inputs"], layer.config, {}
    B, H, G = queries.shape[0], config.num_heads, config.num_key_value_heads
    by_merged, by_weights = through_dense(layer.W_o, "W_o", steps["merged"], by_output)  # (B, Q, H*dv)
    by_pooled, by_opened = transpose_qkv(by_merged, H), 0  # (B*H, Q, dv)
    if config.output_gate:
        inputs = steps.get("head_gated", steps["pooled"]), transpose_qkv(layer.W_g(queries), H)
        by_pooled, by_gates = through_gate(*inputs, by_pooled)  # (B*H, Q, dv), (B*H, Q, dv or 1)
        by_opened, by_W_g = through_dense(layer.W_g, "W_g", queries, transpose_output(by_gates, H))
        by_weights |= by_W_g
    if call.head_gates is not None:
        by_gates = (widen(by_pooled) * widen(steps["pooled"])).sum((1, 2)).reshape(B, H)  # (B, H)
        by_more["head_gates"] = by_gates if call.head_gates.ndim == 2 else by_gates.sum(0)
        by_pooled = by_pooled * np.broadcast_to(call.head_gates, (B, H)).reshape(B * H, 1, 1)  # (B*H, Q, dv)
    q, k, v = (next(X for name, X in reversed(steps.items()) if name.endswith(one)) for one in ("_q", "_k", "_v"))
    through = getattr(attention, "pool_backward", None)
    through = through_pooling if call.plan.lesson or through is None else type(attention).pool_backward
    inputs = q, k, v, H, layer.beside_sinks(call)
    by_q, by_k, by_v, by_bias, by_pooling = through(attention, *inputs, by_pooled)
    if by_bias is not None:
        by_more["score_bias"] = by_bias.reshape(call.score_bias.shape)  # (Q, K) and others
    if config.temperature:
        by_q = temper(by_q, places(by_q, call.positions, call.offset), config.temperature, H)  # (B*H, Q, d)
    after = config.qk_norm and config.qk_norm.after
    for step in ("norm", "rotate") if after else ("rotate", "norm"):
        if step == "rotate" and config.rotary:
            by_q = rotate(by_q, -places(by_q, call.positions, call.offset), config.rotary, H)  # (B*H, Q, d)
            by_k = rotate(by_k, -places(by_k, call.key_positions), config.rotary, G)  # (B*G, K, d)
        if step == "norm" and config.qk_norm:
            last = "rotate" if after and config.rotary else "split"
            by_q, by_q_scale = through_norm(layer.q_norm, "q_norm", steps[f"{last}_q"], by_q)
            by_k, by_k_scale = through_norm(layer.k_norm, "k_norm", steps[f"{last}_k"], by_k)
            by_weights |= by_q_scale | by_k_scale
    if config.value_norm:
        by_v, by_v_scale = through_norm(layer.v_norm, "v_norm", steps["split_v"], by_v)
        by_weights |= by_v_scale
    by_q, by_k, by_v = (transpose_output(X, n) for X, n in ((by_q, H), (by_k, G), (by_v, G)))  # (B, T, H*d)
    by_queries, by_W_q = through_dense(layer.W_q, "W_q", queries, by_q)
    by_keys, by_W_k = through_dense(layer.W_k, "W_k", keys, by_k)
    by_values, by_W_v = through_dense(layer.W_v, "W_v", values, by_v)
    by_inputs = {"queries": by_queries + by_opened, "keys": by_keys, "values": by_values}
    return by_inputs | by_more | by_weights | by_W_q | by_W_k | by_W_v | by_pooling


def through_pooling(attention, q, k, v, num_heads, call, by_pooled):
    """Gradients by q (B*H, Q, d), k (B*G, K, d), v, score_bias with four axes or None, and weights by name."""
    (BH, Q, _), (BG, K, _) = q.shape, k.shape
    B, times = BH // num_heads, max(1, BH // max(1, BG))
    visible = repeat_heads(visible_keys(q, k, call), B, num_heads)  # (B*H, Q, K)
    bias = None if call.score_bias is None else four_axes(call.score_bias)  # (B or 1, H or 1, Q or 1, K or 1)
    k, v = repeat_groups(k, times), repeat_groups(v, times)  # (B*H, K, d)
    rows = visible, *(repeat_heads(X, B, num_heads) for X in (bias, call.plan.sinks))  # (B*H, Q or 1, K or 1)
    found = through_weights(attention, q, k, v, *rows, call.training, by_pooled)
    by_q, by_k, by_v, by_biased, by_sinks, by_parameters = found
    by_k, by_v = (X.reshape(BG, times, K, X.shape[2]).sum(1) for X in (by_k, by_v))  # (B*G, K, d)
    by_biased = by_biased.reshape(B, num_heads, Q, K)  # (B, H, Q, K)
    if call.plan.sinks is not None:
        by_parameters["sinks"] = by_sinks.reshape(B, num_heads, Q).sum((0, 2))  # (H,)
    return by_q, by_k, by_v, None if bias is None else sum_to_shape(by_biased, bias.shape), by_parameters


def through_weights(attention, queries, keys, values, visible, score_bias, sinks, training, by_pooled):
    """Gradients by queries, keys, values, biased scores, sinks and, by name, the weights of a pooling.

    by_pooled (B, Q, dv); that by sinks is (B, Q, 1), with no column if there are none.

    With p = softmax(s), the gradient by s is p * (by_p - sum(p * by_p)); it is 0 wherever p is, so that hidden keys and
    rows without keys receive nothing. What is dropped is what `attention.random` draws.
    """
    dtype = values.dtype
    queries, keys, values = map(widen, zero_unused(queries, keys, values, visible))
    by_pooled, scores = widen(by_pooled), attention.scores(queries, keys)  # (B, Q, K)
    biased = attention.bend(scores, visible, score_bias)  # (B, Q, K)
    columns = (biased, visible) if sinks is None else with_sinks(biased, visible, sinks)
    shares, K = visible_softmax(*columns), keys.shape[1]  # (B, Q, K), with sinks (B, Q, K + 1)
    weights = shares[:, :, :K]  # (B, Q, K)
    kept = attention.drop(np.ones_like(weights), training)  # (B, Q, K)
    by_weights = kept * (by_pooled @ values.swapaxes(1, 2))  # (B, Q, K)
    by_weights = by_weights if visible is None else np.where(visible, by_weights, 0)  # 0 * NaN is NaN
    total = (weights * by_weights).sum(-1, keepdims=True)  # (B, Q, 1)
    by_biased = weights * (by_weights - total)  # (B, Q, K)
    by_sinks = -total * shares[:, :, K:]  # (B, Q, 1), or (B, Q, 0)
    by_scores, softcap = by_biased, attention.softcap
    if softcap is not None:
        by_scores = by_scores * (1 - (attention.bend(scores, visible) / softcap) ** 2)  # (B, Q, K)
    through_scores = through_features if isinstance(attention, AdditiveAttention) else through_products
    by_queries, by_keys, by_parameters = through_scores(attention, queries, keys, by_scores)
    by_values = (kept * weights).swapaxes(1, 2) @ by_pooled  # (B, K, dv)
    by_inputs = zero_unused(by_queries, by_keys, by_values, visible)
    return *(X.astype(dtype) for X in (*by_inputs, by_biased)), by_sinks, by_parameters


def through_products(attention, queries, keys, by_scores):
    """Gradients of scaled products by queries, keys and (there are none) weights; by_scores (B, Q, K)."""
    scale = 1 / math.sqrt(queries.shape[-1]) if attention.scale is None else attention.scale
    scaled = by_scores * scale  # (B, Q, K)
    return scaled @ keys, scaled.swapaxes(1, 2) @ queries, {}


def through_features(attention, queries, keys, by_scores):
    """Gradients of additive scores by queries, keys and, by name, the weights; by_scores (B, Q, K)."""
    features = attention.features(queries, keys)  # (B, Q, K, n)
    by_features, by_w_v = through_dense(attention.w_v, "attention.w_v", features, by_scores[:, :, :, None])
    by_sum = by_features * (1 - features**2)  # (B, Q, K, n)
    by_queries, by_W_q = through_dense(attention.W_q, "attention.W_q", queries, by_sum.sum(2))
    by_keys, by_W_k = through_dense(attention.W_k, "attention.W_k", keys, by_sum.sum(1))
    return by_queries, by_keys, by_W_q | by_W_k | by_w_v


def through_gate(pooled, gates, by_gated):
    """Gradients of gate_by(pooled, gates) by pooled (B*H, Q, dv) and gates (B*H, Q, dv or 1); by_gated as pooled.

    A gate of a query that sees nothing gets none: it multiplies 0.
    """
    opened, by_gated = sigmoid(widen(gates)), widen(by_gated)
    by_gates = by_gated * widen(pooled) * opened * (1 - opened)  # (B*H, Q, dv)
    if gates.shape[2] == 1:
        by_gates = by_gates.sum(2, keepdims=True)  # (B*H, Q, 1)
    return (by_gated * opened).astype(pooled.dtype), by_gates.astype(pooled.dtype)


def through_dense(dense, name, X, by_output):
    """Gradients of dense(X) by X (..., in) and, in a dict, by the weights called `name`; by_output (..., out)."""
    axes = tuple(range(X.ndim - 1))
    by_weights = {f"{name}.kernel": np.tensordot(widen(X), widen(by_output), (axes, axes))}  # (in, out)
    if dense.bias is not None:
        by_weights[f"{name}.bias"] = widen(by_output).sum(axes)  # (out,)
    return matmul(by_output, dense.kernel.T), by_weights  # (..., in)


def through_norm(norm, name, X, by_output):
    """Gradients of norm(X) by X (B*H, T, d) and, in a dict, by the scale called `name`; by_output (B*H, T, d)."""
    if norm.norm.over == "all":
        X, by_output = (transpose_output(one, norm.num_heads) for one in (X, by_output))  # (B, T, H*d)
    normalized, roots = norm.normalize(X)  # (B*H, T, d) or (B, T, H*d), and (B*H, T, 1) or (B, T, 1)
    by_scale = (widen(by_output) * normalized).sum((0, 1))  # (d,) or (H*d,)
    by_normalized = widen(by_output) * widen(norm.scale)  # (B*H, T, d) or (B, T, H*d)
    by_X = by_normalized - normalized * (by_normalized * normalized).mean(-1, keepdims=True)
    if norm.norm.kind == "layer":
        by_X = by_X - by_normalized.mean(-1, keepdims=True)
    by_X = (by_X / roots).astype(X.dtype)  # (B*H, T, d) or (B, T, H*d)
    by_X = transpose_qkv(by_X, norm.num_heads) if norm.norm.over == "all" else by_X  # (B*H, T, d)
    return by_X, {f"{name}.scale": by_scale}


def sum_to_shape(by_X, shape):
    """The gradient by an array of this shape, all axes kept, that was broadcast to that of by_X."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return by_X.sum(axes, keepdims=True)


def add_by_name(these, those):
    """Gradients of the same names, added; a name that only one of the dicts has stays as it is."""
    return these | those | {name: these[name] + those[name] for name in these.keys() & those}


def twin_of(pooling):
    """A pooling with the same weights that draws for its dropout what this one would draw next."""
    twin = copy.copy(pooling)
    twin.random = copy.deepcopy(pooling.random)
    return twin
