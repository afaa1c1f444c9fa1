"""A small example whose numbers can be followed by eye."""

import math

import numpy as np

from mha.core.options.names import BackendName, LanguageName
from mha.layer import MultiHeadAttention
from mha.learn.explain.path import Step, call

# 2 queries and 2 keys, the same for both samples. The first two of the 4 features are for head 0.
QUERIES = [[1, 0, 0, 1], [0, 1, 1, 1]]
KEYS = [[1, 0, 1, 0], [0, 1, 0, 1]]


def example(backend: BackendName | None = None, *, language: LanguageName = "en") -> list[Step]:
    """Explain a small call: 2 samples of length 2, 4 features, 2 heads, valid lengths 2 and 1.

    All kernels are the identity, and the values are 10, 11, 12, ... Queries and keys hold 0 and 1, and the scale is
    ln 3: the exponentials of the scores are 1 and 3, so that the attention weights are quarters.

    Args:
        backend: the backend whose lesson is shown; None = MHA_BACKEND, else "numpy".
        language: language of the meanings: "en", "zh", "ja", "id" or "vi".

    Raises:
        TypeError, ValueError: if an argument is not as above; the message says what was expected.
        ModuleNotFoundError: if the backend's framework is not installed; the message says how to install it.
    """
    attention = MultiHeadAttention(4, 2, scale=math.log(3), seed=0, backend=backend)
    attention.weights = {name: np.eye(4, dtype="float32") for name in attention.weights}
    queries, keys = (np.array([rows, rows], "float32") for rows in (QUERIES, KEYS))  # (2, 2, 4)
    values = np.arange(10, 26, dtype="float32").reshape(2, 2, 4)  # (2, 2, 4)
    return call(attention, queries, keys, values, [2, 1], language=language)
