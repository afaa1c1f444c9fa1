"""The names of the book's next edition: its layer and its pooling, as its chapter on attention makes and calls them."""

import adapters
import numpy as np
import pytest
from calls import same

import mha
from mha import parity
from mha.core import dispatch
from mha.core.call import Call

from . import next_book

B, Q, K, H, d, dv = 2, 3, 5, 7, 11, 13
D = H * d
LENGTHS = {"none": None, "per sample": np.array([4, 0]), "per query": np.array([[1, 9, 0], [5, 2, 3]])}
EACH_LENGTHS = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
BIAS = pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
# In PyTorch, the layer and the pooling are those of today, which `test_d2l.py` tries.
pytestmark = pytest.mark.backends("jax")


@pytest.fixture
def book(backend):
    with next_book.d2l_of(backend) as module:
        yield module


@pytest.fixture
def framework(backend):
    return next_book.of(backend)


def draw(backend, rng, *shapes):
    """Random arrays of the backend's."""
    return adapters.of(backend).own(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def poison(lengths, *arrays):
    """Keys or values with no numbers in the rows that no query sees."""
    longest = np.full(B, K) if lengths is None else lengths.reshape(B, -1).max(1)
    return [np.where((np.arange(K) < longest[:, None])[..., None], X, np.float32("nan")) for X in arrays]


def close(result, expected):
    result, expected = (mha.to_numpy(X) for X in (result, expected))
    assert parity.error(result, expected) <= parity.bound("float32", expected, expected)


def layer_and_reference(backend, book, rng, bias=False, dropout=0.5):
    """The book's layer, and that of `mha` with the same weights, biases random."""
    reference = mha.MultiHeadAttention(D, H, dropout, bias, seed=3, backend=backend)
    reference.weights = {
        name: X if X.ndim == 2 else rng.normal(size=X.shape).astype(X.dtype) for name, X in reference.weights.items()
    }
    layer = book.MultiHeadAttention(D, H, dropout, bias)
    next_book.put_all(next_book.of(backend), layer, reference.weights)
    return layer, reference


# What the chapter does, in its order


@pytest.mark.long("jax")  # which compiles it for seconds
def test_the_chapter_runs(backend, book, framework, rng):
    attention = book.MultiHeadAttention(60, 5, 0.5)
    X, Y, Z, valid_lens = book.ones((2, 4, 60)), book.ones((2, 6, 60)), book.ones((2, 9, 60)), book.tensor([3, 2])
    for keys, lengths in ((Y, valid_lens), (X, valid_lens), (Z, None)):
        book.check_shape(framework.call(attention, X, keys, keys, lengths)[0], (2, 4, 60))
    inputs = draw(backend, rng, (2, 1, 2), (2, 10, 2), (2, 10, 4))
    output, weights = framework.call(book.DotProductAttention(dropout=0.5), *inputs, book.tensor([2, 6]))
    book.check_shape(output, (2, 1, 4))
    assert (weights.reshape((1, 1, 2, 10)) != 0).sum() == 2 + 6
    for num_heads in (1, 3):
        assert framework.count(book.MultiHeadAttention(num_hiddens=60, num_heads=num_heads, dropout=0)) == 14400
    attention = book.MultiHeadAttention(num_hiddens=60, num_heads=4, dropout=0)
    (Z,), order = draw(backend, rng, (1, 8, 60)), rng.permutation(8)
    found, moved = (framework.call(attention, *[X] * 3, None)[0] for X in (Z, Z[:, order]))
    close(found[:, order], moved)


# The layer


@EACH_LENGTHS
def test_a_layer_gives_the_numbers_of_the_lesson(backend, book, framework, rng, lengths):
    layer, reference = layer_and_reference(backend, book, rng, bias=True)
    arrays = [rng.normal(size=(B, T, D)).astype(np.float32) for T in (Q, K, K)]
    *inputs, valid_lens = adapters.of(backend).own(*arrays, lengths)
    poisoned = adapters.of(backend).own(*poison(lengths, *arrays[1:]))
    output, weights = framework.call(layer, inputs[0], *poisoned, valid_lens)
    lesson = dispatch.lesson(backend)
    plain = lesson.build(reference.config, reference.weights, 0, lesson.MultiHeadAttention)
    call = Call(valid_lens, training=False, return_weights=True)
    expected, expected_weights = lesson.attend(plain, *inputs, call)
    np.testing.assert_array_equal(mha.to_numpy(output), mha.to_numpy(expected))
    assert tuple(weights.shape) == (B * H, Q, K)
    np.testing.assert_array_equal(mha.to_numpy(weights).reshape(B, H, Q, K), mha.to_numpy(expected_weights))
    compiled = framework.nnx.jit(lambda layer, *given: layer(*given)[0])
    view = framework.nnx.view(layer, deterministic=True)
    for one in (output, compiled(view, inputs[0], *poisoned, valid_lens)):
        assert parity.ratio(reference, one, *inputs, valid_lens) <= 1


@BIAS
def test_gradients_are_those_of_mha(backend, book, framework, rng, bias):
    lengths = LENGTHS["per query"]
    layer, reference = layer_and_reference(backend, book, rng, bias, dropout=0.0)
    inputs, cotangent = draw(backend, rng, (B, Q, D), (B, K, D), (B, K, D)), draw(backend, rng, (B, Q, D))[0]
    (valid_lens,) = adapters.of(backend).own(lengths)

    def loss(layer):
        return (framework.call(layer, *inputs, valid_lens, training=True)[0] * cotangent).sum()

    found = framework.gradients(layer, loss, *(getattr(layer, name) for name in next_book.NAMES))
    given = [mha.to_numpy(X) for X in (*inputs, cotangent)]
    base, exact = (of_numpy(reference, given, lengths, dtype) for dtype in ("float32", "float64"))
    for name, (kernel, at_bias) in zip(next_book.NAMES, found, strict=True):
        assert (at_bias is None) == (not bias)
        for key, X in (("kernel", kernel), *([("bias", at_bias)] if bias else [])):
            whole = f"{name}.{key}"
            scale = parity.gradient_scale(whole, exact)
            limit = parity.bound("float32", exact[whole], base[whole], gradient=True, scale=scale)
            assert parity.error(X, exact[whole]) <= limit, whole


def of_numpy(reference, given, lengths, dtype):
    """The gradients of a layer's loss, by the NumPy backend in a dtype."""
    config = reference.config
    oracle = mha.MultiHeadAttention(
        config.num_hiddens, config.num_heads, bias=config.bias, dtype=dtype, backend="numpy"
    )
    oracle.weights = {name: X.astype(dtype) for name, X in reference.weights.items()}
    *inputs, cotangent = (X.astype(dtype) for X in given)
    return oracle.gradients(*inputs, lengths, cotangent=cotangent)


@BIAS
def test_parameters_are_counted_as_in_the_book(backend, book, framework, bias):
    for heads in (1, H, d):
        assert framework.count(book.MultiHeadAttention(D, heads, 0.5, bias)) == 4 * (D * D + D * bias)
    assert framework.count(book.DotProductAttention(0.5)) == 0


def test_dropout_is_on_in_training_alone(backend, book, framework, rng):
    X, Y = draw(backend, rng, (B, Q, D), (B, K, D))
    attention = book.MultiHeadAttention(D, H, 0.5)
    evaluated, weights = framework.call(attention, X, Y, Y, None)
    again, _ = framework.call(attention, X, Y, Y, None)
    trained, in_training = framework.call(attention, X, Y, Y, None, training=True)
    once_more, _ = framework.call(attention, X, Y, Y, None, training=True)
    np.testing.assert_array_equal(mha.to_numpy(again), mha.to_numpy(evaluated))
    assert not np.array_equal(mha.to_numpy(trained), mha.to_numpy(evaluated))
    assert not np.array_equal(mha.to_numpy(trained), mha.to_numpy(once_more))
    np.testing.assert_array_equal(mha.to_numpy(in_training), mha.to_numpy(weights))


def test_dropped_weights_are_zeros_and_the_kept_ones_grow(backend, book, framework, rng):
    X, (eye,) = (
        draw(backend, rng, (B, Q, d))[0],
        adapters.of(backend).own(np.eye(Q, dtype=np.float32)[None].repeat(B, 0)),
    )
    dropped, weights = framework.call(book.DotProductAttention(0.75), X, X, eye, None, training=True)
    dropped, grown = mha.to_numpy(dropped), 4 * mha.to_numpy(weights)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.size
    close(dropped[kept], grown[kept])


@BIAS
def test_a_layer_becomes_one_of_mha(backend, book, framework, rng, bias):
    layer, reference = layer_and_reference(backend, book, rng, bias)
    taken = mha.from_native(layer)
    assert taken.config == reference.config
    assert same(taken.weights, reference.weights)
    X, Y = draw(backend, rng, (B, Q, D), (B, K, D))
    assert parity.ratio(taken, framework.call(layer, X, Y, Y, None)[0], X, Y, Y) <= 1


def test_a_layer_of_nnx_as_the_book_prints_it_becomes_one_of_mha(framework, rng):
    nnx = framework.nnx

    class DotProductAttention(nnx.Module):
        def __init__(self, rngs):
            self.dropout = nnx.Dropout(0.25, rngs=rngs)

    class MultiHeadAttention(nnx.Module):
        def __init__(self, rngs):
            self.num_heads, self.attention = H, DotProductAttention(rngs)
            for name in next_book.NAMES:
                setattr(self, name, nnx.Linear(D, D, rngs=rngs))

    layer = MultiHeadAttention(nnx.Rngs(3))
    taken = mha.from_native(layer, backend="jax")
    assert taken.config == mha.core.options.config.Config(D, H, 0.25, True)
    expected = {f"{name}.kernel": framework.read(getattr(layer, name))[0] for name in next_book.NAMES}
    assert same({name: taken.weights[name] for name in expected}, expected)
    layer.W_k = nnx.Embed(D, D, rngs=nnx.Rngs(4))
    with pytest.raises(TypeError, match="W_k of the layer is a Embed, expected a Dense or Linear as in the book"):
        mha.from_native(layer)


def test_arguments_that_do_not_fit_are_refused(backend, book, framework, rng):
    with pytest.raises(ValueError, match="num_hiddens is 10, expected a multiple of num_heads = 3"):
        book.MultiHeadAttention(10, 3, 0.5)
    with pytest.raises(ValueError, match=r"dropout is 1.5, expected a float in \[0, 1\)"):
        book.DotProductAttention(1.5)
    with pytest.raises(TypeError):
        book.MultiHeadAttention(D, H, 0.5, use_bias=True)
    attention = book.MultiHeadAttention(D, H, 0.0)
    X, Y = draw(backend, rng, (B, Q, D), (B, K, D))
    (lengths,) = adapters.of(backend).own(np.array([[1, 2], [3, 4], [5, 1]]))
    for call in (
        lambda: framework.call(attention, X, Y, Y, lengths),
        lambda: framework.call(attention, X, Y[:, :, 1:], Y),
    ):
        with pytest.raises(ValueError, match=r"valid_lens has shape \(3, 2\)|keys has shape \(2, 5, 76\)"):
            call()


# The pooling


@EACH_LENGTHS
def test_a_pooling_gives_the_numbers_of_numpy(backend, book, framework, rng, lengths):
    inputs = [rng.normal(size=shape).astype(np.float32) for shape in ((B, Q, d), (B, K, d), (B, K, dv))]
    given = adapters.of(backend).own(inputs[0], *poison(lengths, *inputs[1:]), lengths)
    results = framework.call(book.DotProductAttention(dropout=0.5), *given)
    numpy = dispatch.load("numpy")
    visible = numpy.visible_keys(*inputs[:2], Call(lengths))
    visible = None if visible is None else visible[:, 0]
    expected = [numpy.DotProductAttention(0.0)(*(X.astype(t) for X in inputs), visible) for t in ("float32", "float64")]
    for result, base, exact in zip(results, *expected, strict=True):
        assert parity.error(mha.to_numpy(result), exact) <= parity.bound("float32", exact, base)


# What NNX does with a module


def test_a_compiled_step_trains_with_new_dropout_each_time(backend, book, framework, rng):
    nnx = framework.nnx
    X, Y = draw(backend, rng, (B, Q, D), (B, Q, D))
    layer = book.MultiHeadAttention(D, H, 0.5)
    before = framework.read(layer.W_q)[0]
    optimizer = framework.optimizer(layer, 1e-2)

    @nnx.jit
    def step(layer, optimizer):
        loss, gradients = nnx.value_and_grad(lambda layer: ((layer(X, X, X, None)[0] - Y) ** 2).mean())(layer)
        optimizer.update(layer, gradients)
        return loss

    compiled = nnx.jit(lambda layer: layer(X, X, X, None)[0])
    assert not np.array_equal(mha.to_numpy(compiled(layer)), mha.to_numpy(compiled(layer)))
    losses = [float(step(layer, optimizer)) for _ in range(40)]
    assert losses[-1] < losses[0] / 2
    assert not np.array_equal(framework.read(layer.W_q)[0], before)


def test_a_seed_gives_the_weights_of_dense_layers_in_the_order_of_the_book(book, framework):
    nnx = framework.nnx
    layer, rngs = book.MultiHeadAttention(D, H, 0.5, True, rngs=nnx.Rngs(5)), nnx.Rngs(5)
    assert (layer.num_hiddens, layer.num_heads) == (D, H)
    nnx.Dropout(0.5, rngs=rngs)
    for name in next_book.NAMES:
        expected = nnx.Linear(D, D, rngs=rngs)
        for found, own in zip(framework.read(getattr(layer, name)), framework.read(expected), strict=True):
            np.testing.assert_array_equal(found, own)
    # Without a seed, all have the same.
    np.testing.assert_array_equal(*(framework.read(book.MultiHeadAttention(D, H, 0.5).W_v)[0] for _ in range(2)))


def test_dropout_is_that_of_nnx_from_the_same_seed(backend, book, framework, rng):
    nnx = framework.nnx
    X, values = draw(backend, rng, (B, Q, d), (B, Q, dv))
    pooled, weights = framework.call(book.DotProductAttention(0.5), X, X, values, None, training=True)
    close(pooled, nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=0))(weights) @ values)


def test_a_view_has_the_weights_of_its_layer_and_a_layer_is_put_together_again(backend, book, framework, rng):
    nnx = framework.nnx
    (X,) = draw(backend, rng, (B, Q, D))
    layer = book.MultiHeadAttention(D, H, 0.5)
    view = nnx.view(layer, deterministic=True)
    framework.put(layer.W_o, rng.normal(size=(D, D)).astype(np.float32))
    expected, _ = view(X, X, X, None)
    np.testing.assert_array_equal(mha.to_numpy(framework.call(layer, X, X, X)[0]), mha.to_numpy(expected))
    again = nnx.merge(*nnx.split(layer))
    np.testing.assert_array_equal(mha.to_numpy(framework.call(again, X, X, X)[0]), mha.to_numpy(expected))
    layer.W_v = nnx.Linear(D, D, rngs=nnx.Rngs(9))  # a part of one's own is used
    assert not np.array_equal(mha.to_numpy(framework.call(layer, X, X, X)[0]), mha.to_numpy(expected))
