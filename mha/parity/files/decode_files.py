"""Case files of a decode: calls of a layer with one cache, and the cache after each of them.

What is of a call begins with its number: "step1.queries", "step1.output", "step1.cache.keys". Letters: B batch, Q new
tokens of a call, S slots, D num_hiddens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mha import checks
from mha.arrays import to_numpy
from mha.cache.slots import ARRAYS, shapes
from mha.config import Config
from mha.layer import MultiHeadAttention
from mha.parity.cases.suite import Arrays
from mha.parity.same.layouts import OF_INPUTS

Kinds = dict[str, tuple[np.dtype, tuple[int, ...]]]  # dtype and shape of each array, by name

GIVEN = "valid_lens", "positions", "crop"  # integers that a step may have
HEADS = "keys", "values"  # of a cache, floats; its other arrays are integers
WIDE, WHOLE = np.dtype(np.float64), np.dtype(np.int64)


def taken(attention: MultiHeadAttention, steps: Sequence[Mapping[str, Any]], size: int | None) -> tuple[Arrays, Any]:
    """Return the inputs of all steps by their names, and the arguments that are given beside them."""
    inputs, call = {}, {"size": attention.cache(1, size).sizes[1]}
    for number, step in enumerate(steps, 1):
        sizes = shapes_given(step["queries"].shape)
        inputs |= {f"step{number}.{name}": step[name] for name in OF_INPUTS}
        for name in GIVEN:
            if step.get(name) is not None:
                X = checks.listed(name, step[name]).astype(WHOLE, casting="safe")
                call[f"step{number}.{name}"] = np.broadcast_to(X, sizes[name])
    return inputs, call


def shapes_given(queries: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the integers of a step, whose queries have this shape."""
    B, Q, _ = queries
    return {"valid_lens": (B,), "positions": (B, Q), "crop": (B,)}


def results(attention: MultiHeadAttention, inputs: Arrays, call: Mapping[str, Any]) -> Arrays:
    """Compute the output of each step and the cache after it, 0 in empty slots."""
    found, cache = {}, attention.cache(len(inputs["step1.queries"]), call["size"])
    for number in range(1, len(inputs) // len(OF_INPUTS) + 1):
        step = f"step{number}."
        arrays = [inputs[step + name] for name in OF_INPUTS]
        given = {name: call[step + name] for name in GIVEN if step + name in call}
        if "crop" in given:
            cache = cache.crop(given.pop("crop"))
        found[f"{step}output"], cache = attention(*arrays, causal=call["causal"], cache=cache, **given)
        left = {name: to_numpy(getattr(cache, name)).astype(WIDE if name in HEADS else WHOLE) for name in ARRAYS}
        filled = (left["positions"] >= 0)[:, None, :, None]  # (B, 1, S, 1)
        left |= {name: np.where(filled, left[name], 0) for name in HEADS}
        found |= {f"{step}cache.{name}": X for name, X in left.items()}
    return found


def described(
    config: Config, call: Mapping[str, Any], claimed: Mapping[str, np.ndarray], stored: np.dtype
) -> tuple[Kinds, Kinds, Kinds]:
    """Return what the arrays of a file have to be: inputs, arguments and results, in order.

    Args:
        call: the arguments that are no arrays.
        claimed: arrays of the shapes and dtypes that the file claims, by name.
        stored: the dtype in which inputs are stored.

    Raises ValueError if the queries of a step have no shape to begin with, or are not there.
    """
    inputs: Kinds = {}
    given: Kinds = {}
    expected: Kinds = {}
    number, widths = 1, (config.query_size, config.key_size, config.value_size)
    while number == 1 or f"inputs/step{number}.queries" in claimed:
        step = f"step{number}."
        name = f"inputs/{step}queries"
        if name not in claimed or len(came := claimed[name].shape) != 3:
            what = f"has shape {came}" if name in claimed else "is not there"
            raise ValueError(f"{name} {what}, expected (batch, queries, {config.query_size})")
        B, Q = (inputs["inputs/step1.queries"][1] if inputs else came)[0], came[1]
        inputs |= {f"inputs/{step}{one}": (stored, (B, Q, width)) for one, width in zip(OF_INPUTS, widths, strict=True)}
        sizes = {f"call/{step}{one}": shape for one, shape in shapes_given((B, Q, 0)).items()}
        given |= {one: (WHOLE, shape) for one, shape in sizes.items() if one in claimed}
        expected[f"{step}output"] = WIDE, (B, Q, config.num_hiddens)
        for one, shape in shapes(config, B, call["size"]).items():
            expected[f"{step}cache.{one}"] = (WIDE if one in HEADS else WHOLE), shape
        number += 1
    return inputs, given, expected
