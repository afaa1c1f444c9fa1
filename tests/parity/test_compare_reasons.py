"""`mha compare` names what its table found as the reason: columns in another order, which no search would find."""

import numpy as np
import pytest

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.compare import two_layers

from .ported import made, neighbours, with_weights

WIDTH, HEADS, GROUPS = 96, 6, 2  # heads of 16: to permute pairs twice is not to permute them back


def rotated(interleaved=False, **options):
    """A layer whose positions rotate, with groups, every weight random."""
    layer = mha.MultiHeadAttention(
        WIDTH, HEADS, num_key_value_heads=GROUPS, rotary=mha.Rotary(base=500.0, interleaved=interleaved), seed=0,
        backend="numpy", **options,
    )  # fmt: skip
    random = np.random.default_rng(4)
    layer.weights = {name: random.normal(size=X.shape).astype(X.dtype) / 10 for name, X in layer.weights.items()}
    return layer


def halves(X, heads):
    """The columns of a kernel with the pairs of components as halves that were side by side."""
    return X.reshape(len(X), heads, -1, 2).swapaxes(2, 3).reshape(X.shape)  # (in, H*d)


def columns(X, change, heads):
    """A kernel or a bias with its columns changed."""
    return change(np.atleast_2d(X), heads).reshape(X.shape)


def changed(layer, change, *names):
    """The layer with the columns of these projections changed."""
    counts = {"W_q": HEADS, "W_k": GROUPS, "W_v": GROUPS}
    return with_weights(layer, **{
        name: columns(X, change, counts[name[:3]]) for name, X in layer.weights.items() if name[:3] in names
    })  # fmt: skip


def in_another_order(X, heads):
    """The columns with the first head last."""
    return np.roll(X.reshape(len(X), heads, -1), -1, 1).reshape(X.shape)  # (in, H*d)


@pytest.mark.parametrize(
    ("change", "names", "mistake", "how"),
    [
        (neighbours, ("W_q", "W_k"), "rotary components of W_q and W_k are in another order", "neighbours for halves"),
        (halves, ("W_q", "W_k"), "rotary components of W_q and W_k are in another order", "halves for neighbours"),
        (neighbours, ("W_q",), "rotary components of W_q are in another order", "neighbours for halves"),
        (halves, ("W_k",), "rotary components of W_k are in another order", "halves for neighbours"),
        (in_another_order, ("W_q",), "heads of W_q are in another order", ""),
        (in_another_order, ("W_k", "W_v"), "heads of W_k and W_v are in another order", ""),
    ],
    ids=["pairs", "pairs back", "pairs of W_q", "pairs of W_k", "heads of W_q", "heads of keys and values"],
)
@pytest.mark.parametrize("bias", [False, True])
def test_the_order_of_columns_is_the_reason(change, names, mistake, how, bias):
    layer = rotated(bias=bias)
    report = parity.compare_layers(layer, changed(layer, change, *names))
    assert not report
    (explanation,) = report.outputs.diagnosis.explanations
    assert (explanation.mistakes, explanation.how, explanation.sure) == ((mistake,), (how,), True)
    assert explanation.ratio <= 1
    assert report.outputs.diagnosis.tried == 0  # nothing has to be searched for
    assert f" why: {mistake}{f' ({how})' if how else ''}: A's weights, changed so," in " ".join(str(report).split())
    assert "unknown" not in str(report)


def test_a_bias_that_stays_behind_is_told_from_one_that_does_not():
    layer = rotated(bias=True)
    turned = with_weights(layer, W_q_kernel=neighbours(layer.weights["W_q.kernel"], HEADS))
    diagnosis = parity.compare_layers(layer, turned).outputs.diagnosis
    assert diagnosis.mistakes == ("rotary components of W_q.kernel are in another order",)


def test_rounding_beside_it_changes_nothing():
    layer = rotated()
    turned = changed(layer, neighbours, "W_q", "W_k")
    half = {name: X.astype(numpy_dtype("bfloat16")).astype("float32") for name, X in turned.weights.items()}
    report = parity.compare_layers(layer, with_weights(layer, **half))
    assert report.outputs.dtype == "bfloat16"
    assert report.outputs.diagnosis.mistakes == ("rotary components of W_q and W_k are in another order",)
    assert report.outputs.diagnosis.explanations[0].how == ("neighbours for halves, to bfloat16",)


@pytest.mark.parametrize(("meta", "change"), [(True, halves), (False, neighbours)], ids=["from Meta", "to Meta"])
def test_pairs_that_were_permuted_twice_for_the_other_pairing(meta, change):
    layer, other = rotated(interleaved=meta), rotated(interleaved=not meta)
    right = changed(layer, change, "W_q", "W_k")
    other.weights = right.weights
    assert parity.compare_layers(layer, other)
    other.weights = changed(right, change, "W_q", "W_k").weights
    report = parity.compare_layers(layer, other)
    assert not report
    assert report.outputs.diagnosis.mistakes == ("rotary components of W_q and W_k are in another order",)


def test_pairs_that_were_not_permuted_are_paired_the_other_way():
    layer, other = rotated(interleaved=True, qk_norm="rms"), rotated(qk_norm="rms")
    other.weights = layer.weights
    report = parity.compare_layers(layer, other)
    assert not report
    assert report.outputs.diagnosis.mistakes == ("rotary components are paired the other way",)


def test_several_changes_are_one_reason_together():
    layer = made(num_heads=4)
    X = layer.weights["W_q.kernel"]
    both = with_weights(layer, W_q_kernel=in_another_order(X, 4) / 4, W_v_kernel=layer.weights["W_v.kernel"].T)
    assert not parity.compare_layers(layer, both).outputs.diagnosis.known  # two changes of one weight are not known
    both = with_weights(layer, W_q_kernel=in_another_order(X, 4), W_v_kernel=layer.weights["W_v.kernel"].T / 4)
    assert not parity.compare_layers(layer, both).outputs.diagnosis.known
    both = with_weights(layer, W_q_kernel=in_another_order(X, 4), W_v_kernel=layer.weights["W_v.kernel"].T)
    (explanation,) = parity.compare_layers(layer, both).outputs.diagnosis.explanations
    assert explanation.mistakes == ("heads of W_q.kernel are in another order", "W_v.kernel changed")
    assert explanation.how == ("", "transposed")


def test_weights_that_are_not_known_are_no_reason():
    layer = made(num_heads=4)
    W = layer.weights
    noise = np.random.default_rng(0).normal(size=W["W_v.kernel"].shape).astype("float32")
    wrong = with_weights(layer, W_q_kernel=in_another_order(W["W_q.kernel"], 4), W_v_kernel=noise)
    diagnosis = parity.compare_layers(layer, wrong).outputs.diagnosis
    assert not diagnosis.known
    assert "why: unknown" in str(diagnosis)


def test_a_layer_too_large_for_a_search_has_this_reason_all_the_same(monkeypatch):
    monkeypatch.setattr(two_layers, "LARGE", 100)
    layer = made()
    kernel = layer.weights["W_v.kernel"]
    report = parity.compare_layers(layer, with_weights(layer, W_v_kernel=kernel.T))
    assert report.outputs.diagnosis.mistakes == ("W_v.kernel changed",)
    report = parity.compare_layers(layer, with_weights(layer, W_v_kernel=kernel**3))
    assert str(report.outputs.diagnosis) == "why: not looked for in so large a layer"
