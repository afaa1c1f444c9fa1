"""Plant mistakes in half precision, and count how many `mha.parity` notices and names.

python tests/programs/half_mistakes.py --dtype bfloat16 [--style steps] [--seeds 0 19] [--named] [--table small]

A mistake is put into the plan of a call, which is then computed as a port computes it, with the roundings of a style.
What has no mistake must be the same in each call; the first row of each table counts that.

Letters as in the lessons.
"""

import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.mistakes.mistake import Form, forms_of
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS, to_int8
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.pieces import Array, widen
from mha.parity.diagnosis.pipeline.plan import Plan, equal_plans, make_plan, replace
from mha.parity.diagnosis.search.verdicts import apart
from mha.parity.rule.problem import problem
from mha.parity.rule.rounding import through

sys.path.extend([str(Path(__file__).parents[2] / name) for name in ("docs", "tests", "tests/helpers")])
import planted
from make_mistakes import named

B, D, H = 3, 256, 8
SAMPLE = 1  # where a small mistake is made that is made in one sample alone
WIDTH = 96  # of the layers for the catalogue: as many heads as 3, 4 or 6 divide it
CLEAR, LEAST = 2.0, 0.01  # times rounding: a change that shows, and one that is nothing
MORE = (  # calls for forms that no call of `planted.CALLS` has room for: other numbers of heads, sinks beside blocks
    *(planted.Call(planted.SQUARE | {"num_hiddens": width}) for width in (280, 128)),
    planted.Call(planted.SQUARE | {"sinks": True}, {"valid_lens": [1031, 90, 300]}, K=1031),
)


class Case(NamedTuple):
    """A mistaken output, and the call that it is of.

    name: of the mistake and its form; size: the root mean square of the output's errors, by that of a right port;
    mistake: its name in the catalogue, "" if it has none.
    """

    name: str
    layer: mha.MultiHeadAttention
    output: Array
    inputs: list[Array]
    call: dict[str, Any]
    size: float
    mistake: str = ""

    def ratio(self) -> float:
        """Measure the output by the rule."""
        return parity.ratio(self.layer, self.output, *self.inputs, empty_rows=True, **self.call)

    def answer(self) -> str:
        """Return how the mistake is named from the output alone, as docs/mistakes.md has it."""
        asked = problem(self.layer, *self.inputs, planted.DEFAULTS | self.call)
        return named(self.mistake, report_of(asked, self.output, call_is_sure=True))


# Ports


class Port(Plan):
    """A plan whose projections add their bias before they round, as the products of frameworks do."""

    def project(self, name: str, X: Array) -> Array:
        """Project inputs (B, T, any), the samples to compute."""
        return self.multiply(name, self.of_samples(X))

    def output(self, merged: Array) -> Array:
        """Return merged heads (B, Q, H*dv) @ kernel + bias."""
        return self.multiply("W_o", merged)

    def multiply(self, name: str, X: Array) -> Array:
        """Return X @ kernel + bias, computed in float32 and rounded once."""
        kernel, bias = self.weights[f"{name}.kernel"], self.weights.get(f"{name}.bias", 0)
        wide = np.matmul(self.into_product(widen(X)), self.into_product(widen(kernel)))
        return self.rounded((wide + np.asarray(bias, np.float32)).astype(X.dtype))


def fused(plan: Plan) -> dict[str, Any]:
    """Return the fields of a port that computes attention in float32 and rounds its weights, heads and output."""
    return {"after": lambda X: through(plan.config.dtype)(plan.after(X))}


def steps(plan: Plan) -> dict[str, Any]:
    """Return the fields of a port that also rounds dot products, scores and the products of a rotation."""
    into = through(plan.config.dtype)
    return fused(plan) | {"rounded": lambda X: into(plan.rounded(X)), "rotate": partial(rotate_rounded, plan.rotate)}


STYLES: dict[str, Callable[[Plan], dict[str, Any]]] = {"fused": fused, "steps": steps}


def rotate_rounded(rotate: Callable[..., Array], plan: Plan, role: str, X: Array, places: Array) -> Array:
    """Rotate heads (B, H, T, d), but round each product before two are added."""
    at = np.arange(X.shape[-1])
    first = at % 2 == 0 if plan.interleaved else at < len(plan.frequencies)  # (d,)
    parts = (rotate(plan, role, np.where(own, X, 0).astype(X.dtype), places) for own in (first, ~first))
    return np.add(*parts)


def compute(plan: Plan, style: str | None = None) -> Array:
    """Return the output of a plan (B, Q, D), with the roundings of a style; None = in the plan's own dtype."""
    if style is not None:
        made = object.__new__(Port)  # `dataclasses.replace` would make a Plan
        vars(made).update(vars(plan), **STYLES[style](plan))
        plan = made
    with np.errstate(all="ignore"):
        return all_steps(plan)[0]["output"]


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A call of a layer in half precision, and a style; what mistakes share is computed once."""

    layer: mha.MultiHeadAttention
    inputs: list[Array]
    call: dict[str, Any]
    style: str

    def plan(self, dtype: str) -> Plan:
        """Make the plan of the call without a mistake."""
        return make_plan(problem(self.layer, *self.inputs, planted.DEFAULTS | self.call), dtype)

    @functools.cached_property
    def narrow(self) -> Plan:
        """Return the plan in the layer's dtype."""
        return self.plan(self.layer.config.dtype)

    @functools.cached_property
    def wide(self) -> Plan:
        """Return the plan in float64."""
        return self.plan("float64")

    @functools.cached_property
    def exact(self) -> Array:
        """Return its output."""
        return compute(self.wide)

    @functools.cached_property
    def right(self) -> Array:
        """Return the output of a right port."""
        return compute(self.narrow, self.style)

    @functools.cached_property
    def rounding(self) -> float:
        """Return the root mean square of a right port's errors."""
        return apart(self.right.astype(np.float64), self.exact)

    def output(self, **changes: Any) -> Array:
        """Return the output of a port whose plan has other fields."""
        return compute(replace(self.narrow, **changes), self.style)

    def case(self, name: str, output: Array, mistake: str = "") -> Case:
        """Make the case of a mistaken output."""
        size = apart(output.astype(np.float64), self.exact) / self.rounding
        return Case(name, self.layer, output, self.inputs, self.call, size, mistake)

    @functools.cached_property
    def right_ratio(self) -> float:
        """Return the ratio of a right port; infinite if it or the layer overflows in its dtype."""
        try:
            return self.case("", self.right).ratio()
        except ValueError:
            return np.inf


# Small mistakes: functions of a setting and a size, a share or a factor, to the mistaken output.
# Weights with a mistake stay in float32: half precision would round most of it away.


def scale(setting: Setting, size: float) -> Array:
    """Multiply scores by a scale that is too large."""
    return setting.output(scale=setting.narrow.scale * (1 + size))


def scaled(name: str, columns: Any, setting: Setting, size: float) -> Array:
    """Multiply columns of a weight by 1 + size."""
    X = widen(setting.narrow.weights[name]).copy()
    X[..., columns] *= 1 + size
    return setting.output(weights=setting.narrow.weights | {name: X})


def whole(setting: Setting, size: float) -> Array:
    """Multiply the output by 1 + size before it is rounded."""
    larger = {f"W_o.{name}": widen(setting.narrow.weights[f"W_o.{name}"]) * (1 + size) for name in ("kernel", "bias")}
    return setting.output(weights=setting.narrow.weights | larger)


def cached(setting: Setting, size: float) -> Array:
    """Round keys and values to int8, by token and head."""
    return setting.output(cached=partial(to_int8, (3,)))


def window(setting: Setting, size: float) -> Array:
    """Let two queries see one more key before them."""
    left, right = setting.narrow.window
    Q = setting.right.shape[1]
    rows = np.isin(np.arange(Q), (Q // 3, 5 * Q // 8))[:, None]  # (Q, 1)
    return np.where(rows, setting.output(window=(left + 1, right)), setting.right)


def noise(setting: Setting, size: float) -> Array:
    """Make a right port's errors so many times as large in one sample."""
    far = setting.right.astype(np.float64) - setting.exact
    return in_sample(setting, (setting.exact + size * far).astype(setting.right.dtype))


def in_sample(setting: Setting, output: Array) -> Array:
    """Take one sample of an output, and the others of a right port's."""
    return np.where((np.arange(B) == SAMPLE)[:, None, None], output, setting.right)


SMALL: dict[str, Callable[[Setting], Array]] = {
    "no mistake": lambda setting: setting.right,
    **{f"scale {100 * size:g} % too large": partial(scale, size=size) for size in (0.01, 0.003, 0.001)},
    "scale 2 % too large in one sample": lambda setting: in_sample(setting, scale(setting, 0.02)),
    **{f"bias of W_v {100 * size:g} % too small": partial(scaled, "W_v.bias", slice(None), size=-size)
       for size in (0.033, 0.01, 0.003)},
    "keys and values in int8": partial(cached, size=0),
    "a column of W_v 1 % too large": partial(scaled, "W_v.kernel", 5, size=0.01),
    "window one too wide in two rows": partial(window, size=0),
    "7 times the rounding in one sample": partial(noise, size=7),
    "output 0.3 % too large": partial(whole, size=0.003),
}  # fmt: skip


def small_setting(seed: int, dtype: str, style: str, Q: int = 64, windowed: bool = False) -> Setting:
    """Draw a layer with biases and a call of it, self-attention or not; windowed: with a causal window."""
    rng = np.random.default_rng(seed)
    options = {
        "num_key_value_heads": int(rng.choice([H, 2])),
        "rotary": mha.Rotary() if rng.random() < 0.5 else None,
        "qk_norm": "rms" if rng.random() < 0.25 else None,
        "window": (Q // 4, 0) if windowed else None,
    }
    layer = mha.MultiHeadAttention(D, H, bias=True, dtype=dtype, seed=seed, backend="numpy", **options)
    layer.weights = {
        name: rng.normal(scale=0.3, size=X.shape).astype(X.dtype) if name.endswith(".bias") else X
        for name, X in layer.weights.items()
    }
    X, Y = (rng.normal(size=(B, Q, D)).astype(numpy_dtype(dtype)) for _ in range(2))
    call = ({}, {"causal": True}, {"valid_lens": [Q, Q // 2, Q // 4]})[rng.integers(3)]
    return Setting(layer, [X, X, X] if rng.random() < 0.5 else [X, Y, Y], call, style)


def small_cases(seed: int, dtype: str, style: str, Q: int = 64) -> Iterator[Case]:
    """Plant each small mistake in one call; the first case has none."""
    plain, windowed = (small_setting(seed, dtype, style, Q, each) for each in (False, True))
    for name, plant in SMALL.items():
        setting = windowed if "window" in name else plain
        yield setting.case(name, plant(setting))


# The catalogue


def settings(dtype: str, style: str) -> list[Setting]:
    """Make the calls of `planted.CALLS` with layers of more features, and some more; those with NaN come last."""
    wide = [dataclasses.replace(call, options=call.options | {"num_hiddens": WIDTH}) for call in planted.CALLS]
    return [Setting(*call.made(dtype), style) for call in sorted([*wide, *MORE], key=lambda call: call.nan)]


def coarse(form: Form, dtype: str) -> bool:
    """Return whether a form of rounding keeps fewer bits than the layer's dtype, so that it is a mistake."""
    words = f"{form.mistake.name} {form.how}"
    return "int8" in words or (dtype == "float16" and "bfloat16" in words)


def title(form: Form) -> str:
    """Return the name of a mistake with its form."""
    return f"{form.mistake.name}{': ' * bool(form.how)}{form.how}"


def moved(form: Form, setting: Setting) -> float:
    """Return how far a form moves the output in float64, by a right port's rounding; 0 if it is impossible."""
    with np.errstate(all="ignore"):
        plan = form.change(setting.wide)
    if plan is None or form.change(setting.narrow) is None or equal_plans(plan, setting.wide):
        return 0.0
    return apart(compute(plan), setting.exact) / setting.rounding


def place(form: Form, settings: Sequence[Setting]) -> Setting | None:
    """Find the first call in which a form shows clearly, or else the one in which it shows most; None if in none."""
    found, most = None, LEAST
    for setting in settings:
        if most < CLEAR and (size := moved(form, setting)) > most:
            found, most = setting, size
    return found


def catalogue_cases(
    dtype: str, style: str, nowhere: list[str] | None = None, among: Sequence[Setting] | None = None
) -> Iterator[Case]:
    """Plant each form of the catalogue where it shows.

    nowhere: a list for the forms that show in no call; among: settings whose right ports are the same; None = all such.
    """
    able = [setting for setting in settings(dtype, style) if setting.right_ratio <= 1] if among is None else among
    for form in (*FORMS, *(form for form in forms_of(ROUNDINGS) if coarse(form, dtype))):
        setting = place(form, able)
        if setting is not None:
            with np.errstate(all="ignore"):
                output = compute(form.change(setting.narrow), style)
            yield setting.case(title(form), output, form.mistake.name)
        elif nowhere is not None:
            nowhere.append(title(form))


# Tables


def small_table(console: Console, dtype: str, style: str, seeds: Sequence[int], long: int) -> None:
    """Print how many of the small mistakes are noticed; long: for so many of the seeds, in 512 tokens, too."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    calls = [(seed, Q) for Q, own in ((64, seeds), (512, seeds[:long])) for seed in own]
    for seed, Q in track(calls, console=console, transient=True):
        for case in small_cases(seed, dtype, style, Q):
            found.setdefault((Q, case.name), []).append((case.ratio(), case.size))
    table = Table("small mistake", "Q", "calls", "noticed", "median ratio", "largest", "times rounding")
    for (Q, name), results in found.items():
        ratios, sizes = zip(*results, strict=True)
        numbers = statistics.median(ratios), max(ratios), statistics.median(sizes)
        noticed = sum(ratio > 1 for ratio in ratios)
        table.add_row(name, str(Q), str(len(ratios)), f"{noticed / len(ratios):.0%}", *(f"{X:.2f}" for X in numbers))
    console.print(table)


def catalogue_table(console: Console, dtype: str, style: str, naming: bool) -> None:
    """Print how many forms of the catalogue are noticed, and named if that is asked for; then those that are not."""
    every = settings(dtype, style)
    same = [setting for setting in every if setting.right_ratio <= 1]
    worst = max(setting.right_ratio for setting in same)
    console.print(f"no mistake: {len(same)} of {len(every)} calls are the same, with ratios up to {worst:.2f}")
    for setting in set(every) - set(same):
        console.print(f"  left out, ratio {setting.right_ratio:.2f}: {setting.layer.config} {setting.call}")
    missing: list[str] = []
    table = Table("form that is not noticed" + " or not named first" * naming, "ratio", "times rounding", "named")
    counts: dict[str, list[tuple[bool, bool, bool]]] = {"the catalogue": [], "coarse rounding": []}
    of_rounding = {mistake.name for mistake in ROUNDINGS}
    cases = catalogue_cases(dtype, style, missing, same)
    for case in track(cases, console=console, transient=True):
        ratio = case.ratio()
        answer = case.answer() if naming and ratio > 1 else ""
        result = ratio > 1, answer.startswith("1"), answer.startswith("perhaps 1")
        counts["coarse rounding" if case.mistake in of_rounding else "the catalogue"].append(result)
        if ratio <= 1 or (naming and not result[1]):
            table.add_row(case.name, f"{ratio:.2f}", f"{case.size:.2f}", answer)
    console.print(table)
    for which, results in counts.items():
        noticed, first, perhaps = (f"{sum(each)} ({np.mean(each):.1%})" for each in zip(*results, strict=True))
        words = f"; named first {first}, perhaps {perhaps}" if naming else ""
        console.print(f"{which}: {len(results)} forms, noticed {noticed}{words}")
    console.print(f"not counted, impossible or less than {LEAST:.0%} of rounding in all calls: {len(missing)}")
    console.print("; ".join(missing))
    fine = [title(form) for form in forms_of(ROUNDINGS) if not coarse(form, dtype)]
    console.print("not counted, right in this precision: " + "; ".join(fine))


def main(
    dtype: Annotated[str, typer.Option(help="bfloat16 or float16.")] = "bfloat16",
    style: Annotated[str, typer.Option(help=f"What a port rounds: {', '.join(STYLES)}.")] = "fused",
    seeds: Annotated[tuple[int, int], typer.Option(help="The first and last seed of small mistakes.")] = (0, 19),
    long: Annotated[int, typer.Option(help="Seeds that have a call of 512 tokens, too.")] = 2,
    table: Annotated[str, typer.Option(help="small, catalogue or both.")] = "both",
    naming: Annotated[bool, typer.Option("--named", help="Count also what is named first; this takes long.")] = False,
) -> None:
    """Count the mistakes that are noticed, and named, in half precision."""
    console, start = Console(width=120), time.perf_counter()
    console.print(f"{dtype}, {style}")
    if table in ("small", "both"):
        small_table(console, dtype, style, range(seeds[0], seeds[1] + 1), long)
    if table in ("catalogue", "both"):
        catalogue_table(console, dtype, style, naming)
    console.print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    typer.run(main)
