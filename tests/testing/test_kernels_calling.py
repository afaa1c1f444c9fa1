"""How `mha.testing.assert_kernel` calls a kernel, what it leaves out, and what it says of bad input and of errors."""

import functools
import inspect

import failures
import numpy as np
import pytest
from mha.testing import assert_kernel, kernel_cases
from plain_kernel import attend

from mha.core import dispatch
from mha.parity import compare_kernel

failure_of = failures.of(assert_kernel)

FLOAT32 = {"dtypes": "float32"}
FIELD = ("is_causal", "attn_mask", "score_bias", "sm_scale", "window_size", "logits_soft_cap", "s_aux", "kv_lengths")


# 1. Names of parameters


def test_the_names_of_the_field():
    given = []

    def kernel(query, key, value, is_causal, attn_mask, score_bias, sm_scale, window_size, logits_soft_cap, s_aux,
               kv_lengths):  # fmt: skip
        given.append((is_causal, window_size, sm_scale, logits_soft_cap))
        window = tuple(None if side == -1 else side for side in window_size)
        return attend(query, key, value, is_causal, window, sm_scale, logits_soft_cap, attn_mask, score_bias,
                      kv_lengths, s_aux)  # fmt: skip

    outcome = assert_kernel(kernel, **FLOAT32)
    assert outcome.not_offered == ("gradients",)
    assert {one[0] for one in given} == {True, False}
    assert {(-1, -1), (0, 0), (5, -1)} <= {one[1] for one in given}
    assert all(one[2] > 0 for one in given)
    assert {None, 2.0} <= {one[3] for one in given}


@pytest.mark.parametrize(
    "others", [("softmax_scale", "attn_bias", "key_value_seq_lengths"), ("scale", "bias", "lengths")]
)
def test_other_names_of_the_field(others):
    ours = dict(zip(others, ("scale", "bias", "lengths"), strict=True))

    def kernel(a, b, c, **given):
        return attend(a, b, c, **{ours[name]: value for name, value in given.items()})

    outcome = assert_kernel(kernel, takes=others, **FLOAT32)
    assert not {"scale", "bias", "lengths"} & {*outcome.not_offered}


def test_what_is_off_is_left_out_or_said_where_the_default_differs():
    def kernel(q, k, v, causal=True, scale=1.0, softcap=30.0, window_size=(4, 4), mask=None):
        return attend(q, k, v, causal, None if window_size == (-1, -1) else window_size, scale, softcap or None, mask)

    cases = kernel_cases(kernel, cases="plain", **FLOAT32)
    assert cases[0].check()

    given = []

    def by_default(q, k, v, causal=False, scale=None, softcap=0.0, window_size=(-1, -1), mask=None):
        given.append((causal, scale, softcap, window_size, mask))
        return attend(q, k, v)

    assert cases[0].check(by_default)
    assert {*given} == {(False, None, 0.0, (-1, -1), None)}


def test_a_parameter_without_a_default_gets_something_in_every_call():
    given = []

    def kernel(q, k, v, mask, bias, lengths, sinks, window):
        given.append((mask.all(), not bias.any(), (lengths == k.shape[2]).all(), window == (None, None)))
        return attend(q, k, v, window=window, mask=mask, bias=bias, lengths=lengths, sinks=sinks)[0]

    outcome = assert_kernel(kernel, **FLOAT32)
    assert outcome.not_offered == ("causal", "scale", "softcap", "lse", "gradients")
    assert given[0] == (True, True, True, True)  # the plain case
    assert all({*column} == {True, False} for column in zip(*given, strict=True))


def test_masks_and_lengths_have_one_shape():
    def kernel(q, k, v, mask=None, bias=None, lengths=None, sinks=None):
        (B, H, Q, _), K = q.shape, k.shape[2]
        assert mask is None or (mask.dtype == bool and mask.shape in ((B, 1, Q, K), (B, H, Q, K)))
        assert bias is None or (bias.dtype == q.dtype and bias.shape == (B, H, Q, K))
        assert lengths is None or (lengths.dtype == np.int32 and lengths.shape == (B,))
        assert sinks is None or (sinks.dtype == q.dtype and sinks.shape == (H,))
        return attend(q, k, v, mask=mask, bias=bias, lengths=lengths, sinks=sinks)

    assert assert_kernel(kernel, **FLOAT32).reports


def test_packed_texts_have_their_ends():
    def kernel(q, k, v, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, causal=False):
        assert cu_seqlens.dtype == cu_seqlens_k.dtype == np.int32
        assert (cu_seqlens[-1], cu_seqlens_k[-1]) == (len(q), len(k))
        assert (max_seqlen, max_seqlen_k) == (np.diff(cu_seqlens).max(), np.diff(cu_seqlens_k).max())
        output, lse = np.zeros_like(q), np.zeros(q.shape[1::-1], np.float64)
        for a, b, c, d in zip(cu_seqlens, cu_seqlens[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False):
            one = (X.swapaxes(0, 1)[None] for X in (q[a:b], k[c:d], v[c:d]))
            found, sums = attend(*one, causal=causal)
            output[a:b], lse[:, a:b] = found[0].swapaxes(0, 1), sums[0]
        return output, lse

    outcome = assert_kernel(kernel, layout="THD", **FLOAT32)
    assert "float32, a long text" in outcome.reports
    assert {row.title for row in outcome.reports["float32, texts"].rows} == {"output", "lse"}
    assert "float32, an empty text" in assert_kernel(kernel, layout="THD", cases="an empty text", **FLOAT32).reports


# 2. What is left out


def left_out(**options):
    cases = kernel_cases(attend, **options, **FLOAT32)
    return {case.case.name for case in kernel_cases(attend, **FLOAT32)} - {case.case.name for case in cases}, cases


@pytest.mark.parametrize(
    ("options", "named", "holds"),
    [
        ({"groups": False}, "6 heads of 2", lambda case: case.heads == case.groups),
        ({"head_dims": (64, 128)}, "width 40", lambda case: case.width in (64, 128)),
        ({"equal_lengths": True}, "33 queries, 65 keys", lambda case: case.queries == case.keys),
        ({"multiple_of": 64}, "33 tokens", lambda case: case.queries % 64 == case.keys % 64 == 0),
        ({"empty_rows": False}, "mask that hides a row and a sample", lambda case: case.mask != "empty rows"),
    ],
)
def test_what_a_kernel_is_not_made_for_is_left_out_in_words(options, named, holds):
    def kernel(q, k, v, mask=None, lengths=None):
        if lengths is not None and not options.get("empty_rows", True):
            assert (lengths > 0).all()
        return attend(q, k, v, mask=mask, lengths=lengths)

    outcome = assert_kernel(kernel, **options, **FLOAT32)
    option, value = next(iter(options.items()))
    assert outcome.left_out[f"float32, {named}"] == f"{option}={value}"
    assert f"left out, {option}={value}: " in str(outcome)
    assert all(holds(case.case) for case in kernel_cases(kernel, **options, **FLOAT32))
    assert len(outcome.reports) > 10


def test_rows_that_see_no_key_may_be_anything_if_they_are_left_out():
    def kernel(q, k, v, window=None):
        output, _ = attend(q, k, v, window=window)
        seen = attend(np.ones_like(q), k, np.ones_like(v), window=window)[0] != 0
        return np.where(seen.any(-1, keepdims=True), output, np.nan).astype(q.dtype)

    options = {"causal": True, "window": (3, 0)}

    def by_itself(q, k, v):
        return kernel(q, k, v, window=(3, 0))

    assert "DIFFERS" in failure_of(by_itself, **options, **FLOAT32)
    outcome = assert_kernel(by_itself, **options, empty_rows=False, **FLOAT32)
    assert outcome.left_out == {"float32, 65 queries, 33 keys": "empty_rows=False"}


def test_hidden_nan_is_drawn_if_it_is_asked_for():
    def kernel(q, k, v, lengths=None):
        bad = ~(np.isfinite(k).all() and np.isfinite(v).all())
        return np.full_like(q, np.nan) if bad else attend(q, k, v, lengths=lengths)[0]

    assert assert_kernel(kernel, **FLOAT32).reports
    assert "hidden NaN" in failure_of(kernel, hidden_nan=True, **FLOAT32)


def test_a_kernel_may_leave_cases_out():
    def kernel(q, k, v):
        if q.shape[2] == 33:
            raise NotImplementedError("no 33")
        return attend(q, k, v)

    outcome = assert_kernel(kernel, **FLOAT32)
    assert outcome.left_out["float32, 33 tokens"] == "no 33"

    def nothing(q, k, v):
        raise NotImplementedError

    assert "nothing was compared, every case is left out" in failure_of(nothing, **FLOAT32)


def test_a_framework_without_strides(backend):
    outcome_of = {case.case.memory for case in kernel_cases(None, backend)}
    assert ("transposed" in outcome_of) == (backend in ("numpy", "torch"))


# 3. Errors


def test_a_kernel_that_raises_in_one_class_of_cases():
    def kernel(q, k, v):
        if q.shape[2] != k.shape[2]:
            raise IndexError("lengths differ")
        return attend(q, k, v)

    said = failure_of(kernel, **FLOAT32)
    assert "raised in 3 of 26 cases (" in said
    assert "IndexError: lengths differ" in said
    assert "equal_lengths=True leaves them out" in said
    assert "the smallest is float32, 33 queries, 65 keys: q (2, 4, 33, 16), k (2, 4, 65, 16)" in said
    assert assert_kernel(kernel, equal_lengths=True, **FLOAT32).reports


@pytest.mark.parametrize(
    ("fails", "option"),
    [
        (lambda q, k: q.shape[1] != k.shape[1], "groups=False"),
        (lambda q, k: q.shape[3] > 128, "head_dims=(8, 16, 32, 40, 64, 80)"),
        (lambda q, k: q.dtype.itemsize == 2, "dtypes=('float32',)"),
        (lambda q, k: q.shape[2] % 64 or k.shape[2] % 64, "multiple_of=64"),
    ],
)
def test_the_option_that_leaves_out_where_it_raises(fails, option):
    def kernel(q, k, v):
        if fails(q, k):
            raise ValueError("not made for it")
        return attend(q, k, v)

    assert f"{option} leaves them out" in failure_of(kernel)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda q, X: X[..., :-1], "it has shape (2, 4, 65, 15), expected (2, 4, 65, 16)"),
        (lambda q, X: X.astype(np.float64), "it returned output of float64, expected float32 as the inputs"),
        (lambda q, X: (X, X, X), "theirs is a tuple of 3"),
        (lambda q, X: {"out": X}, "theirs has ['out']"),
        (lambda q, X: None, "theirs['output'] is a NoneType"),
        (lambda q, X: np.where(X > 0, X, np.nan).astype(X.dtype), "NaN in"),
    ],
)
def test_what_no_kernel_returns(returned, words):
    assert words in failure_of(lambda q, k, v: returned(q, attend(q, k, v)[0]), cases="plain", **FLOAT32)


def test_inputs_and_what_is_around_them_stay_as_they_are():
    def scales(q, k, v):
        q *= np.float32(q.shape[3] ** -0.5)
        return attend(q, k, v, scale=1.0)[0]

    assert "AssertionError: it changed q, or the memory around" in failure_of(scales, **FLOAT32)

    def writes(q, k, v):
        found = attend(q, k, v)[0]
        if v.base is not None and v.base.shape[3] > v.shape[3]:
            np.lib.stride_tricks.as_strided(v, (*v.shape[:3], v.shape[3] + 1), v.strides)[0, 0, 0, -1] = 0
        return found

    said = failure_of(writes, **FLOAT32)
    assert "raised in 1 of 26 cases (float32, NaN around the inputs)" in said
    assert "it changed v" in said


def test_help_has_every_option():
    for function in (assert_kernel, kernel_cases, compare_kernel):
        found = inspect.signature(function).parameters["empty_rows"]
        assert (found.kind, found.default, found.annotation) == (found.KEYWORD_ONLY, True, bool)
    assert inspect.signature(kernel_cases).parameters["multiple_of"].default == 1


# 4. Bad input


def plain(q, k, v):
    return attend(q, k, v)[0]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"layout": "HTD"}, ValueError, "layout is 'HTD', expected one of BHTD, BTHD, THD"),
        ({"layout": "THD"}, TypeError, "kernel has no parameter cu_seqlens"),
        ({"suite": "slow"}, ValueError, "suite is 'slow'"),
        ({"backend": "torhc"}, ValueError, "backend is 'torhc'"),
        ({"causal": "left"}, ValueError, "causal is 'left'"),
        ({"causal": 2}, TypeError, "causal is 2"),
        ({"window": 3}, TypeError, "window is 3"),
        ({"scale": "x"}, TypeError, "scale is 'x'"),
        ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
        ({"takes": "mask"}, TypeError, "takes is 'mask'"),
        ({"takes": ("maks",)}, ValueError, "takes is 'maks'"),
        ({"takes": ("mask",)}, ValueError, "takes has mask, but kernel plain has neither these nor"),
        ({"groups": 1}, TypeError, "groups is 1"),
        ({"head_dims": 64}, TypeError, "head_dims is 64"),
        ({"head_dims": (0,)}, ValueError, "head_dims is 0"),
        ({"equal_lengths": None}, TypeError, "equal_lengths is None"),
        ({"multiple_of": 0}, ValueError, "multiple_of is 0"),
        ({"dtypes": "float8"}, ValueError, "dtypes is 'float8'"),
        ({"cases": "33 token"}, ValueError, "cases has '33 token', expected names of mha.testing.kernel_cases()"),
        ({"gradients": "yes"}, TypeError, "gradients is 'yes'"),
        ({"gradients": False, "backward": plain}, ValueError, "gradients is False, expected True or None"),
        ({"backward": 3}, TypeError, "backward is 3"),
        ({"backward": lambda q, k, v, dO: None}, TypeError, "needs dO, expected one of q, k, v, output, lse"),
        ({"empty_rows": 0}, TypeError, "empty_rows is 0"),
        ({"hidden_nan": 0}, TypeError, "hidden_nan is 0"),
        ({"device": "cuda"}, ValueError, "device is 'cuda', expected None"),
        ({"casual": True}, TypeError, "assert_kernel() got an unexpected keyword argument 'casual'"),
    ],
)
def test_options_that_are_none(options, error, words):
    with pytest.raises(error) as raised:
        assert_kernel(plain, **options)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("kernel", "error", "words"),
    [
        (None, TypeError, "kernel is None"),
        (3, TypeError, "kernel is 3 (int), expected a function"),
        (lambda q, k: q, TypeError, "has 2 parameters by position, expected q, k, v first"),
        (lambda q, k, v, block: q, TypeError, "needs block, expected one of causal, is_causal"),
        (lambda q, k, v, mask=None, attn_mask=None: q, TypeError, "names mask and attn_mask, expected one of them"),
        (lambda q, k, v, cu_seqlens: q, TypeError, 'needs cu_seqlens, which a packed call has: pass layout="THD"'),
        (min, TypeError, "kernel min shows no parameters: list in takes="),
    ],
)
def test_what_is_no_kernel(kernel, error, words):
    with pytest.raises(error) as raised:
        assert_kernel(kernel)
    assert words in str(raised.value)


def test_a_backward_pass_with_kwargs_gets_what_the_kernel_gets_by_name():
    seen = []

    def backward(q, k, v, cotangent, **options):
        seen.append(set(options))
        return {name: 0 * X for name, X in (("dq", q), ("dk", k), ("dv", v))}

    def kernel(q, k, v, is_causal=False, sm_scale=None):
        return attend(q, k, v, causal=is_causal, scale=sm_scale)

    failure_of(kernel, backward=backward, cases=("causal", "scale", "plain"), groups=False, **FLOAT32)
    assert seen == [set(), {"is_causal"}, {"sm_scale"}] or sorted(map(sorted, seen)) == [
        [],
        ["is_causal"],
        ["sm_scale"],
    ]


def test_a_backward_pass_that_returns_something_else():
    said = failure_of(attend, backward=lambda q: q, cases="plain", takes=(), groups=False, **FLOAT32)
    assert "backward returned ndarray, expected dq, dk, dv, or a mapping of some of them" in said


def test_errors_that_differ_in_numbers_are_one():
    def kernel(q, k, v):
        if q.shape[1] != k.shape[1]:
            raise RuntimeError(f"{q.shape[1]} heads beside {k.shape[1]}")
        return attend(q, k, v)[0]

    said = failure_of(kernel, **FLOAT32)
    assert said.count("raised in") == 1
    assert "4 heads beside 2" in said
    assert "groups=False leaves them out" in said


@pytest.mark.parametrize("name", ["forward", "call"])
def test_parameters_of_a_module_are_those_of_its_method(name):
    class Module:
        def __call__(self, *args, **kwargs):
            return getattr(self, name)(*args, **kwargs)

        def forward(self, q, k, v, causal=False):
            return attend(q, k, v, causal)[0]

        call = forward

    if name == "call":
        del Module.forward
    else:
        del Module.call
    assert "causal" not in assert_kernel(Module(), **FLOAT32).not_offered


def test_a_callable_object_and_a_partial_function_are_kernels():
    class Kernel:
        def __call__(self, q, k, v, causal=False):
            return attend(q, k, v, causal)

    for kernel in (Kernel(), functools.partial(attend, softcap=None)):
        assert assert_kernel(kernel, cases="causal", **FLOAT32).reports
    assert "causal" in inspect.signature(Kernel()).parameters


# 5. Gradients of each framework


@pytest.mark.needs("automatic differentiation")
def test_gradients_start_from_a_cotangent(backend):
    module, draw = dispatch.load(backend), np.random.default_rng(0)
    a, b, c, cotangent = (draw.standard_normal((2, 3)).astype("float32") for _ in range(4))
    arrays = [module.tensor(X) for X in (a, b, c)]
    value, found = module.value_and_gradients(lambda a, b, c: a * b + c, arrays, module.tensor(cotangent))
    assert_close(module.to_numpy(value), a * b + c)
    for X, expected in zip(found, (cotangent * b, cotangent * a, cotangent), strict=True):
        assert_close(module.to_numpy(X), expected)
    _, found = module.value_and_gradients(lambda a, b, c: a * b, arrays)
    assert_close(module.to_numpy(found[0]), b)
    assert found[2] is None or not module.to_numpy(found[2]).any()


@pytest.mark.needs("automatic differentiation")
def test_a_kernel_of_products_has_gradients(backend):
    """With one key, the output is its value, on every framework: dv is the cotangent, and the others are 0."""

    def kernel(q, k, v):
        return v * (1 + 0 * (q - q))

    outcome = assert_kernel(kernel, backend, cases="1 token", groups=False, dtypes="float32")
    assert [row.title for row in outcome.reports["float32, 1 token"].rows] == ["output", "dq", "dk", "dv"]
    assert "DIFFERS" in failure_of(lambda q, k, v: v + q - q + k, backend, cases="1 token", dtypes="float32")


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6)
