"""A small decoder in each framework, by hand, with the same weights and other names, right or with a mistake.

`of_NAME.py` has that of a framework, its BACKEND, and its PATHS.

Letters: B batch, T tokens, V vocabulary, D features, H heads, d width of a head, M features within the MLP.
"""

import importlib

import numpy as np
import of_frameworks

B, T, V, D, H, d, M, LAYERS = 2, 11, 37, 15, 3, 5, 23, 2
EPS = 1e-5
WRONG_EPS = 1e-3  # several times beyond rounding, whatever a processor's instructions
# Of each framework, the paths of a layer's attention, and of the norm after the last layer.
PATHS = {name: one["PATHS"] for name, one in of_frameworks.said(__file__).items()}


def weights():
    """The weights by names of their own, kernels (in, out)."""
    rng = np.random.default_rng(13)

    def drawn(*shape):
        return rng.normal(size=shape, scale=0.4).astype("float32")

    found = {"embed": drawn(V, D), "head": drawn(D, V), "norm.scale": 1 + drawn(D), "norm.bias": drawn(D)}
    for at in range(LAYERS):
        found |= {f"{at}.{name}": drawn(D, D) for name in "qkvo"}
        found |= {f"{at}.up": drawn(D, M), f"{at}.down": drawn(M, D)}
        for norm in ("before", "after"):
            found |= {f"{at}.{norm}.scale": 1 + drawn(D), f"{at}.{norm}.bias": drawn(D)}
    return found


def tokens():
    """Tokens (B, T)."""
    return np.random.default_rng(7).integers(1, V, size=(B, T))


def recorded(framework, mistake="", path=None, **options):
    """A record of one call of the model of a framework."""
    return importlib.import_module(f"recorded.of_{framework}").recorded(mistake, path, **options)


def attend(np, softmax, q, k, v, scale=d**-0.5):
    """Attend causally from queries (B, T, D) to keys and values; np: the framework's functions of arrays."""
    q, k, v = (np.reshape(X, (B, T, H, d)) for X in (q, k, v))  # (B, T, H, d)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    order = np.arange(T)
    scores = scores + np.where(np.reshape(order, (T, 1)) >= np.reshape(order, (1, T)), 0.0, -1e30)  # (T, T)
    return np.reshape(np.einsum("bhqk,bkhd->bqhd", softmax(scores), v), (B, T, H * d))  # (B, T, D)
