"""Ports with mistakes that come with whole models: masks of 0 and 1, caches, casts, devices, packed Q, K and V."""

import numpy as np
from ports import Port

from .gradients import Backward
from .written import CAUSAL, GEMMA, LENGTHS, LLAMA, PLAIN, Written


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


class WithoutAMinus(Port):
    """masked_fill(mask == 0, 1e-9)."""

    def softmax(self, scores, seen):
        return super().softmax(np.where(seen, scores, np.float32(1e-9)), np.ones_like(seen))


class CappedAfterTheMask(Port):
    def cap(self, scores):
        return scores

    def softmax(self, scores, seen):
        cap = np.float32(self.config.softcap)
        return super().softmax(cap * np.tanh(np.where(seen, scores, -np.inf) / cap), np.ones_like(seen))


class OneMore(Port):
    """exp(x) / (1 + sum(exp(x)))."""

    def softmax(self, scores, seen):
        shares = np.exp(scores) * seen
        return shares / (1 + shares.sum(-1, keepdims=True))


class TwoDevices(Port):
    """Each has half of the rows of W_o, and adds the bias before the sum over devices."""

    def project(self, name, X):
        of_one = super().project(name, X)
        return of_one + self.weights.get("W_o.bias", np.float32(0)) if name == "W_o" else of_one


class HeadsInThePack(Port):
    """As GPT-NeoX stores it, each head has its own q, k and v; it is cut in three as that of GPT-2."""

    def project(self, name, X):
        if name == "W_o" or self.G < self.H:
            return super().project(name, X)
        each = [Port.project(self, f"W_{one}", X).reshape(*X.shape[:2], self.H, -1) for one in "qkv"]
        packed = np.stack(each, -2).reshape(*X.shape[:2], -1)  # (B, T, H*3*d)
        return np.split(packed, 3, -1)[["W_q", "W_k", "W_v"].index(name)]


class ScaledBeforeItsBias(Port):
    """As Whisper without the brackets: W_q x * scale + b."""

    def project(self, name, X):
        return super().project(name, X * np.float32(self.scale) if name == "W_q" else X)

    def score(self, q, k):
        return q @ k.swapaxes(2, 3)


class CacheTurnedAgain(Port):
    """What lies in the cache has been turned; all keys are turned as they are read."""

    def __call__(self, queries, keys, values, offset=0, **call):
        self.stored = offset
        return super().__call__(queries, keys, values, offset=offset, **call)

    def turn(self, role, X, places):
        if role == "k":
            n = self.stored
            X = np.concatenate([super().turn(role, X[:, :, :n], places[:, :n]), X[:, :, n:]], 2)
        return super().turn(role, X, places)


class ValuesTurned(Port):
    def share_values(self, X):
        return super().share_values(self.turn("v", X, np.arange(X.shape[2])[None]))


class FrequenciesCast(Port):
    """model.to(bfloat16) casts the buffer inv_freq, too."""

    def frequencies(self, rotary):
        bits = np.array(rotary.angles(), "f4").view("u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view("f4").astype(float)


class NotSetToZero(Backward):
    """backward() for the second time, without zero_grad()."""

    def __call__(self, *inputs, **call):
        found = super().__call__(*inputs, **call)
        return {name: X if name in ("output", "queries", "keys", "values") else X + X for name, X in found.items()}


WRONG_IN_MODELS = [
    Written("the batch second", batch_second, PLAIN, {}, "output", "samples and tokens are swapped", cross=True),
    Written("a mask of 0 and 1 is added", ZeroAndOne, PLAIN, LENGTHS, "output", "booleans are added to the scores"),
    Written("a mask of 0 and 1 is added in a decoder", ZeroAndOne, PLAIN, LENGTHS | CAUSAL, "output",
            "booleans are added to the scores", described=("rows",)),
    Written("1e-9 without its minus", WithoutAMinus, PLAIN, CAUSAL, "output", "weak mask fill"),
    Written("a cap after the mask", CappedAfterTheMask, GEMMA, CAUSAL, "output", "hidden scores are capped"),
    Written("softmax plus one", OneMore, PLAIN, CAUSAL, "output", "1 is added to the sum of the softmax"),
    Written("a bias on two devices", TwoDevices, PLAIN, {}, "output", "W_o.bias is added several times"),
    Written("heads in the pack", HeadsInThePack, PLAIN, {}, "output", "packed heads are cut as packed kernels"),
    Written("a scale before the bias", ScaledBeforeItsBias, PLAIN, LENGTHS, "output", "the bias of W_q is not scaled"),
    Written("a cache that turns again", CacheTurnedAgain, LLAMA, CAUSAL | {"offset": 9}, "output", "keys turn twice",
            tokens=(4, 13)),
    Written("values turn", ValuesTurned, LLAMA, CAUSAL, "output", "values turn, too"),
    Written("frequencies in bfloat16", FrequenciesCast, LLAMA, CAUSAL, "output", "frequencies in half precision"),
    Written("gradients of two steps", NotSetToZero, PLAIN, {}, "gradients", "gradients are added twice"),
]  # fmt: skip
