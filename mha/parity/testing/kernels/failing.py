"""What a failure says: how many cases differ, the smallest with its report, and what all of them have in common."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from mha.parity import Report, one_line
from mha.parity.testing.check import name_some
from mha.parity.testing.kernels.common_ground import common_ground, option_without
from mha.parity.testing.kernels.explaining import explain_all
from mha.parity.testing.kernels.running import KernelCall


def smallest_wrong(reports: Mapping[KernelCall, Report]) -> tuple[KernelCall, Report] | None:
    """Return the smallest case that differs, with a report that explains all that differ; None if none does."""
    if all(reports.values()):
        return None
    first = smallest([call for call, report in reports.items() if not report])
    return first, dataclasses.replace(reports[first], explain=lambda: explain_all(reports))


def failure(
    name: str,
    reports: Mapping[KernelCall, Report],
    raised: Mapping[KernelCall, Exception],
    first: tuple[KernelCall, Report] | None,
) -> str:
    """Write the message of a failure; name: of the kernel; first: as of `smallest_wrong`."""
    if not (reports or raised):
        return f"{name}: nothing was compared, every case is left out"
    lines = [*describe_errors(name, list(reports), raised)]
    return "\n".join(lines if first is None else [*lines, *describe_wrong(name, reports, len(raised), *first)])


def describe_errors(name: str, compared: Sequence[KernelCall], raised: Mapping[KernelCall, Exception]) -> Iterator[str]:
    """Yield lines for each error that a kernel raised: where, what all these cases have, and how to leave them out."""
    by_text: dict[str, list[KernelCall]] = {}
    for call, problem in raised.items():
        by_text.setdefault(one_line(problem), []).append(call)
    for words, calls in by_text.items():
        first, others = smallest(calls), [*compared, *(call for call in raised if call not in calls)]
        yield f"{name} raised in {name_some([*map(str, calls)], len(compared) + len(raised))}: {words}"
        yield f"  the smallest is {first}: {first.describe()}"
        if common := common_ground(calls, others):
            yield f"  all of these have, and no other: {common}"
        if option := option_without(calls, others):
            yield f"  {option} leaves them out, if it is not made for them"


def describe_wrong(
    name: str, reports: Mapping[KernelCall, Report], errors: int, first: KernelCall, report: Report
) -> Iterator[str]:
    """Yield lines about the cases that differ: the smallest, and what all have; errors: how many others raised."""
    wrong, right = ([call for call, report in reports.items() if bool(report) is same] for same in (False, True))
    yield f"{name} differs in {name_some([*map(str, wrong)], len(reports) + errors)}"
    yield f"the smallest is {first}: {first.describe()}"
    yield f"this case alone: cases={first.case.name!r}, dtypes={first.dtype!r}"
    if common := common_ground(wrong, right):
        yield f"all wrong cases have, and no right one: {common}"
    if tiles := next(filter(None, (tile_of(reports[call], str(call)) for call in wrong)), ""):
        yield tiles
    yield f"\n{report}\n"


def smallest(calls: Sequence[KernelCall]) -> KernelCall:
    """Return the smallest of some cases."""
    return min(calls, key=lambda call: call.case.numbers_in_all)


def tile_of(report: Report, name: str) -> str:
    """Return the words of a report, of a case with a name, for a tile that its wrong rows show; "" = there is none."""
    places = ((row, words) for row in report.rows if row.place for words in row.place.where.split("; "))
    return next((f"in {name}, {row.title} differs in {words}" for row, words in places if ": a tile of" in words), "")
