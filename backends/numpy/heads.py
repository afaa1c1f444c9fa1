"""Chapter 3: heads, in NumPy: how they are split, shared, normed, rotated and merged.

Letters: B batch, T rows, H heads of queries, G heads of keys and values, d width of a head.

Sources: Vaswani et al., Attention Is All You Need (2017), section 3.2.2; Ainslie et al., GQA (2023), for heads of keys
that are shared; Zhang and Sennrich, Root Mean Square Layer Normalization (2019); Ba et al., Layer Normalization (2016);
Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.2.
"""

import numpy as np

from .hiding import widen


def transpose_qkv(X, num_heads):
    """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
    B, T, width = X.shape
    X = X.reshape(B, T, num_heads, width // num_heads)  # (B, T, H, d)
    X = X.transpose(0, 2, 1, 3)  # (B, H, T, d)
    return X.reshape(B * num_heads, T, width // num_heads)  # (B*H, T, d)


def transpose_output(X, num_heads):
    """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
    BH, T, d = X.shape
    X = X.reshape(BH // num_heads, num_heads, T, d)  # (B, H, T, d)
    X = X.transpose(0, 2, 1, 3)  # (B, T, H, d)
    return X.reshape(BH // num_heads, T, num_heads * d)  # (B, T, H*d)


def repeat_heads(pairs, batch_size, num_heads):
    """Give every head of a sample its row of `pairs`, booleans or a bias, in the order of `transpose_qkv`.

    (B or 1, H or 1, Q or 1, K or 1) -> (B*H, Q or 1, K or 1); None stays None.
    """
    if pairs is None:
        return None
    _, _, Q, K = pairs.shape
    pairs = np.broadcast_to(pairs, (batch_size, num_heads, Q, K))  # (B, H, Q, K)
    return pairs.reshape(batch_size * num_heads, Q, K)  # (B*H, Q, K)


def repeat_groups(X, times):
    """Give every head of queries its head of keys, which so many in a row share: (B*G, T, d) -> (B*H, T, d)."""
    return X if times == 1 else np.repeat(X, times, 0)  # (B*H, T, d)


def gate(pooled, head_gates, num_heads):
    """Pooled heads (B*H, Q, dv) times their gates, (H,) or (B, H); in float32 at least, as gradients add up."""
    gates = np.broadcast_to(head_gates, (pooled.shape[0] // num_heads, num_heads))  # (B, H)
    return (widen(pooled) * widen(gates).reshape(-1, 1, 1)).astype(pooled.dtype)  # (B*H, Q, dv)


def gate_by(pooled, gates):
    """Pooled heads (B*H, Q, dv) times the sigmoid of gates (B*H, Q, dv or 1), which is in float32 at least.

    A query that sees nothing pools 0, and that stays 0 where its gate is not a number.
    """
    sees = (pooled != 0).any(-1, keepdims=True)  # (B*H, Q, 1)
    gates = np.where(sees | ~np.isnan(gates), widen(gates), 0)  # (B*H, Q, dv or 1)
    return (widen(pooled) * sigmoid(gates)).astype(pooled.dtype)  # (B*H, Q, dv)


def sigmoid(X):
    """1 / (1 + exp(-X)), without an exponential that overflows."""
    small = np.exp(-np.abs(X))
    return np.where(X < 0, small, 1) / (1 + small)


class HeadNorm:
    """A norm of heads: of each, with one scale (d,) for all, or of all heads of a row together, with (H*d,)."""

    def __init__(self, norm, num_heads, width, dtype):
        self.norm, self.num_heads = norm, num_heads
        self.scale = np.ones((norm.size(num_heads, width),), dtype)

    def __call__(self, X):
        """X (B*H, T, d) over its root mean square, of what is left after the mean in "layer", times the scale."""
        if self.norm.over == "all":
            X = transpose_output(X, self.num_heads)  # (B, T, H*d)
        X = (self.normalize(X)[0] * widen(self.scale)).astype(X.dtype)  # (B*H, T, d) or (B, T, H*d)
        return transpose_qkv(X, self.num_heads) if self.norm.over == "all" else X  # (B*H, T, d)

    def mean(self, X):
        """The mean of each row of X (any, T, width), (any, T, 1); devices that share all heads take it together."""
        return X.mean(-1, keepdims=True)  # (any, T, 1)

    def normalize(self, X):
        """X (B*H, T, d) or (B, T, H*d) normalised, in float32 at least, and the roots of its rows."""
        X = widen(X)
        if self.norm.kind == "layer":
            X = X - self.mean(X)  # (B*H, T, d) or (B, T, H*d)
        roots = np.sqrt(self.mean(X * X) + self.norm.eps)  # (B*H, T, 1) or (B, T, 1)
        return X / roots, roots


def rotate(X, places, rotary, num_heads):
    """Turn pairs of components of X (B*H, T, d) by their frequency times the position; the rest of them stays.

    places: positions, integers (B or 1, T). rotary: an `mha.Rotary`. The first components are pairs (i, n + i). If it
    is interleaved, these are (2i, 2i + 1). In half precision it is computed in float32.
    """
    (BH, T, _), n, wide = X.shape, rotary.dim // 2, widen(X)
    cos, sin = turns(places, rotary, wide.dtype)  # (B or 1, T, n)
    sizes = BH // num_heads, num_heads, T, n
    cos, sin = (np.broadcast_to(part[:, None], sizes).reshape(BH, T, n) for part in (cos, sin))  # (B*H, T, n)
    if rotary.interleaved:
        first, second = wide[:, :, 0 : 2 * n : 2], wide[:, :, 1 : 2 * n : 2]  # (B*H, T, n)
    else:
        first, second = wide[:, :, :n], wide[:, :, n : 2 * n]  # (B*H, T, n)
    turned = first * cos - second * sin, second * cos + first * sin  # (B*H, T, n)
    if rotary.interleaved:
        turned = (np.stack(turned, -1).reshape(BH, T, 2 * n),)  # (B*H, T, 2n)
    return np.concatenate([*turned, wide[:, :, 2 * n :]], -1).astype(X.dtype)  # (B*H, T, d)


def turns(places, rotary, dtype):
    """Cosines and sines (B or 1, T, n) of the angles at places (B or 1, T), times the magnitude, in this dtype.

    The angles are as good as in float64: at position 100,000, float32 would be off by 0.004.
    """
    frequencies = np.array(rotary.angles())  # (n,), float32 in some bounds of mha.parity
    angles = places[:, :, None].astype(frequencies.dtype) * frequencies  # (B or 1, T, n)
    cos, sin = rotary.magnitude * np.cos(angles), rotary.magnitude * np.sin(angles)  # (B or 1, T, n)
    return cos.astype(dtype), sin.astype(dtype)


def temper(X, places, temperature, num_heads):
    """X (B*H, T, d) times a factor that grows with its position; in half precision it is computed in float32.

    places: positions, integers (B or 1, T), of which those below 0 count as 0. temperature: an `mha.Temperature`.
    """
    (BH, T, _), wide = X.shape, widen(X)
    steps = (np.maximum(places, 0) + temperature.shift) // temperature.floor  # (B or 1, T)
    factors = (1 + temperature.scale * np.log1p(steps)).astype(wide.dtype)  # (B or 1, T)
    factors = np.broadcast_to(factors[:, None], (BH // num_heads, num_heads, T)).reshape(BH, T, 1)  # (B*H, T, 1)
    return (wide * factors).astype(X.dtype)  # (B*H, T, d)
