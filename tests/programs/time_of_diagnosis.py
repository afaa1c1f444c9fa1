"""Measure how long a diagnosis takes, with known and unknown mistakes: `python tests/programs/time_of_diagnosis.py`.

Seconds of work are those of all cores together. Other programs make them more: BLAS waits for its threads at work.
"""

import os
import time

import numpy as np

import mha
from mha import parity

SIZES = ((4, 64, 256, 8), (2, 512, 1024, 16))  # batch, tokens, features, heads


def theirs_of(D, H, X):
    """A layer, and by words what others have computed with its weights: outputs, and gradients beside a right one."""
    layer = mha.MultiHeadAttention(D, H, seed=0, backend="numpy")
    weights = layer.weights
    noise = np.random.default_rng(1).normal(1, 0.3, (D, D)).astype("float32")

    def with_weights(scale=None, **changed):
        other = mha.MultiHeadAttention(D, H, seed=0, scale=scale, backend="numpy")
        other.weights = weights | {f"{name}.kernel": kernel for name, kernel in changed.items()}
        return other

    transposed, noisy = weights["W_k.kernel"].T.copy(), with_weights(W_q=weights["W_q.kernel"] * noise)
    right = layer.gradients(X, X, X, causal=True)
    one = right | {"W_k.kernel": np.zeros((D, D), "float32")}
    gradients = {
        "one mistake": one,
        "two": one | {"W_o.kernel": right["W_o.kernel"].T.copy()},
        "unknown": noisy.gradients(X, X, X, causal=True),
    }
    outputs = {
        "one mistake": with_weights(W_k=transposed),
        "two": with_weights(1.0, W_k=transposed),
        "unknown": noisy,
    }
    output = {"output": layer(X, X, X, causal=True)}
    return layer, {
        **{f"output, {what}": wrong(X, X, X, causal=True) for what, wrong in outputs.items()},
        **{f"gradients, {what}": output | wrong for what, wrong in gradients.items()},
    }


for B, T, D, H in SIZES:
    X = np.random.default_rng(2).normal(size=(B, T, D)).astype("float32")
    layer, all_theirs = theirs_of(D, H, X)
    for what, theirs in all_theirs.items():
        begin, work = time.monotonic(), time.process_time()
        diagnosis = parity.diagnose(layer, theirs, X, X, X, causal=True)
        work, wall = time.process_time() - work, time.monotonic() - begin
        found = "; ".join(diagnosis.mistakes) or "unknown"
        load = os.getloadavg()[0]
        print(f"{(B, T, D, H)}, {what}: {work:.1f} s of work, {wall:.1f} s, load {load:.1f}: {found}", flush=True)
