"""Plan the calls of a kernel: fit the cases to the options that it takes, and to what its caller says of it."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Unpack

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import DTYPES
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.parity.testing.kernels.calling import PACKING, STRIDED, read_kernel
from mha.parity.testing.kernels.kernel_cases import DRAWN, HALVES, KERNEL_CASES, NEEDED, UNPACKED, KernelCase
from mha.parity.testing.kernels.options import KernelOptions, Setup, read_setup
from mha.parity.testing.kernels.running import KernelCall

USUAL = tuple(dtype for dtype in DTYPES if dtype != "float64")  # in which kernels compute; most have float32 inside
# JAX compiles each operation for each shape: all cases that are not about a shape have one shape there, and of the
# others these are drawn.
FEW_SHAPES: tuple[BackendName, ...] = ("jax",)
SHAPES = (
    "1 token", "33 tokens", "64 tokens", "128 tokens", "257 tokens", "33 queries, 65 keys", "65 queries, 33 keys",
    "1 query, 704 keys", "width 40", "width 256", "6 heads of 3", "plain",
)  # fmt: skip
OF_SHAPE = ("size", "width", "heads", "value width")


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """The name of a kernel, its calls, why others are left out, by dtype and case, and the options it does not take."""

    name: str
    calls: tuple[KernelCall, ...]
    left_out: dict[str, str]
    not_offered: tuple[str, ...]


def plan_calls(
    kernel: Any, backend: BackendName | None, suite: SuiteName, **options: Unpack[KernelOptions]
) -> CallPlan:
    """Plan the calls of a kernel, None = of one that takes every option; arguments as of `assert_kernel`.

    Raises TypeError or ValueError if an argument is not as described there, or if the framework has none of the dtypes.
    """
    setup = read_setup(dispatch.backend_name(backend), options)
    known = None if kernel is None else read_kernel("kernel", kernel, setup.options.takes)
    takes = (*DRAWN, *PACKING) if known is None else tuple(known.parameters)
    needs = {} if known is None else {name: value for name, value in NEEDED.items() if known.needs(name)}
    packed = setup.options.layout == "THD"
    if packed and "cu_seqlens" not in takes:
        raise TypeError('kernel has no parameter cu_seqlens, expected one with layout="THD": where each text begins')
    if known is not None and not packed and (needed := [name for name in PACKING if known.needs(name)]):
        raise TypeError(f'kernel {known.name} needs {needed[0]}, which a packed call has: pass layout="THD"')
    dispatch.load(setup.backend)
    here = {*takes, *setup.fixed, *(UNPACKED if packed else ())}
    missing = [name for name in DRAWN if name not in here]
    chosen, left_out = dict[tuple[Any, ...], KernelCall](), dict[str, str]()
    for case, dtype in cases_of_suite(setup, suite):
        if not applies(case, setup) or not {*missing}.isdisjoint(case.about):
            continue
        try:
            fitted = fit(case, setup, takes, needs)
        except NotImplementedError as reason:
            left_out[f"{dtype}, {case.name}"] = str(reason)
            continue
        if "options" not in case.about or len(fitted.options) > 1:
            chosen.setdefault((*call_of(fitted), dtype), KernelCall(fitted, dtype, setup, known))
    return CallPlan("" if known is None else known.name, tuple(chosen.values()), left_out, tuple(missing))


def cases_of_suite(setup: Setup, suite: SuiteName) -> Iterator[tuple[KernelCase, FloatName]]:
    """Yield the cases of a suite, or those that were named, each in its dtypes."""
    options, backend = setup.options, setup.backend
    quick = checks.choice("suite", suite, ("quick", "full")) == "quick" and options.cases is None
    wanted = USUAL if options.dtypes is None else options.dtypes
    possible = [one for one in wanted if one in dispatch.FRAMEWORKS[backend].dtypes]
    if not possible:
        raise ValueError(f"dtypes is {', '.join(wanted)}, expected one that {backend} has")
    main = "float32" if "float32" in possible else possible[0]
    for case in KERNEL_CASES:
        few = backend in FEW_SHAPES and not {*OF_SHAPE}.isdisjoint(case.about)
        unwanted = case.rare or (few and case.name not in SHAPES) if quick else False
        if unwanted or (options.cases is not None and case.name not in options.cases):
            continue
        drawn = possible if not quick else [main] if few else [main, *case.also]
        for dtype in possible:
            if dtype in drawn and (dtype in HALVES or "half" not in case.about):
                yield case, dtype


def applies(case: KernelCase, setup: Setup) -> bool:
    """Return whether there is such a call: in the layout, with the options that hold in every call."""
    packed = setup.options.layout == "THD"
    if case.texts and not packed:
        return False
    if packed and (case.batch == 0 or not {*UNPACKED}.isdisjoint(case.about)):
        return False
    if "hidden NaN" in case.about and not setup.options.hidden_nan:
        return False
    return all(getattr(case, name) == value for name, value in setup.fixed.items() if name in case.about)


def call_of(case: KernelCase) -> tuple[Any, ...]:
    """Return what two cases have in common that make the same call."""
    fields = dataclasses.asdict(case)
    return tuple(value for name, value in fields.items() if name not in ("name", "about", "also", "rare"))


def fit(case: KernelCase, setup: Setup, takes: Collection[str], needs: Mapping[str, Any]) -> KernelCase:
    """Return the call as a kernel can be given it; NotImplementedError with the reason if the kernel is not for it.

    takes: the options that it has parameters for; needs: what it gets of those that it cannot do without.
    """
    backend, options = setup.backend, setup.options
    off = {name: getattr(KernelCase, name) for name in case.options if name not in {*takes, *setup.fixed}}
    lacks = {name: value for name, value in needs.items() if name not in case.options}
    case = dataclasses.replace(case, **off | lacks | setup.fixed)
    if case.memory in ("transposed", "stride 0", "NaN around") and backend not in STRIDED:
        raise NotImplementedError(f"arrays of {backend} have no strides")
    if backend in FEW_SHAPES and not case.texts and {*OF_SHAPE}.isdisjoint(case.about):
        case = of_usual_shape(case)
    if case.heads != case.groups and not options.groups:
        if "heads" in case.about:
            raise NotImplementedError("groups=False")
        case = dataclasses.replace(case, groups=case.heads)
    case = fit_width(case, options.head_dims)
    if options.equal_lengths and (case.queries != case.keys or case.key_texts not in ((), case.texts)):
        raise NotImplementedError("equal_lengths=True")
    case = fit_lengths(case, options.multiple_of)
    if options.layout == "THD":
        case = pack(case)
        if case.key_texts not in ((), case.texts) and "cu_seqlens_k" not in takes:
            raise NotImplementedError("it takes no cu_seqlens_k")
    if case.mask == "empty rows" and not options.empty_rows:
        raise NotImplementedError("empty_rows=False")
    return case


def of_usual_shape(case: KernelCase) -> KernelCase:
    """Return the case with the shape of the first one."""
    names = ("batch", "heads", "groups", "queries", "keys", "width")
    return dataclasses.replace(case, **{name: getattr(KERNEL_CASES[0], name) for name in names})


def fit_width(case: KernelCase, widths: tuple[int, ...] | None) -> KernelCase:
    """Return the case with one of these widths of heads: the next larger one, or else the largest; None = any fits."""
    if widths is None or (case.width in widths and case.value_width is None):
        return case
    if {"width", "value width"} & {*case.about}:
        raise NotImplementedError(f"head_dims={widths}")
    return dataclasses.replace(case, width=next((one for one in widths if one >= case.width), widths[-1]))


def fit_lengths(case: KernelCase, multiple: int) -> KernelCase:
    """Return the case with numbers of tokens that are multiples of a number."""
    if "size" in case.about and (case.queries % multiple or case.keys % multiple):
        raise NotImplementedError(f"multiple_of={multiple}")
    fields = {name: getattr(case, name) for name in ("queries", "keys", "texts", "key_texts")}
    return dataclasses.replace(case, **{name: round_up(value, multiple) for name, value in fields.items()})


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
