"""Caches as other libraries have them, made by hand, with the tokens that fill them."""

import numpy as np

import mha

B, T, D, H, G, d = 2, 20, 12, 4, 2, 3
FIRST = 9  # tokens before one decoder goes on from the other's cache
HEADS = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "bias": True}


def same(found, expected):
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


def numbers(cache):
    """Positions, lengths and what is lost, as lists."""
    return [mha.to_numpy(X).tolist() for X in (cache.positions, cache.lengths, cache.lost)]


def tokens(rng):
    return rng.normal(size=(B, T, D))


class ByHand:
    """A decoder by hand: keys and values (B, S, G, d) are written at an index; what was not written is NaN."""

    def __init__(self, attention):
        self.weights, self.index = attention.weights, 0
        self.keys, self.values = np.full((2, B, T, G, d), np.nan)

    def __call__(self, x):
        q, k, v = (self.dense(name, x[:, 0]) for name in ("W_q", "W_k", "W_v"))
        self.keys[:, self.index], self.values[:, self.index] = k.reshape(B, G, d), v.reshape(B, G, d)
        self.index += 1
        keys, values = (X[:, : self.index].repeat(H // G, 2) for X in (self.keys, self.values))  # (B, t, H, d)
        scores = np.einsum("bhd,bthd->bht", q.reshape(B, H, d), keys) / np.sqrt(d)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        pooled = np.einsum("bht,bthd->bhd", shares / shares.sum(2, keepdims=True), values)
        return self.dense("W_o", pooled.reshape(B, 1, H * d))

    def rest(self, X):
        """The outputs for the tokens (B, T, D) after those that it has had."""
        return np.concatenate([self(X[:, t : t + 1]) for t in range(self.index, T)], 1)

    def dense(self, name, x):
        return x @ self.weights[f"{name}.kernel"] + self.weights[f"{name}.bias"]


def decoded(attention, X):
    """A decoder by hand that has had the first tokens."""
    theirs = ByHand(attention)
    for t in range(FIRST):
        theirs(X[:, t : t + 1])
    return theirs


def rest(attention, cache, X):
    """The outputs of ours for the tokens after the first, one at a time, and the cache in the end."""
    outputs = []
    for t in range(FIRST, T):
        x = X[:, t : t + 1]
        output, cache = attention(x, x, x, causal=True, cache=cache)
        outputs.append(output)
    return np.concatenate(outputs, 1), cache
