"""The path that keeps no weights gives the same numbers, in pieces of any size."""

import dataclasses
import functools
import importlib

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.engine import blocks
from mha.parity.cases.usual import ALL

SMALL = 60  # scores at a time: some queries of one head, so that samples, heads and queries are all cut


MANY = parity.Case("", ALL, [31, 0, 17], score_bias=(1, 6, 29, 31), offset=[0, -7, 4], head_gates=(3, 6), batch=3)
MANY = dataclasses.replace(MANY, mask=(3, 1, 29, 1), num_queries=29, num_keys=31)
WINDOW = parity.WIDTHS | {"num_heads": 6, "num_key_value_heads": 2, "window": (4, 1)}
LARGE = {"batch": 3, "num_queries": 29, "num_keys": 31}
SAME = LARGE | {"num_keys": 29}
TEXTS = [7] * 11 + [3] * 2 + [-1] * 3 + [8, 0, 9] + [3] * 10  # of which one lies in two places
PLACES = [*range(11), 0, 1, 5, 5, 5, 0, 0, 0, *range(10)]
RESTARTED = {"positions": PLACES, "key_positions": PLACES}
# PyTorch's kernel asks for one width of heads, which these have.
ONE_WIDTH = WINDOW | {"value_dim": 11, "scale": 0.7, "rotary": mha.Rotary(10)}
ONE_WIDTH_ALL = ONE_WIDTH | {"window": None}
KERNEL = (
    parity.Case("kernel, window", ONE_WIDTH, offset=3, **LARGE),
    parity.Case("kernel, window to the left, causal", ONE_WIDTH, causal=True, head_gates=(6,), **LARGE),
    parity.Case("kernel, window, mask", ONE_WIDTH, [31, 0, 17], mask=(3, 6, 29, 31), **LARGE),
    parity.Case("kernel, causal, offset", ONE_WIDTH_ALL, causal=True, offset=2, **LARGE),
    parity.Case("kernel, bias", ONE_WIDTH_ALL, [31, 0, 17], score_bias=(1, 6, 29, 31), **LARGE),
    parity.Case("kernel, mask of samples", ONE_WIDTH_ALL, mask=(3, 29, 31), **LARGE),
    parity.Case("kernel, window, bias of one row", ONE_WIDTH, score_bias=(1, 6, 1, 31), **LARGE),
    parity.Case("kernel, mask of keys", ONE_WIDTH_ALL, mask=(2, 6, 1, 5)),
)
CASES = {
    case.name: case
    for case in (
        *KERNEL,
        *(case for case in parity.CASES if case.num_keys < 100),
        parity.Case(
            "many pieces, positions",
            WINDOW | {"rotary": mha.Rotary(10)},
            [31, 0, 17],
            causal=True,
            **LARGE,
            positions=[[7 * i % 31 - 1 for i in range(29)], [*range(-9, 20)], [*range(29)]],
            key_positions=[[11 * j % 31 - 1 for j in range(31)], [*range(31)], [*range(-5, 26)]],
        ),
        parity.Case(
            "many pieces, segments",
            WINDOW | {"sinks": True},
            [31, 9, 17],
            **LARGE,
            segments=[[i // 9 - 1 for i in range(29)], [*range(29)], [i**2 % 3 for i in range(29)]],
            key_segments=[
                [j // 9 - 1 for j in range(31)],
                [j // 2 for j in range(31)],
                [-1 + j % 4 for j in range(31)],
            ],
        ),
        parity.Case("kernel, segments", ONE_WIDTH_ALL, **SAME, segments=TEXTS, causal=True, score_bias=(1, 6, 29, 29)),
        parity.Case("kernel, segments, positions", ONE_WIDTH, **SAME, segments=TEXTS, causal=True, **RESTARTED),
        parity.Case("additive, lengths per query", parity.ADDITIVE, [[1, 4, 2], [0, 3, 9]]),
        parity.Case("more queries than keys, causal", parity.WIDTHS, causal=True, num_queries=13),
        parity.Case("mask of one column, every query or none", parity.WIDTHS, mask=(2, 1, 3, 1)),
        parity.Case("mask of one head for all", parity.WIDTHS, [4, 5], mask=(2, 1, 3, 5)),
        parity.Case("one length for all, mask, bias", parity.WIDTHS, [3, 3], mask=(2, 3, 5), score_bias=(3, 5)),
        parity.Case("many pieces", parity.WIDTHS, [31, 0, 7], mask=(3, 29, 31), batch=3, num_queries=29, num_keys=31),
        parity.Case(
            "many pieces, causal", parity.WIDTHS, [5, 31, 0], causal=True, batch=3, num_queries=29, num_keys=31
        ),
        parity.Case("many pieces, window", WINDOW, [31, 0, 17], offset=-1, head_gates=(6,), **LARGE),
        parity.Case("window of some keys", WINDOW, causal=True, num_queries=7, num_keys=17, offset=[8, 6]),
        parity.Case(
            "window, lengths per query",
            WINDOW,
            [[9, 4, 11, 0, 17, 8, 12], [5, 3, 9, 7, 6, 10, 2]],
            num_queries=7,
            num_keys=17,
            offset=[8, 6],
        ),
        dataclasses.replace(MANY, name="many pieces, all options"),
    )
}
# TensorFlow compiles each for seconds, JAX for ten and more: of these, slow backends have one that is cut the same way.
QUICK = {
    "additive, lengths, mask, causal", "many pieces, window", "many pieces, all options", "many pieces, positions",
    "one length for all, mask, bias", "many pieces, segments",
}  # fmt: skip
LONG = pytest.mark.long(*adapters.SLOW)


@pytest.fixture
def small(monkeypatch, backend):
    """Makes pieces small, when called."""
    large = blocks.SCORES

    def shrink(scores=SMALL):
        monkeypatch.setattr(blocks, "SCORES", scores)
        monkeypatch.setattr(blocks, "LEAST", 5)
        if backend == "jax":
            monkeypatch.setattr(importlib.import_module("mha.backends.jax.engine.layer"), "SHORT", 1)
        adapters.of(backend).forget_programs()

    yield shrink
    if large != blocks.SCORES:
        adapters.of(backend).forget_programs()


def ratios(backend, case, dtype, shrink):
    """Error by bound of the output and of every gradient, in small pieces, against float64 NumPy in one piece."""
    inputs, call = case.inputs(dtype), case.call(dtype)
    base, attention = case.layer("numpy", dtype), case.layer(backend, dtype)
    oracle, wide = parity.in_dtype(base, "float64"), [X.astype(np.float64) for X in inputs]

    def results(layer, queries, keys, values, cotangent, return_weights=False):
        floats = {name: call[name].astype(queries.dtype) for name in ("score_bias", "head_gates") if name in call}
        output = layer(queries, keys, values, **call | floats, return_weights=return_weights)
        gradients = layer.gradients(queries, keys, values, **call | floats, cotangent=cotangent)
        return gradients | {"output": output[0] if return_weights else output}

    expected, based = results(oracle, *wide, return_weights=True), results(base, *inputs, return_weights=True)
    shrink()
    found = results(attention, *inputs)
    padded = [X.copy() for X in inputs]
    sees, seen = case.visible().any((1, 3)), case.visible().any((1, 2))  # (B, Q), (B, K)
    padded[0][~sees], padded[1][~seen], padded[2][~seen] = np.nan, np.nan, np.inf
    for name, X in results(attention, *padded).items():
        np.testing.assert_array_equal(X, found[name], err_msg=f"{name} depends on padding")
    worst = {}
    for name, X in expected.items():
        gradient = name != "output"
        scale = parity.gradient_scale(name, expected) if gradient else 0.0
        bound = parity.bound(dtype, X, based[name], gradient=gradient, scale=scale)
        error = parity.error(found[name], X)
        worst[name] = error / bound if error else 0.0
    return worst


COSTLY = {name: LONG for name in CASES if name not in QUICK}
COSTLY |= dict.fromkeys(
    (
        "many pieces, segments",
        "many pieces, positions",
        "many pieces, window",
        "one length for all, mask, bias",
        "additive, lengths, mask, causal",
    ),
    LONG,
)
COSTLY |= {case.name: pytest.mark.backends("torch") for case in KERNEL}


@pytest.mark.parametrize("name", [pytest.param(name, marks=COSTLY.get(name, ())) for name in CASES])
def test_small_pieces_give_the_same_numbers(backend, small, name):
    for dtype in ("float64",) if backend in adapters.SLOW else ("float32", "float64"):
        far = {key: ratio for key, ratio in ratios(backend, CASES[name], dtype, small).items() if not ratio <= 1}
        assert not far, dtype


@pytest.mark.parametrize(
    "heads",
    [
        pytest.param(1, id="one head", marks=LONG),
        pytest.param(2, id="half a sample", marks=pytest.mark.long("jax", "tensorflow")),
        pytest.param(8, id="two samples", marks=LONG),
    ],
)
def test_pieces_of_heads_and_of_samples(backend, small, heads):
    options = parity.WIDTHS | {"num_heads": 4, "num_hiddens": 28}
    case = parity.Case(
        "five samples", options, [[4, 1, 2], [0, 0, 0], [1, 5, 5], [2, 0, 3], [3, 3, 3]], (5, 4, 3, 5), batch=5
    )
    far = ratios(backend, case, "float64", functools.partial(small, heads * case.num_queries * case.num_keys))
    assert max(far.values()) <= 1, far


@pytest.mark.backends("numpy", "torch", "tensorflow", "mlx")
@pytest.mark.long("tensorflow")
@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=LONG), "bfloat16"])
def test_half_precision_in_small_pieces(backend, small, dtype):
    far = ratios(backend, CASES["lengths per sample"], dtype, small)
    assert max(far.values()) <= 1, far


def test_both_paths_train_alike(backend):
    """Gradients through the path that returns weights are those of the path that does not."""
    case = CASES["lengths, mask, causal"]
    queries, keys, values, cotangent = case.inputs("float64")
    attention = case.layer(backend, "float64")
    expected = attention.gradients(queries, keys, values, **case.call("float64"), cotangent=cotangent)
    found = by_values(attention, queries, keys, values, cotangent, case.call("float64"), return_weights=True)
    assert parity.error(found[1], expected["values"]) <= 1e-10 * parity.largest(expected["values"])


@pytest.mark.needs("automatic differentiation")  # by hand, gradients have no dropout
def test_what_is_computed_again_drops_the_same(backend, small):
    """Without biases the output is linear in the values, if both passes drop the same weights."""
    case = dataclasses.replace(CASES["many pieces, causal"], options=parity.WIDTHS | {"bias": False})
    queries, keys, values, cotangent = case.inputs("float64")
    attention = mha.MultiHeadAttention(**case.options, dropout=0.5, dtype="float64", backend=backend)
    small()
    hiding = case.call("float64")
    outputs = []
    for _ in range(2):
        output, gradient = by_values(attention, queries, keys, values, cotangent, hiding, training=True)
        there, back = np.array((output * cotangent).sum()), np.array((values * gradient).sum())
        size = np.abs(output * cotangent).sum()
        assert parity.error(back, there) <= parity.bound("float64", there, there, gradient=True, scale=size)
        outputs.append(output)
    plain = attention(queries, keys, values, **hiding)
    assert np.abs(outputs[0] - plain).max() > 0.01 * np.abs(plain).max()
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01 * np.abs(plain).max()


@pytest.mark.backends("mxnet")  # whose own state of training another thread does not have
def test_blocks_drop_the_same_again_in_the_frameworks_own_training(backend, small):
    from mxnet import autograd

    case = dataclasses.replace(CASES["many pieces, causal"], options=parity.WIDTHS | {"bias": False})
    attention = mha.MultiHeadAttention(**case.options, dropout=0.5, dtype="float64", backend=backend)
    small()
    with dispatch.load(backend).context("float64"):
        queries, keys, values, cotangent = adapters.of(backend).own(*case.inputs("float64"))
        values.attach_grad()
        with autograd.record():
            output = attention.layer(queries, keys, values, case.call("float64")["valid_lens"], None, None, True)
        output.backward(cotangent)
    shares, back = mha.to_numpy(output * cotangent), mha.to_numpy(values * values.grad).sum()
    there = shares.sum()
    limit = parity.bound("float64", there, there, gradient=True, scale=np.abs(shares).sum())
    assert parity.error(back, there) <= limit


@pytest.mark.backends("mxnet")  # the others ask for a gradient by what it is by, as the tests above do
def test_gradients_by_some_alone(backend, small):
    """A frozen layer sends gradients into the values as any other, and weights may add theirs up."""
    from mxnet import autograd

    case = dataclasses.replace(CASES["many pieces, causal"], options=parity.ADDITIVE)
    queries, keys, values, cotangent = case.inputs("float64")
    expected = case.layer(backend, "float64").gradients(
        queries, keys, values, **case.call("float64"), cotangent=cotangent
    )
    small()
    attention = case.layer(backend, "float64")
    parameters = attention.layer.collect_params().values()
    for grad_req in ("null", "add"):
        for parameter in parameters:
            parameter.grad_req = grad_req
        for _ in range(2):
            _, gradient = by_values(attention, queries, keys, values, cotangent, case.call("float64"))
            bound = 1e-10 * parity.largest(expected["values"])
            assert parity.error(gradient, expected["values"]) <= bound, grad_req
    for name in ("W_q", "W_k", "w_v"):
        found = getattr(attention.layer.attention, name).weight.grad().asnumpy().T
        wanted = 2 * expected[f"attention.{name}.kernel"]
        assert parity.error(found, wanted) <= 1e-10 * parity.largest(wanted), name
    assert not autograd.is_recording()


@pytest.mark.backends(*adapters.EAGER)  # the others' pieces, in loops of their own, cannot be seen
@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("options", [{}, {"window": (3, 1), "num_key_value_heads": 1}], ids=["plain", "window"])
@pytest.mark.parametrize("hiding", [{}, {"valid_lens": [31, 5]}, {"causal": True}], ids=["all", "lengths", "causal"])
def test_no_piece_has_more_scores_than_fit(backend, monkeypatch, pooling, training, options, hiding):
    module = dispatch.load(backend)
    kind, seen = {"dot": module.DotProductAttention, "additive": module.AdditiveAttention}[pooling], []
    scores = kind.scores

    def counted(self, queries, keys, *rest):
        seen.append(self.scores_of_pair(queries) * queries.shape[1] * keys.shape[1])
        return scores(self, queries, keys, *rest)

    monkeypatch.setattr(kind, "scores", counted)
    monkeypatch.setattr(blocks, "SCORES", 31 * 12 * (1 if pooling == "dot" else 4))
    attention = mha.MultiHeadAttention(12, 3, dropout=0.5, pooling=pooling, **options, backend=backend)
    X = np.ones((2, 31, 12), "float32")
    attention(X, X, X, **hiding, training=training)
    assert max(seen, default=0) <= blocks.SCORES
    if options and not (backend == "torch" and hiding):  # work in proportion to the window, of 5 keys
        assert sum(seen) < 0.5 * attention.config.num_heads * 2 * 31 * 31 * (4 if pooling == "additive" else 1)
    by_kernel = adapters.of(backend).by_kernel and pooling == "dot" and not training
    assert bool(seen) != by_kernel


@pytest.mark.backends("torch")
def test_function_transforms_of_torch_take_pieces(backend, rng, small):
    import torch

    layer = mha.MultiHeadAttention(12, 3, dtype="float64", backend=backend).layer
    X = torch.tensor(rng.normal(size=(2, 7, 12)))
    mask = torch.tensor(rng.random((7, 7)) < 0.7)
    (expected,) = torch.autograd.grad(layer(Z := X.clone().requires_grad_(), Z, Z, mask=mask).sum(), Z)
    small()
    found = torch.func.grad(lambda X: layer(X, X, X, mask=mask).sum())(X)
    found, expected = found.numpy(force=True), expected.numpy(force=True)
    assert parity.error(found, expected) <= parity.bound("float64", expected, expected, gradient=True)


@pytest.mark.backends("tensorflow")
def test_sizes_that_are_learnt_late_may_be_zero(backend, small):
    import tensorflow as tf

    small()
    for options in ({}, {"pooling": "additive"}):
        layer = mha.MultiHeadAttention(12, 3, **options, backend=backend).layer
        called = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 12))] * 3)
        for B, Q, K in ((0, 5, 3), (2, 0, 3), (2, 5, 0), (2, 5, 3)):
            output = called(tf.ones((B, Q, 12)), *2 * [tf.ones((B, K, 12))])
            assert output.shape == (B, Q, 12)
            assert (np.abs(output).max(initial=0) > 0) == (min(B, Q, K) > 0)


KNOWN = {
    "heads": (40, {}),
    "heads, lengths": (40, {"valid_lens": [7, 3, 0, 5]}),
    "heads, lengths per query": (40, {"valid_lens": np.arange(20).reshape(4, 5) % 8}),
    "heads, offsets": (40, {"offset": [1, -2, 0, 3]}),
    "samples, lengths": (220, {"valid_lens": [7, 3, 0, 5]}),
}


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", KNOWN)
def test_sizes_that_a_function_of_ones_own_knows(backend, rng, small, name):
    """In training too: without dropout that is nothing else."""
    import tensorflow as tf

    scores, call = KNOWN[name]
    attention = mha.MultiHeadAttention(12, 3, dtype="float64", backend=backend)
    arrays, causal = [rng.normal(size=(4, T, 12)) for T in (5, 7, 7)], "offset" in call
    expected = attention.to("numpy")(*arrays, **call, causal=causal)
    small(scores)
    attend = tf.function(lambda *X, **call: attention.layer(*X, **call, causal=causal, training=True), autograph=False)
    found = attend(*map(tf.constant, arrays), **{key: tf.constant(X, tf.int64) for key, X in call.items()})
    assert parity.error(found.numpy(), expected) <= parity.bound("float64", expected, expected)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("scores", [blocks.SCORES, 40], ids=["one piece", "pieces"])
def test_both_passes_of_ones_own_function_drop_the_same(backend, rng, small, scores):
    """Without biases the output is linear in the values."""
    import tensorflow as tf

    small(scores)
    layer = mha.MultiHeadAttention(12, 3, dropout=0.5, dtype="float64", backend=backend).layer
    queries, keys, values = (tf.constant(rng.normal(size=(4, T, 12))) for T in (5, 7, 7))

    @tf.function(autograph=False)
    def both(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            output = layer(queries, keys, values, training=True)
        return output, tape.gradient(output, values)

    first, second = both(values), both(values)
    assert np.abs(first[0] - second[0]).max() > 0.01
    for output, gradient in (first, second):
        there, back, size = (X.numpy() for X in map(tf.reduce_sum, (output, values * gradient, abs(output))))
        assert parity.error(back, there) <= parity.bound("float64", there, there, gradient=True, scale=size)


@pytest.mark.backends("jax")
def test_compiled_unsigned_lengths_in_pieces(backend, small):
    """Lengths of 2**31 and more are beyond any number of keys, and not below zero."""
    import jax

    attention = mha.MultiHeadAttention(12, 3, backend=backend)
    X = np.ones((2, 8, 12), "float32") * np.arange(1, 9, dtype="float32")[:, None]
    numpy = attention.to("numpy")
    base, oracle = numpy(X, X, X), parity.in_dtype(numpy, "float64")(*3 * [X.astype("float64")])
    small()
    lengths = np.array([2**32 - 1, 2**31], "uint32")
    found = jax.jit(lambda X, lengths: attention.layer(X, X, X, lengths))(X, lengths)
    assert parity.error(mha.to_numpy(found), oracle) <= parity.bound("float32", oracle, base)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("part", ["W_q", "W_k", "W_v", "W_o"])
def test_hooks_and_replaced_calls_of_parts_count(backend, part):
    """Views of the heads are another way to the same numbers in PyTorch, but not past the parts of the layer."""
    import torch

    X = torch.ones(2, 7, 12, requires_grad=True)
    for kind in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook", "forward"):
        layer, called = mha.MultiHeadAttention(12, 3, backend=backend).layer, []
        module = getattr(layer, part)
        if kind == "forward":
            module.forward = lambda X, forward=module.forward, called=called: called.append(X.shape) or forward(X)
        else:
            getattr(module, f"register_{kind}")(lambda *given, called=called: called.append(len(given)))
        layer(X, X, X).sum().backward()
        assert called, kind


def by_values(attention, queries, keys, values, cotangent, hiding, training=False, return_weights=False):
    """Output and gradient by the values, which may be queries and keys too, as the framework differentiates a call."""
    options = {**hiding, "training": training, "return_weights": return_weights}

    def output(X, *others):
        result = attention(*(others or (X, X)), X, **options)
        return result[0] if return_weights else result

    if adapters.lacks(attention.backend, "automatic differentiation"):
        inputs = (values, values, values) if queries is None else (queries, keys, values)
        gradients = attention.gradients(*inputs, **hiding, cotangent=cotangent)
        return output(values, *inputs[:2]), gradients["values"]
    adapter = adapters.of(attention.backend)
    values, cotangent, *others = adapter.own(values, cotangent, *([] if queries is None else [queries, keys]))
    found = adapter.pull_back(lambda X: output(X, *others), values, cotangent)
    return [mha.to_numpy(X) for X in found]
