"""Our own layers, without the `mha` layer around them: `attention.layer`, and those of `mha.d2l` but on JAX."""

import numpy as np

import mha
from mha.core import dispatch
from mha.core.call import Call, check


def new(backend="numpy"):
    return mha.MultiHeadAttention(6, 2, backend=backend).layer


def run(layer, call):
    backend = dispatch.load("jax" if hasattr(layer, "scope") else dispatch.backend_of(layer) or "numpy")
    *inputs, cotangent = (backend.tensor(X) for X in (*call.inputs, call.cotangent))
    lengths, mask = (None if X is None else backend.tensor(X) for X in (call.valid_lens, call.mask))
    given = Call(lengths, mask, causal=call.causal, training=call.training, return_weights=True)
    output, shares = backend.attend(layer, *inputs, given)
    checked = check(backend, layer, *inputs, given._replace(training=False, return_weights=False))
    by_all = backend.vjp(layer, *inputs, checked)[1](cotangent)
    return {name: np.array(backend.to_numpy(X)) for name, X in ({"output": output, "weights": shares} | by_all).items()}
