"""What is done to the queries and keys of a head before they are compared, in TensorFlow: norms and rotations.

Letters as in layer.py; H stands for heads of queries or of keys.

Sources: Zhang and Sennrich, Root Mean Square Layer Normalization (2019); Ba et al., Layer Normalization (2016); Su et
al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.2.
"""

import keras
import tensorflow as tf

from .arrays import shape_of


class HeadNorm(keras.layers.Layer):
    """A norm over the width of a head, "rms" or "layer" (here without a shift), with one scale (d,) for all heads."""

    def __init__(self, kind, width, eps, dtype):
        super().__init__(dtype=dtype, autocast=False)
        self.kind, self.eps = kind, eps
        self.scale = self.add_weight(name="scale", shape=(width,), initializer="ones")
        self.built = True  # its weight is there

    def call(self, X):
        """X (B*H, T, d) over its root mean square, of what is left after the mean in "layer", times the scale."""
        wide = widen(X)
        if self.kind == "layer":
            wide = wide - tf.reduce_mean(wide, -1, keepdims=True)  # (B*H, T, d)
        roots = tf.sqrt(tf.reduce_mean(wide * wide, -1, keepdims=True) + self.eps)  # (B*H, T, 1)
        return tf.cast(wide / roots * widen(tf.convert_to_tensor(self.scale)), X.dtype)  # (B*H, T, d)


def positions(X, offset=0):
    """Positions (B or 1, T) of the rows of X (B, T, any), of which the first is at offset, an int or (B or 1, 1)."""
    return tf.cast(offset, tf.int64) + tf.range(tf.cast(shape_of(X)[1], tf.int64))[None]  # (B or 1, T)


def rotate(X, places, rotary, num_heads):
    """Turn pairs of components of X (B*H, T, d) by their frequency times the position; the rest of them stays.

    places: positions, integers (B or 1, T); rotary: an `mha.Rotary`, whose first `dim` components are pairs (i, n + i),
    or (2i, 2i + 1) if it is interleaved. In half precision it is computed in float32.
    """
    (BH, T, _), n, wide = shape_of(X), rotary.dim // 2, widen(X)
    cos, sin = turns(places, rotary, wide.dtype)  # (B or 1, T, n)
    sizes = BH // num_heads, num_heads, T, n
    cos, sin = (tf.reshape(tf.broadcast_to(part[:, None], sizes), (BH, T, n)) for part in (cos, sin))  # (B*H, T, n)
    if rotary.interleaved:
        first, second = wide[:, :, 0 : 2 * n : 2], wide[:, :, 1 : 2 * n : 2]  # (B*H, T, n)
    else:
        first, second = wide[:, :, :n], wide[:, :, n : 2 * n]  # (B*H, T, n)
    turned = first * cos - second * sin, second * cos + first * sin  # (B*H, T, n)
    if rotary.interleaved:
        turned = (tf.reshape(tf.stack(turned, -1), (BH, T, 2 * n)),)  # (B*H, T, 2n)
    return tf.cast(tf.concat([*turned, wide[:, :, 2 * n :]], -1), X.dtype)  # (B*H, T, d)


def turns(places, rotary, dtype):
    """Cosines and sines (B or 1, T, n) of the angles at places (B or 1, T), as numbers of this dtype.

    The angles are as good as in float64: at position 100,000, float32 would be off by 0.004.
    """
    angles = tf.cast(places, tf.float64)[:, :, None] * tf.constant(rotary.angles(), tf.float64)  # (B or 1, T, n)
    return tf.cast(tf.cos(angles), dtype), tf.cast(tf.sin(angles), dtype)


def widen(X):
    """X in float32 where it has half precision: scores overflow float16, and differences of them lose most bits."""
    return tf.cast(X, tf.float32) if X.dtype.size < 4 else X
