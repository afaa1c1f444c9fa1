"""A decoder as its author writes it, sample by sample and token by token, and the same with one mistake each."""

from types import SimpleNamespace

import numpy as np

import mha


class Decoder:
    """One call in float64, from the slots of a cache; a mistake is a subclass.

    x: (B, Q, D); lengths: how many tokens of each sample are real; slopes: of ALiBi.
    """

    def __init__(self, attention, cache, x, lengths=None, slopes=None):
        self.config, self.cache, self.x, self.slopes = attention.config, cache, x, slopes
        self.weights = {name: X.astype(float) for name, X in attention.weights.items()}
        self.keys, self.values = (np.array(mha.to_numpy(X), float) for X in (cache.keys, cache.values))
        self.places, self.counts = np.array(mha.to_numpy(cache.positions)), mha.to_numpy(cache.lengths)
        self.B, self.G, self.S, self.d = self.keys.shape
        self.lengths = [x.shape[1]] * self.B if lengths is None else lengths

    def tokens(self, b):
        return range(self.lengths[b])

    def next(self, b):
        return self.places[b].max() + 1

    def position(self, b, i):
        return self.next(b) + i

    def slot(self, b, i):
        return (self.counts[b] + i) % self.S

    def turns_at(self, role, b, i):
        return self.position(b, i)

    def frequencies(self):
        n = self.config.rotary.dim // 2
        return self.config.rotary.base ** (-np.arange(n) / n)

    def turn(self, X, place):
        """Turn heads (any, d) by a place, in halves."""
        if self.config.rotary is None:
            return X
        angles = place * self.frequencies()
        n = len(angles)
        a, b = X[:, :n], X[:, n : 2 * n]
        turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
        return np.concatenate([*turned, X[:, 2 * n :]], 1)

    def projected(self, role, b, i):
        Y = self.x[b, i] @ self.weights[f"W_{role}.kernel"] + self.weights.get(f"W_{role}.bias", 0)
        return Y.reshape(-1, self.values.shape[3] if role == "v" else self.d)

    def key(self, b, i):
        return self.turn(self.projected("k", b, i), self.turns_at("k", b, i))

    def value(self, b, i):
        return self.projected("v", b, i)

    def kept_key(self, b, i):
        return self.key(b, i)

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
            for i in self.tokens(b)
        ]

    def known(self, b):
        """What a query may see: the slots as they were, and the new tokens."""
        return self.before(b) + self.new(b)

    def sees(self, b, i, token):
        place, left = self.position(b, i), (self.config.window or (None,))[0]
        near = left is None or token.place >= place - left
        return 0 <= token.place <= place and near

    def distance(self, b, i, token):
        return self.position(b, i) - token.place

    def group(self, h):
        return h // (self.config.num_heads // self.G)

    def pool(self, b, i):
        q = self.turn(self.projected("q", b, i), self.turns_at("q", b, i))
        seen = [token for token in self.known(b) if self.sees(b, i, token)]
        pooled = []
        for h in range(self.config.num_heads):
            g = self.group(h)
            scores = np.array([q[h] @ token.key[g] / self.d**0.5 for token in seen])
            if self.slopes is not None:
                scores = scores - self.slopes[h] * np.array([self.distance(b, i, token) for token in seen])
            shares = np.exp(scores - scores.max())
            pooled.append(shares @ np.array([token.value[g] for token in seen]) / shares.sum())
        return np.concatenate(pooled) @ self.weights["W_o.kernel"] + self.weights.get("W_o.bias", 0)

    def run(self):
        """The output, and what is in the slots after it."""
        output = np.zeros_like(self.x)
        for b in range(self.B):
            for i in self.tokens(b):
                output[b, i] = self.pool(b, i)
        written = [X.copy() for X in (self.keys, self.values, self.places)]
        for b in range(self.B):
            for i in self.tokens(b):
                s = self.slot(b, i)
                written[0][b, :, s], written[1][b, :, s] = self.kept_key(b, i), self.kept_value(b, i)
                written[2][b, s] = self.position(b, i)
        names = "output", "cache.keys", "cache.values", "cache.positions"
        return dict(zip(names, [output, *written], strict=True))


class OneTooFar(Decoder):
    def position(self, b, i):
        return self.next(b) + i + 1


class AtTheNewest(Decoder):
    def position(self, b, i):
        return self.next(b) + i - 1


class Padded(Decoder):
    def position(self, b, i):
        return max(self.next(other) for other in range(self.B)) + i


class PaddedSlots(Padded):
    def slot(self, b, i):
        return self.position(b, i)


class OfFirst(Decoder):
    def position(self, b, i):
        return self.next(0) + i


class OfShortest(Decoder):
    def position(self, b, i):
        return min(self.next(other) for other in range(self.B)) + i


class KeysBySlot(Decoder):
    def turns_at(self, role, b, i):
        return self.slot(b, i) if role == "k" else self.position(b, i)


class AllBySlot(Decoder):
    def turns_at(self, role, b, i):
        return self.slot(b, i)


class TurnedAgain(Decoder):
    def before(self, b):
        tokens = super().before(b)
        for token in tokens:
            token.key = self.turn(token.key, self.again(token.place))
        return tokens

    def again(self, place):
        return place


class MovedOn(TurnedAgain):
    def again(self, place):
        return -1


class TurnedAgainForGood(Decoder):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        for b in range(self.B):
            for s in range(self.S):
                self.keys[b, :, s] = self.turn(self.keys[b, :, s], self.places[b, s])


class Stretched(Decoder):
    factor = 4

    def frequencies(self):
        return super().frequencies() / self.factor


class StretchedBase(Stretched):
    def frequencies(self):
        dim, n = self.config.rotary.dim, self.config.rotary.dim // 2
        base = self.config.rotary.base * self.factor ** (dim / (dim - 2))
        return base ** (-np.arange(n) / n)


class KeptUnturned(Decoder):
    def kept_key(self, b, i):
        return self.projected("k", b, i)


class SeenUnturned(Decoder):
    def key(self, b, i):
        return self.projected("k", b, i)


class RawValues(Decoder):
    def kept_value(self, b, i):
        return self.x[b, i].reshape(self.G, -1)


class RawValuesSeen(Decoder):
    def value(self, b, i):
        return self.x[b, i].reshape(self.G, -1)


class OverSlots(Decoder):
    """A decoder that writes first, and sees what is in the slots then."""

    def known(self, b):
        there = {token.slot: token for token in self.before(b)}
        there |= {token.slot: token for token in self.new(b)}
        return list(there.values())


class SlotTooFar(OverSlots):
    def slot(self, b, i):
        return (super().slot(b, i) + 1) % self.S


class OverNewest(OverSlots):
    def slot(self, b, i):
        return (super().slot(b, i) - 1) % self.S


class SlotTooFarUnseen(SlotTooFar):
    def sees(self, b, i, token):
        return token.slot <= self.position(b, i)


class WrittenFirst(OverSlots):
    pass


class BySlots(OverSlots):
    def sees(self, b, i, token):
        return token.slot <= self.slot(b, i)


class UpperLeft(Decoder):
    def sees(self, b, i, token):
        return 0 <= token.place <= i


class EmptySeen(OverSlots):
    def sees(self, b, i, token):
        return token.place < 0 or super().sees(b, i, token)


class PaddingKept(Decoder):
    def tokens(self, b):
        return range(self.x.shape[1])


class Uncropped(Decoder):
    """A crop took three tokens behind the newest; their positions stayed, and one of them is overwritten now."""

    def run(self):
        found = super().run()
        for b in range(self.B):
            for place in (1, 2):
                found["cache.positions"][b, self.next(b) + place] = self.next(b) + place
        return found


class OfOthers(Decoder):
    """A decoder whose slots are those of other samples: of values alone, or as others say."""

    names, rows = ("values",), [2, 0, 1]

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        for name in self.names:
            setattr(self, name, getattr(self, name)[self.rows])


class KeysOfOthers(OfOthers):
    names = ("keys",)


class Stale(OfOthers):
    names = "keys", "values", "places"

    def next(self, b):
        return self.counts[b]  # which are its own


class Wide(Decoder):
    by = 1

    def sees(self, b, i, token):
        place = self.position(b, i)
        return 0 <= token.place <= place and token.place >= place - self.config.window[0] - self.by


class Narrow(Wide):
    by = -1


class Tiled(Decoder):
    def group(self, h):
        return h % self.G


class BiasBySlot(Decoder):
    def distance(self, b, i, token):
        return self.slot(b, i) - token.slot
