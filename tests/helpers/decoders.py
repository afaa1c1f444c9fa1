"""A decoder as its author writes it, sample by sample and token by token, and the same with one mistake each."""

from types import SimpleNamespace

import numpy as np

import mha


class Decoder:
    """One call in float64, from the slots of a cache; a mistake is a subclass.

    x: (B, Q, D); lengths: how many tokens of each sample are real.
    """

    def __init__(self, attention, cache, x, lengths=None):
        self.config, self.x = attention.config, x
        self.weights = {name: X.astype(float) for name, X in attention.weights.items()}
        self.keys, self.values = (np.array(mha.to_numpy(X), float) for X in (cache.keys, cache.values))
        self.places, self.counts = np.array(mha.to_numpy(cache.positions)), mha.to_numpy(cache.lengths)
        self.B, self.G, self.S, self.d = self.keys.shape
        self.lengths = [x.shape[1]] * self.B if lengths is None else lengths

    def next(self, b):
        return self.places[b].max() + 1

    def position(self, b, i):
        return self.next(b) + i

    def slot(self, b, i):
        return (self.counts[b] + i) % self.S

    def turn(self, X, place):
        """Turn heads (any, d) by a place, in halves."""
        if self.config.rotary is None:
            return X
        n = self.config.rotary.dim // 2
        angles = place * self.config.rotary.base ** (-np.arange(n) / n)
        a, b = X[:, :n], X[:, n : 2 * n]
        turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
        return np.concatenate([*turned, X[:, 2 * n :]], 1)

    def projected(self, role, b, i):
        Y = self.x[b, i] @ self.weights[f"W_{role}.kernel"] + self.weights.get(f"W_{role}.bias", 0)
        return Y.reshape(-1, self.values.shape[3] if role == "v" else self.d)

    def key(self, b, i):
        return self.turn(self.projected("k", b, i), self.position(b, i))

    def value(self, b, i):
        return self.projected("v", b, i)

    def kept_value(self, b, i):
        return self.value(b, i)

    def before(self, b):
        """What is in the slots before the call."""
        return [
            SimpleNamespace(key=self.keys[b, :, s], value=self.values[b, :, s], place=self.places[b, s], slot=s)
            for s in range(self.S)
        ]

    def new(self, b):
        return [
            SimpleNamespace(key=self.key(b, i), value=self.value(b, i), place=self.position(b, i), slot=self.slot(b, i))
            for i in range(self.lengths[b])
        ]

    def known(self, b):
        """What a query may see: the slots as they were, and the new tokens."""
        return self.before(b) + self.new(b)

    def sees(self, b, i, token):
        place, left = self.position(b, i), (self.config.window or (None,))[0]
        near = left is None or token.place >= place - left
        return 0 <= token.place <= place and near

    def pool(self, b, i):
        q = self.turn(self.projected("q", b, i), self.position(b, i))
        seen = [token for token in self.known(b) if self.sees(b, i, token)]
        pooled = []
        for h in range(self.config.num_heads):
            g = h // (self.config.num_heads // self.G)
            scores = np.array([q[h] @ token.key[g] / self.d**0.5 for token in seen])
            shares = np.exp(scores - scores.max())
            pooled.append(shares @ np.array([token.value[g] for token in seen]) / shares.sum())
        return np.concatenate(pooled) @ self.weights["W_o.kernel"] + self.weights.get("W_o.bias", 0)

    def run(self):
        """The output, and what is in the slots after it."""
        output = np.zeros_like(self.x)
        for b in range(self.B):
            for i in range(self.lengths[b]):
                output[b, i] = self.pool(b, i)
        written = [X.copy() for X in (self.keys, self.values, self.places)]
        for b in range(self.B):
            for i in range(self.lengths[b]):
                s = self.slot(b, i)
                written[0][b, :, s], written[1][b, :, s] = self.key(b, i), self.kept_value(b, i)
                written[2][b, s] = self.position(b, i)
        names = "output", "cache.keys", "cache.values", "cache.positions"
        return dict(zip(names, [output, *written], strict=True))


class TurnedAgainForGood(Decoder):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        for b in range(self.B):
            for s in range(self.S):
                self.keys[b, :, s] = self.turn(self.keys[b, :, s], self.places[b, s])


class OverSlots(Decoder):
    """A decoder that writes first, and sees what is in the slots then."""

    def known(self, b):
        there = {token.slot: token for token in self.before(b)}
        there |= {token.slot: token for token in self.new(b)}
        return list(there.values())


class SlotTooFarUnseen(OverSlots):
    def slot(self, b, i):
        return (super().slot(b, i) + 1) % self.S

    def sees(self, b, i, token):
        return token.slot <= self.position(b, i)
