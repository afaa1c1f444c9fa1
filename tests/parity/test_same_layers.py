"""`parity.compare_layers`: layers that compute the same are the same, however their weights are written."""

import dataclasses

import numpy as np
import pytest

import mha
from mha import parity
from mha.parity.diagnosis.compare.two_layers import layers_report

D, H, WIDTH = 35, 6, 5  # three groups of two heads, or two of three, or one
RANDOM = np.random.default_rng(11)
ORDER = np.array([3, 0, 4, 2, 1])
BASIS = RANDOM.normal(size=(WIDTH, WIDTH))
ROTARY = mha.Rotary(4, base=50.0)


def made(**options):
    """A layer of heads of 5, every weight random."""
    options = {"bias": True, "key_dim": WIDTH, "value_dim": WIDTH, "dtype": "float64"} | options
    layer = mha.MultiHeadAttention(D, H, **options, seed=2, backend="numpy")
    random = np.random.default_rng(7)
    layer.weights = {name: random.normal(0.5, 0.5, X.shape).astype(X.dtype) for name, X in layer.weights.items()}
    return layer


def other(layer, changed, **options):
    """A layer with other options, and these weights of the layer changed."""
    config = dataclasses.replace(layer.config, **options)
    found = mha.MultiHeadAttention(**vars(config), seed=3, backend="numpy")
    known = {name: X for name, X in layer.weights.items() if name in found.weights} | changed
    found.weights = {name: X.astype(found.weights[name].dtype) for name, X in known.items()}
    return found


def by_head(X, change):
    """Change the features of each head of a kernel or a bias: heads are (..., heads, 5)."""
    return change(X.reshape(*X.shape[:-1], -1, WIDTH)).reshape(*X.shape[:-1], -1)


def columns(layer, change, *roles):
    """These projections with the features of each head changed; those of W_o are its rows."""
    found = {name: by_head(X, change) for name, X in layer.weights.items() if name[:3] in roles and name[:3] != "W_o"}
    if "W_o" in roles:
        found["W_o.kernel"] = by_head(layer.weights["W_o.kernel"].T, change).T
    return found


def repeated(times, **options):
    """A layer with groups, and the same one with heads of keys and values for each head."""
    layer = made(num_key_value_heads=H // times, **options)
    roles = ("W_k", "W_v", "k_n") if layer.config.qk_norm and layer.config.qk_norm.over == "all" else ("W_k", "W_v")
    return layer, other(layer, columns(layer, lambda X: np.repeat(X, times, -2), *roles), num_key_value_heads=H)


def basis_of_scores():
    """Queries in another basis, and keys in the one that gives the same products."""
    layer, back = made(), np.linalg.inv(BASIS).T
    return layer, other(layer, columns(layer, lambda X: X @ BASIS, "W_q") | columns(layer, lambda X: X @ back, "W_k"))


def basis_of_values():
    """Values in another basis, which W_o takes back."""
    layer, back = made(), np.linalg.inv(BASIS).T
    return layer, other(layer, columns(layer, lambda X: X @ BASIS, "W_v") | columns(layer, lambda X: X @ back, "W_o"))


def bias_of_values():
    """The bias of values in that of the output."""
    layer = made()
    W = layer.weights
    return layer, other(
        layer, {"W_v.bias": 0 * W["W_v.bias"], "W_o.bias": W["W_o.bias"] + W["W_v.bias"] @ W["W_o.kernel"]}
    )


def pairs_of_scales():
    """The scale of the norm of queries in that of keys."""
    layer = made(qk_norm="rms")
    ones, both = np.ones(WIDTH), layer.weights["q_norm.scale"] * layer.weights["k_norm.scale"]
    return layer, other(layer, {"q_norm.scale": ones, "k_norm.scale": both})


def scale_in_queries():
    """The scale in the weights of the queries."""
    layer = made(scale=0.3)
    return layer, other(layer, {name: 0.3 * layer.weights[name] for name in ("W_q.kernel", "W_q.bias")}, scale=1.0)


def wider_heads():
    """Heads with features of zeros."""
    layer = made()

    def wide(X):
        return np.pad(X.reshape(*X.shape[:-1], H, WIDTH), [*[(0, 0)] * X.ndim, (0, 3)]).reshape(*X.shape[:-1], -1)

    kernels = {name: wide(X) for name, X in layer.weights.items() if name[:3] in ("W_q", "W_k", "W_v")}
    kernels["W_o.kernel"] = wide(layer.weights["W_o.kernel"].T).T
    return layer, other(layer, kernels, key_dim=WIDTH + 3, value_dim=WIDTH + 3, scale=WIDTH**-0.5)


def heads_in_another_order():
    """Heads of queries, keys and values in another order, and the rows of W_o."""
    layer = made()
    return layer, other(layer, columns(layer, lambda X: X[..., [4, 2, 0, 5, 1, 3], :], "W_q", "W_k", "W_v", "W_o"))


def keys_without_bias(**options):
    """A layer, and the same without the bias of its keys."""
    layer = made(**options)
    return layer, other(layer, {"W_k.bias": 0 * layer.weights["W_k.bias"]})


SAME = {
    "heads of keys, repeated": (
        lambda: repeated(2), {"W_k.kernel": "each head 2 times", "W_v.bias": "each head 2 times"}),
    "one head of keys, repeated": (lambda: repeated(6), {"W_v.kernel": "each head 6 times"}),
    "repeated, with norms of all heads": (
        lambda: repeated(3, qk_norm=mha.Norm("rms", over="all"), rotary=ROTARY), {"k_norm.scale": "each head 3 times"}),
    "repeated, with other options": (
        lambda: repeated(2, window=(900, 0), sinks=True, softcap=4.0, output_gate="head", value_norm="rms"),
        {"W_v.kernel": "each head 2 times"}),
    "repeated in half precision": (lambda: repeated(2, dtype="bfloat16"), {"W_k.kernel": "each head 2 times"}),
    "heads in another order": (heads_in_another_order, {"W_o.kernel": "heads in another order"}),
    "features in another order": (
        lambda: ((layer := made()), other(layer, columns(layer, lambda X: X[..., ORDER], "W_q", "W_k"))),
        {"W_q.kernel": "columns in another order"}),
    "another basis of the scores": (
        basis_of_scores, {"W_q.kernel": "written another way together, which no output shows"}),
    "another basis of values": (basis_of_values, {"W_o.kernel": "written another way together, which no output shows"}),
    "no bias of keys": (keys_without_bias, {"W_k.bias": "zeros, which the softmax takes back"}),
    "the bias of values in that of the output": (
        bias_of_values, {"W_v.bias": "zeros", "W_o.bias": "written another way, which no output shows"}),
    "the scales of two norms in one": (
        pairs_of_scales, {"q_norm.scale": "written another way together, which no output shows"}),
    "the scale in the queries": (scale_in_queries, {"W_q.kernel": "times 0.3"}),
    "the usual scale, said": (lambda: ((layer := made()), other(layer, {}, scale=WIDTH**-0.5)), {}),
    "wider heads": (wider_heads, {"W_v.kernel": "written another way together, which no output shows"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_layers_that_compute_the_same_are_the_same(name):
    pair, notes = SAME[name]
    first, second = pair()
    report = parity.compare_layers(first, second)
    assert report, report
    found = {row.name: row.note for row in report.rows}
    assert {one: found[one] for one in notes} == notes
    start = "the same layer, stored in another way: " if notes else "the same layer: "
    assert report.verdict.startswith(start)
    assert report.verdict in str(report).replace("\n", " ")
    assert parity.compare_layers(second, first)
    assert parity.compare_layers(first, first).verdict == "the same layer: the same bits"


def test_what_is_written_another_way_in_float32_is_the_same_to_float32():
    for pair in (basis_of_scores, basis_of_values, bias_of_values, pairs_of_scales):
        first, second = (other(layer, {}, dtype="float32") for layer in pair())
        report = parity.compare_layers(first, second)
        assert report, report
        assert report.outputs.dtype == "float32"
        assert parity.compare_layers(second, first)
        wrong = second.weights["W_v.kernel"] * np.float32(1.0003)
        assert not layers_report(first, other(second, {"W_v.kernel": wrong}), explain=False)


def test_in_half_precision_a_similar_layer_is_another_one():
    layer, random = made(), np.random.default_rng(1)
    rounded = {name: X.astype(mha.core.options.config.numpy_dtype("bfloat16")) for name, X in layer.weights.items()}
    assert parity.compare_layers(layer, other(layer, rounded, dtype="bfloat16"))
    near = layer.weights["W_v.kernel"] * (1 + 0.012 * random.uniform(-1, 1, size=(D, H * WIDTH)))
    report = layers_report(layer, other(layer, rounded | {"W_v.kernel": near}, dtype="bfloat16"), explain=False)
    assert report.outputs.dtype == "bfloat16"
    assert report.agree
    assert not report


def tiled():
    """Heads of keys one after the other for all heads, where each is repeated."""
    layer = made(num_key_value_heads=3)
    return layer, other(layer, columns(layer, lambda X: np.tile(X, (2, 1)), "W_k", "W_v"), num_key_value_heads=H)


DIFFERENT = {
    "tiled": tiled,
    "queries alone": lambda: ((layer := made()), other(layer, columns(layer, lambda X: X[..., ORDER], "W_q"))),
    "a basis that the keys do not take back": lambda: (
        (layer := made()), other(layer, columns(layer, lambda X: X @ BASIS, "W_q", "W_k"))),
    "no bias of keys that turn": lambda: keys_without_bias(rotary=ROTARY),
    "no bias of keys beside sinks": lambda: keys_without_bias(sinks=True),
    "no bias of keys before a cap": lambda: keys_without_bias(softcap=3.0),
    "no bias of keys that are normed": lambda: keys_without_bias(qk_norm="layer"),
    "no bias of keys that are added": lambda: keys_without_bias(pooling="additive"),
    "heads of keys in another order": lambda: (
        (layer := made()), other(layer, columns(layer, lambda X: X[..., ::-1, :], "W_k", "W_v"))),
    "another epsilon": lambda: (
        (layer := made(qk_norm="rms")), other(layer, {}, qk_norm=mha.Norm("rms", 2e-6))),
    "a cap that shows in large scores": lambda: ((layer := made()), other(layer, {}, softcap=3000.0)),
    "a temperature of far positions": lambda: (
        (layer := made()), other(layer, {}, temperature=mha.Temperature(0.1, 8192))),
    "a slow rotation": lambda: (
        (layer := made(rotary=mha.Rotary(4, frequencies=(1.0, 1e-6)))),
        other(layer, {}, rotary=mha.Rotary(4, frequencies=(1.0, 2e-6)))),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_layers_that_compute_something_else_differ(name):
    first, second = DIFFERENT[name]()
    for pair in ((first, second), (second, first)):
        report = layers_report(*pair, explain=False)
        assert not report, report.verdict
        assert "the same layer, stored" not in report.verdict
        assert max(row.ratio for row in report.outputs.rows) > 2


def test_caches_and_arguments_by_heads_are_not_exchanged():
    report = parity.compare_layers(*heads_in_another_order())
    assert len(report.notes) == 2
    assert "a cache of one is none of the other's" in str(report)
    assert "goes by the order of the heads" in str(report)
    assert parity.compare_layers(*scale_in_queries()).notes == ()
