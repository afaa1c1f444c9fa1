"""Measure how NumPy differs: it has arrays and random numbers, but no layers."""

import numpy as np

from mha.learn.page import measures


def dtype():
    return [("of_array", str(np.array([1.0]).dtype))]


def random():
    drawn = {}

    def seed():
        drawn["from"] = np.random.default_rng(0)

    return [(measures.repeats(seed, lambda: drawn["from"].normal(size=3)), "numpy.random.default_rng(0)")]
