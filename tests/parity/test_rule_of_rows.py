"""In half precision the mean square of each row counts: by written numbers, for right ports and for mistakes."""

import math

import adapters
import numpy as np
import pytest
from planted import DEFAULTS
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.mistakes import of_precision
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem
from mha.parity.rule.rules import ratio_of, row_bounds

HALVES = ["float16", "bfloat16"]


@pytest.mark.parametrize("share", [0.95, 1.05])
@pytest.mark.parametrize(("features", "factor"), [(64, 8), (256, 8), (16, 16), (4, 32), (1, 64)])
def test_a_row_as_a_written_number(features, factor, share):
    oracle = np.random.default_rng(0).normal(size=(1, 3, features))
    errors = np.array([0.5, 1.0, 2.0])[None, :, None] * np.where(np.arange(features) % 2, 1.0, -1.0)
    bounds = row_bounds("bfloat16", oracle, oracle + errors)
    assert bounds.tolist() == [pytest.approx([factor, factor, 2 * factor])]  # the first counts as the median row
    for row in range(3):
        theirs = oracle.copy()
        theirs[0, row, 0] += share * bounds[0, row] * math.sqrt(features)
        assert ratio_of(theirs, oracle, 1e9, bounds) == pytest.approx(share)
    assert row_bounds("float32", oracle, oracle + errors) is None


def test_rows_without_an_error_have_the_median_of_the_others():
    oracle = np.zeros((1, 4, 64))
    base = oracle + np.array([0.0, 0.0, 0.0, 1.0])[None, :, None]
    assert row_bounds("float16", oracle, base).tolist() == [[8.0] * 4]
    assert row_bounds("float16", oracle, oracle).tolist() == [[0.0] * 4]
    assert ratio_of(oracle, oracle, 1e9, row_bounds("float16", oracle, oracle)) == 0
    assert ratio_of(base, oracle, 1e9, row_bounds("float16", oracle, oracle)) == math.inf


def halves(dtype, D, H, seed=0, scale=1.0, **options):
    """A layer on NumPy with random biases and scales, and its inputs."""
    rng = np.random.default_rng(seed)
    layer = mha.MultiHeadAttention(D, H, bias=True, dtype=dtype, seed=seed, backend="numpy", **options)
    layer.weights = {
        name: X if X.ndim == 2 else rng.normal("norm" in name, 0.5, X.shape).astype(X.dtype)
        for name, X in layer.weights.items()
    }
    return layer, (scale * rng.normal(size=(3, 23, D))).astype(numpy_dtype(dtype))


OPTIONS = {"plain": {}, "a model of today": {"qk_norm": "rms", "rotary": mha.Rotary(4), "window": (5, 0)}}
LONG = pytest.mark.long(*adapters.COMPILED)
CALLS = [{}, {"valid_lens": [23, 7, 1], "causal": True}]


@LONG
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("D", "H"),
    [pytest.param(8, 2, marks=LONG), pytest.param(16, 4, marks=LONG), (64, 4), pytest.param(128, 4, marks=LONG)],
)
def test_right_ones_pass(backend, D, H, options):
    for dtype in {*HALVES}.intersection(mha.core.dispatch.load(backend).DTYPES):
        for call in CALLS:
            layer, X = halves(dtype, D, H, **OPTIONS[options])
            there = layer.to(backend)
            Y = mha.tensor(X, backend=backend)
            outputs = there(Y, Y, Y, **call), there(Y, Y, Y, **call, return_weights=True)[0]
            for output in outputs:
                assert parity.ratio(layer, output, X, X, X, **call) <= 1, (dtype, call)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("D", "H"), [(8, 2), (16, 2), (64, 4), (128, 4)])
def test_a_port_that_rounds_every_result_passes(dtype, D, H):
    """As eager code does: each product, the scores, the weights."""
    for seed, options in enumerate(OPTIONS.values()):
        for call in CALLS:
            layer, X = halves(dtype, D, H, seed, **options)
            asked = problem(layer, X, X, X, DEFAULTS | call, None)
            plan = of_precision.everything(dtype)(make_plan(asked, dtype))
            output = all_steps(plan, ["output"])["output"]
            assert parity.ratio(layer, output, X, X, X, **call) <= 1, call


class NarrowWindow(Port):
    @property
    def window(self):
        return 4, 0


class LongLengths(Port):
    def lengths(self, seen, valid_lens):
        return super().lengths(seen, np.array(valid_lens) + 1)


class SmallScale(Port):
    @property
    def scale(self):
        return 0.9 * super().scale


class OtherBase(Port):
    def frequencies(self, rotary):
        return 20000.0 ** (-np.arange(rotary.dim // 2) / (rotary.dim // 2))


MISTAKES = {
    NarrowWindow: {"qk_norm": "rms", "window": (5, 0)},
    LongLengths: {"qk_norm": "rms"},
    SmallScale: {"qk_norm": "rms"},
    OtherBase: {"rotary": mha.Rotary(16)},
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("D", "H"), [(64, 4), (128, 4)])
@pytest.mark.parametrize("wrong", MISTAKES)
def test_mistakes_are_noticed(wrong, D, H, dtype):
    layer, X = halves(dtype, D, H, **MISTAKES[wrong])
    call = {"valid_lens": [23, 7, 11], "causal": True}
    wide = parity.in_dtype(layer, "float32")
    right, theirs = (port(wide)(*[X.astype("float32")] * 3, **call)[0].astype(X.dtype) for port in (Port, wrong))
    assert parity.ratio(layer, right, X, X, X, **call) <= 0.5
    assert parity.ratio(layer, theirs, X, X, X, **call) > 1
    report = parity.compare(layer, theirs, X, X, X, **call)
    assert not report
    row = report.first
    assert row.ratio == max(row.rows, row.error / row.bound) > 1
    if row.error <= row.bound:
        said = "each number is within what", "the mean square of a row is not"
        assert all(words in row.note for words in said)


@pytest.mark.parametrize("T", [23, 43])
def test_a_mistake_that_only_rows_show_has_its_name(T):
    layer, _ = halves("bfloat16", 64, 4, qk_norm="rms", window=(T - 4, 0))

    class Narrow(Port):
        window = T - 5, 0

    X = np.random.default_rng(0).normal(size=(2, T, 64)).astype(numpy_dtype("bfloat16"))
    theirs = Narrow(parity.in_dtype(layer, "float32"))(*[X.astype("float32")] * 3)[0].astype(X.dtype)
    report = parity.compare(layer, theirs, X, X, X)
    assert report.first.error < report.first.bound
    assert report.first.rows > 3
    assert "the mean square of a row is not" in report.first.note
    assert report.diagnosis.mistakes == ("the window is one narrower to the left",)
