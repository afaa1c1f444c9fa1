"""The functions on arrays, and the book's on heads and scores, on every backend."""

import re

import adapters
import numpy as np
import pytest
from layers import agrees

import mha
from mha.core import dispatch


def test_arrays_are_made_and_taken_back(backend, monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", backend)
    for array, expected in (
        (mha.ones((2, 3)), np.ones((2, 3), "float32")),
        (mha.zeros((2, 3), "float64"), np.zeros((2, 3))),
        (mha.tensor([[1.5, 2], [3, 4]]), np.array([[1.5, 2], [3, 4]], "float32")),
        (mha.tensor([True, False]), np.array([True, False])),
        (mha.normal(1, 2, (2, 3), seed=4), np.random.default_rng(4).normal(1, 2, (2, 3)).astype("float32")),
    ):
        assert dispatch.backend_of(array) == adapters.of_arrays(backend)
        assert mha.to_numpy(array).dtype == expected.dtype
        assert np.array_equal(mha.to_numpy(array), expected)
        mha.check_shape(array, expected.shape)
    assert mha.to_numpy(mha.tensor([3, 2])).tolist() == [3, 2]
    for dtype in {"float16", "bfloat16"} - set(dispatch.load(backend).DTYPES):
        with pytest.raises(ValueError, match=f"is '{dtype}', expected one of float32, float64"):
            mha.ones((2,), dtype)


@pytest.mark.needs("64 bits everywhere")
def test_integers_may_have_64_bits(backend):
    assert mha.to_numpy(mha.tensor([2**40, 3], backend=backend)).tolist() == [2**40, 3]


@pytest.mark.backends("jax")
def test_integers_of_jax_have_32_bits():
    with pytest.raises(ValueError, match=r"^data holds integers beyond int32, the widest of 'jax'$"):
        mha.tensor([2**40, 3], backend="jax")


def test_transposes(backend):
    X = np.arange(2 * 3 * 10, dtype="float32").reshape(2, 3, 10)
    (array,) = adapters.of(backend).own(X)
    split = mha.transpose_qkv(array, 5)
    assert dispatch.backend_of(split) == adapters.of_arrays(backend)
    expected = np.stack([X[b, :, 2 * h : 2 * h + 2] for b in range(2) for h in range(5)])
    assert np.array_equal(mha.to_numpy(split), expected)
    assert np.array_equal(mha.to_numpy(mha.transpose_output(split, 5)), X)
    with pytest.raises(ValueError, match=re.escape("X has shape (2, 3, 10), expected axis 2 to be a multiple of")):
        mha.transpose_qkv(array, 4)
    with pytest.raises(ValueError, match=re.escape("expected axis 0 to be a multiple of num_heads = 3")):
        mha.transpose_output(split, 3)
    with pytest.raises(ValueError, match=re.escape("X has shape (3, 10), expected 3 axes")):
        mha.transpose_qkv(adapters.of(backend).own(X[0])[0], 5)


def test_masked_softmax(backend):
    X = np.log(np.array([[[1, 2, 4], [1, 1, 6]], [[3, 5, 8], [2, 2, 4]]], "float64"))
    (array,) = adapters.of(backend).own(X)
    for lengths, expected in (
        (None, [[[1 / 7, 2 / 7, 4 / 7], [1 / 8, 1 / 8, 6 / 8]], [[3 / 16, 5 / 16, 8 / 16], [1 / 4, 1 / 4, 2 / 4]]]),
        ([2, 1], [[[1 / 3, 2 / 3, 0], [1 / 2, 1 / 2, 0]], [[1, 0, 0], [1, 0, 0]]]),
        ([[1, 0], [2, 9]], [[[1, 0, 0], [0, 0, 0]], [[3 / 8, 5 / 8, 0], [1 / 4, 1 / 4, 2 / 4]]]),
    ):
        before = mha.to_numpy(array).copy()
        weights = mha.masked_softmax(array, lengths if lengths is None else mha.tensor(lengths, backend=backend))
        assert dispatch.backend_of(weights) == adapters.of_arrays(backend)
        assert agrees(mha.to_numpy(weights), np.array(expected))
        assert (mha.to_numpy(weights)[np.array(expected) == 0] == 0).all()
        assert np.array_equal(mha.to_numpy(array), before)
    with pytest.raises(ValueError, match=re.escape("X has shape (2, 3), expected (batch, queries, keys)")):
        mha.masked_softmax(adapters.of(backend).own(X[0])[0])
