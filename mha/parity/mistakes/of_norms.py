"""Known mistakes with the norms of queries and keys: their kind, scales, epsilon and place."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.mistakes.mistake import Mistake, one, with_weights
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)


def renormed(kind: str | None, plan: Plan) -> Plan | None:
    """Take another kind of norm."""
    return None if plan.norm in (None, kind) else replace(plan, norm=kind)


def rescaled(change: Callable[[Array], Array], plan: Plan) -> Plan | None:
    """Change the scales of the norms."""
    if plan.norm is None:
        return None
    return with_weights(plan, {name: change(X) for name, X in plan.weights.items() if name.endswith("_norm.scale")})


def of_eps(eps: float, plan: Plan) -> Plan | None:
    """Take another epsilon."""
    return None if plan.norm is None or plan.eps == eps else replace(plan, eps=eps)


def swapped_norms(names: Mapping[str, str], plan: Plan) -> Plan | None:
    """Take the scales of norms from others, by name."""
    if plan.norm is None:
        return None
    scales = {name: plan.weights[f"{other}_norm.scale"] for name, other in names.items()}
    return with_weights(plan, {f"{name}_norm.scale": X for name, X in scales.items()})


def norm_last(plan: Plan) -> Plan | None:
    """Norm after the rotation."""
    return None if plan.norm is None or plan.frequencies is None else replace(plan, norm_first=False)


def unnormed(kept: tuple[str, ...], plan: Plan) -> Plan | None:
    """Norm these roles alone."""
    return None if plan.norm is None else replace(plan, normed=kept)


def over_heads(plan: Plan) -> Plan | None:
    """Take the means of a norm over all heads together."""
    return None if plan.norm is None else replace(plan, norm_axes=(1, 3))


def eps_outside(plan: Plan) -> Plan | None:
    """Add epsilon to the root."""
    return None if plan.norm is None else replace(plan, root=lambda squares, eps: np.sqrt(squares) + eps)


OF_NORMS = (
    Mistake("1 + w is forgotten", "a norm multiplies by w where the model has 1 + w", ("q", "k"),
            one(partial(rescaled, lambda X: X - X.dtype.type(1)))),
    Mistake("1 is added to the scale of a norm", "a norm multiplies by 1 + w where the model has w", ("q", "k"),
            one(partial(rescaled, lambda X: X + X.dtype.type(1)))),
    Mistake("the scale of a norm is forgotten", "a norm multiplies by nothing", ("q", "k"),
            one(partial(rescaled, np.ones_like))),
    Mistake("RMS norm for layer norm", "the mean is not taken out", ("q", "k"),
            one(lambda plan: renormed("rms", plan))),
    Mistake("layer norm for RMS norm", "the mean is taken out", ("q", "k"), one(lambda plan: renormed("layer", plan))),
    Mistake("the norm comes after the rotation", "heads turn first and are normed then", ("q", "k"), one(norm_last)),
    Mistake("the norms are forgotten", "queries and keys have no norm", ("q", "k"), one(partial(unnormed, ()))),
    Mistake("keys have no norm", "queries alone have a norm", ("k",), one(partial(unnormed, ("q",)))),
    Mistake("queries have no norm", "keys alone have a norm", ("q",), one(partial(unnormed, ("k",)))),
    Mistake("the norm of queries for that of keys", "both have the scale of queries, or both are swapped", ("q", "k"),
            {"for both": partial(swapped_norms, {"k": "q"}), "swapped": partial(swapped_norms, {"k": "q", "q": "k"}),
             "that of keys for both": partial(swapped_norms, {"q": "k"})}),
    Mistake("another epsilon", "a norm adds another number under its root", ("q", "k"),
            {f"{eps:g}": partial(of_eps, eps) for eps in EPSILONS}),
    Mistake("epsilon is outside the root", "a norm divides by sqrt(mean) + eps instead of sqrt(mean + eps)", ("q", "k"),
            one(eps_outside)),
    Mistake("the norm is over all heads", "means are taken over the whole width, not over each head", ("q", "k"),
            one(over_heads)),
)  # fmt: skip
