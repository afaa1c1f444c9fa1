"""Ports with mistakes in scores, masks, windows, the softmax and what comes after it."""

import numpy as np
from ports import Port

import mha

from .written import BIASED, CAUSAL, GEMMA, GROUPED, LENGTHS, LLAMA, PARTLY, PLAIN, Written


class AlwaysCausal(Port):
    def seen(self, i, j, causal):
        return super().seen(i, j, True)


class OneTooLong(Port):
    def lengths(self, seen, valid_lens):
        return seen & (np.arange(seen.shape[-1]) <= valid_lens[:, None, None, None])


class LengthsOfQueries(Port):
    """padding[:, None, :, None] for padding[:, None, None, :]."""

    def lengths(self, seen, valid_lens):
        padding = np.arange(seen.shape[-1]) < valid_lens[:, None]
        return seen & padding[:, None, :, None]

    def softmax(self, scores, seen):
        return super().softmax(np.where(seen, scores, np.float32(-1e9)), np.ones_like(seen))


class Upwards(Port):
    """torch.triu where tril was meant."""

    def seen(self, i, j, causal):
        return ~(j < i)


class EndsTogether(Port):
    """The last query sees the last key, as after a cache."""

    def seen(self, i, j, causal):
        return j <= i + j.max() - i.max()


class LowestTwice(Port):
    """Two masks are added, each with the lowest number: where all keys are hidden, those that both hide are out."""

    def lengths(self, seen, valid_lens):
        allowed = np.arange(seen.shape[-1]) < valid_lens[:, None, None, None]
        self.added = [np.where(mask, np.float32(0), np.finfo("f4").min) for mask in (seen, allowed)]
        return np.ones_like(seen)

    def softmax(self, scores, seen):
        with np.errstate(over="ignore"):
            for mask in self.added:
                scores = scores + mask
            return super().softmax(scores, seen)


class MaskAfterwards(Port):
    def softmax(self, scores, seen):
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        return np.where(seen, shares / shares.sum(-1, keepdims=True), np.float32(0))


class OverQueries(Port):
    def softmax(self, scores, seen):
        shares = np.exp(np.where(seen, scores, -np.inf))
        return shares / shares.sum(-2, keepdims=True)


class NotLowEnough(Port):
    def softmax(self, scores, seen):
        shares = np.exp(np.where(seen, scores, np.float32(-1.0)))
        return shares / shares.sum(-1, keepdims=True)


class NarrowWindow(Port):
    window = 3, 0


class WindowBothWaysAndNarrower(Port):
    window = 3, 3


class NothingOnTheLeft(Port):
    window = None, 2


class CapForgotten(Port):
    def cap(self, scores):
        return scores


class CapNotBack(Port):
    def cap(self, scores):
        return np.tanh(scores / np.float32(self.config.softcap))


class CapAfterBias(Port):
    def bias(self, scores, bias):
        return super().cap(super().bias(scores, bias))

    def cap(self, scores):
        return scores


class SmallScale(Port):
    @property
    def scale(self):
        return 0.9 * super().scale


class ScaleOfTurned(Port):
    @property
    def scale(self):
        return self.config.rotary.dim**-0.5


class ScaleOfModel(Port):
    @property
    def scale(self):
        return self.config.num_hiddens**-0.5


class MinusBias(Port):
    def bias(self, scores, bias):
        return scores - bias


class OtherDistance(Port):
    """T5's table read at query - key."""

    def bias(self, scores, bias):
        Q, K = bias.shape[2:]
        i, j = np.indices((Q, K))
        by_distance = {d: np.diagonal(bias, d, 2, 3)[..., :1] for d in range(1 - Q, K)}
        turned = np.stack([by_distance[i[a, b] - j[a, b]][..., 0] for a in range(Q) for b in range(K)], -1)
        return scores + turned.reshape(bias.shape)


class BiasRepeated(Port):
    """(H, Q, K) repeated for the samples, where heads lie behind each other: (B * H, Q, K)."""

    def bias(self, scores, bias):
        B, H, Q, K = scores.shape
        return (scores.reshape(B * H, Q, K) + bias[0].repeat(B, 0)).reshape(B, H, Q, K)


class PlainSlopes(Port):
    """2 ** (-8 h / H), also where H is no power of 2."""

    def bias(self, scores, bias):
        far = np.arange(scores.shape[3]) - np.arange(scores.shape[2])[:, None]
        slopes = np.array([2 ** (-8 * h / self.H) for h in range(1, self.H + 1)], "float32")
        return scores + slopes[:, None, None] * np.minimum(far, 0).astype("float32")


class NotRescaled(Port):
    """Blocks of 16 keys: what is pooled so far is not multiplied by exp(old - new)."""

    def softmax(self, scores, seen):
        low = np.where(seen, scores, -np.inf)
        best = np.full((*low.shape[:-1], 1), np.finfo("f4").min)
        weights, total = np.zeros_like(low), np.zeros_like(best)
        for at in range(0, low.shape[-1], 16):
            part = low[..., at : at + 16]
            new = np.maximum(best, part.max(-1, keepdims=True))
            weights[..., at : at + 16] = np.exp(part - new)
            total = total * np.exp(best - new) + weights[..., at : at + 16].sum(-1, keepdims=True)
            best = new
        return weights / total


class GatesForgotten(Port):
    def gate(self, pooled, gates):
        return pooled


DISTANCES = np.sin(np.arange(1, 5)[:, None, None] * (np.arange(13) - np.arange(13)[:, None] + 0.3)).astype("f4")[None]
WINDOWED = LLAMA | {"window": (4, 0)}
BETWEEN = GROUPED | {"window": (3, 2)}
ALIBI = {"score_bias": mha.alibi(6, 13) - np.float32(0)} | CAUSAL

WRONG_IN_SCORES = [
    Written("scale x 0.9", SmallScale, PLAIN, CAUSAL, "output", "another scale"),
    Written("always causal", AlwaysCausal, PLAIN, {}, "output", described=("causal",)),
    Written("lengths + 1", OneTooLong, PLAIN, LENGTHS, "output", "lengths are one too long", cross=True),
    Written("padding on the axis of queries", LengthsOfQueries, PLAIN, LENGTHS, "output",
            "the padding mask is on the axis of queries"),
    Written("triu", Upwards, PLAIN, CAUSAL, "output", "causal order is reversed"),
    Written("ends together", EndsTogether, PLAIN, CAUSAL, "output", "causal order is aligned to the lower right",
            described=("offset",), tokens=(7, 13)),
    Written("the lowest number twice", LowestTwice, PLAIN, CAUSAL | {"valid_lens": np.array([13, 0, 7])}, "output",
            "the lowest number is added twice", compared={"empty_rows": True}),
    Written("hidden after the softmax", MaskAfterwards, PLAIN, LENGTHS, "output",
            "hidden keys are blanked after the softmax"),
    Written("a softmax over queries", OverQueries, PLAIN, {}, "output", "the softmax is over another axis"),
    Written("-1 for hidden scores", NotLowEnough, PLAIN, LENGTHS, "output"),
    Written("a window one narrower", NarrowWindow, WINDOWED, {}, "output", "the window is one narrower to the left"),
    Written("a window both ways and one narrower", WindowBothWaysAndNarrower, WINDOWED, {}, "output",
            "the window is symmetric", second="the window is one narrower on both sides"),
    Written("a window without its left side", NothingOnTheLeft, BETWEEN, {}, "output",
            "the window is ignored on one side"),
    Written("no cap", CapForgotten, GEMMA, {}, "output", "the cap is forgotten"),
    Written("a cap that is not multiplied back", CapNotBack, GEMMA, {}, "output", "the cap is not multiplied back"),
    Written("a cap after the bias", CapAfterBias, GEMMA, BIASED, "output", "the cap comes after the bias"),
    Written("the scale of what turns", ScaleOfTurned, PARTLY, {}, "output", "the scale of the rotated width"),
    Written("the scale of the model", ScaleOfModel, PLAIN, CAUSAL, "output", "the scale of D for that of d"),
    Written("minus the bias", MinusBias, PLAIN, BIASED, "output", "the bias has the other sign"),
    Written("the other distance", OtherDistance, PLAIN, {"score_bias": DISTANCES}, "output",
            "the distance of the bias has the other sign"),
    Written("a bias repeated for the batch", BiasRepeated, PLAIN, BIASED, "output",
            "the bias is repeated over the batch, not tiled"),
    Written("slopes of a power of 2", PlainSlopes, GROUPED, ALIBI, "output", "another rule of ALiBi's slopes"),
    Written("blocks that are not rescaled", NotRescaled, PLAIN, {}, "output",
            "the accumulator of blocks is not rescaled", tokens=(5, 37), size=2.0),
    Written("no gates", GatesForgotten, PLAIN, {"head_gates": ...}, "output", "gates are forgotten",
            described=("head_gates",)),
]  # fmt: skip
