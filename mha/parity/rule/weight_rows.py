"""A weight of two layers, or an array beside their weights: is it the same, and how does one come from the other?"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from mha.core.options import checks
from mha.core.options.config import Config
from mha.parity.rule.relations import HEADS, MatrixChange, Relation, matrix, relate, relation
from mha.parity.rule.rules import error, fraction, largest

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class WeightRow:
    """One weight of two layers, A and B, or an array beside their weights.

    Attributes:
        name: the canonical name of the weight; an array's name in the file, without the layer's prefix.
        shapes: of A's and of B's, None if it is missing.
        dtypes: of A's and of B's, of a missing one that of its layer.
        relation: how B's comes from A's weights; None if in no known way.
        difference: the largest, divided by A's largest number; infinite if the shapes differ.
    """

    name: str
    shapes: tuple[Shape | None, Shape | None]
    dtypes: tuple[str, str]
    relation: Relation | None
    difference: float

    @property
    def same(self) -> bool:
        """Return whether the two are the same but for rounding, each in its place."""
        return self.relation is not None and not self.relation.how

    @property
    def verdict(self) -> str:
        """Return the result in words."""
        if self.relation is None or self.relation.how:
            return "DIFFERS"
        if self.relation.rounded:
            return f"the same to {self.relation.rounded}"
        return "the same bits" if self.dtypes[0] == self.dtypes[1] else "the same numbers"

    @property
    def note(self) -> str:
        """Return the reason in words."""
        for layer, shape in zip("AB", self.shapes, strict=True):
            if shape is None:
                return f"zeros, and not in {layer}" if self.same else f"not in {layer}"
        if self.relation is None:
            return "" if self.shapes[0] == self.shapes[1] else "of another shape"
        rounded = f", to {self.relation.rounded}" if self.relation.how and self.relation.rounded else ""
        return self.relation.how + rounded


def same_weight(name: str, ours: np.ndarray | None, theirs: np.ndarray) -> bool:
    """Return whether a weight is there, and the same but for rounding."""
    if ours is None or ours.shape != theirs.shape:
        return False
    return relate(matrix(name, ours), matrix(name, theirs), MatrixChange()) is not None


def weight_row(
    name: str, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], config: Config, other: Config
) -> WeightRow:
    """Make the row of a weight; one layer may lack a bias that is all zeros in the other."""
    shapes = (ours[name].shape if name in ours else None, theirs[name].shape if name in theirs else None)
    dtypes = (config.dtype, other.dtype)
    if None in shapes:
        zeros = name.endswith(".bias") and not {**ours, **theirs}[name].any()
        return WeightRow(name, shapes, dtypes, Relation("") if zeros else None, 0.0 if zeros else np.inf)
    found = relation(name, ours, theirs, config)
    return WeightRow(name, shapes, dtypes, found, distance(found, ours[name], theirs[name]))


def array_row(
    name: str, ours: np.ndarray | None, theirs: np.ndarray | None, order: np.ndarray | None = None
) -> WeightRow:
    """Make the row of an array beside the weights, which may be missing in one of the files, None.

    order: that of A's heads in B's weights, in which an array of all heads has to have them, too; None = the same.
    """
    given = [X for X in (ours, theirs) if X is not None]
    shapes = (None if ours is None else ours.shape, None if theirs is None else theirs.shape)
    dtypes = (checks.dtype_name(given[0].dtype), checks.dtype_name(given[-1].dtype))
    if ours is None or theirs is None:
        return WeightRow(name, shapes, dtypes, None, np.inf)
    found = array_relation(ours, theirs)
    if order is not None and len(order) in ours.shape and ours.shape == theirs.shape:
        found = relation_of_heads(ours, theirs, order) or found
    return WeightRow(name, shapes, dtypes, found, distance(found, ours, theirs))


def array_relation(ours: np.ndarray, theirs: np.ndarray) -> Relation | None:
    """Find how an array comes from another one: the same, rounded or transposed; None if in no known way."""
    if error(theirs, ours) == 0:  # masks of infinity, too
        return Relation("")
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    X, Y = np.atleast_1d(ours), np.atleast_1d(theirs)
    for how, transposed in (("", False), ("transposed", True)):
        if (X.T if transposed else X).shape == Y.shape and (found := relate(X, Y, MatrixChange(transposed))):
            return dataclasses.replace(found, how=how, kept=not how)
    return None


def relation_of_heads(ours: np.ndarray, theirs: np.ndarray, order: np.ndarray) -> Relation | None:
    """Find how an array of all heads comes from A's, where the weights have A's heads in this order."""
    for axis in reversed([axis for axis, size in enumerate(ours.shape) if size == len(order)]):
        found = array_relation(ours.take(order, axis), theirs)
        if found is not None and found.kept:
            return dataclasses.replace(found, how=f"{HEADS}, that of the weights")
    found = array_relation(ours, theirs)
    if found is not None and found.kept:
        return Relation(f"the same, but the weights have {HEADS}", kept=False)
    return None


def distance(found: Relation | None, ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of two arrays, divided by the largest number of ours."""
    if found == Relation(""):
        return 0.0
    far = error(theirs, ours)
    return np.inf if far == np.inf else fraction(far, largest(ours.astype(np.float64)))
