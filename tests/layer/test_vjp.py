"""`attention.vjp`: the output of a call, and a `pull_back` that gives the gradients of this very call.

Letters: B batch, Q queries, K key-value pairs, H heads, d width of a query head.
"""

import adapters
import numpy as np
import pytest
from calls import Q as QUERIES
from calls import draw, make, same

import mha
from mha import parity
from mha.core import dispatch
from mha.core.engine import blocks

RATE = 0.75  # 1 / (1 - RATE) needs no rounding, which MXNet does in float32
B, H, Q, K, d = 3, 2, 5, 7, 4


@pytest.fixture(
    params=[blocks.SCORES, pytest.param(2 * K, marks=pytest.mark.long(*adapters.COMPILED))], ids=["one-piece", "pieces"]
)
def pieces(request, backend, monkeypatch):
    """Calls in one piece, and in pieces of few queries."""
    monkeypatch.setattr(blocks, "SCORES", request.param)
    adapters.of(backend).forget_programs()
    yield
    adapters.of(backend).forget_programs()


def see_through(backend):
    """A layer that returns the weights that dropout has left, (B, Q, H*K), and inputs for it, in float64."""
    sizes = {"query_size": 11, "key_size": 13, "value_size": K, "key_dim": d, "value_dim": K}
    attention = mha.MultiHeadAttention(H * K, H, RATE, **sizes, dtype="float64", seed=3, backend=backend)
    attention.weights |= {"W_v.kernel": np.tile(np.eye(K), H), "W_o.kernel": np.eye(H * K)}
    rng = np.random.default_rng(5)
    queries, keys = rng.normal(size=(B, Q, 11)), rng.normal(size=(B, K, 13))
    return attention, [queries, keys, np.broadcast_to(np.eye(K), (B, K, K)).copy()]


def assert_agree(found, expected, dtype="float32"):
    """Gradients have the same names, and are the same but for rounding."""
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        limit = parity.bound(dtype, wanted, wanted, gradient=True, scale=parity.gradient_scale(name, expected))
        assert parity.error(found[name], wanted) <= limit, name


@pytest.fixture
def assert_same(request):
    """A function: gradients are the same bits; of two programs that XLA compiles quickly, the same but for rounding."""

    def check(found, expected):
        if request.config.getoption("--quick-xla"):
            assert_agree(found, expected)
        else:
            assert same(found, expected)

    return check


def heads(X):
    """(B, T, H*any) -> (B, H, T, any)."""
    return X.reshape(*X.shape[:2], H, -1).swapaxes(1, 2)  # (B, H, T, any)


def merged(X):
    """(B, H, T, any) -> (B, T, H*any)."""
    return X.swapaxes(1, 2).reshape(X.shape[0], X.shape[2], -1)  # (B, T, H*any)


def test_gradients_are_those_of_the_weights_that_dropout_kept(backend, pieces, rng):
    attention, inputs = see_through(backend)
    valid_lens, cotangent = np.array([K, 3, 5]), rng.normal(size=(B, Q, H * K))
    output, pull_back = attention.vjp(*inputs, valid_lens, training=True)
    weights = attention(*inputs, valid_lens, return_weights=True)[1]  # (B, H, Q, K)
    W, left = attention.weights, heads(output)  # (B, H, Q, K)
    kept = np.where(left != 0, 1 / (1 - RATE), 0)  # (B, H, Q, K)
    assert 0.1 < (left != 0)[weights > 0].mean() < 0.4  # of 150 weights and more

    # By hand, in float64: the values are the identity, so that the gradient by the kept weights is the cotangent.
    split_q, split_k = heads(inputs[0] @ W["W_q.kernel"]), heads(inputs[1] @ W["W_k.kernel"])  # (B, H, T, d)
    by_weights = kept * heads(cotangent)  # (B, H, Q, K)
    by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True)) / np.sqrt(d)  # (B, H, Q, K)
    by_q, by_k = merged(by_scores @ split_k), merged(by_scores.swapaxes(2, 3) @ split_q)  # (B, T, H*d)
    by_v = merged(left.swapaxes(2, 3) @ heads(cotangent))  # (B, K, H*K)
    expected = {
        "queries": by_q @ W["W_q.kernel"].T,
        "keys": by_k @ W["W_k.kernel"].T,
        "values": by_v @ W["W_v.kernel"].T,
        "W_q.kernel": np.einsum("bti,bto->io", inputs[0], by_q),
        "W_k.kernel": np.einsum("bti,bto->io", inputs[1], by_k),
        "W_v.kernel": np.einsum("bti,bto->io", inputs[2], by_v),
        "W_o.kernel": np.einsum("bti,bto->io", output, cotangent),
    }
    found = pull_back(cotangent)
    assert_agree(found, expected, "float64")
    assert same(pull_back(cotangent), found)


@pytest.mark.parametrize("pooling", ["dot", pytest.param("additive", marks=pytest.mark.long(*adapters.COMPILED))])
def test_the_output_is_the_calls_and_the_gradients_are_those_of_gradients(backend, rng, assert_same, pooling):
    attention, arrays, hiding = make(backend, pooling=pooling, bias=True), draw(rng), {"causal": True}
    output, pull_back = attention.vjp(*arrays, [3, 7], **hiding)
    cotangent = rng.normal(size=output.shape).astype("float32")
    expected = attention(*arrays, [3, 7], **hiding)
    assert parity.error(output, expected) <= parity.bound("float32", expected, expected)
    assert_same(pull_back(cotangent), attention.gradients(*arrays, [3, 7], **hiding, cotangent=cotangent))
    assert_same(pull_back(np.ones_like(cotangent)), attention.gradients(*arrays, [3, 7], **hiding))


@pytest.mark.parametrize(("kind", "hides"), [("numpy", True), ("own", False)])
def test_what_changes_after_the_call_does_not_count(backend, rng, kind, hides):
    attention, arrays = make(backend, dropout=0.5), draw(rng)
    arrays += [np.array([3, 7]), rng.random((2, 1, QUERIES, 7)) < 0.8] if hides else []
    if kind == "own":
        arrays = list(adapters.of(backend).own(*arrays))
    output, pull_back = attention.vjp(*arrays[:4], mask=arrays[4] if hides else None, training=True)
    cotangent = rng.normal(size=output.shape).astype("float32")
    before = {name: mha.to_numpy(X).copy() for name, X in pull_back(cotangent).items()}
    attention.weights = {name: 2 * X for name, X in attention.weights.items()}
    for X in arrays:
        if kind == "numpy" or not adapters.lacks(backend, "arrays that change"):
            X[:] = 0
    assert same({name: mha.to_numpy(X) for name, X in pull_back(cotangent).items()}, before)
    twice = pull_back(2 * cotangent)  # exact, as 2 is a power of 2
    assert same({name: mha.to_numpy(X) for name, X in twice.items()}, {name: 2 * X for name, X in before.items()})


def test_native_in_native_out(backend, rng, assert_same):
    attention, arrays = make(backend), draw(rng)
    output, pull_back = attention.vjp(*adapters.of(backend).own(*arrays))
    assert dispatch.backend_of(output) == adapters.of_arrays(backend)
    found = pull_back(np.ones(output.shape, "float32"))  # a cotangent may be of either kind
    assert {dispatch.backend_of(X) for X in found.values()} == {adapters.of_arrays(backend)}
    assert_same({name: mha.to_numpy(X) for name, X in found.items()}, attention.gradients(*arrays))


@pytest.mark.backends("torch")  # whose arrays know what they come from
def test_the_output_has_no_history(backend, rng):
    """It may be read, and a backward pass through it would be another one than `pull_back`."""
    attention = make(backend)
    for arrays in (
        adapters.of(backend).own(*draw(rng)),
        [X.requires_grad_() for X in adapters.of(backend).own(*draw(rng))],
    ):
        output, pull_back = attention.vjp(*arrays)
        assert not output.requires_grad
        gradients = pull_back(output)
        assert not any(X.requires_grad for X in gradients.values())


def test_the_output_is_the_callers_own(backend, rng):
    attention, arrays = make(backend), draw(rng)
    output, pull_back = attention.vjp(*arrays)
    before = pull_back(np.ones_like(output))
    output += 1
    assert same(pull_back(np.ones_like(output)), before)


def test_every_call_drops_other_weights(backend):
    attention, inputs = see_through(backend)
    outputs = [attention.vjp(*inputs, training=True)[0] for _ in range(2)]
    assert not np.array_equal(*outputs)


@pytest.mark.parametrize(("cotangent", "error", "text"), [
    (np.ones((2, 5, 12), "float32"), ValueError, r"cotangent has shape \(2, 5, 12\), expected \(2, 5, 11\)"),
    (np.ones((2, 5, 11)), TypeError, "cotangent has dtype float64, expected float32 as the layer"),
    (None, TypeError, "cotangent is a NoneType, expected"),
])  # fmt: skip
def test_a_wrong_cotangent_is_refused_and_changes_nothing(backend, rng, cotangent, error, text):
    attention, arrays = make(backend, dropout=0.5), draw(rng)
    output, pull_back = attention.vjp(*arrays, training=True)
    before = pull_back(np.ones_like(output))
    with pytest.raises(error, match=text):
        pull_back(cotangent)
    assert same(pull_back(np.ones_like(output)), before)
