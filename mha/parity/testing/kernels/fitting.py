"""Fit the cases to what a kernel is made for: the options that it takes, and the limits that its caller names."""

import dataclasses
from collections.abc import Collection
from typing import Any

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.parity.rule.heads import LAYOUTS, KernelLayout
from mha.parity.rule.kernel_call import order_of
from mha.parity.testing.cases import as_list, check_case_name
from mha.parity.testing.kernels.calling import STRIDED
from mha.parity.testing.kernels.kernel_cases import HALVES, KERNEL_CASES, KernelCase

USUAL = tuple(dtype for dtype in DTYPES if dtype != "float64")  # in which kernels compute; most have float32 inside
DRAWN = ("causal", "window", "scale", "softcap", "mask", "bias", "lengths", "sinks")
UNPACKED = ("mask", "bias", "lengths")  # which packed calls do not have
# JAX compiles each operation for each shape: all cases that are not about a shape have one shape there, and of the
# others these are drawn.
FEW_SHAPES: tuple[BackendName, ...] = ("jax",)
SHAPES = (
    "1 token", "33 tokens", "64 tokens", "128 tokens", "257 tokens", "33 queries, 65 keys", "65 queries, 33 keys",
    "1 query, 704 keys", "width 40", "width 256", "6 heads of 3", "plain",
)  # fmt: skip
OF_SHAPE = ("size", "width", "heads", "value width")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a kernel is made for, as its caller says; see `assert_kernel`."""

    layout: KernelLayout = "BHTD"
    causal: Any = None
    window: tuple[int | None, int | None] | None = None
    scale: float | None = None
    softcap: float | None = None
    groups: bool = True
    head_dims: tuple[int, ...] | None = None
    equal_lengths: bool = False
    multiple_of: int = 1
    empty_rows: bool = True
    hidden_nan: bool = False

    @property
    def fixed(self) -> dict[str, Any]:
        """Return the options that hold in every call."""
        named = {name: getattr(self, name) for name in ("causal", "window", "scale", "softcap")}
        return {name: value for name, value in named.items() if value is not None}


def read_limits(
    layout: Any, causal: Any, window: Any, scale: Any, softcap: Any, groups: Any, head_dims: Any, equal_lengths: Any,
    multiple_of: Any, empty_rows: Any, hidden_nan: Any,
) -> Limits:  # fmt: skip
    """Check the limits that a caller names; TypeError or ValueError if one is not as `assert_kernel` says."""
    if causal is not None:
        order_of(causal)
    if head_dims is not None:
        if isinstance(head_dims, str) or not isinstance(head_dims, Collection) or not head_dims:
            raise TypeError(f"head_dims is {checks.brief(head_dims)}, expected widths of heads, such as (64, 128)")
        head_dims = tuple(sorted(checks.size("head_dims", one) for one in head_dims))
    return Limits(
        checks.choice("layout", layout, LAYOUTS),
        causal,
        None if window is None else checks.window("window", window),
        None if scale is None else checks.number("scale", scale),
        None if softcap is None else checks.positive("softcap", softcap),
        checks.flag("groups", groups),
        head_dims,
        checks.flag("equal_lengths", equal_lengths),
        checks.size("multiple_of", multiple_of),
        checks.flag("empty_rows", empty_rows),
        checks.flag("hidden_nan", hidden_nan),
    )


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The cases for a kernel, each in a dtype; why others are left out, by dtype and name; options it does not take."""

    cases: tuple[tuple[KernelCase, FloatName], ...]
    left_out: dict[str, str]
    not_offered: tuple[str, ...]


def choose_kernel_cases(
    limits: Limits, takes: Collection[str], backend: BackendName, suite: SuiteName, cases: Any, dtypes: Any
) -> Chosen:
    """Choose the cases of a suite for a kernel that takes these options; cases, dtypes: as of `assert_kernel`.

    Raises TypeError or ValueError if a name is not known, or if the framework has none of the dtypes.
    """
    quick = checks.choice("suite", suite, ("quick", "full")) == "quick" and cases is None
    wanted = USUAL if dtypes is None else [checks.choice("dtypes", one, DTYPES) for one in as_list(dtypes)]
    possible = [one for one in wanted if one in dispatch.FRAMEWORKS[backend].dtypes]
    if not possible:
        raise ValueError(f"dtypes is {', '.join(wanted)}, expected one that {backend} has")
    main = "float32" if "float32" in possible else possible[0]
    names = (
        None
        if cases is None
        else [check_case_name(one, KERNEL_CASES, "mha.testing.kernel_cases()") for one in as_list(cases)]
    )
    chosen, left_out = dict[tuple[Any, ...], tuple[KernelCase, FloatName]](), dict[str, str]()
    missing = dict.fromkeys(name for name in options_of(limits.layout) if name not in {*takes, *limits.fixed})
    for case in KERNEL_CASES:
        few = backend in FEW_SHAPES and not {*OF_SHAPE}.isdisjoint(case.about)
        unwanted = case.rare or (few and case.name not in SHAPES) if quick else False
        if unwanted or (names is not None and case.name not in names):
            continue
        if not applies(case, limits) or not missing.keys().isdisjoint(case.about):
            continue
        drawn = possible if not quick else [main] if few else [main, *case.also]
        for dtype in possible:
            if dtype not in drawn or ("half" in case.about and dtype not in HALVES):
                continue
            try:
                fitted = fit(case, limits, takes, backend)
            except NotImplementedError as reason:
                left_out[f"{dtype}, {case.name}"] = str(reason)
            else:
                chosen.setdefault((*call_of(fitted), dtype), (fitted, dtype))
    return Chosen(tuple(chosen.values()), left_out, tuple(missing))


def options_of(layout: KernelLayout) -> tuple[str, ...]:
    """Return the options that are drawn in a layout."""
    return tuple(name for name in DRAWN if layout != "THD" or name not in UNPACKED)


def applies(case: KernelCase, limits: Limits) -> bool:
    """Return whether there is such a call: in the layout, with the options that hold in every call."""
    packed = limits.layout == "THD"
    if case.texts and not packed:
        return False
    if packed and (case.batch == 0 or not {*UNPACKED}.isdisjoint(case.about)):
        return False
    if "hidden NaN" in case.about and not limits.hidden_nan:
        return False
    return all(getattr(case, name) == value for name, value in limits.fixed.items() if name in case.about)


def call_of(case: KernelCase) -> tuple[Any, ...]:
    """Return what two cases have in common that make the same call."""
    fields = dataclasses.asdict(case)
    return tuple(value for name, value in fields.items() if name not in ("name", "about", "also", "rare"))


def fit(case: KernelCase, limits: Limits, takes: Collection[str], backend: BackendName) -> KernelCase:
    """Return the call as a kernel can be given it; NotImplementedError with the reason if the kernel is not for it."""
    off = {name: getattr(KernelCase, name) for name in case.options if name not in {*takes, *limits.fixed}}
    case = dataclasses.replace(case, **off | limits.fixed)
    if case.memory in ("transposed", "stride 0", "NaN around") and backend not in STRIDED:
        raise NotImplementedError(f"arrays of {backend} have no strides")
    if backend in FEW_SHAPES and not case.texts and {*OF_SHAPE}.isdisjoint(case.about):
        case = of_usual_shape(case)
    if case.heads != case.groups and not limits.groups:
        if "heads" in case.about:
            raise NotImplementedError("groups=False")
        case = dataclasses.replace(case, groups=case.heads)
    case = fit_lengths(fit_width(case, limits), limits)
    if limits.layout == "THD":
        case = pack(case)
        if case.key_texts not in ((), case.texts) and "cu_seqlens_k" not in takes:
            raise NotImplementedError("it takes no cu_seqlens_k")
    if case.mask == "empty rows" and not limits.empty_rows:
        raise NotImplementedError("empty_rows=False")
    return case


def of_usual_shape(case: KernelCase) -> KernelCase:
    """Return the case with the shape of the first one."""
    names = ("batch", "heads", "groups", "queries", "keys", "width")
    return dataclasses.replace(case, **{name: getattr(KERNEL_CASES[0], name) for name in names})


def fit_width(case: KernelCase, limits: Limits) -> KernelCase:
    """Return the case with a width that the kernel takes: the next larger one, or else its largest."""
    if limits.head_dims is None or (case.width in limits.head_dims and case.value_width is None):
        return case
    if {"width", "value width"} & {*case.about}:
        raise NotImplementedError(f"head_dims={limits.head_dims}")
    width = next((one for one in limits.head_dims if one >= case.width), limits.head_dims[-1])
    return dataclasses.replace(case, width=width)


def fit_lengths(case: KernelCase, limits: Limits) -> KernelCase:
    """Return the case with numbers of tokens that the kernel takes."""
    if limits.equal_lengths and (case.queries != case.keys or case.key_texts not in ((), case.texts)):
        raise NotImplementedError("equal_lengths=True")
    if limits.multiple_of == 1:
        return case
    if "size" in case.about and (case.queries % limits.multiple_of or case.keys % limits.multiple_of):
        raise NotImplementedError(f"multiple_of={limits.multiple_of}")
    fields = {name: getattr(case, name) for name in ("queries", "keys", "texts", "key_texts")}
    return dataclasses.replace(case, **{name: round_up(value, limits.multiple_of) for name, value in fields.items()})


def round_up(numbers: Any, multiple: int) -> Any:
    """Return the next multiple that is not smaller, of a number or of each of several."""
    if isinstance(numbers, tuple):
        return tuple(round_up(one, multiple) for one in numbers)
    return -(-numbers // multiple) * multiple


def pack(case: KernelCase) -> KernelCase:
    """Return the case with its samples packed into one row; the second text has half the tokens."""
    if case.texts:
        return dataclasses.replace(case, batch=1)
    parts = (1, 2)[: case.batch]
    texts, key_texts = (tuple(max(size // part, 1) for part in parts) for size in (case.queries, case.keys))
    return dataclasses.replace(case, batch=1, texts=texts, key_texts=() if texts == key_texts else key_texts)
