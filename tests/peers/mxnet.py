"""MXNet's own operators between projections of ours: softmax with lengths, or `sequence_mask` with -1e6 and a softmax.

It brings no attention layer.
"""

import contextlib
import functools
import math
import types

from mxnet import autograd, npx
from mxnet import np as mnp

from peers import INPUTS, own, own_inputs


def make(options, weights, call):
    return types.SimpleNamespace(
        num_heads=options["num_heads"], weights={name: own("mxnet", X) for name, X in weights.items()}
    )


def run(layer, call, masked=False):
    """masked: whether `sequence_mask` hides, instead of the softmax."""
    inputs, gradients = own_inputs(call, "mxnet"), call.cotangent is not None
    batch, heads = len(call.queries), layer.num_heads

    def dense(name, X):
        return mnp.dot(X, layer.weights[f"{name}.kernel"]) + layer.weights[f"{name}.bias"]

    def split(X):
        (batch, T, _), d = X.shape, X.shape[2] // heads
        return X.reshape(batch, T, heads, d).transpose(0, 2, 1, 3).reshape(batch * heads, T, d)  # (B*H, T, d)

    def weigh(scores):  # (B*H, Q, K)
        lengths, (_, num_queries, num_keys) = call.valid_lens, scores.shape
        if lengths is None:
            return npx.softmax(scores)
        lengths = own("mxnet", lengths).repeat(heads, axis=0)
        if not masked:
            lengths = lengths[:, None].repeat(num_queries, axis=1) if lengths.ndim == 1 else lengths
            return npx.softmax(scores, lengths, axis=-1, use_length=True)
        lengths = lengths.repeat(num_queries) if lengths.ndim == 1 else lengths.reshape(-1)
        rows = npx.sequence_mask(scores.reshape(-1, num_keys), lengths, True, value=-1e6, axis=1)  # (B*H*Q, K)
        return npx.softmax(rows.reshape(scores.shape))  # (B*H, Q, K)

    for X in inputs if gradients else ():
        X.attach_grad()
    with autograd.record() if gradients else contextlib.nullcontext():
        q, k, v = (split(dense(f"W_{x}", X)) for x, X in zip("qkv", inputs, strict=True))  # (B*H, T, d)
        shares = weigh(npx.batch_dot(q, k, transpose_b=True) / math.sqrt(q.shape[2]))  # (B*H, Q, K)
        pooled = npx.batch_dot(shares, v)  # (B*H, Q, dv)
        _, num_queries, width = pooled.shape
        pooled = pooled.reshape(batch, heads, num_queries, width).transpose(0, 2, 1, 3)  # (B, Q, H, dv)
        output = dense("W_o", pooled.reshape(batch, num_queries, heads * width))  # (B, Q, D)
    found = {"output": output.asnumpy(), "weights": shares.asnumpy().reshape(batch, heads, *shares.shape[1:])}
    if gradients:
        output.backward(mnp.array(call.cotangent, dtype=output.dtype))
        found |= {name: X.grad.asnumpy() for name, X in zip(INPUTS, inputs, strict=True)}
    return found


run_masked = functools.partial(run, masked=True)
