"""`mha.testing.assert_kernel`: right kernels pass in each framework, wrong ones fail with a report of why."""

import inspect
import re

import failures
import numpy as np
import pages
import pytest
from mha.testing import assert_kernel, kernel_cases
from plain_kernel import WRONG, attend, gradients, kernel_with

import mha
from mha.parity.diagnosis.compare.places import tile
from mha.parity.testing.kernels.calling import OPTION_OF

failure_of = failures.of(assert_kernel)

FLOAT32 = {"dtypes": "float32"}


# 1. Right kernels


@pytest.mark.margin(1, 2)  # it asks for one itself
def test_a_right_kernel_passes_every_case():
    outcome = assert_kernel(attend)
    assert outcome.not_offered == ("gradients",)
    assert outcome.left_out == {}
    assert 45 <= len(outcome.reports) <= 60
    assert all(outcome.reports.values())
    assert {row.title for report in outcome.reports.values() for row in report.rows} == {"output", "lse"}
    assert max(report.ratio for report in outcome.reports.values()) <= 0.5
    assert str(outcome).startswith(f"{len(outcome.reports)} cases the same in ")
    assert "not offered, so not seen: gradients" in str(outcome)
    assert outcome.seconds < 60


def test_the_full_suite_has_every_case_in_every_dtype():
    def small(q, *others, **options):
        if max(q.shape[2], others[0].shape[2]) > 65:
            raise NotImplementedError("long")
        return attend(q, *others, **options)

    takes = tuple(inspect.signature(attend).parameters)[3:-1]
    dtypes = "float64", "float32", "float16", "bfloat16"
    outcome = assert_kernel(small, suite="full", takes=takes, hidden_nan=True, dtypes=dtypes)
    dtypes = [label.partition(", ")[0] for label in outcome.reports]
    assert {dtypes.count(name) for name in ("float32", "float64")} == {dtypes.count("float32")}
    assert dtypes.count("float16") == dtypes.count("bfloat16") == dtypes.count("float32") + 1  # the float32 bias
    for name in ("NaN in hidden keys", "no samples", "values of another width", "NaN in freed memory", "32 tokens"):
        assert f"float32, {name}" in outcome.reports
    assert set(outcome.left_out.values()) == {"long"}


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_gradients_by_a_backward_pass(layout):
    def turn(X):
        return X if layout == "BHTD" else X.swapaxes(1, 2)

    def forward(q, k, v, causal=False):
        output, lse = attend(*map(turn, (q, k, v)), causal)
        return turn(output), lse.astype(np.promote_types(q.dtype, np.float32))

    def backward(q, k, v, output, lse, cotangent, causal=False):
        return tuple(map(turn, gradients(*map(turn, (q, k, v, output)), lse, turn(cotangent), causal)))

    options = {"layout": layout, "groups": False, "dtypes": ("float32", "float64")}
    outcome = assert_kernel(forward, backward=backward, **options)
    rows = {row.title for report in outcome.reports.values() for row in report.rows}
    assert rows == {"output", "lse", "dq", "dk", "dv"}
    assert not {"lse", "gradients"} & {*outcome.not_offered}
    assert assert_kernel(forward, backward=backward, cases="no samples", **options).reports

    def swapped(q, k, v, output, lse, cotangent, causal=False):
        dq, dk, dv = backward(q, k, v, output, lse, cotangent, causal)
        return {"dq": dq, "dk": dv, "dv": dk}

    said = failure_of(forward, backward=swapped, **options)
    assert "DIFFERS" in said
    assert "first to differ: dk" in said


def test_a_kernel_that_returns_its_gradients():
    def whole(q, k, v, cotangent, causal=False):
        output, lse = attend(q, k, v, causal)
        dq, dk, dv = gradients(q, k, v, output, lse, cotangent, causal)
        return {"output": output, "dq": dq, "dk": dk, "dv": dv}

    def of_sum(q, k, v, causal=False):
        return whole(q, k, v, np.ones_like(q), causal)

    options = {"groups": False, "dtypes": ("float32", "float64"), "gradients": True}
    for kernel in (whole, of_sum):
        assert "gradients" not in assert_kernel(kernel, **options).not_offered
    said = failure_of(lambda q, k, v, cotangent: whole(q, k, v, 2 * cotangent), cases="plain", **options)
    assert "first to differ: dq" in said


def test_gradients_that_are_asked_for_must_be_there():
    assert "it has no gradients by q, k or v in numpy" in failure_of(attend, gradients=True, cases="plain")


def sdpa(q, k, v, attn_mask=None, is_causal=False, scale=None):
    import torch
    from torch.nn import functional

    if attn_mask is not None and is_causal:  # which PyTorch 2.15 refuses
        attn_mask, is_causal = attn_mask & torch.ones(attn_mask.shape[2:], dtype=torch.bool).tril(), False
    return functional.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=True)


@pytest.mark.backends("torch")
def test_the_kernel_of_torch():
    outcome = assert_kernel(sdpa, "torch")
    assert {"dq", "dk", "dv"} <= {row.title for row in outcome.reports["float32, plain"].rows}
    assert {"bias", "window", "sinks", "lse"} <= {*outcome.not_offered}
    assert {"float32, transposed inputs", "float32, inputs of stride 0", "float32, NaN around the inputs"} <= {
        *outcome.reports
    }


@pytest.mark.margin(0.6, 2)  # 0.53 of a bound, on three kinds of processors: its backward pass computes weights again
@pytest.mark.backends("torch")
@pytest.mark.parametrize("option", ["attn_mask", "is_causal"])  # PyTorch 2.15 refuses both together
def test_a_builtin_of_torch(option):
    import torch

    builtin = torch.nn.functional.scaled_dot_product_attention
    outcome = assert_kernel(builtin, "torch", groups=False, takes=(option, "scale"), **FLOAT32)
    assert len(outcome.reports) > 15


@pytest.mark.backends("torch")
def test_packed_texts_in_torch():
    import torch

    def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
        ends, key_ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        texts = zip(ends, ends[1:], key_ends, key_ends[1:], strict=False)
        found = []
        for a, b, c, d in texts:
            assert b - a <= max_seqlen_q
            assert d - c <= max_seqlen_k
            one = [X.transpose(0, 1) for X in (q[a:b], k[c:d], v[c:d])]
            found.append(sdpa(*one, is_causal=causal).transpose(0, 1))
        return torch.cat(found)

    outcome = assert_kernel(varlen, "torch", layout="THD", **FLOAT32)
    assert "float32, texts, other lengths of keys" in outcome.reports
    assert "float32, 33 queries, 65 keys" in outcome.reports

    def of_queries(q, k, v, cu_seqlens, causal=False):
        longest = int(cu_seqlens.diff().max())
        return varlen(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal)

    outcome = assert_kernel(of_queries, "torch", layout="THD", **FLOAT32)
    assert outcome.left_out["float32, texts, other lengths of keys"] == "it takes no cu_seqlens_k"
    said = failure_of(lambda q, k, v, cu_seqlens: sdpa(*(X.transpose(0, 1) for X in (q, k, v))).transpose(0, 1),
                      "torch", layout="THD", **FLOAT32)  # fmt: skip
    assert "several texts" in said


@pytest.mark.backends("torch")
def test_gradients_of_torch_that_are_wrong_or_absent():
    def detached(q, k, v):
        return sdpa(q, k.detach(), v)

    assert "first to differ: dk" in failure_of(detached, "torch", cases="plain", **FLOAT32)
    assert assert_kernel(detached, "torch", cases="plain", gradients=False, **FLOAT32).reports
    outcome = assert_kernel(lambda q, k, v: sdpa(q, k, v).detach(), "torch", cases="plain", **FLOAT32)
    assert "gradients" in outcome.not_offered


@pytest.mark.backends("mlx")
def test_the_fast_kernel_of_mlx():
    import mlx.core as mx

    takes, dtypes = ("scale", "mask", "sinks"), ("float32", "bfloat16", "float16")  # its float64 has float32's accuracy
    kernel = mx.fast.scaled_dot_product_attention
    outcome = assert_kernel(kernel, "mlx", takes=takes, dtypes=dtypes, empty_rows=False)
    assert {"dq", "dk", "dv"} <= {row.title for row in outcome.reports["float32, sinks"].rows}
    assert outcome.left_out["float32, mask that hides a row and a sample"] == "empty_rows=False"
    assert "DIFFERS" in failure_of(kernel, "mlx", takes=takes, cases="mask that hides a row and a sample", **FLOAT32)


@pytest.mark.backends("jax")
def test_the_kernel_of_jax():
    import jax

    options = {"layout": "BTHD", "dtypes": ("float32", "bfloat16"), "empty_rows": False}
    some = ("plain", "mask of heads", "causal", "bias", "scale", "1 token")
    outcome = assert_kernel(jax.nn.dot_product_attention, "jax", cases=some, **options)
    assert {"dq", "dk", "dv"} <= {row.title for row in outcome.reports["bfloat16, bias"].rows}


def test_few_shapes_where_each_is_compiled(backend):
    shapes = {(case.dtype, case.case.heads, case.case.groups, case.case.queries, case.case.keys, case.case.width)
              for case in kernel_cases(None, backend)}  # fmt: skip
    assert (len(shapes) <= 16) == (backend == "jax")


# 2. Wrong kernels


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_noticed(mistake):
    calls = kernel_cases(kernel_with(mistake), **FLOAT32)
    assert not all(call.compare()[0] for call in calls)


def test_wrong_rows_show_their_tile_and_what_wrong_cases_have():
    said = failure_of(kernel_with("row 31 of 32"), **FLOAT32)
    assert "all wrong cases have, and no right one: at least 32 queries" in said
    assert "in float32, plain, output differs in every 32nd row from 31: a tile of 32" in said
    assert "why: unknown" in said


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([1, 23, 45], "every 22nd row from 1: a tile of 22"), ([0, 31, 62], "every 31st row from 0: a tile of 31"),
        ([9, 20, 31, 42, 53, 64], "every 11th row from 9: a tile of 11"), ([], ""), ([*range(66)], ""), ([3, 4], ""),
        (np.flatnonzero(np.arange(66) % 16 < 8), "the same rows of every 16: a tile of 16"),
        ([*range(32, 66)], "from row 32 on, where a tile of 32 begins"),
        ([64, 65], "from row 64 on, where a tile of 64 begins"),
        ([*range(48, 64)], "from row 48 on, where a tile of 16 begins"), ([50, 51, 65], ""),
    ],
)  # fmt: skip
def test_a_tile_in_words(rows, words):
    assert tile(np.isin(np.arange(66), rows)) == words


def test_rows_without_keys_must_be_0():
    def kernel(q, k, v, mask=None):
        output = attend(q, k, v, mask=mask)[0]
        return output if mask is None else np.where(mask.any(-1, keepdims=True), output, 1).astype(q.dtype)

    said = failure_of(kernel, **FLOAT32)
    assert "differs in 1 of" in said
    assert "float32, mask that hides a row and a sample" in said


def test_numbers_are_what_their_names_say():
    def scores_of(name):
        arrays = kernel_cases(None, cases=name, **FLOAT32)[0].case.arrays("float32")
        keys = arrays["k"].repeat(arrays["q"].shape[1] // arrays["k"].shape[1], 1)
        return arrays["q"] @ keys.swapaxes(2, 3) / arrays["q"].shape[3] ** 0.5, arrays["v"]  # (B, H, Q, K)

    assert scores_of("plain")[0].std() < 2 < 20 < scores_of("scores x 30")[0].std()
    assert scores_of("scores near -120")[0].max() < -105
    growing = scores_of("growing maximum")[0].max((0, 1, 2))
    assert (np.diff(growing[::32]) > 0).all()
    equal, _ = scores_of("equal keys")
    assert np.abs(equal - equal[..., :1]).max() < 1e-5
    small = np.abs(scores_of("small values in every second head")[1]).max((0, 2, 3))
    assert small[0] > 1 > 1e-3 > small[1]


def test_nan_is_around_the_inputs():
    seen = []

    def kernel(q, k, v):
        seen.extend(np.isnan(X.base).sum() for X in (q, k, v) if X.base is not None)
        return attend(q, k, v)

    assert assert_kernel(kernel, cases="NaN around the inputs", **FLOAT32).reports
    assert min(seen) > 1000


def test_zeros_and_random_numbers_do_not_pass():
    assert "DIFFERS" in failure_of(lambda q, k, v: np.zeros_like(q), cases="plain")
    noise = np.random.default_rng(0)
    assert "DIFFERS" in failure_of(lambda q, k, v: noise.standard_normal(q.shape).astype(q.dtype), cases="plain")


def test_what_is_wrong_in_one_case_alone():
    def kernel(q, k, v):
        return attend(q + (q.strides[-2] == 4 * q.shape[1] * q.shape[3]), k, v)[0]

    said = failure_of(kernel, **FLOAT32)
    assert "kernel differs in 1 of" in said.replace("test_what_is_wrong_in_one_case_alone.<locals>.", "")
    assert "all wrong cases have, and no right one: transposed inputs" in said


def test_nan_that_is_read_beyond_the_inputs():
    def kernel(q, k, v):
        if q.base is not None and q.base.shape[3] > q.shape[3]:
            q = np.lib.stride_tricks.as_strided(q, (*q.shape[:3], q.shape[3] + 1), q.strides)[..., 1:]
            k = np.lib.stride_tricks.as_strided(k, (*k.shape[:3], k.shape[3] + 1), k.strides)[..., 1:]
        return attend(q, k, v)[0]

    assert "all wrong cases have, and no right one: NaN around" in failure_of(kernel, **FLOAT32)


def test_what_holds_in_every_call_is_passed_or_done_by_the_kernel_itself():
    def by_itself(q, k, v):
        return attend(q, k, v, causal=True, window=(9, 2), scale=0.2, softcap=3.0)

    options = {"causal": True, "window": (9, 2), "scale": 0.2, "softcap": 3.0}
    given = []

    def passed(q, k, v, causal, window, scale, softcap):
        given.append((causal, window, scale, softcap))
        return attend(q, k, v, causal, window, scale, softcap)

    for kernel in (by_itself, passed):
        assert not {*options} & {*assert_kernel(kernel, **options, **FLOAT32).not_offered}
    assert {*given} == {(True, (9, 2), 0.2, 3.0)}
    one = {"cases": "33 tokens", **FLOAT32}
    for name, value in (("causal", False), ("window", (8, 0)), ("scale", 0.3), ("softcap", 2.0)):
        assert "DIFFERS" in failure_of(by_itself, **options | {name: value}, **one)


def test_the_lower_right_order_can_be_asked_for():
    lower_right = kernel_with("lower right")
    options = {"causal": "lower right", "takes": ()}
    assert assert_kernel(lambda q, k, v: lower_right(q, k, v, causal=True), **options, **FLOAT32).reports
    assert "DIFFERS" in failure_of(
        lambda q, k, v: attend(q, k, v, causal=True), **options, cases="33 queries, 65 keys", **FLOAT32
    )


# 3. Case by case


@pytest.mark.parametrize("case", kernel_cases(attend, cases=("plain", "sinks", "lengths")), ids=str)
def test_a_case_can_be_a_test_of_its_own(case):
    assert case.check()
    with pytest.raises(AssertionError, match="DIFFERS"):
        case.check(kernel_with("no scale"))


def test_cases_have_names_and_the_kernel_may_come_later():
    cases = kernel_cases(cases="bias")
    assert [*map(str, cases)] == ["float32, bias", "float16, bias", "bfloat16, bias"]
    assert cases[0].check(attend)
    with pytest.raises(NotImplementedError, match="it takes no bias"):
        cases[0].check(lambda q, k, v: q)
    with pytest.raises(TypeError, match="kernel is None"):
        cases[0].check()


def test_help_shows_every_option():
    for function in (assert_kernel, kernel_cases):
        options = inspect.signature(function).parameters
        assert options["layout"].default == "BHTD"
        assert {"takes", "backward", "hidden_nan", "device"} <= {*options}
    assert mha.testing.assert_kernel is assert_kernel


# 4. The page


def test_the_code_of_the_page_runs(capsys):
    code, of_pytest = pages.code("docs/kernels.md")
    names = {}
    exec(code, names)
    assert " cases the same in " in capsys.readouterr().out
    exec(of_pytest, names)
    names["test_my_kernel"](kernel_cases(names["attend"])[0])


def test_the_page_lists_every_parameter():
    table = pages.text("docs/kernels.md").partition("|---|")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line.rpartition("|")[0].rpartition("|")[0]) for line in table.splitlines()[1:]]
    assert sorted(name for names in rows for name in names) == sorted({*OPTION_OF} - {"cotangent"})
