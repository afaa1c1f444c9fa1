"""What layers= says of layers that no table knows: their projections, their options, and how they are called."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import checks
from mha.names import SchemeName
from mha.parity.whole.layers.known import ROLES
from mha.parity.whole.layers.truth import Layer
from mha.weights import models, schemes
from mha.weights.checkpoints import SAYABLE
from mha.weights.native.named import to_numpy

CALLED = ("causal", "padding", "cross")  # how a layer is called
NORMS = ("q_norm", "k_norm")
KNOWN = ("scheme", *ROLES, *NORMS, "num_heads", *CALLED, *SAYABLE)
# The names of scheme "llama", and of "phi3" where queries, keys and values are packed, which take their place.
APART = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "o_proj", "W_g": "gate_proj"}
PACKED = {"W_q": "qkv_proj", "W_o": "o_proj"}
TRANSPOSED = ("Conv1D",)  # modules of PyTorch whose weight is (in, out)


def lesson_of(pattern: Any, lesson: Any) -> Any:
    """Return what layers= says of a pattern, checked: a dict, None, or a function of the module."""
    if lesson is None or callable(lesson):
        return lesson
    if not isinstance(lesson, Mapping):
        came = type(lesson).__name__
        raise TypeError(f"layers has a {came} for {pattern!r}, expected a dict, None, or a function of the module")
    for name in lesson:
        if name not in KNOWN:
            raise ValueError(f"layers has {name!r} for {pattern!r}, expected some of {', '.join(KNOWN)}")
    if "scheme" in lesson:
        checks.choice("scheme of layers", lesson["scheme"], tuple(schemes.SCHEMES))
    elif missing := [role for role in ("W_q", "W_k", "W_v", "W_o") if role not in lesson]:
        raise ValueError(
            f"layers has no {', '.join(missing)} for {pattern!r}, expected the name of the module of each projection, "
            "such as W_q='to_q', or scheme="
        )
    return dict(lesson)


def asked_of(lesson: Mapping[str, Any]) -> tuple[models.Attends, SchemeName | None, dict[str, str], dict[str, Any]]:
    """How a taught layer is called, its scheme, the names of its modules by role, and its options."""
    names = {role: lesson[role] for role in (*ROLES, *NORMS) if role in lesson}
    options = {name: X for name, X in lesson.items() if name not in ("scheme", *ROLES, *NORMS, *CALLED)}
    return called(lesson), lesson.get("scheme"), names, options


def called(lesson: Mapping[str, Any]) -> models.Attends:
    """How a taught layer is called.

    Raises TypeError or ValueError if what is said of it is wrong.
    """
    padding = lesson.get("padding", "attention_mask")
    return models.Attends(
        causal=checks.flag("causal of layers", lesson.get("causal", False)), queries=padding, keys=padding,
        cross=checks.flag("cross of layers", lesson.get("cross", False)),
    )  # fmt: skip


def renamed(
    arrays: Mapping[str, Any], path: str, names: Mapping[str, str], modules: Mapping[str, Any]
) -> tuple[Layer, dict[str, np.ndarray]]:
    """The arrays of a taught layer by the names of a scheme, kernels (out, in), and that scheme with its prefix.

    Raises ValueError if a module has no kernel.
    """
    packed = names["W_q"] == names["W_k"] == names["W_v"]
    found = {}
    for role, to in (PACKED if packed else APART).items():
        if role not in names:
            continue
        own = f"{path}.{names[role]}"
        kernel = next((f"{own}.{kind}" for kind in ("weight", "kernel") if f"{own}.{kind}" in arrays), None)
        if own not in modules or kernel is None:
            raise ValueError(f"layers says {role}={names[role]!r}, but {own} is no module with a weight or a kernel")
        X = to_numpy(kernel, arrays[kernel])
        inward = kernel.endswith(".kernel") or type(modules[own]).__name__ in TRANSPOSED
        if X.ndim == 3:
            X = X.reshape(-1, X.shape[2]) if role == "W_o" else X.reshape(len(X), -1)  # (in, out)
        found[f"{to}.weight"] = X.T if inward else X  # (out, in)
        if f"{own}.bias" in arrays:
            found[f"{to}.bias"] = to_numpy(f"{own}.bias", arrays[f"{own}.bias"]).reshape(-1)  # (out,)
    for role in NORMS:
        if role in names:
            own = f"{path}.{names[role]}"
            scale = next(name for name in (f"{own}.weight", f"{own}.scale", own) if name in arrays)
            found[f"{role}.weight"] = to_numpy(scale, arrays[scale])
    return ("phi3" if packed else "llama", ""), found
