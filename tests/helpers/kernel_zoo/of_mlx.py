"""Kernels in MLX: its own, whose causal order is lower right, and in steps."""

import ml_dtypes
import mlx.core as mx
import numpy as np

from kernel_zoo import Kernel


def own(X):
    """Return a NumPy array as MLX's."""
    if isinstance(X, np.ndarray) and X.dtype == ml_dtypes.bfloat16:
        return mx.array(np.ascontiguousarray(X).view(np.uint16)).view(mx.bfloat16)
    return mx.array(X) if isinstance(X, np.ndarray) else X


def numpys(X):
    """Return MLX's array as NumPy's."""
    return np.array(X.view(mx.uint16)).view(ml_dtypes.bfloat16) if X.dtype == mx.bfloat16 else np.array(X)


def run(kernel, inputs, options, cotangent):
    """Call a kernel; return its arrays by name, NumPy's."""

    def called(*inputs):
        made = kernel.call(*inputs, **options)
        return [*made] if isinstance(made, tuple) else [made]

    options, inputs = {name: own(X) for name, X in options.items()}, [own(X) for X in inputs]
    output, *lse = called(*inputs)
    found = {"output": output} | dict(zip(("lse",), lse, strict=False))
    if cotangent is not None:
        gradients = mx.vjp(lambda *inputs: called(*inputs)[:1], inputs, [own(cotangent)])[1]
        found |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {name: numpys(X) for name, X in found.items()}


def fast(q, k, v, mask=None, bias=None, scale=None, sinks=None):
    others = [X for X in (bias, sinks) if X is not None and X.dtype != q.dtype]  # MLX takes none; to round is a mistake
    if others or (mask is not None and bias is not None):
        raise NotImplementedError
    mask = mask if bias is None else bias
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)


def fast_causal(q, k, v):
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")


def steps(q, k, v, mask=None, causal=False, softcap=None, repeat=mx.repeat):
    k, v = (repeat(X, q.shape[1] // X.shape[1], 1) for X in (k, v))  # (B, H, K, d)
    scores = (q @ k.swapaxes(2, 3)).astype(mx.float32) * q.shape[-1] ** -0.5
    scores = scores if softcap is None else mx.tanh(scores / softcap) * softcap
    if causal:
        scores = mx.where(mx.arange(q.shape[2])[:, None] >= mx.arange(k.shape[2]), scores, -mx.inf)
    scores = scores if mask is None else mx.where(mask, scores, -mx.inf)
    return mx.softmax(scores, -1).astype(q.dtype) @ v, mx.logsumexp(scores, -1)


RIGHT = {
    "mx.fast.scaled_dot_product_attention": Kernel(fast, empty_rows=False),
    "mx.fast.scaled_dot_product_attention, causal": Kernel(
        fast_causal, holds={"causal": "lower right"}, empty_rows=False
    ),
    "steps": Kernel(steps, empty_rows=False, takes=("mask", "causal", "softcap")),
}


# Wrong ones


def tiled(X, times, axis):
    return mx.concatenate([X] * times, axis)


WRONG = {
    "causal order is lower right": Kernel(
        lambda q, k, v, is_causal: fast_causal(q, k, v), known="causal order is aligned to the lower right"
    ),
    "the scale is multiplied by the root": Kernel(lambda q, k, v: fast(q, k, v, scale=q.shape[-1] ** 0.5)),
    "heads of keys are tiled, not repeated": Kernel(
        lambda q, k, v: steps(q, k, v, repeat=tiled), known="heads of keys are tiled, not repeated"
    ),
    "booleans are added to the scores": Kernel(
        lambda q, k, v, mask: fast(q, k, v, bias=mask.astype(q.dtype)),
        known="booleans are added to the scores",
        empty_rows=False,
    ),
    "rows that see nothing are means": Kernel(fast, known="rows without keys are uniform", takes=("mask",)),
}
