"""Attention of today's models, as somebody may port it to NumPy: a class whose methods a mistake overrides."""

import numpy as np


class Port:
    """A right port of a layer of `mha`, with its weights, in its dtype; letters as in the lessons."""

    def __init__(self, attention):
        self.config, self.weights = attention.config, {name: np.array(X) for name, X in attention.weights.items()}
        self.H, self.G = self.config.num_heads, self.config.num_key_value_heads
        self.d = self.config.key_dim

    tempered = ("q",)  # roles

    def __call__(self, queries, keys, values, valid_lens=None, mask=None, causal=False, offset=0, score_bias=None,
                 head_gates=None, positions=None, key_positions=None, segments=None, key_segments=None):  # fmt: skip
        """The output (B, Q, D) and attention weights (B, H, Q, K)."""
        first = np.reshape(offset, (-1, 1)) + np.arange(queries.shape[1])  # (B or 1, Q)
        places = first if positions is None else np.atleast_2d(positions)  # (B or 1, Q)
        others = np.atleast_2d(np.arange(keys.shape[1]) if key_positions is None else key_positions)  # (B or 1, K)
        q = self.prepare("q", self.project("W_q", queries), self.H, places)
        k = self.prepare("k", self.project("W_k", keys), self.G, others)
        v = self.split(self.project("W_v", values), self.G)
        v = self.norm("v", v) if self.config.value_norm else v
        k, v = self.share(k), self.share_values(v)
        scores = self.bias(self.cap(self.score(q, k)), score_bias)
        seen = np.broadcast_to(self.seen(places[:, None, :, None], others[:, None, None], causal), scores.shape)
        if positions is not None:
            seen = seen & (places[:, None, :, None] >= 0)
        if key_positions is not None:
            seen = seen & (others[:, None, None] >= 0)
        if segments is not None:
            key_segments = segments if key_segments is None else key_segments
            seen = seen & self.packed(np.atleast_2d(segments), np.atleast_2d(key_segments))
        seen = self.mask(self.lengths(seen, valid_lens), mask)
        if score_bias is not None:
            seen = seen & ((score_bias if score_bias.ndim != 3 else score_bias[:, None]) > -np.inf)
        weights = self.softmax(scores, seen)
        pooled = self.gate(weights @ v, head_gates)
        return self.finish(pooled, queries), weights

    def finish(self, pooled, queries):
        if self.config.output_gate:
            pooled = pooled * self.opened(self.split(self.project("W_g", queries), self.H))
        return self.project("W_o", self.merge(pooled))

    def opened(self, gates):
        return 1 / (1 + np.exp(-gates))

    def packed(self, own, others):
        own, others = own[:, None, :, None], others[:, None, None]  # (B or 1, 1, Q, 1), (B or 1, 1, 1, K)
        return (own == others) & (own >= 0)  # (B or 1, 1, Q, K)

    def project(self, name, X):
        return X @ self.weights[f"{name}.kernel"] + self.weights.get(f"{name}.bias", X.dtype.type(0))

    def split(self, X, heads):
        return X.reshape(*X.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # (B, H, T, d)

    def prepare(self, role, X, heads, places):
        X, norm = self.split(X, heads), self.config.qk_norm
        if norm and norm.after:
            X = self.norm(role, self.turn(role, X, places))
        else:
            X = self.turn(role, self.norm(role, X), places)
        tempered = role in self.tempered and self.config.temperature is not None
        return self.temper(X, places) if tempered else X

    def temper(self, X, places):
        factors = [[self.factor(place) for place in row] for row in places.tolist()]
        return X * np.array(factors)[:, None, :, None].astype(X.dtype)

    def factor(self, place):
        kind = self.config.temperature
        return 1 + kind.scale * np.log(1 + (max(place, 0) + kind.shift) // kind.floor)

    def norm(self, role, X):
        norm = self.config.value_norm if role == "v" else self.config.qk_norm
        if norm is None:
            return X
        X, axes = X.transpose(0, 2, 1, 3), (2, 3) if norm.over == "all" else 3  # (B, T, H, d)
        if norm.kind == "layer":
            X = X - X.mean(axes, keepdims=True)
        X = X / self.root((X * X).mean(axes, keepdims=True), norm.eps)  # (B, T, H, d)
        return (X * self.weights[f"{role}_norm.scale"].reshape(-1, X.shape[3])).transpose(0, 2, 1, 3)  # (B, H, T, d)

    def root(self, X, eps):
        return np.sqrt(X + X.dtype.type(eps))

    def frequencies(self, rotary):
        return np.array(rotary.angles())

    def turn(self, role, X, places):
        """Turn components by complex numbers; places (B or 1, T)."""
        rotary = self.config.rotary
        if rotary is None:
            return X
        angles = (places[..., None] * self.frequencies(rotary))[:, None]  # (B or 1, 1, T, n)
        parts = (self.magnitude(role) * f(angles) for f in (np.cos, np.sin))
        return self.turned(X, *(part.astype(X.dtype) for part in parts), rotary.interleaved)

    def magnitude(self, role):
        return self.config.rotary.magnitude

    def turned(self, X, cos, sin, interleaved):
        n, Y = cos.shape[-1], X.copy()
        a, b = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
        Y[..., a], Y[..., b] = X[..., a] * cos - X[..., b] * sin, X[..., b] * cos + X[..., a] * sin
        return Y

    def share(self, X):
        return X.repeat(self.H // self.G, 1)

    def share_values(self, X):
        return X.repeat(self.H // self.G, 1)

    @property
    def scale(self):
        return self.d**-0.5 if self.config.scale is None else self.config.scale

    def score(self, q, k):
        return q @ k.swapaxes(2, 3) * q.dtype.type(self.scale)

    def cap(self, scores):
        c = self.config.softcap
        return scores if c is None else scores.dtype.type(c) * np.tanh(scores / scores.dtype.type(c))

    def bias(self, scores, bias):
        return scores if bias is None else scores + (bias[:, None] if bias.ndim == 3 else bias)

    def seen(self, i, j, causal):
        """Whether the query at position i sees the key at j: by the causal order, the chunks and the window."""
        seen = (j <= i) | (not causal)
        if self.config.chunk:
            seen = seen & (np.floor(i / self.config.chunk) == np.floor(j / self.config.chunk))
        left, right = self.window
        if left is not None:
            seen = seen & (i - j <= left)
        return seen if right is None else seen & (j - i <= right)

    @property
    def window(self):
        return self.config.window or (None, None)

    def lengths(self, seen, valid_lens):
        if valid_lens is None:
            return seen
        return seen & (np.arange(seen.shape[-1]) < np.reshape(valid_lens, (len(seen), 1, -1, 1)))

    def mask(self, seen, mask):
        return seen if mask is None else seen & (mask[:, None] if mask.ndim == 3 else mask)

    def softmax(self, scores, seen):
        low, sinks = np.where(seen, scores, -np.inf), self.sinks()
        largest = np.maximum(np.maximum(low.max(-1, keepdims=True), sinks), np.finfo(low.dtype).min)
        shares = np.exp(low - largest)
        return shares / np.maximum(shares.sum(-1, keepdims=True) + np.exp(sinks - largest), np.finfo(low.dtype).tiny)

    def sinks(self):
        """One more score for each head, (H, 1, 1), minus infinity if there is none."""
        return self.weights.get("sinks", np.full(self.H, -np.inf, "float32"))[:, None, None]

    def gate(self, pooled, gates):
        return pooled if gates is None else pooled * gates[..., None, None]

    def merge(self, pooled):
        return pooled.transpose(0, 2, 1, 3).reshape(len(pooled), pooled.shape[2], -1)  # (B, Q, H*d)
