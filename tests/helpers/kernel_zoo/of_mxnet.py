"""Kernels in MXNet: steps in `mx.np`."""

import importlib

import numpy as np

from kernel_zoo import Kernel
from mha.core import dispatch

dispatch.load("mxnet")  # which lets MXNet be imported beside today's NumPy
mx = importlib.import_module("mxnet")


def run(kernel, inputs, options, cotangent):
    """Call a kernel; return its arrays by name, NumPy's."""
    with mx.util.np_array(True), mx.util.np_shape(True):
        inputs = [mx.np.array(X, dtype=X.dtype) for X in inputs]
        options = {
            name: mx.np.array(X, dtype=X.dtype) if isinstance(X, np.ndarray) else X for name, X in options.items()
        }
        for X in inputs:
            X.attach_grad()
        with mx.autograd.record():
            output = kernel.call(*inputs, **options)
        if cotangent is None:
            return {"output": output.asnumpy()}
        output.backward(mx.np.array(cotangent, dtype=cotangent.dtype))
        names = "output", "dq", "dk", "dv"
        return {name: X.asnumpy() for name, X in zip(names, (output, *(X.grad for X in inputs)), strict=True)}


def steps(q, k, v, mask=None, bias=None, causal=False, axis=-1, repeat=mx.np.repeat):
    k, v = (repeat(X, q.shape[1] // X.shape[1], axis=1) for X in (k, v))  # (B, H, K, d)
    scores = mx.np.matmul(q, k.swapaxes(2, 3)) / q.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    if causal:
        order = mx.np.arange(q.shape[2]).reshape(-1, 1) >= mx.np.arange(k.shape[2])  # (Q, K)
        scores = scores + (1 - order.astype(q.dtype)) * -1e30
    scores = scores if mask is None else scores + (1 - mask.astype(q.dtype)) * -1e30
    return mx.np.matmul(mx.npx.softmax(scores, axis=axis), v)


RIGHT = {"steps": Kernel(steps, empty_rows=False, takes=("mask", "bias", "causal"))}


# Wrong ones


def tiled(X, times, axis):
    return mx.np.concatenate([X] * times, axis=axis)


WRONG = {
    "the softmax is over queries": Kernel(
        lambda q, k, v: steps(q, k, v, axis=-2), known="the softmax is over another axis"
    ),
    "heads of keys are tiled, not repeated": Kernel(
        lambda q, k, v: steps(q, k, v, repeat=tiled), known="heads of keys are tiled, not repeated"
    ),
    "the mask is ignored": Kernel(lambda q, k, v, mask: steps(q, k, v), known="the mask is ignored", empty_rows=False),
}
