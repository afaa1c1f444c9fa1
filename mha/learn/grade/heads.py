"""Judge level 3, the split and the merge of heads, and name students' mistakes in them; nothing is rounded here."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
LACKS, MIXED = "the {} lacks the permute", "the heads are interleaved"
FIRST, STAYS, SWAPPED = "heads come before samples", "the heads stay behind the tokens", "the last two axes are swapped"
WHAT = {
    LACKS.format("split"): "(B, T, H*d) is reshaped to (B*H, T, d) as it lies",
    LACKS.format("merge"): "(B*H, T, d) is reshaped to (B, T, H*d) as it lies",
    MIXED: "features are taken as (d, H) instead of (H, d)",
    FIRST: "the first axis is (H, B) instead of (B, H)",
    STAYS: "(B, T, H, d) is not permuted to (B, H, T, d)",
    SWAPPED: "a head is (d, T) instead of (T, d)",
}


def grid(X: Array, H: int) -> Array:
    """(B, T, H*d) -> (B, T, H, d)."""
    return X.reshape(*X.shape[:2], H, -1)  # (B, T, H, d)


SPLITS: dict[str, Callable[[Array, int], Array]] = {
    "": lambda X, H: grid(X, H).transpose(0, 2, 1, 3),
    LACKS.format("split"): lambda X, H: X.reshape(len(X), H, X.shape[1], -1),
    MIXED: lambda X, H: X.reshape(*X.shape[:2], -1, H).transpose(0, 3, 1, 2),
    FIRST: lambda X, H: grid(X, H).transpose(2, 0, 1, 3),
    STAYS: grid,
    SWAPPED: lambda X, H: grid(X, H).transpose(0, 2, 3, 1),
}
# Of heads (B, H, T, d).
MERGES: dict[str, Callable[[Array, int], Array]] = {
    "": lambda X, H: X.transpose(0, 2, 1, 3),
    LACKS.format("merge"): lambda X, H: X,
    MIXED: lambda X, H: X.transpose(0, 2, 3, 1),
    FIRST: lambda X, H: X.reshape(H, -1, *X.shape[2:]).transpose(1, 2, 0, 3),
    SWAPPED: lambda X, H: X.transpose(0, 1, 3, 2),
}


def split(X: Array, H: int) -> Array:
    """Split heads in the right way: (B, T, H*d) -> (B, H, T, d)."""
    return SPLITS[""](X, H)


def judge_split(X: Array, H: int, theirs: Array) -> tuple[bool, str, str]:
    """Judge a split of X (B, T, H*d): whether it is right, the mistake or "", and what differs, in words."""
    B, T, width = X.shape
    shapes = [(B * H, T, width // H), (B, H, T, width // H)]
    for name, make in SPLITS.items():
        made = make(X, H)
        folded = made.reshape(-1, *made.shape[2:]).shape
        if theirs.shape in (made.shape, folded) and np.array_equal(theirs.ravel(), made.ravel()):
            return not name, name, f"transpose_qkv of {X.shape} and {H} heads" if name else ""
    if theirs.shape not in shapes:
        return False, "", f"transpose_qkv gives shape {theirs.shape}, expected {shapes[0]}: (B*H, T, d)"
    return False, "", "transpose_qkv gives other numbers"


def judge_merge(heads: Array, theirs: Array) -> tuple[bool, str, str]:
    """Judge a merge of heads (B, H, T, d), as `judge_split` does."""
    B, H, T, d = heads.shape
    shape = (B, T, H * d)
    for name, make in MERGES.items():
        if theirs.shape == shape and np.array_equal(theirs, make(heads, H).reshape(shape)):
            return not name, name, f"transpose_output of {H} heads" if name else ""
    if theirs.shape != shape:
        return False, "", f"transpose_output gives shape {theirs.shape}, expected {shape}: (B, T, H*d)"
    return False, "", "transpose_output gives other numbers"
