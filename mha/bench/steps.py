"""What an implementation is: its role beside the others, and steps to be timed, those that users call among them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mha
from mha.bench.cases import Shape

REFERENCE = "attention.layer"  # what all others are compared with: the backend's own layer, compiled where it compiles


class Results(NamedTuple):
    """What one call gives, in arrays of NumPy or the framework.

    output: (B, T, D), None if the call gives none; by_input: in training, gradients whose sum is that by the input,
    each (B, T, D); by_weights: in training, the gradients by every weight.
    """

    output: Any = None
    by_input: tuple = ()
    by_weights: tuple = ()


Step = Callable[[], Any]  # one call, which has ended when it returns: Results, unless it is a product of matrices


class Implementation(NamedTuple):
    """Something to be measured: what it is to its backend, and what makes its step."""

    role: str
    make: Callable[[], Step]


def without_window(attention: mha.MultiHeadAttention) -> mha.MultiHeadAttention:
    """The layer with the same weights and no window, for the frameworks' own layers, which take one as a mask."""
    options: dict[str, Any] = vars(attention.config) | {"window": None}
    plain = mha.MultiHeadAttention(**options, seed=attention.seed, backend=attention.backend)
    plain.weights = attention.weights
    return plain


def call(attention: mha.MultiHeadAttention, shape: Shape, tensor: Callable = np.asarray) -> Step:
    """A step of `attention(...)`, as users call it, on arrays that `tensor` makes of NumPy's."""
    X, lengths = _arrays(tensor, shape.inputs(), shape.lengths())
    return lambda: Results(attention(X, X, X, lengths, causal=shape.causal))


def gradients(attention: mha.MultiHeadAttention, shape: Shape, tensor: Callable = np.asarray) -> Step:
    """A step of `attention.gradients(...)`, as users call it, on arrays that `tensor` makes of NumPy's."""
    X, lengths, cotangent = _arrays(tensor, shape.inputs(), shape.lengths(), shape.cotangent())

    def step() -> Results:
        found = attention.gradients(X, X, X, lengths, causal=shape.causal, cotangent=cotangent)
        by_input = tuple(found.pop(name) for name in ("queries", "keys", "values"))
        return Results(None, by_input, tuple(found.values()))

    return step


def _arrays(tensor: Callable, *arrays: np.ndarray | None) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]
