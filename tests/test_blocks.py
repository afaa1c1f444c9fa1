"""The path that keeps no weights gives the same numbers, in pieces of any size."""

import dataclasses
import functools
import importlib

import numpy as np
import pytest

import mha
from mha import blocks, dispatch, parity

SMALL = 60  # scores at a time: some queries of one head, so that samples, heads and queries are all cut

# JAX compiles each case for ten seconds and more.
CASES = {
    case.name: case
    for case in (
        *(case for case in parity.CASES if case.num_keys < 100),
        parity.Case("additive, lengths per query", parity.ADDITIVE, [[1, 4, 2], [0, 3, 9]]),
        parity.Case("more queries than keys, causal", parity.WIDTHS, causal=True, num_queries=13),
        parity.Case("mask of one column, every query or none", parity.WIDTHS, mask=(2, 1, 3, 1)),
        parity.Case("mask of one head for all", parity.WIDTHS, [4, 5], mask=(2, 1, 3, 5)),
        parity.Case("many pieces", parity.WIDTHS, [31, 0, 7], mask=(3, 29, 31), batch=3, num_queries=29, num_keys=31),
        parity.Case(
            "many pieces, causal", parity.WIDTHS, [5, 31, 0], causal=True, batch=3, num_queries=29, num_keys=31
        ),
    )
}
ON_JAX = ("additive, lengths, mask, causal", "many pieces, causal")


@pytest.fixture
def small(monkeypatch, backend):
    """Makes pieces small, when called."""
    fast = importlib.import_module(f"{dispatch.load(backend).__name__}.fast")
    compiled = [fast._attend, fast._gradients] if backend == "jax" else []
    large = blocks.SCORES

    def shrink(scores=SMALL // 4 if backend == "jax" else SMALL):  # of which its blocks take four times as many
        monkeypatch.setattr(blocks, "SCORES", scores)
        if backend == "jax":
            monkeypatch.setattr(fast, "SHORT", 1)
        for function in compiled:
            function.clear_cache()  # of programs for larger pieces

    yield shrink
    if large != blocks.SCORES:
        for function in compiled:
            function.clear_cache()


def ratios(backend, case, dtype, shrink):
    """Error by bound of the output and of every gradient, in small pieces, against float64 NumPy in one piece."""
    inputs, hiding = case.inputs(dtype), case.hiding()
    base, attention = case.layer("numpy", dtype), case.layer(backend, dtype)
    oracle, wide = parity.in_dtype(base, "float64"), [X.astype(np.float64) for X in inputs]

    def results(layer, queries, keys, values, cotangent, return_weights=False):
        output = layer(queries, keys, values, **hiding, return_weights=return_weights)
        gradients = layer.gradients(queries, keys, values, **hiding, cotangent=cotangent)
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


@pytest.mark.parametrize("name", CASES)
def test_small_pieces_give_the_same_numbers(backend, small, name):
    if backend == "jax" and name not in ON_JAX:
        return
    for dtype in ("float64",) if backend == "jax" else ("float32", "float64"):
        far = {key: ratio for key, ratio in ratios(backend, CASES[name], dtype, small).items() if not ratio <= 1}
        assert not far, dtype


@pytest.mark.parametrize("heads", [1, 2, 8], ids=["one head", "half a sample", "two samples"])
def test_pieces_of_heads_and_of_samples(backend, small, heads):
    options = parity.WIDTHS | {"num_heads": 4, "num_hiddens": 28}
    case = parity.Case(
        "five samples", options, [[4, 1, 2], [0, 0, 0], [1, 5, 5], [2, 0, 3], [3, 3, 3]], (5, 4, 3, 5), batch=5
    )
    far = ratios(backend, case, "float64", functools.partial(small, heads * case.num_queries * case.num_keys))
    assert max(far.values()) <= 1, far


def test_half_precision_in_small_pieces(backend, small):
    for dtype in ("float16", "bfloat16"):
        if dtype in dispatch.load(backend).DTYPES and backend != "jax":
            far = ratios(backend, CASES["lengths per sample"], dtype, small)
            assert max(far.values()) <= 1, (dtype, far)


def test_both_paths_train_alike(backend):
    """Gradients through the path that returns weights are those of the path that does not."""
    case = CASES["lengths, mask, causal"]
    queries, keys, values, cotangent = case.inputs("float64")
    attention = case.layer(backend, "float64")
    expected = attention.gradients(queries, keys, values, **case.hiding(), cotangent=cotangent)
    found = by_values(attention, queries, keys, values, cotangent, case.hiding(), return_weights=True)
    assert parity.error(found[1], expected["values"]) <= 1e-10 * parity.largest(expected["values"])


def test_what_is_computed_again_drops_the_same(backend, small):
    """Without biases the output is linear in the values, if both passes drop the same weights."""
    if backend == "numpy":  # its gradients have no dropout
        return
    case = dataclasses.replace(CASES["many pieces, causal"], options=parity.WIDTHS | {"bias": False})
    queries, keys, values, cotangent = case.inputs("float64")
    attention = mha.MultiHeadAttention(**case.options, dropout=0.5, dtype="float64", backend=backend)
    small()
    hiding = case.hiding()
    outputs = []
    for _ in range(2):
        output, gradient = by_values(attention, queries, keys, values, cotangent, hiding, training=True)
        assert np.isclose((output * cotangent).sum(), (values * gradient).sum(), rtol=1e-9)
        outputs.append(output)
    plain = attention(queries, keys, values, **hiding)
    assert np.abs(outputs[0] - plain).max() > 0.01 * np.abs(plain).max()
    assert backend == "jax" or np.abs(outputs[0] - outputs[1]).max() > 0.01 * np.abs(plain).max()


def test_gradients_by_some_alone(backend, small):
    """A frozen layer sends gradients into the values as any other, and weights may add theirs up."""
    if backend != "mxnet":  # the others ask for a gradient by what it is by, as the tests above do
        return
    from mxnet import autograd

    case = dataclasses.replace(CASES["many pieces, causal"], options=parity.ADDITIVE)
    queries, keys, values, cotangent = case.inputs("float64")
    expected = case.layer(backend, "float64").gradients(queries, keys, values, **case.hiding(), cotangent=cotangent)
    small()
    attention = case.layer(backend, "float64")
    parameters = attention.layer.collect_params().values()
    for grad_req in ("null", "add"):
        for parameter in parameters:
            parameter.grad_req = grad_req
        for _ in range(2):
            _, gradient = by_values(attention, queries, keys, values, cotangent, case.hiding())
            bound = 1e-10 * parity.largest(expected["values"])
            assert parity.error(gradient, expected["values"]) <= bound, grad_req
    for name in ("W_q", "W_k", "w_v"):
        found = getattr(attention.layer.attention, name).weight.grad().asnumpy().T
        wanted = 2 * expected[f"attention.{name}.kernel"]
        assert parity.error(found, wanted) <= 1e-10 * parity.largest(wanted), name
    assert not autograd.is_recording()


@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("hiding", [{}, {"valid_lens": [31, 5]}, {"causal": True}], ids=["all", "lengths", "causal"])
def test_no_piece_has_more_scores_than_fit(backend, monkeypatch, pooling, training, hiding):
    if backend in ("tensorflow", "jax"):  # whose pieces, in loops of their own, have sizes that cannot be seen
        return
    tab = dispatch.load(backend)
    kind, seen = {"dot": tab.DotProductAttention, "additive": tab.AdditiveAttention}[pooling], []
    scores = kind.scores

    def counted(self, queries, keys, *rest):
        seen.append(queries.shape[0] * queries.shape[1] * self.scores_of_query(queries[:1], keys[:1]))
        return scores(self, queries, keys, *rest)

    monkeypatch.setattr(kind, "scores", counted)
    monkeypatch.setattr(blocks, "SCORES", 31 * 12 * (1 if pooling == "dot" else 4))
    attention = mha.MultiHeadAttention(12, 3, dropout=0.5, pooling=pooling, backend=backend)
    X = np.ones((2, 31, 12), "float32")
    attention(X, X, X, **hiding, training=training)
    assert max(seen, default=0) <= blocks.SCORES
    assert seen or (backend == "torch" and pooling == "dot")


def test_function_transforms_of_torch_take_pieces(backend, rng, small):
    if backend != "torch":
        return
    import torch

    layer = mha.MultiHeadAttention(12, 3, dtype="float64", backend=backend).layer
    X = torch.tensor(rng.normal(size=(2, 7, 12)))
    mask = torch.tensor(rng.random((7, 7)) < 0.7)
    (expected,) = torch.autograd.grad(layer(Z := X.clone().requires_grad_(), Z, Z, mask=mask).sum(), Z)
    small()
    found = torch.func.grad(lambda X: layer(X, X, X, mask=mask).sum())(X)
    torch.testing.assert_close(found, expected)


def test_sizes_that_are_learnt_late_may_be_zero(backend, small):
    if backend != "tensorflow":
        return
    import tensorflow as tf

    small()
    for options in ({}, {"pooling": "additive"}):
        layer = mha.MultiHeadAttention(12, 3, **options, backend=backend).layer
        called = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 12))] * 3)
        for B, Q, K in ((0, 5, 3), (2, 0, 3), (2, 5, 0), (2, 5, 3)):
            output = called(tf.ones((B, Q, 12)), *2 * [tf.ones((B, K, 12))])
            assert output.shape == (B, Q, 12)
            assert (np.abs(output).max(initial=0) > 0) == (min(B, Q, K) > 0)


def test_compiled_unsigned_lengths_in_pieces(backend, small):
    """Lengths of 2**31 and more are beyond any number of keys, and not below zero."""
    if backend != "jax":
        return
    import jax

    layer = mha.MultiHeadAttention(12, 3, backend=backend).layer
    X = np.ones((2, 8, 12), "float32") * np.arange(1, 9, dtype="float32")[:, None]
    expected = layer(X, X, X)
    small()
    lengths = np.array([2**32 - 1, 2**31], "uint32")
    found = jax.jit(lambda X, lengths: layer(X, X, X, lengths))(X, lengths)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


SELF = {"num_hiddens": 21, "num_heads": 3, "query_size": 13, "key_size": 13, "value_size": 13}
ONE_ARRAY = {
    "no lengths": {},
    "lengths, all the same": {"valid_lens": [5, 5]},
    "lengths": {"valid_lens": [7, 4]},
    "length zero": {"valid_lens": [0, 4]},
    "lengths per query": {"valid_lens": [[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]]},
    "causal": {"causal": True},
    "causal, lengths, all the same": {"valid_lens": [5, 5], "causal": True},
    "causal, lengths": {"valid_lens": [6, 3], "causal": True},
    "mask": {"mask": np.arange(49).reshape(7, 7) % 3 > 0},
}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", ONE_ARRAY)
def test_one_array_as_queries_keys_and_values(backend, rng, name, bias):
    """Self-attention may take other ways to the same numbers, in all parts."""
    hiding = {"valid_lens": None, "mask": None, "causal": False} | ONE_ARRAY[name]
    X, cotangent = rng.normal(size=(2, 7, 13)), rng.normal(size=(2, 7, 21))
    oracle = mha.MultiHeadAttention(**SELF, bias=bias, dtype="float64", backend="numpy")
    oracle.weights = {name: W + 0.1 * rng.normal(size=W.shape) for name, W in oracle.weights.items()}
    expected = oracle(X, X, X, **hiding, return_weights=True)[0]
    gradients = oracle.gradients(X, X, X, **hiding, cotangent=cotangent)
    by_X = sum(gradients[name] for name in ("queries", "keys", "values"))
    attention = oracle.to(backend)
    output, gradient = by_values(attention, None, None, X, cotangent, hiding)
    assert parity.error(output, expected) <= parity.bound("float64", expected, expected)
    assert backend == "numpy" or parity.error(gradient, by_X) <= 1e-10 * parity.largest(by_X)
    weights = oracle(X, X, X, **hiding, return_weights=True)[1]  # (B, H, T, T)
    sees, seen = (weights > 0).any((1, 3)), (weights > 0).any((1, 2))  # (B, T)
    padded, _ = by_values(attention, None, None, np.where(seen[:, :, None], X, np.nan), cotangent, hiding)
    clean = seen | ~sees
    np.testing.assert_array_equal(padded[clean], output[clean])


@pytest.mark.parametrize("part", ["W_q", "W_k", "W_v", "W_o"])
def test_hooks_and_replaced_calls_of_parts_are_heeded(backend, part):
    """Views of the heads are another way to the same numbers in PyTorch, but not past the parts of the layer."""
    if backend != "torch":
        return
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


def own_pooling(backend, file):
    """A pooling of one's own: a subclass of the lesson's dot products or of the faster ones, with other scores."""

    class Steeper(importlib.import_module(f"{dispatch.load(backend).__name__}.{file}").DotProductAttention):
        def scores(self, queries, keys):
            return 3 * super().scores(queries, keys)

    return Steeper


def check_own_scores(attention, hiding, rng):
    """The layer's scores are three times as large, as those of a W_q that is, whether or not weights are asked for."""
    backend = attention.backend
    queries, keys, values, cotangent = (rng.normal(size=(2, T, 12)) for T in (7, 5, 5, 7))
    oracle = attention.to("numpy")
    oracle.weights = oracle.weights | {"W_q.kernel": 3 * oracle.weights["W_q.kernel"]}
    output, weights = oracle(queries, keys, values, **hiding, return_weights=True)
    found, found_weights = attention(queries, keys, values, **hiding, return_weights=True)
    alone = attention(queries, keys, values, **hiding)
    for result, expected in ((found, output), (found_weights, weights), (alone, output)):
        assert parity.error(result, expected) <= parity.bound("float64", expected, expected)
    if backend != "numpy":  # whose gradients are derived by hand, from the scores as they were
        call = {**hiding, "cotangent": cotangent}
        by, expected = (layer.gradients(queries, keys, values, **call)["values"] for layer in (attention, oracle))
        assert parity.error(by, expected) <= parity.bound("float64", expected, expected, gradient=True)


HIDING = {"nothing": {}, "lengths": {"valid_lens": [3, 5]}, "mask": {"mask": np.tri(7, 5, dtype=bool)}}


@pytest.mark.backends("numpy", "torch", "tensorflow", "mxnet")  # Flax's modules are not changed once they are made
@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("value_dim", [4, 5], ids=["one width", "two widths"])
@pytest.mark.parametrize(
    "file", [pytest.param("layer", marks=pytest.mark.backends("numpy", "torch", "tensorflow")), "fast"]
)  # Gluon takes in place of a part nothing but its subclasses
def test_a_replaced_pooling_is_used(backend, rng, file, value_dim, hiding):
    attention = mha.MultiHeadAttention(12, 3, value_dim=value_dim, dtype="float64", backend=backend)
    attention.layer.attention = own_pooling(backend, file)(0.0)
    check_own_scores(attention, HIDING[hiding], rng)


@pytest.mark.parametrize("file", ["layer", "fast"])
def test_a_subclass_chooses_its_pooling(backend, rng, file):
    module = dispatch.load(backend)
    pooling = functools.partial(
        importlib.import_module(f"{module.__name__}.fast").pooling, dot=own_pooling(backend, file)
    )
    kind = type("OwnAttention", (module.MultiHeadAttention,), {"pooling": staticmethod(pooling)})
    attention = mha.MultiHeadAttention(12, 3, dtype="float64", backend=backend)
    with module.context("float64"):
        attention.layer = module.build(attention.config, attention.weights, kind=kind)
    check_own_scores(attention, HIDING["lengths"], rng)


def by_values(attention, queries, keys, values, cotangent, hiding, training=False, return_weights=False):
    """Output and gradient by the values, which may be queries and keys too, as users of the framework take them."""
    backend, layer = attention.backend, attention.layer
    valid_lens, mask, causal = hiding["valid_lens"], hiding["mask"], hiding["causal"]
    options = {"mask": mask, "causal": causal, "training": training, "return_weights": return_weights}
    tab = dispatch.load(backend)

    def inputs(X):
        return (X, X, X) if queries is None else (queries, keys, X)

    def output(X):
        result = layer(*inputs(X), valid_lens, *options.values())
        return result[0] if return_weights else result

    with tab.context("float64"):
        given = (queries, keys, values, cotangent)
        queries, keys, values, cotangent = (None if X is None else tab.tensor(X) for X in given)
        if backend == "numpy":
            return output(values), attention.gradients(*inputs(values), **hiding, cotangent=cotangent)["values"]
        if backend == "torch":
            values.requires_grad_()
            X = output(values)
            X.backward(cotangent)
            gradient = values.grad
        elif backend == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                tape.watch(values)
                X = output(values)
            gradient = tape.gradient(X, values, cotangent)
        elif backend == "jax":
            import jax

            module, variables = layer.unbind()
            rngs = {"dropout": jax.random.key(3)}

            def output(X):
                result = module.apply(variables, *inputs(X), valid_lens, *options.values(), rngs=rngs)
                return result[0] if return_weights else result

            X, pull_back = jax.vjp(output, values)
            (gradient,) = pull_back(cotangent)
        else:
            from mxnet import autograd

            values.attach_grad()
            with autograd.record():
                X = output(values)
            X.backward(cotangent)
            gradient = values.grad.as_np_ndarray()
        return tab.to_numpy(X), tab.to_numpy(gradient)


def test_other_lengths_compile_nothing_new(backend):
    """Programs are compiled for shapes, and not for the lengths in them."""
    attention = mha.MultiHeadAttention(12, 3, backend=backend)
    X = np.ones((2, 8, 12), "float32")
    if backend == "jax":
        import jax

        called = jax.jit(lambda X, lengths: attention.layer(X, X, X, lengths))
        count = called._cache_size
    elif backend == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec((None, None, 12)), tf.TensorSpec((None,), tf.int32)]
        called = tf.function(lambda X, lengths: attention.layer(X, X, X, lengths), input_signature=signature)
        count = called.experimental_get_tracing_count
    else:
        return  # compile nothing by themselves
    for longest in range(1, 9):
        lengths = np.array([longest, 3], "int32")
        size = 8 if backend == "jax" else longest + 3  # any size is the same program in TensorFlow
        output = called(X[:, :1].repeat(size, 1), lengths)
        expected = mha.MultiHeadAttention(12, 3, backend="numpy")(*3 * [X[:, :1].repeat(size, 1)], lengths)
        np.testing.assert_allclose(output, expected, rtol=1e-5)
    assert count() == 1


@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize("hiding", ["nothing", "lengths", "causal"])
def test_any_sizes_are_three_programs_of_torch(backend, pooling, hiding):
    """Whatever the sizes are: one program for the first, one for another length, one for another number of samples."""
    if backend != "torch":
        return
    import torch

    programs = []

    def kept(program, inputs):
        programs.append(program)
        return program

    torch.compiler.reset()  # or the versions that earlier tests compiled count against torch's limit
    layer = mha.MultiHeadAttention(12, 3, pooling=pooling, backend=backend).layer
    compiled = torch.compile(layer, backend=kept)
    for B, T in ((2, 5), (2, 7), (3, 7), (3, 11), (5, 13), (5, 4), (2, 31), (7, 19)):
        X = torch.arange(B * T * 12, dtype=torch.float32).reshape(B, T, 12) / 100
        lengths = torch.arange(B) % T if hiding == "lengths" else None
        arguments = X, X, X, lengths, None, hiding == "causal"
        torch.testing.assert_close(compiled(*arguments), layer(*arguments))
    assert len(programs) <= 3


# How work is cut


def test_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)
    assert blocks.fits(60)
    assert not blocks.fits(61)
    assert blocks.queries(7, 10) == 4  # two blocks of 4 and 3, not of 6 and 1
    assert blocks.queries(6, 10) == 6
    assert blocks.queries(5, 1000) == 1
    assert blocks.queries(0, 10) == 1
    assert blocks.cuts(31) == [8, 16, 24, 31]
    assert blocks.cuts(2) == [1, 2]


def test_groups_of_samples(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)
    lengths = np.array([5, 2, 0])

    def groups(*arguments):
        return [(samples.start, samples.stop, longest, hides) for samples, longest, hides in blocks.groups(*arguments)]

    assert groups(3, 2, 3, 5) == [(0, 2, 5, False), (2, 3, 5, False)]  # 30 scores a sample
    assert groups(3, 2, 3, 5, lengths) == [(0, 2, 5, True), (2, 3, 1, True)]
    assert groups(3, 4, 4, 5, lengths) == [(0, 1, 5, False), (1, 2, 2, False), (2, 3, 1, True)]
    assert groups(1, 4, 4, 5, np.array([[5, 5, 4, 5]])) == [(0, 1, 5, True)]
    assert groups(1, 4, 3, 5, np.array([4]), True) == [(0, 1, 3, False)]  # in order, the third query is the last
