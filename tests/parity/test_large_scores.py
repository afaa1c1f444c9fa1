"""Where scores are large, all right code is right, also what rounds more than plain NumPy; and mistakes are noticed."""

import dataclasses
import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import mha
from mha import parity
from mha.parity.diagnosis.pipeline import chance
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.layouts import GRADIENT, PLACED
from mha.parity.rule.problem import problem

sys.path.append(str(Path(__file__).parents[1] / "helpers" / "right_ports"))
from draws import Trial

B, Q, K, H, d = 2, 3, 5, 2, 7
OPTIONS = {
    "plain": {},
    "sinks, groups, bias": {"sinks": True, "num_key_value_heads": 1, "bias": True},
    "norms, rotation": {"qk_norm": mha.Norm("rms"), "rotary": mha.Rotary(dim=4), "scale": 30.0},
    "additive": {"pooling": "additive"},
}
SCALES = [10, 30, 100]
BLAMED = 28, 41, 55, 69, 123, 137, 140, 154, 177, 223, 239  # seeds whose kernel exceeds bounds that know less


def drawn(seed, scale, sizes=(B, Q, K), dtype="float32"):
    """Inputs (B, T, D) of this scale, and a cotangent."""
    rng = np.random.default_rng(seed)
    inputs = [(scale * rng.normal(size=(sizes[0], T, H * d))).astype(dtype) for T in (sizes[1], *[sizes[2]] * 2)]
    return inputs, rng.normal(size=inputs[0].shape).astype(dtype)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("readable", [False, True], ids=["fast", "lesson"])
def test_every_backend_is_right(backend, options, readable):
    layer = mha.MultiHeadAttention(H * d, H, seed=3, backend=backend, readable=readable, **options)
    for scale in SCALES:
        inputs, cotangent = drawn(scale, scale)
        output, pull_back = layer.vjp(*inputs)
        found = {"output": output} | pull_back(cotangent)
        report = parity.compare(layer, found, *inputs, cotangent=cotangent)
        assert report, report


# Kernels


def split(X):
    """Heads (B, H, T, d) of (B, T, H*d)."""
    return X.reshape(*X.shape[:2], H, d).swapaxes(1, 2)  # (B, H, T, d)


def merge(X):
    """Heads side by side, (B, T, H*d), of (B, H, T, d)."""
    return X.swapaxes(1, 2).reshape(len(X), -1, H * d)  # (B, T, H*d)


def fused(layer, inputs, cotangent, mistake=""):
    """Attention as a kernel computes it in NumPy: exponentials of base 2, and weights computed again on the way back.

    mistake: in the gradients, or of the products.
    """
    W = {name.removesuffix(".kernel"): X for name, X in layer.weights.items()}
    q, k, v = (split(X @ W[f"W_{role}"]) for X, role in zip(inputs, "qkv", strict=True))
    if mistake == "10 bits":
        q, k = ((X.view("uint32") & 0xFFFFE000).view("float32") for X in (q, k))
    scale, to_base_2 = np.float32(d**-0.5), np.float32(np.log2(np.e))
    scores = q @ k.swapaxes(2, 3) * np.float32(scale * to_base_2)  # (B, H, Q, K)
    most = scores.max(-1, keepdims=True)  # (B, H, Q, 1)
    sums = np.exp2(scores - most).sum(-1, keepdims=True)  # (B, H, Q, 1)
    pooled = np.exp2(scores - most) @ v / sums  # (B, H, Q, d)
    weights = np.exp2(scores - (most + np.log2(sums)))  # (B, H, Q, K)
    by_pooled = split(cotangent @ W["W_o"].T)
    total = (by_pooled * pooled).sum(-1, keepdims=True)  # (B, H, Q, 1)
    total = {"no total": 0 * total, "total of another query": total[:, :, ::-1]}.get(mistake, total)
    by_scores = weights * (by_pooled @ v.swapaxes(2, 3) - total) * (1 if mistake == "no scale" else scale)
    by_q, by_k = by_scores @ k, by_scores.swapaxes(2, 3) @ q
    by_v = (weights / weights.sum(2, keepdims=True) if mistake == "other axis" else weights).swapaxes(2, 3) @ by_pooled
    found = {"output": merge(pooled) @ W["W_o"], "W_o.kernel": flat(merge(pooled)).T @ flat(cotangent)}
    for role, X, by_X in zip("qkv", inputs, map(merge, (by_q, by_k, by_v)), strict=True):
        found[f"W_{role}.kernel"] = flat(X).T @ flat(by_X)
        found[{"q": "queries", "k": "keys", "v": "values"}[role]] = by_X @ W[f"W_{role}"].T
    return found


def flat(X):
    """Rows (B*T, D) of (B, T, D)."""
    return X.reshape(-1, X.shape[-1])


def reports(scale, mistake="", sizes=((1, 2, 3), (2, 3, 5), (1, 11, 7)), seeds=range(18)):
    """Compare the kernel in several calls of these sizes (B, Q, K)."""
    for seed in seeds:
        layer = mha.MultiHeadAttention(H * d, H, seed=seed, backend="numpy")
        inputs, cotangent = drawn(seed, scale, sizes[seed % len(sizes)])
        yield parity.compare(layer, fused(layer, inputs, cotangent, mistake), *inputs, cotangent=cotangent)


@pytest.mark.parametrize("scale", [0.01, 1, *SCALES])
def test_a_kernel_is_right(scale):
    for report in reports(scale, seeds=[*range(12), *BLAMED]):
        assert report, report


@pytest.mark.parametrize("scale", [1, 3, 10])
@pytest.mark.parametrize("mistake", ["10 bits", "no total", "total of another query", "no scale", "other axis"])
def test_a_mistake_in_it_is_noticed(scale, mistake):
    with np.errstate(all="ignore"):
        assert all(report.ratio > 2 for report in reports(scale, mistake, sizes=[(1, 64, 61)]))


@pytest.mark.parametrize("scale", [30, 100])
@pytest.mark.parametrize("mistake", ["no total", "total of another query", "other axis"])
def test_what_is_more_than_rounding_is_noticed_at_any_scale(scale, mistake):
    with np.errstate(all="ignore"):
        assert all(report.ratio > 2 for report in reports(scale, mistake))


PORTS = {
    "torch": ["eager", "sdpa", "sdpa_math", "mha", "mha_fused"],
    "tensorflow": ["steps", "keras"],
    "mlx": ["fast", "steps", "layer"],
}


@pytest.mark.backends(*PORTS)
@pytest.mark.parametrize("scale", SCALES)
def test_ports_are_right(backend, scale):
    ports = importlib.import_module(f"{backend}_ports")
    for seed in range(8):
        layer = mha.MultiHeadAttention(H * d, H, seed=seed, backend="numpy")
        inputs, cotangent = drawn(seed, scale)
        trial = Trial(layer, tuple(inputs), {})
        for name in PORTS[backend]:
            port, _ = ports.PORTS[name]
            found = {"output": port(trial)} | ports.gradients(port, trial, cotangent)
            report = parity.compare(layer, found, *inputs, cotangent=cotangent)
            assert report, (name, report)


# The bound


@pytest.mark.parametrize("scale", [1e3, 1e5, 1e8, 1e15])
def test_a_bound_is_never_larger_than_the_numbers(scale):
    layer = mha.MultiHeadAttention(H * d, H, seed=3, backend="numpy")
    inputs, cotangent = drawn(2, scale)
    output, pull_back = layer.vjp(*inputs)
    found = pull_back(cotangent)
    assert parity.compare(layer, {"output": output} | found, *inputs, cotangent=cotangent)
    for name in ("values", "W_v.kernel", "W_o.kernel"):
        report = parity.compare(layer, {f"{GRADIENT}{name}": 2 * found[name]}, *inputs, cotangent=cotangent)
        assert 1 < report.ratio < np.inf


def call():
    """A call in float32 that rounding by chance can be asked about."""
    layer = mha.MultiHeadAttention(H * d, H, seed=3, backend="numpy")
    inputs, cotangent = drawn(1, 1)
    return chance.with_rounding(problem(layer, *inputs, {"causal": False}, cotangent))


@pytest.mark.margin(1, 1)
@pytest.mark.parametrize(("name", "times"), [("output", 8), ("weights", 8), (f"{GRADIENT}W_q.kernel", 16)])
def test_the_larger_of_two_errors_counts(name, times):
    plain, off = call(), 1e-3
    asked = dataclasses.replace(plain)
    right = plain.oracle_gradients["W_q.kernel"] if name.startswith(GRADIENT) else plain.oracle[name]
    wrong = right.copy()
    wrong.flat[0] += off

    def drawing(X):
        return types.SimpleNamespace(steps={name: X}, gradients=lambda: {"W_q.kernel": X})

    vars(asked)["drawn"] = (drawing(right), drawing(wrong))
    limit = times * off + 16 * 2**-24 * np.abs(right).max()
    for share, ratio in ((0.9, 0.9), (1.1, 1.1)):
        theirs = right.copy()
        theirs.flat[1] += share * limit
        assert asked.expected(name).ratio(theirs) == pytest.approx(ratio, rel=1e-6)
    assert plain.expected(name).limit < limit / 10
    again = dataclasses.replace(plain)
    vars(again)["drawn"] = (drawing(right), drawing(right * np.nan))  # which errs less than plain NumPy, or overflows
    base = plain.base_gradients["W_q.kernel"] if name.startswith(GRADIENT) else plain.base[name]
    expected = parity.bound("float32", right, base, gradient=name.startswith(GRADIENT))
    assert again.expected(name).limit == pytest.approx(expected)


def test_each_number_is_moved_by_one_unit_up_or_down():
    X = np.random.default_rng(2).normal(size=(97, 11))
    moved = chance.up_or_down(2**-24, np.random.default_rng(3))(X) / X - 1
    np.testing.assert_allclose(np.abs(moved), 2**-24, rtol=1e-6)
    assert 0.4 < (moved > 0).mean() < 0.6


def test_where_scores_are_small_bounds_stay_as_sharp():
    """Of every array of a call: of one input, too, of rows without keys, and beside a cache."""
    layer, (X, *_), lengths = mha.MultiHeadAttention(H * d, H, seed=3, backend="numpy"), drawn(1, 1)[0], [0, 2]
    cache = layer(X, X, X, causal=True, cache=layer.cache(B, 2 * Q))[1]
    for call in ({"valid_lens": np.array(lengths)}, {"cache": cache, "causal": True}):
        plain = as_decoding(problem(layer, X, X, X, {"causal": False} | call))
        limits = {name: plain.expected(name).limit for name in plain.names() if name != PLACED}
        asked = chance.with_rounding(plain)
        shares = {name: asked.expected(name).limit / limit for name, limit in limits.items()}
        assert "drawn" in vars(asked)
        assert 1 <= min(shares.values()) <= max(shares.values()) < 6, shares


@pytest.mark.parametrize("pairs", ["FEW", "MANY"])
def test_of_many_pairs_nothing_is_drawn(monkeypatch, pairs):
    name, size = {"FEW": "output", "MANY": f"{GRADIENT}queries"}[pairs], B * H * Q * K
    for most, draws in ((size, True), (size - 1, False)):
        monkeypatch.setattr(chance, pairs, most)
        asked = call()
        asked.expected(name)
        assert ("drawn" in vars(asked)) == draws


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes_draw_nothing(dtype):
    layer = mha.MultiHeadAttention(H * d, H, seed=3, dtype=dtype, backend="numpy")
    inputs, _ = drawn(1, 1)
    kind = layer.weights["W_q.kernel"].dtype
    asked = chance.with_rounding(problem(layer, *(X.astype(kind) for X in inputs), {"causal": False}))
    assert not isinstance(asked, chance.ByChance)
