"""Implementations to measure: their roles, and the steps that are timed, with users' own calls among them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mha.bench.cases import Shape
from mha.layer import MultiHeadAttention

REFERENCE = "attention.layer"  # all others are compared with the backend's layer, compiled if the framework compiles

UNSPLIT = "unsplit"  # the layer on one device, with which ways to split it are compared


class Results(NamedTuple):
    """The results of one call, in arrays of NumPy or the framework.

    output: (B, T, D), or None.
    by_input: in training, gradients (B, T, D) that add up to the gradient by the input.
    by_weights: in training, the gradients by every weight.
    """

    output: Any = None
    by_input: tuple = ()
    by_weights: tuple = ()


Step = Callable[[], Any]  # makes one call and waits for its end; returns Results, a product of matrices anything


class Implementation(NamedTuple):
    """An implementation to measure: its role for its backend, and a function that makes its step."""

    role: str
    make: Callable[[], Step]


class Way(NamedTuple):
    """A way to call a layer over several devices, on one rank.

    step: a function that makes one call and waits for its end; None = this rank takes no part.
    whole: a function that makes the results of the whole layer, on every rank, from those of `step` here, or None.
    bytes: the memory that the compiler says a device takes, None = it is measured.
    """

    step: Callable[[], Results] | None
    whole: Callable[[Results | None], Results]
    bytes: int | None = None


class UnavailableError(Exception):
    """A way that cannot be measured here; its text says why."""


def without_window(attention: MultiHeadAttention) -> MultiHeadAttention:
    """The layer with the same weights and no window; the frameworks' own layers take the window as a mask."""
    options: dict[str, Any] = vars(attention.config) | {"window": None}
    plain = MultiHeadAttention(**options, seed=attention.seed, backend=attention.backend)
    plain.weights = attention.weights
    return plain


def of_layer(call: Callable, step: Callable[[Callable], Step]) -> dict[str, Implementation]:
    """The implementations of the backend's layer itself: its call, and the one that also returns attention weights.

    call: a function of arrays, which takes return_weights; step: a function that makes a step of such a function.
    """
    return {
        REFERENCE: Implementation("layer", lambda: step(call)),
        "readable": Implementation("readable", lambda: step(lambda *arrays: call(*arrays, return_weights=True)[0])),
    }


def call(attention: MultiHeadAttention, shape: Shape, tensor: Callable = np.asarray) -> Step:
    """A step that calls `attention(...)` as users do, on arrays that `tensor` makes of NumPy's."""
    (X, lengths), hiding = tensors(tensor, shape.inputs(), shape.lengths()), shape.call()
    return lambda: Results(attention(X, X, X, lengths, **hiding))


def gradients(attention: MultiHeadAttention, shape: Shape, tensor: Callable = np.asarray) -> Step:
    """A step that calls `attention.gradients(...)` as users do, on arrays that `tensor` makes of NumPy's."""
    X, lengths, cotangent = tensors(tensor, shape.inputs(), shape.lengths(), shape.cotangent())
    hiding = shape.call()

    def step() -> Results:
        found = attention.gradients(X, X, X, lengths, **hiding, cotangent=cotangent)
        by_input = tuple(found.pop(name) for name in ("queries", "keys", "values"))
        return Results(None, by_input, tuple(found.values()))

    return step


def user_calls(
    attention: MultiHeadAttention,
    shape: Shape,
    kind: str,
    tensor: Callable | None = None,
    own: Callable[[Step], Step] = lambda step: step,
    numpy: Callable[[Step], Step] = lambda step: step,
) -> dict[str, Implementation]:
    """The implementations that users call: of `attention(...)`, or in training of `attention.gradients(...)`.

    tensor: a function that makes the framework's arrays from NumPy's, None = it has none; own, numpy: functions by
    which a backend wraps a step on its own arrays, and one on NumPy's.
    """
    made = {}
    name, step = ("attention.gradients(...)", gradients) if kind == "training" else ("attention(...)", call)
    if tensor is not None:
        made[f"{name}, own arrays"] = Implementation("call", lambda: own(step(attention, shape, tensor)))
    if tensor is None or kind != "training":
        role = "NumPy call" if made else "call"
        made[f"{name}, NumPy arrays"] = Implementation(role, lambda: numpy(step(attention, shape)))
    return made


def tensors(tensor: Callable, *arrays: Any) -> list[Any]:
    """The framework's arrays, which `tensor` makes, of NumPy's; None stays None."""
    return [None if array is None else tensor(array) for array in arrays]
