"""Known mistakes with weights and inputs: kernels, biases, packed arrays, weights of another layer.

Letters as in the lessons.
"""

import itertools
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, weights_of, with_weights
from mha.parity.diagnosis.pipeline.parts import PARTS
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
ALL = ("q", "k", "v", "output")  # the parts that have weights
PART = {"W_q": "q", "W_k": "k", "W_v": "v", "W_o": "output"}


def transpose_kernels(names: Iterable[str], plan: Plan) -> Plan | None:
    """Transpose the kernels of these projections, if they are square."""
    kernels = {f"{name}.kernel": plan.weights[f"{name}.kernel"] for name in names}
    if any(X.shape != X.T.shape for X in kernels.values()):
        return None
    turned = {name: plan.once("transposed", lambda X: np.ascontiguousarray(X.T), X) for name, X in kernels.items()}
    return with_weights(plan, turned)


def without_bias(names: Iterable[str], plan: Plan) -> Plan | None:
    """Leave out the biases of these projections."""
    return with_weights(plan, {f"{name}.bias": None for name in names}) if plan.config.bias else None


def reorder_weights(order: Mapping[str, str], kinds: tuple[str, ...], plan: Plan) -> Plan | None:
    """Give projections, or norms, the weights of others, if their shapes are the same; order: by name, the other's."""
    changed: dict[str, Array | None] = {}
    for name, source in order.items():
        for kind in kinds:
            X, other = plan.weights.get(f"{name}.{kind}"), plan.weights.get(f"{source}.{kind}")
            if X is None or other is None:
                continue
            if X.shape != other.shape:
                return None
            changed[f"{name}.{kind}"] = other
    return with_weights(plan, changed) if changed else None


def bias_again(times: int | None, plan: Plan) -> Plan | None:
    """Add the bias of W_o several times; None = once for each head."""
    bias = plan.weights.get("W_o.bias")
    if bias is None or (times is None and plan.heads in TIMES):
        return None
    return with_weights(plan, {"W_o.bias": bias * bias.dtype.type(plan.heads if times is None else times)})


def biases_again(names: Iterable[str], plan: Plan) -> Plan | None:
    """Add the biases of these projections twice."""
    biases = weights_of(plan, *(f"{name}.bias" for name in names))
    return with_weights(plan, {name: X + X for name, X in biases.items()}) if biases else None


def by_groups(stored: bool, kinds: tuple[str, ...], plan: Plan) -> Plan | None:
    """Cut one array of Q, K and V, packed group by group, (G, H / G + 2, d), as if all of Q came first, then K, then V.

    stored: False = the other way.
    """
    H, G = plan.heads, plan.groups
    width = plan.weights["W_q.kernel"].shape[-1] // H
    q, k, v = np.arange(H), np.arange(H, H + G), np.arange(H + G, H + 2 * G)  # the heads in the order of Q, K, V
    packed = np.concatenate([q.reshape(G, -1), k[:, None], v[:, None]], 1).ravel()  # (H + 2G,), group by group
    order = packed if stored else np.argsort(packed)
    changed: dict[str, Array | None] = {}
    for kind in kinds:
        arrays = [plan.weights.get(f"{name}.{kind}") for name in QKV]
        given = [X for X in arrays if X is not None]
        expected = [(*given[0].shape[:-1], heads * width) for heads in (H, G, G)] if given else []
        if [X.shape for X in given] != expected:
            return None
        if given:
            heads = np.concatenate([X.reshape(*X.shape[:-1], -1, width) for X in given], -2)  # (..., H + 2G, d)
            cut = np.split(heads[..., order, :], [H, H + G], -2)  # (..., H or G, d)
            changed |= {f"{name}.{kind}": Y.reshape(X.shape) for name, X, Y in zip(QKV, given, cut, strict=True)}
    return with_weights(plan, changed)


def other_inputs(order: tuple[str, ...], plan: Plan) -> Plan | None:
    """Take queries, keys and values in another order, if their shapes are the same."""
    inputs = {name: getattr(plan, source) for name, source in zip(("queries", "keys", "values"), order, strict=True)}
    if any(X.shape != getattr(plan, name).shape for name, X in inputs.items()):
        return None
    return replace(plan, **inputs)


def of_another_layer(others: Mapping[str, Mapping[str, Array]]) -> list[Mistake]:
    """Make the mistakes of taking weights of one of these layers, all or those of one projection."""

    def take(weights: Mapping[str, Array], chosen: str, plan: Plan) -> Plan | None:
        mine = weights_of(plan, chosen)
        if any(name not in weights or weights[name].shape != X.shape for name, X in mine.items()):
            return None
        return with_weights(plan, {name: weights[name].astype(X.dtype) for name, X in mine.items()})

    return [
        Mistake(f"{chosen or 'all weights'} of another layer",
                f"{chosen or 'every weight'} of another layer of the same file",
                f"take {chosen or 'all weights'} of this layer: look at the layer's number in the names",
                (PART[chosen],) if chosen else tuple(PARTS),
                {name: partial(take, weights, chosen) for name, weights in others.items()})
        for chosen in ("", *PROJECTIONS)
    ]  # fmt: skip


TIMES = (2, 4, 8)  # devices that each add a bias
QKV = PROJECTIONS[:3]
ORDERS = [order for order in itertools.permutations(QKV) if order != QKV]
Q_AND_K, K_AND_V = {"W_q": "W_k", "W_k": "W_q"}, {"W_k": "W_v", "W_v": "W_k"}
SETS = [names for count in (1, 2, 3, 4) for names in itertools.combinations(PROJECTIONS, count)]

OF_KERNELS = (
    *(Mistake(f"{name}.kernel is not transposed", f"the kernel of {name} is taken as (out, in)",
              f"compute X @ {name}.kernel, (in, out); torch.nn.Linear wants the transpose", (PART[name],),
              one(partial(transpose_kernels, (name,)))) for name in PROJECTIONS),
    Mistake("the kernels of W_q, W_k and W_v are not transposed", "all three are taken as (out, in)",
            "compute X @ kernel, (in, out), for all three; torch.nn.Linear wants the transpose", ("q", "k", "v"),
            one(partial(transpose_kernels, QKV))),
    Mistake("no kernel is transposed", "all four kernels are taken as (out, in)",
            "compute X @ kernel, (in, out), for all four; torch.nn.Linear wants the transpose", ALL,
            one(partial(transpose_kernels, PROJECTIONS))),
)  # fmt: skip


OF_ORDERS_AND_BIASES = (
    Mistake("Q and K are swapped", "queries are projected as keys, and keys as queries",
            "give queries and W_q to the projection of queries, keys and W_k to that of keys", ("q", "k"),
            {"kernels and biases": partial(reorder_weights, Q_AND_K, ("kernel", "bias")),
             "kernels": partial(reorder_weights, Q_AND_K, ("kernel",)),
             "inputs": partial(other_inputs, ("keys", "queries", "values"))}),
    Mistake("K and V are swapped", "keys are projected as values, and values as keys",
            "give keys and W_k to the projection of keys, values and W_v to that of values", ("k", "v"),
            {"kernels and biases": partial(reorder_weights, K_AND_V, ("kernel", "bias")),
             "kernels": partial(reorder_weights, K_AND_V, ("kernel",)),
             "inputs": partial(other_inputs, ("queries", "values", "keys"))}),
    Mistake("packed kernels in another order", "one array of Q, K and V is cut in another order",
            "cut the packed array in the order in which its parts lie, such as q, k, v", ("q", "k", "v"),
            {", ".join(order): partial(reorder_weights, dict(zip(QKV, order, strict=True)), ("kernel", "bias"))
             for order in ORDERS if sum(a == b for a, b in zip(order, QKV, strict=True)) == 0 or order[1] == "W_k"}),
    Mistake("packed heads are cut as packed kernels", "columns of q, k and v of one head, or group, after the other, "
            "(H, 3, d) or (G, H / G + 2, d), are taken for all of q, then k, then v; or the other way",
            "cut as the columns lie: if group by group, reshape to (G, H / G + 2, d) first, else cut q, k, v",
            ("q", "k", "v"),
            {f"{where}{', ' * bool(where and way)}{way}": partial(by_groups, not way, kinds)
             for where, kinds in {"": ("kernel", "bias"), "in the biases alone": ("bias",)}.items()
             for way in ("", "the other way")}),
    Mistake("packed biases in another order", "one array of three biases is cut in another order than the kernels",
            "cut the packed bias in the same order as the packed kernel",
            ("q", "k", "v"),
            {", ".join(order): partial(reorder_weights, dict(zip(QKV, order, strict=True)), ("bias",))
             for order in ORDERS}),
    *(Mistake(f"{name}.bias is dropped", f"{name} adds no bias",
              f"add {name}.bias after the product with {name}.kernel",
              (PART[name],), one(partial(without_bias, (name,))))
      for name in PROJECTIONS),
    Mistake("the biases of W_q, W_k and W_v are dropped", "the three add no bias",
            "add the biases of W_q, W_k and W_v after the products with their kernels", ("q", "k", "v"),
            one(partial(without_bias, QKV))),
    Mistake("W_o.bias is added several times", "by each of several devices, or for each head, before all is added up",
            "add W_o.bias once, after the sum over all devices or heads",
            ("output",), {f"{times} times": partial(bias_again, times) for times in TIMES}
            | {"once for each head": partial(bias_again, None)}),
    Mistake("every bias is dropped", "no projection adds its bias",
            "add the bias of each projection after the product with its kernel",
            ALL, one(partial(without_bias, PROJECTIONS))),
    Mistake("biases are added twice", "by the projection, and again behind it",
            "add each bias once: in the projection or behind it, not both", ALL,
            {" and ".join(names): partial(biases_again, names) for names in SETS
             if {*names} - {"W_k", "W_o"} or names == ("W_k",)}, rare=True),
)  # fmt: skip
