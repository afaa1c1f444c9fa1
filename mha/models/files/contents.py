"""Measure the kernels of a layer by a few numbers, which rounding and an order of columns leave: to find it again."""

from collections.abc import Mapping

import numpy as np

from mha.parity.rule.relations import matrix
from mha.parity.rule.rules import UNIT

# Of each kernel that is not zeros: the norms of its rows and of its columns, which belong to heads. An order of columns
# leaves those of the rows, a transpose exchanges the two.
Contents = dict[str, tuple[np.ndarray, np.ndarray]]


def kernel_norms(weights: Mapping[str, np.ndarray]) -> Contents:
    """Return the norms of the rows and of the columns of each kernel."""
    found = {}
    for name, X in weights.items():
        if name.endswith(".kernel") and X.any():
            Y = matrix(name, X).astype(np.float64)
            found[name] = np.sqrt((Y * Y).sum(1)), np.sqrt((Y * Y).sum(0))
    return found


def share_of_kernels(ours: Contents, theirs: Contents) -> float:
    """Return the share of B's kernels that are A's, rounded, transposed, or with their columns in another order."""
    same = [name for name, (rows, _) in theirs.items() if name in ours and any(are_near(rows, X) for X in ours[name])]
    return len(same) / max(len(theirs), 1)


def are_near(X: np.ndarray, Y: np.ndarray) -> bool:
    """Whether norms are the same but for rounding: in half precision each number errs by half of this share."""
    return X.shape == Y.shape and bool((np.abs(X - Y) <= UNIT["bfloat16"] * np.maximum(X, Y)).all())
