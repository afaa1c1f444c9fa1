"""The book's names: its code runs as printed, in both editions' argument orders, with the numbers of `mha`.

NumPy has no tab in the book; there, each test is that `mha.d2l` has none either.
"""

import ast
import concurrent.futures
import contextlib
import copy
import functools
import gc
import importlib
import importlib.util
import pickle
import random
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import mha
from mha import dispatch, parity
from mha.backends import numpy as oracle_tab
from mha.config import Config

TABS = ("torch", "tensorflow", "jax", "mxnet")
B, Q, K, H, d, dv = 2, 3, 5, 7, 11, 23
D = H * d
LENGTHS = {"none": None, "per sample": [4, 0], "per query": [[1, 9, 0], [5, 2, 3]]}


def on_each_tab(test):
    """Give a test the book's tab of a backend, as `d2l`."""

    @functools.wraps(test)
    def run(backend, d2l, **fixtures):
        if backend == "numpy":
            assert d2l is None
            return
        with dispatch.load(backend).context("float32"):
            test(backend=backend, d2l=d2l, **fixtures)

    return run


@pytest.fixture
def d2l(backend):
    if importlib.util.find_spec(f"mha.d2l.{backend}") is None:
        return None
    return importlib.import_module(f"mha.d2l.{backend}")


# How each tab starts a layer, calls it, and tells the attention weights.


def started(backend, attention, *inputs):
    """A layer or pooling with initial weights, ready to be called."""
    if backend == "mxnet":
        attention.initialize()
    if backend == "jax":
        import jax

        keys = {"params": jax.random.PRNGKey(0), "dropout": jax.random.PRNGKey(1)}
        return attention.bind(attention.init(keys, *inputs), rngs=keys)
    called(backend, attention, *inputs)
    return attention


def called(backend, attention, *inputs, training=False):
    """Output and attention weights of a started layer or pooling."""
    if backend == "torch":
        attention.train(training)
        output = attention(*inputs)
    elif backend == "tensorflow":
        output = attention(*inputs, training=training)
    elif backend == "mxnet":
        from mxnet import autograd

        with autograd.record() if training else contextlib.nullcontext():
            output = attention(*inputs)
    else:
        return attention(*inputs, training=training)
    keeper = getattr(attention, "attention", attention)
    return output, keeper.attention_weights


def arrays(rng, *shapes):
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def native(backend, *values):
    """NumPy arrays and lists as the backend's own; None stays None."""
    return [None if value is None else mha.tensor(value, backend=backend) for value in values]


# The book's code


def torch_script():
    from mha.d2l import torch as d2l

    valid_lens = d2l.tensor([3, 2])
    X, Y = d2l.ones((2, 4, 100)), d2l.ones((2, 6, 100))
    for attention in (d2l.MultiHeadAttention(100, 100, 100, 100, 5, 0.5), d2l.MultiHeadAttention(100, 5, 0.5)):
        attention.eval()
        d2l.check_shape(attention(X, Y, Y, valid_lens), (2, 4, 100))
        assert attention.attention.attention_weights.shape == (10, 4, 6)
        print(tuple(attention(X, Y, Y, valid_lens).shape))


def tensorflow_script():
    from mha.d2l import tensorflow as d2l

    valid_lens = d2l.tensor([3, 2])
    X, Y = d2l.ones((2, 4, 100)), d2l.ones((2, 6, 100))
    for attention in (d2l.MultiHeadAttention(100, 100, 100, 100, 5, 0.5), d2l.MultiHeadAttention(100, 5, 0.5)):
        d2l.check_shape(attention(X, Y, Y, valid_lens, training=False), (2, 4, 100))
        assert attention.attention.attention_weights.shape == (10, 4, 6)
        print(tuple(attention(X, Y, Y, valid_lens, training=False).shape))


def jax_script():
    from mha.d2l import jax as d2l

    valid_lens = d2l.tensor([3, 2])
    X, Y = d2l.ones((2, 4, 100)), d2l.ones((2, 6, 100))
    for attention in (d2l.MultiHeadAttention(100, 100, 100, 100, 5, 0.5), d2l.MultiHeadAttention(100, 5, 0.5)):
        output = attention.init_with_output(d2l.get_key(), X, Y, Y, valid_lens, training=False)[0][0]
        d2l.check_shape(output, (2, 4, 100))
        print(output.shape)


def mxnet_script():
    from mha.d2l import mxnet as d2l

    valid_lens = d2l.tensor([3, 2])
    X, Y = d2l.ones((2, 4, 100)), d2l.ones((2, 6, 100))
    for attention in (d2l.MultiHeadAttention(100, 100, 100, 100, 5, 0.5), d2l.MultiHeadAttention(100, 5, 0.5)):
        attention.initialize()
        d2l.check_shape(attention(X, Y, Y, valid_lens), (2, 4, 100))
        assert attention.attention.attention_weights.shape == (10, 4, 6)
        print(attention(X, Y, Y, valid_lens).shape)


SCRIPTS = {"torch": torch_script, "tensorflow": tensorflow_script, "jax": jax_script, "mxnet": mxnet_script}


@on_each_tab
def test_the_books_script_runs(backend, d2l, capsys):
    SCRIPTS[backend]()
    assert capsys.readouterr().out == "(2, 4, 100)\n(2, 4, 100)\n"


# Editions


@on_each_tab
def test_both_editions_make_the_same_layer(backend, d2l):
    bias = {"use_bias" if backend == "mxnet" else "bias": True}
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


@on_each_tab
def test_arguments_of_no_edition_are_refused(backend, d2l):
    other = {"bias" if backend == "mxnet" else "use_bias": True}
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


@on_each_tab
def test_the_layer_that_keeps_weights_pools_as_in_the_book(backend, d2l):
    config = Config(D, H, pooling="additive")  # as another program's Keras might tell
    if backend == "jax":
        assert d2l.MultiHeadAttention(config=config).config == config  # keeps none: no other class is needed
        return
    with pytest.raises(TypeError, match=r"got MultiHeadAttention|pooling is AdditiveAttention, expected DotProduct"):
        d2l.MultiHeadAttention(config=config)


# The layer


@pytest.mark.parametrize("lengths", LENGTHS)
@on_each_tab
def test_a_layer_gives_the_numbers_of_mha(backend, d2l, rng, lengths):
    tab, reference = dispatch.load(backend), mha.MultiHeadAttention(D, H, 0.5, True, seed=3, backend=backend)
    X, Y, Z = native(backend, *arrays(rng, (B, Q, D), (B, K, D), (B, K, D)))
    (valid_lens,) = native(backend, LENGTHS[lengths])
    attention = started(backend, d2l.MultiHeadAttention(D, H, 0.5, True), X, Y, Z, valid_lens)
    attention = tab.set_weights(attention, reference.weights)
    output, attention_weights = called(backend, attention, X, Y, Z, valid_lens)

    # The layer itself rather than `reference`: JAX compiles that as a whole, which rounds otherwise.
    attend = reference.layer if backend == "jax" else functools.partial(tab.attend, reference.layer)
    expected, expected_weights = attend(X, Y, Z, valid_lens, None, False, False, True)
    np.testing.assert_array_equal(mha.to_numpy(output), mha.to_numpy(expected))
    d2l.check_shape(attention_weights, (B * H, Q, K))
    np.testing.assert_array_equal(mha.to_numpy(attention_weights).reshape(B, H, Q, K), mha.to_numpy(expected_weights))
    output = tab.attend(attention, X, Y, Z, valid_lens, training=False)
    assert parity.ratio(reference, output, X, Y, Z, valid_lens) <= 1
    for name, array in tab.get_weights(attention).items():
        np.testing.assert_array_equal(array, reference.weights[name])
    if lengths == "per query":
        assert not mha.to_numpy(attention_weights)[:H, 2].any()


@on_each_tab
def test_dropout_is_on_in_training_alone(backend, d2l, rng):
    X, Y = native(backend, *arrays(rng, (B, Q, D), (B, K, D)))
    attention = started(backend, d2l.MultiHeadAttention(D, H, 0.5), X, Y, Y, None)
    evaluated, attention_weights = called(backend, attention, X, Y, Y, None)
    again, _ = called(backend, attention, X, Y, Y, None)
    trained, weights_in_training = called(backend, attention, X, Y, Y, None, training=True)
    np.testing.assert_array_equal(mha.to_numpy(again), mha.to_numpy(evaluated))
    assert not np.array_equal(mha.to_numpy(trained), mha.to_numpy(evaluated))
    np.testing.assert_array_equal(mha.to_numpy(weights_in_training), mha.to_numpy(attention_weights))


def by_state(d2l, attention, path):
    again = d2l.MultiHeadAttention(D, H, 0.5)
    again.load_state_dict(attention.state_dict())
    return again


def by_config(d2l, attention, path):
    again = type(attention).from_config(attention.get_config())
    again.set_weights(attention.get_weights())
    return again


def by_clone(d2l, attention, path):
    return attention.clone(name="again").bind(attention.variables)


def by_file(d2l, attention, path):
    attention.save_parameters(path)
    again = d2l.MultiHeadAttention(D, H, 0.5)
    again.load_parameters(path)
    return again


AGAIN = {"torch": by_state, "tensorflow": by_config, "jax": by_clone, "mxnet": by_file}


@on_each_tab
def test_a_framework_makes_its_layer_again(backend, d2l, rng, tmp_path):
    X, Y = native(backend, *arrays(rng, (B, Q, D), (B, K, D)))
    attention = started(backend, d2l.MultiHeadAttention(D, H, 0.5), X, Y, Y, None)
    again = AGAIN[backend](d2l, attention, str(tmp_path / "attention.params"))
    assert isinstance(again, d2l.MultiHeadAttention)
    assert again.config == attention.config
    for result, expected in zip(*(called(backend, each, X, Y, Y, None) for each in (again, attention)), strict=True):
        np.testing.assert_array_equal(mha.to_numpy(result), mha.to_numpy(expected))


# The attention weights that a layer or a pooling keeps for the thread that called. Flax keeps nothing: it returns them.

KEEPING = {
    "layer": lambda d2l: d2l.MultiHeadAttention(D, H, 0.5),
    "pooling": lambda d2l: d2l.AdditiveAttention(13, 0.5),
}


def keeper(made):
    """What keeps the attention weights."""
    return getattr(made, "attention", made)


def keeps(made):
    return hasattr(keeper(made), "attention_weights")


@pytest.mark.parametrize("kind", KEEPING)
@on_each_tab
def test_weights_are_kept_for_the_thread_that_called(backend, d2l, rng, kind):
    (X,) = native(backend, *arrays(rng, (B, Q, D)))
    made = KEEPING[kind](d2l)
    if backend == "jax":
        assert not keeps(started(backend, made, X, X, X))
        return
    assert not keeps(made)
    with pytest.raises(AttributeError, match="attention_weights are kept after a call, and this thread has made none"):
        keeper(made).attention_weights  # noqa: B018

    def elsewhere():
        before = keeps(made)
        with dispatch.load(backend).context("float32"):
            called(backend, made, X, X, X)
        return before, keeper(made).attention_weights.shape[1:], weakref.ref(keeper(made).attention_weights)

    _, kept = called(backend, started(backend, made, X, X, X), X, X, X)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before, shape, theirs = pool.submit(elsewhere).result()
    assert (before, shape) == (False, (Q, Q))
    assert keeper(made).attention_weights is kept
    gc.collect()
    assert theirs() is None  # nothing of a dead thread's stays


def by_torch(path):
    import torch

    def saved(made):
        torch.save(made, path)
        return torch.load(path, weights_only=False)

    return saved


def by_pickle(path):
    return lambda made: pickle.loads(pickle.dumps(made))


COPIES = {
    "torch": (lambda path: copy.deepcopy, by_torch, by_pickle),
    "tensorflow": (lambda path: copy.deepcopy, by_pickle),  # both by Keras' own saver
    "jax": (lambda path: copy.deepcopy,),
    "mxnet": (lambda path: copy.deepcopy,),
}


# Keras converts its variables in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@on_each_tab
def test_a_copy_keeps_no_weights_of_its_own_yet(backend, d2l, rng, tmp_path):
    (X,) = native(backend, *arrays(rng, (B, Q, D)))
    attention = started(backend, d2l.MultiHeadAttention(D, H, 0.5), X, X, X)
    expected = [mha.to_numpy(result) for result in called(backend, attention, X, X, X)]
    for way in COPIES[backend]:
        twin = way(str(tmp_path / "attention"))(attention)
        assert type(twin) is type(attention)
        assert not keeps(twin)
        for result, number in zip(called(backend, twin, X, X, X), expected, strict=True):
            np.testing.assert_array_equal(mha.to_numpy(result), number)


def compiled_by_torch(attention):
    import torch

    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    return lambda *inputs: (compiled(*inputs), attention.attention.attention_weights)


def compiled_by_tensorflow(attention):
    import tensorflow as tf

    return tf.function(lambda *inputs: (attention(*inputs), attention.attention.attention_weights))


def compiled_by_jax(attention):
    import jax

    module, variables = attention.unbind()
    return functools.partial(jax.jit(module.apply), variables)


def hybridized_by_mxnet(attention):
    attention.hybridize()
    return lambda *inputs: (attention(*inputs), attention.attention.attention_weights)


COMPILED = {
    "torch": compiled_by_torch,
    "tensorflow": compiled_by_tensorflow,
    "jax": compiled_by_jax,
    "mxnet": hybridized_by_mxnet,
}


@on_each_tab
def test_a_compiled_layer_tells_its_weights(backend, d2l, rng):
    X, Y = native(backend, *arrays(rng, (B, Q, D), (B, Q, D)))
    attention = started(backend, d2l.MultiHeadAttention(D, H, 0.5), X, X, X)
    expected = [[mha.to_numpy(each) for each in called(backend, attention, Z, Z, Z)] for Z in (X, Y)]
    compiled = COMPILED[backend](attention)
    for Z, (output, attention_weights) in zip((X, Y), expected, strict=True):
        ours, our_weights = map(mha.to_numpy, compiled(Z, Z, Z))
        assert parity.error(ours, output) <= parity.bound("float32", output, output)
        assert parity.error(our_weights, attention_weights) <= parity.bound(
            "float32", attention_weights, attention_weights
        )


# The poolings

KERNELS = {
    "torch": lambda pooling, name: getattr(pooling, name).weight.T,
    "tensorflow": lambda pooling, name: getattr(pooling, name).kernel.value,
    "jax": lambda pooling, name: pooling.variables["params"][name]["kernel"],
    "mxnet": lambda pooling, name: getattr(pooling, name).weight.data().T,
}


def oracle_results(kernels, queries, keys, values, lengths, dtype):
    """Pooled values and weights of the NumPy backend's pooling in a dtype."""
    if kernels:
        oracle = oracle_tab.AdditiveAttention(0.0, *kernels["w_v"].shape[:1], queries.shape[2], keys.shape[2], dtype)
        for name, kernel in kernels.items():
            getattr(oracle, name).kernel = kernel.astype(dtype)
    else:
        oracle = oracle_tab.DotProductAttention(0.0)
    queries, keys, values = (X.astype(dtype) for X in (queries, keys, values))
    visible = oracle_tab.visible_keys(queries, keys, None if lengths is None else np.array(lengths))
    _, attention_weights, pooled = oracle(queries, keys, values, None if visible is None else visible[:, 0])
    return pooled, attention_weights


POOLINGS = {
    "dot": (d, d, lambda d2l: d2l.DotProductAttention(dropout=0.5)),
    "additive": (13, d, lambda d2l: d2l.AdditiveAttention(num_hiddens=17, dropout=0.5)),
    "additive, first edition": (13, d, lambda d2l: d2l.AdditiveAttention(d, 13, 17, 0.5)),
}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pooling", POOLINGS)
@on_each_tab
def test_a_pooling_gives_the_numbers_of_numpy(backend, d2l, rng, pooling, lengths):
    query_size, key_size, make = POOLINGS[pooling]
    inputs = arrays(rng, (B, Q, query_size), (B, K, key_size), (B, K, dv))
    arguments = native(backend, *inputs, LENGTHS[lengths])
    attention = started(backend, make(d2l), *arguments)
    results = called(backend, attention, *arguments)
    names = ("W_q", "W_k", "w_v") if "additive" in pooling else ()
    kernels = {name: mha.to_numpy(KERNELS[backend](attention, name)) for name in names}
    base, oracle = (oracle_results(kernels, *inputs, LENGTHS[lengths], t) for t in ("float32", "float64"))
    for result, in_float32, exact in zip(results, base, oracle, strict=True):
        assert parity.error(mha.to_numpy(result), exact) <= parity.bound("float32", exact, in_float32)
        assert not mha.to_numpy(result)[exact == 0].any()

    if backend in ("torch", "mxnet"):
        # These know by themselves whether they train; an argument overrules them.
        assert not np.array_equal(mha.to_numpy(attention(*arguments, True)), mha.to_numpy(results[0]))
    trained, weights_in_training = called(backend, attention, *arguments, training=True)
    assert not np.array_equal(mha.to_numpy(trained), mha.to_numpy(results[0]))
    np.testing.assert_array_equal(mha.to_numpy(weights_in_training), mha.to_numpy(results[1]))


@on_each_tab
def test_a_pooling_refuses_what_does_not_fit(backend, d2l, rng):
    shapes = {"queries": (B, Q, d), "keys": (B, K, d), "values": (B, K, dv)}
    dot, additive = d2l.DotProductAttention(0.5), d2l.AdditiveAttention(13, d, 17, 0.5)
    for attention, changed, error, message in (
        (
            dot,
            {"keys": (B, K, 13)},
            ValueError,
            r"keys has shape \(2, 5, 13\), expected \(batch, key-value pairs, 11\)",
        ),
        (dot, {"values": (B, K + 1, dv)}, ValueError, "values has 6 rows a sample, expected 5"),
        (dot, {"values": (B + 1, K, dv)}, ValueError, "values has batch size 3, expected 2"),
        (dot, {"queries": (Q, d)}, ValueError, r"queries has shape \(3, 11\), expected \(batch, rows, width\)"),
        (additive, {}, ValueError, r"keys has shape \(2, 5, 11\), expected \(batch, key-value pairs, 13\)"),
    ):
        arguments = native(backend, *arrays(rng, *(shapes | changed).values()))
        with pytest.raises(error, match=message):
            refused(backend, attention, *arguments)
    arguments = native(backend, *arrays(rng, *shapes.values()))
    (valid_lens,) = native(backend, [[1, 2], [3, 4], [5, 6]])
    with pytest.raises(ValueError, match=r"valid_lens has shape \(3, 2\).*it looks transposed"):
        refused(backend, dot, *arguments, valid_lens)
    (whole,) = native(backend, np.ones((B, K, d), np.int32))
    with pytest.raises(TypeError, match="keys has dtype int32, expected floats"):
        refused(backend, dot, arguments[0], whole, arguments[2])


def refused(backend, attention, *arguments):
    """Call without starting: what does not fit is found before any weights are asked for."""
    if backend == "jax":
        attention.apply({}, *arguments)
    attention(*arguments)


# The functions and helpers


@on_each_tab
def test_transposes_are_functions_and_methods(backend, d2l, rng):
    (X,) = arrays(rng, (B, Q, D))
    (native_X,) = native(backend, X)
    attention = d2l.MultiHeadAttention(D, H, 0.5)
    expected = oracle_tab.transpose_qkv(X, H)
    for split in (d2l.transpose_qkv(native_X, H), attention.transpose_qkv(native_X)):
        np.testing.assert_array_equal(mha.to_numpy(split), expected)
        for merged in (d2l.transpose_output(split, H), attention.transpose_output(split)):
            np.testing.assert_array_equal(mha.to_numpy(merged), X)


@pytest.mark.parametrize("lengths", LENGTHS)
@on_each_tab
def test_masked_softmax_is_that_of_mha(backend, d2l, rng, lengths):
    (X,) = native(backend, *arrays(rng, (B, Q, K)))
    (valid_lens,) = native(backend, LENGTHS[lengths])
    expected = mha.to_numpy(mha.masked_softmax(X, valid_lens))
    np.testing.assert_array_equal(mha.to_numpy(d2l.masked_softmax(X, valid_lens)), expected)
    if LENGTHS[lengths] is not None:
        # As the book makes them; in MXNet these are floats.
        printed = d2l.tensor(LENGTHS[lengths])
        np.testing.assert_array_equal(mha.to_numpy(d2l.masked_softmax(X, printed)), expected)


@on_each_tab
def test_lengths_are_whole(backend, d2l, rng):
    (X,) = native(backend, *arrays(rng, (B, Q, K)))
    (valid_lens,) = native(backend, [1.5, 2.0])
    with pytest.raises(TypeError, match="valid_lens has dtype float32, expected integers"):
        d2l.masked_softmax(X, valid_lens)


NORMALS = {
    "torch": lambda d2l: d2l.normal(0, 1, (B, Q)),
    "tensorflow": lambda d2l: d2l.normal((B, Q), 0, 1),
    "jax": lambda d2l: d2l.normal(d2l.get_key(), (B, Q)),
    "mxnet": lambda d2l: d2l.normal(0, 1, (B, Q)),
}


@on_each_tab
def test_helpers_make_arrays(backend, d2l):
    for X in (d2l.ones((B, Q)), d2l.zeros((B, Q)), NORMALS[backend](d2l), d2l.reshape(d2l.ones((B * Q,)), (B, Q))):
        d2l.check_shape(X, (B, Q))
    np.testing.assert_array_equal(mha.to_numpy(d2l.tensor([[1.0, 2.0]])), [[1, 2]])
    assert mha.to_numpy(d2l.ones((B, Q))).all()
    assert not mha.to_numpy(d2l.zeros((B, Q))).any()
    with pytest.raises(ValueError, match=r"array has shape \(2, 3\), expected \(3, 2\)"):
        d2l.check_shape(d2l.ones((B, Q)), (Q, B))
    assert hasattr(d2l, "get_key") == (backend == "jax")
    if backend == "jax":
        random.seed(1)
        keys = [np.asarray(d2l.get_key()) for _ in range(2)]
        random.seed(1)
        np.testing.assert_array_equal(np.asarray(d2l.get_key()), keys[0])
        assert not np.array_equal(*keys)


@on_each_tab
def test_heat_maps_are_drawn_where_matplotlib_is(backend, d2l, rng, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    (matrices,) = native(backend, *arrays(rng, (2, 3, Q, K)))
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(ModuleNotFoundError, match=r"show_heatmaps needs matplotlib: pip install 'mha\[plots\]'"):
            d2l.show_heatmaps(matrices, xlabel="Keys", ylabel="Queries")
        return
    from matplotlib import pyplot

    d2l.show_heatmaps(matrices, xlabel="Keys", ylabel="Queries", titles=["a", "b", "c"], figsize=(5, 4), cmap="Blues")
    *maps, _ = pyplot.gcf().axes
    drawn = np.stack([axes.get_images()[0].get_array() for axes in maps])
    np.testing.assert_array_equal(drawn, mha.to_numpy(matrices).reshape(6, Q, K))
    assert len({axes.get_images()[0].get_clim() for axes in maps}) == 1
    assert [axes.get_xlabel() for axes in maps] == ["", "", "", "Keys", "Keys", "Keys"]
    assert [axes.get_ylabel() for axes in maps] == ["Queries", "", "", "Queries", "", ""]
    assert [axes.get_title() for axes in maps] == ["a", "b", "c"] * 2
    pyplot.close()
    with pytest.raises(ValueError, match=r"matrices has shape \(3, 5\), expected \(rows, columns, queries, keys\)"):
        d2l.show_heatmaps(matrices[0, 0], xlabel="Keys", ylabel="Queries")


# All tabs, installed or not


@pytest.mark.parametrize("tab", TABS)
def test_a_missing_framework_says_how_to_install_it(tab, monkeypatch):
    monkeypatch.setitem(sys.modules, dispatch.FRAMEWORKS[tab].needs[-1], None)
    monkeypatch.delitem(sys.modules, f"mha.d2l.{tab}", raising=False)
    monkeypatch.delitem(sys.modules, f"mha.backends.{tab}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"backend '{tab}' needs .*: pip install"):
        importlib.import_module(f"mha.d2l.{tab}")


@pytest.mark.parametrize("tab", TABS)
def test_tabs_have_the_same_sections_and_names(tab):
    sections, names = outline(tab)
    expected_sections, expected_names = outline("torch")
    assert sections == expected_sections
    assert [name for name in names if name != "get_key"] == expected_names


def outline(tab):
    """Headings of sections, and public names in order, of a tab's source."""
    source = (Path(mha.__file__).parent / "d2l" / f"{tab}.py").read_text()
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names.append(node.targets[0].id)
    headings = [line for line in source.splitlines() if line.startswith("# ")]
    return headings, [name for name in names if not name.startswith("_")]
