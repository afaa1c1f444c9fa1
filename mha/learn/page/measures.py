"""Turn an observation of a framework into a word and a detail.

A word is a key of the languages' table [page.words], "" = none; a detail is code or numbers, the same in all languages.
"""

from collections.abc import Callable, Mapping, Sized

import numpy as np

Fact = list[tuple[str, str]]

NONE: Fact = [("none", "")]  # of what a framework does not have, for which its file has no function
# The rows of the table of differences, in order: the functions of the files in `frameworks/`, each of which returns a
# Fact. A fresh layer is the framework's own attention, of 8 hidden units and 2 heads.
NAMES = {
    "layer": "The framework's own attention layer.",
    "kernel": "Which way round a dense layer stores its kernel.",
    "names": "The parameters of a fresh layer and their shapes.",
    "initial": "Mean and standard deviation of the query kernel of 256 hidden units and 4 heads; its bias.",
    "lazy": "Whether a fresh layer has its weights before it is called.",
    "training": "Whether a fresh layer drops weights when nobody says whether it is training, and what says it.",
    "weights": "Where the attention weights are found, and their shape for 1 sample, 2 heads, 3 queries and 4 keys.",
    "mask": "The meaning of True in a boolean mask.",
    "no_keys": "The weights of a query whose keys are all hidden.",
    "dtype": "The dtype of a fresh layer, and of an array that is made of Python's floats.",
    "random": "The way to make random numbers repeat, and whether a second draw is another.",
    "heads": "The result of 3 heads of 10 hidden units.",
    "compiled": "How many programs a compiled layer takes for sequences of 3 lengths.",
}


def orientation(shape: tuple[int, ...], in_size: int) -> str:
    """The axes, (in, out) or (out, in), of a dense layer's kernel; its two sizes must differ."""
    return "(in, out)" if shape[0] == in_size else "(out, in)"


def shapes(arrays: Mapping[str, tuple[int, ...]]) -> Fact:
    """Arrays by name with their shapes, one on each line."""
    return [("", f"{name} {shape}") for name, shape in arrays.items()]


def spread(array: np.ndarray) -> str:
    """Mean and standard deviation of all numbers; "0" if all are 0."""
    if not array.any():
        return "0"
    mean = round(float(array.mean()), 2) + 0.0  # and not -0.0
    return f"mean {mean:.2f}, std {array.std():.3f}"


def polarity(weights: np.ndarray, marked: int) -> str:
    """The meaning of True, from a mask that is True for one key alone; weights: of a query for its keys (K,)."""
    if weights[marked] == 0 and weights.sum() > 0:
        return "hides"
    if weights[marked] == weights.sum():
        return "attends"
    raise ValueError(f"weights are {weights}, expected key {marked} to have none or all of them")


def alone(weights: np.ndarray) -> str:
    """The kind of weights (K,) that a query has if all of its keys are hidden."""
    if np.isnan(weights).all():
        return "nan"
    if not weights.any():
        return "zeros"
    if np.allclose(weights, 1 / len(weights)):
        return "uniform"
    raise ValueError(f"weights are {weights}, expected NaN, zeros, or the same for each key")


def drops(call: Callable[[], np.ndarray]) -> str:
    """Call twice and compare: the results differ if something is dropped."""
    return "keeps" if np.array_equal(call(), call()) else "drops"


def repeats(seed: Callable[[], object], draw: Callable[[], np.ndarray]) -> str:
    """Seed, draw and compare: do numbers repeat, and does a second draw give others?"""
    seed()
    first, second = draw(), draw()
    seed()
    if not np.array_equal(first, draw()):
        return "no_repeat"
    return "same_draw" if np.array_equal(first, second) else "next_draw"


def outcome(make: Callable[[], object]) -> Fact:
    """Make or call something: accepted, or an error and the first line of its text."""
    try:
        return [("accepted", str(made) if (made := make()) is not None else "")]
    except Exception as error:  # each framework has errors of its own
        return [("error", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")]


def programs(compiler: str, made: Sized, call: Callable[[int], object]) -> Fact:
    """Call what a compiler makes with three sizes; the number of programs that are made for them."""
    for size in (3, 4, 5):
        call(size)
    word = "one_program" if len(made) == 1 else "each_size" if len(made) == 3 else "some_programs"
    return [(word, f"{compiler}: {len(made)}")]
