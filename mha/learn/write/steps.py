"""Calls of a proof in steps with a cache: the tokens and arguments of each step, and NumPy's results."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha.core.call import OF_PAIRS
from mha.layer import MultiHeadAttention

AXES = {"output": 1, "weights": 2}  # along which the results of steps stand side by side
TOKENS = 5


def calls(asked: Any, whole: dict[str, Any], random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The arguments of calls with a cache, without and with others; whole: all arguments that calls may have."""
    lengths = {"valid_lens": np.array([3, 2], "int32")}
    yield {"cache": 0, "causal": True} | lengths
    mask = {"mask": random.random((2, 1, 1, TOKENS)) > 0.3}
    bias = {"score_bias": random.standard_normal((1, 1, 1, TOKENS)).astype("float32")}
    more = {name: whole[name] for name in ("head_gates", "return_weights") if name in asked}
    places = {"positions": np.array([[4], [7]], "int32")}
    yield {"cache": 0, "causal": True} | lengths | places | mask | (bias if "score_bias" in asked else {}) | more


def steps(call: dict[str, Any]) -> list[tuple[int, int, list[str]]]:
    """The steps of a call with a cache: their first and last tokens, and the names of their arguments."""
    names = [name for name in call if name not in ("cache", "valid_lens", "positions", *OF_PAIRS)]
    own = [["valid_lens"], ["positions"], list(OF_PAIRS)]
    ends = 0, 3, 4, TOKENS
    return [(*ends[n : n + 2], [*names, *(name for name in own[n] if name in call)]) for n in range(3)]  # type: ignore


def fitting(layer: MultiHeadAttention, inputs: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    """The call with as few slots as it can have, and its mask and bias cut to so many."""
    for size in range(1, TOKENS):
        cut = {name: X[..., :size] if name in OF_PAIRS else X for name, X in call.items()} | {"cache": size}
        try:
            results(layer, inputs, cut)
        except ValueError:
            continue
        return cut
    return call | {"cache": TOKENS}


def results(layer: MultiHeadAttention, inputs: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    """Output and weights of all steps together, as one call gives them; inputs: queries, keys and values of tokens."""
    cache = layer.cache(len(inputs[0]), call["cache"])
    found: dict[str, list[Any]] = {}
    for start, end, names in steps(call):
        part = [X[:, start:end] for X in inputs]
        *arrays, cache = layer(*part, cache=cache, **{name: call[name] for name in names})
        for name, X in zip(AXES, arrays, strict=False):
            found.setdefault(name, []).append(X)
    return {name: np.concatenate(arrays, AXES[name]) for name, arrays in found.items()}
