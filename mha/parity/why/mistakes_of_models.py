"""Known mistakes with the options of today's models: groups, rotations, norms, caps, biases, windows, gates."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mha.parity.why import pipeline
from mha.parity.why.mistakes import Mistake, hiding, one, scaled, with_weights
from mha.parity.why.pipeline import Array, Plan, Steps, widen

BASES = (10000.0, 500000.0, 1e6, 100000.0, 1e7, 160000.0, 50000.0, 25000.0, 1000.0, 100.0)
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)

# Groups


def tiled_heads(plan: Plan) -> Plan | None:
    """Tile the heads of keys, instead of repeating each."""
    if plan.groups in (1, plan.heads):
        return None
    return replace(plan, share=lambda X, times: np.tile(X, (1, times, 1, 1)))  # (B, H, K, d)


# Rotations


def turned_by(places: Callable[[Plan, str, Array], Array], plan: Plan) -> Plan | None:
    """Turn by other positions; places: a function of the plan, the role and the right ones."""
    return None if plan.frequencies is None else replace(plan, rotary_offsets=places)


def of_one(role: str, by: int) -> Callable[[Plan, str, Array], Array]:
    """Make a function that moves the positions of one role by so many."""
    return lambda plan, given, places: places + by * (given == role)


def begun_again(plan: Plan, role: str, places: Array) -> Array:
    """Return the positions of queries without the offset."""
    return places - plan.offsets if role == "q" else places


def paired(plan: Plan) -> Plan | None:
    """Pair the components the other way."""
    return None if plan.frequencies is None else replace(plan, interleaved=not plan.interleaved)


def of_base(base: float, plan: Plan) -> Plan | None:
    """Take the frequencies of another base."""
    if plan.frequencies is None or plan.config.rotary is None:
        return None
    n = len(plan.frequencies)
    return replace(plan, frequencies=base ** (-np.arange(n) / n))


def of_head(plan: Plan) -> Plan | None:
    """Count the frequencies over the whole head, if only a part of it turns."""
    rotary, d = plan.config.rotary, plan.config.key_dim
    if plan.frequencies is None or rotary is None or 2 * len(plan.frequencies) == d:
        return None
    return replace(plan, frequencies=rotary.base ** (-2 * np.arange(len(plan.frequencies)) / d))


def whole_head(plan: Plan) -> Plan | None:
    """Turn the whole head, if only a part of it should turn."""
    rotary, n = plan.config.rotary, plan.config.key_dim // 2
    if plan.frequencies is None or rotary is None or len(plan.frequencies) == n or plan.config.key_dim % 2:
        return None
    return replace(plan, frequencies=rotary.base ** (-np.arange(n) / n))


def coarse(plan: Plan) -> Plan | None:
    """Round positions to bfloat16, which changes those beyond 256."""
    if plan.frequencies is None:
        return None
    import ml_dtypes

    return turned_by(lambda plan, role, places: places.astype(ml_dtypes.bfloat16).astype(np.float64), plan)


# Norms


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


# Scores


def cap_last(plan: Plan) -> Plan | None:
    """Cap after the bias."""
    if plan.softcap is None or plan.score_bias is None:
        return None

    def bend(plan: Plan, X: Array) -> Steps:
        biased = X + widen(plan.of_pairs(plan.score_bias))
        capped = plan.softcap * np.tanh(biased / plan.softcap) if plan.softcap else biased
        return {"biased": biased, "capped": np.where(np.isinf(biased), biased, capped)}

    return replace(plan, bend=bend)


def cap_first(plan: Plan) -> Plan | None:
    """Cap the dot products before the scale."""
    if plan.softcap is None or plan.config.pooling != "dot":
        return None

    def bend(plan: Plan, X: Array) -> Steps:
        capped = plan.softcap * np.tanh(X / plan.scale / plan.softcap) * plan.scale if plan.softcap else X
        capped = capped.astype(X.dtype)
        return {"capped": capped} | pipeline.bend(replace(plan, softcap=None), capped)

    return replace(plan, bend=bend)


def biased_by(factor: Callable[[Plan], float], plan: Plan) -> Plan | None:
    """Multiply the bias of scores by a factor."""
    if plan.score_bias is None:
        return None
    hidden = plan.score_bias == -np.inf
    # Minus infinity stays: it hides, and 0 times infinity would be NaN.
    changed = np.where(hidden, plan.score_bias, np.where(hidden, 0, plan.score_bias) * factor(plan))
    return replace(plan, score_bias=changed.astype(plan.score_bias.dtype))


# Windows


def windowed(change: Callable[[Any, Any], tuple[Any, Any]], plan: Plan) -> Plan | None:
    """Take another window."""
    window = plan.config.window
    if window is None or change(*window) == window:
        return None
    return hiding("window", lambda plan: pipeline.within(plan, *change(*window)), plan)


def more(side: Any, by: int) -> Any:
    """Make a side of a window longer by so many; None stays None."""
    return None if side is None else max(0, side + by)


# Gates


def regated(change: Callable[[Array], Array] | None, plan: Plan) -> Plan | None:
    """Change the gates; None = make them all 1."""
    if plan.gates is None:
        return None
    return replace(plan, gates=np.ones_like(plan.gates) if change is None else change(plan.gates))


def default_scale(plan: Plan) -> float:
    """Return the factor from the layer's scale to 1 / sqrt(d)."""
    return plan.config.key_dim**-0.5 / plan.scale


OF_MODELS = (
    Mistake("heads of keys are tiled, not repeated", "query head h reads head h % G instead of h // (H / G)",
            ("scores", "pooled"), one(tiled_heads)),
    Mistake("rotary components are paired the other way", "halves for neighbours, or neighbours for halves", ("q", "k"),
            one(paired)),
    Mistake("the rotation is off by one", "queries or keys turn as their neighbours should", ("q", "k"),
            {"queries one further": partial(turned_by, of_one("q", 1)),
             "queries one back, or keys one further": partial(turned_by, of_one("k", 1)),
             "both, from position 1 on": partial(turned_by, lambda plan, role, places: places + 1)}),
    Mistake("the rotation begins again at every offset", "positions of queries start at 0 after a cache", ("q", "k"),
            {"of queries": partial(turned_by, begun_again)}),
    Mistake("the rotation goes backwards", "sines have the other sign", ("q", "k"),
            one(partial(turned_by, lambda plan, role, places: -places))),
    Mistake("the rotation is forgotten", "queries or keys do not turn", ("q", "k"),
            {"of both": partial(turned_by, lambda plan, role, places: 0 * places),
             "of queries": partial(turned_by, lambda plan, role, places: places * (role != "q")),
             "of keys": partial(turned_by, lambda plan, role, places: places * (role != "k"))}),
    Mistake("another base", "frequencies of another base of the rotation", ("q", "k"),
            {f"{base:g}": partial(of_base, base) for base in BASES}
            | {"the same, without the model's own scaling": lambda plan: of_base(plan.config.rotary.base, plan)
               if plan.config.rotary else None}),
    Mistake("frequencies of the whole head", "base ** (-2i / d) where only `dim` components turn", ("q", "k"),
            one(of_head)),
    Mistake("the whole head turns", "all components turn, where only `dim` should", ("q", "k"), one(whole_head)),
    Mistake("positions in half precision", "positions beyond 256 are rounded to bfloat16 before they turn",
            ("q", "k"), one(coarse)),
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
    Mistake("the default scale for the model's own", "1 / sqrt(d) where the model has another scale", ("scores",),
            one(lambda plan: None if plan.config.scale is None else scaled(default_scale, plan))),
    Mistake("the default scale on top of the model's own", "both scales are applied", ("scores",),
            one(lambda plan: None if plan.config.scale is None
                else scaled(lambda plan: plan.config.key_dim**-0.5, plan))),
    Mistake("the cap comes after the bias", "the bias is capped too", ("scores",), one(cap_last)),
    Mistake("the cap comes before the scale", "dot products are capped, then scaled", ("scores",), one(cap_first)),
    Mistake("the cap is forgotten", "scores are not capped", ("scores",),
            one(lambda plan: None if plan.softcap is None else replace(plan, softcap=None))),
    Mistake("the bias is scaled too", "the bias of scores is multiplied by the scale", ("scores",),
            {"by the scale": partial(biased_by, lambda plan: plan.scale),
             "by 1 / sqrt(d)": partial(biased_by, lambda plan: plan.config.key_dim**-0.5)}),
    Mistake("the bias is not scaled", "the bias lacks the scale that the model gives it", ("scores",),
            {"by the scale": partial(biased_by, lambda plan: 1 / plan.scale),
             "by 1 / sqrt(d)": partial(biased_by, lambda plan: plan.config.key_dim**0.5)}),
    Mistake("the bias is ignored", "scores get no bias", ("scores",), one(partial(biased_by, lambda plan: 0.0))),
    Mistake("the bias has the other sign", "the bias of scores is subtracted", ("scores",),
            one(partial(biased_by, lambda plan: -1.0))),
    Mistake("the window is one wider to the left", "one key more before the query", ("weights",),
            one(partial(windowed, lambda left, right: (more(left, 1), right)))),
    Mistake("the window is one narrower to the left", "one key fewer before the query", ("weights",),
            one(partial(windowed, lambda left, right: (more(left, -1), right)))),
    Mistake("the window is one wider to the right", "one key more after the query", ("weights",),
            one(partial(windowed, lambda left, right: (left, more(right, 1))))),
    Mistake("the window is one narrower to the right", "one key fewer after the query", ("weights",),
            one(partial(windowed, lambda left, right: (left, more(right, -1))))),
    Mistake("the window is symmetric", "queries look ahead as far as they look back", ("weights",),
            one(partial(windowed, lambda left, right: (left, left)))),
    Mistake("the window only looks back", "queries do not look ahead", ("weights",),
            one(partial(windowed, lambda left, right: (left, 0)))),
    Mistake("the window is ignored", "queries see keys at any distance", ("weights",),
            one(partial(hiding, "window", None))),
    Mistake("the window begins again at every offset", "the offset is left out of the window", ("weights",),
            one(partial(hiding, "window",
                        lambda plan: pipeline.CONDITIONS["window"](replace(plan, offsets=0 * plan.offsets))))),
    Mistake("gates of other heads", "the heads' factors come in another order", ("pooled",),
            {"reversed": partial(regated, lambda X: X[:, ::-1]),
             "one head further": partial(regated, lambda X: np.roll(X, 1, 1))}),
    Mistake("gates are forgotten", "the heads have no factors", ("pooled",), one(partial(regated, None))),
)  # fmt: skip
