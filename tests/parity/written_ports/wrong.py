"""Wrong ports whose mistake is known or in no catalogue, and right ones whose call was described in another way.

Every known mistake is made by other means in `twins`; here are those where there is more to say than its name.
"""

import numpy as np
from ports import Port

from .written import CAUSAL, GROUPED, LENGTHS, LLAMA, PLAIN, Written

# Right ports whose call was described in another way than it was made


class PaddingSeesNothing(Port):
    """As Flax makes masks of tokens by tokens: padded queries see no key, and get the mean of all values."""

    def lengths(self, seen, valid_lens):
        tokens = np.arange(seen.shape[-1]) < valid_lens[:, None]
        return seen & tokens[:, None, None] & tokens[:, None, :, None]

    def softmax(self, scores, seen):
        return super().softmax(np.where(seen, scores, np.finfo("f4").min), np.ones_like(seen))


HALF = {"mask": np.random.default_rng(1).random((3, 1, 13, 13)) < 0.5}
PADDING = {"mask": (np.arange(13) < np.array([13, 4, 7])[:, None])[:, None, None]}


def described(id, layer, call, really, name, mistake="", **more):
    """A right port of a layer, called otherwise than it was described; mistake: what it may as well be."""
    return Written(id, Port, layer, call, True, mistake, really=really, described=(name,), **more)


DESCRIBED = [
    described("an offset that nobody told", LLAMA, CAUSAL, {"offset": 5}, "offset", tokens=(7, 13)),
    described("True hides", PLAIN, HALF, {"mask": lambda call: ~call["mask"]}, "mask", "the mask is inverted"),
    described("a mask of keys by queries", GROUPED, HALF, {"mask": lambda call: call["mask"].swapaxes(2, 3)}, "mask"),
    described("causal was left out", LLAMA, {}, CAUSAL, "causal"),
    described("lengths were left out", PLAIN, {}, {"valid_lens": np.array([13, 5, 7])}, "valid_lens"),
    described("causal was made up", LLAMA, CAUSAL, {"causal": False}, "causal", "causal order is ignored"),
    Written("padded queries that see nothing", PaddingSeesNothing, LLAMA, CAUSAL | LENGTHS, True, described=("rows",)),
    described("a mask that was not used", PLAIN, PADDING, {"mask": None}, "mask", "the mask is ignored"),
]

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


class AlwaysCausal(Port):
    def seen(self, i, j, causal):
        return super().seen(i, j, True)


class EndsTogether(Port):
    """The last query sees the last key, as after a cache."""

    def seen(self, i, j, causal):
        return j <= i + j.max() - i.max()


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
    Written("always causal", AlwaysCausal, PLAIN, {}, True, described=("causal",)),
    Written("ends together", EndsTogether, PLAIN, CAUSAL, True, "causal order is aligned to the lower right",
            described=("offset",), tokens=(7, 13)),
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
    Written("a sigmoid", Sigmoid, PLAIN, LENGTHS, True),
    Written("the last head missing", LastHeadMissing, GROUPED, CAUSAL, True),
    Written("a residual", Residual, PLAIN, {}, True),
    Written("a bias after the softmax", BiasAfterwards, PLAIN, {"score_bias": ...}, True),
    Written("values of two heads swapped", TwoHeadsSwapped, PLAIN, CAUSAL, True),
    Written("weights that add up to 0.97", ShrunkWeights, PLAIN, LENGTHS, True),
    Written("rounded scores of one head", HalfPrecisionOfOneHead, PLAIN, {}, True),
]
