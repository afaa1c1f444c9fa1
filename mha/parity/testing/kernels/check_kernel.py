"""Assert that a kernel is right: run it on each case, and compare by the rule."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Unpack

from mha.core.options.names import BackendName, SuiteName
from mha.parity import Report
from mha.parity.rule.layouts import GRADIENT, LSE
from mha.parity.rule.options import spell_out
from mha.parity.testing.check import compare_all
from mha.parity.testing.kernels.calling import must_be_function
from mha.parity.testing.kernels.failing import KernelRun
from mha.parity.testing.kernels.options import KernelOptions
from mha.parity.testing.kernels.planning import plan_calls
from mha.parity.testing.kernels.running import KernelCall


@dataclasses.dataclass(frozen=True)
class KernelOutcome:
    """The result of `assert_kernel`; prints as text.

    Attributes:
        reports: an `mha.parity.Report` for each compared case, by its dtype and name: "float32, 33 tokens".
        left_out: the reason for each case that was not compared.
        not_offered: the options that the kernel does not take, so that no case has them; and "gradients" and "lse".
        seconds: how long it took.
        words: what `print` shows.
    """

    reports: dict[str, Report]
    left_out: dict[str, str]
    not_offered: tuple[str, ...]
    seconds: float
    words: str

    def __str__(self) -> str:
        return self.words


@spell_out(KernelOptions)
def assert_kernel(
    kernel: Callable[..., Any],
    backend: BackendName | None = None,
    suite: SuiteName = "quick",
    **options: Unpack[KernelOptions],
) -> KernelOutcome:
    """Assert that a kernel computes attention, in every case of a suite, with its gradients.

    Letters: B samples, T tokens (Q queries, K keys), H heads of queries, G of keys and values: head h reads h // (H/G);
    d width of a head, dv of a head of values.

    Args:
        kernel: a function. Its first three parameters are queries, keys and values, whatever they are called. All else
            it gets by name, where it has a parameter of such a name: `causal` (`is_causal`), `mask`, True = may attend,
            (B, 1 or H, Q, K) (`attn_mask`), `bias` (B, H, Q, K) (`score_bias`, `attn_bias`), `scale` (`sm_scale`,
            `softmax_scale`), `window`, (left, right), None = no bound (`window_size`, -1 = no bound), `softcap`
            (`logits_soft_cap`), `sinks` (H,) (`s_aux`), `lengths` (B,) (`kv_lengths`, `key_value_seq_lengths`),
            `cu_seqlens`, `cu_seqlens_k`, `max_seqlen`, `max_seqlen_k` (`cu_seqlens_q`, `max_seqlen_q`), `cotangent`.
            It returns the output; or the pair (output, lse); or a mapping of some of "output", "lse", "dq", "dk", "dv",
            as `mha.parity.compare_kernel` takes them. NotImplementedError leaves a case out. A parameter without a
            default gets something in every call: a mask that hides nothing, a bias of zeros, all lengths, sinks.
        backend: the framework of its arrays; None = MHA_BACKEND, else "numpy".
        suite: "quick", up to 58 calls; or "full", every case in every dtype.
        layout: "BHTD", "BTHD", or "THD": texts that are packed into one row, as `cu_seqlens` says.
        causal, window, scale, softcap: what holds in every call, as for `compare_kernel`; a kernel without such a
            parameter does it by itself. None = drawn on and off, if the kernel has the parameter; else off.
        takes: the names of the parameters that the kernel takes, where its signature does not say so.
        groups: False = it takes as many heads of keys as of queries alone.
        head_dims: the only widths of heads that it takes.
        equal_lengths: True = it takes as many keys as queries alone.
        multiple_of: the number of which its numbers of tokens are multiples.
        dtypes: the only dtypes to compare in; None = those of the suite, which has no float64: kernels compute in
            float32 inside, and differ there.
        cases: the names of the only cases to compare, each in all dtypes; None = those of the suite.
        gradients: True = they must be there; False = they are not compared; None = where the framework has them, the
            kernel returns them, or `backward` is given.
        backward: a function that returns dq, dk and dv; it gets what it names of q, k, v, output, lse, cotangent, and
            of the options above; its `**kwargs` get all that the kernel gets by name.
        empty_rows: False = queries that see no key may be anything, and such cases are left out where they can be.
        hidden_nan: True = NaN in keys that nobody sees must not matter, either.
        device: where PyTorch's arrays are, such as "cuda"; None = where it makes them.

    Returns:
        The `KernelOutcome`, with the reports, the cases that were left out, and the options that were not offered.

    Raises:
        AssertionError: if a case differs, if the kernel raises or changes its inputs, or if nothing could be compared.
            The message has the report of the smallest such case, and what all wrong cases have in common.
        TypeError, ValueError: if an argument is not as above.
    """
    __tracebackhide__ = True
    ran = run_kernel(kernel, backend, suite, **options)
    if not ran.passed:
        raise AssertionError(ran.describe()) from next(iter(ran.raised.values()), None)
    named = {str(call): report for call, report in ran.reports.items()}
    return KernelOutcome(named, ran.left_out, ran.not_offered, ran.seconds, ran.describe())


@spell_out(KernelOptions)
def kernel_cases(
    kernel: Callable[..., Any] | None = None,
    backend: BackendName | None = "numpy",
    suite: SuiteName = "quick",
    **options: Unpack[KernelOptions],
) -> tuple[KernelCall, ...]:
    """List the cases of `assert_kernel` one by one, for `pytest.mark.parametrize("case", ..., ids=str)`.

    `case.check(kernel)` runs one, and returns its report; kernel None = the one given here. Where that is None, too,
    the cases are those of a kernel that takes every option. Arguments, and errors, as of `assert_kernel`.
    """
    return plan_calls(kernel, backend, suite, **options).calls


def run_kernel(
    kernel: Any, backend: BackendName | None, suite: SuiteName, **options: Unpack[KernelOptions]
) -> KernelRun:
    """Run a kernel on all of its cases, and compare; arguments as of `assert_kernel`."""
    must_be_function("kernel", kernel)
    planned, began = plan_calls(kernel, backend, suite, **options), time.monotonic()
    compared, left_out, raised = compare_all(planned.calls, KernelCall.compare)
    reports = {call: report for call, (report, _) in compared.items()}
    given = {row.name.partition(".")[0] for report in reports.values() for row in report.rows}
    beside = {"lse": LSE, "gradients": GRADIENT[:-1]} if reports else {}
    not_offered = (*planned.not_offered, *(name for name, row in beside.items() if row not in given))
    other_bits = sum(same_bits is False for _, same_bits in compared.values())
    return KernelRun(
        planned.name, reports, raised, planned.left_out | left_out, not_offered, other_bits, time.monotonic() - began
    )
