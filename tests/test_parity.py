"""Every backend computes what NumPy computes in float64, by the rules of mha/parity/, forward and gradients."""

import numpy as np
import pytest

import mha
from mha import dispatch, parity
from mha.config import numpy_dtype
from mha.parity import drawn
from mha.parity.more_cases import SMALL

# Where lower precisions may differ in more than rounding: at every scale, with either pooling, with many keys.
PRECISE = {"lengths per sample", "scale 0.01", "scale 30", "additive", "2053 keys"}


# Where compiling takes seconds, those of the options' cases that have several at once; `mha parity` tries all.
ONE_BY_ONE = {
    "grouped heads", "one head of keys", "window, offset", "score bias", "gates, scale, cap", "norms",
    "rotary, interleaved, offsets",
}  # fmt: skip


def failures(results):
    return [str(result) for result in results if not result.passed]


OTHERS = pytest.mark.backends("numpy", "torch", "mxnet")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=OTHERS if case.name in ONE_BY_ONE else ())
        for case in (*parity.CASES, *SMALL)
    ],
)
def test_case(backend, case):
    dtypes = case.dtypes
    if backend in ("jax", "tensorflow") and "float64" in dtypes and case.name not in PRECISE:
        dtypes = ("float64",)  # they compile each dtype for seconds; `mha parity` tries all
    for dtype in dtypes:
        if dtype in dispatch.load(backend).DTYPES:
            assert not failures(parity.check_case(backend, case, dtype))


def test_exactness(backend):
    for dtype in dispatch.load(backend).DTYPES:
        assert not failures(parity.check_exact(backend, dtype))


NO_JAX = pytest.mark.backends("numpy", "torch", "tensorflow", "mxnet")


@pytest.mark.parametrize(
    "number",
    [
        *(0, 1, 2),
        *(pytest.param(number, marks=NO_JAX) for number in (3, 4, 5)),
        *(pytest.param(number, marks=OTHERS) for number in range(6, 12)),
    ],
)
def test_drawn_sizes(backend, number):
    assert not failures(parity.check_case(backend, drawn.sizes(number), "float64"))


# An implementation of somebody else's


def far(attention, **changes):
    """The ratio of what the attention gives if something about it were otherwise."""
    rng = np.random.default_rng(5)
    dtype = numpy_dtype(attention.config.dtype)
    X, Y = (rng.normal(size=(2, T, 12)).astype(dtype) for T in (5, 7))
    call = {"valid_lens": np.array([3, 7]), "causal": True} | changes.pop("call", {})
    other = mha.MultiHeadAttention(**vars(attention.config), backend=attention.backend)
    other.weights = attention.weights | {name: change(attention.weights[name]) for name, change in changes.items()}
    output = other(*(mha.tensor(A, backend=attention.backend) for A in (X, Y, Y)), **call)
    return parity.ratio(attention, output, X, Y, Y, [3, 7], causal=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_ratio_tells_the_same_from_the_other(backend, dtype):
    attention = mha.MultiHeadAttention(12, 3, bias=True, dtype=dtype, backend=backend)
    assert far(attention) <= 1
    for name, change in {
        "W_q.kernel": lambda X: X.T,
        "W_o.kernel": lambda X: X[::-1],
        "W_v.bias": lambda X: X + 1e-3,
        "W_k.kernel": lambda X: X.reshape(12, 3, 4)[:, [1, 0, 2]].reshape(12, 12),  # heads in another order
    }.items():
        assert far(attention, **{name: change}) > 10, name
    assert far(attention, call={"causal": False}) > 10
    assert far(attention, call={"valid_lens": np.array([2, 7])}) > 10
