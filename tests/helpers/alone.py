"""Each option of a layer and each argument of a call by itself, in a layer of equal widths without groups.

Most models are such layers, and backends have their quickest paths for them. The tables here have an entry for every
field of `Config` and every argument of a call; `test_alone.py` fails where one is missing.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import dataclasses
import functools
from typing import Any

import formula
import numpy as np

import mha
from mha.core.options.config import numpy_dtype

B, Q, K, H, D = 3, 5, 7, 6, 24
PLAIN = {"num_hiddens": D, "num_heads": H}
PAIRS = ((Q, K), (B, Q, K), (B, H, Q, K), (B, 1, 1, K), (1, H, Q, 1))

# By the name of a field: values that it may have, all else left as it is.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "num_hiddens": (30,),
    "num_heads": (1, 24),
    "dropout": (0.5,),
    "bias": (True,),
    "query_size": (13,),
    "key_size": (11,),
    "value_size": (17,),
    "key_dim": (2,),
    "value_dim": (10,),
    "num_key_value_heads": (2, 1),
    "scale": (0.7,),
    "softcap": (0.3,),
    "window": ((2, 1), (0, 0), (1, None), (None, 1)),
    "chunk": (3, 1),
    "rotary": (mha.Rotary(), mha.Rotary(2, base=100.0, interleaved=True), mha.Rotary(magnitude=1.25)),
    "qk_norm": ("rms", "layer", mha.Norm("rms", 0.5), mha.Norm("rms", over="all")),
    "value_norm": ("rms", mha.Norm("layer", 0.5, "all")),
    "temperature": (mha.Temperature(0.4, 2), mha.Temperature(0.7, 1, 0)),
    "sinks": (True,),
    "output_gate": ("element", "head"),
    "pooling": ("additive",),
    "dtype": ("float32",),
}
# By the name of an argument; a shape stands for random numbers.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "valid_lens": ([K, 3, 5], [4, 4, 4], [0, 9, 2], [[1, 7, 3, 0, 4], [5, 5, 5, 5, 5], [2, 2, 7, 7, 1]]),
    "mask": PAIRS,
    "score_bias": PAIRS,
    "causal": (True,),
    "offset": (2, -1, -2, [1, -3, 6]),
    "head_gates": ((H,), (B, H)),
    "positions": ([4, 3, -1, 2, 0], [[-1, 0, 1, 2, 3], [3, 1, -1, 5, 4], [2, 2, 2, 9, 9]]),
    "key_positions": ([6, 5, 4, -1, 3, 2, 1], [[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6], [5, 4, 3, 2, 1, 0, -1]]),
    "segments": ([0, 0, 2, 2, -1], [[-1, 3, 3, 0, 0], [1, 0, 1, 0, 2], [7, 7, 7, 7, 7]]),
    "key_segments": ([0, 0, 2, -1, 2, 0, 1], [[3, 3, 3, 0, -1, -1, 0], [0, 1, 0, 1, 0, 1, 1], [-1, 7, 7, 7, 5, 5, 7]]),
    "training": (True, False),
    "return_weights": (False,),  # every case is called with True too
}
# Two at once, of which a quick path may take one for all.
TOGETHER: tuple[dict[str, Any], ...] = (
    {"causal": True, "valid_lens": [K, 3, 5]},
    {"causal": True, "mask": (B, 1, 1, K)},
    {"causal": True, "score_bias": (B, 1, 1, K)},
    {"causal": True, "window": (1, None)},
    {"valid_lens": [4, 4, 4], "mask": (B, 1, 1, K)},
    {"valid_lens": [K, 3, 5], "score_bias": (B, 1, 1, K)},
    {"valid_lens": [K, 3, 5], "window": (1, None)},
    {"causal": True, "chunk": 3},
    {"window": (2, 1), "chunk": 4},
    {"temperature": mha.Temperature(0.4, 2), "window": (2, 1), "offset": 3},  # whose first keys nobody sees
    {"chunk": 3, "segments": [0, 0, 1, 1, 1], "key_segments": [0, 0, 0, 1, 1, 1, 1]},
    {"chunk": 3, "window": (2, None), "offset": 2},
    {"mask": (B, 1, 1, K), "score_bias": (1, H, 1, K)},
    {"bias": True, "valid_lens": [0, 9, 2]},  # what nobody sees is projected to the bias
)
# What makes an option count that alone says nothing.
PLACED: tuple[dict[str, Any], ...] = ({"causal": True}, {"window": (1, None)}, {"chunk": 3}, {"rotary": mha.Rotary()})
BESIDE: dict[str, tuple[dict[str, Any], ...]] = {
    "output_gate": ({}, {"bias": True, "valid_lens": [0, 9, 2]}),
    "offset": (
        {"causal": True},
        {"window": (2, 1)},
        {"window": (1, None)},
        {"window": (None, 0)},
        {"chunk": 3},
        {"rotary": mha.Rotary()},
    ),
    "positions": ({}, *PLACED),
    "key_positions": ({}, *PLACED),
    "segments": (
        {"key_segments": [0, 0, 2, -1, 2, 0, 7]},
        {"key_segments": [0, 0, 2, 2, 2, 0, 3], "causal": True},
        {
            "key_segments": [3, 3, 2, 2, 0, 0, 0],
            "positions": [0, 1, 0, 1, 2],
            "key_positions": [0, 1, 0, 1, 0, 1, 2],
            "rotary": mha.Rotary(),
        },
    ),
    "key_segments": ({"segments": [3, 3, 0, 0, 7]}, {"segments": [3, 3, 0, 0, 7], "window": (1, None)}),
}
# These change no number here: nothing is dropped unless a layer with dropout trains.
SILENT = {"dropout", "training", "return_weights", "dtype"}


@dataclasses.dataclass(frozen=True)
class Alone:
    """One layer and one call of it; one_array: queries, keys and values are the same array."""

    name: str
    options: dict[str, Any]
    arguments: dict[str, Any]
    one_array: bool = False

    @property
    def dtype(self):
        return self.options.get("dtype", "float64")

    @property
    def says_something(self):
        """Whether the output is another one than without the option."""
        return bool(self.options or self.arguments) and SILENT.isdisjoint(self.options | self.arguments)

    def layer(self, backend, **options):
        """The layer on a backend, with random biases and scales, the same weights on each; options: more of them."""
        attention = mha.MultiHeadAttention(**PLAIN | {"dtype": "float64"} | self.options | options, backend=backend)
        random = np.random.default_rng(1)
        attention.weights = {
            name: random.normal(0 if X.ndim > 1 else 1, 0.5, X.shape).astype(X.dtype)
            for name, X in attention.weights.items()
        }
        return attention

    @functools.cached_property
    def inputs(self):
        """Queries, keys and values; the queries of one array are keys too."""
        config, random = self.layer("numpy").config, np.random.default_rng(2)
        widths = (Q, config.query_size), (K, config.key_size), (K, config.value_size)
        arrays = [random.normal(size=(B, *size)).astype(numpy_dtype(self.dtype)) for size in widths]
        return [arrays[0]] * 3 if self.one_array else arrays

    @functools.cached_property
    def call(self):
        """The arguments of the call; every fifth number of a bias is -inf."""
        random, keys = np.random.default_rng(3), Q if self.one_array else K
        made = dict(self.arguments)
        for name in ("mask", "score_bias", "head_gates"):
            if name in made:
                shape = tuple(keys if size == K else size for size in made[name])
                floats = random.normal(size=shape).astype(numpy_dtype(self.dtype))
                hidden = np.where(random.random(shape) < 0.2, -np.inf, floats).astype(floats.dtype)
                made[name] = {"mask": floats < 0.5, "score_bias": hidden, "head_gates": floats}[name]
        for name in ("key_positions", "key_segments"):
            if name in made:
                made[name] = np.array(made[name])[..., :keys]
        return made

    @functools.cached_property
    def expected(self):
        """The output and the attention weights by the formula, in float64."""
        attention, floats = self.layer("numpy"), ("score_bias", "head_gates")
        weights = {name: X.astype("float64") for name, X in attention.weights.items()}
        call = {name: X for name, X in self.call.items() if name not in ("training", "return_weights")}
        call |= {name: call[name].astype("float64") for name in floats if name in call}
        return formula.both(attention.config, weights, *(X.astype("float64") for X in self.inputs), **call)

    @functools.cached_property
    def poisoned(self):
        """The inputs with NaN wherever nothing of them is seen."""
        seen = self.expected[1] > 0  # (B, H, Q, K)
        sees, seen = seen.any((1, 3)), seen.any((1, 2))  # (B, Q), (B, K)
        used = [sees, seen, seen]
        if self.one_array:
            X = np.where((sees | seen)[:, :, None], self.inputs[0], np.nan)
            return [X.astype(self.inputs[0].dtype)] * 3
        return [
            np.where(rows[:, :, None], X, np.nan).astype(X.dtype) for X, rows in zip(self.inputs, used, strict=True)
        ]


def _case(given):
    """The case of these options and arguments, by name."""
    words = [f"{name} {_words(X)}" for name, X in given.items()]
    options, arguments = ({name: X for name, X in given.items() if name in own} for own in (OPTIONS, ARGUMENTS))
    return Alone(", ".join(words), options, arguments)


def _cases():
    for name, values in (OPTIONS | ARGUMENTS).items():
        for value in values:
            yield from (_case(beside | {name: value}) for beside in BESIDE.get(name, ({},)))
    yield from map(_case, TOGETHER)


def _words(X):
    """A value in a case's name."""
    return ("of pairs" if X.interleaved else "of halves") if isinstance(X, mha.Rotary) else str(X)


def _of_one_array(case):
    """Whether queries, keys and values of the case may be one array."""
    return {"query_size", "key_size", "value_size"}.isdisjoint(case.options)


THREE = [Alone("nothing", {}, {}), *_cases()]
ONE = [Alone("one array, segments", {}, {"segments": ARGUMENTS["segments"][1]}, one_array=True)]
ONE += [
    dataclasses.replace(case, name=f"one array, {case.name}", one_array=True) for case in THREE if _of_one_array(case)
]
CASES = {case.name: case for case in (*THREE, *ONE)}
