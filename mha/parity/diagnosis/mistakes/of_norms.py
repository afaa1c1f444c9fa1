"""Known mistakes with the norms of queries, keys and values: their kind, scales, epsilon, width and place."""

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Mistake, one, only_where, with_weights
from mha.parity.diagnosis.mistakes.of_weights import reorder_weights
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, replace

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 1e-2)


def set_options(plan: Plan, roles: Collection[str] = ("q", "k"), **options: Any) -> Plan | None:
    """Take norms with other options for these roles, if their own differ from these."""
    norms = {role: dataclasses.replace(own, **options) if role in roles else own for role, own in plan.norms.items()}
    return None if norms == plan.norms else replace(plan, norms=norms)


def change_scales(change: Callable[[Array], Array], plan: Plan) -> Plan:
    """Change the scales of the norms of queries and keys."""
    return with_weights(plan, {name: change(plan.weights[name]) for name in ("q_norm.scale", "k_norm.scale")})


def norm_only(kept: tuple[str, ...], plan: Plan) -> Plan | None:
    """Apply the norms of these roles alone."""
    norms = {role: own for role, own in plan.norms.items() if role in kept}
    return None if norms == plan.norms else replace(plan, norms=norms)


# Of others than these, see `search.numbers`.
ANOTHER_EPSILON = Mistake("another epsilon", "a norm adds another number under its root",
                          "take the epsilon from the model's configuration", ("q", "k"),
                          {f"{eps:g}": partial(set_options, eps=eps) for eps in EPSILONS})  # fmt: skip


OF_NORMS = (
    *only_where(
        lambda plan: "q" in plan.norms,
        Mistake("1 + w is forgotten", "a norm multiplies by w where the model has 1 + w",
                "multiply by 1 + w after the division, or add 1 to w as it is loaded", ("q", "k"),
                one(partial(change_scales, lambda X: X - X.dtype.type(1)))),
        Mistake("1 is added to the scale of a norm", "a norm multiplies by 1 + w where the model has w",
                "multiply by w itself after the division", ("q", "k"),
                one(partial(change_scales, lambda X: X + X.dtype.type(1)))),
        Mistake("the scale of a norm is forgotten", "a norm multiplies by nothing",
                "multiply by the norm's scale after the division", ("q", "k"),
                one(partial(change_scales, np.ones_like))),
        Mistake("RMS norm for layer norm", "the mean is not taken out",
                "subtract the mean before the division", ("q", "k"),
                one(partial(set_options, kind="rms"))),
        Mistake("layer norm for RMS norm", "the mean is taken out",
                "divide by the root mean square alone, and subtract no mean",
                ("q", "k"), one(partial(set_options, kind="layer"))),
        *only_where(
            lambda plan: plan.frequencies is not None,
            Mistake("the norm comes after the rotation", "heads turn first and are normed then",
                    "norm queries and keys first, then rotate them", ("q", "k"),
                    one(partial(set_options, after=True))),
            Mistake("the norm comes before the rotation", "heads are normed first and turn then",
                    "rotate queries and keys first, then norm them", ("q", "k"),
                    one(partial(set_options, after=False)))),
        Mistake("the norms are forgotten", "queries and keys have no norm",
                "norm queries and keys after their projection", ("q", "k"), one(partial(norm_only, ("v",)))),
        Mistake("keys have no norm", "queries alone have a norm",
                "norm keys, too, after their projection", ("k",), one(partial(norm_only, ("q", "v")))),
        Mistake("queries have no norm", "keys alone have a norm",
                "norm queries, too, after their projection", ("q",), one(partial(norm_only, ("k", "v")))),
        Mistake("the norm of queries for that of keys", "both have the scale of queries, or both are swapped",
                "take q_norm.scale for queries and k_norm.scale for keys", ("q", "k"),
                {how: partial(reorder_weights, order, ("scale",)) for how, order in {
                    "for both": {"k_norm": "q_norm"}, "swapped": {"k_norm": "q_norm", "q_norm": "k_norm"},
                    "that of keys for both": {"q_norm": "k_norm"}}.items()}),
        ANOTHER_EPSILON,
        Mistake("epsilon is outside the root", "a norm divides by sqrt(mean) + eps",
                "divide by sqrt(mean + eps)", ("q", "k"),
                one(partial(replace, root=lambda squares, eps: np.sqrt(squares) + eps))),
        Mistake("the norm is over all heads", "means are taken over the whole width",
                "norm after the split, over the d features of each head", ("q", "k"),
                one(partial(set_options, over="all"))),
        Mistake("the norm is over each head", "means are taken over each head",
                "norm before the split, over all H*d features", ("q", "k"),
                one(partial(set_options, over="head")))),
    Mistake("values have no norm", "queries and keys alone have a norm, if at all",
            "norm values, too, after their projection", ("v",),
            one(partial(norm_only, ("q", "k")))),
    Mistake("the norm of values has another epsilon", "it adds another number under its root",
            "take the epsilon of the norm of values from the model's configuration", ("v",),
            {f"{eps:g}": partial(set_options, roles=("v",), eps=eps) for eps in EPSILONS}),
)  # fmt: skip
