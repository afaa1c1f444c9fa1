"""A task that copies several tokens at once, which one head cannot do, and the errors that heads reach in it."""

from typing import Any, NamedTuple

import numpy as np

from mha.layer import MultiHeadAttention

WIDTH = 2  # features of a token
STEPS, RATE = 200, 0.1  # of the fit; the rate falls to 0
MEANS = 0.9, 0.99  # of Adam's two running means


class Task(NamedTuple):
    """The arrays of the task: queries (N, 1, 1), keys (N, T, T), values (N, T, n), and wanted (N, 1, things * n).

    The query is the same in all samples, and a key says which token it is. Over the samples, the features of all tokens
    are orthonormal: no token says anything about another one.
    """

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    wanted: np.ndarray


def task(things: int, seed: int = 0) -> Task:
    """The task of copying so many of T = things + 1 tokens."""
    T = things + 1
    N = T * WIDTH
    drawn = np.random.default_rng(seed).normal(size=(N, N))
    values = (np.linalg.qr(drawn)[0] * np.sqrt(N)).reshape(N, T, WIDTH)
    wanted = values[:, :things].reshape(N, 1, things * WIDTH)
    return Task(np.ones((N, 1, 1)), np.broadcast_to(np.eye(T), (N, T, T)), values, wanted)


def errors(of: Task, output: np.ndarray) -> np.ndarray:
    """The relative squared error of each thing that is copied, (things,); their mean is that of the whole output."""
    apart = len(output), -1, WIDTH
    square = ((output - of.wanted).reshape(apart) ** 2).sum((0, 2))  # (things,)
    return square / (of.wanted.reshape(apart) ** 2).sum((0, 2))


def layer(of: Task, heads: int) -> MultiHeadAttention:
    """A layer for a task: a head compares the query with each key, and has values as wide as those of the task."""
    T, wide = of.keys.shape[1], of.wanted.shape[2]
    sizes = {"query_size": 1, "key_size": T, "value_size": WIDTH, "key_dim": T, "value_dim": WIDTH}
    return MultiHeadAttention(wide, heads, **sizes, scale=1.0, dtype="float64", seed=0, backend="numpy")


def best_layer(of: Task, shares: Any) -> MultiHeadAttention:
    """The best layer whose heads have these attention weights, (H, T): W_o is the solution of least squares."""
    weights, T = np.asarray(shares, np.float64), of.keys.shape[1]  # (H, T)
    H = len(weights)
    made = layer(of, H)
    kernels = {
        "W_q.kernel": np.log(np.maximum(weights, 1e-300)).reshape(1, H * T),  # a softmax undoes a logarithm
        "W_k.kernel": np.tile(np.eye(T), H),  # (T, H*T)
        "W_v.kernel": np.tile(np.eye(WIDTH), H),  # (n, H*n)
    }
    made.weights = {**made.weights, **kernels}
    merged = made.trace(*of[:3])["merged"][:, 0]  # (N, H*n)
    solved = np.linalg.lstsq(merged, of.wanted[:, 0], rcond=None)[0]  # (H*n, things * n)
    made.weights = {**made.weights, "W_o.kernel": solved}
    return made


def shares_of(things: int, heads: int) -> np.ndarray:
    """Attention weights (heads, T): each head looks at its own thing, the last one at all the others."""
    weights = np.zeros((heads, things + 1))
    weights[range(heads - 1), range(heads - 1)] = 1
    weights[-1, heads - 1 : things] = 1 / (things + 1 - heads)
    return weights


def one_head(things: int, share: float) -> np.ndarray:
    """Attention weights (1, T) of one head: this share for the first thing, the rest in equal parts for the others."""
    return np.array([[share] + (things - 1) * [(1 - share) / (things - 1)] + [0]])


def least(of: Task, heads: int) -> float:
    """The least relative squared error of so many heads, whatever their weights and kernels.

    A head adds a combination of tokens times one matrix to the output. Written as a matrix with a row for each token,
    one head has rank 1, H heads have rank H, and the wanted output has as many ranks as things. The best approximation
    of rank H leaves out all singular values but the H largest.
    """
    N, T, n = of.values.shape
    whole = np.linalg.lstsq(of.values.reshape(N, T * n), of.wanted[:, 0], rcond=None)[0]  # (T*n, things * n)
    squares = np.linalg.svd(whole.reshape(T, -1), compute_uv=False) ** 2  # (T,)
    return float(squares[heads:].sum() / squares.sum())


def fit(of: Task, heads: int, steps: int = STEPS) -> list[float]:
    """Fit a layer by Adam; return the relative squared error before each step and after the last."""
    attention, found = layer(of, heads), []
    means = {name: np.zeros((2, *kernel.shape)) for name, kernel in attention.weights.items()}
    for step in range(steps + 1):
        output = attention(*of[:3])
        found.append(float(errors(of, output).mean()))
        if step == steps:
            break
        gradients = attention.gradients(*of[:3], cotangent=2 * (output - of.wanted) / (of.wanted**2).sum())
        weights = dict(attention.weights)
        for name, mean in means.items():
            both = gradients[name], gradients[name] ** 2
            for at, (rate, new) in enumerate(zip(MEANS, both, strict=True)):
                mean[at] += (1 - rate) * (new - mean[at])
            first, second = (mean[at] / (1 - rate ** (step + 1)) for at, rate in enumerate(MEANS))
            weights[name] = weights[name] - RATE * (1 - step / steps) * first / (np.sqrt(second) + 1e-8)
        attention.weights = weights
    return found


def page_data(things: int = 2) -> dict[str, Any]:
    """The data of a task for the comparison page: the values, and the errors of each number of heads."""
    of, heads = task(things), range(1, things + 1)
    best = [best_layer(of, shares_of(things, H))(*of[:3]) for H in heads]
    return {
        "values": of.values.tolist(),
        "least": [least(of, H) for H in heads],
        "constructed": [float(errors(of, output).mean()) for output in best],
        "fits": [[round(error, 6) for error in fit(of, H)] for H in heads],
    }
