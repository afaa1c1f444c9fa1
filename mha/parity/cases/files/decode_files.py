"""Case files of a decode: calls of a layer with one cache, and the cache after each of them.

The names of a call's arrays begin with its number: "step1.queries", "step1.output", "step1.cache.keys". Letters: B
batch, Q new tokens of a call, S slots, D num_hiddens.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mha.arrays import to_numpy
from mha.core.cache.slots import ARRAYS, shapes
from mha.core.options import checks
from mha.core.options.config import Config
from mha.layer import MultiHeadAttention
from mha.parity.cases.suite import Arrays
from mha.parity.rule.layouts import OF_INPUTS

Kinds = dict[str, tuple[np.dtype, tuple[int, ...]]]  # dtype and shape of each array, by name

GIVEN = "valid_lens", "positions", "crop"  # integers that a step may have
HEADS = "keys", "values"  # of a cache, floats; its other arrays are integers
WIDE, WHOLE = np.dtype(np.float64), np.dtype(np.int64)


def flatten_steps(
    attention: MultiHeadAttention, steps: Sequence[Mapping[str, Any]], size: int | None
) -> tuple[Arrays, Any]:
    """Flatten all steps: return the inputs by name, and the other arguments by name."""
    if not steps:
        raise ValueError("steps is empty, expected the arguments of at least one call")
    inputs: Arrays = {}
    call: dict[str, Any] = {"size": attention.cache(1, size).sizes[1]}
    for number, step in enumerate(steps, 1):
        sizes = integer_shapes(step["queries"].shape)
        inputs |= {f"step{number}.{name}": step[name] for name in OF_INPUTS}
        for name in GIVEN:
            if step.get(name) is not None:
                X = checks.array_of(name, step[name]).astype(WHOLE, casting="safe")
                call[f"step{number}.{name}"] = np.broadcast_to(X, sizes[name])
    return inputs, call


def step_prefixes(names: Collection[str], before: str = "") -> list[str]:
    """Return the beginning of the names of each step, "step1." and so on; before: the text before it in these names."""
    numbers = itertools.takewhile(lambda number: f"{before}step{number}.queries" in names, itertools.count(1))
    return [f"step{number}." for number in numbers]


def integer_shapes(queries: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the integers of a step, from the shape of its queries, which begins with the same sizes."""
    B, Q = queries[:2]
    return {"valid_lens": (B,), "positions": (B, Q), "crop": (B,)}


def results(attention: MultiHeadAttention, inputs: Arrays, call: Mapping[str, Any]) -> Arrays:
    """Compute the output of each step and the cache after it, 0 in empty slots."""
    found, cache = {}, attention.cache(len(inputs["step1.queries"]), call["size"])
    for step in step_prefixes(inputs):
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


def array_kinds(
    config: Config, call: Mapping[str, Any], claimed: Mapping[str, np.ndarray], stored: np.dtype
) -> tuple[Kinds, Kinds, Kinds]:
    """Return the expected inputs, arguments and results of a file, in order.

    call: the arguments that are no arrays; claimed: arrays of the shapes and dtypes that the file claims, by name;
    stored: the dtype of inputs there. Raises ValueError if there is no step, or if queries have not three axes.
    """
    inputs: Kinds = {}
    given: Kinds = {}
    expected: Kinds = {}
    widths = config.query_size, config.key_size, config.value_size
    if not (steps := step_prefixes(claimed, "inputs/")):
        raise ValueError("inputs/step1.queries is not there")
    for step in steps:
        if len(came := claimed[f"inputs/{step}queries"].shape) != 3:
            raise ValueError(f"inputs/{step}queries has shape {came}, expected (batch, queries, {config.query_size})")
        B, Q = claimed["inputs/step1.queries"].shape[0], came[1]
        inputs |= {f"inputs/{step}{name}": (stored, (B, Q, D)) for name, D in zip(OF_INPUTS, widths, strict=True)}
        sizes = {f"call/{step}{name}": shape for name, shape in integer_shapes((B, Q)).items()}
        given |= {name: (WHOLE, shape) for name, shape in sizes.items() if name in claimed}
        expected[f"{step}output"] = WIDE, (B, Q, config.num_hiddens)
        kinds = dict.fromkeys(ARRAYS, WHOLE) | dict.fromkeys(HEADS, WIDE)
        after = shapes(config, B, call["size"])
        expected |= {f"{step}cache.{name}": (kinds[name], shape) for name, shape in after.items()}
    return inputs, given, expected
