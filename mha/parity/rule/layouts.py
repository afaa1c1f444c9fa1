"""The arrays of a call by name: the shape of each, the layouts in which others store it, and which numbers matter.

Letters as in the lessons. Steps per head are compared as (B, H, T, d), pairs of queries and keys as (B, H, Q, K).
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Literal

import numpy as np

from mha.core.options.config import STEPS_OF_PAIRS, Config

Turn = Callable[[np.ndarray], np.ndarray]
Kind = Literal["rows", "pairs", "whole"]
LayoutName = Literal["(B*H, T, d)", "(B, H, T, d)", "(B, T, H, d)"]
LAYOUTS: tuple[LayoutName, ...] = ("(B*H, T, d)", "(B, H, T, d)", "(B, T, H, d)")
GRADIENT = "gradient."  # the name of every gradient begins so
OF_INPUTS = ("queries", "keys", "values")
INPUTS = "inputs"  # one array that is queries, keys and values
# The steps of `trace` in order, all but the output.
STEPS = (
    *(f"{step}_{role}" for step in ("W", "split") for role in "qkv"), "norm_v", "norm_q", "norm_k", "rotate_q",
    "rotate_k", "tempered_q", *STEPS_OF_PAIRS, "pooled", "head_gated", "gated", "merged",
)  # fmt: skip
OF_QUERIES = ("W_q", "split_q", "norm_q", "rotate_q", "tempered_q")
OF_KEYS = ("W_k", "split_k", "norm_k", "rotate_k")
OF_VALUES = ("W_v", "split_v", "norm_v")
POOLED = ("pooled", "head_gated", "gated", "merged")
PAIRS = STEPS_OF_PAIRS
MEANS = "mean weights"  # attention weights that are averaged over the heads, (B, Q, K)
PLACED = "cache.positions"
CACHED = ("cache.keys", "cache.values", PLACED)  # the slots, as they are after a call with a cache
LSE = "lse"  # of a kernel: the logarithm of the sum of a row's exponentials, (B, H, Q)
FROM_SOFTMAX = ("weights", MEANS, *POOLED, "output")  # of these, rows that see no key are results, too


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a call: batch B, queries Q, keys K, and those of the layer; slots: those of its cache, or None."""

    B: int
    Q: int
    K: int
    config: Config
    slots: int | None = None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape in which a step is compared: (B, H, T, d), (B, H, Q, K), or without heads (B, Q, any)."""
        config, B, Q, K = self.config, self.B, self.Q, self.K
        H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
        if name in OF_QUERIES:
            return B, H, Q, d
        if name in OF_KEYS:
            return B, G, K, d
        if name in OF_VALUES:
            return B, G, K, dv
        if name in POOLED:
            return B, H, Q, dv
        S = K if self.slots is None else self.slots
        if name in CACHED:
            return {"cache.keys": (B, G, S, d), "cache.values": (B, G, S, dv), PLACED: (B, S)}[name]
        if name == MEANS:
            return B, Q, S
        if name == LSE:
            return B, H, Q, 1
        return (B, H, Q, S) if name in PAIRS else (B, Q, config.num_hiddens)


def kind(name: str) -> Kind:
    """Return whether an array holds rows of heads, pairs of queries and keys, or neither."""
    if name in (*OF_QUERIES, *OF_KEYS, *OF_VALUES, *POOLED, LSE, "cache.keys", "cache.values"):
        return "rows"
    return "pairs" if name in PAIRS else "whole"


def layouts(name: str, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], Turn]]:
    """Return the layouts of an array: by name, the layout's shape, and the function from it to the compared shape.

    Rows of heads may also be (B, T, H*d), as `trace` has them before the split and after the merge.
    """
    if kind(name) == "whole":
        return {"": (shape, lambda X: X)}
    B, H, T, d = shape
    found: dict[str, tuple[tuple[int, ...], Turn]] = {
        "(B*H, T, d)": ((B * H, T, d), lambda X: X.reshape(B, H, T, d)),
        "(B, H, T, d)": ((B, H, T, d), lambda X: X),
        "(B, T, H, d)": ((B, T, H, d), lambda X: X.transpose(0, 2, 1, 3)),  # (B, H, T, d)
        "(B, T, H*d)": ((B, T, H * d), lambda X: X.reshape(B, T, H, d).transpose(0, 2, 1, 3)),  # (B, H, T, d)
    }
    if kind(name) == "pairs":
        return {layout.replace("T, d", "Q, K"): each for layout, each in found.items() if "B, T" not in layout}
    return found


def means(weights: np.ndarray) -> np.ndarray:
    """Average attention weights over the heads, in float32 at least: (B, H, Q, K) -> (B, Q, K)."""
    return weights.mean(1, dtype=np.promote_types(weights.dtype, np.float32)).astype(weights.dtype)


def trace_layout(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Turn]:
    """Return the shape of a step in `trace`, and the function from it to the compared shape."""
    rows = "(B, T, H*d)" if name in ("W_q", "W_k", "W_v", "merged") else "(B*H, T, d)"
    return layouts(name, shape)[{"rows": rows, "pairs": "(B*H, Q, K)", "whole": ""}[kind(name)]]


def choices(name: str, X: np.ndarray, shape: tuple[int, ...], layout: str | None) -> list[str]:
    """List the layouts that an array of this shape may have; several only if their numbers would differ.

    layout: that of arrays with four axes, as the caller says; None = not said.
    """
    fits = {one: turn for one, (own, turn) in layouts(name, shape).items() if own == X.shape}
    if layout is not None and layout in fits:
        return [layout]
    if len(fits) > 1:
        places = np.arange(X.size).reshape(X.shape)
        first, *others = (turn(places) for turn in fits.values())
        if all(np.array_equal(first, other) for other in others):  # one head, or one row
            return list(fits)[:1]
    return list(fits)


def turn_of(name: str, X: np.ndarray, shape: tuple[int, ...], heads: int, layout: str | None) -> Turn | str:
    """Return the function from an array to the compared shape; or a text that says why its shape does not fit.

    heads: the number of those of queries; layout: as of `choices`.
    """
    came = f"it has shape {X.shape}"
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
        fits = choices(name, X, each, layout or ("(B, H, T, d)" if name in CACHED else None))  # as a cache has them
        if len(fits) == 1:
            return layouts(name, each)[fits[0]][1]
        if fits:
            return f"{came}, which may be {' or '.join(fits)}; say which with layout="
    written = [f"{one}{' = ' if one else ''}{own}" for one, (own, _) in layouts(name, shape).items()]
    hint = ""
    if name == "output" and X.shape == (shape[1], shape[0], shape[2]):
        hint = "; it looks like (Q, B, D): swap the first two axes"
    return f"{came}, expected {' or '.join(written)}{hint}"


def layout_name(value: object) -> LayoutName | None:
    """Return the canonical spelling of a layout, None for None; spaces, brackets and the case of letters do not matter.

    Raises TypeError or ValueError for anything else.
    """
    if value is None:
        return None
    expected = " or ".join(f'"{known}"' for known in LAYOUTS)
    if not isinstance(value, str):
        raise TypeError(f"layout is a {type(value).__name__}, expected {expected}")
    written = {layout_letters(known): known for known in LAYOUTS}
    if layout_letters(value) not in written:
        raise ValueError(f"layout is {value!r}, expected {expected}")
    return written[layout_letters(value)]


def layout_letters(layout: str) -> str:
    """Reduce a layout to its letters: "bhtd"."""
    letters = re.sub(r"[^a-z*]", "", layout.lower())
    return letters if letters in ("bhtd", "bthd", "b*htd") else layout


def matters(name: str, pairs: np.ndarray, rows: np.ndarray, groups: int) -> np.ndarray:
    """Return which numbers of a step count, as booleans that broadcast.

    pairs: the visible pairs of queries and keys that count, (B, H, Q, K); rows: the queries that count, (B, Q).
    Queries that see no key, keys and values that no query sees, and scores of hidden pairs cannot reach the output:
    each implementation may have there what it likes. From the softmax on, whole rows count.
    """
    B, H, _, K = pairs.shape
    if name in OF_QUERIES:
        return np.asarray(pairs.any(3))[..., None]  # (B, H, Q, 1)
    if name in (*OF_KEYS, *OF_VALUES):
        seen = np.asarray(pairs.any(2)).reshape(B, groups, H // groups, K)
        return np.asarray(seen.any(2))[..., None]  # (B, G, K, 1)
    if name not in FROM_SOFTMAX:
        return pairs
    return rows[..., None] if name in (MEANS, "output") else rows[:, None, :, None]  # (B, Q, 1), (B, 1, Q, 1)
