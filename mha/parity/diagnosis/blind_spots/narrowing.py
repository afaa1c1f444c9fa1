"""Rewrite a call in fewer numbers with the same steps and output, so that many mistakes are quickly tried in it."""

from dataclasses import replace
from typing import Any

import numpy as np

from mha.core.options.config import Config, numpy_dtype
from mha.layer import restore
from mha.parity.rule.problem import Problem

Array = np.ndarray
FEATURES = 64  # features of an input that are always left


def widths(config: Config) -> tuple[int, int, int]:
    """Return the widths of queries, keys and values."""
    return config.query_size, config.key_size, config.value_size


def in_samples(most: int, asked: Problem) -> Problem:
    """Return the call with one sample, or two: those in which most and least is seen; nothing of it is computed yet."""
    if len(asked.queries) <= most:
        return replace(asked)
    counted = np.flatnonzero(asked.rows_that_count.any(1))  # where no row counts, nothing would show
    counted = counted if counted.size else np.arange(len(asked.queries))
    seen = asked.pairs_that_count.sum((1, 2, 3))[counted]
    last, least = int(counted[::-1][seen[::-1].argmax()]), int(counted[seen.argmin()])
    first, last = (last, last) if most == 1 else sorted((least, last))
    chosen = slice(first, last + 1, max(1, last - first))
    rows, cotangent = (None if X is None else X[chosen] for X in (asked.rows, asked.cotangent))
    queries, keys, values = asked.queries[chosen], asked.keys[chosen], asked.values[chosen]
    inputs: dict[str, Any] = {"queries": queries, "keys": keys, "values": values}
    return replace(asked, **inputs, call=asked.call.part(samples=chosen), rows=rows, cotangent=cotangent)


def shrink(asked: Problem) -> Problem:
    """Return the call in coordinates of its own tokens, of a layer with fewer features of its inputs.

    A token is a sum of as many directions as there are tokens; there are some at random besides, for tokens that are
    drawn. The layer projects these directions instead. So its steps and its output are the same, up to rounding. A call
    with tokens that are not finite, or with nearly as many as there are features, is returned unchanged.
    """
    config, weights = asked.config, asked.layer.weights
    inputs: dict[str, Any] = {"queries": asked.queries, "keys": asked.keys, "values": asked.values}
    sizes = dict(zip(inputs, widths(config), strict=True))
    basis = {width: directions([X for name, X in inputs.items() if sizes[name] == width], width)
             for width in {*sizes.values()}}  # fmt: skip
    if all(basis[width] is None for width in basis):
        return asked
    kind = numpy_dtype(config.dtype)
    with np.errstate(over="ignore"):
        for name, X in inputs.items():
            if (own := basis[sizes[name]]) is not None:
                inputs[name] = (X.astype(np.float64) @ own / (own * own).sum(0)).astype(kind)  # (B, T, n)
    if not all(np.isfinite(X.astype(np.float32)).all() for X in inputs.values()):  # a coordinate may be larger
        return asked
    for name, of in KERNELS.items():
        if name in weights and (own := basis[sizes[of]]) is not None:
            weights[name] = (own.T @ weights[name].astype(np.float64)).astype(kind)  # (n, out)
    fewer = {f"{name}_size": inputs[of].shape[2] for name, of in SIZES.items()}
    layer = restore(replace(config, **fewer), weights, "numpy", asked.layer.seed)
    return replace(asked, layer=layer, **inputs)


KERNELS = {"W_q.kernel": "queries", "W_g.kernel": "queries", "W_k.kernel": "keys", "W_v.kernel": "values"}
SIZES = {"query": "queries", "key": "keys", "value": "values"}


def directions(arrays: list[Array], width: int) -> Array | None:
    """Return orthogonal directions of a width, (width, n), of which all tokens of arrays are sums; None = hardly fewer.

    Each is so long that a number of a token is as large as before.
    """
    tokens = np.unique(np.concatenate([X.reshape(-1, width) for X in arrays]), axis=0).astype(np.float64)
    n = max(FEATURES, len(tokens))
    if 2 * n > width or not np.isfinite(tokens).all():
        return None
    others = np.random.default_rng(3).normal(size=(n - len(tokens), width))
    return np.linalg.qr(np.concatenate([tokens, others]).T)[0] * (width / n) ** 0.5  # (width, n)
