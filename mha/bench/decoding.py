"""Steps that decode one token after another, behind T others in a cache that starts again before it is full."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.core import dispatch
from mha.core.cache import Cache
from mha.layer import MultiHeadAttention

MORE = 64  # tokens, after which the cache is as it was


def heads(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of T tokens, and room for MORE, (B, G, T + MORE, d) each."""
    size = shape.B, shape.G or shape.H, shape.T, shape.D // shape.H
    room = [(0, 0), (0, 0), (0, MORE), (0, 0)]
    keys, values = np.random.default_rng(3).standard_normal((2, *size), "float32")
    return np.pad(keys, room), np.pad(values, room)


def places() -> itertools.cycle:
    """Yield, call by call, the number of tokens in the cache beyond the first T."""
    return itertools.cycle(range(MORE))


def decoder(attention: MultiHeadAttention, shape: Shape, call: Callable[[Cache], Any]) -> Step:
    """A step that decodes with call(cache), which returns an output and the next cache."""
    keys, values = heads(shape)
    cache = Cache(attention.config, (keys, values, *_integers(shape))).to(attention.backend)
    module, place = dispatch.load(attention.backend), places()

    def step() -> Results:
        nonlocal cache
        if next(place) == 0:  # what is written behind the first T does not count
            integers = (module.tensor(X, module.place(attention.layer)) for X in _integers(shape))
            cache = Cache(attention.config, (cache.keys, cache.values, *integers))
        output, cache = call(cache)
        return Results(output)

    return step


def user_calls(
    attention: MultiHeadAttention, shape: Shape, tensor: Callable, own: Callable[[Step], Step] = lambda step: step
) -> dict[str, Implementation]:
    """The implementations that users call, on arrays of `tensor`; own: as of `steps.user_calls`."""
    x = tensor(shape.inputs())

    def make() -> Step:
        return own(decoder(attention, shape, lambda cache: attention(x, x, x, causal=True, cache=cache)))

    return {"attention(...)": Implementation("call", make)}


def _integers(shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The positions, lengths and lost positions of a cache with T tokens."""
    slots, (B, T) = np.arange(shape.T + MORE), (shape.B, shape.T)
    positions = np.tile(np.where(slots < T, slots, -1), (B, 1))
    return positions.astype("int32"), np.full(B, T, "int32"), np.full(B, -1, "int32")
