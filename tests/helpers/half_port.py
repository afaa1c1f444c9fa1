"""A port of a layer in half precision that rounds where a style says, written by hand, beside the simulation."""

import numpy as np
from ports import Port

from mha.core.options.config import numpy_dtype
from mha.parity.rule.rules import in_dtype
from mha.parity.rule.styles import Border, Core


class HalfPort(Port):
    """A port that computes in float32, and rounds where `border` and `core` say; letters as in the lessons."""

    def __init__(self, attention, border=None, core=None, **changes):
        """changes: other methods or attributes, such as those of a mistake."""
        super().__init__(in_dtype(attention, "float32"))
        self.dtype, self.core = numpy_dtype(attention.config.dtype), core or Core()
        self.border = border or Border.usual(attention.config)
        vars(self).update(changes)

    def call(self, queries, keys, values, **call):
        """Return the output (B, Q, D), in the dtype of the layer."""
        with np.errstate(all="ignore"):
            floats = {name: X.astype("float32") for name, X in call.items() if name in ("score_bias", "head_gates")}
            inputs = (X.astype("float32") for X in (queries, keys, values))
            return self(*inputs, **call | floats)[0].astype(self.dtype)

    def half(self, X, rounds=True):
        return X.astype(self.dtype).astype("float32") if rounds else X

    def at_border(self, X):
        return self.half(X, self.border.rounds)

    # The border

    def project(self, name, X):
        X, bias = X @ self.weights[f"{name}.kernel"], self.weights.get(f"{name}.bias", 0)
        X = self.half(X, self.border.last if name == "W_o" else self.border.products) + bias
        if name == "W_q" and self.border.scaled:
            X = X * np.float32(self.scale)
        return X if name == "W_o" else self.at_border(X)

    def norm(self, role, X):
        norm = self.config.value_norm if role == "v" else self.config.qk_norm
        if norm is None:
            return X
        if self.border.norms:
            scales, ones = self.weights, {name: np.ones_like(X) for name, X in self.weights.items() if "norm" in name}
            self.weights = scales | ones
            X, self.weights = self.half(super().norm(role, X)), scales
            scale = scales[f"{role}_norm.scale"].reshape(-1, 1, X.shape[3])  # (1 or H, 1, d)
            return self.at_border(X * scale)
        return self.at_border(super().norm(role, X))

    def temper(self, X, places):
        return self.at_border(super().temper(X, places))

    def turn(self, role, X, places):
        if self.config.rotary is None:
            return X
        kind = "float32" if self.border.angles else "float64"
        angles = self.places(places).astype(kind)[..., None] * self.frequencies(self.config.rotary).astype(kind)
        cos, sin = (
            self.half((f(angles) * self.magnitude(role)).astype("float32"), self.border.cosines)[:, None]
            for f in (np.cos, np.sin)
        )  # (B or 1, 1, T, n)
        return self.at_border(self.turned(X, cos, sin, self.config.rotary.interleaved))

    def places(self, places):
        return places

    def turned(self, X, cos, sin, interleaved):
        n, Y = cos.shape[-1], X.copy()
        at = np.arange(2 * n).reshape((n, 2) if interleaved else (2, n))
        one, other = at.T if interleaved else at
        Y[..., one] = self.product(X[..., one], cos) - self.product(X[..., other], sin)
        Y[..., other] = self.product(X[..., other], cos) + self.product(X[..., one], sin)
        return Y

    def product(self, X, Y):
        return self.half(X * Y, self.border.turns)

    def gate(self, pooled, gates):
        return self.at_border(super().gate(self.at_border(pooled), gates))

    def opened(self, gates):
        return self.half(super().opened(gates), self.border.gates)

    def merge(self, pooled):
        return super().merge(self.at_border(pooled))

    # The core

    def step(self, X):
        return self.half(X, self.core.scores and not self.core.at_once)

    def score(self, q, k):
        if self.config.pooling == "additive":
            return self.additive(q, k)
        scale, kind = np.float32(1 if self.border.scaled else self.scale), self.core.scale
        scale = scale * np.float32(1 / np.log(2)) if self.core.base_2 else scale
        if kind.endswith("rounded"):
            scale = self.half(np.array(scale))
        if kind == "both":
            q, k = self.half(q * np.sqrt(scale)), self.half(k * np.sqrt(scale))
        elif kind == "queries, root":
            q = self.half(q / self.half(np.array(1 / scale)))
        elif kind != "dots" and kind != "dots, rounded":
            q = self.half(q * scale)
        scores = q @ k.swapaxes(2, 3)
        scores = scores / np.float32(1 / np.log(2)) if self.core.base_2 else scores
        return self.step(self.half(scores, self.core.dots) * scale if kind.startswith("dots") else scores)

    def additive(self, q, k):
        q, k = (self.at_border(X @ self.weights[f"attention.{name}.kernel"]) for X, name in ((q, "W_q"), (k, "W_k")))
        features = self.at_border(np.tanh(self.at_border(q[:, :, :, None] + k[:, :, None])))  # (B, H, Q, K, n)
        return self.at_border((features @ self.weights["attention.w_v.kernel"])[..., 0])

    def cap(self, scores):
        if self.config.softcap is None:
            return scores
        cap = self.half(np.float32(self.config.softcap), "," in self.core.scale)
        return self.step(self.step(np.tanh(self.step(scores / cap))) * cap)

    def bias(self, scores, bias):
        scores = scores if bias is None else self.step(super().bias(scores, bias))
        return self.half(scores, self.core.at_once)

    def softmax(self, scores, seen):
        if self.core.softmax == "float32":
            return self.half(super().softmax(scores, seen), self.core.weights)
        low, sinks = np.where(seen, scores, -np.inf), np.broadcast_to(self.sinks(), (*scores.shape[:3], 1))
        largest = np.maximum(np.maximum(low.max(-1, keepdims=True), sinks), np.finfo("float32").min)
        if self.core.softmax == "flash":
            sums = np.exp(low - largest).sum(-1, keepdims=True) + np.exp(sinks - largest)
            shares, newest = self.tiles(low)
            return shares * np.exp(np.minimum(newest - largest, 0)) / np.where(sums == 0, np.float32(1), sums)
        shares, more = (self.half(np.exp(self.half(X - largest))) for X in (low, sinks))
        if self.core.softmax == "one by one":
            sums = 0
            for share in (*np.moveaxis(shares, 3, 0), more[..., 0]):
                sums = self.half(sums + share)
            sums = sums[..., None]
        else:
            sums = self.half(shares.sum(-1, keepdims=True) + more)
        sums = np.where(sums == 0, np.float32(1), sums)
        weights = shares / sums if self.core.softmax == "half" else shares * self.half(1 / sums)
        return self.half(weights, self.core.weights)

    def tiles(self, low):
        """Rounded exponentials, relative to the largest score so far, as a kernel sees them, and the last of these."""
        tile, newest, largest, found = self.core.tile or low.shape[3], np.float32(-np.inf), 0, []
        if tile >= low.shape[3]:
            newest = np.maximum(newest, self.sinks())
        for first in range(0, low.shape[3], tile):
            own = low[..., first : first + tile]
            newest = np.maximum(newest, own.max(-1, keepdims=True))  # (B, H, Q, 1)
            shift = np.where(np.isneginf(newest), np.float32(0), newest)
            found = [X * np.exp(largest - shift) for X in found] + [self.half(np.exp(own - shift))]
            largest = shift
        return np.concatenate(found, 3), largest  # (B, H, Q, K), (B, H, Q, 1)
