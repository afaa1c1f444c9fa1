"""Calls of the layer that users hold, its gradients and its steps, on every backend."""

import re

import adapters
import numpy as np
import pytest
from calls import B, D, H, K, Q, draw, make, same
from layers import agrees

import mha
from mha import parity
from mha.core import dispatch
from mha.core.call import Call
from mha.core.options.config import numpy_dtype

STEPS = {
    "W_q": (B, Q, H * 4), "W_k": (B, K, H * 4), "W_v": (B, K, H * 6),
    "split_q": (B * H, Q, 4), "split_k": (B * H, K, 4), "split_v": (B * H, K, 6),
    "scores": (B * H, Q, K), "weights": (B * H, Q, K), "pooled": (B * H, Q, 6),
    "merged": (B, Q, H * 6), "output": (B, Q, 11),
}  # fmt: skip


def test_numpy_in_numpy_out_and_native_in_native_out(backend, rng):
    attention, arrays, own = make(backend), draw(rng), adapters.of(backend).own
    output, weights = attention(*arrays, [3, 2], return_weights=True)
    assert type(output) is type(weights) is np.ndarray
    assert (output.shape, output.dtype, weights.shape) == ((B, Q, 11), np.float32, (B, H, Q, K))
    theirs, their_weights = attention(*own(*arrays), mha.tensor([3, 2], backend=backend), return_weights=True)
    assert dispatch.backend_of(theirs) == dispatch.backend_of(their_weights) == adapters.of_arrays(backend)
    assert np.array_equal(mha.to_numpy(theirs), output)
    assert np.array_equal(mha.to_numpy(their_weights), weights)
    for results in (attention.trace(*own(*arrays)), attention.gradients(*own(*arrays))):
        assert {dispatch.backend_of(result) for result in results.values()} == {adapters.of_arrays(backend)}


@pytest.mark.backends("torch")  # it records what any call does, unless told otherwise
def test_nothing_is_recorded_for_numpy_arrays_that_have_no_gradients(backend, rng):
    attention, arrays, recorded = make(backend), draw(rng), []
    attention.layer.W_q.register_forward_hook(lambda _, __, projected: recorded.append(projected.requires_grad))
    attention(*arrays)
    attention(*adapters.of(backend).own(*arrays))
    assert recorded == [False, True]


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


def test_trace_names_every_step_in_order(backend, rng):
    attention, arrays = make(backend, bias=True, dtype="float64"), draw(rng, "float64")
    steps = attention.trace(*arrays, [3, 2], causal=True)
    assert {name: step.shape for name, step in steps.items()} == STEPS
    assert list(steps) == list(STEPS)
    output, weights = attention(*arrays, [3, 2], causal=True, return_weights=True)
    assert agrees(steps["output"], output)
    assert agrees(steps["weights"].reshape(B, H, Q, K), weights)
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


@pytest.mark.parametrize("pooling", ["dot", pytest.param("additive", marks=pytest.mark.long(*adapters.COMPILED))])
@pytest.mark.parametrize(("batch", "num_queries", "num_keys"), [(0, Q, K), (B, 0, K), (B, Q, 0), (1, 1, 1)])
def test_empty_and_single(backend, batch, num_queries, num_keys, pooling):
    attention = make(backend, bias=True, pooling=pooling)
    shapes = (batch, num_queries, 13), (batch, num_keys, 17), (batch, num_keys, 19)
    arrays = [np.ones(shape, "float32") for shape in shapes]
    hiding = {"valid_lens": np.ones(batch, int), "causal": True, "mask": np.ones((num_queries, num_keys), bool)}
    each = [{name: value} for name, value in hiding.items()]
    for options in ({}, *([hiding] if adapters.of(backend).compiles_each_kind else each)):
        output, weights = attention(*arrays, **options, return_weights=True)
        assert output.shape == (batch, num_queries, 11)
        assert weights.shape == (batch, H, num_queries, num_keys)
        assert np.isfinite(output).all()
        gradients = attention.gradients(*arrays, **options)
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_no_samples_may_have_no_lengths(backend):
    empty = [np.ones(shape, "float32") for shape in ((0, Q, 13), (0, K, 17), (0, K, 19))]
    assert make(backend)(*empty, []).shape == (0, Q, D)


@pytest.mark.parametrize("pooling", ["dot", pytest.param("additive", marks=pytest.mark.long(*adapters.COMPILED))])
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


def test_a_call_says_whether_anything_hides_keys():
    hiding = {"causal": True}, {"valid_lens": [1]}, {"mask": [[True]]}, {"segments": [0]}, {"key_positions": [-1]}
    calls = [*(Call(**given) for given in hiding), Call().with_plan(window=(2, 0)), Call().with_plan(chunk=3)]
    assert [call.hides() for call in calls] == [True] * 7
    assert not Call(head_gates=[1.0]).hides()
