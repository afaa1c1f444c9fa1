"""What became of the cases of a kernel, in words: the smallest that is wrong, and what all wrong ones have."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence

from mha.core.tables import number, plural
from mha.parity import Report, one_line
from mha.parity.testing.check import describe_left_out, group, name_some
from mha.parity.testing.kernels.common_ground import common_ground, option_without
from mha.parity.testing.kernels.explaining import explain_all
from mha.parity.testing.kernels.running import KernelCall


@dataclasses.dataclass(frozen=True)
class KernelRun:
    """What became of the cases of a kernel: reports, errors, and the reasons for those that were left out.

    other_bits: in how many cases a second run gave other bits.
    """

    name: str
    reports: dict[KernelCall, Report]
    raised: dict[KernelCall, Exception]
    left_out: dict[str, str]
    not_offered: tuple[str, ...]
    other_bits: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Return whether some case was compared, and none is wrong."""
        return bool(self.reports) and not self.raised and all(self.reports.values())

    @functools.cached_property
    def smallest(self) -> tuple[KernelCall, Report] | None:
        """Return the smallest case that differs, with a report that explains all that differ; None if none does."""
        if all(self.reports.values()):
            return None
        first = smallest([call for call, report in self.reports.items() if not report])
        return first, dataclasses.replace(self.reports[first], explain=lambda: explain_all(self.reports))

    def describe(self) -> str:
        """Return the report in words."""
        lines = [*self.describe_errors(), *self.describe_wrong()]
        if not (self.reports or self.raised):
            lines = [f"{self.name}: nothing was compared, every case is left out"]
        if self.passed:
            worst = number(max(report.ratio for report in self.reports.values()))
            cases = plural(len(self.reports), "case")
            lines = [f"{cases} the same in {self.seconds:.1f} s, the largest ratio {worst}"]
        lines += describe_left_out(self.left_out)
        if self.not_offered:
            lines.append(f"not offered, so not seen: {', '.join(self.not_offered)}")
        if self.other_bits:
            lines.append(f"a second run gave other bits in {plural(self.other_bits, 'case')}, which is no mistake")
        return "\n".join(lines)

    def some(self, calls: Sequence[KernelCall]) -> str:
        """Describe some of all cases."""
        return name_some([*map(str, calls)], len(self.reports) + len(self.raised))

    def describe_errors(self) -> Iterator[str]:
        """Yield lines for each error that it raised: where, what all these cases have, and how to leave them out."""
        said = {call: one_line(problem) for call, problem in self.raised.items()}
        for calls in group({call: re.sub(r"\d+", "", words) for call, words in said.items()}).values():
            first, others = smallest(calls), [*self.reports, *(call for call in self.raised if call not in calls)]
            yield f"{self.name} raised in {self.some(calls)}: {said[first]}"
            yield f"  the smallest is {first}: {first.describe()}"
            if common := common_ground(calls, others):
                yield f"  all of these have, and no other: {common}"
            if option := option_without(calls, [*self.reports]):
                yield f"  {option} leaves them out, if it is not made for them"

    def describe_wrong(self) -> Iterator[str]:
        """Yield lines about the cases that differ: the smallest, and what all have."""
        if self.smallest is None:
            return
        (first, explained), sorted_out = self.smallest, group({call: bool(one) for call, one in self.reports.items()})
        wrong, right = sorted_out[False], sorted_out.get(True, [])
        yield f"{self.name} differs in {self.some(wrong)}"
        yield f"the smallest is {first}: {first.describe()}"
        yield f"this case alone: cases={first.case.name!r}, dtypes={first.dtype!r}"
        if common := common_ground(wrong, right):
            yield f"all wrong cases have, and no right one: {common}"
        if tiles := next(filter(None, (tile_of(self.reports[call], str(call)) for call in wrong)), ""):
            yield tiles
        yield f"\n{explained}\n"


def smallest(calls: Sequence[KernelCall]) -> KernelCall:
    """Return the smallest of some cases."""
    return min(calls, key=lambda call: call.case.numbers_in_all)


def tile_of(report: Report, name: str) -> str:
    """Return the words of a report, of a case with a name, for a tile that its wrong rows show; "" = there is none."""
    places = ((row, words) for row in report.rows if row.place for words in row.place.where.split("; "))
    return next((f"in {name}, {row.title} differs in {words}" for row, words in places if ": a tile of" in words), "")
