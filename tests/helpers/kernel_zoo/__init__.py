"""Kernels to test their judge with, as users write them: right ones, and wrong ones that are a line or two away.

Letters as in the lessons. `of_NAME.py` has those of a framework, which is imported on use.
"""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

BACKENDS = "numpy", "torch", "jax", "tensorflow", "mxnet", "mlx"


class Kernel(NamedTuple):
    """A kernel, and what one has to know to call it.

    call: a function of q, k, v and options by its own names that returns the output, or (output, lse).
    layout: of its arrays, as of `parity.compare_kernel`.
    holds: the options that it has in every call, though nobody gives them.
    takes: its parameters, where its signature does not list them.
    backward: a function of q, k, v, output, lse, cotangent and the options that returns dq, dk, dv by name; None = the
        framework's own gradients.
    gradients: whether it has gradients here.
    empty_rows: whether rows without keys are 0.
    known: the name of its mistake in the catalogue, "" if it is not there.
    """

    call: Callable[..., Any]
    layout: str = "BHTD"
    holds: Mapping[str, Any] = MappingProxyType({})
    takes: tuple[str, ...] = ()
    backward: Callable[..., Any] | None = None
    gradients: bool = True
    empty_rows: bool = True
    known: str = ""


def right(backend: str) -> dict[str, Kernel]:
    """Return the right kernels of a backend by name."""
    return importlib.import_module(f"kernel_zoo.of_{backend}").RIGHT


def wrong(backend: str) -> dict[str, Kernel]:
    """Return the wrong kernels of a backend by the words for what is wrong."""
    if backend == "numpy":
        importlib.import_module("kernel_zoo.wrong_tiles")
        importlib.import_module("kernel_zoo.wrong_gradients")
        return importlib.import_module("kernel_zoo.planting").WRONG
    return importlib.import_module(f"kernel_zoo.of_{backend}").WRONG
