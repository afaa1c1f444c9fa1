"""Arrays of heads in NumPy: split, merged, and the log-sum-exp of their scores; letters as in the lessons."""

from typing import Literal, get_args

import numpy as np

from mha.core import dispatch
from mha.core.options.config import Config, numpy_dtype
from mha.core.options.names import FloatName

KernelLayout = Literal["BHTD", "BTHD", "THD"]
LAYOUTS: tuple[KernelLayout, ...] = get_args(KernelLayout)


def heads_first(name: str, X: np.ndarray, layout: str) -> np.ndarray:
    """Return heads in the layout (B, H, T, d), of which a packed array has one sample."""
    if X.ndim != len(layout):
        raise ValueError(f"{name} has shape {X.shape}, expected {len(layout)} axes, as layout={layout!r} has")
    X = X[None] if layout == "THD" else X  # (1, T, H, d)
    return X if layout == "BHTD" else X.swapaxes(1, 2)  # (B, H, T, d)


def split(X: np.ndarray, num_heads: int) -> np.ndarray:
    """Split the heads: (B, T, H*d) -> (B, H, T, d)."""
    return X.reshape(*X.shape[:2], num_heads, X.shape[2] // num_heads).swapaxes(1, 2)  # (B, H, T, d)


def merge(X: np.ndarray) -> np.ndarray:
    """Put the heads side by side: (B, H, T, d) -> (B, T, H*d)."""
    return X.swapaxes(1, 2).reshape(X.shape[0], X.shape[2], X.shape[1] * X.shape[3])  # (B, T, H*d)


def flat(X: np.ndarray, num_heads: int) -> np.ndarray:
    """Split the heads and make them samples: (B, T, H*d) -> (B*H, T, d)."""
    return np.asarray(dispatch.lesson("numpy").transpose_qkv(X, num_heads))  # (B*H, T, d)


def by_samples(X: np.ndarray, num_heads: int) -> np.ndarray:
    """Tell the heads of a sample from its samples: (B*H, ...) -> (B, H, ...)."""
    return X.reshape(-1, num_heads, *X.shape[1:])  # (B, H, ...)


def in_groups(X: np.ndarray, groups: int) -> np.ndarray:
    """Tell the heads of each group from one another: (B, H, ...) -> (B, G, H / G, ...)."""
    return X.reshape(len(X), groups, X.shape[1] // groups, *X.shape[2:])  # (B, G, H / G, ...)


def unshare(X: np.ndarray, groups: int) -> np.ndarray:
    """Sum what heads of queries have of a head that they share: (B, H, K, d) -> (B, G, K, d)."""
    return np.asarray(in_groups(X, groups).sum(2))  # (B, G, K, d)


def scale_of(config: Config) -> float:
    """Return the factor of the dot products."""
    return config.key_dim**-0.5 if config.scale is None else config.scale


def finite(X: np.ndarray) -> np.ndarray:
    """Return X with 0 where it is not finite."""
    return np.nan_to_num(X, nan=0.0, posinf=0.0, neginf=0.0)


def log_sum_exp(scores: np.ndarray, visible: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
    """Return the logarithm of the sum of exponentials of visible scores (B, H, Q, K), and sinks (H,): (B, H, Q, 1)."""
    scores = np.where(visible, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1)).astype(scores.dtype)  # (B, H, Q, 1)
        scores = np.concatenate([scores, column], -1)  # (B, H, Q, K + 1)
    largest = scores.max(-1, keepdims=True, initial=np.finfo(scores.dtype).min)  # (B, H, Q, 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # scores may overflow
        return np.asarray(largest + np.log(np.exp(scores - largest).sum(-1, keepdims=True)))


def at_least_float32(dtype: FloatName) -> np.dtype:
    """Return a dtype, or float32 in place of a half precision."""
    return np.promote_types(numpy_dtype(dtype), np.float32)
