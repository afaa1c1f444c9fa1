"""A cache under each framework's own compiler: no token is compiled anew, and what overflows is not a number."""

import numpy as np
import pytest

import mha

B, T, D, H = 2, 6, 24, 4
OPTIONS = {"rotary": mha.Rotary(4), "num_key_value_heads": 2, "seed": 3}
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def steps(backend, compiled):
    """Decode one token after the other, until the cache is full and once more; check each, return what is counted."""
    attention = mha.MultiHeadAttention(D, H, backend=backend, **OPTIONS)
    step, counted = compiled(attention)
    expected, cache, after = attention(X, X, X, causal=True), attention.cache(B, T), []
    for t in range(T):
        output, cache = step(mha.tensor(X[:, t : t + 1], backend=backend), cache)
        np.testing.assert_allclose(mha.to_numpy(output)[:, 0], expected[:, t], rtol=0, atol=1e-5)
        after.append(len(counted))
    valid_lens = mha.tensor(np.array([1, 0], "int32"), backend=backend)
    output, cache = step(mha.tensor(X[:, :1], backend=backend), cache, valid_lens)
    assert np.isnan(mha.to_numpy(output)[0]).all()  # which has lost its first token
    assert (mha.to_numpy(output)[1] == 0).all()  # whose token is padding
    assert mha.to_numpy(cache.lengths).tolist() == [T + 1, T]
    output, cache = step(
        mha.tensor(X[:, :1], backend=backend), cache, mha.tensor(np.zeros(2, "int32"), backend=backend)
    )
    assert np.isnan(mha.to_numpy(output)[0]).all()
    assert not np.isnan(mha.to_numpy(output)[1]).any()
    return after


@pytest.mark.backends("jax")
def test_jit_and_scan(backend):
    import jax

    def compiled(attention):
        (module, variables), counted = attention.layer.unbind(), []

        def step(variables, x, cache, valid_lens=None):
            counted.append(x)
            return module.apply(variables, x, x, x, valid_lens, causal=True, cache=cache)

        once = jax.jit(step)
        return lambda *arguments: once(variables, *arguments), counted

    assert steps(backend, compiled) == [1] * T
    attention = mha.MultiHeadAttention(D, H, backend=backend, **OPTIONS)
    module, variables = attention.layer.unbind()

    def body(cache, x):
        output, cache = module.apply(variables, x, x, x, causal=True, cache=cache)
        return cache, output

    tokens = mha.tensor(np.ascontiguousarray(X.swapaxes(0, 1)[:, :, None]), backend=backend)  # (T, B, 1, D)
    cache, outputs = jax.lax.scan(body, attention.cache(B, T), tokens)
    expected = attention(X, X, X, causal=True)
    np.testing.assert_allclose(np.asarray(outputs)[:, :, 0].swapaxes(0, 1), expected, rtol=0, atol=1e-5)
    assert mha.to_numpy(cache.positions).tolist() == [[*range(T)]] * B


@pytest.mark.backends("tensorflow")
def test_function(backend):
    import tensorflow as tf

    def compiled(attention):
        counted = []

        @tf.function
        def step(x, cache, valid_lens=None):
            counted.append(x)
            return attention.layer(x, x, x, valid_lens, causal=True, cache=cache)

        return step, counted

    assert steps(backend, compiled) == [1] * T


@pytest.mark.backends("torch")
def test_compile(backend):
    import torch

    def compiled(attention):
        counted = []

        def counting(graph, inputs):
            counted.append(graph)
            return graph.forward

        def step(x, cache, valid_lens=None):
            return attention.layer(x, x, x, valid_lens, causal=True, cache=cache)

        once = torch.compile(step, backend=counting, fullgraph=True)
        return torch.no_grad()(once), counted

    # The first cache is made by other operations than those after it.
    assert steps(backend, compiled) == [1] + [2] * (T - 1)


@pytest.mark.backends("torch")
def test_compile_writes_in_place(backend):
    import torch

    attention = mha.MultiHeadAttention(D, H, window=(2, 0), backend=backend, **OPTIONS)
    rows, expected = X.copy(), attention(X, X, X, causal=True)
    rows[:, 0], expected[:, :3] = np.nan, np.nan  # beyond the window it does not matter

    @torch.compile(backend="eager", fullgraph=True)
    def step(x, cache, **call):
        return attention.layer(x, x, x, causal=True, cache=cache, **call)

    with torch.no_grad():
        cache = attention.cache(B, T)
        for t in range(T):
            before, keys = cache, cache.keys
            output, cache = step(torch.tensor(rows[:, t : t + 1]), before)
            assert cache.keys is keys
            assert repr(before) == "Cache(used up)"
            np.testing.assert_allclose(output[:, 0], expected[:, t], rtol=0, atol=1e-5)
    # What gradients need is not written over.
    cache, x = attention.cache(B, T), torch.tensor(X[:, :1], requires_grad=True)
    keys = cache.keys
    output, _ = step(x, cache)
    output.sum().backward()
    assert x.grad.abs().sum() > 0
    assert not keys.any()
