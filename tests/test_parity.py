"""Every backend computes what NumPy computes in float64, by the rules of mha/parity/, forward and gradients."""

import numpy as np
import pytest

import mha
from mha import dispatch, parity
from mha.config import numpy_dtype

# Beyond the quick suite: what `mha parity` leaves out to stay quick.
MORE = (
    parity.Case("no bias", parity.WIDTHS | {"bias": False}, [3, 2]),
    parity.Case("additive, one head", {"num_hiddens": 11, "num_heads": 1, "pooling": "additive"}, [3, 2]),
    parity.Case("additive, head of width 1", {"num_hiddens": 7, "num_heads": 7, "pooling": "additive"}, [3, 2]),
    parity.Case("additive, lengths per query", parity.WIDTHS | {"pooling": "additive"}, [[1, 4, 2], [0, 3, 9]]),
    parity.Case("additive, 2053 keys", parity.WIDTHS | {"pooling": "additive"}, [2039], batch=1, num_keys=2053),
    parity.Case("more queries than keys, causal", parity.WIDTHS, causal=True, num_queries=13),
    parity.Case("mask of one row", parity.WIDTHS, mask=(1, 5)),
    parity.Case("mask of one column, every query or none", parity.WIDTHS, mask=(2, 1, 3, 1)),
    parity.Case("mask of one head for all", parity.WIDTHS, [4, 5], mask=(2, 1, 3, 5)),
    parity.Case(
        "scale 30, 2053 keys, causal",
        parity.WIDTHS,
        causal=True,
        scale=30.0,
        batch=1,
        num_queries=211,
        num_keys=2053,
        dtypes=("float32",),
    ),
    parity.Case(
        "half precision, unequal widths", parity.WIDTHS, [[1, 4, 2], [0, 3, 9]], dtypes=("float16", "bfloat16")
    ),
)


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
        for case in (*parity.CASES, *MORE)
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
def test_random_case(backend, number):
    draw = np.random.default_rng(number).integers
    heads, batch, queries, keys = draw(1, 7), draw(1, 5), draw(1, 9), draw(1, 11)
    mask = tuple(int(size) for size in (batch, heads, queries, keys))
    mask = [None, mask[2:], (mask[0], *mask[2:]), mask][draw(4)]
    mask = mask and tuple(1 if draw(4) == 0 else size for size in mask)
    options = {name: int(draw(1, 9)) for name in ("query_size", "key_size", "value_size", "key_dim", "value_dim")}
    options |= {"num_heads": int(heads), "num_hiddens": int(heads * draw(1, 6)), "bias": bool(draw(2))}
    case = parity.Case(
        f"random {number}",
        options | {"pooling": ("dot", "additive")[draw(2)]},
        valid_lens=[None, draw(0, keys + 2, batch).tolist(), draw(0, keys + 2, (batch, queries)).tolist()][draw(3)],
        mask=mask,
        causal=bool(draw(2)),
        batch=int(batch),
        num_queries=int(queries),
        num_keys=int(keys),
        dtypes=("float64",),
    )
    assert not failures(parity.check_case(backend, case, "float64"))


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
