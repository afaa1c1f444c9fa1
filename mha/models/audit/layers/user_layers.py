"""Read layers= of an audit: the projections, the options and the call of layers that no table knows."""

from collections.abc import Mapping
from typing import Any

from mha.core.options import checks
from mha.core.options.norms import SHIFTS
from mha.core.tables import few, plural
from mha.weights import models, schemes
from mha.weights.checkpoints import LAYER_OPTIONS
from mha.weights.projections import NEEDED, NORMS, PART_KEYS, ROLES, Parts, biases_of
from mha.weights.schemes import TIED

CALLED = ("causal", "padding", "cross")  # how a layer is called
KNOWN = ("scheme", *PART_KEYS, "like", "num_heads", *CALLED, *LAYER_OPTIONS)
OF_LIKE = ("path", *PART_KEYS)


def check_user_layer(pattern: Any, user_layer: Any) -> Any:
    """Check the value of a pattern in layers=, and return it."""
    if user_layer is None or callable(user_layer):
        return user_layer
    if not isinstance(user_layer, Mapping):
        came = type(user_layer).__name__
        raise TypeError(f"layers has a {came} for {pattern!r}, expected a dict, None, or a function of the module")
    for name in user_layer:
        if name not in KNOWN:
            raise ValueError(f"layers has {name!r} for {pattern!r}, expected some of {', '.join(KNOWN)}")
    if "axes" in user_layer:
        checks.choice("axes of layers", user_layer["axes"], ("io", "oi"))
    _check_like(pattern, user_layer.get("like"))
    if "scheme" in user_layer:
        checks.choice("scheme of layers", user_layer["scheme"], tuple(schemes.SCHEMES))
    elif has_like_alone(user_layer):
        pass
    elif missing := [role for role in NEEDED if role not in user_layer]:
        raise ValueError(
            f"layers has no {', '.join(missing)} for {pattern!r}, expected the name of the module of each projection, "
            "such as W_q='to_q', or scheme="
        )
    return dict(user_layer)


def _check_like(pattern: Any, like: Any) -> None:
    """Raise TypeError or ValueError if like= in layers= is no path and no dict of names."""
    if like is None or isinstance(like, str):
        return
    if not isinstance(like, Mapping):
        raise TypeError(
            f"layers has like={checks.brief(like)} for {pattern!r}, expected a path, such as 'encoder.{{}}'"
        )
    for name, value in like.items():
        if name not in OF_LIKE or not isinstance(value, str):
            raise ValueError(
                f"layers has like={{{name!r}: {value!r}}} for {pattern!r}, expected strings by {', '.join(OF_LIKE)}"
            )
    if "axes" in like:
        checks.choice("axes of like in layers", like["axes"], ("io", "oi"))


def has_like_alone(user_layer: Any) -> bool:
    """Whether a value of layers= only says where like= has the weights of a known layer."""
    return (
        isinstance(user_layer, Mapping)
        and "like" in user_layer
        and not any(name in user_layer for name in ("scheme", *ROLES))
    )


def parts_of(user_layer: Mapping[str, Any]) -> Parts | None:
    """Return the names of a layer's projections in its model; None if layers= names a scheme, or none."""
    names = {role: user_layer[role] for role in (*ROLES, *NORMS) if role in user_layer}
    return (
        Parts(names, None, user_layer.get("axes", ""), bool(user_layer.get(TIED)))
        if set(NEEDED) <= names.keys()
        else None
    )


def parts_of_like(user_layer: Mapping[str, Any]) -> Parts | None:
    """Return the names of a layer's projections in like=; None if layers= has none."""
    like = user_layer.get("like")
    like = {"path": like} if isinstance(like, str) else dict(like or {})
    path, axes = like.pop("path", None), like.pop("axes", "")
    own = {role: user_layer[role] for role in (*ROLES, *NORMS) if role in user_layer}
    if path is None and not axes and not like and not own:
        return None
    return Parts(own | like, path, axes, bool(user_layer.get(TIED)))


def options_of(user_layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a layer in layers=."""
    return {name: X for name, X in user_layer.items() if name not in ("scheme", "like", *PART_KEYS, *CALLED)}


def attends_of(user_layer: Mapping[str, Any]) -> models.CallConvention:
    """Return how a layer in layers= is called."""
    padding = user_layer.get("padding", "attention_mask")
    return models.CallConvention(
        causal=checks.flag("causal of layers", user_layer.get("causal", False)), queries=padding, keys=padding,
        cross=checks.flag("cross of layers", user_layer.get("cross", False)),
    )  # fmt: skip


def why_no_norms(arrays: Mapping[str, Any], path: str, user_layer: Mapping[str, Any]) -> str:
    """Say why the norms of a layer of layers= are not known; "" if they are."""
    for role in ("q_norm", "k_norm"):
        own = f"{path}.{user_layer.get(role, role)}"
        if f"{own}.bias" in arrays:
            return (
                f"it has {own}.bias: its norms of queries and keys {SHIFTS}; leave it out with "
                f"layers={{{path!r}: None}}"
            )
        if not {"scheme", role} & user_layer.keys() and any(f"{own}.{kind}" in arrays for kind in ("weight", "scale")):
            return (
                f"it has {own}, of which layers= says nothing; add q_norm='q_norm', k_norm='k_norm' and "
                "qk_norm='rms' or 'layer', or an mha.Norm"
            )
    return ""


def notes_on_biases(user_layers: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[str]:
    """Say which projections have no bias, though others of layers described alike have one."""
    notes = []
    for user_layer in {id(one): one for one in user_layers.values() if isinstance(one, Mapping)}.values():
        if (parts := parts_of(user_layer)) is None:
            continue
        biases = {path: biases_of(arrays, path, parts) for path, one in user_layers.items() if one is user_layer}
        if not any(any(one.values()) for one in biases.values()):
            continue
        bare = {path: tuple(parts.names[role] for role, X in one.items() if X is None) for path, one in biases.items()}
        for names in dict.fromkeys(filter(None, bare.values())):
            where = [path for path, one in bare.items() if one == names]
            notes.append(
                f"no bias: {', '.join(dict.fromkeys(names))} in {plural(len(where), 'layer')} "
                f"({', '.join(few(where))}), though other projections have one: whether it was left out is not seen "
                "without like="
            )
    return notes
