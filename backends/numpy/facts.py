"""What NumPy makes different, measured: it has arrays and random numbers, but no layers.

Each function returns pairs of a word and a detail, as `mha.page.measures` has them.
"""

import numpy as np

from mha.page import measures

NONE = [("none", "")]
IMPORTED = "numpy"


def layer():
    """The framework's own attention layer."""
    return NONE


def kernel():
    """Which way round a dense layer stores its kernel."""
    return NONE


def names():
    """The parameters of a fresh layer and their shapes, of 8 hidden units and 2 heads."""
    return NONE


def initial():
    """Mean and standard deviation of a fresh layer's query kernel, of 256 hidden units and 4 heads; its bias."""
    return NONE


def lazy():
    """Whether a fresh layer has its weights before it is called."""
    return NONE


def training():
    """Whether a fresh layer drops weights when nobody says whether it is training, and what says it."""
    return NONE


def weights():
    """Where the attention weights are found, and their shape for 1 sample, 2 heads, 3 queries and 4 keys."""
    return NONE


def mask():
    """What True means in a boolean mask of the framework's own attention."""
    return NONE


def no_keys():
    """What a query weighs its keys by if all are hidden."""
    return NONE


def dtype():
    """The dtype of a fresh layer, and of an array that is made of Python's floats."""
    return [("of_array", str(np.array([1.0]).dtype))]


def random():
    """What makes random numbers repeat, and whether a second draw is another."""
    drawn = {}

    def seed():
        drawn["from"] = np.random.default_rng(0)

    return [(measures.repeats(seed, lambda: drawn["from"].normal(size=3)), "numpy.random.default_rng(0)")]


def heads():
    """What 3 heads of 10 hidden units come to."""
    return NONE


def compiled():
    """How many programs a compiled layer takes for sequences of 3 lengths."""
    return NONE
