"""`parity.compare_layers`: two layers, weight by weight, and what makes those of one out of those of the other."""

import numpy as np
import pytest

import mha
from mha import parity

from .ported import D, H, interleaved, made, neighbours, with_weights


def test_layers_of_any_backend(backend):
    layer = made()
    report = parity.compare_layers(layer.to(backend), layer)
    assert report
    assert report.verdict == "the same layer: the same bits"
    wrong = with_weights(layer, W_q_kernel=layer.weights["W_q.kernel"].T)
    assert parity.compare_layers(layer, wrong.to(backend)).verdict == "the same layer, but for W_q.kernel: transposed"


def test_a_few_numbers_that_differ_come_in_no_known_way():
    layer = made(dtype="bfloat16")
    few = layer.weights["W_k.kernel"].copy()
    few[7, 5] *= 2
    report = parity.compare_layers(layer, with_weights(layer, W_k_kernel=few))
    assert report.verdict.startswith("not the same layer: W_k.kernel: differs by 0.")
    assert report.verdict.endswith(" in no known way")


def test_biases_of_zeros_are_none():
    bare = made(bias=False)
    zeros = mha.MultiHeadAttention(D, H, bias=True, backend="numpy")
    zeros.weights = zeros.weights | bare.weights
    report = parity.compare_layers(zeros, bare)
    assert report
    assert {row.note for row in report.rows} == {"", "zeros, and not in B"}
    assert ("bias", True, False) in report.options


@pytest.mark.parametrize(
    ("name", "change", "note", "mistake"),
    [
        ("W_q", lambda X, W: X.T, "transposed", "W_q.kernel is not transposed"),
        ("W_o", lambda X, W: X.T, "transposed", "W_o.kernel is not transposed"),
        ("W_k", lambda X, W: interleaved(X), "heads interleaved, (d, H) for (H, d)",
         "the heads of W_k are interleaved"),
        ("W_o", lambda X, W: interleaved(X.T).T, "heads interleaved, (d, H) for (H, d)",
         "the heads of W_o are interleaved"),
        ("W_v", lambda X, W: interleaved(X, D // H), "heads no more interleaved, (H, d) for (d, H)",
         "the heads of W_v are interleaved"),
        ("W_v", lambda X, W: W["W_k.kernel"], "A's W_k.kernel", None),
        ("W_v", lambda X, W: W["W_k.kernel"].T, "A's W_k.kernel, transposed", None),
        ("W_q", lambda X, W: neighbours(X, H), "rotary pairs, neighbours for halves", None),
        ("W_q", lambda X, W: interleaved(X.T), "transposed, heads interleaved, (d, H) for (H, d)", None),
        ("W_q", lambda X, W: X[:, [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]], "heads in another order", None),
        ("W_q", lambda X, W: X[:, np.random.default_rng(3).permutation(D)], "columns in another order", None),
        ("W_o", lambda X, W: X[::-1], "rows in another order", None),
        ("W_q", lambda X, W: X / 2, "times 0.5", "the scale is applied twice"),
        ("W_v", lambda X, W: 0 * X, "zeros", None),
    ],
)  # fmt: skip
def test_what_makes_a_weight_out_of_the_other_layer_is_said(name, change, note, mistake):
    layer = made(bias=False)
    kernel = f"{name}.kernel"
    changed = np.ascontiguousarray(change(layer.weights[kernel], layer.weights)).astype("float32")
    report = parity.compare_layers(layer, with_weights(layer, **{kernel: changed}))
    assert not report
    notes = {row.name: row.note for row in report.rows if not row.same}
    assert notes == {kernel: note}
    assert report.verdict == f"the same layer, but for {kernel}: {note}"
    assert report.outputs.first.name == ("output" if name == "W_o" else name)
    assert mistake is None or mistake in report.outputs.diagnosis.mistakes


def test_scales_without_their_one():
    layer = made(bias=False, qk_norm="rms")
    less = with_weights(layer, **{"q_norm.scale": layer.weights["q_norm.scale"] - 1})
    assert parity.compare_layers(layer, less).verdict == "the same layer, but for q_norm.scale: w - 1"
    assert parity.compare_layers(less, layer).verdict == "the same layer, but for q_norm.scale: 1 + w"


@pytest.mark.parametrize(
    ("option", "value", "other"),
    [
        ("window", (300, 0), (301, 0)),
        ("window", (2, 1), (2, None)),
        ("window", None, (300, None)),
        ("qk_norm", "rms", mha.Norm("rms", 1e-5)),
        ("rotary", mha.Rotary(base=1e4), mha.Rotary(base=10001)),
        ("softcap", 30.0, None),
        ("scale", 0.5, 0.25),
    ],
)
def test_options_that_differ_are_said_and_seen(option, value, other):
    first, second = (made(**{"qk_norm": "rms", option: given}) for given in (value, other))
    report = parity.compare_layers(first, second)
    assert [name for name, _, _ in report.options] == [option]
    assert not report
    assert all(row.same for row in report.rows)
    assert parity.compare_layers(first, made(**{"qk_norm": "rms", option: value}))


def test_another_layer_has_no_kernel_that_is_the_same():
    report = parity.compare_layers(made(1), made(2))
    assert report.verdict.startswith("not the same layer: no kernel is the same, each differs by 1.")
    assert not report.outputs.diagnosis.known


def test_steps_of_another_shape_are_left_out():
    first, second = (mha.MultiHeadAttention(12, 3, key_dim=width, seed=0, backend="numpy") for width in (5, 7))
    report = parity.compare_layers(first, second)
    assert [row.name for row in report.outputs.rows] == [
        "W_v", "split_v", "scores", "weights", "pooled", "merged", "output",
    ]  # fmt: skip
    assert "of another shape" in str(report)


def test_no_call_explains_a_layer_of_other_options():
    report = parity.compare_layers(made(), made(window=(None, 0)))  # as every call of the first with causal=True is
    assert report.outputs.diagnosis.call == {}
    assert "if it was called" not in str(report)
    assert "window: None in A, (None, 0) in B" in str(report)
