"""The arrays of another implementation, checked and by name; and other layers whose weights it may have by mistake."""

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.options import checks
from mha.layer import MultiHeadAttention
from mha.parity.rule.layouts import GRADIENT, INPUTS, MEANS, PLACED
from mha.parity.rule.problem import Named, Problem


def arrays_by_name(asked: Problem, theirs: Any) -> Named:
    """Copy their arrays into NumPy's, by the names of the report and in its order."""
    if isinstance(theirs, tuple):
        if len(theirs) != 2:
            raise ValueError(
                f"theirs is a tuple of {len(theirs)}, expected the pair (output, weights), or theirs[0] alone"
            )
        theirs = {"output": theirs[0]} | ({} if theirs[1] is None else {"weights": theirs[1]})
    if not isinstance(theirs, Mapping):
        return {"output": floats("theirs", theirs)}  # without the steps, whose names take a call to be known
    known = asked.names()
    if not theirs:
        raise ValueError(f"theirs is empty, expected an array or a mapping of some of {', '.join(known)}")
    found: Named = {}
    for name, X in theirs.items():
        full = name if name in known else f"{GRADIENT}{name}"
        if full == GRADIENT + INPUTS and full not in known:
            raise ValueError(
                f"theirs has {name!r}, which is the gradient of one input that is queries, keys and values, but these "
                "differ; give their own gradients: queries, keys, values"
            )
        if full not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"theirs has {name!r}, expected some of {', '.join(known)}{meant}")
        array = (integers if full == PLACED else floats)(f"theirs[{name!r}]", X)
        if full == "weights" and asked.config.num_heads > 1 and array.shape == asked.sizes.shape(MEANS):
            full = MEANS
        if full in found:
            raise ValueError(f"theirs has {full} twice, as {name!r} too; leave one out")
        found[full] = array
        weight = asked.layer.weights.get(full.removeprefix(GRADIENT))
        if weight is not None and weight.any() and np.array_equal(weight, found[full]):
            raise ValueError(f"theirs[{name!r}] is the weight itself, expected the gradient of the loss by it")
    return {name: found[name] for name in known if name in found}


def floats(name: str, X: Any) -> np.ndarray:
    """Copy an array of floats of any framework into NumPy's."""
    if callable(X) and dispatch.backend_of(X) is None:
        raise TypeError(f"{name} is a {type(X).__name__}, which can be called, expected what it returns: an array")
    dispatch.module_of(X, name)  # or it is no array
    array = arrays.to_numpy(X)
    if checks.dtype_name(array.dtype) not in checks.FLOATS:
        raise TypeError(f"{name} has dtype {array.dtype}, expected {', '.join(checks.FLOATS)}")
    return np.array(array)


def integers(name: str, X: Any) -> np.ndarray:
    """Copy an array of integers of any framework into NumPy's."""
    dispatch.module_of(X, name)  # or it is no array
    array = arrays.to_numpy(X)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected integers, the position of each slot")
    return np.array(array)


def weights_of_others(others: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the weights of other layers by their names; TypeError if they are no layers."""
    if others is None:
        return {}
    if not isinstance(others, Mapping) or not all(isinstance(X, MultiHeadAttention) for X in others.values()):
        raise TypeError(f"others is {checks.brief(others)}, expected a mapping of names to mha.MultiHeadAttention")
    return {str(name): layer.weights for name, layer in others.items()}
