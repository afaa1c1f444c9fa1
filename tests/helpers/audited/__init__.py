"""Small models of each framework whose attention is audited, right, or with a mistake in their last layer.

`of_NAME.py` has those of a framework: its BACKEND, the KINDS of its models, each the name of a function, and the one of
them that is compared with another model, LIKE, "" = none.

Letters: B batch, T tokens, H heads, D features, d width of a head.
"""

import dataclasses
import importlib
from typing import Any

import numpy as np
import of_frameworks

B, T, H, D, d = 2, 7, 3, 15, 5
LENGTHS = np.array([T, 4])
SAID = of_frameworks.said(__file__)
TAUGHT = {"W_q": "to_q", "W_k": "to_k", "W_v": "to_v", "W_o": "to_out", "num_heads": H, "causal": True}


@dataclasses.dataclass
class Model:
    """A model with the arguments of its call.

    paths: of its attention layers; layers: what is to be taught of them; state: a function to what has to stay.
    """

    model: Any
    args: tuple[Any, ...]
    paths: list[str]
    state: Any
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    layers: Any = None
    at: int = 0  # the place of X among args


def inputs():
    """What enters a model, (B, T, D)."""
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def make(name, mistake=""):
    """Make a model by its framework and kind, "keras.own", with a mistake in its last layer."""
    framework, _, kind = name.partition(".")
    return getattr(importlib.import_module(f"audited.of_{framework}"), kind)(mistake)


def attend(np, softmax, q, k, v, mistake):
    """Attend causally from queries (B, T, H*d) to keys and values; np: the framework's functions of arrays."""

    def split(X):
        if mistake == "heads":
            return np.swapaxes(np.reshape(X, (B, T, d, H)), 2, 3)  # (B, T, H, d)
        return np.reshape(X, (B, T, H, d))  # (B, T, H, d)

    q, k, v = split(q), split(k), split(v)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k)
    if mistake != "scale":
        scores = scores / d**0.5
    if mistake != "mask":
        scores = scores + hidden(np)
    return np.reshape(np.einsum("bhqk,bkhd->bqhd", softmax(scores), v), (B, T, H * d))  # (B, T, H*d)


def hidden(np):
    """What is added to scores to hide what follows, (T, T)."""
    order = np.arange(T)
    return np.where(np.reshape(order, (T, 1)) >= np.reshape(order, (1, T)), 0.0, -1e30)  # (T, T)
