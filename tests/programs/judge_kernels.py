"""What `mha.parity.compare_kernel` says of right and wrong kernels, those of `tests/helpers/kernel_zoo`.

python tests/programs/judge_kernels.py --seeds 2 --only torch --only "numpy.the mask" --dtype float32 --no-right
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mha.parity import compare_kernel
from mha.parity.diagnosis.compare.kernels import arrays_of_kernel
from mha.parity.diagnosis.compare.report import Report
from mha.parity.rule.kernel_call import kernel_problem
from mha.parity.rule.layouts import GRADIENT

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import kernel_zoo
from kernel_zoo import Kernel
from kernel_zoo.calls import Case, able, asked, call, draw

USUAL = 1e-2  # the tolerance of the usual test
OF_MXNET = ("float32",)  # MXNet has no half precision on processors


class Judged(NamedTuple):
    """A call of a kernel, what the rule says of it, and whether the usual test would have noticed."""

    case: Case
    seed: int
    report: Report
    usual: bool

    @property
    def ratio(self) -> float:
        """Return the largest ratio, infinite if one is NaN."""
        return float(np.nan_to_num(self.report.ratio, nan=np.inf))


def judge(backend: str, kernel: Kernel, dtype: str, seeds: range) -> Iterator[Judged]:
    """Make all calls that a kernel can do, and judge them."""
    for case in able(kernel):
        for seed in seeds:
            drawn = draw(case, seed, dtype)
            try:
                theirs = call(backend, kernel, case, drawn)
            except NotImplementedError:
                break
            inputs, more = asked(kernel, case, drawn)
            report = compare_kernel(theirs, *inputs, **more)
            yield Judged(case, seed, report, usual_test(theirs, inputs, more))


def usual_test(theirs: Any, inputs: list[np.ndarray], more: dict[str, Any]) -> bool:
    """Return whether a test with one tolerance for all numbers notices something."""
    problem = kernel_problem(*inputs, **more)
    for name, X in arrays_of_kernel(theirs).items():
        turn, right = problem.turn(name, X), problem.expected(name).X
        if not callable(turn):
            return True
        counts = True if name.startswith(GRADIENT) else problem.matters(name)
        with np.errstate(invalid="ignore"):  # minus infinity is a right log-sum-exp, too
            far = np.where(counts & (turn(X) != right), turn(X) - right, 0)
        if not np.abs(far).max(initial=0) <= USUAL:  # NaN is noticed, too
            return True
    return False


def describe(kernel: Kernel, found: list[Judged]) -> str:
    """Return what a diagnosis of the clearest call says: how often the mistake is named in the first three."""
    noticed = sorted((one for one in found if one.ratio > 1), key=lambda one: one.case.Q * one.case.K)[:3]
    names = [", ".join(" + ".join(one) for one in each.report.diagnosis.alternatives) for each in noticed]
    right = sum(bool(kernel.known) and kernel.known in one for one in names)
    others = {one for one in names if one and not (kernel.known and kernel.known in one)}
    return f"{right} of {len(names)}" * bool(kernel.known) + "".join(f" {one};" for one in sorted(others))


def kernels(right: bool, only: list[str] | None) -> Iterator[tuple[str, str, Kernel]]:
    """Return backend, name and kernel of those whose backend.name begins as asked for."""
    for backend in kernel_zoo.BACKENDS:
        if only and not any(one.startswith(backend) for one in only):
            continue
        for name, kernel in (kernel_zoo.right if right else kernel_zoo.wrong)(backend).items():
            if not only or f"{backend}.{name}".startswith(tuple(only)):
                yield backend, name, kernel


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each call.")] = 1,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="How backend.name begins, such as torch.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="The dtypes.")] = None,
    right: Annotated[bool, typer.Option(help="Judge the right kernels.")] = True,
    wrong: Annotated[bool, typer.Option(help="Judge the wrong kernels.")] = True,
    names: Annotated[bool, typer.Option(help="Say which mistakes are named, which takes longer.")] = False,
) -> None:
    """Judge the kernels, and print a table of the right ones and one of the wrong ones."""
    printing, drawn, dtypes = Console(width=160), range(first, first + seeds), dtype or ["float32", "bfloat16"]
    if right:
        table = Table("right", "dtype", "calls", "alarms", "largest", "in the call", "of the array", "seed")
        for backend, name, kernel in kernels(True, only):
            for each in OF_MXNET if backend == "mxnet" else dtypes:
                found = list(judge(backend, kernel, each, drawn))
                worst = max(found, key=lambda one: one.ratio)
                row = max(worst.report.rows, key=lambda row: row.ratio)
                alarms = str(sum(one.ratio > 1 for one in found))
                at = f"{worst.ratio:.2f}", str(worst.case), row.title, str(worst.seed)
                table.add_row(f"{backend}.{name}", each, str(len(found)), alarms, *at)
        printing.print(table)
    if wrong:
        each_dtype = [f"{each} {what}" for each in dtypes for what in ("noticed", "largest", f"by {USUAL}")]
        table, missed = Table("wrong", *each_dtype, "named"), dict.fromkeys((*dtypes, *map(str.upper, dtypes)), 0)
        for backend, name, kernel in kernels(False, only):
            cells, found = [], list[Judged]()
            for each in reversed(dtypes):
                found = [] if backend == "mxnet" and each not in OF_MXNET else list(judge(backend, kernel, each, drawn))
                count, usual = (sum(one) for one in ([one.ratio > 1 for one in found], [one.usual for one in found]))
                largest = f"{max((one.ratio for one in found), default=np.nan):.3g}"
                cells = [f"{count} of {len(found)}", largest, str(usual), *cells]
                missed[each], missed[each.upper()] = missed[each] + (not count), missed[each.upper()] + (not usual)
            table.add_row(f"{backend}.{name}", *cells, describe(kernel, found) if names else "")
        printing.print(table)
        words = ("noticed in no call", f"noticed in no call by atol={USUAL}")
        for each in dtypes:
            printing.print(
                f"{each}: {missed[each]} {words[0]}, {missed[each.upper()]} {words[1]}, of {table.row_count}"
            )


if __name__ == "__main__":
    typer.run(main)
