"""What the caller of `assert_kernel` says of a kernel: its options, each declared once, and what is made of them."""

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.core.options.names import BackendName, FloatName
from mha.parity.rule.heads import LAYOUTS, KernelLayout
from mha.parity.rule.kernel_call import NUMBERS, order_of
from mha.parity.rule.options import Option, complete
from mha.parity.testing.cases import as_list, check_case_name
from mha.parity.testing.kernels.calling import OF_BACKWARD, Kernel, parameter_names, read_kernel
from mha.parity.testing.kernels.kernel_cases import KERNEL_CASES


def order(name: str, value: Any) -> Any:
    """A causal order."""
    order_of(value)
    return value


def widths(name: str, value: Any) -> tuple[int, ...]:
    """Widths of heads, the smallest first."""
    if isinstance(value, str) or not isinstance(value, Collection) or not value:
        raise TypeError(f"{name} is {checks.brief(value)}, expected widths of heads, such as (64, 128)")
    return tuple(sorted(checks.size(name, one) for one in value))


def dtypes_of(name: str, value: Any) -> list[FloatName]:
    """One dtype, or several."""
    return [checks.choice(name, one, DTYPES) for one in as_list(value)]


def names_of_cases(name: str, value: Any) -> list[str]:
    """The name of a case, or of several."""
    return [check_case_name(one, KERNEL_CASES, "mha.testing.kernel_cases()") for one in as_list(value)]


class KernelOptions(TypedDict, total=False):
    """What `assert_kernel` and `kernel_cases` take by name, as described there."""

    layout: Annotated[KernelLayout, Option("BHTD", partial(checks.choice, known=LAYOUTS))]
    causal: Annotated[bool | str | None, Option(None, order)]
    window: Annotated[Any, Option(None, checks.window)]
    scale: Annotated[float | None, Option(None, checks.number)]
    softcap: Annotated[float | None, Option(None, checks.positive)]
    takes: Annotated[Collection[str] | None, Option(None, parameter_names)]
    groups: Annotated[bool, Option(True, checks.flag)]
    head_dims: Annotated[Collection[int] | None, Option(None, widths)]
    equal_lengths: Annotated[bool, Option(False, checks.flag)]
    multiple_of: Annotated[int, Option(1, checks.size)]
    dtypes: Annotated[FloatName | Collection[FloatName] | None, Option(None, dtypes_of)]
    cases: Annotated[str | Collection[str] | None, Option(None, names_of_cases)]
    gradients: Annotated[bool | None, Option(None, checks.flag)]
    backward: Annotated[Callable[..., Any] | None, Option()]
    empty_rows: Annotated[bool, Option(True, checks.flag)]
    hidden_nan: Annotated[bool, Option(False, checks.flag)]
    device: Annotated[Any, Option()]


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a kernel is called and compared: the framework of its arrays, all `KernelOptions`, and its backward pass."""

    backend: BackendName
    options: SimpleNamespace
    backward: Kernel | None = None

    @property
    def fixed(self) -> dict[str, Any]:
        """Return the options that hold in every call."""
        named = {name: getattr(self.options, name) for name in NUMBERS}
        return {name: value for name, value in named.items() if value is not None}


def read_setup(backend: BackendName, given: KernelOptions) -> Setup:
    """Check all options; TypeError or ValueError if one is not as `assert_kernel` says."""
    options = SimpleNamespace(**complete("assert_kernel", KernelOptions, given))
    if options.device is not None and backend != "torch":
        said = f"device is {options.device!r}, expected None"
        raise ValueError(f"{said}: {backend} has no argument that says where an array is")
    if options.backward is None:
        return Setup(backend, options)
    if options.gradients is False:
        raise ValueError("gradients is False, expected True or None beside backward=, which computes them")
    return Setup(backend, options, read_kernel("backward", options.backward, None, OF_BACKWARD))
