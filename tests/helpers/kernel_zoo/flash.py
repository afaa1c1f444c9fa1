"""Attention in tiles by hand in NumPy, forward and backward: a method for each thing that a kernel can do wrong.

Half precision is rounded where FlashAttention rounds it: sums are in float32, exponentials are rounded before they meet
the values, gradients of scores before they meet queries and keys, and each result once. Tiles are whole: what lies
beyond the last row or key is 0, and hidden.
"""

from types import SimpleNamespace

import numpy as np


class Flash:
    """A tiled kernel: q (B, H, Q, d), k and v (B, G, K, d), and options by name; returns output and log-sum-exp."""

    def __init__(self, rows=32, columns=32, lower_right=False):
        self.rows, self.columns, self.lower_right = rows, columns, lower_right

    def __call__(
        self, q, k, v, *, causal=False, window=None, mask=None, bias=None, scale=None, softcap=None, sinks=None,
        lengths=None,
    ):  # fmt: skip
        call = self.prepare(q, k, v, causal, window, mask, bias, scale, softcap, sinks, lengths)
        B, H, Q, _ = call.q.shape
        output, lse = np.zeros((B, H, Q, v.shape[3]), q.dtype), np.zeros((B, H, Q), np.float32)
        for rows in self.tiles(Q, self.rows):
            state = self.start(B, H, v.shape[3])
            for columns in self.seen_tiles(call, rows):
                scores, _ = self.scores(call, rows, columns)
                state = self.add(call, state, scores, self.load(call.v, columns))
            means, sums = self.finish(call, *state)
            self.store(output, rows, means.astype(q.dtype))
            self.store(lse, rows, sums[..., 0])
        return output, lse

    def backward(self, q, k, v, output, lse, cotangent, **options):
        """Return the gradients of sum(output * cotangent) by q, k and v."""
        names = "causal", "window", "mask", "bias", "scale", "softcap", "sinks", "lengths"
        call = self.prepare(q, k, v, *(options.get(name) for name in names))
        wide, lse = cotangent.astype(np.float32), lse[..., None]  # (B, H, Q, 1)
        delta = self.delta(output.astype(np.float32), wide)  # (B, H, Q, 1)
        dq, dk, dv = (np.zeros(X.shape, np.float32) for X in (call.q, call.k, call.v))
        for rows in self.tiles(call.q.shape[2], self.rows):
            by_output = self.load(wide, rows)
            for columns in self.seen_tiles(call, rows):
                scores, slope = self.scores(call, rows, columns)
                weights = self.weights(scores, self.load(lse, rows))
                by_weights = by_output @ self.load(call.v, columns).swapaxes(2, 3)
                by_scores = self.rounded(call, self.by_scores(weights, by_weights, self.load(delta, rows)) * slope)
                by_q, by_k = by_scores @ self.load(call.k, columns), by_scores.swapaxes(2, 3) @ self.load(call.q, rows)
                self.store(dq, rows, by_q * self.scale_of_queries(call), add=True)
                self.store(dk, columns, by_k * self.scale_of_keys(call), add=True)
                self.store(dv, columns, self.rounded(call, weights).swapaxes(2, 3) @ by_output, add=True)
        dk, dv = (self.sum_shared(X, k.shape[1]) for X in (dk, dv))
        return {name: X.astype(q.dtype) for name, X in (("dq", dq), ("dk", dk), ("dv", dv))}

    # What a call is

    def prepare(self, q, k, v, causal, window, mask, bias, scale, softcap, sinks, lengths):
        """Return the call: heads in float32, one of keys for each of queries, and options without None."""
        (B, H, Q, d), K = q.shape, k.shape[2]
        left, right = (np.inf if side is None else side for side in window or (None, None))
        mask = np.ones((1, 1, 1, 1), bool) if mask is None else mask
        bias = np.zeros((1, 1, 1, 1), np.float32) if bias is None else bias.astype(np.float32)
        half = None if q.dtype == np.float32 else q.dtype
        k, v = (self.repeat(X, H // X.shape[1]) for X in (k, v))  # (B, H, K, d)
        q, k, v = (self.widen(X) for X in (q, k, v))
        return SimpleNamespace(
            q=q, k=k, v=v, dtype=v.dtype, causal=causal, left=left, right=right,
            mask=np.broadcast_to(mask, (B, H, Q, K)), bias=np.broadcast_to(bias, (B, H, Q, K)),
            scale=self.scale(d) if scale is None else scale, softcap=softcap, sinks=sinks,
            ends=np.minimum(np.full(B, K) if lengths is None else lengths, K).reshape(B, 1, 1, 1),
            half=half,
        )  # fmt: skip

    def widen(self, X):
        """Return the numbers of an input in float32."""
        return X.astype(np.float32)

    def scale(self, width):
        """Return the factor of the dot products that is usual."""
        return width**-0.5

    def repeat(self, X, times):
        """Repeat each head of keys for the heads of queries that share it."""
        return np.repeat(X, times, 1)

    def sum_shared(self, X, heads):
        """Sum the gradients of the heads that share one: (B, H, K, d) -> (B, G, K, d)."""
        return X.reshape(len(X), heads, -1, *X.shape[2:]).sum(2)  # (B, G, K, d)

    # Tiles

    def tiles(self, tokens, size):
        """Return the places in each tile; the last goes on beyond the end."""
        return [np.arange(start, start + size) for start in range(0, tokens, size)]

    def seen_tiles(self, call, rows):
        """Return the tiles of keys that a tile of queries may see."""
        return [tile for tile in self.tiles(call.k.shape[2], self.columns) if tile[0] <= self.last_seen(call, rows)]

    def last_seen(self, call, rows):
        """Return the last key that causal order lets the rows see."""
        return (self.places(call, rows) if call.causal else call.ends - 1).max()

    def load(self, X, places):
        """Return a tile, with 0 beyond the end."""
        tile = np.zeros((*X.shape[:2], len(places), *X.shape[3:]), X.dtype)
        tile[:, :, places < X.shape[2]] = X[:, :, places[places < X.shape[2]]]
        return tile

    def store(self, X, places, tile, add=False):
        """Write the rows of a tile that there are."""
        inside = places < X.shape[2]
        X[:, :, places[inside]] = tile[:, :, inside] + (X[:, :, places[inside]] if add else 0)

    # Scores

    def scores(self, call, rows, columns):
        """Return the scores of a tile, minus infinity where hidden, and their slope by the dot products."""
        scores = self.products(call, self.load(call.q, rows), self.load(call.k, columns))
        scores, slope = self.capped(call, scores)
        scores = scores + self.of_pairs(call.bias, rows, columns)
        return np.where(self.visible(call, rows, columns), scores, np.float32(-np.inf)), slope

    def products(self, call, q, k):
        """Return the scaled dot products of a tile."""
        return q @ k.swapaxes(2, 3) * np.float32(call.scale)

    def capped(self, call, scores):
        """Return the scores within the cap, and the slope of that."""
        if call.softcap is None:
            return scores, np.float32(1)
        bent = np.tanh(scores / np.float32(call.softcap))
        return bent * np.float32(call.softcap), 1 - bent * bent

    def of_pairs(self, X, rows, columns):
        """Return the part of a mask or bias that a tile needs; what is beyond the end is as the last."""
        return X[:, :, np.minimum(rows, X.shape[2] - 1)][:, :, :, np.minimum(columns, X.shape[3] - 1)]

    def visible(self, call, rows, columns):
        """Return which keys of a tile its queries see."""
        here, places = self.places(call, rows), columns[None, None, None]  # (B, 1, R, 1), (1, 1, 1, C)
        seen = self.within(call, places) & self.in_window(call, here, places)
        if call.causal:
            seen = seen & self.in_order(here, places)
        return seen & self.of_pairs(call.mask, rows, columns)

    def within(self, call, places):
        """Return which keys are no padding."""
        return places < call.ends

    def places(self, call, rows):
        """Return the positions of queries."""
        here = rows[None, None, :, None]  # (1, 1, R, 1)
        return here + call.ends - call.q.shape[2] if self.lower_right else here

    def in_order(self, here, places):
        """Return which keys causal order lets the queries see."""
        return places <= here

    def in_window(self, call, here, places):
        """Return which keys are near enough."""
        return (here - call.left <= places) & (places <= here + call.right)

    # The softmax

    def start(self, B, H, width):
        """Return the maximum of no scores, the sum of their exponentials, and the values that they pool."""
        maximum = np.full((B, H, self.rows, 1), -np.inf, np.float32)
        return maximum, np.zeros_like(maximum), np.zeros((B, H, self.rows, width), np.float32)

    def add(self, call, state, scores, values):
        """Add a tile of keys to the rows' state."""
        maximum, total, pooled = state
        largest = self.largest(maximum, scores)
        shares, keep = self.exp(scores - finite(largest)), self.keep(maximum, largest)
        total = self.keep_sum(keep) * total + shares.sum(-1, keepdims=True)
        return largest, total, self.accumulator(keep * pooled + self.rounded(call, shares) @ values)

    def largest(self, maximum, scores):
        """Return the maximum of the rows so far."""
        return np.maximum(maximum, scores.max(-1, keepdims=True))

    def exp(self, X):
        """Return the exponential."""
        return np.exp(X)

    def keep(self, maximum, largest):
        """Return by what to rescale that which was pooled beside another maximum."""
        return self.exp(maximum - finite(largest))

    def keep_sum(self, keep):
        """Return by what to rescale the sum."""
        return keep

    def accumulator(self, X):
        """Return the pooled values as they are kept from tile to tile."""
        return X

    def rounded(self, call, X):
        """Round to half precision, as what meets a matrix is."""
        return X if call.half is None else X.astype(call.half).astype(np.float32)

    def finish(self, call, maximum, total, pooled):
        """Return output and log-sum-exp of the rows."""
        if call.sinks is not None:
            maximum, total, pooled = self.with_sinks(call, maximum, total, pooled)
        return self.divided(pooled, total), self.lse(maximum, total)

    def with_sinks(self, call, maximum, total, pooled):
        """Add the sinks to the sums."""
        sinks = self.sinks(call)[:, None, None].astype(np.float32)  # (H, 1, 1)
        largest = np.maximum(maximum, sinks)
        keep = self.exp(maximum - largest)
        return largest, keep * total + self.exp(sinks - largest), keep * pooled

    def sinks(self, call):
        """Return the sinks of the heads."""
        return call.sinks

    def divided(self, pooled, total):
        """Return the means of the values; 0 where no key is seen."""
        return np.divide(pooled, total, out=np.zeros_like(pooled), where=total > 0)

    def lse(self, maximum, total):
        """Return the logarithm of the sum of exponentials."""
        with np.errstate(divide="ignore"):
            return maximum + np.log(total)

    # Backward

    def delta(self, output, cotangent):
        """Return what the softmax takes from the gradient of each weight of a row."""
        return (output * cotangent).sum(-1, keepdims=True)

    def weights(self, scores, lse):
        """Return the weights again, of the scores and their log-sum-exp."""
        return np.exp(scores - finite(lse))

    def by_scores(self, weights, by_weights, delta):
        """Return the gradients of scores."""
        return weights * (by_weights - delta)

    def scale_of_queries(self, call):
        """Return the factor of the gradients of queries."""
        return np.float32(call.scale)

    def scale_of_keys(self, call):
        """Return the factor of the gradients of keys."""
        return np.float32(call.scale)


class ToBase2(Flash):
    """A kernel that scales queries for exponentials to base 2, and rounds them; going back, it does so with keys."""

    back = False

    def products(self, call, q, k):
        scale = np.float32(call.scale / np.log(2))
        q, k = (q, self.rounded(call, k * scale)) if self.back else (self.rounded(call, q * scale), k)
        return q @ k.swapaxes(2, 3) * np.float32(np.log(2))

    def backward(self, *arrays, **options):
        back = ToBase2(self.rows, self.columns)
        back.back = True
        return super(ToBase2, back).backward(*arrays, **options)


class Packed:
    """A kernel of texts that are packed into one row, (tokens, H, d): a tiled kernel for each text."""

    def __init__(self, flash):
        self.flash = flash

    def __call__(self, q, k, v, *, cu_seqlens_q, cu_seqlens_k, **options):
        output, lse = np.zeros((*q.shape[:2], v.shape[2]), q.dtype), np.zeros(q.shape[1::-1], np.float32)
        for rows, columns in self.texts(cu_seqlens_q, cu_seqlens_k):
            one = self.flash(heads(q[rows]), heads(k[columns]), heads(v[columns]), **options)
            output[rows], lse[:, rows] = one[0][0].swapaxes(0, 1), self.lse(one[1][0])
        return output, lse

    def backward(self, q, k, v, output, lse, cotangent, *, cu_seqlens_q, cu_seqlens_k, **options):
        """Return the gradients by q, k and v, of each text alone."""
        found = {"dq": np.zeros_like(q), "dk": np.zeros_like(k), "dv": np.zeros_like(v)}
        for rows, columns in self.texts(cu_seqlens_q, cu_seqlens_k):
            inputs = heads(q[rows]), heads(k[columns]), heads(v[columns]), heads(output[rows])
            one = self.flash.backward(*inputs, lse[None, :, rows], heads(cotangent[rows]), **options)
            for (name, X), places in zip(one.items(), (rows, columns, columns), strict=True):
                found[name][places] += X[0].swapaxes(0, 1)  # (T, H, d)
        return found

    def texts(self, of_queries, of_keys):
        """Return the places of each text among queries and among keys."""
        ends = zip(of_queries[:-1], of_queries[1:], of_keys[:-1], of_keys[1:], strict=True)
        return [(slice(a, b), slice(c, d)) for a, b, c, d in ends]

    def lse(self, lse):
        """Return the log-sum-exp of a text, (H, T)."""
        return lse


def heads(X):
    """Return a text as heads of one sample: (T, H, d) -> (1, H, T, d)."""
    return X.swapaxes(0, 1)[None]  # (1, H, T, d)


def finite(X):
    """Return X with 0 in place of minus infinity: the maximum of rows that saw no key yet."""
    return np.where(np.isinf(X), np.float32(0), X)
