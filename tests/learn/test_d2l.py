"""The book's names: its code runs as printed, in both editions' argument orders, with the numbers of `mha`."""

import concurrent.futures
import functools
import gc
import weakref

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.call import Call
from mha.core.options.config import Config

B, Q, K, H, d = 2, 3, 5, 7, 11
D = H * d
LENGTHS = {"none": None, "per sample": np.array([4, 0]), "per query": np.array([[1, 9, 0], [5, 2, 3]])}


def draw(backend, rng, *shapes):
    """Random arrays of the backend's."""
    return adapters.of(backend).own(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


# The book's code


# How each section of the book calls a layer, without dropout.
CALLS = {
    "torch": lambda d2l, attention, *inputs: attention.eval()(*inputs),
    "tensorflow": lambda d2l, attention, *inputs: attention(*inputs, training=False),
    "jax": lambda d2l, attention, *inputs: attention.init_with_output(d2l.get_key(), *inputs, training=False)[0],
    "mxnet": lambda d2l, attention, *inputs: attention.initialize() or attention(*inputs),
}


def test_the_books_script_runs(backend, d2l):
    valid_lens = d2l.tensor([3, 2])
    X, Y = d2l.ones((2, 4, 100)), d2l.ones((2, 6, 100))
    for attention in (d2l.MultiHeadAttention(100, 100, 100, 100, 5, 0.5), d2l.MultiHeadAttention(100, 5, 0.5)):
        output = CALLS[backend](d2l, attention, X, Y, Y, valid_lens)
        output, weights = output if backend == "jax" else (output, attention.attention.attention_weights)
        d2l.check_shape(output, (2, 4, 100))
        d2l.check_shape(weights, (10, 4, 6))


# Editions


def test_both_editions_make_the_same_layer(backend, d2l):
    bias = {adapters.of(backend).bias: True}
    second = Config(D, H, 0.5, True)
    assert d2l.MultiHeadAttention(D, H, 0.5).config == Config(D, H, 0.5)
    assert d2l.MultiHeadAttention(D, H, 0.5, True).config == second
    assert d2l.MultiHeadAttention(D, num_heads=H, dropout=0.5, **bias).config == second
    assert d2l.MultiHeadAttention(D, D, D, D, H, 0.5, True).config == second
    first = Config(D, H, 0.5, True, key_size=13, query_size=17, value_size=19)
    assert d2l.MultiHeadAttention(13, 17, 19, D, H, 0.5, True).config == first
    assert d2l.MultiHeadAttention(13, 17, 19, num_hiddens=D, num_heads=H, dropout=0.5, **bias).config == first
    named = {"key_size": 13, "query_size": 17, "value_size": 19, "num_hiddens": D, "num_heads": H, "dropout": 0.5}
    attention = d2l.MultiHeadAttention(**named, **bias)
    assert attention.config == first
    assert attention.num_heads == H


def test_arguments_of_no_edition_are_refused(backend, d2l):
    other = {"bias" if adapters.of(backend).bias == "use_bias" else "use_bias": True}
    for arguments, options in (((D, H, 0.5), other), ((D, H), {}), ((D, D, D, D, H), {}), ((D,) * 8, {})):
        with pytest.raises(TypeError, match=r"got MultiHeadAttention\(.*expected .*\(num_hiddens, num_heads, dropout"):
            d2l.MultiHeadAttention(*arguments, **options)
    with pytest.raises(ValueError, match="num_hiddens is 10, expected a multiple of num_heads = 3"):
        d2l.MultiHeadAttention(10, 3, 0.5)
    with pytest.raises(
        TypeError, match=r"got AdditiveAttention\(8\), expected AdditiveAttention\(num_hiddens, dropout\)"
    ):
        d2l.AdditiveAttention(8)
    for make in (d2l.DotProductAttention, functools.partial(d2l.AdditiveAttention, 8)):
        with pytest.raises(ValueError, match=r"dropout is 1.5, expected a float in \[0, 1\)"):
            make(1.5)
    with pytest.raises(ValueError, match="key_size is 0, expected at least 1"):
        d2l.AdditiveAttention(0, 2, 8, 0.5)


@pytest.mark.backends("torch", "tensorflow", "mxnet")
def test_the_layer_that_keeps_weights_pools_as_in_the_book(backend, d2l):
    config = Config(D, H, pooling="additive")  # as another program's Keras might tell
    with pytest.raises(TypeError, match=r"got MultiHeadAttention|pooling is AdditiveAttention, expected DotProduct"):
        d2l.MultiHeadAttention(config=config)


# The layer


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_layer_gives_the_numbers_of_mha(backend, d2l, rng, lengths):
    module, framework, lesson = dispatch.load(backend), adapters.of(backend), dispatch.lesson(backend)
    reference = mha.MultiHeadAttention(D, H, 0.5, True, seed=3, backend=backend)
    (*inputs, valid_lens) = (*draw(backend, rng, (B, Q, D), (B, K, D), (B, K, D)), *framework.own(LENGTHS[lengths]))
    attention = framework.start(d2l.MultiHeadAttention(D, H, 0.5, True), *inputs, valid_lens)
    attention = module.set_weights(attention, reference.weights)
    output, attention_weights = framework.call_book(attention, *inputs, valid_lens)

    # The lesson's layer rather than that of `reference`, which some backends compile as a whole: that rounds otherwise.
    plain = lesson.build(reference.config, reference.weights, 0, lesson.MultiHeadAttention)
    call = Call(valid_lens, training=False)
    expected, expected_weights = lesson.attend(plain, *inputs, call._replace(return_weights=True))
    np.testing.assert_array_equal(mha.to_numpy(output), mha.to_numpy(expected))
    d2l.check_shape(attention_weights, (B * H, Q, K))
    np.testing.assert_array_equal(mha.to_numpy(attention_weights).reshape(B, H, Q, K), mha.to_numpy(expected_weights))
    output = module.attend(attention, *inputs, call)
    assert parity.ratio(reference, output, *inputs, valid_lens) <= 1
    for name, array in module.get_weights(attention).items():
        np.testing.assert_array_equal(array, reference.weights[name])
    if lengths == "per query":
        assert not mha.to_numpy(attention_weights)[:H, 2].any()


def test_dropout_is_on_in_training_alone(backend, d2l, rng):
    X, Y = draw(backend, rng, (B, Q, D), (B, K, D))
    framework = adapters.of(backend)
    attention = framework.start(d2l.MultiHeadAttention(D, H, 0.5), X, Y, Y, None)
    evaluated, attention_weights = framework.call_book(attention, X, Y, Y, None)
    again, _ = framework.call_book(attention, X, Y, Y, None)
    trained, weights_in_training = framework.call_book(attention, X, Y, Y, None, training=True)
    np.testing.assert_array_equal(mha.to_numpy(again), mha.to_numpy(evaluated))
    assert not np.array_equal(mha.to_numpy(trained), mha.to_numpy(evaluated))
    np.testing.assert_array_equal(mha.to_numpy(weights_in_training), mha.to_numpy(attention_weights))


def test_a_framework_makes_its_layer_again(backend, d2l, rng, tmp_path):
    X, Y = draw(backend, rng, (B, Q, D), (B, K, D))
    framework = adapters.of(backend)
    attention = framework.start(d2l.MultiHeadAttention(D, H, 0.5), X, Y, Y, None)
    again = framework.make_again(d2l, attention, tmp_path)
    assert isinstance(again, d2l.MultiHeadAttention)
    assert again.config == attention.config
    for result, expected in zip(
        *(framework.call_book(each, X, Y, Y, None) for each in (again, attention)), strict=True
    ):
        np.testing.assert_array_equal(mha.to_numpy(result), mha.to_numpy(expected))


# The attention weights that a layer or a pooling keeps for the thread that called. Flax keeps nothing: it returns them.

KEPT = pytest.mark.backends("torch", "tensorflow", "mxnet")
KINDS = {
    "layer": lambda d2l: d2l.MultiHeadAttention(D, H, 0.5),
    "pooling": lambda d2l: d2l.AdditiveAttention(13, 0.5),
}


def keeps(made):
    return hasattr(getattr(made, "attention", made), "attention_weights")


@pytest.mark.backends("jax")
@pytest.mark.parametrize("kind", KINDS)
def test_modules_of_flax_keep_no_weights(d2l, rng, kind):
    (X,) = draw("jax", rng, (B, Q, D))
    assert not keeps(adapters.of("jax").start(KINDS[kind](d2l), X, X, X))


@KEPT
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_kept_for_the_thread_that_called(backend, d2l, rng, kind):
    (X,) = draw(backend, rng, (B, Q, D))
    made, framework = KINDS[kind](d2l), adapters.of(backend)
    assert not keeps(made)
    with pytest.raises(
        AttributeError, match="attention_weights are kept after a call, but this thread has made no call"
    ):
        adapters.attention_weights(made)

    def elsewhere():
        before = keeps(made)
        with dispatch.load(backend).context("float32"):
            framework.call_book(made, X, X, X)
        theirs = adapters.attention_weights(made)
        return before, theirs.shape[1:], weakref.ref(theirs)

    _, kept = framework.call_book(framework.start(made, X, X, X), X, X, X)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before, shape, theirs = pool.submit(elsewhere).result()
    assert (before, shape) == (False, (Q, Q))
    assert adapters.attention_weights(made) is kept
    gc.collect()
    assert theirs() is None  # nothing of a dead thread's stays


# Keras converts its variables in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_copy_keeps_no_weights_of_its_own_yet(backend, d2l, rng, tmp_path):
    (X,) = draw(backend, rng, (B, Q, D))
    framework = adapters.of(backend)
    attention = framework.start(d2l.MultiHeadAttention(D, H, 0.5), X, X, X)
    expected = [mha.to_numpy(result) for result in framework.call_book(attention, X, X, X)]
    for twin in framework.copies(attention, tmp_path):
        assert type(twin) is type(attention)
        assert not keeps(twin)
        for result, number in zip(framework.call_book(twin, X, X, X), expected, strict=True):
            np.testing.assert_array_equal(mha.to_numpy(result), number)


def test_a_compiled_layer_tells_its_weights(backend, d2l, rng):
    X, Y = draw(backend, rng, (B, Q, D), (B, Q, D))
    framework = adapters.of(backend)
    attention = framework.start(d2l.MultiHeadAttention(D, H, 0.5), X, X, X)
    expected = [[mha.to_numpy(each) for each in framework.call_book(attention, Z, Z, Z)] for Z in (X, Y)]
    compiled = framework.compile_book(attention)
    for Z, results in zip((X, Y), expected, strict=True):
        for ours, theirs in zip(map(mha.to_numpy, compiled(Z, Z, Z)), results, strict=True):
            assert parity.error(ours, theirs) <= parity.bound("float32", theirs, theirs)
