"""What the report on a wrong kernel names: a mistake that explains all wrong cases, and would show in no right one."""

import failures
import numpy as np
import pytest
from mha.testing import assert_kernel, kernel_cases
from plain_kernel import attend, kernel_with

from mha.parity import Report
from mha.parity.diagnosis.search.explanations import Diagnosis, Explanation
from mha.parity.testing.kernels.explaining import forms_that_explain

failure_of = failures.of(assert_kernel)

FLOAT32 = {"dtypes": "float32"}


@pytest.mark.parametrize(
    ("mistake", "why"),
    [("tiled heads", "heads of keys are tiled"), ("lower right", "causal order is aligned to the lower right")],
)
def test_a_known_mistake_is_named(mistake, why):
    said = failure_of(kernel_with(mistake), **FLOAT32)
    assert f"why: {why}" in said
    assert "unknown" not in said


def test_options_are_drawn_together():
    """A hidden score that is capped, too, is no longer hidden, which no case with one of the two shows."""

    def kernel(q, k, v, causal=False, softcap=None):
        order = np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), 0, np.float32(-1e9))
        if softcap is None:
            return attend(q, k, v, bias=order if causal else None)[0]
        k, v = (np.repeat(X, q.shape[1] // X.shape[1], 1) for X in (k, v))  # (B, H, K, d)
        scores = q @ k.swapaxes(2, 3) * np.float32(q.shape[3] ** -0.5) + (order if causal else 0)
        unscaled = np.zeros_like(q[..., :1]), np.zeros_like(k[..., :1])
        return attend(*unscaled, v, bias=np.float32(softcap) * np.tanh(scores / np.float32(softcap)))[0]

    said = failure_of(kernel, **FLOAT32)
    assert "differs in 1 of" in said
    assert "all wrong cases have, and no right one: causal and softcap" in said
    assert "why: hidden scores are capped" in said


@pytest.mark.backends("torch")
def test_sums_in_half_precision_are_noticed():
    """Sums of 4 keys are added up in bfloat16, as an accumulator in the inputs' dtype does."""
    import torch

    def kernel(q, k, v):
        k, v = (X.repeat_interleave(q.shape[1] // X.shape[1], 1) for X in (k, v))
        weights = torch.softmax((q @ k.mT).float() * q.shape[3] ** -0.5, 3).to(q.dtype)  # (B, H, Q, K)
        return sum(some @ values for some, values in zip(weights.split(4, 3), v.split(4, 2), strict=True))

    said = failure_of(kernel, "torch", gradients=False)
    assert "bfloat16, 704 tokens" in said.splitlines()[0]
    assert "float32" not in said.splitlines()[0]


@pytest.mark.backends("torch")
def test_what_makes_an_output_wrong_is_named_where_gradients_alone_are_wrong_too():
    """The maximum of equal scores has a gradient of its own where it is not taken out again."""
    import torch

    def kernel(q, k, v):
        k, v = (X.repeat_interleave(q.shape[1] // X.shape[1], 1) for X in (k, v))
        scores = q @ k.mT * q.shape[3] ** -0.5  # (B, H, Q, K)
        largest, total, pooled = torch.full_like(scores[..., :1], -torch.inf), 0, 0
        for some, values in zip(scores.split(64, 3), v.split(64, 2), strict=True):
            before, largest = largest, torch.maximum(largest, some.amax(-1, keepdim=True))
            shares = torch.exp(some - largest)
            total, pooled = total * torch.exp(before - largest) + shares.sum(-1, keepdim=True), pooled + shares @ values
        return pooled / total

    said = failure_of(kernel, "torch", **FLOAT32)
    assert "why: the accumulator of blocks is not rescaled (blocks of 64)" in said
    assert "gradients alone differ in 1 case, which it may explain, too" in " ".join(said.split())


def test_a_mistake_that_a_right_case_denies_is_not_named():
    """In wrong cases heads are tiled; others have fewer heads of keys, too, and are right."""
    tiled = kernel_with("tiled heads")
    said = failure_of(lambda q, k, v: (tiled if q.shape[2] == 33 else attend)(q, k, v), **FLOAT32)
    assert "why: unknown" in said
    assert "the smallest\ncase alone would be explained by: heads of keys are tiled" in said


def test_a_form_of_a_mistake_is_found_by_all_its_words():
    mistake, forms = "a sink counts once for each block", ["blocks of 32", "blocks of 64"]  # and neither 3 nor 6
    call = kernel_cases(None, cases="sinks", **FLOAT32)[0]
    for how, found in ((" or ".join(forms), forms), ("", [""])):
        one = Explanation((mistake,), (how,), ("",), 0.5, 0.0, True)
        report = Report((), "float32", lambda one=one: Diagnosis((one,), "", 1))
        assert forms_that_explain(call, report) == [((mistake,), form) for form in found]


def test_two_mistakes_in_two_cases_have_no_common_name():
    unscaled = kernel_with("no scale")

    def kernel(q, k, v):
        return unscaled(q, k, v) if q.shape[1] == k.shape[1] else np.zeros_like(q)

    said = failure_of(kernel, **FLOAT32)
    assert "why: unknown" in said
    assert "the smallest\ncase alone would be explained by: no scale" in said
