"""`mha bench`, one token: all that is measured computes the same, from the same cache; how fast is not tested."""

import functools

import adapters
import numpy as np
import pytest

import mha
from mha.bench import cases, decoding, worker
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE


@pytest.mark.long("jax")
@pytest.mark.parametrize("G", [None, pytest.param(2, marks=pytest.mark.long(*adapters.COMPILED, "torch"))])
def test_every_implementation_decodes_the_same(backend, monkeypatch, G):
    monkeypatch.setattr(decoding, "MORE", 3)  # it begins again in between
    shape = Shape("decoding", 2, 7, 24, 4, causal=True, G=G, decodes=True)
    attention = shape.layer("numpy")
    if backend == "torch":  # its own compiler needs another one
        module = worker._module(backend)
        monkeypatch.setattr(module.torch, "compile", functools.partial(module.torch.compile, backend="eager"))
    steps = {name: one.make() for name, one in worker._make_all(backend, shape, "decoding").items()}
    keys, values = (X[:, :, :7] for X in decoding.heads(shape))
    W, x = attention.weights, np.repeat(shape.inputs(), 3, 1)
    k, v = ((x @ W[f"W_{one}.kernel"]).reshape(2, 3, G or 4, 6).swapaxes(1, 2) for one in "kv")
    q = (x @ W["W_q.kernel"]).reshape(2, 3, 4, 6).swapaxes(1, 2)
    k, v = (np.repeat(np.concatenate(both, 2), 4 // (G or 4), 1) for both in ((keys, k), (values, v)))
    scores = np.where(np.arange(10) <= 7 + np.arange(3)[:, None], q @ k.swapaxes(2, 3) / 6**0.5, -np.inf)
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = (shares @ v).swapaxes(1, 2).reshape(2, 3, 24) @ W["W_o.kernel"]
    first = adapters.COMPILED.count(backend) + (backend == "torch")  # the call that compiles comes before
    for number in range(first, first + 5):
        for name, step in steps.items():
            output = step().output
            assert (output is None) == (name == "the products alone")
            if output is not None:
                np.testing.assert_allclose(mha.to_numpy(output)[:, 0], expected[:, number % 3], rtol=0, atol=2e-5)
    roles = worker.implementations(backend, "decoding")["roles"]
    assert set(roles) == {name for name, shape in cases.SHAPES.items() if shape.decodes}
    for shape in roles.values():
        assert next(iter(shape)) == REFERENCE
        assert shape["attention(...)"] == "call"
