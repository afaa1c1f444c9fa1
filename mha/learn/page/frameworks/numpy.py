"""Measure how NumPy differs: it has arrays and random numbers, but no layers.

Each function returns pairs of a word and a detail, as `mha.learn.page.measures` has them.
"""

import numpy as np

from mha.learn.page import measures


def dtype():
    """The dtype of a fresh layer, and of an array that is made of Python's floats."""
    return [("of_array", str(np.array([1.0]).dtype))]


def random():
    """The way to make random numbers repeat, and whether a second draw is another."""
    drawn = {}

    def seed():
        drawn["from"] = np.random.default_rng(0)

    return [(measures.repeats(seed, lambda: drawn["from"].normal(size=3)), "numpy.random.default_rng(0)")]
