"""Run a kernel on a case, with its gradients, and compare what it returned by the rule."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import FloatName
from mha.parity import Report
from mha.parity.diagnosis.compare.kernels import arrays_of_kernel, report_on_kernel
from mha.parity.rule.kernel import ARRAYS, KernelProblem
from mha.parity.rule.kernel_call import NUMBERS, kernel_problem
from mha.parity.rule.problem import with_rows
from mha.parity.testing.check import brief
from mha.parity.testing.implementations import evaluating
from mha.parity.testing.kernels.calling import (
    GRADIENTS,
    Kernel,
    changed,
    leave_nan_in_freed_memory,
    lengths_of_texts,
    place,
    read_kernel,
)
from mha.parity.testing.kernels.kernel_cases import UNPACKED, Arrays, KernelCase
from mha.parity.testing.kernels.options import Setup

INPUTS = ("q", "k", "v")
BESIDE = (*UNPACKED, "sinks", "cu_seqlens", "cu_seqlens_k")  # arrays of a call beside its inputs


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCall:
    """A case in a dtype, as a kernel is called; `str` is its name."""

    case: KernelCase
    dtype: FloatName
    setup: Setup
    kernel: Kernel | None = None  # None = the one that `check` is given

    def __str__(self) -> str:
        return f"{self.dtype}, {self.case.name}"

    @functools.cached_property
    def arrays(self) -> Arrays:
        """Return the arrays of the call, drawn: inputs and cotangent in the layout."""
        layout, case = self.setup.options.layout, self.case
        found = case.arrays(self.dtype, self.setup.options.empty_rows)
        for name in (*INPUTS, "cotangent"):
            X = found[name]  # (B, H, T, d)
            if case.memory == "stride 0" and name in ("k", "v"):
                X = np.repeat(X[:, :1], X.shape[1], 1)  # (B, G, T, d)
            X = X if layout == "BHTD" else X.swapaxes(1, 2)  # (B, T, H, d)
            found[name] = np.array(X[0] if layout == "THD" else X, order="C")  # (T, H, d) of a packed call
        return found

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the call, as `compare_kernel` takes them, without those that are off."""
        numbers = {name: getattr(self.case, name) for name in NUMBERS}
        arrays = {name: self.arrays[name] for name in BESIDE if name in self.arrays}
        return {name: value for name, value in numbers.items() if value not in (None, False)} | arrays

    @functools.cached_property
    def visible(self) -> np.ndarray:
        """Return which query sees which key, (B, H, Q, K)."""
        return self.problem().visible

    def problem(self, cotangent: bool = True) -> KernelProblem:
        """Make the problem of the call; cotangent: whether gradients start from the drawn one, or from ones."""
        options = self.setup.options
        given: dict[str, Any] = {name: self.arrays[name] for name in (*INPUTS, *["cotangent"] * cotangent)}
        return kernel_problem(**given, layout=options.layout, empty_rows=options.empty_rows, **self.options)

    def check(self, kernel: Any = None) -> Report:
        """Assert that a kernel is right in this call, None = the one that was named before; return the report.

        Raises AssertionError with the report if it differs, NotImplementedError if it does not take an option of the
        call, and whatever the kernel raises.
        """
        __tracebackhide__ = True
        call = (
            self
            if kernel is None
            else dataclasses.replace(self, kernel=read_kernel("kernel", kernel, self.setup.options.takes))
        )
        report, _ = call.compare()
        if not report:
            raise AssertionError(f"the kernel differs in {self}: {self.describe()}\n{report}")
        return report

    def compare(self) -> tuple[Report, bool | None]:
        """Run the kernel; return the report, and whether a second run gave the same bits, None = there was none.

        Raises what the kernel raises, and NotImplementedError for a call that it cannot take.
        """
        if (kernel := self.kernel) is None:
            raise TypeError("kernel is None, expected a function: kernel_cases was given none, either")
        offered = {*kernel.parameters, *self.setup.fixed}
        if missing := [name for name in self.case.options if name not in offered]:
            raise NotImplementedError(f"it takes no {', '.join(missing)}")
        backend = self.setup.backend
        if not (self.setup.options.empty_rows or self.visible.any(3).all()):
            raise NotImplementedError("empty_rows=False")
        with dispatch.load(backend).context(self.dtype), evaluating(kernel.function):
            ran = Run(self, kernel)
            found = ran.first()
            theirs, same_bits = arrays_by_name(found), None
            by_itself = not {*GRADIENTS}.isdisjoint(theirs)
            if self.setup.options.gradients is not False and not by_itself and "output" in theirs:
                gradients, same_bits = ran.gradients(parts(found))
                theirs |= gradients
        refuse_other_dtypes(self.dtype, theirs)
        if self.setup.options.gradients and {*GRADIENTS}.isdisjoint(theirs):
            raise AssertionError(f"it has no gradients by q, k or v in {backend}, expected some with gradients=True")
        by_ones = by_itself and "cotangent" not in kernel.parameters
        return report_on_kernel(with_rows(self.problem(not by_ones)), theirs), same_bits

    def describe(self) -> str:
        """Describe the call: shapes of the inputs, and the options."""
        shapes = ", ".join(f"{name} {self.arrays[name].shape}" for name in INPUTS)
        return shapes + "".join(f", {name}={brief(value)}" for name, value in self.options.items())


class Run:
    """One case, as arrays of the framework, with a kernel to run on it."""

    def __init__(self, call: KernelCall, kernel: Kernel) -> None:
        self.call, self.kernel, self.backend = call, kernel, call.setup.backend
        setup, arrays, case = call.setup, call.arrays, call.case
        own = functools.partial(place, self.backend, layout=setup.options.layout, device=setup.options.device)
        where = {"q": "" if case.memory == "stride 0" else case.memory}
        self.placed = {name: own(arrays[name], memory=where.get(name, case.memory)) for name in INPUTS}
        beside = {name: own(arrays[name], memory="") for name in (*BESIDE, "cotangent") if name in arrays}
        self.options = call.options | lengths_of_texts(arrays) | {name: one.X for name, one in beside.items()}
        self.placed |= beside
        self.inputs = tuple(self.placed[name].X for name in INPUTS)

    def first(self) -> Any:
        """Run the kernel, and return what it returns; AssertionError if it changed an input."""
        if self.call.case.memory == "freed NaN":
            leave_nan_in_freed_memory(self.backend, self.call.arrays["cotangent"], self.call.setup.options.device)
        found = self.of(*self.inputs)
        if names := changed(self.backend, self.placed):
            raise AssertionError(
                f"it changed {', '.join(names)}, or the memory around, expected its inputs as they were"
            )
        return found

    def of(self, *inputs: Any) -> Any:
        """Return what the kernel returns for inputs in arrays of the framework."""
        return self.kernel.function(*inputs, **self.kernel.spell(self.options, self.call.case.width))

    def gradients(self, found: dict[str, Any]) -> tuple[dict[str, Any], bool | None]:
        """Return gradients, by the backward pass or by the framework, and whether its run gave the same bits."""
        backward = self.call.setup.backward
        if backward is not None:
            offered = self.options | dict(zip(INPUTS, self.inputs, strict=True)) | found
            width = self.call.case.width
            rest = self.kernel.spell(self.options, width) if backward.rest else {}
            gradients = backward.function(**rest | backward.spell(offered, width))
            return arrays_by_name(gradients_by_name(gradients)), None
        module, cotangent = dispatch.load(self.backend), self.options["cotangent"]
        again, by_inputs = module.value_and_gradients(lambda *X: parts(self.of(*X))["output"], self.inputs, cotangent)
        same = module.to_numpy(again).tobytes() == module.to_numpy(found["output"]).tobytes()
        if all(X is None for X in by_inputs):
            return {}, same
        zeros = [np.zeros_like(self.call.arrays[name]) for name in INPUTS]  # by what the output does not depend on
        gradients = (zero if X is None else module.to_numpy(X) for X, zero in zip(by_inputs, zeros, strict=True))
        return dict(zip(GRADIENTS, gradients, strict=True)), same


def parts(found: Any) -> dict[str, Any]:
    """Return what a kernel returned by name, in arrays of the framework."""
    if isinstance(found, Mapping):
        return dict(found)
    return dict(zip(("output", "lse"), found, strict=True)) if isinstance(found, (tuple, list)) else {"output": found}


def arrays_by_name(found: Any) -> dict[str, np.ndarray]:
    """Return arrays of a kernel in NumPy, by its names; TypeError or ValueError if one is none."""
    names = {own: name for name, own in ARRAYS.items()}
    return {names[own]: X for own, X in arrays_of_kernel(found).items()}


def gradients_by_name(found: Any) -> dict[str, Any]:
    """Return what a backward pass returned by name: a mapping, or dq, dk and dv in this order."""
    if isinstance(found, (tuple, list)) and len(found) == len(GRADIENTS):
        found = dict(zip(GRADIENTS, found, strict=True))
    if not isinstance(found, Mapping) or not found or not {*found} <= {*GRADIENTS}:
        raise ValueError(f"backward returned {type(found).__name__}, expected dq, dk, dv, or a mapping of some of them")
    return dict(found)


def refuse_other_dtypes(dtype: FloatName, found: Mapping[str, Any]) -> None:
    """Raise AssertionError for an output or gradients in another dtype than the inputs."""
    other = {name: checks.dtype_name(X.dtype) for name, X in found.items() if name != "lse"}
    if wrong := [f"{name} of {one}" for name, one in other.items() if one != dtype]:
        raise AssertionError(f"it returned {', '.join(wrong)}, expected {dtype} as the inputs")
