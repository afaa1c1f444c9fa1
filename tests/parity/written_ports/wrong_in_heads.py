"""Ports with mistakes in projections, heads, norms and rotations."""

import numpy as np
from ports import Port

import mha

from ..written_ports.written import CAUSAL, GEMMA, GROUPED, LENGTHS, LLAMA, PARTLY, PLAIN, Written


class KernelAsInTorch(Port):
    def project(self, name, X):
        kernel = self.weights[f"{name}.kernel"]
        return X @ (kernel.T if name == "W_q" else kernel) + self.weights.get(f"{name}.bias", np.float32(0))


class WithoutBiasOfValues(Port):
    def project(self, name, X):
        return X @ self.weights[f"{name}.kernel"] if name == "W_v" else super().project(name, X)


class HeadsOfComponents(Port):
    def split(self, X, heads):
        return X.reshape(*X.shape[:2], -1, heads).transpose(0, 3, 1, 2)


class AsItLies(Port):
    def merge(self, pooled):
        B, _, Q, _ = pooled.shape
        return np.ascontiguousarray(pooled).reshape(B, Q, -1)


class HeadsInReverse(Port):
    def merge(self, pooled):
        return super().merge(pooled[:, ::-1])


class KeysTiled(Port):
    def share(self, X):
        return np.concatenate([X] * (self.H // self.G), 1)

    share_values = share


class ValuesTiled(Port):
    def share_values(self, X):
        return np.tile(X, (1, self.H // self.G, 1, 1))


class MergedAcross(Port):
    """Heads g * r + i are laid down as i * G + g."""

    def merge(self, pooled):
        B, H, Q, d = pooled.shape
        return pooled.reshape(B, self.G, H // self.G, Q, d).transpose(0, 3, 2, 1, 4).reshape(B, Q, H * d)


def permuted(X, heads):
    """As the converter of Hugging Face writes kernels for halves, when they were for neighbours."""
    return X.reshape(*X.shape[:-1], heads, -1, 2).swapaxes(-1, -2).reshape(X.shape)


class NotPermuted(Port):
    """Weights of one pairing, rotated by the other: W_q and W_k."""

    def __init__(self, attention):
        super().__init__(attention)
        for name, heads in (("W_q.kernel", self.H), ("W_k.kernel", self.G)):
            self.weights[name] = permuted(self.weights[name], heads)


class KeysNotPermuted(Port):
    def __init__(self, attention):
        super().__init__(attention)
        self.weights["W_k.kernel"] = permuted(self.weights["W_k.kernel"], self.G)


class Unturned(Port):
    def turn(self, role, X, places):
        return X if role == "k" else super().turn(role, X, places)


class TurnedFromOne(Port):
    def turn(self, role, X, places):
        return super().turn(role, X, places + (role == "q"))


class OtherPairs(Port):
    def turned(self, X, cos, sin, interleaved):
        return super().turned(X, cos, sin, not interleaved)


class Base1000000(Port):
    def frequencies(self, rotary):
        return 1e6 ** (-np.arange(0, rotary.dim, 2) / rotary.dim)


class Base20000(Port):
    """A base that the catalogue does not list."""

    def frequencies(self, rotary):
        return 20000.0 ** (-np.arange(0, rotary.dim, 2) / rotary.dim)


class LastComponents(Port):
    def turn(self, role, X, places):
        n = self.config.rotary.dim
        return np.concatenate([X[..., :-n], super().turn(role, X[..., -n:], places)], -1)


class ShortTable(Port):
    """A table of 512 positions, whose last row serves all beyond."""

    def turn(self, role, X, places):
        return super().turn(role, X, places.clip(max=511))


class ScaledLinearly(Port):
    """`rope_scaling` of LLaMA 3 read as linear: all frequencies by 8."""

    def frequencies(self, rotary):
        return rotary.base ** (-np.arange(0, rotary.dim, 2) / rotary.dim) / 8


class CoarseTable(Port):
    def turned(self, X, cos, sin, interleaved):
        def coarse(Y):  # the upper 16 bits, to nearest even
            bits = Y.astype("float32").view("uint32")
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view("float32")

        return super().turned(X, coarse(cos), coarse(sin), interleaved)


class NormOfAllHeads(Port):
    def norm(self, role, X):
        roots = self.root((X * X).mean((1, 3), keepdims=True), self.config.qk_norm.eps)
        return X / roots * self.weights[f"{role}_norm.scale"]


class EpsilonOutside(Port):
    def root(self, X, eps):
        return np.sqrt(X) + X.dtype.type(eps)


class NormedLast(Port):
    def prepare(self, role, X, heads, places):
        return self.norm(role, self.turn(role, self.split(X, heads), places))


class OnePlusScale(Port):
    def norm(self, role, X):
        roots = self.root((X * X).mean(-1, keepdims=True), self.config.qk_norm.eps)
        return X / roots * (1 + self.weights[f"{role}_norm.scale"])


class CacheOfBytes(Port):
    """Keys and values as int8, with a scale for each token and head."""

    def share(self, X):
        step = np.abs(X).max(-1, keepdims=True) / 127
        return super().share(np.round(X / step).astype("int8") * step)

    def share_values(self, X):
        return self.share(X)


class CacheOfHalves(Port):
    """Keys and values as bfloat16."""

    def share(self, X):
        bits = X.view("uint32")
        return super().share(((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view("float32"))

    def share_values(self, X):
        return self.share(np.ascontiguousarray(X))


ANGLES = 500000.0 ** (-np.arange(4) / 4)
LLAMA3 = LLAMA | {"rotary": mha.Rotary(8, 500000.0, frequencies=list(ANGLES / [1, 1, 2.5, 8]))}
NORMED = GROUPED | {"qk_norm": mha.Norm("rms", 0.01)}
BOTH = "rotary components of W_q and W_k are in another order"

WRONG_IN_HEADS = [
    Written("W_q (out, in)", KernelAsInTorch, PLAIN, LENGTHS, "output", "W_q.kernel is not transposed"),
    Written("no bias of values", WithoutBiasOfValues, PLAIN, {}, "output", "W_v.bias is dropped"),
    Written("heads of components", HeadsOfComponents, PLAIN, LENGTHS, "output", "the heads are interleaved"),
    Written("heads as they lie", AsItLies, PLAIN, {}, "output", "the merge lacks the permute"),
    Written("heads in reverse", HeadsInReverse, PLAIN, {}, "output"),
    Written("keys and values tiled", KeysTiled, GROUPED, CAUSAL, "output", "heads of keys are tiled, not repeated"),
    Written("values tiled", ValuesTiled, GROUPED, CAUSAL, "output", "heads of values are tiled, not repeated"),
    Written("heads merged as (r, g)", MergedAcross, GROUPED, {}, "output", "heads are merged as (r, g)"),
    Written("W_q and W_k not permuted", NotPermuted, LLAMA, CAUSAL, "output", BOTH),
    Written("W_k not permuted", KeysNotPermuted, LLAMA, CAUSAL, "output",
            "rotary components of W_k are in another order"),
    Written("keys do not turn", Unturned, LLAMA, CAUSAL, "output", "the rotation is forgotten"),
    Written("queries turn from 1 on", TurnedFromOne, LLAMA, {}, "output", "the rotation is off by one"),
    Written("the other pairs", OtherPairs, LLAMA, CAUSAL, "output", "rotary components are paired the other way"),
    Written("base 1000000", Base1000000, LLAMA, CAUSAL, "output", "another base"),
    Written("base 20000", Base20000, LLAMA, CAUSAL, "output", "another base"),
    Written("the last components turn", LastComponents, PARTLY, {}, "output", "the last components turn"),
    Written("a table of 512 positions", ShortTable, LLAMA, {"offset": 521}, "output",
            "the table of angles is too short", tokens=(5, 13)),
    Written("LLaMA 3 scaled linearly", ScaledLinearly, LLAMA3, {}, "output", "frequencies are scaled linearly"),
    Written("cosines in bfloat16", CoarseTable, LLAMA, CAUSAL, "output", "cosines and sines in bfloat16"),
    Written("a norm over all heads", NormOfAllHeads, NORMED, {}, "output", "the norm is over all heads"),
    Written("epsilon outside the root", EpsilonOutside, NORMED, {}, "output", "epsilon is outside the root"),
    Written("a norm after the rotation", NormedLast, GEMMA, {}, "output", "the norm comes after the rotation"),
    Written("1 + w of Gemma", OnePlusScale, GEMMA, {}, "output", "1 is added to the scale of a norm"),
    Written("a cache of int8", CacheOfBytes, GROUPED, CAUSAL, "output", "keys and values are rounded in a cache"),
    Written("a cache of bfloat16", CacheOfHalves, GROUPED, CAUSAL, "output", "keys and values are rounded in a cache"),
]  # fmt: skip
