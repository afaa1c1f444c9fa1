"""Kernels in half precision: judged by styles of attention alone, each head of a sample by itself.

Letters as in the lessons.
"""

import functools
import math

import kernel_zoo
import numpy as np
import pytest
from kernel_zoo.calls import CASES, able, asked, call, draw
from kernel_zoo.flash import ToBase2

from mha.core.options.config import numpy_dtype
from mha.parity import compare_kernel

HALVES = ["bfloat16", "float16"]
B, H, G, Q, K, d = 2, 6, 2, 67, 71, 24
# Calls with options first, in which most wrong kernels differ, and small ones.
IN_ORDER = sorted(CASES, key=lambda case: (not (case.options or case.how), case.Q * case.K))
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@functools.cache
def inputs(dtype, size=1.0):
    """Queries, keys, values and a cotangent."""
    rng = np.random.default_rng(3)
    sizes = (B, H, Q, d), (B, G, K, d), (B, G, K, d), (B, H, Q, d)
    return tuple((size * rng.normal(size=shape)).astype(numpy_dtype(dtype)) for shape in sizes)


def steps(dtype, scale=d**-0.5, wide=False, size=1.0):
    """Output and log-sum-exp of code that rounds dot products, scores and weights; wide: it rounds nothing inside."""
    q, k, v, _ = (X.astype("float32") for X in inputs(dtype, size))
    k, v = (np.repeat(X, H // G, 1) for X in (k, v))  # (B, H, K, d)

    def half(X):
        return X if wide else X.astype(numpy_dtype(dtype)).astype("float32")

    scores = half(half(q @ k.swapaxes(2, 3)) * np.float32(scale))
    scores = np.where(np.tri(Q, K, dtype=bool), scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    sums = exponentials.sum(-1, keepdims=True)
    lse = (np.log(sums) + scores.max(-1, keepdims=True))[..., 0]
    return (half(exponentials / sums) @ v).astype(numpy_dtype(dtype)), lse


def judged(dtype, theirs, size=1.0, **more):
    """The report on a causal call."""
    return compare_kernel(theirs, *inputs(dtype, size)[:3], causal=True, **more)


@pytest.mark.margin(1, 2)  # it asks for one itself
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("wide", [False, True])
def test_right_code_is_near_to_its_own_style(dtype, wide):
    report = judged(dtype, steps(dtype, wide=wide))
    assert report
    assert report.ratio < 0.5
    assert report.rounding.left < (0.02 if wide else 0.05)
    assert report.rounding.core.rounds_scores != wide


@pytest.mark.margin(1, 2)  # a reason leaves rounding, whose mean square is near its limit
@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 0.01), ("float16", 0.01), ("float16", 0.003)])
@pytest.mark.parametrize("wide", [False, True])
def test_a_scale_that_is_a_little_off_is_noticed_and_named(dtype, share, wide):
    report = judged(dtype, steps(dtype, d**-0.5 * (1 + share), wide)[0])
    assert report.ratio > 2
    if dtype == "float16":  # in bfloat16 other numbers leave as little
        assert report.diagnosis.mistakes == ("another scale",)


@pytest.mark.parametrize("dtype", HALVES)
def test_an_error_in_one_head_of_one_sample_is_noticed(dtype):
    """As large as 3 times the rounding of that head, and the others are right."""
    right, exact = steps(dtype)[0], steps(dtype, wide=True)[0].astype("float32")
    wrong = right.astype("float32")
    wrong[1, 4] += 3 * UNIT[dtype] * np.abs(exact[1, 4])
    report = judged(dtype, wrong.astype(right.dtype))
    assert not report
    assert "sample" in report.rounding.worst or "likeness" in report.rounding.worst


@pytest.mark.parametrize("dtype", HALVES)
def test_a_head_of_small_values_has_limits_of_its_own(dtype):
    """Where values are small, an error that is as small as the rounding of the others is noticed."""
    q, k, v, _ = inputs(dtype)
    v = v.copy()
    v[:, 1] = (v[:, 1].astype("float32") / 64).astype(v.dtype)
    right = compare_kernel(steps(dtype)[0], q, k, v, causal=True)
    assert not right  # of heads 3 to 5 these are the values of another call
    theirs = steps(dtype)[0].astype("float32")
    theirs[:, 3:] /= 64
    assert compare_kernel(theirs.astype(v.dtype), q, k, v, causal=True)
    theirs[0, 3] += 2 * UNIT[dtype] * np.abs(theirs[0, 0])
    assert not compare_kernel(theirs.astype(v.dtype), q, k, v, causal=True)


@pytest.mark.margin(1, 1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("units", "same"), [(1.8, True), (2.2, False)])
def test_the_log_sum_exp_may_be_two_units_of_its_products_off(dtype, units, same):
    """A query of ones and a key of fours: the products are 96, and their sum by its root; all of it is exact."""
    one, four = (np.full((1, 1, 1, d), X, numpy_dtype(dtype)) for X in (1, 4))
    lse = np.full((1, 1, 1), 4 * math.sqrt(d) * (1 + units * UNIT[dtype]))
    assert bool(compare_kernel({"lse": lse}, one, four, one)) == same


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_with_ties_are_counted(dtype):
    """Scores of some hundreds are rounded by more than an eighth: styles that round them do not judge such rows."""
    size = 12.0 if dtype == "bfloat16" else 40.0
    fused, in_steps = (judged(dtype, steps(dtype, wide=wide, size=size)[0], size) for wide in (True, False))
    assert fused
    assert in_steps
    assert fused.rounding.ties == 0


@pytest.mark.parametrize("dtype", HALVES)
def test_scores_to_base_2_of_rounded_queries_and_back_of_rounded_keys(dtype):
    """As kernels for GPUs do it; with large scores, other sums than those of the weights are seen in gradients."""
    q, k, v, cotangent = inputs(dtype, 6.0)
    kernel = ToBase2()
    output, lse = kernel(q, k, v, causal=True)
    found = {"output": output, "lse": lse, **kernel.backward(q, k, v, output, lse, cotangent, causal=True)}
    report = judged(dtype, found, 6.0, cotangent=cotangent)
    assert report, report
    assert report.rounding.core.base_2
    assert not judged(dtype, found | {"dv": (found["dv"] * 1.5).astype(numpy_dtype(dtype))}, 6.0, cotangent=cotangent)


@pytest.mark.parametrize("style", ["fused", "steps"])
def test_a_style_that_is_asked_for(style):
    report = judged("float16", steps("float16")[0], style=style)
    assert report.rounding.core.rounds_scores == (style == "steps")


@pytest.mark.long("jax", "tensorflow")  # which compile each call
@pytest.mark.backends("numpy", "torch", "tensorflow", "jax", "mlx")  # MXNet has no half precision on processors
@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.long("numpy", "torch", "mlx"))]
)
def test_right_kernels_pass(dtype, backend):
    judgements = list(judge_all(kernel_zoo.right(backend), backend, dtype, 12))
    assert judgements
    for name, report in judgements:
        assert report, f"{name}\n{report}"


WRONG = (
    "the sum is not rescaled", "only the last tile counts", "tiles overlap by a key", "the scale of a padded width",
    "the mask of the first head for all", "sinks count in each tile", "the window is one wider to the left",
    "heads of keys are tiled, not repeated", "dq lacks the scale", "a text sees the last key of the one before",
    "the log-sum-exp lacks its maximum",
)  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_noticed(name):
    kernel = kernel_zoo.wrong("numpy")[name]
    assert not all(report for _, report in judge_all({name: kernel}, "numpy", "bfloat16", 1, IN_ORDER))


def judge_all(kernels, backend, dtype, every, cases=CASES):
    """Judge some calls of each kernel, those that it can do: names and reports."""
    for name, kernel in kernels.items():
        for case in [case for case in able(kernel, cases) if case.K < 1000 or every == 1][::every]:
            drawn = draw(case, 1, dtype)
            try:
                theirs = call(backend, kernel, case, drawn)
            except NotImplementedError:
                continue
            own, more = asked(kernel, case, drawn)
            yield f"{name}, {case}", compare_kernel(theirs, *own, **more)
