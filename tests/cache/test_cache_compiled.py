"""A cache under each framework's own compiler: no token is compiled anew, and what overflows is not a number."""

import ml_dtypes
import numpy as np
import pytest

import mha
from mha.core.call import Call
from mha.core.options.config import numpy_dtype

B, T, D, H = 2, 6, 24, 4
OPTIONS = {"rotary": mha.Rotary(4), "num_key_value_heads": 2, "seed": 3}
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def whole(**options):
    """The output of one causal call, of NumPy."""
    return mha.MultiHeadAttention(D, H, backend="numpy", **options)(X, X, X, causal=True)


def steps(backend, compiled, **options):
    """Decode one token after the other, until the cache is full and once more; check each, return what is counted."""
    attention = mha.MultiHeadAttention(D, H, backend=backend, **OPTIONS | options)
    step, counted = compiled(attention)
    expected, cache, after = whole(**OPTIONS), attention.cache(B, T), []
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
@pytest.mark.parametrize("readable", [False, pytest.param(True, marks=pytest.mark.long("jax"))])
def test_jit_and_scan(backend, readable):
    import jax

    def compiled(attention):
        (module, variables), counted = attention.layer.unbind(), []

        def step(variables, x, cache, valid_lens=None):
            counted.append(x)
            return module.apply(variables, x, x, x, valid_lens, causal=True, cache=cache)

        once = jax.jit(step)
        return lambda *arguments: once(variables, *arguments), counted

    assert steps(backend, compiled, readable=readable) == [1] * T
    attention = mha.MultiHeadAttention(D, H, backend=backend, readable=readable, **OPTIONS)
    module, variables = attention.layer.unbind()

    def body(cache, x):
        output, cache = module.apply(variables, x, x, x, causal=True, cache=cache)
        return cache, output

    tokens = mha.tensor(np.ascontiguousarray(X.swapaxes(0, 1)[:, :, None]), backend=backend)  # (T, B, 1, D)
    cache, outputs = jax.lax.scan(body, attention.cache(B, T), tokens)
    np.testing.assert_allclose(np.asarray(outputs)[:, :, 0].swapaxes(0, 1), whole(**OPTIONS), rtol=0, atol=1e-5)
    assert mha.to_numpy(cache.positions).tolist() == [[*range(T)]] * B
    beams = jax.jit(lambda cache, rows: cache.reorder(rows))(cache, np.array([1, 1, 0]))
    np.testing.assert_array_equal(beams.values, np.asarray(cache.values)[[1, 1, 0]])


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.long("tensorflow"))])
def test_function(backend, xla):
    import tensorflow as tf

    def compiled(attention):
        counted = []

        @tf.function(jit_compile=xla)
        def step(x, cache, valid_lens=None):
            counted.append(x)
            return attention.layer(x, x, x, valid_lens, causal=True, cache=cache)

        return step, counted

    assert steps(backend, compiled) == [1] * T


KINDS = {
    "grouped and turned": {"rotary": mha.Rotary(4), "num_key_value_heads": 2, "bias": True},
    "a ring": {"window": (2, None), "qk_norm": "rms", "softcap": 5.0, "sinks": True, "output_gate": "head"},
    "a ring that sees ahead": {"window": (2, 1), "num_key_value_heads": 1},
    "additive": {"pooling": "additive", "output_gate": "element"},
}


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "options", [next(iter(KINDS)), *(pytest.param(name, marks=pytest.mark.long("tensorflow")) for name in [*KINDS][1:])]
)
def test_portions_inside_a_function(backend, options):
    import tensorflow as tf

    attention = mha.MultiHeadAttention(D, H, backend=backend, seed=3, **KINDS[options])
    window = "window" in KINDS[options]

    @tf.function(reduce_retracing=True)
    def step(x, cache, **given):
        return attention.layer(x, x, x, causal=True, cache=cache, **given)

    cache, expected = attention.cache(B, None if window else T), whole(seed=3, **KINDS[options])
    first = 0
    for count in (2, 3, 1):
        x = tf.constant(X[:, first : first + count])
        given = {} if window else {"mask": tf.ones((B, 1, count, T), tf.bool)}
        output, cache = step(x, cache, **given)
        np.testing.assert_allclose(output, expected[:, first : first + count], rtol=0, atol=1e-5)
        first += count
    assert int(cache.lengths[0]) == T


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_a_loop_inside_a_function_writes_over_what_is_no_number(backend, dtype):
    import tensorflow as tf

    attention = mha.MultiHeadAttention(D, H, dtype=dtype, window=(1, None), seed=3, backend=backend)
    tokens = X.swapaxes(0, 1)[:, :, None].astype(numpy_dtype(dtype))  # (T, B, 1, D)
    tokens[0] = np.nan
    tokens, cache, expected = tf.constant(tokens), attention.cache(B), []

    @tf.function
    def decode(cache):
        outputs = tf.TensorArray(tokens.dtype, T)
        for t in tf.range(T):
            output, cache = attention.layer(tokens[t], tokens[t], tokens[t], causal=True, cache=cache)
            outputs = outputs.write(t, output)
        return outputs.stack(), cache

    outputs, after = decode(cache)
    assert not cache.keys.numpy().any()  # which is still what it was
    for x in tokens:
        output, cache = attention(x, x, x, causal=True, cache=cache)
        expected.append(mha.to_numpy(output).astype("float64"))
    outputs, limit = mha.to_numpy(outputs).astype("float64"), 8 * float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)
    assert np.isnan(outputs[:2]).all()
    np.testing.assert_allclose(outputs[2:], expected[2:], rtol=0, atol=limit)
    assert mha.to_numpy(after.positions).tolist() == mha.to_numpy(cache.positions).tolist() == [[4, 5]] * B


@pytest.mark.backends("tensorflow")
def test_what_a_function_gives_is_not_written(backend):
    import tensorflow as tf

    attention = mha.MultiHeadAttention(D, H, backend=backend)
    start, x = tf.function(lambda: attention.cache(B, T)), tf.constant(X[:, :1])
    for _ in range(2):
        cache = start()  # the constants of the function itself
        assert not cache.keys.numpy().any()
        _, after = attention(x, x, x, causal=True, cache=cache)
        assert after.keys.numpy().any()


@pytest.mark.backends("torch")
@pytest.mark.long("torch")
def test_compile(backend):
    import torch

    def compiled(attention):
        counted = []

        def counting(graph, inputs):
            counted.append(graph)
            return graph.forward

        def step(x, cache, valid_lens=None):
            return attention.layer(x, x, x, valid_lens, causal=True, cache=cache)

        torch.compiler.reset()  # which remembers what changed in calls before
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


@pytest.mark.backends("torch")
@pytest.mark.parametrize("window", [None, (2, None), (5, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_slot_of_one_token_is_that_of_any_number(rng, window, masked):
    """Seven samples whose tokens skip positions, go back, or are padding, in a ring of four slots."""
    import torch

    from mha.backends.torch.engine.decoding import slot_of_one
    from mha.backends.torch.slots import slots_after

    B, S = 7, 4
    attention = mha.MultiHeadAttention(4, 2, window=window, backend="torch")
    cache = attention.cache(B, S)
    for _ in range(17):
        newest = cache.positions.amax(1)
        new = newest + torch.tensor(rng.choice([1, 1, 1, 2, 4, 0], B))
        new = torch.where(torch.tensor(rng.random(B) < 0.3), -1, new)[:, None]  # (B, 1)
        call = Call(key_positions=new, mask=torch.ones(1, S, dtype=torch.bool) if masked else None)
        call = call.with_plan(window=window)
        _, slots, expected = slots_after(*cache.arrays()[2:], call)
        there, found = slot_of_one(cache, call)
        real = new[:, 0] >= 0
        assert torch.equal(there[real], slots[:, S][real])
        assert all(torch.equal(X, Y) for X, Y in zip(found, expected, strict=True))
        assert [X.dtype for X in found] == [torch.int32] * 3
        cache = cache.after(cache.keys, cache.values, *found)
    assert (cache.lost >= 0).any()


@pytest.mark.backends("mlx")
def test_mlx_compiles_a_step_once(backend):
    """The arrays of a cache go in and come out: a step is compiled once, as where a token is is an array, too."""
    import mlx.core as mx

    attention, traced = mha.MultiHeadAttention(D, H, window=(2, 0), backend=backend, **OPTIONS), []

    @mx.compile
    def step(x, arrays):
        traced.append(x.shape)
        output, cache = attention.layer(x, x, x, causal=True, cache=mha.Cache(attention.config, arrays))
        return output, cache.arrays()

    expected, arrays = attention(X, X, X, causal=True), attention.cache(B, 3).arrays()
    for t in range(T):
        output, arrays = step(mx.array(X[:, t : t + 1]), arrays)
        np.testing.assert_allclose(mha.to_numpy(output)[:, 0], expected[:, t], rtol=0, atol=1e-5)
    assert traced == [(B, 1, X.shape[2])]


@pytest.mark.backends("mlx")
def test_mlx_gives_no_number_for_what_is_lost(backend):
    import mlx.core as mx

    attention = mha.MultiHeadAttention(D, H, backend=backend, **OPTIONS)
    arrays, outputs = attention.cache(B, 3).arrays(), []

    @mx.compile
    def step(x, arrays):
        output, cache = attention.layer(x, x, x, causal=True, cache=mha.Cache(attention.config, arrays))
        return output, cache.arrays()

    for t in range(5):  # the fourth takes the place of the first, which it would see
        output, arrays = step(mx.array(X[:, t : t + 1]), arrays)
        outputs.append(np.isnan(mha.to_numpy(output)).all())
    assert outputs == [False, False, False, True, True]
