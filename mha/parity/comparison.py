"""Where another implementation first differs from a layer: its output, steps and gradients against float64 NumPy."""

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import arrays, checks, dispatch
from mha.layer import MultiHeadAttention
from mha.parity.layouts import GRADIENT, choices, kind, layout_name, ways
from mha.parity.pictures import picture, words
from mha.parity.problem import Problem, problem
from mha.parity.report import Place, Report, Row, number
from mha.parity.rules import error

Theirs = dict[str, np.ndarray]


def compare(
    attention: MultiHeadAttention,
    theirs: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    mask: Any = None,
    score_bias: Any = None,
    causal: bool = False,
    offset: Any = 0,
    head_gates: Any = None,
    cotangent: Any = None,
    layout: str | None = None,
    others: Mapping[str, MultiHeadAttention] | None = None,
) -> Report:
    """Say whether another implementation computes what a layer does, and if not, where it first differs and why.

    Args:
        attention: the layer, on any backend, whose weights the other implementation should have.
        theirs: its output (B, Q, D), or a mapping of any of: the steps of `attention.trace` by their names; gradients
            as `attention.gradients` names them, or as "gradient.queries", "gradient.W_q.kernel", kernels (in, out).
            Arrays of any framework, without dropout. Steps of heads may be (B*H, T, d), (B, H, T, d), (B, T, H, d) or
            (B, T, H*d), scores and weights (B*H, Q, K) or (B, H, Q, K).
        queries, keys, values, valid_lens, mask, score_bias, causal, offset, head_gates: what it was called with, as
            for the layer, in arrays of any one framework.
        cotangent: the gradient of the loss by the output, (B, Q, D), that its gradients are of; None = ones.
        layout: "(B, H, T, d)" or "(B, T, H, d)", where the shapes do not tell.
        others: other layers by name, such as those of the same checkpoint: their weights may have been taken instead.

    Returns:
        A `Report`: true if each array is within what rounding explains; it prints as a table. What cannot reach the
        output does not count: rows of queries that see no key, keys that no query sees, scores of hidden pairs.

    Raises:
        TypeError, ValueError: if an argument is not as above. A step of another shape, NaN and infinity are results:
            rows of the report that differ.
    """
    call = {"valid_lens": valid_lens, "mask": mask, "score_bias": score_bias}
    call |= {"causal": causal, "offset": offset, "head_gates": head_gates}
    asked = problem(attention, queries, keys, values, call, cotangent)
    found = named(asked, theirs)
    layout = layout_name(layout)
    rows, taken = [], {}
    for name in found:
        row, turned = compared(asked, name, found[name], layout)
        rows.append(row)
        if turned is not None:
            taken[name] = turned
    known = checked_others(others)

    def explain() -> Any:
        from mha.parity.diagnosis import explained  # it needs what is here

        return explained(asked, taken, tuple(rows), known)

    return Report(tuple(rows), asked.config.dtype, explain)


def named(asked: Problem, theirs: Any) -> Theirs:
    """Their arrays as NumPy's, copied, by the names of the report and in its order."""
    known = asked.names()
    if not isinstance(theirs, Mapping):
        return {"output": floats("theirs", theirs)}
    if not theirs:
        raise ValueError(f"theirs is empty, expected an array or a mapping of some of {', '.join(known)}")
    found: Theirs = {}
    for name, X in theirs.items():
        full = name if name in known else f"{GRADIENT}{name}"
        if full not in known:
            raise ValueError(f"theirs has {unknown(name, known)}")
        if full in found:
            raise ValueError(f"theirs has {full} twice, as {name!r} too; leave one out")
        found[full] = floats(f"theirs[{name!r}]", X)
        weight = asked.layer.weights.get(full.removeprefix(GRADIENT))
        if weight is not None and weight.any() and np.array_equal(weight, found[full]):
            raise ValueError(f"theirs[{name!r}] is the weight itself, expected the gradient of the loss by it")
    return {name: found[name] for name in known if name in found}


def unknown(name: object, known: list[str]) -> str:
    """What is said of a name that no array has here."""
    near = difflib.get_close_matches(str(name), known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name!r}, expected some of {', '.join(known)}{meant}"


def floats(name: str, X: Any) -> np.ndarray:
    """An array of floats of any framework as NumPy's, copied."""
    if callable(X) and dispatch.backend_of(X) is None:
        raise TypeError(f"{name} is a {type(X).__name__}, which can be called, expected what it returns: an array")
    dispatch.module_of(X, name)  # or it is no array
    array = arrays.to_numpy(X)
    if checks.dtype_name(array.dtype) not in checks.FLOATS:
        raise TypeError(f"{name} has dtype {array.dtype}, expected {', '.join(checks.FLOATS)}")
    return np.array(array)


def checked_others(others: Any) -> dict[str, dict[str, np.ndarray]]:
    """The weights of other layers by their names."""
    if others is None:
        return {}
    if not isinstance(others, Mapping) or not all(isinstance(X, MultiHeadAttention) for X in others.values()):
        raise TypeError(f"others is {checks.brief(others)}, expected a mapping of names to mha.MultiHeadAttention")
    return {str(name): layer.weights for name, layer in others.items()}


def compared(asked: Problem, name: str, X: np.ndarray, layout: str | None) -> tuple[Row, np.ndarray | None]:
    """The row of one of their arrays, and that array as it was compared, None where its shape does not fit."""
    expected, limit = asked.expected(name)
    turn = turned(asked, name, X, expected.shape, layout)
    if isinstance(turn, str):
        return Row(name, np.inf, limit, None, turn), None
    theirs, share = turn(X), 1
    if theirs.ndim == 4 and theirs.shape != expected.shape:  # heads of keys that were repeated already
        share = theirs.shape[1] // expected.shape[1]
    counts = np.ones(expected.shape, bool) & (True if name.startswith(GRADIENT) else asked.matters(name))
    expected, counts = (np.repeat(array, share, 1) if share > 1 else array for array in (expected, counts))
    there = np.where(counts, theirs, 0).astype(np.float64)
    notes = [] if checks.dtype_name(X.dtype) == asked.config.dtype else [f"in {X.dtype}"]
    if limit == np.inf:
        notes.append(f"NumPy itself overflows {asked.config.dtype} here: nothing can be told")
    far, place = error(there, expected), None
    if limit < np.inf and far > limit:
        wrong = outside(there, expected, limit)
        with np.errstate(invalid="ignore"):
            distance = np.where(wrong, np.nan_to_num(np.abs(there - expected), nan=np.inf), -1.0)
        at = np.unravel_index(distance.argmax(), distance.shape)
        places = turn(np.arange(X.size).reshape(X.shape))
        index = tuple(int(i) for i in np.unravel_index(places[at], X.shape))
        where = located(asked, name, wrong, at)
        place = Place(index, float(there[at]), float(expected[at]), int(wrong.sum()), wrong.size, *where)
        notes += hints(there, expected, limit)
    return Row(name, far, limit, place, "; ".join(notes)), theirs[:, ::share] if share > 1 else theirs


def turned(asked: Problem, name: str, X: np.ndarray, shape: tuple[int, ...], layout: str | None) -> Any:
    """What turns their array into the shape that is compared; or, as a text, why its shape does not fit."""
    came = f"it has shape {X.shape}"
    heads = asked.config.num_heads
    if name.startswith(GRADIENT):
        if X.shape == shape:
            return lambda X: X
        axes = [length for length in X.shape if length != heads]
        if X.size == np.prod(shape) and X.ndim == len(shape) + 1 and len(axes) == len(shape):
            return lambda X: X.reshape(shape)  # (in, H, d) or (H, d, out), as Keras and Flax have kernels
        hint = "; kernels are (in, out): pass its transpose" if X.shape == shape[::-1] else ""
        return f"{came}, expected {shape}{hint}"
    possible = [shape]
    if kind(name) == "rows" and shape[1] != heads:
        possible.append((shape[0], heads, *shape[2:]))
    for each in possible:
        fits = choices(name, X, each, layout)
        if len(fits) == 1:
            return ways(name, each)[fits[0]][1]
        if fits:
            return f"{came}, which may be {' or '.join(fits)}; say which with layout="
    written = [f"{one}{' = ' if one else ''}{own}" for one, (own, _) in ways(name, shape).items()]
    hint = ""
    if name == "weights" and X.shape == (shape[0], *shape[2:]):
        hint = "; they look averaged over the heads: ask for those of each head"
    if name == "output" and X.shape == (shape[1], shape[0], shape[2]):
        hint = "; it looks like (Q, B, D): swap the first two axes"
    return f"{came}, expected {' or '.join(written)}{hint}"


def outside(theirs: np.ndarray, expected: np.ndarray, limit: float) -> np.ndarray:
    """Which numbers are further off than the bound; NaN is NaN, and infinity is itself."""
    with np.errstate(invalid="ignore"):
        near = np.abs(theirs - expected) <= limit
    return ~(near | (theirs == expected) | (np.isnan(theirs) & np.isnan(expected)))


def located(asked: Problem, name: str, wrong: np.ndarray, worst: Any) -> tuple[str, tuple[str, ...]]:
    """Where numbers are wrong, in words and as a picture; worst: the index of the worst of them."""
    if wrong.ndim == 4:
        padding = np.ones(wrong.shape, bool) & ~used(asked, name, wrong.shape)
        axes = ["samples", "heads", "queries" if wrong.shape[2] == asked.sizes.Q else "keys", ""]
        if kind(name) == "pairs":
            axes[2:] = ["queries", "keys"]
            b, h = (int(i) for i in worst[:2])
            labels = [f"sample {b}, head {h}, query {i}" for i in range(wrong.shape[2])]
            return words(wrong, padding, axes), picture(wrong[b, h], padding[b, h], labels, "keys")
        B, H, T, _ = wrong.shape
        labels = [f"sample {b}, head {h}" for b in range(B) for h in range(H)]
        grid, gray = (X.any(3).reshape(B * H, T) for X in (wrong, padding))  # (B*H, T)
        return words(wrong, padding, axes), picture(grid, gray, labels, axes[2])
    short = name.removeprefix(GRADIENT)
    if wrong.ndim == 3:
        rows = "keys" if short in ("keys", "values") else "queries"
        padding = np.ones(wrong.shape, bool) & ~used(asked, short, wrong.shape)
        labels = [f"sample {b}" for b in range(len(wrong))]
        where = words(wrong, padding, ["samples", rows, "features"])
        return where, picture(np.asarray(wrong.any(2)), np.asarray(padding.any(2)), labels, rows)
    return of_weight(asked, short, wrong)


def of_weight(asked: Problem, name: str, wrong: np.ndarray) -> tuple[str, tuple[str, ...]]:
    """As `located`, for the gradient of a weight, of a bias of the scores or of gates."""
    config, nothing = asked.config, np.zeros(wrong.shape, bool)
    role = name.partition(".")[0]
    heads = config.num_heads if role in ("W_q", "W_o") else config.num_key_value_heads
    if wrong.ndim == 2 and role in ("W_q", "W_k", "W_v", "W_o"):
        wrong = wrong if role == "W_o" else wrong.T  # heads first
        by_head = wrong.reshape(heads, -1, wrong.shape[1])  # (H, d, the other width)
        across = "outputs" if role == "W_o" else "inputs"
        where = words(by_head, np.zeros(by_head.shape, bool), ["heads", "", across])
        grid = np.asarray(by_head.any(1))
        return where, picture(grid, np.zeros(grid.shape, bool), [f"head {h}" for h in range(heads)], across)
    grid = wrong.reshape(-1, wrong.shape[-1]) if wrong.ndim else wrong.reshape(1, 1)
    labels = [f"row {i}" for i in range(len(grid))]
    return words(wrong, nothing, [f"axis {i}:" for i in range(wrong.ndim)]), picture(
        grid, np.zeros(grid.shape, bool), labels, "numbers"
    )


def used(asked: Problem, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What is no padding: visible pairs, queries that see a key, keys that are seen; broadcasts against the shape."""
    visible = asked.visible
    if kind(name) == "pairs":
        return visible
    if len(shape) == 3:
        seen = np.asarray(visible.any((1, 2) if name in ("keys", "values") else (1, 3)))
        return seen[..., None]  # (B, T, 1)
    if name in ("pooled", "head_gated", "merged"):
        return np.asarray(visible.any(3))[..., None]  # (B, H, Q, 1)
    counts = asked.matters(name)
    return counts if counts.shape[1] == shape[1] else np.repeat(counts, shape[1] // counts.shape[1], 1)


def hints(theirs: np.ndarray, expected: np.ndarray, limit: float) -> list[str]:
    """What strikes the eye about numbers that differ: NaN, a factor, a transpose."""
    found = []
    if missing := int((np.isnan(theirs) & ~np.isnan(expected)).sum()):
        found.append(f"NaN in {missing} of {theirs.size} numbers")
    if not (np.isfinite(theirs).all() and np.isfinite(expected).all()):
        return found
    size = float((expected * expected).sum())
    factor = float((theirs * expected).sum()) / size if size else 0.0
    if abs(factor) > 1e-3 and np.abs(theirs - factor * expected).max() <= limit * max(1.0, abs(factor)):
        found.append(f"theirs is {number(factor)} times ours")
    if theirs.ndim == 2 and theirs.shape == theirs.T.shape and error(theirs.T, expected) <= limit:
        found.append("theirs is the transpose of ours")
    return found
