"""Read the kernel of one projection as a framework stores it: which of its axes is the input, also if it convolves."""

import dataclasses
from typing import Any

import numpy as np

INWARD = ("kernel", "w", "vars.0")  # kernels of this name are (in, out)
TRANSPOSED = ("Conv1D",)  # modules of PyTorch whose weight is (in, out)
LINEAR = ("Linear", "Dense")  # classes whose weight is (out, in), where they are of these packages:
CONVOLUTION = "Conv"  # in the names of classes whose weight is (out, in, window), or (out, window, in) in MLX
PACKAGES = ("torch", "mlx", "mxnet", "mha")  # mha: of a record, which has the names of classes alone


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The kernel of a projection.

    Attributes:
        name: of its array.
        X: the array.
        module: that has it, None = none.
        outward: whether its framework's arrays of the name weight are (out, in).
        convolved: whether it is of a convolution over one token, whose window is left out, and takes (B, features,
            tokens), as in PyTorch.
    """

    name: str
    X: np.ndarray
    module: Any
    outward: bool
    convolved: bool = False

    @property
    def orientation(self) -> str:
        """Its orientation by its axes, its name or its class: "io", "oi", or "" if these do not show it."""
        if self.X.ndim == 3 or self.name.endswith(INWARD):
            return "io"  # (in, H, d), (H, d, out) or (in, out)
        if self.module is not None:
            kinds = type(self.module).__mro__
            if any(one.__name__ in TRANSPOSED for one in kinds):
                return "io"
            known = [one.__name__ for one in kinds if one.__module__.partition(".")[0] in PACKAGES]
            return "oi" if any(name in LINEAR or CONVOLUTION in name for name in known) else ""
        return "oi" if self.name.endswith("weight") else ""

    @property
    def is_guess(self) -> bool:
        """Whether its name alone says its orientation, though other frameworks use the name otherwise."""
        return self.module is None and self.orientation == "oi" and not self.outward

    def by_size(self, expected: tuple[int, int] | None, whose: str) -> str:
        """Return its orientation by the sizes (out, in); "" if these are equal. ValueError if it has others."""
        if expected is None or self.X.ndim != 2:
            return ""
        if self.X.shape not in (expected, expected[::-1]):
            turned = f" or {expected[::-1]}" if expected[0] != expected[1] else ""
            raise ValueError(
                f"{self.name} of {whose} has shape {self.X.shape}, expected {expected}{turned} for that of the model"
            )
        return "" if expected[0] == expected[1] else "oi" if self.X.shape == expected else "io"

    def out_first(self, role: str, way: str) -> np.ndarray:
        """Return the kernel as (out, in)."""
        X = self.X
        if X.ndim == 3:
            X = X.reshape(-1, X.shape[2]) if role == "W_o" else X.reshape(len(X), -1)  # (in, out)
            return X.T  # (out, in)
        return X.T if way == "io" else X  # (out, in)


def without_window(name: str, X: np.ndarray, module: Any) -> tuple[np.ndarray, bool]:
    """Return a kernel without a convolution's window of one token, and whether this was its last axis.

    PyTorch and MXNet have it there, (out, in, 1); MLX as (out, 1, in), Keras and Flax as (1, in, out). module: that has
    the kernel, None = not known. Raises ValueError if a convolution has a wider window.
    """
    convolves = any(CONVOLUTION in kind.__name__ for kind in type(module).__mro__)
    if X.ndim < 3 or not (convolves or module is None):
        return X, False
    if name.endswith(INWARD) and X.size == X.shape[-2] * X.shape[-1]:
        return X.reshape(X.shape[-2:]), False  # (in, out)
    if name.endswith("weight") and X.size == X.shape[0] * X.shape[1]:
        return X.reshape(X.shape[:2]), True  # (out, in)
    if name.endswith("weight") and X.size == X.shape[0] * X.shape[-1]:
        return X.reshape(X.shape[0], -1), False  # (out, in)
    if convolves:
        raise ValueError(
            f"{name} has shape {X.shape}: it is of a convolution over several tokens, expected one over a single token"
        )
    return X, False
