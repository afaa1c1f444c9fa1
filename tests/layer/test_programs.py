"""How many programs the frameworks compile: for kinds of calls, not for each of their sizes or lengths."""

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch

LENGTHS = range(1, 9)


def check(called, attention, X, lengths, **options):
    """Whether the compiled call gives the numbers of the oracle."""
    output = mha.to_numpy(called(X, lengths))
    numpy, wide = attention.to("numpy"), X.astype("float64")
    base = numpy(X, X, X, lengths, **options)
    oracle = parity.in_dtype(numpy, "float64")(wide, wide, wide, lengths, **options)
    assert parity.error(output, oracle) <= parity.bound("float32", oracle, base)


@pytest.mark.backends("jax")
def test_lengths_compile_nothing_new_in_jax(backend, rng):
    import jax

    attention = mha.MultiHeadAttention(12, 3, backend=backend)
    X = rng.normal(size=(2, 8, 12)).astype("float32")
    called = jax.jit(lambda X, lengths: attention.layer(X, X, X, lengths))
    for longest in LENGTHS:
        check(called, attention, X, np.array([longest, 3], "int32"))
    assert called._cache_size() == 1


@pytest.fixture
def plans():
    """What JAX remembers of calls; nothing at first."""
    from mha.backends.jax.engine import calls

    calls.PLANS.clear()
    return calls.PLANS


@pytest.mark.backends("jax")
@pytest.mark.parametrize("kind", ["numpy", "own"])
def test_offsets_compile_nothing_new_in_jax(backend, rng, plans, kind):
    attention = mha.MultiHeadAttention(12, 3, window=(2, 0), rotary=mha.Rotary(), backend=backend)
    X, programs = rng.normal(size=(2, 8, 12)).astype("float32"), set()
    (own,) = [X] if kind == "numpy" else adapters.of(backend).own(X)
    for offset in (1, 2, 5, -3):
        options = {"causal": True, "offset": offset}
        check(lambda _, lengths: attention(own, own, own, lengths, **options), attention, X, None, **options)  # noqa: B023
        programs |= {program._cache_size() for program, _ in plans.values()}
    assert len(plans) == len(programs) == 1


@pytest.mark.backends("jax")
def test_lengths_that_were_seen_count_for_other_keys(backend, rng, plans):
    """An array of JAX does not change, and is looked at once; what a compiler will know is not."""
    import jax

    attention, X = mha.MultiHeadAttention(12, 3, backend=backend), rng.normal(size=(2, 8, 12)).astype("float32")
    lengths, wide = adapters.of(backend).own(np.array([3, 6], "int32"), np.array([3, 2**32 - 1], "uint32"))
    for num_keys in (8, 8, 8, 5, 5):
        keys, numpy = X[:, :num_keys], attention.to("numpy")
        expected = numpy(X, keys, keys, np.minimum([3, 6], num_keys))
        for found in (attention(X, keys, keys, lengths), attention(X, keys, keys, np.array([3, 6], "int8"))):
            assert parity.error(found, expected) <= parity.bound("float32", expected, expected)
    own, negative = adapters.of(backend).own(X, np.array([3, -6], "int32"))
    for _ in range(2):
        attention(own, own, own, lengths)
    with pytest.raises(ValueError, match="valid_lens holds -6, expected 0 or more"):
        attention(own, own, own, negative)
    twice = jax.jit(lambda X, lengths: attention(X, X, X, lengths) + attention(X, X, X, lengths))
    expected = 2 * numpy(X, X, X, [3, 8])
    assert parity.error(mha.to_numpy(twice(X, wide)), expected) <= parity.bound("float32", expected, expected)
    assert len(plans) == 6


@pytest.mark.backends("jax")
def test_lengths_of_64_bits_and_of_more_keys(backend, rng, plans):
    attention, X = mha.MultiHeadAttention(12, 3, dtype="float64", backend=backend), rng.normal(size=(2, 600, 12))
    with dispatch.load(backend).context("float64"):
        (lengths,) = adapters.of(backend).own(np.array([300, 6]))
    expected = attention.to("numpy")(X[:, :2], X, X, [300, 6])
    for _ in range(2):
        found = attention(X[:, :2], X, X, lengths)
        assert parity.error(found, expected) <= parity.bound("float64", expected, expected)


@pytest.mark.backends("jax")
def test_a_number_is_no_switch_after_a_call_with_one(backend, plans):
    attention, (X,) = mha.MultiHeadAttention(12, 3, backend=backend), adapters.of(backend).own(np.ones((2, 8, 12), "f"))
    attention(X, X, X, causal=True)
    with pytest.raises(TypeError, match=r"causal is 1 \(int\), expected True or False"):
        attention(X, X, X, causal=1)


@pytest.mark.backends("jax")
def test_only_so_many_calls_are_remembered_in_jax(backend, rng, plans, monkeypatch):
    from mha.backends.jax.engine import calls

    monkeypatch.setattr(calls, "MOST", 2)
    attention, X = mha.MultiHeadAttention(12, 3, backend=backend), rng.normal(size=(2, 8, 12)).astype("float32")
    expected = attention(X, X, X)
    for num_queries in (1, 2, 3, 1):
        found, wanted = attention(X[:, :num_queries], X, X), expected[:, :num_queries]
        assert parity.error(found, wanted) <= parity.bound("float32", wanted, wanted)
        assert len(plans) <= 2


@pytest.mark.backends("tensorflow")
def test_sizes_compile_nothing_new_in_tensorflow(backend, rng):
    import tensorflow as tf

    attention = mha.MultiHeadAttention(12, 3, backend=backend)
    signature = [tf.TensorSpec((None, None, 12)), tf.TensorSpec((None,), tf.int32)]
    called = tf.function(lambda X, lengths: attention.layer(X, X, X, lengths), input_signature=signature)
    for longest in LENGTHS:
        check(
            called, attention, rng.normal(size=(2, longest + 3, 12)).astype("float32"), np.array([longest, 3], "int32")
        )
    assert called.experimental_get_tracing_count() == 1


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["dot", pytest.param("additive", marks=pytest.mark.long("torch"))])
@pytest.mark.parametrize(
    "hiding", ["lengths", *(pytest.param(name, marks=pytest.mark.long("torch")) for name in ("nothing", "causal"))]
)
def test_any_sizes_are_three_programs_of_torch(backend, rng, pooling, hiding):
    """Whatever the sizes are: one program for the first, one for another length, one for another number of samples."""
    import torch

    programs = []

    def kept(program, inputs):
        programs.append(program)
        return program

    torch.compiler.reset()  # or the versions that earlier tests compiled count against torch's limit
    attention = mha.MultiHeadAttention(12, 3, pooling=pooling, backend=backend)
    compiled = torch.compile(attention.layer, backend=kept)
    for B, T in ((2, 5), (2, 7), (3, 7), (3, 11), (5, 13), (5, 4), (2, 31), (7, 19)):
        X = rng.normal(size=(B, T, 12)).astype("float32")
        lengths = np.arange(B) % T if hiding == "lengths" else None

        def called(X, lengths):
            X, lengths = (None if array is None else torch.tensor(array) for array in (X, lengths))
            return compiled(X, X, X, lengths, causal=hiding == "causal")

        check(called, attention, X, lengths, causal=hiding == "causal")
    assert len(programs) <= 3
