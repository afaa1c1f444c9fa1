"""Known mistakes with weights and heads; a mistake has a name, its effect, and functions that put it into a plan.

Letters as in the lessons. The rest of the catalogue: mistakes_of_pooling.py, mistakes_of_models.py; and precision.py.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.why import pipeline
from mha.parity.why.pipeline import PARTS, Array, Plan

Change = Callable[[Plan], Plan | None]
PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
PART = {"W_q": "q", "W_k": "k", "W_v": "v", "W_o": "output"}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One known mistake.

    name: for a diagnosis; what: the effect, in words; parts: those of the pipeline that it changes; forms: one or
    several functions, each by its words ("" if there is one): from a plan without the mistake to one with it, or None
    where the mistake is impossible.
    """

    name: str
    what: str
    parts: tuple[str, ...]
    forms: Mapping[str, Change]

    def touches(self, part: str) -> bool:
        """Whether the result of a part may differ."""
        return part in self.parts or any(map(self.touches, PARTS[part]))


def one(change: Change) -> dict[str, Change]:
    """Make the forms of a mistake that has one form."""
    return {"": change}


def with_weights(plan: Plan, changed: Mapping[str, Array | None]) -> Plan:
    """Change some weights of a plan; None takes one away."""
    weights = {**plan.weights, **changed}
    return replace(plan, weights={name: X for name, X in weights.items() if X is not None})


def scaled(factor: Callable[[Plan], float], plan: Plan) -> Plan | None:
    """Multiply the scale by a factor."""
    if plan.config.pooling != "dot":
        return None
    return replace(plan, scale=plan.scale * factor(plan))


def hiding(name: str, condition: Callable[[Plan], Array] | None, plan: Plan) -> Plan | None:
    """Replace one condition for a key to be seen; None = ignore it."""
    if name not in plan.hiding:
        return None
    kept = {key: X for key, X in plan.hiding.items() if key != name}
    return replace(plan, hiding=kept if condition is None else kept | {name: condition})


# Weights


def untransposed(names: Iterable[str], plan: Plan) -> Plan | None:
    """Transpose the kernels of these projections, if they are square."""
    kernels = {f"{name}.kernel": plan.weights[f"{name}.kernel"] for name in names}
    if any(X.shape != X.T.shape for X in kernels.values()):
        return None
    return with_weights(plan, {name: np.ascontiguousarray(X.T) for name, X in kernels.items()})


def interleaved(names: Iterable[str], inward: bool, plan: Plan) -> Plan | None:
    """Read columns of kernels and biases (rows of W_o) as (d, H) instead of (H, d); inward: or the other way round."""
    changed: dict[str, Array | None] = {}
    for name in names:
        heads = plan.groups if name in ("W_k", "W_v") else plan.heads
        for kind in ("kernel", "bias"):
            X = plan.weights.get(f"{name}.{kind}")
            if X is None or (name == "W_o" and kind == "bias"):
                continue
            X = X if name == "W_o" else np.moveaxis(X, -1, 0)  # (H*d, ...)
            grid = (heads, -1) if inward else (X.shape[0] // heads, heads)
            mixed = X.reshape(*grid, *X.shape[1:]).swapaxes(0, 1).reshape(X.shape)
            changed[f"{name}.{kind}"] = mixed if name == "W_o" else np.moveaxis(mixed, 0, -1)
    return with_weights(plan, changed)


def split_interleaved(plan: Plan) -> Plan:
    """Split columns as (d, H)."""

    def split(X: Array, heads: int) -> Array:
        B, T, width = X.shape
        return X.reshape(B, T, width // heads, heads).transpose(0, 3, 1, 2)  # (B, H, T, d)

    return replace(plan, split=split)


def split_interleaved_and_merged(plan: Plan) -> Plan:
    """Split columns as (d, H), and merge them so."""

    def merge(X: Array) -> Array:
        B, H, T, d = X.shape
        return X.transpose(0, 2, 3, 1).reshape(B, T, d * H)  # (B, T, d*H)

    return replace(split_interleaved(plan), merge=merge)


def without_bias(names: Iterable[str], plan: Plan) -> Plan | None:
    """Leave out the biases of these projections."""
    if not plan.config.bias:
        return None
    return with_weights(plan, {f"{name}.bias": None for name in names})


def reordered(order: tuple[str, ...], kinds: tuple[str, ...], plan: Plan) -> Plan | None:
    """Give W_q, W_k and W_v the weights of those in `order`."""
    changed: dict[str, Array | None] = {}
    for name, source in zip(PROJECTIONS, order, strict=False):
        for kind in kinds:
            X, other = plan.weights.get(f"{name}.{kind}"), plan.weights.get(f"{source}.{kind}")
            if X is None or other is None:
                continue
            if X.shape != other.shape:
                return None
            changed[f"{name}.{kind}"] = other
    return with_weights(plan, changed) if changed else None


def other_inputs(order: tuple[str, ...], plan: Plan) -> Plan | None:
    """Take queries, keys and values in another order, if their shapes are the same."""
    inputs = {name: getattr(plan, source) for name, source in zip(("queries", "keys", "values"), order, strict=True)}
    if any(X.shape != getattr(plan, name).shape for name, X in inputs.items()):
        return None
    return replace(plan, **inputs)


def of_another_layer(others: Mapping[str, Mapping[str, Array]]) -> list[Mistake]:
    """Make the mistakes of taking weights of one of these layers, all or those of one projection."""

    def taken(weights: Mapping[str, Array], chosen: str, plan: Plan) -> Plan | None:
        mine = {name: X for name, X in plan.weights.items() if name.startswith(chosen)}
        if any(name not in weights or weights[name].shape != X.shape for name, X in mine.items()):
            return None
        return with_weights(plan, {name: weights[name].astype(X.dtype) for name, X in mine.items()})

    made = []
    for chosen in ("", *PROJECTIONS):
        parts = (PART[chosen],) if chosen else tuple(pipeline.PARTS)
        forms = {name: partial(taken, weights, chosen) for name, weights in others.items()}
        what = f"{chosen or 'every weight'} of another layer of the same file"
        made.append(Mistake(f"{chosen or 'all weights'} of another layer", what, parts, forms))
    return made


# Heads


def split_unpermuted(plan: Plan) -> Plan:
    """Split without the permute."""
    return replace(plan, split=lambda X, heads: X.reshape(len(X), heads, X.shape[1], -1))  # (B, H, T, d)


def merge_unpermuted(plan: Plan) -> Plan:
    """Merge without the permute."""
    return replace(plan, merge=lambda X: X.reshape(len(X), X.shape[2], -1), rows=slice(None))  # (B, T, H*d)


def other_heads(heads: int, plan: Plan) -> Plan | None:
    """Take another number of heads, if the features can be split so and no argument has an axis of heads."""
    config = plan.config
    H, d, dv = config.num_heads, config.key_dim, config.value_dim
    plain = plan.groups == H == plan.heads and plan.norm is None and plan.frequencies is None
    if not plain or heads == H or (H * d) % heads or (H * dv) % heads or plan.gates is not None:
        return None
    if any(X is not None and X.shape[1] != 1 for X in (plan.mask, plan.score_bias)) or config.pooling != "dot":
        return None
    scale = plan.scale if config.scale is not None else plan.scale * (heads / H) ** 0.5
    return replace(plan, heads=heads, groups=heads, scale=scale)


ALL = ("q", "k", "v", "output")
ORDERS = [order for order in itertools.permutations(PROJECTIONS[:3]) if order != PROJECTIONS[:3]]
QKV = PROJECTIONS[:3]

OF_WEIGHTS = (
    *(Mistake(f"{name}.kernel is not transposed", f"the kernel of {name} is taken as (out, in)", (PART[name],),
              one(partial(untransposed, (name,)))) for name in PROJECTIONS),
    Mistake("the kernels of W_q, W_k and W_v are not transposed", "all three are taken as (out, in)", ("q", "k", "v"),
            one(partial(untransposed, QKV))),
    Mistake("no kernel is transposed", "all four kernels are taken as (out, in)", ALL,
            one(partial(untransposed, PROJECTIONS))),
    Mistake("the heads are interleaved", "columns are taken as (d, H) instead of (H, d)", ALL,
            {"by the split": split_interleaved, "by the split and the merge": split_interleaved_and_merged,
             "in W_q, W_k, W_v": partial(interleaved, QKV, True),
             "in W_q, W_k, W_v, the other way": partial(interleaved, QKV, False),
             "in all four": partial(interleaved, PROJECTIONS, True),
             "in all four, the other way": partial(interleaved, PROJECTIONS, False)}),
    *(Mistake(f"the heads of {name} are interleaved", f"{'rows' if name == 'W_o' else 'columns'} of {name} are taken "
              "as (d, H) instead of (H, d)", (PART[name],),
              {"": partial(interleaved, (name,), True), "the other way": partial(interleaved, (name,), False)})
      for name in PROJECTIONS),
    Mistake("the split lacks the permute", "(B, T, H*d) is reshaped to (B, H, T, d) as it lies", ("q", "k", "v"),
            one(split_unpermuted)),
    Mistake("the merge lacks the permute", "(B, H, T, d) is reshaped to (B, T, H*d) as it lies", ("output",),
            one(merge_unpermuted)),
    Mistake("another number of heads", "the features are split into more or fewer heads",
            ("q", "k", "v", "scores", "weights"),
            {f"{heads} heads": partial(other_heads, heads)
             for heads in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)}),
    Mistake("Q and K are swapped", "queries are projected as keys, and keys as queries", ("q", "k"),
            {"kernels and biases": partial(reordered, ("W_k", "W_q", "W_v"), ("kernel", "bias")),
             "kernels": partial(reordered, ("W_k", "W_q", "W_v"), ("kernel",)),
             "inputs": partial(other_inputs, ("keys", "queries", "values"))}),
    Mistake("K and V are swapped", "keys are projected as values, and values as keys", ("k", "v"),
            {"kernels and biases": partial(reordered, ("W_q", "W_v", "W_k"), ("kernel", "bias")),
             "kernels": partial(reordered, ("W_q", "W_v", "W_k"), ("kernel",)),
             "inputs": partial(other_inputs, ("queries", "values", "keys"))}),
    Mistake("packed kernels in another order", "one array of Q, K and V is cut in another order", ("q", "k", "v"),
            {", ".join(order): partial(reordered, order, ("kernel", "bias"))
             for order in ORDERS if sum(a == b for a, b in zip(order, QKV, strict=True)) == 0 or order[1] == "W_k"}),
    Mistake("packed biases in another order", "one array of three biases is cut in another order than the kernels",
            ("q", "k", "v"), {", ".join(order): partial(reordered, order, ("bias",)) for order in ORDERS}),
    *(Mistake(f"{name}.bias is dropped", f"{name} adds no bias", (PART[name],), one(partial(without_bias, (name,))))
      for name in PROJECTIONS),
    Mistake("the biases of W_q, W_k and W_v are dropped", "the three add no bias", ("q", "k", "v"),
            one(partial(without_bias, QKV))),
    Mistake("every bias is dropped", "no projection adds its bias", ALL, one(partial(without_bias, PROJECTIONS))),
)  # fmt: skip
