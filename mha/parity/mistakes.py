"""The catalogue of known mistakes: for each its name, what it does, and how it is made of a plan of the pipeline.

Letters as in the lessons. mistakes_of_models.py has those of today's models, precision.py those of rounding.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity import pipeline
from mha.parity.pipeline import BEHIND, Array, Plan

Change = Callable[[Plan], Plan | None]
PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
PART = {"W_q": "q", "W_k": "k", "W_v": "v", "W_o": "output"}
FILLS = (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -30.0, -20.0, -10.0)


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One known mistake.

    name: as a diagnosis says it; what: what the code in question does; parts: those of the pipeline that it changes;
    forms: the ways of making it, by what tells one from another ("" where there is one): each gives a plan with the
    mistake of one without, or None where there is nothing to be mistaken about.
    """

    name: str
    what: str
    parts: tuple[str, ...]
    forms: Mapping[str, Change]

    def touches(self, part: str) -> bool:
        """Whether what a part hands on may differ."""
        return not BEHIND[part].isdisjoint(self.parts)


def one(change: Change) -> dict[str, Change]:
    """The forms of a mistake that is made in one way."""
    return {"": change}


def with_weights(plan: Plan, changed: Mapping[str, Array | None]) -> Plan:
    """The plan with some weights changed; None = it has none."""
    weights = {**plan.weights, **changed}
    return replace(plan, weights={name: X for name, X in weights.items() if X is not None})


# Weights


def untransposed(names: Iterable[str], plan: Plan) -> Plan | None:
    """The kernels of these projections transposed, where they are square."""
    kernels = {f"{name}.kernel": plan.weights[f"{name}.kernel"] for name in names}
    if any(X.shape != X.T.shape for X in kernels.values()):
        return None
    return with_weights(plan, {name: np.ascontiguousarray(X.T) for name, X in kernels.items()})


def interleaved(names: Iterable[str], inward: bool, plan: Plan) -> Plan | None:
    """Columns of kernels and biases (rows of W_o), taken as component by component for each of them all heads."""
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
    """The split of columns that lie component by component."""

    def split(X: Array, heads: int) -> Array:
        B, T, width = X.shape
        return X.reshape(B, T, width // heads, heads).transpose(0, 3, 1, 2)  # (B, H, T, d)

    return replace(plan, split=split)


def split_interleaved_and_merged(plan: Plan) -> Plan:
    """That split, and the merge that goes with it."""

    def merge(X: Array) -> Array:
        B, H, T, d = X.shape
        return X.transpose(0, 2, 3, 1).reshape(B, T, d * H)  # (B, T, d*H)

    return replace(split_interleaved(plan), merge=merge)


def without_bias(names: Iterable[str], plan: Plan) -> Plan | None:
    """These projections without their biases."""
    if not plan.config.bias:
        return None
    return with_weights(plan, {f"{name}.bias": None for name in names})


def reordered(order: tuple[str, ...], kinds: tuple[str, ...], plan: Plan) -> Plan | None:
    """W_q, W_k and W_v with the weights of those in `order`."""
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
    """Queries, keys and values in another order, where their shapes are the same."""
    inputs = {name: getattr(plan, source) for name, source in zip(("queries", "keys", "values"), order, strict=True)}
    if any(X.shape != getattr(plan, name).shape for name, X in inputs.items()):
        return None
    return replace(plan, **inputs)


def of_another_layer(others: Mapping[str, Mapping[str, Array]]) -> list[Mistake]:
    """The mistake of taking the weights of one of these layers, all or those of one projection."""

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
    """The split without its permute."""
    return replace(plan, split=lambda X, heads: X.reshape(len(X), heads, X.shape[1], -1))  # (B, H, T, d)


def merge_unpermuted(plan: Plan) -> Plan:
    """The merge without its permute."""
    return replace(plan, merge=lambda X: X.reshape(len(X), X.shape[2], -1))  # (B, T, H*d)


def other_heads(heads: int, plan: Plan) -> Plan | None:
    """Another number of heads, where the features can be split so and nothing is given for each head."""
    config = plan.config
    H, d, dv = config.num_heads, config.key_dim, config.value_dim
    plain = plan.groups == H == plan.heads and plan.norm is None and plan.frequencies is None
    if not plain or heads == H or (H * d) % heads or (H * dv) % heads or plan.gates is not None:
        return None
    if any(X is not None and X.shape[1] != 1 for X in (plan.mask, plan.score_bias)) or config.pooling != "dot":
        return None
    scale = plan.scale if config.scale is not None else plan.scale * (heads / H) ** 0.5
    return replace(plan, heads=heads, groups=heads, scale=scale)


# Scores


def scaled(factor: Callable[[Plan], float], plan: Plan) -> Plan | None:
    """The scale times a factor."""
    if plan.config.pooling != "dot":
        return None
    return replace(plan, scale=plan.scale * factor(plan))


# What hides


def hiding(name: str, condition: Callable[[Plan], Array] | None, plan: Plan) -> Plan | None:
    """The plan with one thing that hides replaced; None = ignored."""
    if name not in plan.hiding:
        return None
    kept = {key: X for key, X in plan.hiding.items() if key != name}
    return replace(plan, hiding=kept if condition is None else kept | {name: condition})


def longer(by: int, plan: Plan) -> Array:
    """Lengths that are longer by so many."""
    return plan.key_places < plan.lengths + by


def tiled(plan: Plan) -> Array:
    """The length of sample b for head h is that of the place b * H + h in a list of the lengths, over and over."""
    B = len(plan.queries)
    lengths = np.tile(plan.lengths[:, 0], (plan.heads, 1, 1)).reshape(B, plan.heads, -1, 1)
    return plan.key_places < lengths


def lower_right(plan: Plan) -> Array:
    """Causal order by which the last query sees the last key."""
    more = plan.keys.shape[1] - plan.queries.shape[1]
    return plan.key_places <= plan.query_places - plan.offsets[:, :, None, None] + more


def without_offset(plan: Plan) -> Array:
    """Causal order from position 0 on."""
    return plan.key_places <= plan.query_places - plan.offsets[:, :, None, None]


def inverted(name: str, plan: Plan) -> Plan | None:
    """The opposite of one thing that hides."""
    if name not in plan.hiding:
        return None
    right = plan.hiding[name]
    return hiding(name, lambda plan: ~right(plan), plan)


# Softmax


def along(axis: int, plan: Plan) -> Plan:
    """A softmax over another axis."""

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        shares = pipeline.normalized(np.where(visible, scores, -np.inf).astype(scores.dtype), axis)
        return np.where(visible, shares, 0).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def filled(fill: float, added: bool, plan: Plan) -> Plan | None:
    """Hidden scores are set to a number, or it is added to them, and nothing else hides."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        low = fill if np.isfinite(fill) else np.finfo(scores.dtype).min
        hidden = scores + scores.dtype.type(low) if added else low
        return pipeline.normalized(np.where(visible, scores, hidden).astype(scores.dtype), -1)

    return replace(plan, softmax=softmax)


def uniform_over(all_keys: bool, plan: Plan) -> Plan | None:
    """A query that sees no key sees all keys alike; or its scores as they are."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        empty = ~visible.any(-1, keepdims=True)
        shares = pipeline.softmax(plan, scores, visible)
        instead = 1 / scores.shape[-1] if all_keys else pipeline.normalized(scores, -1)
        return np.where(empty, instead, shares).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def divided_by_nothing(plan: Plan) -> Plan | None:
    """A query that sees no key gets NaN, which is 0 / 0."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        shares = pipeline.softmax(plan, scores, visible)
        return np.where(visible.any(-1, keepdims=True), shares, np.nan).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def renormalised_late(plan: Plan) -> Plan | None:
    """Hidden keys are blanked after the softmax over all, so that weights do not add up to 1."""
    if not plan.hiding:
        return None

    def softmax(plan: Plan, scores: Array, visible: Array) -> Array:
        return np.where(visible, pipeline.normalized(scores, -1), 0).astype(scores.dtype)

    return replace(plan, softmax=softmax)


def averaged(plan: Plan) -> Plan:
    """Weights averaged over the heads."""
    return replace(plan, after=lambda X: np.broadcast_to(X.mean(1, keepdims=True), X.shape))


ALL = ("q", "k", "v", "output")
ORDERS = [order for order in itertools.permutations(PROJECTIONS[:3]) if order != PROJECTIONS[:3]]
QKV = PROJECTIONS[:3]

GENERAL = (
    Mistake("rows without keys are NaN", "the softmax of a row of minus infinity divides 0 by 0", ("weights",),
            one(divided_by_nothing)),
    Mistake("NaN in padding comes through", "hidden values are multiplied by 0, and 0 * NaN is NaN", ("pooled",),
            one(lambda plan: replace(plan, blanked=False))),
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
    Mistake("no scale", "dot products are not scaled", ("scores",), one(partial(scaled, lambda plan: 1 / plan.scale))),
    Mistake("the scale of D for that of d", "1 / sqrt(D) of the model instead of 1 / sqrt(d) of a head", ("scores",),
            one(partial(scaled, lambda plan: plan.config.num_hiddens**-0.5 / plan.scale))),
    Mistake("the scale is applied twice", "dot products are scaled twice", ("scores",),
            one(partial(scaled, lambda plan: plan.scale))),
    Mistake("the scale lacks its root", "1 / d instead of 1 / sqrt(d)", ("scores",),
            one(partial(scaled, lambda plan: plan.config.key_dim**-1 / plan.scale))),
    Mistake("the mask is inverted", "True is taken as hide", ("weights",),
            {"": partial(inverted, "mask"), "that of the lengths": partial(inverted, "lengths"),
             "that of the causal order": partial(inverted, "order")}),
    Mistake("the mask is ignored", "no mask is applied", ("weights",),
            {"": partial(hiding, "mask", None)}),
    Mistake("the lengths are ignored", "padding is attended to", ("weights",), one(partial(hiding, "lengths", None))),
    Mistake("lengths are one too long", "j <= length instead of j < length", ("weights",),
            one(partial(hiding, "lengths", partial(longer, 1)))),
    Mistake("lengths are one too short", "j < length - 1 instead of j < length", ("weights",),
            one(partial(hiding, "lengths", partial(longer, -1)))),
    Mistake("lengths are tiled, not repeated", "heads get the lengths of other samples", ("weights",),
            one(partial(hiding, "lengths", tiled))),
    Mistake("causal order is ignored", "queries see what follows them", ("weights",),
            one(partial(hiding, "order", None))),
    Mistake("causal order is aligned to the lower right", "the last query sees the last key", ("weights",),
            one(partial(hiding, "order", lower_right))),
    Mistake("causal order is off by one", "j <= i + 1, or j < i, instead of j <= i", ("weights",),
            {"one too many": partial(hiding, "order", lambda plan: plan.key_places <= plan.query_places + 1),
             "one too few": partial(hiding, "order", lambda plan: plan.key_places < plan.query_places)}),
    Mistake("causal order begins again at every offset", "the offset is left out of the causal order", ("weights",),
            one(partial(hiding, "order", without_offset))),
    Mistake("everything is seen", "nothing hides keys", ("weights",),
            one(lambda plan: replace(plan, hiding={}) if plan.hiding else None)),
    Mistake("the softmax is over another axis", "weights add up to 1 over queries or heads, not keys", ("weights",),
            {"over queries": partial(along, 2), "over heads": partial(along, 1)}),
    Mistake("hidden keys are blanked after the softmax", "weights do not add up to 1", ("weights",),
            one(renormalised_late)),
    Mistake("weights are averaged over the heads", "every head pools with the mean of all weights", ("weights",),
            one(averaged)),
    Mistake("rows without keys are uniform", "a query that sees no key sees all padding alike, as in the book",
            ("weights",), {"": partial(uniform_over, True), "by its scores": partial(uniform_over, False)}),
    Mistake("weak mask fill", "hidden scores get a number that is not low enough, or add it", ("weights",),
            {f"{fill:g}{', added' * added}": partial(filled, fill, added) for fill in (-np.inf, *FILLS)
             for added in (False, True) if not (added and fill == -np.inf)}),
)  # fmt: skip
