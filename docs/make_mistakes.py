"""Write docs/mistakes.md: every known mistake in the lesson of every backend, by what it is noticed, and how it is named.

Every cell is what came of a call. `--check` compares the page with what comes out now; with some of the `--backends`
the tables are printed, and nothing is written.
"""

import dataclasses
import difflib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # before it is imported
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import planted
import planted_in_lessons
from mha import MultiHeadAttention, dispatch, parity
from mha.parity import mistakes, pipeline, precision
from mha.parity.problem import problem

PAGE = Path(__file__).with_name("mistakes.md")


class Answer(NamedTuple):
    """What came of a mistake on a backend.

    noticed: the first step outside its bound; output, steps: how it was named from the output alone and with all steps.
    """

    noticed: str
    output: str
    steps: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A mistake, and the call in which it is planted.

    name, how: as a diagnosis says them; change: from one plan to another; others: of `parity.compare`.
    """

    name: str
    how: str
    change: Callable[[pipeline.Plan], Any]
    call: planted.Call
    dtype: str = "float32"
    others: Any = None

    def plans(self) -> tuple[pipeline.Plan, pipeline.Plan]:
        """The plan of the call without the mistake and with it."""
        layer, inputs, arguments = self.call.made(self.dtype)
        right = pipeline.plan_of(problem(layer, *inputs, planted.DEFAULTS | arguments, None), self.dtype)
        return right, self.change(right)

    def place(self) -> str:
        """Where it is planted."""
        return planted_in_lessons.places(*self.plans())

    def asked(self, backend: str) -> Answer:
        """What comes of it on a backend."""
        layer, inputs, arguments = self.call.made(self.dtype)
        steps = planted_in_lessons.steps(backend, layer, inputs, arguments, *self.plans())
        whole, alone = (
            parity.compare(layer, theirs, *inputs, **arguments, others=self.others)
            for theirs in (steps, steps["output"])
        )
        noticed = "not noticed" if whole.first is None else f"`{whole.first.name}`"
        return Answer(noticed, named(self.name, alone), named(self.name, whole))


def named(name: str, report: parity.Report) -> str:
    """The rank at which a report names a mistake; mistakes that give the same numbers share it."""
    if report:
        return "the same"
    found = report.diagnosis.explanations
    mine = next((one for one in found if one.mistakes == (name,)), None)
    if mine is None:
        return "named otherwise" if report.diagnosis.known else "not named"
    rank = 1 + sum(order(one) < order(mine) for one in found)
    alike = sum(order(one) == order(mine) for one in found)
    return f"{'' if mine.sure else 'perhaps '}{rank}{f' of {alike}' * (alike > 1)}"


def order(one: parity.Explanation) -> tuple[int, float]:
    """What puts one explanation before another."""
    return len(one.mistakes), round(one.ratio, 1)


def rows() -> list[Row]:
    """Each known mistake in the first of its forms, and the first call, in which it changes the output, or else a step."""
    found = []
    for mistake in parity.CATALOGUE:
        forms = [form for form in planted.FORMS if form.mistake is mistake]
        tries = ((form, planted.planted_in(form, names)) for names in (("output",), None) for form in forms)
        form, (call, _) = next((form, shown) for form, shown in tries if shown is not None)
        found.append(Row(mistake.name, form.how, form.change, call))
    for rounding in precision.ROUNDINGS:
        how, change = next(iter(rounding.forms.items()))
        dtype = "float64" if rounding.name == "float32 arithmetic" else "float32"
        found.append(Row(rounding.name, how, change, planted.CALLS[0], dtype))
    another = MultiHeadAttention(**planted.SQUARE, seed=5, backend="numpy")
    (other,) = (one for one in mistakes.of_another_layer({"another": another.weights}) if one.parts == ALL_PARTS)
    more = {"another": another}
    return [
        *found,
        Row("dropout left on", "p = 0.25", dropping, planted.CALLS[0]),
        Row(other.name, "", other.forms["another"], planted.CALLS[0], others=more),
    ]


ALL_PARTS = tuple(pipeline.PARTS)


def dropping(plan: pipeline.Plan, p: float = 0.25) -> pipeline.Plan:
    """Weights of which some are dropped, as in training."""

    def after(weights: np.ndarray) -> np.ndarray:
        kept = np.random.default_rng(11).random(weights.shape) >= p
        return (weights * kept / (1 - p)).astype(weights.dtype)

    return dataclasses.replace(plan, after=after)


if __name__ == "__main__":
    import time
    for b in sys.argv[1].split(","):
        t = time.time()
        for row in rows():
            t1 = time.time()
            print(b, row.name, row.how, "|", row.place(), "|", *row.asked(b), f"{time.time()-t1:.2f}", flush=True)
        print(b, time.time() - t)
