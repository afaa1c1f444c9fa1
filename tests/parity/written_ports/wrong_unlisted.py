"""Ports with mistakes that no catalogue has."""

import numpy as np
from ports import Port

from .written import CAUSAL, GEMMA, GROUPED, LENGTHS, LLAMA, PLAIN, Written


class OddExponents(Port):
    """torch.arange(1, dim, 2) for torch.arange(0, dim, 2)."""

    def frequencies(self, rotary):
        return rotary.base ** (-np.arange(1, rotary.dim, 2) / rotary.dim)


class TemperatureOfOneHead(Port):
    def score(self, q, k):
        scores = super().score(q, k)
        scores[:, 1] *= 1.3
        return scores


class KeysOfTheNextToken(Port):
    def share(self, X):
        return super().share(np.roll(X, -1, 2))


class Rectified(Port):
    def softmax(self, scores, seen):
        shares = np.maximum(np.where(seen, scores, 0), 0)
        return shares / np.maximum(shares.sum(-1, keepdims=True), np.float32(1e-9))


class Sigmoid(Port):
    def softmax(self, scores, seen):
        return np.where(seen, 1 / (1 + np.exp(-scores)), np.float32(0))


class LastHeadMissing(Port):
    def merge(self, pooled):
        pooled[:, -1] = 0
        return super().merge(pooled)


class Residual(Port):
    def __call__(self, queries, *inputs, **call):
        output, weights = super().__call__(queries, *inputs, **call)
        return output + queries, weights


class BiasAfterwards(Port):
    def bias(self, scores, bias):
        self.later = bias
        return scores

    def softmax(self, scores, seen):
        return super().softmax(scores, seen) + np.float32(0.1) * self.later


class Cosines(Port):
    def score(self, q, k):
        q, k = (X / np.linalg.norm(X, axis=-1, keepdims=True) for X in (q, k))
        return super().score(q, k)


class TwoHeadsSwapped(Port):
    def share_values(self, X):
        return super().share_values(X)[:, [1, 0, *range(2, self.H)]]


class OneSampleForAll(Port):
    def lengths(self, seen, valid_lens):
        return super().lengths(seen, np.full_like(valid_lens, valid_lens[1]))


class DilatedWindow(Port):
    def seen(self, i, j, causal):
        return (j <= i) & ((i - j) % 2 == 0) & (i - j <= 8)


class LogOfTokens(Port):
    """The same for all tokens, it would be another scale."""

    def score(self, q, k):
        seen = np.arange(2, 2 + q.shape[2], dtype="float32")[:, None]  # (Q, 1)
        return super().score(q, k) * np.log(seen) / np.log(np.float32(512))


class ShrunkWeights(Port):
    def softmax(self, scores, seen):
        return super().softmax(scores, seen) * np.float32(0.97)


class HalfPrecisionOfOneHead(Port):
    def score(self, q, k):
        scores = super().score(q, k)
        scores[:, 0] = np.round(scores[:, 0] * 32) / 32
        return scores


WRONG_UNLISTED = [
    Written("odd exponents", OddExponents, LLAMA, CAUSAL, "output"),
    Written("another temperature of one head", TemperatureOfOneHead, PLAIN, CAUSAL, "output"),
    Written("keys of the next token", KeysOfTheNextToken, PLAIN, {}, "output"),
    Written("rectified scores", Rectified, PLAIN, CAUSAL, "output"),
    Written("a sigmoid", Sigmoid, PLAIN, LENGTHS, "output"),
    Written("the last head missing", LastHeadMissing, GROUPED, CAUSAL, "output"),
    Written("a residual", Residual, PLAIN, {}, "output"),
    Written("a bias after the softmax", BiasAfterwards, PLAIN, {"score_bias": ...}, "output"),
    Written("cosines for dot products", Cosines, PLAIN, CAUSAL, "output"),
    Written("values of two heads swapped", TwoHeadsSwapped, PLAIN, CAUSAL, "output"),
    Written("the length of one sample for all", OneSampleForAll, PLAIN, LENGTHS, "output"),
    Written("a dilated window", DilatedWindow, GEMMA, {}, "output"),
    Written("scores by the logarithm of the position", LogOfTokens, GROUPED, CAUSAL, "output"),
    Written("weights that add up to 0.97", ShrunkWeights, PLAIN, LENGTHS, "output"),
    Written("rounded scores of one head", HalfPrecisionOfOneHead, PLAIN, {}, "output"),
]
