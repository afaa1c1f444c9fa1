"""Right ports in NumPy of which one part is written in another way: the softmax, a rotation, a norm, the precision."""

import numpy as np
from ports import Port

from .written import CAUSAL, GEMMA, GROUPED, INTERLEAVED, LENGTHS, LLAMA, PLAIN, Written


class BySoftmaxOfBase2(Port):
    def softmax(self, scores, seen):
        scaled = np.where(seen, scores * scores.dtype.type(np.log2(np.e)), -np.inf)
        shares = np.exp2(scaled - scaled.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True)


class InBlocks(Port):
    """As FlashAttention: blocks of 4 keys, what is summed so far is rescaled by each new largest score."""

    def softmax(self, scores, seen):
        low = np.where(seen, scores, np.float32(-1e30))
        best, total = np.full((*low.shape[:-1], 1), -np.inf, "float32"), np.zeros((*low.shape[:-1], 1), "float32")
        weights = np.zeros_like(low)
        for start in range(0, low.shape[-1], 4):
            block = low[..., start : start + 4]
            larger = np.maximum(best, block.max(-1, keepdims=True))
            rescale = np.exp(best - larger)
            weights *= rescale
            weights[..., start : start + 4] = np.exp(block - larger)
            total = total * rescale + weights[..., start : start + 4].sum(-1, keepdims=True)
            best = larger
        return weights / total


class WithLowestNumber(Port):
    def softmax(self, scores, seen):
        added = scores + np.where(seen, 0, np.finfo(scores.dtype).min).astype(scores.dtype)
        shares = np.exp(added - added.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True)


class ByComplexNumbers(Port):
    """As Meta's LLaMA: neighbours are the real and imaginary parts."""

    def turn(self, role, X, places):
        turns = np.exp(1j * places[..., None] * self.frequencies(self.config.rotary))[:, None]  # (1, 1, T, n)
        pairs = X[..., ::2] + 1j * X[..., 1::2]
        turned = pairs * turns
        return np.stack([turned.real, turned.imag], -1).reshape(X.shape).astype(X.dtype)


class RotatingHalf(Port):
    """As Hugging Face's LLaMA: x * cos + rotate_half(x) * sin, tables as wide as a head."""

    def turn(self, role, X, places):
        table = places[..., None] * 10000.0 ** (-np.arange(0, X.shape[-1], 2) / X.shape[-1])
        table = np.concatenate([table, table], -1)[:, None]
        half = np.concatenate([-X[..., X.shape[-1] // 2 :], X[..., : X.shape[-1] // 2]], -1)
        return X * np.cos(table).astype(X.dtype) + half * np.sin(table).astype(X.dtype)


class ByMatrices(Port):
    """One matrix for each position."""

    def turn(self, role, X, places):
        n = X.shape[-1] // 2
        angles = places[0][:, None] * self.frequencies(self.config.rotary)
        matrices = np.zeros((len(angles), 2 * n, 2 * n))
        i = np.arange(n)
        matrices[:, i, i] = matrices[:, i + n, i + n] = np.cos(angles)
        matrices[:, i, i + n], matrices[:, i + n, i] = np.sin(angles), -np.sin(angles)
        return np.einsum("bhtc,tce->bhte", X, matrices.astype(X.dtype))


class ShiftedPositions(Port):
    """Positions count from 5: only distances matter."""

    def turn(self, role, X, places):
        return super().turn(role, X, places + 5)


class ScaledKernel(Port):
    """The scale is in W_q, as some files have it."""

    def __init__(self, attention):
        super().__init__(attention)
        for name in ("W_q.kernel", "W_q.bias"):
            self.weights[name] = self.weights[name] * np.float32(self.d**-0.5)

    scale = 1.0


class NormByVariance(Port):
    def norm(self, role, X):
        return (
            (X - X.mean(-1, keepdims=True))
            / np.sqrt(X.var(-1, keepdims=True) + np.float32(1e-6))
            * self.weights[f"{role}_norm.scale"]
        )


class NormByLength(Port):
    """The root of the mean square is the length by the root of the number."""

    def norm(self, role, X):
        length = np.linalg.norm(X, axis=-1, keepdims=True)
        mean = length * length / np.float32(X.shape[-1])
        return self.weights[f"{role}_norm.scale"] * (X / np.sqrt(mean + np.float32(1e-6)))


class WindowByDistance(Port):
    def seen(self, i, j, causal):
        return np.abs(2 * (i - j) - 4) <= 4  # from 0 to 4 before


class WideScores(Port):
    """Half precision with scores and softmax in float32, as most code of the hub."""

    def score(self, q, k):
        return (q @ k.swapaxes(2, 3)).astype("float32") * np.float32(self.scale)

    def softmax(self, scores, seen):
        return super().softmax(scores, seen).astype(self.weights["W_q.kernel"].dtype)


class WideThroughout(Port):
    """Everything in float64, rounded at the end."""

    def __init__(self, attention):
        super().__init__(attention)
        self.weights = {name: X.astype("float64") for name, X in self.weights.items()}

    def __call__(self, queries, keys, values, *arguments, **call):
        found = super().__call__(*(X.astype("float64") for X in (queries, keys, values)), *arguments, **call)
        return tuple(X.astype(queries.dtype) for X in found)


NORMED = PLAIN | {"qk_norm": "layer"}

RIGHT_PARTS = [
    Written("exponents of base 2", BySoftmaxOfBase2, PLAIN, CAUSAL),
    Written("blocks of keys", InBlocks, GROUPED, {"mask": ...}),
    Written("the lowest number added", WithLowestNumber, LLAMA, LENGTHS | CAUSAL),
    Written("rotation by complex numbers", ByComplexNumbers, INTERLEAVED, CAUSAL),
    Written("rotation by halves", RotatingHalf, LLAMA, CAUSAL),
    Written("rotation by matrices", ByMatrices, LLAMA),
    Written("positions from 5 on", ShiftedPositions, LLAMA, CAUSAL),
    Written("the scale in W_q", ScaledKernel, PLAIN),
    Written("layer norm by the variance", NormByVariance, NORMED),
    Written("RMS norm by the length", NormByLength, GROUPED | {"qk_norm": "rms"}),
    Written("a window by the distance from its middle", WindowByDistance, GEMMA),
    Written("float32 scores in float16", WideScores, LLAMA, CAUSAL, dtype="float16"),
    Written("float32 scores in bfloat16", WideScores, GEMMA, CAUSAL, dtype="bfloat16"),
    Written("float64 throughout", WideThroughout, GEMMA, {"head_gates": ..., "score_bias": ...}),
]  # fmt: skip
