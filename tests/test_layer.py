"""The layer that users hold, and the array functions beside it, on every backend."""

import copy
import dataclasses
import re

import numpy as np
import pytest

import mha
from mha import dispatch, parity
from mha.config import numpy_dtype

# B, Q, K, H, d, dv, the input widths and D all differ, so that a swapped axis fails.
B, Q, K, H = 2, 5, 7, 3
SIZES = {
    "num_hiddens": 11,
    "num_heads": H,
    "query_size": 13,
    "key_size": 17,
    "value_size": 19,
    "key_dim": 4,
    "value_dim": 6,
}
STEPS = {
    "W_q": (B, Q, H * 4), "W_k": (B, K, H * 4), "W_v": (B, K, H * 6),
    "split_q": (B * H, Q, 4), "split_k": (B * H, K, 4), "split_v": (B * H, K, 6),
    "scores": (B * H, Q, K), "weights": (B * H, Q, K), "pooled": (B * H, Q, 6),
    "merged": (B, Q, H * 6), "output": (B, Q, 11),
}  # fmt: skip


def make(backend, **options):
    return mha.MultiHeadAttention(**SIZES, backend=backend, **options)


def draw(rng, dtype="float32"):
    shapes = (B, Q, 13), (B, K, 17), (B, K, 19)
    return [rng.normal(size=shape).astype(numpy_dtype(dtype)) for shape in shapes]


def native(backend, *arrays):
    return [mha.tensor(array, backend=backend) for array in arrays]


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def agree(result, expected):
    """Whether float64 results are the same up to rounding."""
    return parity.error(result, expected) <= parity.bound("float64", expected, expected)


# Construction


def test_defaults_are_filled_in(backend):
    config = mha.MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5, backend=backend).config
    assert dataclasses.asdict(config) == {
        "num_hiddens": 100, "num_heads": 5, "dropout": 0.5, "bias": False,
        "query_size": 100, "key_size": 100, "value_size": 100, "key_dim": 20, "value_dim": 20,
        "pooling": "dot", "dtype": "float32",
    }  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_heads = 4


def test_given_head_widths(backend):
    assert mha.MultiHeadAttention(12, 4, key_dim=7, backend=backend).config.value_dim == 3
    assert mha.MultiHeadAttention(12, 4, value_dim=7, backend=backend).config.key_dim == 3
    assert mha.MultiHeadAttention(10, 3, key_dim=7, backend=backend).config.value_dim == 7


def test_dtypes_may_be_written_as_numpy_writes_them(backend):
    assert make(backend, dtype=np.float64).config.dtype == "float64"
    assert make(backend, dtype=np.dtype("float32")).config.dtype == "float32"


def test_a_dtype_that_the_framework_lacks_is_refused(backend):
    tab = dispatch.load(backend)
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        if dtype in tab.DTYPES:
            assert make(backend, dtype=dtype).weights["W_q.kernel"].dtype == numpy_dtype(dtype)
        else:
            with pytest.raises(ValueError, match=f"is {dtype!r}, expected one of float32, float64"):
                make(backend, dtype=dtype)


def test_the_seed_decides_the_weights_whatever_the_backend(backend):
    options = {"bias": True, "pooling": "additive"}
    assert same(make(backend, seed=3, **options).weights, make("numpy", seed=3, **options).weights)
    assert not same(make(backend, seed=3, **options).weights, make(backend, seed=4, **options).weights)
    weights = make(backend, seed=3, **options).weights
    assert not weights["W_o.bias"].any()
    limit = np.sqrt(6 / (13 + H * 4))
    assert 0.9 * limit < np.abs(weights["W_q.kernel"]).max() <= limit


def test_repr_says_all(backend):
    assert repr(make(backend)).startswith("MultiHeadAttention(num_hiddens=11, num_heads=3, dropout=0.0")
    assert repr(make(backend)).endswith(f"backend={backend!r})")


# Weights


def test_weights_are_canonical(backend):
    weights = make(backend, bias=True, pooling="additive").weights
    assert {name: array.shape for name, array in weights.items()} == {
        "W_q.kernel": (13, 12), "W_q.bias": (12,), "W_k.kernel": (17, 12), "W_k.bias": (12,),
        "W_v.kernel": (19, 18), "W_v.bias": (18,), "W_o.kernel": (18, 11), "W_o.bias": (11,),
        "attention.W_q.kernel": (4, 4), "attention.W_k.kernel": (4, 4), "attention.w_v.kernel": (4, 1),
    }  # fmt: skip
    assert all(type(array) is np.ndarray for array in weights.values())


def test_weights_come_out_as_they_went_in(backend, rng):
    attention = make(backend, bias=True)
    new = {name: rng.normal(size=array.shape).astype("float32") for name, array in attention.weights.items()}
    # Transposed, strided and read-only arrays hold the same numbers.
    given = new | {"W_q.kernel": np.asfortranarray(new["W_q.kernel"]), "W_k.kernel": new["W_k.kernel"][::-1][::-1]}
    given["W_v.kernel"] = np.ascontiguousarray(new["W_v.kernel"].T).T
    given["W_o.kernel"] = new["W_o.kernel"].copy()
    given["W_o.kernel"].flags.writeable = False
    attention.weights = given
    assert same(attention.weights, new)
    for array in attention.weights.values():
        array[:] = 0  # a copy
    assert same(attention.weights, new)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda w: w.pop("W_o.bias"), ValueError, "weights lacks W_o.bias"),
        (
            lambda w: w.update({"W_o.scale": w["W_o.bias"]}),
            ValueError,
            "weights has W_o.scale, which the layer has not",
        ),
        (lambda w: w.update({"W_o.kernel": w["W_o.kernel"].T}), ValueError, "weights['W_o.kernel'] has shape (11, 18)"),
        (lambda w: w.update({"W_o.bias": w["W_o.bias"].astype("float64")}), TypeError, "has dtype float64"),
        (lambda w: w.update({"W_o.bias": w["W_o.bias"].tolist()}), TypeError, "expected a NumPy array"),
    ],
    ids=["missing", "extra", "shape", "dtype", "list"],
)
def test_weights_that_do_not_fit_change_nothing(backend, change, error, text):
    attention = make(backend, bias=True)
    before = attention.weights
    wrong = {name: array + 1 for name, array in before.items()}
    change(wrong)
    with pytest.raises(error, match=re.escape(text)):
        attention.weights = wrong
    assert same(attention.weights, before)


def test_to_another_backend_and_back_is_exact(backend):
    attention = make(backend, seed=5, bias=True, pooling="additive", dropout=0.25)
    there = attention.to("numpy")
    assert there.backend == "numpy"
    assert there.config == attention.config
    assert same(there.weights, attention.weights)
    assert same(there.to(backend).weights, attention.weights)


def test_sync_copies_every_weight(backend):
    source, target = make("numpy", seed=1, bias=True), make(backend, seed=2, bias=True)
    mha.sync(source, target)
    assert same(target.weights, source.weights)
    mha.sync(make(backend, seed=3, bias=True), source)
    assert same(source.weights, make("numpy", seed=3, bias=True).weights)


@pytest.mark.parametrize(
    "options",
    [{"num_heads": 4}, {"bias": True}, {"pooling": "additive"}, {"dtype": "float64"}, {"num_hiddens": 24}],
    ids=str,
)
def test_sync_refuses_layers_that_differ(backend, options):
    plain = {"num_hiddens": 12, "num_heads": 2, "key_dim": 6, "value_dim": 6, "backend": backend}
    source, target = mha.MultiHeadAttention(**(plain | options)), mha.MultiHeadAttention(**plain, seed=1)
    before = target.weights
    option, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"target has {option}=.*, expected {value!r}"):
        mha.sync(source, target)
    assert same(target.weights, before)
    with pytest.raises(TypeError, match=r"source is a builtins\.dict, expected an mha\.Multi"):
        mha.sync({}, target)


# Calls


def test_numpy_in_numpy_out_and_native_in_native_out(backend, rng):
    attention, arrays = make(backend), draw(rng)
    output, weights = attention(*arrays, [3, 2], return_weights=True)
    assert type(output) is type(weights) is np.ndarray
    assert (output.shape, output.dtype, weights.shape) == ((B, Q, 11), np.float32, (B, H, Q, K))
    theirs, their_weights = attention(
        *native(backend, *arrays), mha.tensor([3, 2], backend=backend), return_weights=True
    )
    assert dispatch.backend_of(theirs) == dispatch.backend_of(their_weights) == backend
    assert np.array_equal(mha.to_numpy(theirs), output)
    assert np.array_equal(mha.to_numpy(their_weights), weights)
    for results in (attention.trace(*native(backend, *arrays)), attention.gradients(*native(backend, *arrays))):
        assert {dispatch.backend_of(result) for result in results.values()} == {backend}


def test_nested_lists_are_converted(backend, rng):
    attention, arrays = make(backend), draw(rng)
    assert np.array_equal(attention(*(array.tolist() for array in arrays)), attention(*arrays))


def test_numpy_arrays_of_any_memory_order(backend, rng):
    attention, (queries, keys, values) = make(backend), draw(rng)
    lengths, mask = np.array([3, 2]), rng.random((Q, K)) < 0.5
    expected = attention(queries, keys, values, lengths, mask=mask)
    ways = {
        "Fortran": np.asfortranarray,
        "negative strides": lambda X: np.ascontiguousarray(X[::-1])[::-1],
        "every other": lambda X: np.repeat(X, 2, axis=1)[:, ::2] if X.ndim > 1 else np.repeat(X, 2)[::2],
        "other byte order": lambda X: X.astype(X.dtype.newbyteorder()),
        "read-only": lambda X: np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
    }
    for way, change in ways.items():
        arrays = [change(X) for X in (queries, keys, values, lengths, mask)]
        assert np.array_equal(attention(*arrays[:4], mask=arrays[4]), expected), way


# Keras converts its variables in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_layer_can_be_copied(backend, rng):
    attention, arrays = make(backend), draw(rng)
    twin = copy.deepcopy(attention)
    expected = attention(*arrays)
    attention.weights = {name: array * 2 for name, array in attention.weights.items()}
    assert np.array_equal(twin(*arrays), expected)


def test_native_layer_and_dispatch_compute_the_same(backend, rng):
    attention, arrays = make(backend, bias=True), native(backend, *draw(rng))
    lengths = mha.tensor(np.array([3, 2], "int32"), backend=backend)
    output = dispatch.load(backend).attend(attention.layer, *arrays, lengths, None, True, False)
    assert np.array_equal(mha.to_numpy(output), mha.to_numpy(attention(*arrays, lengths, causal=True)))


def test_trace_names_every_step_in_order(backend, rng):
    attention, arrays = make(backend, bias=True, dtype="float64"), draw(rng, "float64")
    steps = attention.trace(*arrays, [3, 2], causal=True)
    assert {name: step.shape for name, step in steps.items()} == STEPS
    assert list(steps) == list(STEPS)
    output, weights = attention(*arrays, [3, 2], causal=True, return_weights=True)
    assert agree(steps["output"], output)
    assert agree(steps["weights"].reshape(B, H, Q, K), weights)
    assert np.array_equal(mha.transpose_qkv(steps["W_q"], H), steps["split_q"])
    assert np.array_equal(mha.transpose_output(steps["pooled"], H), steps["merged"])


def test_gradients_name_every_input_and_weight(backend, rng):
    attention, arrays = make(backend, bias=True, pooling="additive"), draw(rng)
    gradients = attention.gradients(*arrays)
    assert list(gradients) == ["queries", "keys", "values", *attention.weights]
    shapes = [array.shape for array in (*arrays, *attention.weights.values())]
    assert [gradient.shape for gradient in gradients.values()] == shapes
    assert same(gradients, attention.gradients(*arrays, cotangent=np.ones((B, Q, 11), "float32")))
    twice = attention.gradients(*arrays, cotangent=np.full((B, Q, 11), 2, "float32"))
    assert same(twice, {name: 2 * gradient for name, gradient in gradients.items()})


def test_the_same_call_gives_the_same_bits(backend, rng):
    attention, arrays = make(backend, dropout=0.5), draw(rng)
    first = attention(*arrays, [3, 2])
    assert np.array_equal(first, attention(*arrays, [3, 2]))
    with_weights = attention(*arrays, [3, 2], return_weights=True)[0]
    assert np.array_equal(with_weights, attention(*arrays, [3, 2], return_weights=True)[0])
    for output in (first, with_weights, attention(*arrays, np.array([[3] * Q, [2] * Q]))):
        assert parity.ratio(attention, output, *arrays, [3, 2]) <= 1


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_lengths_of_any_integer_dtype(backend, dtype):
    num_keys = 300  # above 255
    X, Y = np.ones((B, 1, 8), "float32"), np.ones((B, num_keys, 8), "float32")
    attention = mha.MultiHeadAttention(8, 2, backend=backend)
    lengths = np.array([0, 127], dtype)
    _, weights = attention(X, Y, Y, lengths, return_weights=True)
    assert ((weights > 0).sum(-1) == lengths[:, None, None]).all()


# NumPy before 1.24 warns of ragged lists and makes an array of objects.
@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")
@pytest.mark.parametrize(
    ("cotangent", "error", "text"),
    [
        (
            np.ones((B, Q, 12), "float32"),
            ValueError,
            "cotangent has shape (2, 5, 12), expected (2, 5, 11) as the output",
        ),
        (np.ones((B, 11), "float32"), ValueError, "cotangent has shape (2, 11), expected (2, 5, 11) as the output"),
        (np.ones((B, Q, 11)), TypeError, "cotangent has dtype float64, expected float32 as the layer"),
        ("ones", TypeError, "cotangent is a str, expected a NumPy array, nested lists or an array of backend"),
        ([[1.0], [1.0, 2.0]], (TypeError, ValueError), "cotangent is a "),
        ([["a"]], TypeError, "cotangent holds <U1 values, expected numbers"),
    ],
    ids=str,
)
def test_bad_cotangents_are_refused(backend, rng, cotangent, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make(backend).gradients(*draw(rng), cotangent=cotangent)


@pytest.mark.parametrize("option", ["causal", "training", "return_weights"])
def test_switches_are_true_or_false(backend, rng, option):
    with pytest.raises(TypeError, match=f"{option} is 1 .int., expected True or False"):
        make(backend)(*draw(rng), **{option: 1})


def test_hidden_means_hidden(backend, rng):
    attention, (queries, keys, values) = make(backend, bias=True), draw(rng)
    lengths = np.array([3, 2])
    output, weights = attention(queries, keys, values, lengths, return_weights=True)
    gradients = attention.gradients(queries, keys, values, lengths)
    steps = attention.trace(queries, keys, values, lengths)
    for filling in (np.nan, np.inf, -np.inf, 1e30):
        for sample, length in enumerate(lengths):
            keys[sample, length:], values[sample, length:] = filling, -filling
        theirs, their_weights = attention(queries, keys, values, lengths, return_weights=True)
        assert np.array_equal(theirs, output)
        assert np.array_equal(their_weights, weights)
        assert same(attention.gradients(queries, keys, values, lengths), gradients)
        assert np.array_equal(attention.trace(queries, keys, values, lengths)["output"], steps["output"])
    for sample, length in enumerate(lengths):
        assert not weights[sample, :, :, length:].any()
        assert not gradients["keys"][sample, length:].any()
        assert not gradients["values"][sample, length:].any()


@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_a_query_that_sees_no_key(backend, rng, pooling):
    attention, (queries, keys, values) = make(backend, bias=True, pooling=pooling), draw(rng)
    given = attention.weights
    attention.weights = given | {"W_o.bias": given["W_o.bias"] + 3}
    lengths = np.full((B, Q), K)
    lengths[0, 2], lengths[1] = 0, 0
    queries[0, 2] = np.nan  # it may hold anything
    output, weights = attention(queries, keys, values, lengths, return_weights=True)
    steps = attention.trace(queries, keys, values, lengths)
    gradients = attention.gradients(queries, keys, values, lengths)
    assert not weights[0, :, 2].any()
    assert not weights[1].any()
    assert not steps["pooled"].reshape(B, H, Q, 6)[1].any()
    assert (output[1] == 3).all()
    assert (output[0, 2] == 3).all()
    assert np.isfinite(output).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert not gradients["queries"][0, 2].any()
    assert not any(gradients[name][1].any() for name in ("queries", "keys", "values"))


@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize(("batch", "num_queries", "num_keys"), [(0, Q, K), (B, 0, K), (B, Q, 0), (1, 1, 1)])
def test_empty_and_single(backend, batch, num_queries, num_keys, pooling):
    attention = make(backend, bias=True, pooling=pooling)
    shapes = (batch, num_queries, 13), (batch, num_keys, 17), (batch, num_keys, 19)
    arrays = [np.ones(shape, "float32") for shape in shapes]
    mask = np.ones((num_queries, num_keys), bool)
    for options in ({}, {"valid_lens": np.ones(batch, int)}, {"causal": True}, {"mask": mask}):
        output, weights = attention(*arrays, **options, return_weights=True)
        assert output.shape == (batch, num_queries, 11)
        assert weights.shape == (batch, H, num_queries, num_keys)
        assert np.isfinite(output).all()
        gradients = attention.gradients(*arrays, **options)
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert attention(*arrays, []).shape == (0, Q, 11) if batch == 0 else True


@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, K), (Q, 0)])
def test_where_nobody_looks_nothing_matters(backend, num_queries, num_keys, pooling):
    attention = make(backend, bias=True, pooling=pooling)
    arrays = [
        np.full(shape, np.nan, "float32") for shape in ((B, num_queries, 13), (B, num_keys, 17), (B, num_keys, 19))
    ]
    for lengths in (None, [num_keys] * B):
        for _ in range(10):  # memory that nobody wrote to holds 0 now and then
            gradients = attention.gradients(*arrays, lengths)
            assert (gradients.pop("W_o.bias") == B * num_queries).all()
            assert not any(gradient.any() for gradient in gradients.values())


def test_results_are_the_callers_own(backend, rng):
    attention, arrays = make(backend), draw(rng)
    expected = attention(*arrays)
    for results in ({"output": attention(*arrays)}, attention.gradients(*arrays), attention.trace(*arrays)):
        for array in results.values():
            array += 1
    made = mha.tensor(arrays[0], backend=backend)
    before = mha.to_numpy(made).copy()
    arrays[0] += 1
    assert np.array_equal(mha.to_numpy(made), before)
    arrays[0] -= 1
    assert np.array_equal(attention(*draw(np.random.default_rng(20170612))), expected)


def test_infinite_scores_stay_in_their_row(backend, rng):
    attention, (queries, keys, values) = make(backend, dtype="float64"), draw(rng, "float64")
    plain = attention(queries, keys, values)
    queries[0, 1] = np.nan
    output = attention(queries, keys, values)
    assert np.isnan(output[0, 1]).all()
    others = np.ones((B, Q), bool)
    others[0, 1] = False
    assert agree(output[others], plain[others])


def test_half_precision_scores_do_not_overflow(backend):
    for dtype in dispatch.load(backend).DTYPES:
        attention = mha.MultiHeadAttention(4, 1, dtype=dtype, backend=backend)
        one = np.eye(4, dtype=numpy_dtype(dtype))
        attention.weights = dict.fromkeys(attention.weights, one)
        X = np.zeros((1, 2, 4), numpy_dtype(dtype))
        X[0, 0, 0], X[0, 1, 0] = 500, -500  # scores of 500 * 500 / 2: above 65504
        output, weights = attention(X, X, X, return_weights=True)
        assert np.array_equal(weights[0, 0].astype("float64"), np.eye(2))
        assert np.array_equal(output, X)
        assert all(np.isfinite(G.astype("float64")).all() for G in attention.gradients(X, X, X).values())


# Arrays


def test_arrays_are_made_and_taken_back(backend, monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", backend)
    for array, expected in (
        (mha.ones((2, 3)), np.ones((2, 3), "float32")),
        (mha.zeros((2, 3), "float64"), np.zeros((2, 3))),
        (mha.tensor([[1.5, 2], [3, 4]]), np.array([[1.5, 2], [3, 4]], "float32")),
        (mha.tensor([True, False]), np.array([True, False])),
        (mha.normal(1, 2, (2, 3), seed=4), np.random.default_rng(4).normal(1, 2, (2, 3)).astype("float32")),
    ):
        assert dispatch.backend_of(array) == backend
        assert mha.to_numpy(array).dtype == expected.dtype
        assert np.array_equal(mha.to_numpy(array), expected)
        mha.check_shape(array, expected.shape)
    with pytest.raises(ValueError, match=re.escape("array has shape (2, 3), expected (3, 2)")):
        mha.check_shape(mha.ones((2, 3)), (3, 2))
    with pytest.raises(TypeError, match="data has dtype str32, expected numbers or booleans"):
        mha.tensor(["a"])
    with pytest.raises(TypeError, match="X is a list, expected an array of numpy, torch, tensorflow, jax, mxnet"):
        mha.to_numpy([1.0])
    assert mha.to_numpy(mha.tensor([3, 2])).tolist() == [3, 2]
    try:
        assert mha.to_numpy(mha.tensor([2**40, 3])).tolist() == [2**40, 3]
    except ValueError as error:
        assert str(error) == f"data holds integers beyond int32, the widest of {backend!r}"  # noqa: PT017
    for dtype in {"float16", "bfloat16"} - set(dispatch.load(backend).DTYPES):
        with pytest.raises(ValueError, match=f"is '{dtype}', expected one of float32, float64"):
            mha.ones((2,), dtype)


def test_transposes(backend):
    X = np.arange(2 * 3 * 10, dtype="float32").reshape(2, 3, 10)
    (array,) = native(backend, X)
    split = mha.transpose_qkv(array, 5)
    assert dispatch.backend_of(split) == backend
    expected = np.stack([X[b, :, 2 * h : 2 * h + 2] for b in range(2) for h in range(5)])
    assert np.array_equal(mha.to_numpy(split), expected)
    assert np.array_equal(mha.to_numpy(mha.transpose_output(split, 5)), X)
    with pytest.raises(ValueError, match=re.escape("X has shape (2, 3, 10), expected axis 2 to be a multiple of")):
        mha.transpose_qkv(array, 4)
    with pytest.raises(ValueError, match=re.escape("expected axis 0 to be a multiple of num_heads = 3")):
        mha.transpose_output(split, 3)
    with pytest.raises(ValueError, match=re.escape("X has shape (3, 10), expected 3 axes")):
        mha.transpose_qkv(native(backend, X[0])[0], 5)


def test_masked_softmax(backend):
    X = np.log(np.array([[[1, 2, 4], [1, 1, 6]], [[3, 5, 8], [2, 2, 4]]], "float64"))
    (array,) = native(backend, X)
    for lengths, expected in (
        (None, [[[1 / 7, 2 / 7, 4 / 7], [1 / 8, 1 / 8, 6 / 8]], [[3 / 16, 5 / 16, 8 / 16], [1 / 4, 1 / 4, 2 / 4]]]),
        ([2, 1], [[[1 / 3, 2 / 3, 0], [1 / 2, 1 / 2, 0]], [[1, 0, 0], [1, 0, 0]]]),
        ([[1, 0], [2, 9]], [[[1, 0, 0], [0, 0, 0]], [[3 / 8, 5 / 8, 0], [1 / 4, 1 / 4, 2 / 4]]]),
    ):
        before = mha.to_numpy(array).copy()
        weights = mha.masked_softmax(array, lengths if lengths is None else mha.tensor(lengths, backend=backend))
        assert dispatch.backend_of(weights) == backend
        assert agree(mha.to_numpy(weights), np.array(expected))
        assert (mha.to_numpy(weights)[np.array(expected) == 0] == 0).all()
        assert np.array_equal(mha.to_numpy(array), before)
    with pytest.raises(ValueError, match=re.escape("valid_lens has shape (3,), expected (2,) or (2, 2)")):
        mha.masked_softmax(array, [1, 2, 3])
    with pytest.raises(ValueError, match=re.escape("X has shape (2, 3), expected (batch, queries, keys)")):
        mha.masked_softmax(native(backend, X[0])[0])
