"""`parity.compare_layers`: two layers, weight by weight, what makes those of one out of the other's, and the reason."""

import numpy as np
import pytest

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.compare import two_layers

from .ported import D, H, interleaved, made, neighbours, with_weights


def test_layers_of_any_backend(backend):
    layer = made()
    report = parity.compare_layers(layer.to(backend), layer)
    assert report
    assert report.verdict == "the same layer: the same bits"
    wrong = with_weights(layer, W_q_kernel=layer.weights["W_q.kernel"].T)
    assert parity.compare_layers(layer, wrong.to(backend)).verdict == "the same layer, but for W_q.kernel: transposed"


def test_noise_of_float32_is_the_same_to_float32():
    layer = made()
    noise = np.nextafter(layer.weights["W_v.kernel"], np.float32(np.inf))
    report = parity.compare_layers(layer, with_weights(layer, W_v_kernel=noise))
    assert report
    assert (report.verdict, report.outputs.dtype) == ("the same layer: the same to float32", "float32")


def test_half_precision_that_was_trained_a_little_or_differs_in_a_few_numbers_is_not_the_same():
    layer = made(dtype="bfloat16")
    step = {name: (X.astype("float32") * np.float32(1 + 2**-8)).astype(X.dtype) for name, X in layer.weights.items()}
    report = parity.compare_layers(layer, with_weights(layer, **step))
    assert not report
    assert report.verdict.startswith("not the same layer: no kernel is the same, each differs by 0.00")
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
    normed = made(qk_norm="rms")
    report = parity.compare_layers(with_weights(normed, **{"q_norm.scale": np.zeros(D // H, "f4")}), made())
    assert {row.name: row.note for row in report.rows}["q_norm.scale"] == "not in B"


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


# The reason is what the table found: columns in another order, which no search would find

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


def changed(layer, change, *names):
    """The layer with the columns of these projections, and of their biases, changed."""
    counts, found = {"W_q": HEADS, "W_k": GROUPS, "W_v": GROUPS}, {}
    for name, X in layer.weights.items():
        if name[:3] in names:
            found[name] = change(np.atleast_2d(X), counts[name[:3]]).reshape(X.shape)
    return with_weights(layer, **found)


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
