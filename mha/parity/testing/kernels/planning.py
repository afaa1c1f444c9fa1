"""Plan the calls of a kernel: its options, checked, and a call for each case that it can be given."""

import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypedDict, TypeVar

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.parity.rule.heads import KernelLayout
from mha.parity.testing.kernels.calling import OF_BACKWARD, PACKING, read_kernel
from mha.parity.testing.kernels.fitting import DRAWN, choose_kernel_cases, read_limits
from mha.parity.testing.kernels.running import KernelCall, Setup

T = TypeVar("T", bound=Callable[..., Any])


class KernelOptions(TypedDict, total=False):
    """What `assert_kernel` and `kernel_cases` take by name; `plan_calls` has the defaults."""

    layout: KernelLayout
    causal: bool | str | None
    window: Any
    scale: float | None
    softcap: float | None
    takes: Collection[str] | None
    groups: bool
    head_dims: Collection[int] | None
    equal_lengths: bool
    multiple_of: int
    dtypes: FloatName | Collection[FloatName] | None
    cases: str | Collection[str] | None
    gradients: bool | None
    backward: Callable[..., Any] | None
    empty_rows: bool
    hidden_nan: bool
    device: Any


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """The name of a kernel, its calls, why others are left out, by dtype and case, and the options it does not take."""

    name: str
    calls: tuple[KernelCall, ...]
    left_out: dict[str, str]
    not_offered: tuple[str, ...]


def plan_calls(
    kernel: Any,
    backend: BackendName | None,
    suite: SuiteName,
    *,
    layout: KernelLayout = "BHTD",
    causal: bool | str | None = None,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    takes: Collection[str] | None = None,
    groups: bool = True,
    head_dims: Collection[int] | None = None,
    equal_lengths: bool = False,
    multiple_of: int = 1,
    dtypes: FloatName | Collection[FloatName] | None = None,
    cases: str | Collection[str] | None = None,
    gradients: bool | None = None,
    backward: Callable[..., Any] | None = None,
    empty_rows: bool = True,
    hidden_nan: bool = False,
    device: Any = None,
) -> CallPlan:
    """Plan the calls of a kernel, None = of one that takes every option; arguments as of `assert_kernel`.

    Raises TypeError or ValueError if an argument is not as described there.
    """
    limits = read_limits(
        layout, causal, window, scale, softcap, groups, head_dims, equal_lengths, multiple_of, empty_rows, hidden_nan
    )
    name = dispatch.backend_name(backend)
    if device is not None and name != "torch":
        raise ValueError(f"device is {device!r}, expected None: {name} has no argument that says where an array is")
    if backward is not None and gradients is False:
        raise ValueError("gradients is False, expected True or None beside backward=, which computes them")
    known = None if kernel is None else read_kernel("kernel", kernel, takes)
    parameters = (*DRAWN, *PACKING) if known is None else tuple(known.parameters)
    if limits.layout == "THD" and "cu_seqlens" not in parameters:
        raise TypeError('kernel has no parameter cu_seqlens, expected one with layout="THD": where each text begins')
    if limits.layout != "THD" and known is not None:
        needed = [
            one for one in PACKING if one in parameters and known.parameters[one].default is inspect.Parameter.empty
        ]
        if needed:
            raise TypeError(f'kernel {known.name} needs {needed[0]}, which a packed call has: pass layout="THD"')
    dispatch.load(name)
    back = None if backward is None else read_kernel("backward", backward, None, OF_BACKWARD)
    wanted = None if gradients is None else checks.flag("gradients", gradients)
    setup = Setup(name, limits, None if takes is None else tuple(takes), wanted, back, device)
    chosen = choose_kernel_cases(limits, parameters, name, suite, cases, dtypes)
    calls = tuple(KernelCall(case, dtype, setup, known) for case, dtype in chosen.cases)
    return CallPlan("" if known is None else known.name, calls, chosen.left_out, chosen.not_offered)


def with_options(function: T) -> T:
    """Give a function that takes `**options` a signature with each of them, for help and completion."""
    own = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    options = [one for one in inspect.signature(plan_calls).parameters.values() if one.kind is one.KEYWORD_ONLY]
    function.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    return function
