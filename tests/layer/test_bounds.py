"""Values where a bound changes sides: the ends of windows and orders, at offsets before, among and beyond the keys.

The formula of `formula.py` says what is right, also in small pieces and where only a compiler's call knows the offset.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import functools

import adapters
import alone
import formula
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.engine import blocks
from mha.core.options import checks
from mha.core.options.config import numpy_dtype

B, Q, K, H, D = 3, 5, 7, 6, 24
LONG = pytest.mark.long(*adapters.COMPILED)
EAGER = pytest.mark.backends(*adapters.EAGER)  # the others compile for each, and have windows that are cut the same way
WINDOWS = [(2, 1), *(pytest.param(one, marks=LONG) for one in ((1, None), (None, 0)))]
WINDOWS += [pytest.param(one, marks=EAGER) for one in ((0, 0), (1, 0), (None, 1))]
# From where no query has reached the first key to where all are past the last, by a window of these or none.
OFFSETS = (-Q - 1, -Q, 1 - Q, -2, -1, 0, 1, K - Q, K - Q + 1, K - Q + 2, K - Q + 3, K, K + 1, K + 2)
PIECES = {"one piece": blocks.SCORES, "blocks of queries": 2 * H * K, "samples": 2 * H * Q * K}
GAPS = ((1, 7, 0, 4, 7), (2, 2, 2, 7, 4), (7, 1, 7, 1, 7))  # with a window to the left, keys between are unseen


@pytest.fixture(params=["one piece", *(pytest.param(name, marks=LONG) for name in ("blocks of queries", "samples"))])
def pieces(request, backend, monkeypatch):
    """Calls in one piece, in blocks of some queries of one head, and in some samples at once."""
    monkeypatch.setattr(blocks, "SCORES", PIECES[request.param])
    adapters.of(backend).forget_programs()
    yield
    adapters.of(backend).forget_programs()


def layer(backend, **options):
    return alone.Alone("", options, {}).layer(backend)


@functools.cache
def inputs(num_queries=Q, num_keys=K):
    random = np.random.default_rng(2)
    return [random.normal(size=(B, T, D)) for T in (num_queries, num_keys, num_keys)]


@functools.cache
def expected(window, offset, lengths=None, causal=False):
    """The output by the formula, the gradients of NumPy's lesson, and the inputs with NaN where nothing is seen."""
    attention, call = layer("numpy", window=window, readable=True), as_call(offset, lengths, causal)
    output, weights = formula.both(attention.config, attention.weights, *inputs(), **call)
    gradients = attention.gradients(*inputs(), **call)
    sees, seen = (weights > 0).any((1, 3)), (weights > 0).any((1, 2))  # (B, Q), (B, K)
    used = zip(inputs(), (sees, seen, seen), strict=True)
    return output, gradients, [np.where(rows[:, :, None], X, np.nan) for X, rows in used]


def as_call(offset, lengths=None, causal=False):
    """The arguments of a call, of what may be tuples."""
    lengths, offset = (np.array(X) if isinstance(X, tuple) else X for X in (lengths, offset))
    return {"valid_lens": lengths, "offset": offset, "causal": causal}


def assert_right(attention, window, offset, lengths=None, causal=False, gradients=True):
    output, by_all, poisoned = expected(window, offset, lengths, causal)
    call = as_call(offset, lengths, causal)
    assert close(attention(*poisoned, **call), output), offset
    if gradients:
        found, size = attention.gradients(*poisoned, **call), max(map(parity.largest, by_all.values()))
        assert all(close(found[name], X, gradient=True, scale=size) for name, X in by_all.items()), offset


def close(found, wanted, **more):
    return parity.error(mha.to_numpy(found), wanted) <= parity.bound("float64", wanted, wanted, **more)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows_at_every_offset(backend, pieces, window):
    attention = layer(backend, window=window)
    for offset in OFFSETS:
        assert_right(attention, window, offset, gradients=offset in (-Q, -1, K - Q + 2, K + 1))


@pytest.mark.parametrize("window", WINDOWS[:3], ids=str)
@pytest.mark.parametrize("offset", [-checks.FURTHEST, checks.FURTHEST])
def test_the_furthest_positions(backend, offset, window):
    """Sums of an offset and a side of a window are exact beyond what 32 bits hold."""
    far = tuple(side and checks.FURTHEST for side in window)
    for sides in (window, far):
        assert_right(layer(backend, window=sides), sides, offset, gradients=False)


@pytest.mark.parametrize("window", [None, (1, None)], ids=str)
@LONG
def test_causal_order_at_every_offset(backend, pieces, window):
    attention = layer(backend, window=window)
    for offset in OFFSETS:
        assert_right(attention, window, offset, causal=True, gradients=offset == -1)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@LONG
def test_windows_at_an_offset_of_each_sample(backend, pieces, window):
    attention = layer(backend, window=window)
    for offset in OFFSETS[::3]:
        assert_right(attention, window, (offset, K - 2 - offset, -1), gradients=offset == 0)


@pytest.mark.parametrize("window", [(0, 1), (1, None)], ids=str)
@LONG
def test_lengths_per_query_beside_a_window_leave_gaps(backend, pieces, window):
    attention = layer(backend, window=window)
    for offset in (-2, 0, 1, 3, (2, -1, 5)):
        assert_right(attention, window, offset, GAPS)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@LONG
def test_lengths_at_their_bounds(backend, pieces, causal):
    attention = layer(backend)
    for lengths in ((0, 0, 0), (0, 1, K), (1, 1, 1), (K - 1, K, K + 1), (K - 1, K - 1, K - 1), (K, K, K), (K, 0, K)):
        assert_right(attention, None, 0, lengths, causal)


@pytest.mark.needs("a compiler of calls")
@pytest.mark.parametrize(
    "window", [(2, 1), *(pytest.param(one, marks=LONG) for one in ((1, 0), (1, None), (None, 0)))], ids=str
)
def test_offsets_that_only_a_compiled_call_knows(backend, window):
    """Queries before the first key and past the last are blank there, too."""
    framework, attention = adapters.of(backend), layer(backend, window=window)
    compiled = framework.compile(attention.layer)
    for offset in OFFSETS:
        offsets = offset, K - 2 - offset, -1
        output, _, poisoned = expected(window, offsets)
        arrays = framework.own(*poisoned, np.array(offsets, "int32"))
        with dispatch.load(backend).context("float64"):
            found = compiled(*arrays[:3], offset=arrays[3])
        assert close(found, output), offset


@pytest.mark.parametrize("norm", ["rms", pytest.param("layer", marks=LONG)])
def test_norms_of_large_numbers_in_half_precision(backend, norm):
    """Their squares are beyond float16, and what a norm makes of them is not."""
    for dtype in dispatch.load(backend).DTYPES:
        attention = mha.MultiHeadAttention(D, H, qk_norm=norm, dtype=dtype, seed=0, backend=backend)
        large = [(size * X).astype(numpy_dtype(dtype)) for size, X in zip((300, 300, 1), inputs(), strict=True)]
        oracle = parity.in_dtype(attention.to("numpy"), "float64")
        wide = oracle(*(X.astype("float64") for X in large))
        limit = parity.bound(dtype, wide, wide.astype(numpy_dtype(dtype)))  # not by NumPy, which is tested here, too
        assert parity.error(attention(*large), wide) <= limit, dtype
        assert parity.error(attention(*large, return_weights=True)[0], wide) <= limit, dtype
