"""The rules of `mha.parity` themselves: bounds as written numbers, and what is off by a little more than a bound."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

import mha
from mha import parity
from mha.core.options.config import DTYPES, numpy_dtype
from mha.parity.cases import suite
from mha.parity.rule import problem
from mha.parity.rule.rules import ratio_of, row_bounds

pytestmark = pytest.mark.margin(1, 1)

# Worked out by hand. The largest number of the oracle is 4, the base is off by the error in brackets:
# float64: 1e-12 * 4, for gradients 1e-10 * 4; whatever the base is
# float32 (2^-20): 8 * 2^-20 + 16 * 2^-24 * 4, for gradients 16 * 2^-20 + 16 * 2^-24 * 4
# float16 (2^-8): 8 * 2^-8 + 16 * 2^-11 * 4, for gradients 16 * 2^-8 + 16 * 2^-11 * 4
# bfloat16 (2^-6): 8 * 2^-6 + 16 * 2^-8 * 4, for gradients 16 * 2^-6 + 16 * 2^-8 * 4
# A scale of 8 takes the place of the 4, one of 2 does not.
BOUNDS = {
    ("float64", False, 0.0): 4e-12,
    ("float64", False, 2.0): 4e-12,
    ("float64", False, 8.0): 8e-12,
    ("float64", True, 0.0): 4e-10,
    ("float64", True, 8.0): 8e-10,
    ("float32", False, 0.0): 1.1444091796875e-05,
    ("float32", False, 2.0): 1.1444091796875e-05,
    ("float32", False, 8.0): 1.52587890625e-05,
    ("float32", True, 0.0): 1.9073486328125e-05,
    ("float32", True, 8.0): 2.288818359375e-05,
    ("float16", False, 0.0): 0.0625,
    ("float16", False, 2.0): 0.0625,
    ("float16", False, 8.0): 0.09375,
    ("float16", True, 0.0): 0.09375,
    ("float16", True, 8.0): 0.125,
    ("bfloat16", False, 0.0): 0.375,
    ("bfloat16", False, 2.0): 0.375,
    ("bfloat16", False, 8.0): 0.625,
    ("bfloat16", True, 0.0): 0.5,
    ("bfloat16", True, 8.0): 0.75,
}
BASE_ERRORS = {"float64": 0.5, "float32": 2**-20, "float16": 2**-8, "bfloat16": 2**-6}
UNITS = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}

HALF_HIDDEN = parity.Case("half hidden", parity.WIDTHS, [0, 3])


@pytest.mark.parametrize(("dtype", "gradient", "scale"), BOUNDS)
def test_bounds_as_written_numbers(dtype, gradient, scale):
    oracle = np.array([1.0, -4.0, np.nan, np.inf])
    base = np.array([1.0 + BASE_ERRORS[dtype], -4.0, np.nan, np.inf]).astype(numpy_dtype(dtype))
    assert parity.bound(dtype, oracle, base, gradient=gradient, scale=scale) == BOUNDS[dtype, gradient, scale]


def test_only_what_shifts_all_scores_of_a_query_is_measured_against_the_largest_gradient():
    names = list(mha.MultiHeadAttention(**parity.ADDITIVE, backend="numpy").weights)
    names += ["queries", "keys", "values", "score_bias"]
    gradients = {name: np.array([1.0, -i]) for i, name in enumerate(names)}
    nothing, largest = dict.fromkeys(gradients, 0.0), len(gradients) - 1
    assert {name: parity.gradient_scale(name, gradients) for name in gradients} == nothing | {"W_k.bias": largest}
    gradients = {name: X[:, None] for name, X in gradients.items()}  # one number for all keys
    scales = {name: parity.gradient_scale(name, gradients) for name in gradients}
    assert scales == nothing | {"W_k.bias": largest, "score_bias": largest}


@pytest.mark.parametrize(
    ("error", "bound", "passed", "ratio"),
    [
        (0.9, 1.0, True, 0.9),
        (1.0, 1.0, True, 1.0),
        (1.1, 1.0, False, 1.1),
        (0.0, 0.0, True, 0.0),
        (1e-300, 0.0, False, np.inf),
        (np.inf, 1.0, False, np.inf),
        (0.0, np.inf, False, np.inf),
        (1.0, np.inf, False, np.inf),
        (0.0, np.nan, False, np.inf),
        (1.0, np.nan, False, np.inf),
    ],
)
def test_what_passes(error, bound, passed, ratio):
    result = parity.Result("numpy", "check", "case", "float32", "output", error, bound)
    assert (result.passed, result.ratio) == (passed, ratio)


# A planted difference must be found


class Changed:
    """A layer whose results go through `change(check, name, result, inputs)` before they are given."""

    def __init__(self, layer, change):
        self.layer, self.change = layer, change

    def __call__(self, *inputs, return_weights=False, **hiding):
        if not return_weights:
            return self.change("output and weights", "output alone", self.layer(*inputs, **hiding), inputs)
        results = self.layer(*inputs, **hiding, return_weights=True)
        named = zip(("output", "weights"), results, strict=True)
        return tuple(self.change("output and weights", name, X, inputs) for name, X in named)

    def trace(self, *inputs, **hiding):
        steps = self.layer.trace(*inputs, **hiding)
        return {name: self.change("steps", name, X, inputs) for name, X in steps.items()}

    def vjp(self, *inputs, **hiding):
        output, pull_back = self.layer.vjp(*inputs, **hiding)

        def changed(cotangent):
            gradients = pull_back(cotangent)
            return {name: self.change("gradients", name, X, inputs) for name, X in gradients.items()}

        return self.change("gradients", "output of vjp", output, inputs), changed


@dataclasses.dataclass(frozen=True)
class Planted(parity.Case):
    """A case whose layer on the backend "changed" is NumPy's, changed."""

    change: Callable | None = None

    def layer(self, backend, dtype, **options):
        layer = super().layer("numpy", dtype, **options)
        return Changed(layer, self.change) if backend == "changed" else layer


def compared(case, dtype, change):
    """The results of a comparison, by check."""
    planted = Planted(**vars(case), change=change)
    return {result.check: result for result in parity.check_case("changed", planted, dtype)}


def failed(case, dtype, change):
    return {check for check, result in compared(case, dtype, change).items() if not result.passed}


def computed(layer, inputs, visible):
    """The comparisons of `check_case`: each array by its check and its name."""
    call = {"mask": visible}
    output, weights = layer(*inputs[:3], **call, return_weights=True)
    found = {("output and weights", "output"): output, ("output and weights", "weights"): weights}
    found["output and weights", "output alone"] = output
    found |= {("steps", name): X for name, X in layer.trace(*inputs[:3], **call).items()}
    output, pull_back = layer.vjp(*inputs[:3], **call)
    found["gradients", "output of vjp"] = output
    return found | {("gradients", name): X for name, X in pull_back(inputs[3]).items()}


def limit(dtype, oracle, base, gradient, scale=0.0):
    """The rule once more, in other words than the package's."""
    largest = max(abs(oracle).max(), scale)
    if dtype == "float64":
        return largest / (1e10 if gradient else 1e12)
    return (8 + 8 * gradient) * abs(base.astype("float64") - oracle).max() + 16 * UNITS[dtype] * largest


def off(X, oracle, by):
    """The array with the oracle's largest number moved by so much; what stands there before does not matter."""
    X, place = X.copy(), np.unravel_index(abs(oracle).argmax(), oracle.shape)
    X[place] = oracle[place] + by
    return X


@pytest.mark.parametrize("share", [0.9, 1.1])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_nine_tenths_of_a_bound_pass_and_eleven_do_not_in_any_array(dtype, share):
    layer, inputs = HALF_HIDDEN.layer("numpy", dtype), HALF_HIDDEN.inputs(dtype)
    wide, visible = [X.astype("float64") for X in inputs], HALF_HIDDEN.visible()
    bases, oracles = computed(layer, inputs, visible), computed(parity.in_dtype(layer, "float64"), wide, visible)
    gradients = {name: X for (check, name), X in oracles.items() if check == "gradients" and name != "output of vjp"}
    largest_gradient = max(abs(X).max() for X in gradients.values())
    assert len(bases) == 3 + 11 + 1 + 3 + 8
    for (check, name), oracle in oracles.items():
        scale = largest_gradient if (check, name) == ("gradients", "W_k.bias") else 0.0
        largest = limit(dtype, oracle, bases[check, name], check == "gradients" and name in gradients, scale)
        if dtype == "bfloat16" and (check == "gradients" or name.startswith("output")):
            continue  # what counts there is in test_half_precision and test_gradient_bounds
        by = share * largest

        def change(at, called, X, _, here=(check, name), oracle=oracle, by=by):
            return off(X, oracle, by) if (at, called) == here else X

        results = compared(HALF_HIDDEN, dtype, change)
        assert {at for at, result in results.items() if not result.passed} == ({check} if share > 1 else set()), name
        assert results[check].where == name
        assert results[check].ratio == pytest.approx(share, abs=0.08), name  # what is off is rounded to the dtype
        if name == "output alone":
            theirs = off(bases[check, name], oracle, by)
            assert parity.ratio(layer, theirs, *inputs[:3], mask=visible) == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize("share", [0.9, 1.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_answer_by_hand_may_be_off_by_sixteen_units(monkeypatch, dtype, share):
    class Off(mha.MultiHeadAttention):
        def __call__(self, *inputs, **options):
            output, weights = super().__call__(*inputs, **options)
            output[0, 0, 1] = np.e / (1 + np.e) + share * 16 * ({"float64": 2**-53} | UNITS)[dtype]
            return output, weights

    monkeypatch.setattr(suite, "MultiHeadAttention", Off)
    results = {result.check: result for result in parity.check_exact("numpy", dtype)}
    assert {name for name, result in results.items() if not result.passed} == (
        {"answer by hand"} if share > 1 else set()
    )
    assert results["answer by hand"].ratio == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(
    ("leak", "through"),
    [("queries", "output"), ("keys", "weights"), ("values", "output alone"), ("keys", "W_q.kernel")],
)
def test_padding_that_comes_through_is_found(leak, through):
    """Zero times what padding holds is nothing as long as that is finite."""

    def change(check, name, X, inputs):
        nothing = 0 * inputs[("queries", "keys", "values").index(leak)].sum()
        return X + nothing if name == through and check != "steps" else X

    with np.errstate(invalid="ignore"):
        assert failed(HALF_HIDDEN, "float32", change) == {"padding"}


@pytest.mark.parametrize("name", ["weights", "queries", "keys", "values"])
def test_hidden_keys_that_count_are_found(name):
    """So little that no bound notices."""
    visible = HALF_HIDDEN.visible()  # (B, H, Q, K)
    hidden = {"weights": ~visible, "queries": ~visible.any((1, 3))}
    hidden |= dict.fromkeys(("keys", "values"), ~visible.any((1, 2)))

    def change(check, called, X, _):
        if called == name and check != "steps":
            X[hidden[name]] = 1e-30
        return X

    assert failed(HALF_HIDDEN, "float32", change) == {"hidden keys"}


@pytest.mark.parametrize("says_nothing", [np.nan, np.inf])
def test_a_bound_that_says_nothing_is_not_hidden_by_the_others(monkeypatch, says_nothing):
    bound = problem.bound

    def planted(dtype, oracle, base, **options):
        # The attention weights alone have four axes.
        return says_nothing if oracle.ndim == 4 else bound(dtype, oracle, base, **options)

    monkeypatch.setattr(problem, "bound", planted)
    results = {result.check: result for result in parity.check_case("numpy", HALF_HIDDEN, "float32")}
    assert [check for check, result in results.items() if not result.passed] == ["output and weights"]
    assert results["output and weights"].where == "weights"


@pytest.mark.parametrize(("name", "cases"), [("full", suite.ALL_CASES), ("quick", parity.CASES)])
def test_a_plan_has_every_case_in_its_dtypes_and_what_is_exact(name, cases):
    plan = [check.run for check in parity.plan("numpy", name)]
    compared = [check.args[1:3] for check in plan if check.func is parity.check_case]
    asked = [(case, {*(case.quick if name == "quick" else case.dtypes)}) for case in cases]
    assert compared == [(case, dtype) for case, wanted in asked for dtype in DTYPES if dtype in wanted]
    assert {check.args[3] for check in plan if check.func is parity.check_case} == {False, True}  # the lesson's layer
    assert [check.args for check in plan if check.func is parity.check_exact] == [("numpy", dtype) for dtype in DTYPES]


def test_the_rule_compares_nan_as_such():
    nan, one = np.array([1.0, np.nan]), np.array([1.0, 1.0])
    assert parity.error(nan, nan) == 0
    assert parity.error(nan, one) == np.inf
    assert parity.error(one, nan) == np.inf
    assert parity.error(np.array([np.inf]), np.array([-np.inf])) == np.inf
    assert parity.error(one, one[None]) == np.inf


def test_a_ratio_of_what_cannot_be_compared():
    attention = mha.MultiHeadAttention(12, 3, backend="numpy")
    X = np.ones((2, 5, 12), "float32")
    output = attention(X, X, X)
    assert parity.ratio(attention, output, X, X, X) <= 1
    assert parity.ratio(attention, output[:1], X, X, X) == np.inf
    assert parity.ratio(attention, np.where(output == output.max(), np.nan, output), X, X, X) == np.inf
    with pytest.raises(TypeError, match="output has dtype float64, expected float32 as the layer"):
        parity.ratio(attention, output.astype("float64"), X, X, X)
    with pytest.raises(TypeError, match="queries has dtype float64"):
        parity.ratio(attention, output, X.astype("float64"), X, X)
    with pytest.raises(ValueError, match="valid_lens has shape"):
        parity.ratio(attention, output, X, X, X, [1, 2, 3])
    with pytest.raises(TypeError, match="output is a list"):
        parity.ratio(attention, output.tolist(), X, X, X)
    with pytest.raises(TypeError, match="attention is a MultiHeadAttention, expected an mha"):
        parity.ratio(attention.layer, output, X, X, X)
    with pytest.raises(ValueError, match="the layer overflows float32 with these numbers"):
        parity.ratio(attention, output, *[X * np.float32(1e38)] * 3)


# In half precision the mean square of each row counts: by written numbers, for right ports and for mistakes

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
