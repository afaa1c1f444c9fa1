"""Write docs/mistakes.md: known mistakes planted in every backend's lesson, how each is noticed, how it is named.

Every cell is the result of a call. `--check` compares the page with the results of now. With only some backends, the
tables are printed and nothing is written.
"""

import dataclasses
import difflib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # before it is imported
sys.path.extend([str(Path(__file__).parents[1] / "tests" / name) for name in ("", "helpers")])

import planted
import planted_in_decodes
import planted_in_lessons

from mha import MultiHeadAttention, parity
from mha.core import dispatch
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.mistakes import of_precision, of_weights
from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.pipeline.plan import Plan, make_plan
from mha.parity.rule.problem import problem

PAGE = Path(__file__).with_name("mistakes.md")
NOT = "not noticed"
HEAD = """# Is every known mistake noticed, on every backend?

Look here to see how far you can trust a comparison that finds no difference. The mistakes of the
[catalogue](parity.md#the-catalogue) were planted in the lesson of each backend, the chapters in
`backends/<framework>/`, and [`mha.parity.compare`](parity.md) had to notice and name them.
`python docs/make_mistakes.py` writes the page.

## How a mistake is planted

The framework's own layer gets wrong weights, inputs, options or biases of scores; if other keys are hidden, it gets a
`mask`. Any other mistake is a wrong function, which replaces the lesson's function of that name during the call
(`tests/helpers/planted_in_lessons.py`). The rest is the framework's own arithmetic in float32.

These are not planted: mistakes of gradients; fitted numbers, such as another scale; swapped samples and tokens; numbers
of heads that do not divide the features; lower precision "everywhere", of queries alone or of dot products alone.

## How to read the tables

The first table of each section counts all forms of all mistakes. The second lists exceptions. **A mistake without a row
is noticed, and it alone is named first, for certain**: in all its forms, on all backends, from the output alone and
from everything that was given.

- **noticed**: a step of `trace` is outside its bound, by the [rule](testing.md#the-rule).
- **from the output**, **with steps**: the rank of the mistake among the explanations, if only the output is given, or
  every step. "1 of 2": two mistakes give the same numbers in this call, and both are named. "perhaps": the mistake is
  named, but not for certain. "named otherwise": another mistake is named for certain.
- A cell holds for all forms on all backends. Brackets name the forms for which something else holds.

## Whole calls

With NaN in padding, the output shows nothing but NaN. A rotation of both queries and keys by one more position changes
no distance, and so no output.

"""
DECODING = """
## Decoding

The mistakes of decoding, and three that any call may have, were planted in calls with a cache
(`tests/helpers/planted_in_decodes.py`). A layer on NumPy reads a prompt. Its cache goes to each backend, whose lesson
computes the next tokens.

- **from the output**: "the same" means that the mistake changes only what is kept for later calls, or positions that
  causal order hides until then.
- **with the cache**: the rank of the mistake, if the output is given, and `cache.keys`, `cache.values` and
  `cache.positions` as the call leaves them.

"""


class Answer(NamedTuple):
    """The result for a mistake on a backend.

    noticed: the first array outside its bound; output, whole: its name from the output alone and from all arrays.
    """

    noticed: str
    output: str
    whole: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A mistake, and the call in which it is planted.

    name, how: as in a diagnosis; change: from one plan to another; others: as for `parity.compare`.
    """

    name: str
    how: str
    change: Callable[[Plan], Any]
    call: planted.Call
    dtype: str = "float32"
    others: Any = None

    def plans(self) -> tuple[Plan, Plan]:
        """The plan of the call without the mistake and with it."""
        layer, inputs, arguments = self.call.made(self.dtype)
        right = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), self.dtype)
        return right, self.change(right)

    def reports(self, backend: str) -> tuple[parity.Report, parity.Report]:
        """Plant the mistake on a backend, and compare: every step, and the output alone."""
        layer, inputs, arguments = self.call.made(self.dtype)
        steps = planted_in_lessons.steps(backend, layer, inputs, arguments, *self.plans())
        whole, alone = (
            report_of(
                problem(layer, *inputs, planted.DEFAULTS | arguments), theirs, None, self.others, call_is_sure=True
            )
            for theirs in (steps, steps["output"])
        )
        return whole, alone


def asked(row: Any, backend: str) -> Answer:
    """Plant a mistake on a backend, a `Row` or one of decoding, and compare."""
    whole, alone = row.reports(backend)
    noticed = NOT if whole.first is None else f"`{whole.first.name}`"
    return Answer(noticed, named(row.name, alone), named(row.name, whole))


def named(name: str, report: parity.Report) -> str:
    """The rank of a mistake in a report; mistakes that give the same numbers share a rank."""
    if report:
        return "the same"
    found = report.diagnosis.explanations
    mine = next((one for one in found if name in (*one.also, *one.mistakes[:1]) and len(one.mistakes) == 1), None)
    if mine is None:
        return "named otherwise" if report.diagnosis.known else "not named"
    rank = 1 + sum(better(one, mine) for one in found)
    alike = sum(not better(one, mine) and not better(mine, one) for one in found)
    return f"{'' if mine.sure else 'perhaps '}{rank}{f' of {alike}' * (alike > 1)}"


def better(one: parity.Explanation, other: parity.Explanation) -> bool:
    """Whether an explanation comes before another one: it has fewer mistakes, or fits better by more than rounding."""
    if len(one.mistakes) != len(other.mistakes):
        return len(one.mistakes) < len(other.mistakes)
    return one.ratio < other.ratio - 0.1


def rows() -> list[Row]:
    """Each form of each known mistake, in the first call in which it changes the output, or else a step."""
    found = []
    for form in FORMS:
        shown = planted.planted_in(form) or planted.planted_in(form, None)
        # The features cannot be split into every number of heads, and no lesson rounds its dot products by themselves.
        if shown is not None and form.mistake.name != "dot products overflow float16":
            found.append(Row(form.mistake.name, form.how, form.change, shown[0]))
    for rounding in of_precision.ROUNDINGS:
        dtype = "float64" if rounding.name == "float32 arithmetic" else "float32"
        for how, change in rounding.forms.items():
            if how != "everywhere" and "queries" not in how:  # a lesson has no one place where these are rounded
                call = next(call for call in planted.CALLS if planted.possible(change, call, dtype))
                found.append(Row(rounding.name, how, change, call, dtype))
    found += [Row("dropout left on", f"p = {p}", partial(dropping, p), planted.CALLS[0]) for p in (0.25, 0.5)]
    another = MultiHeadAttention(**planted.SQUARE, seed=5, backend="numpy")
    for mistake in of_weights.of_another_layer({"another": another.weights}):
        found.append(Row(mistake.name, "", mistake.forms["another"], planted.CALLS[0], others={"another": another}))
    return found


def dropping(p: float, plan: Plan) -> Plan:
    """The plan with dropout of attention weights, as in training."""

    def after(weights: np.ndarray) -> np.ndarray:
        kept = np.random.default_rng(11).random(weights.shape) >= p
        return (weights * kept / (1 - p)).astype(weights.dtype)

    return dataclasses.replace(plan, after=after)


def unlike(backend: str, calls: Sequence[planted.Call] = planted.CALLS) -> str | None:
    """The first wrong step of a lesson whose functions are replaced by ones that do the same; None = none."""
    for call in calls:
        layer, inputs, arguments = call.made()
        right = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), "float32")
        theirs = planted_in_lessons.steps(backend, layer, inputs, arguments, right)
        if (row := parity.compare(layer, theirs, *inputs, **arguments, empty_rows=True).first) is not None:
            return row.name
    return None


# The page


def tables(answers: dict[str, list[Answer]], rows: Sequence[Any], whole: str) -> str:
    """The results on some backends as two tables, of all mistakes and of unclear ones; whole: the last title."""
    counted: dict[tuple[int, ...], list[str]] = {}
    for backend, found in answers.items():
        noticed = sum(answer.noticed != NOT for answer in found)
        first = [sum(X.split()[0] == "1" for X in column) for column in list(zip(*found, strict=True))[1:]]
        counted.setdefault((len(found), noticed, *first), []).append(backend)
    titles = "backend", "forms planted", "noticed", "named first from the output", f"named first {whole}"
    lines = [line(*titles), "|---" * len(titles) + "|"]
    lines += [line(", ".join(backends), *numbers) for numbers, backends in counted.items()]
    titles = "mistake", "forms", "from the output", whole
    lines += ["", line(*titles), "|---" * len(titles) + "|"]
    lines += [line(*cells) for cells in unclear(answers, rows)]
    return "\n".join(lines) + "\n"


def unclear(answers: dict[str, list[Answer]], rows: Sequence[Any]) -> Iterator[tuple[str, int, str, str]]:
    """The cells of each mistake that is not named first for certain in all forms on all backends."""
    for name, group in itertools.groupby(range(len(rows)), lambda i: rows[i].name):
        each = list(group)
        came = {(rows[i].how, backend): answers[backend][i] for i in each for backend in answers}
        named = tuple(cell({key: answer[column] for key, answer in came.items()}) for column in (1, 2))
        if named != ("1", "1"):
            yield name, len(each), *named


def cell(texts: dict[tuple[str, str], str]) -> str:
    """The results for the forms of a mistake, by form and backend: each once, the most frequent first."""
    together: dict[str, list[tuple[str, str]]] = {}
    for key, text in texts.items():
        together.setdefault(text, []).append(key)
    backends = {backend for _, backend in texts}
    (usual, _), *rest = sorted(together.items(), key=lambda one: -len(one[1]))
    others = []
    for text, keys in rest:
        forms = {how: [backend for one, backend in keys if one == how] for how, _ in keys}
        where = [f"{how} {'' if set(on) == backends else 'on ' + ', '.join(on)}".strip() for how, on in forms.items()]
        others.append(f"{text} ({'; '.join(where) if len(where) <= 4 else f'{len(where)} forms'})")
    return "; ".join([usual, *others])


def line(*cells: object) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def main(
    backends: Annotated[str, typer.Option(help="Backends, joined by commas.")] = ",".join(dispatch.FRAMEWORKS),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; show how the page differs from a new one.")
    ] = False,
) -> None:
    """Write docs/mistakes.md from the results of known mistakes, planted in the lesson of each backend.

    Exit code 1 if a lesson is wrong with nothing planted, or if the page differs and --check is given.
    """
    names = backends.split(",")
    if unknown := set(names) - dispatch.FRAMEWORKS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}, expected some of {', '.join(dispatch.FRAMEWORKS)}")
    if check and set(names) != dispatch.FRAMEWORKS.keys():
        raise typer.BadParameter("--check compares the whole page; leave out --backends")
    console, whole, decoding = Console(stderr=True), rows(), planted_in_decodes.PLANTED
    answers: dict[str, list[Answer]] = {}
    for name in names:
        if off := unlike(name) or planted_in_decodes.unlike(name):
            console.print(f"{name}: with nothing planted, the lesson is wrong in {off}")
            raise typer.Exit(1)
        every = [*whole, *decoding]
        shown = track(every, description=name, console=console, transient=True, disable=not console.is_terminal)
        answers[name] = [asked(row, name) for row in shown]
    text = tables({name: found[: len(whole)] for name, found in answers.items()}, whole, "with steps")
    text += DECODING
    text += tables({name: found[len(whole) :] for name, found in answers.items()}, decoding, "with the cache")
    if set(names) != dispatch.FRAMEWORKS.keys():
        typer.echo(text, nl=False)
        return
    text = HEAD + text
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if check:
        difference = difflib.unified_diff(old.splitlines(True), text.splitlines(True), "docs/mistakes.md", "now")
        typer.echo("".join(difference), nl=False)
    else:
        PAGE.write_text(text, encoding="utf-8")
    raise typer.Exit(1 if check and text != old else 0)


if __name__ == "__main__":
    typer.run(main)
