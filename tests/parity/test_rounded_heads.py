"""Queries, keys, values or weights that are rounded alone, in ports written by hand, are named."""

import numpy as np
import pytest
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype

D, H, G, T = 42, 3, 1, 31
X = np.random.default_rng(5).normal(size=(2, T, D)).astype("float32")


def rounded(kind, Y):
    return Y.astype(numpy_dtype(kind)).astype(Y.dtype)


def port(role, kind):
    """A port that rounds the heads of a role, or the weights, to a dtype."""
    methods = {
        "queries": {"score": lambda self, q, k: Port.score(self, rounded(kind, q), k)},
        "keys": {"share": lambda self, Y: rounded(kind, Port.share(self, Y))},
        "values": {"share_values": lambda self, Y: rounded(kind, Port.share_values(self, Y))},
        "weights": {"softmax": lambda self, scores, seen: rounded(kind, Port.softmax(self, scores, seen))},
    }
    return type("Rounded", (Port,), methods[role])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("role", ["queries", "keys", "values", "weights"])
def test_what_is_rounded_alone_is_named(role, kind):
    right = mha.MultiHeadAttention(D, H, num_key_value_heads=G, rotary=mha.Rotary(), seed=3, backend="numpy")
    theirs = port(role, kind)(right)(X, X, X, causal=True)[0]
    (one,) = parity.diagnose(right, theirs, X, X, X, causal=True).explanations
    name = "softmax in half precision" if role == "weights" else "heads in half precision"
    how = f"{kind}, weights alone" if role == "weights" else f"{role}, {kind}"
    assert (one.mistakes, one.how, one.sure) == ((name,), (how,), True)
    assert one.left < 0.05
