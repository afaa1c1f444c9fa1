"""Calls in half precision: ports and layers that are right, mistakes that are not, and what a report says."""

import dataclasses
import functools
import importlib
from pathlib import Path

import adapters
import half_mistakes
import numpy as np
import planted
import pytest
from half_port import HalfPort
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.parity.rule.problem import problem
from mha.parity.rule.rounding import cut_off, product_one_by_one
from mha.parity.rule.rules import in_dtype
from mha.parity.rule.styles import FUSED, HALVES, PLAIN, QUERIES, STEPS, SUMS, WIDE, Border, Core

HALVES_OF = ["float16", "bfloat16"]


def layer_of(dtype, size=1.0, **options):
    """A layer of 84 features with random biases and scales, whose kernels are so many times as large."""
    rng = np.random.default_rng(8)
    layer = mha.MultiHeadAttention(84, 6, **options, dtype=dtype, seed=3, backend="numpy")
    layer.weights = {
        name: (size * X if X.ndim == 2 else rng.normal("norm" in name, 0.5, X.shape)).astype(X.dtype)
        for name, X in layer.weights.items()
    }
    return layer


def normal(dtype, *shape, seed=4):
    return np.random.default_rng(seed).normal(size=shape).astype(numpy_dtype(dtype))


# Styles


BOTH = {
    "steps": (STEPS[5], {"products": True, "last": True, "angles": False}),
    "half": (HALVES[2][2], {"last": True, "cosines": False, "turns": False}),
    "fused": (QUERIES[2], {"products": True, "turns": False}),
    "wide": (PLAIN, dataclasses.asdict(WIDE)),
}


@pytest.mark.parametrize("dtype", HALVES_OF)
@pytest.mark.parametrize("name", BOTH)
def test_the_search_changes_border_and_core(name, dtype):
    core, places = BOTH[name]
    layer, X = layer_of(dtype, 2.0, bias=True, rotary=mha.Rotary()), normal(dtype, 2, 50, 84)
    call = {"positions": 9000 + np.arange(50), "key_positions": 9000 + np.arange(50), "causal": True}
    border = dataclasses.replace(Border.usual(layer.config), **places)
    report = parity.compare(layer, HalfPort(layer, border, core).call(X, X, X, **call), X, X, X, **call)
    assert report.rounding.left < 0.2
    if name != "wide":  # others are near enough to it
        assert report.rounding.core.rounds_scores == core.rounds_scores
    assert report.ratio < 0.5


@pytest.mark.parametrize("dtype", HALVES_OF)
def test_a_style_that_is_asked_for(dtype):
    """Code that rounds less than in steps is the same as that; more than fused is not."""
    layer, X = layer_of(dtype, 4.0), normal(dtype, 2, 100, 84)
    fused, steps = (HalfPort(layer, core=core).call(X, X, X) for core in (FUSED[0], STEPS[0]))
    ratios = {(one is steps, style): parity.ratio(layer, one, X, X, X, style=style)
              for one in (fused, steps) for style in (None, "fused", "steps")}  # fmt: skip
    assert ratios.pop((True, "fused")) > 1.5
    assert max(ratios.values()) <= 1
    report = parity.compare(layer, fused, X, X, X, style="steps")
    assert report.rounding.core.rounds_scores
    assert not parity.compare(layer, steps, X, X, X, style="fused").rounding.core.rounds_scores
    for judge in (parity.ratio, parity.compare, parity.diagnose):
        with pytest.raises(ValueError, match="style is 'eager', expected one of fused, steps"):
            judge(layer, fused, X, X, X, style="eager")


# Calls at the edge


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(bad):
    layer, X = layer_of("bfloat16"), normal("bfloat16", 2, 20, 84)
    right = HalfPort(layer).call(X, X, X)
    wrong = right.copy()
    wrong[1, 3, 5] = bad
    report = parity.compare(layer, wrong, X, X, X)
    assert (report.ratio, report.rounding) == (np.inf, None)
    rows = ~(right != wrong).any(-1)
    assert parity.ratio(layer, wrong, X, X, X, rows=rows) < 0.5
    Y = X.copy()
    Y[0, 9] = bad  # which comes through in that sample
    theirs = HalfPort(layer).call(X, X, Y)
    assert not np.isfinite(theirs[0].astype("float32")).any()
    assert parity.compare(layer, theirs, X, X, Y).rounding.left < 0.01
    theirs[0, 3, 5] = 1
    assert parity.ratio(layer, theirs, X, X, Y) == np.inf


@pytest.mark.parametrize(("samples", "queries", "keys"), [(2, 0, 5), (2, 5, 0), (0, 5, 5), (2, 1, 1)])
def test_calls_with_hardly_any_numbers(samples, queries, keys):
    layer = layer_of("bfloat16", bias=True)
    X, Y = normal("bfloat16", samples, queries, 84), normal("bfloat16", samples, keys, 84)
    theirs = layer(X, Y, Y)
    assert parity.ratio(layer, theirs, X, Y, Y, empty_rows=True) <= 1
    assert parity.compare(layer, theirs, X, Y, Y, empty_rows=True)
    if theirs.size:
        assert parity.ratio(layer, theirs + theirs, X, Y, Y, empty_rows=True) > 1


@pytest.mark.parametrize("dtype", HALVES_OF)
def test_queries_that_see_no_key(dtype):
    layer, X = layer_of(dtype, bias=True), normal(dtype, 2, 20, 84)
    call = {"valid_lens": np.arange(40).reshape(2, 20) // 2}
    theirs = HalfPort(layer, core=FUSED[0]).call(X, X, X, **call)
    assert parity.ratio(layer, theirs, X, X, X, empty_rows=True, **call) < 0.5
    theirs[0, 0] = 9
    assert parity.ratio(layer, theirs, X, X, X, **call) < 0.5
    assert parity.ratio(layer, theirs, X, X, X, empty_rows=True, **call) > 2


def test_an_overflow_of_dot_products():
    """In float16 they may be infinite before they are scaled: not a mistake if they are scaled first."""
    layer = mha.MultiHeadAttention(64, 4, num_key_value_heads=2, bias=True, dtype="float16", seed=0, backend="numpy")
    X = (110 * normal("float32", 2, 9, 64, seed=5) / np.resize([60, 1], 9)[:, None]).astype("float16")
    first, fused, late = (HalfPort(layer, core=core).call(X, X, X, causal=True) for core in (STEPS[1], PLAIN, STEPS[0]))
    assert np.isnan(late).any()
    assert max(parity.ratio(layer, one, X, X, X, causal=True) for one in (first, fused)) < 0.5
    for blank in (False, True):
        wrong = np.nan_to_num(late, nan=1.0) if blank else late
        assert parity.ratio(layer, wrong, X, X, X, causal=True) > 2


# What a report says


class Scaled(HalfPort):
    scale = 0.28  # 0.267 is right


@pytest.mark.margin(0.5, 1)  # it asks for one itself
def test_a_report_tells_how_an_output_rounds():
    layer, X = layer_of("bfloat16", 2.0), normal("bfloat16", 2, 50, 84)
    same, wrong = (parity.compare(layer, port(layer, core=STEPS[0]).call(X, X, X), X, X, X)
                   for port in (HalfPort, Scaled))  # fmt: skip
    words = "the output rounds in steps: dot products, scores, weights (0 of its error's square is left)"
    assert words in " ".join(str(same).split())
    assert (same.rounding.core, same.rounding.ties, same.rounding.worst) == (STEPS[0], 0, "the largest error")
    assert same.ratio == same.rounding.ratio
    row, text = wrong.first, " ".join(str(wrong).split())
    assert row.ratio == wrong.ratio == wrong.rounding.ratio > 2
    assert "the nearest style of right code rounds" in text
    assert "of its error's square is left)" in text
    assert row.error < row.bound == wrong.rounding.limit
    words = "each number is within what bfloat16 explains, the likeness to another scale that the nearest style"
    assert row.note.startswith(words)
    assert wrong.diagnosis.mistakes == ("another scale",)


def test_other_outputs_have_no_style():
    layer, X = layer_of("bfloat16"), normal("bfloat16", 2, 20, 84)
    far = parity.compare(layer, -layer(X, X, X), X, X, X)
    assert far.rounding is far.first.rounding is None
    assert "style" not in str(far)
    steps = parity.compare(layer, {"split_q": layer.trace(X, X, X)["split_q"]}, X, X, X)
    assert steps.rounding is None
    for dtype in ("float32", "float64"):
        layer, X = layer_of(dtype), normal(dtype, 2, 20, 84)
        report = parity.compare(layer, layer(X, X, X), X, X, X)
        assert report
        assert report.rounding is None
        assert "rounds" not in str(report)


# Small mistakes


@functools.cache
def setting(dtype, style, windowed):
    return half_mistakes.small_setting(1, dtype, style, 64, windowed)


SMALL = (
    "scale 1 % too large", "scale 2 % too large in one sample", "bias of W_v 1 % too small",
    "window one too wide in two rows", "7 times the rounding in one sample",
)  # fmt: skip
CALLS = [(name, "bfloat16", style) for name in SMALL for style in ("fused", "steps")]


@pytest.mark.margin(0.5, 1)  # it asks for one itself
@pytest.mark.parametrize(
    ("name", "dtype", "style"),
    [*CALLS, *((name, "float16", "fused") for name in ("keys and values in int8", "output 0.3 % too large"))],
)
def test_a_small_mistake_is_noticed(name, dtype, style):
    own = setting(dtype, style, "window" in name)
    assert own.case(name, half_mistakes.SMALL[name](own)).ratio() > 2
    assert own.right_ratio < 0.5


def test_products_that_are_summed_one_by_one():
    """Keras' own in float16, on a processor: each sum is rounded, and those of 320 products are added."""
    A, B = normal("float16", 3, 700), normal("float16", 700, 2, seed=5)
    blocks = [functools.reduce(lambda total, at: total + A[:, at, None] * B[at], some, np.zeros((3, 2), "float16"))
              for some in (range(320), range(320, 640), range(640, 700))]  # fmt: skip
    assert np.array_equal(product_one_by_one(*(X.astype("float32") for X in (A, B))), sum(blocks))
    layer, X = layer_of("float16"), normal("float16", 2, 90, 84)
    half = problem(layer, X, X, X, planted.DEFAULTS).half
    theirs = half.simulation.output(half.start, SUMS[0]).astype("float16")
    report = parity.compare(layer, theirs, X, X, X)
    assert (report.rounding.core, report.rounding.left) == (SUMS[0], 0)
    assert "weights, each sum of a product (0 of" in str(report)
    assert parity.ratio(layer, theirs, X, X, X, style="fused") > 1


@pytest.mark.margin(0.5, 1)  # with wider limits, a style that is less near ends the search
@pytest.mark.parametrize("core", [PLAIN, STEPS[4]], ids=["fused", "steps"])
def test_products_that_are_cut_off(core):
    """TensorFlow's own in bfloat16, on processors without it."""
    layer, X = layer_of("bfloat16", bias=True), normal("bfloat16", 2, 60, 84)
    half = problem(layer, X, X, X, planted.DEFAULTS).half
    border = dataclasses.replace(half.start, products=True, last=True, cut=True)
    theirs = half.simulation.output(border, core).astype(numpy_dtype("bfloat16"))
    report = parity.compare(layer, theirs, X, X, X)
    assert (report.rounding.border, report.rounding.left < 0.05, report.ratio < 0.5) == (border, True, True)
    assert cut_off(np.array([1.9999, -1.9999], "float32")).tolist() == [1.9921875, -1.9921875]


@pytest.mark.parametrize("dtype", HALVES_OF)
def test_a_change_alone_is_measured_without_a_style(dtype):
    """By it a report says which known mistakes its inputs would not show."""
    (layer, X), call = (layer_of(dtype, bias=True), normal(dtype, 2, 60, 84)), planted.DEFAULTS
    half, inputs = problem(layer, X, X, X, call).half, [X.astype("float64")] * 3
    other = dataclasses.replace(layer.config, scale=1.02 / 14**0.5, dtype="float64")
    change = restore(other, in_dtype(layer, "float64").weights, "numpy")(*inputs) - half.oracle_output
    assert half.ratio_of_change(0 * change) == 0
    assert half.ratio_of_change(change) > 2
    assert half.ratio_of_change(change / (40 if dtype == "bfloat16" else 320)) < 0.5


class NarrowWindow(Port):
    @property
    def window(self):
        return 4, 0


class LongLengths(Port):
    def lengths(self, seen, valid_lens):
        return super().lengths(seen, np.array(valid_lens) + 1)


class OtherBase(Port):
    def frequencies(self, rotary):
        return 20000.0 ** (-np.arange(rotary.dim // 2) / (rotary.dim // 2))


MISTAKES = {
    NarrowWindow: {"qk_norm": "rms", "window": (5, 0)},
    LongLengths: {"qk_norm": "rms"},
    OtherBase: {"rotary": mha.Rotary(14)},
}


@pytest.mark.parametrize("dtype", HALVES_OF)
@pytest.mark.parametrize("wrong", MISTAKES)
def test_a_mistake_is_noticed_in_code_that_is_wide(wrong, dtype):
    """Also where rows are far off and each number is near."""
    layer, X = layer_of(dtype, bias=True, **MISTAKES[wrong]), normal(dtype, 3, 23, 84)
    call = {"valid_lens": [23, 7, 11], "causal": True}
    wide = in_dtype(layer, "float32")
    right, theirs = (port(wide)(*[X.astype("float32")] * 3, **call)[0].astype(X.dtype) for port in (Port, wrong))
    assert parity.ratio(layer, right, X, X, X, **call) < 0.5
    assert parity.ratio(layer, theirs, X, X, X, **call) > 2
    assert parity.compare(layer, theirs, X, X, X, **call).ratio > 2


def test_a_mistake_that_few_rows_show_has_its_name():
    layer, X = layer_of("bfloat16", qk_norm="rms", window=(39, 0)), normal("bfloat16", 2, 43, 84)

    class Narrow(Port):
        window = 38, 0

    theirs = Narrow(in_dtype(layer, "float32"))(*[X.astype("float32")] * 3)[0].astype(X.dtype)
    report = parity.compare(layer, theirs, X, X, X)
    assert report.first.error < report.first.bound
    assert report.ratio > 3
    assert "that the nearest style of rounding leaves is not" in report.first.note
    assert report.diagnosis.mistakes == ("the window is one narrower to the left",)


class Shifted(HalfPort):
    def turn(self, role, X, places):
        return super().turn(role, X, places + (role == "q"))


class Coarse(HalfPort):
    def places(self, places):
        return places.astype(numpy_dtype("bfloat16")).astype("float32")


@pytest.mark.parametrize("dtype", HALVES_OF)
@pytest.mark.parametrize("core", [FUSED[0], STEPS[0]], ids=["fused", "in steps"])
def test_wrong_positions_are_noticed(core, dtype):
    layer, X = layer_of(dtype, rotary=mha.Rotary()), normal(dtype, 2, 61, 84)
    call = {"positions": 8009 + np.arange(61), "key_positions": 8009 + np.arange(61)}
    right, shifted, coarse = (
        parity.ratio(layer, port(layer, core=core).call(X, X, X, **call), X, X, X, **call)
        for port in (HalfPort, Shifted, Coarse)
    )
    assert right < 0.5
    assert min(shifted, coarse) > 2


# Frameworks


SOFTMAX = {  # each framework's own softmax of scores in half precision
    ("torch", "float16"): Core(weights=True), ("torch", "bfloat16"): Core(weights=True),
    ("jax", "float16"): HALVES[1][0], ("jax", "bfloat16"): HALVES[0][0],
    ("mlx", "float16"): HALVES[2][0], ("mlx", "bfloat16"): HALVES[2][0],
}  # fmt: skip


def softmax(backend, X):
    return {
        "torch": lambda: importlib.import_module("torch").softmax(X, -1),
        "jax": lambda: importlib.import_module("jax").nn.softmax(X, -1),
        "mlx": lambda: importlib.import_module("mlx.core").softmax(X, axis=-1),
    }[backend]()


@pytest.mark.backends("torch", "jax", "mlx")  # TensorFlow's depends on the processor
@pytest.mark.parametrize("dtype", HALVES_OF)
def test_the_softmax_of_a_framework_rounds_so(backend, dtype):
    core, scores = SOFTMAX[backend, dtype], 3 * normal(dtype, 2, 6, 77, 77).astype("float32")
    scores = scores.astype(numpy_dtype(dtype))
    theirs = mha.to_numpy(softmax(backend, mha.tensor(scores, backend=backend)))
    for one in (Core(weights=True), *(family[0] for family in HALVES)):
        share = np.mean(HalfPort(layer_of(dtype), core=one).softmax(scores.astype("float32"), True) == theirs)
        assert share > 0.99 if one == core else share < 0.9


PORTS = {  # what frameworks' attention is like, in helpers/right_ports: names, and a core in bfloat16 and in float16
    "numpy": {"steps": (HALVES[0][1], HALVES[0][1])},
    "torch": {"eager": (STEPS[0], STEPS[0]), "sdpa": (FUSED[0], FUSED[0]), "mha": (STEPS[1], STEPS[1])},
    "jax": {
        "einsum_jit": ((HALVES[0][1], STEPS[4]), None),  # the second one by JAX 0.10.1
        "wide": (FUSED[1], FUSED[1]),
    },
    "mlx": {"fast": (STEPS[2], STEPS[2]), "steps": (HALVES[2][2], HALVES[2][2])},
}


@pytest.mark.backends(*PORTS)
@pytest.mark.parametrize("dtype", HALVES_OF)
def test_the_attention_of_a_framework_is_near_its_style(backend, dtype, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "helpers" / "right_ports")
    draws, ports = (importlib.import_module(name) for name in ("draws", f"{backend}_ports"))
    layer, X = layer_of(dtype, 2.0, bias=True), normal(dtype, 2, 77, 84)
    for name, cores in PORTS[backend].items():
        if core := cores[dtype == "float16"]:
            theirs = mha.to_numpy(ports.PORTS[name][0](draws.Trial(layer, (X, X, X), {})))
            rounding = parity.compare(layer, theirs, X, X, X).rounding
            assert rounding.core in (core if isinstance(core, tuple) else (core,)), name
            assert (rounding.left < 0.2, rounding.ratio < 0.5) == (True, True), name


OPTIONS = {"plain": {}, "a model of today": {"qk_norm": "rms", "rotary": mha.Rotary(4), "window": (5, 0)}}


@pytest.mark.parametrize("options", [OPTIONS["plain"], pytest.param(OPTIONS["a model of today"],
                         marks=pytest.mark.long(*adapters.COMPILED))], ids=OPTIONS)  # fmt: skip
@pytest.mark.parametrize("dtype", HALVES_OF)
def test_layers_of_ours_are_the_same(backend, dtype, options):
    if dtype not in mha.core.dispatch.load(backend).DTYPES:
        return
    layer, X = layer_of(dtype, bias=True, **options), normal(dtype, 3, 23, 84)
    there, Y, call = layer.to(backend), mha.tensor(X, backend=backend), {"valid_lens": [23, 7, 1], "causal": True}
    for output in (there(Y, Y, Y, **call), there(Y, Y, Y, **call, return_weights=True)[0]):
        assert parity.ratio(layer, output, X, X, X, **call) <= 1
