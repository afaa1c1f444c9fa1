"""Wrong ports: mistakes that no catalogue has, and some known ones, of which most are made in `twins`."""

import numpy as np
from ports import Port

from .written import CAUSAL, GEMMA, GROUPED, LENGTHS, LLAMA, PLAIN, Written

# Known mistakes


def batch_second(layer, queries, keys, values):
    """torch.nn.MultiheadAttention without batch_first=True."""
    return Port(layer)(*(X.swapaxes(0, 1) for X in (queries, keys, values)))[0].swapaxes(0, 1)


class ZeroAndOne(Port):
    """scores + attention_mask, as the tokenizer gives it."""

    def lengths(self, seen, valid_lens):
        self.attention_mask = np.greater(np.asarray(valid_lens)[:, None], np.arange(seen.shape[-1])).astype("f4")
        return seen

    def softmax(self, scores, seen):
        return super().softmax(scores + self.attention_mask[:, None, None], seen)


class SmallScale(Port):
    @property
    def scale(self):
        return 0.9 * super().scale


class NotLowEnough(Port):
    def softmax(self, scores, seen):
        shares = np.exp(np.where(seen, scores, np.float32(-1.0)))
        return shares / shares.sum(-1, keepdims=True)


class OtherDistance(Port):
    """T5's table read at query - key."""

    def bias(self, scores, bias):
        Q, K = bias.shape[2:]
        i, j = np.indices((Q, K))
        by_distance = {d: np.diagonal(bias, d, 2, 3)[..., :1] for d in range(1 - Q, K)}
        turned = np.stack([by_distance[i[a, b] - j[a, b]][..., 0] for a in range(Q) for b in range(K)], -1)
        return scores + turned.reshape(bias.shape)


class GatesForgotten(Port):
    def gate(self, pooled, gates):
        return pooled


DISTANCES = np.sin(np.arange(1, 5)[:, None, None] * (np.arange(13) - np.arange(13)[:, None] + 0.3)).astype("f4")[None]

KNOWN = [
    Written("the batch second", batch_second, PLAIN, {}, True, "samples and tokens are swapped", cross=True),
    Written("a mask of 0 and 1 is added", ZeroAndOne, PLAIN, LENGTHS, True, "booleans are added to the scores"),
    Written("a mask of 0 and 1 is added in a decoder", ZeroAndOne, PLAIN, LENGTHS | CAUSAL, True,
            "booleans are added to the scores", described=("rows",)),
    Written("scale x 0.9", SmallScale, PLAIN, CAUSAL, True, "another scale"),
    Written("-1 for hidden scores", NotLowEnough, PLAIN, LENGTHS, True),
    Written("the other distance", OtherDistance, PLAIN, {"score_bias": DISTANCES}, True,
            "the distance of the bias has the other sign"),
    Written("no gates", GatesForgotten, PLAIN, {"head_gates": ...}, True, "gates are forgotten",
            described=("head_gates",)),
]  # fmt: skip

# Mistakes that no catalogue has


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


UNLISTED = [
    Written("odd exponents", OddExponents, LLAMA, CAUSAL, True),
    Written("another temperature of one head", TemperatureOfOneHead, PLAIN, CAUSAL, True),
    Written("keys of the next token", KeysOfTheNextToken, PLAIN, {}, True),
    Written("a sigmoid", Sigmoid, PLAIN, LENGTHS, True),
    Written("the last head missing", LastHeadMissing, GROUPED, CAUSAL, True),
    Written("a residual", Residual, PLAIN, {}, True),
    Written("a bias after the softmax", BiasAfterwards, PLAIN, {"score_bias": ...}, True),
    Written("values of two heads swapped", TwoHeadsSwapped, PLAIN, CAUSAL, True),
    Written("the length of one sample for all", OneSampleForAll, PLAIN, LENGTHS, True),
    Written("a dilated window", DilatedWindow, GEMMA, {}, True),
    Written("scores by the logarithm of the position", LogOfTokens, GROUPED, CAUSAL, True),
    Written("weights that add up to 0.97", ShrunkWeights, PLAIN, LENGTHS, True),
    Written("rounded scores of one head", HalfPrecisionOfOneHead, PLAIN, {}, True),
]
