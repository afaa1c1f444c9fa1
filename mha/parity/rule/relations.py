"""How a weight of one layer comes from another layer's: the same, rounded, transposed, its columns reordered, ...

Letters: H heads, d the width of one. A and B are the two layers; a relation turns A's weight into B's.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from mha.core.options.config import Config, numpy_dtype
from mha.core.options.names import FloatName
from mha.parity.rule.rules import UNIT, largest

Array = np.ndarray
WIDE: tuple[FloatName, ...] = ("float64", "float32")
HALVES: dict[FloatName, float] = {"float16": 2.0**-24, "bfloat16": 0.0}  # with the distance of their smallest numbers
ROWS = 4  # rows that are compared first: if they differ, the rest does not matter
HEADS = "heads in another order"
SORTED = 8  # rows that tell the columns apart


@dataclasses.dataclass(frozen=True)
class Relation:
    """How B's weight comes from A's."""

    how: str  # the change that turns A's weights into it, in words; "" = none, it is A's
    rounded: FloatName | None = None  # the dtype to which one of the two is rounded; None = equal numbers
    kept: bool = True  # whether it carries all of A's weight of this name, unlike zeros or another weight


@dataclasses.dataclass(frozen=True)
class MatrixChange:
    """A change of a matrix: transposed, its columns in another order, times a factor, plus a number."""

    transposed: bool = False
    order: Array | None = None
    factor: float = 1.0
    plus: float = 0.0

    def of(self, X: Array, rows: slice) -> Array:
        """Return these rows of X, changed, in float64."""
        X = (X.T if self.transposed else X)[rows]
        X = X if self.order is None else X[:, self.order]
        return self.factor * X.astype(np.float64) + self.plus


def relation(name: str, ours: Mapping[str, Array], theirs: Mapping[str, Array], config: Config) -> Relation | None:
    """Find how B's weight of a canonical name comes from A's weights; None if in no known way.

    ours, theirs: A's and B's weights by name, of which A's of this name is tried first; config: A's.
    """
    there = theirs[name]
    if name in ours and ours[name].shape == there.shape:
        if np.array_equal(ours[name], there):
            return Relation("")
        if not there.any():
            return Relation("zeros", kept=False)
    sources = [other for other in ours if other.endswith(name.rpartition(".")[2])]
    for source in sorted(sources, key=lambda source: source != name):
        if ours[source].ndim == there.ndim:
            X, Y = matrix(name, ours[source]), matrix(name, there)
            for how, change in changes(name, X, Y, config, kernels(source, name, ours, theirs)):
                if found := relate(X, Y, change):
                    if source != name:
                        how = ", ".join(filter(None, [f"A's {source}", how]))
                    return dataclasses.replace(found, how=how, kept=source == name)
    return None


def matrix(name: str, X: Array) -> Array:
    """Return a weight as a matrix whose columns belong to heads: W_o transposed, a bias as one row."""
    return X.T if name == "W_o.kernel" else np.atleast_2d(X)


def relate(X: Array, Y: Array, change: MatrixChange) -> Relation | None:
    """Compare X, changed, with Y: None if they differ by more than rounding. The first rows are compared first."""
    far = size = np.zeros(0)
    for rows in (slice(ROWS), slice(None)):
        made, there = change.of(X, rows), Y[rows].astype(np.float64)
        far, size = np.abs(made - there), np.maximum(np.abs(made), np.abs(there))
        if (far > 0.01 * max(largest(size), HALVES["float16"])).any():  # 0.01: more than any rounding
            return None
    if not far.any():
        return Relation("")
    for dtype in WIDE:
        if far.max() <= 4 * UNIT[dtype] * size.max():
            return Relation("", dtype)
    for dtype, smallest in HALVES.items():
        # Two arrays that are both rounded to half precision and differ a little were trained apart.
        if fits(made, dtype) != fits(there, dtype) and (far <= 2 * UNIT[dtype] * size + smallest).all():
            return Relation("", dtype)
    return None


def fits(X: Array, dtype: FloatName) -> bool:
    """Return whether a dtype holds all numbers exactly."""
    with np.errstate(over="ignore"):
        return np.array_equal(X, X.astype(numpy_dtype(dtype)).astype(np.float64))


def kernels(
    source: str, name: str, ours: Mapping[str, Array], theirs: Mapping[str, Array]
) -> tuple[Array, Array] | None:
    """Return the kernels of two biases, A's of `source` and B's of `name`, which show the order of their columns."""
    first, second = ours.get(source.replace(".bias", ".kernel")), theirs.get(name.replace(".bias", ".kernel"))
    if not source.endswith(".bias") or first is None or second is None or first.shape != second.shape:
        return None
    return first, second


def changes(
    name: str, X: Array, Y: Array, config: Config, kernels: tuple[Array, Array] | None = None
) -> Iterator[tuple[str, MatrixChange]]:
    """Yield the changes that may turn X into Y, each with its words; the first is none at all, without words.

    kernels: of two biases, if their columns may have been put in another order together.
    """
    yield from repeat_heads(name, X, Y, config)
    for transposed in (False, True) if len(X) > 1 else (False,):
        turned = X.T if transposed else X
        if turned.shape != Y.shape:
            continue
        first_words = "transposed" if transposed else ""
        yield first_words, MatrixChange(transposed)
        for how, order in orders(name, turned, Y, config, kernels):
            yield ", ".join(filter(None, [first_words, how])), MatrixChange(transposed, order)
    if X.shape == Y.shape:
        if name.endswith(".scale"):
            yield "1 + w", MatrixChange(plus=1.0)
            yield "w - 1", MatrixChange(plus=-1.0)
        first, second = (Z[:ROWS].astype(np.float64) for Z in (X, Y))
        if size := float((first * first).sum()):
            factor = float(f"{(first * second).sum() / size:.7g}")
            if abs(factor - 1) > 0.02:  # beyond all rounding
                yield f"times {factor:g}", MatrixChange(factor=factor)


def repeat_heads(name: str, X: Array, Y: Array, config: Config) -> Iterator[tuple[str, MatrixChange]]:
    """Yield the changes to repeated, or fewer, heads of keys or values that may turn X into Y, each with its words."""
    role = name.partition(".")[0]
    width = config.value_dim if role in ("W_v", "v_norm") else config.key_dim
    if len(X) != len(Y) or X.shape == Y.shape or role not in ("W_k", "W_v", "k_norm", "v_norm"):
        return
    if X.shape[1] % width or Y.shape[1] % width:
        return
    heads, (more, left) = np.arange(X.shape[1]).reshape(-1, width), divmod(Y.shape[1], X.shape[1])
    if not left:
        yield f"each head {more} times", MatrixChange(order=np.repeat(heads, more, 0).reshape(-1))
        yield f"all heads {more} times", MatrixChange(order=np.tile(heads, (more, 1)).reshape(-1))
    elif not X.shape[1] % Y.shape[1]:
        fewer = X.shape[1] // Y.shape[1]
        yield f"one head of {fewer} that were alike", MatrixChange(order=heads[::fewer].reshape(-1))


def orders(
    name: str, X: Array, Y: Array, config: Config, kernels: tuple[Array, Array] | None
) -> Iterator[tuple[str, Array]]:
    """Yield the orders of X's columns that may turn them into Y's, each with its words: other libraries' first."""
    role = name.partition(".")[0]
    queries, values = role in ("W_q", "W_o"), role in ("W_v", "W_o", "v_norm")
    width = config.value_dim if values else config.key_dim
    heads = config.num_heads if queries else config.num_key_value_heads
    heads = X.shape[1] // width if "norm" in role else heads  # 1, or those that it is over
    if heads * width != X.shape[1] or name == "W_o.bias":
        return
    places = np.arange(heads * width)
    yield "heads interleaved, (d, H) for (H, d)", places.reshape(heads, width).T.reshape(-1)
    yield "heads no more interleaved, (H, d) for (d, H)", places.reshape(width, heads).T.reshape(-1)
    if not values:
        for how, neighbours in (("neighbours for halves", True), ("halves for neighbours", False)):
            yield f"rotary pairs, {how}", places.reshape(heads, width)[:, pairing_order(config, neighbours)].reshape(-1)
    if len(X) > 1 or kernels:
        order = sorting_order(*(kernels or (X, Y)))
        blocks = order.reshape(heads, width)  # (H, d)
        whole = (blocks - blocks[:, :1] == np.arange(width)).all() and not (blocks[:, 0] % width).any()
        others = "rows in another order" if role == "W_o" else "columns in another order"
        yield HEADS if whole and heads > 1 else others, order


def order_of_heads(ours: Mapping[str, Array], theirs: Mapping[str, Array], config: Config) -> Array | None:
    """Return the order of A's heads of queries in B's kernel, (H,); None if it is A's own, or there is none.

    ours, theirs: weights by name; config: A's.
    """
    name, H = "W_q.kernel", config.num_heads
    X, Y = ours[name], theirs[name]
    for how, change in changes(name, X, Y, config):
        if HEADS in how and change.order is not None and relate(X, Y, change):
            return change.order.reshape(H, -1)[:, 0] // config.key_dim  # (H, d), then (H,)
    return None


def pairing_order(config: Config, neighbours: bool) -> Array:
    """Return the order of a head's components that turns paired halves into neighbours; neighbours: False = back."""
    width = config.key_dim
    turning = width - width % 2 if config.rotary is None else 2 * len(config.rotary.angles())
    pairs = np.arange(turning).reshape((2, -1) if neighbours else (-1, 2)).T  # (turning / 2, 2) or (2, turning / 2)
    return np.append(pairs, np.arange(turning, width))


def sorting_order(X: Array, Y: Array) -> Array:
    """Return the order of X's columns that turns them into Y's, if there is one: both are sorted by first numbers."""
    coarse = min((X.dtype, Y.dtype), key=lambda dtype: dtype.itemsize)
    first, second = (Z[:SORTED].astype(coarse).astype(np.float64) for Z in (X, Y))
    order = np.empty(X.shape[1], int)
    order[np.lexsort(second)] = np.lexsort(first)
    return order
