"""Known mistakes with the output gate, of layers that have one."""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, only_where, weights_of, with_weights
from mha.parity.diagnosis.mistakes.of_heads import regroup_queries
from mha.parity.diagnosis.pipeline.pieces import Array, widen
from mha.parity.diagnosis.pipeline.plan import Plan, replace


def softmax_over(axis: int, X: Array) -> Array:
    """Return the softmax over an axis."""
    shares = np.exp(widen(X) - widen(X).max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def of_features(plan: Plan) -> Plan | None:
    """Take the softmax over the features of a head."""
    return replace(plan, opened=partial(softmax_over, 3)) if plan.config.output_gate == "element" else None


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
    """Take W_g for W_q, and W_q for W_g, if they are of one shape."""
    if plan.weights["W_g.kernel"].shape != plan.weights["W_q.kernel"].shape:
        return None
    names = {"W_q": "W_g", "W_g": "W_q"}
    every = itertools.product(names.items(), ("kernel", "bias"))
    return with_weights(plan, {f"{name}.{kind}": plan.weights.get(f"{other}.{kind}") for (name, other), kind in every})


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
            {"softmax over the features of a head": of_features,
             "softmax over the heads": partial(replace, opened=partial(softmax_over, 1)),
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
