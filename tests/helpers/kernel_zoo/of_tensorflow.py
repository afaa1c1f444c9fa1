"""Kernels in TensorFlow: Keras' own, and in steps; layout (B, T, H, d)."""

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from kernel_zoo import Kernel


def run(kernel, inputs, options, cotangent):
    """Call a kernel; return its arrays by name, NumPy's."""
    inputs = [tf.constant(X) for X in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = kernel.call(*inputs, **options)
    found = {"output": output}
    if cotangent is not None:
        found |= dict(zip(("dq", "dk", "dv"), tape.gradient(output, inputs, cotangent), strict=True))
    return {name: numpys(X) for name, X in found.items()}


def numpys(X):
    """Return a tensor as a NumPy array."""
    return np.asarray(X).astype(ml_dtypes.bfloat16) if X.dtype == tf.bfloat16 else np.asarray(X)


def function(q, k, v, bias=None, mask=None, scale=None, is_causal=False):
    if q.shape[2] != k.shape[2] or (bias is not None and (mask is not None or is_causal)):
        raise NotImplementedError
    if bias is not None and bias.dtype != q.dtype.as_numpy_dtype:  # Keras rounds it, which is a mistake
        raise NotImplementedError
    more = {"bias": bias, "mask": mask, "scale": scale, "is_causal": is_causal}
    return keras.ops.dot_product_attention(q, k, v, **more)


def steps(q, k, v, mask=None, causal=False, axis=2):
    k, v = (tf.repeat(X, q.shape[2] // X.shape[2], axis=2) for X in (k, v))  # (B, K, H, d)
    scores = tf.cast(tf.einsum("bqhd,bkhd->bhqk", q, k), tf.float32) / q.shape[3] ** 0.5
    hidden = None if mask is None else ~tf.constant(mask)
    if causal:
        order = tf.range(k.shape[1])[None] > tf.range(q.shape[1])[:, None]  # (Q, K)
        hidden = order if hidden is None else hidden | order
    scores = scores if hidden is None else tf.where(hidden, tf.float32.min, scores)
    return tf.einsum("bhqk,bkhd->bqhd", tf.cast(tf.nn.softmax(scores), q.dtype), v)


RIGHT = {
    "keras.ops.dot_product_attention": Kernel(function, "BTHD", empty_rows=False),
    "steps": Kernel(steps, "BTHD", empty_rows=False, takes=("mask", "causal")),
}


# Wrong ones


def causal_or_mask(q, k, v, mask, causal):
    return steps(q, k, v, mask | np.tril(np.ones((q.shape[1], k.shape[1]), bool)))


WRONG = {
    "the scale is of the padded width": Kernel(
        lambda q, k, v: function(q, k, v, scale=(-(-q.shape[3] // 16) * 16) ** -0.5), "BTHD"
    ),
    "mask and causal order are joined by or": Kernel(causal_or_mask, "BTHD", known="masks are joined by or, not and"),
    "the mask is that of the first sample": Kernel(
        lambda q, k, v, mask: steps(q, k, v, mask[:1]), "BTHD", empty_rows=False,
        known="all samples have the mask of the first",
    ),
}  # fmt: skip
