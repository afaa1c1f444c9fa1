"""Known mistakes with heads: how they are split, merged, grouped, counted and gated, and with the output gate.

Letters as in the lessons.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, around, one, only_where, weights_of, with_weights
from mha.parity.diagnosis.mistakes.of_weights import ALL, PART, PROJECTIONS, QKV
from mha.parity.diagnosis.pipeline.pieces import Array, plain_softmax, widen
from mha.parity.diagnosis.pipeline.plan import Plan, replace


def interleave(names: Iterable[str], inward: bool, plan: Plan) -> Plan | None:
    """Read columns of kernels and biases (rows of W_o) as (d, H) instead of (H, d); inward: or the other way round."""
    changed: dict[str, Array | None] = {}
    for name in names:
        heads = plan.groups if name in ("W_k", "W_v") else plan.heads
        for kind in ("kernel", "bias"):
            X = plan.weights.get(f"{name}.{kind}")
            if X is None or (name == "W_o" and kind == "bias"):
                continue
            how = 0 if name == "W_o" else -1, heads, inward
            changed[f"{name}.{kind}"] = plan.once(how, partial(mix_axis, *how), X)
    return with_weights(plan, changed)


def mix_axis(axis: int, heads: int, inward: bool, X: Array) -> Array:
    """Read an axis as (d, H) instead of (H, d); inward: or the other way round."""
    X = np.moveaxis(X, axis, 0)  # (H*d, ...)
    grid = (heads, -1) if inward else (X.shape[0] // heads, heads)
    return np.moveaxis(X.reshape(*grid, *X.shape[1:]).swapaxes(0, 1).reshape(X.shape), 0, axis)


def split_interleaved(X: Array, heads: int) -> Array:
    """Split columns as (d, H)."""
    B, T, width = X.shape
    return X.reshape(B, T, width // heads, heads).transpose(0, 3, 1, 2)  # (B, H, T, d)


def merge_interleaved(X: Array) -> Array:
    """Merge heads as (d, H)."""
    B, H, T, d = X.shape
    return X.transpose(0, 2, 3, 1).reshape(B, T, d * H)  # (B, T, d*H)


def other_heads(heads: int, plan: Plan) -> Plan | None:
    """Take another number of heads, if the features can be split so and no argument has an axis of heads."""
    config = plan.config
    H, d, dv = config.num_heads, config.key_dim, config.value_dim
    plain = plan.groups == H == plan.heads and not plan.norms and plan.frequencies is None
    if not plain or heads == H or (H * d) % heads or (H * dv) % heads:
        return None
    if plan.gates is not None or "sinks" in plan.weights or config.output_gate == "head":  # these have an axis of heads
        return None
    if any(X is not None and X.shape[1] != 1 for X in (plan.mask, plan.score_bias)) or config.pooling != "dot":
        return None
    scale = plan.scale if config.scale is not None else plan.scale * (heads / H) ** 0.5
    return replace(plan, heads=heads, groups=heads, scale=scale)


def tile(X: Array, times: int) -> Array:
    """Tile the heads of keys or values, instead of repeating each: (B, G, K, d) -> (B, H, K, d)."""
    return np.tile(X, (1, times, 1, 1))  # (B, H, K, d)


def regroup_queries(back: bool, plan: Plan) -> Array | None:
    """Return the heads of queries, which lie as (g, r), in the order (r, g); back: or the other way round."""
    if plan.groups in (1, plan.heads):
        return None
    return np.arange(plan.heads).reshape(-1 if back else plan.groups, plan.groups if back else -1).T.ravel()  # (H,)


def regroup_split(back: bool, plan: Plan) -> Plan:
    """Split heads of queries as (r, g)."""
    order: Any = regroup_queries(back, plan)

    def reorder(X: Array) -> Array:
        return X.reshape(*X.shape[:-1], plan.heads, -1)[..., order, :].reshape(X.shape)  # (..., H*d)

    weights = weights_of(plan, "W_q.")
    return with_weights(plan, {name: plan.once(("heads", *order), reorder, X) for name, X in weights.items()})


def regroup_merge(back: bool, plan: Plan) -> Plan:
    """Merge heads of queries as (r, g)."""
    order = regroup_queries(back, plan)
    return around("merge", lambda right, X: right(X[:, order]), plan)


OF_HEADS = (
    Mistake("the heads are interleaved", "columns are taken as (d, H)",
            "reshape (B, T, H*d) to (B, T, H, d), the heads before the features of each; merge likewise", ALL,
            {"by the split": partial(replace, split=split_interleaved),
             "by the split and the merge": partial(replace, split=split_interleaved, merge=merge_interleaved),
             "in W_q, W_k, W_v": partial(interleave, QKV, True),
             "in W_q, W_k, W_v, the other way": partial(interleave, QKV, False),
             "in all four": partial(interleave, PROJECTIONS, True),
             "in all four, the other way": partial(interleave, PROJECTIONS, False)}),
    *(Mistake(f"the heads of {name} are interleaved",
              f"{'rows' if name == 'W_o' else 'columns'} of {name} are taken as (d, H)",
              f"read the {'rows' if name == 'W_o' else 'columns'} of {name} as (H, d), head after head",
              (PART[name],),
              {"": partial(interleave, (name,), True), "the other way": partial(interleave, (name,), False)})
      for name in PROJECTIONS),
    Mistake("the split lacks the permute", "(B, T, H*d) is reshaped to (B, H, T, d) as it lies",
            "reshape to (B, T, H, d), then swap the axes of T and H", ("q", "k", "v"),
            one(partial(replace, split=lambda X, heads: X.reshape(len(X), heads, X.shape[1], -1)))),  # (B, H, T, d)
    Mistake("the merge lacks the permute", "(B, H, T, d) is reshaped to (B, T, H*d) as it lies",
            "swap the axes of H and T, then reshape to (B, T, H*d)", ("output",),
            one(partial(replace, merge=lambda X: X.reshape(len(X), X.shape[2], -1), rows=slice(None)))),  # (B, T, H*d)
    Mistake("another number of heads", "the features are split into more or fewer heads",
            "split the features into as many heads as the model's configuration says",
            ("q", "k", "v", "scores", "weights"),
            {f"{heads} heads": partial(other_heads, heads)
             for heads in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)}),
)  # fmt: skip


OF_GROUPS = only_where(
    lambda plan: plan.groups not in (1, plan.heads),
    Mistake("heads of keys are tiled, not repeated", "query head h reads head h % G, not h // (H / G)",
            "repeat each head of keys H / G times in a row (repeat_interleave); so with values",
            ("scores", "pooled"),
            {"": partial(replace, share=tile, share_values=tile), "alone": partial(replace, share=tile)}),
    Mistake("heads of values are tiled, not repeated", "query head h pools values of head h % G, with the right keys",
            "repeat each head of values H / G times in a row (repeat_interleave), as those of keys",
            ("pooled",), one(partial(replace, share_values=tile))),
    Mistake("heads of queries are split as (r, g)", "head r * G + g is taken for head g * (H / G) + r",
            "split queries as (G, H / G, d): the heads that share keys lie side by side", ("q",),
            {"": partial(regroup_split, True), "the other way": partial(regroup_split, False)}),
    Mistake("heads are merged as (r, g)", "head g * (H / G) + r comes where head r * G + g should",
            "merge heads as (G, H / G, d): the heads that share keys lie side by side", ("output",),
            {"": partial(regroup_merge, False), "the other way": partial(regroup_merge, True)}),
)  # fmt: skip


OF_GATES = only_where(
    lambda plan: plan.gates is not None,
    Mistake("gates of other heads", "the heads' factors come in another order",
            "multiply what head h pools by gate h", ("pooled",),
            {"reversed": lambda plan: replace(plan, gates=plan.gates[:, ::-1]),
             "one head further": lambda plan: replace(plan, gates=np.roll(plan.gates, 1, 1))}),
    Mistake("gates are forgotten", "the heads have no factors",
            "multiply what each head pools by its gate", ("pooled",),
            one(lambda plan: replace(plan, gates=np.ones_like(plan.gates)))),
)  # fmt: skip


def softmax_over(axis: int, plan: Plan) -> Plan:
    """Take the softmax over an axis of the gates, (B, H, T, dv or 1)."""
    return replace(plan, opened=lambda X: plain_softmax(widen(X), axis))


def after_output(plan: Plan) -> Plan | None:
    """Multiply the output by the gates, if they are as many as its features."""
    if plan.weights["W_g.kernel"].shape[1] != plan.config.num_hiddens:
        return None
    return replace(plan, opened=np.ones_like, closed=plan.opened)


def columns(order: Callable[[Plan, int], Array | None], plan: Plan) -> Plan | None:
    """Take columns of W_g in another order, a function of the plan and the gates of a head."""
    width = plan.weights["W_g.kernel"].shape[-1] // plan.heads  # of a head, of which another mistake may count others
    if (chosen := order(plan, width)) is None:
        return None
    return with_weights(plan, {name: X[..., chosen.ravel()] for name, X in weights_of(plan, "W_g.").items()})


def order_by_heads(heads: Callable[[Plan], Array | None], plan: Plan, width: int) -> Array | None:
    """Return the order of columns for an order of heads (H,)."""
    chosen = heads(plan)
    return None if chosen is None else np.arange(plan.heads * width).reshape(plan.heads, width)[chosen]  # (H, dv or 1)


def by_feature(back: bool, plan: Plan, width: int) -> Array:
    """Return the order of columns (H, dv or 1) that are taken as (dv, H); back: the other way."""
    return np.arange(plan.heads * width).reshape((plan.heads, width) if back else (width, plan.heads)).T


def beside_queries(stored: bool, plan: Plan) -> Plan | None:
    """Cut one array of q and gate of each head, (H, d + dv or 1), as if all of q came first; stored: False = back."""
    H, changed = plan.heads, dict[str, Array | None]()
    d = plan.weights["W_q.kernel"].shape[-1] // H
    for kind in ("kernel", "bias"):
        q, g = (plan.weights.get(f"{name}.{kind}") for name in ("W_q", "W_g"))
        if q is None or g is None:
            continue
        heads = [X.reshape(*X.shape[:-1], H, -1) for X in (q, g)]  # (..., H, any)
        packed = np.concatenate(heads if stored else (q, g), -1)
        packed = packed.reshape(*q.shape[:-1], -1) if stored else packed.reshape(*q.shape[:-1], H, -1)
        cut = np.split(packed, [q.shape[-1] if stored else d], -1)
        changed |= {f"{name}.{kind}": X.reshape(*q.shape[:-1], -1) for name, X in zip(("W_q", "W_g"), cut, strict=True)}
    return with_weights(plan, changed)


def swap_kernels(plan: Plan) -> Plan | None:
    """Take W_g for W_q, and W_q for W_g, if they are of one shape; a bias that one of them lacks, the other has not."""
    if plan.weights["W_g.kernel"].shape != plan.weights["W_q.kernel"].shape:
        return None
    pairs = [(one, other, kind) for one, other in (("W_q", "W_g"), ("W_g", "W_q")) for kind in ("kernel", "bias")]
    return with_weights(plan, {f"{one}.{kind}": plan.weights.get(f"{other}.{kind}") for one, other, kind in pairs})


OF_OUTPUT_GATE = only_where(
    lambda plan: plan.opened is not None,
    Mistake("the output gate is left out", "heads are merged as they are pooled",
            "multiply what heads pool by sigmoid(X @ W_g), before W_o", ("pooled",),
            one(partial(replace, opened=np.ones_like))),
    Mistake("the output gate comes after W_o", "the output is multiplied by it, not what is pooled",
            "multiply what heads pool by the gate, before W_o",
            ("pooled", "output"), one(after_output)),
    Mistake("the output gate is of another function", "it is no sigmoid",
            "take the sigmoid of X @ W_g", ("pooled",),
            {"softmax over the features of a head":
                 lambda plan: softmax_over(3, plan) if plan.config.output_gate == "element" else None,
             "softmax over the heads": partial(softmax_over, 1),
             "softplus": partial(replace, opened=lambda X: np.logaddexp(0, widen(X))),
             "tanh": partial(replace, opened=lambda X: np.tanh(widen(X)))}),
    Mistake("the output gate is of other heads", "columns of W_g are taken in another order",
            "read the columns of W_g as (H, dv), as those of W_v: all of head 0, then all of head 1", ("pooled",),
            {"reversed": partial(columns, partial(order_by_heads, lambda plan: np.arange(plan.heads)[::-1])),
             "as (r, g)": partial(columns, partial(order_by_heads, partial(regroup_queries, True))),
             "as (r, g), the other way": partial(columns, partial(order_by_heads, partial(regroup_queries, False))),
             "as (dv, H)": partial(columns, partial(by_feature, False)),
             "as (dv, H), the other way": partial(columns, partial(by_feature, True))}),
    Mistake("the output gate is cut from queries otherwise", "one array has q and gate of each head, and is cut after "
            "all of q, or the other way",
            "cut as the columns lie: if head by head, reshape to (H, d + dv) first, else cut all of q first",
            ("q", "pooled"),
            {"": partial(beside_queries, True), "the other way": partial(beside_queries, False),
             "gate before q": swap_kernels}),
)  # fmt: skip
