"""Find another call than the one that was described: the arguments with which theirs would be the same.

A few queries tell which calls are near; what is near is computed in all of them.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mha.core.call import PACKED, PLACES, ROWS, Call
from mha.core.options.config import numpy_dtype
from mha.core.tables import few
from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.mistakes.equivalent_masks import only_hides
from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, forms_of
from mha.parity.diagnosis.mistakes.of_softmax import divide_by_nothing, fill_hidden
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.diagnosis.pipeline.parts import PART_OF, PARTS, compute
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan, equal_plans, hiding_fields, make_plan
from mha.parity.diagnosis.search.sample import Focus, features_of, ratios
from mha.parity.diagnosis.search.verdicts import NOISE, SURE, Judge, apart, floor
from mha.parity.rule.layouts import GRADIENT
from mha.parity.rule.problem import Expected, Problem, problem
from mha.parity.rule.rules import fraction

FEW = 8  # queries with the largest errors, and as many at the end
WORK = 2e9  # numbers to read for all values of an argument, at most
EARLY = ("q", "k", "v")  # parts that no argument of a call changes, but for the rotation
SWAPPED = "samples and tokens are swapped"
SWAPPED_EFFECT = "attention goes over the first axis, as of PyTorch's layer without batch_first"
SWAPPED_FIX = "attend over the second axis: batch_first=True, or swap the first two axes of what comes in"
# The results of ports for a query that sees no key.
EMPTY: dict[str, Change] = {
    "0": lambda plan: plan, "NaN": divide_by_nothing, "mean": partial(fill_hidden, -np.inf, False)
}  # fmt: skip


class Near:
    """A few queries of a call with other arguments: how far theirs are from that, in each sample."""

    def __init__(self, asked: Problem, theirs: Mapping[str, Array], few: int = FEW) -> None:
        self.asked = asked
        late = {name: X for name, X in theirs.items() if PART_OF.get(name, "q") not in EARLY}
        self.rows, features = worst_rows(asked, late, few), features_of(asked, late)
        self.theirs = {name: X[:, self.rows] if X.ndim == 3 else X[:, :, self.rows] for name, X in late.items()}
        if "output" in late:
            self.theirs["output"] = self.theirs["output"][..., features]
        kind = np.float64 if asked.config.dtype == "float64" else np.float32
        rows: Any = self.rows
        blanked = not np.isfinite(asked.values).all()
        plan = replace(make_plan(asked, kind, rows=rows, features=features), blanked=blanked)  # which takes long
        results: dict[str, Array] = {}
        for part in ("q", "k", "v", "scores"):
            results[part] = np.ascontiguousarray(compute(part, plan, results)[1])
        shared = {part: plan.share(results[part], plan.heads // plan.groups) for part in ("k", "v")}
        self.plan, self.results = replace(plan, groups=plan.heads), results | shared
        self.limits = {name: 4 * asked.expected(name).limit for name in self.theirs}

    def to(self, call: Call) -> bool:
        """Return whether theirs are near to another call, in each sample of which rows count, one at least."""
        far = self.far(call)
        return not np.isnan(far).all() and not bool((far > 1).any())

    def far(self, call: Call) -> Array:
        """Return the largest error of each sample under another call, by 4 bounds, (B,); NaN where no row counts."""
        plan, results = replace(self.plan, **hiding_fields(call)), dict(self.results)
        turned = plan.frequencies is not None and not np.array_equal(plan.offsets, self.plan.offsets)
        steps: dict[str, Array] = {}
        for part in PARTS:
            if part not in results or (turned and part in ("q", "scores")):
                some, results[part] = compute(part, plan, results)
                steps |= some
        visible = plan.visible()  # (B, H, rows, K)
        rows = np.asarray(visible.any((1, 3))) | self.asked.empty_rows  # (B, rows)
        if self.asked.rows is not None:
            rows = rows & self.asked.rows[:, self.rows]
        worst = np.where(rows.any(1), 0.0, np.nan)  # (B,)
        for name, there in self.theirs.items():
            if name not in steps:
                continue
            counts = rows[..., None] if there.ndim == 3 else rows[:, None, :, None]
            counts = counts & visible if PART_OF[name] == "scores" else counts
            far = np.where(counts & (there != steps[name]), np.abs(there - steps[name]), 0)
            far = np.nan_to_num(far, nan=np.inf).reshape(len(far), -1).max(1, initial=0.0) / self.limits[name]
            worst = np.maximum(worst, far)
        return worst

    def best(self, call: Call, name: str, values: list[int]) -> Array | None:
        """Find for each sample the first of the values that are nearest; None if any sample has none that is near."""
        B, k, v = self.asked.sizes.B, self.results["k"], self.results["v"]
        if not B or len(values) * (k.size + v.size) > WORK:
            return None
        column = (B, 1) if name == "offset" else (B,)
        far = np.stack([self.far(call._replace(**{name: np.full(column, value)})) for value in values])  # (values, B)
        far = np.where(np.isnan(far), np.inf, far)
        nearest = far <= np.maximum(3 * far.min(0), 0.05)
        return np.array(values)[nearest.argmax(0)] if (far.min(0) <= 1).all() else None


def worst_rows(asked: Problem, theirs: Mapping[str, Array], few: int) -> Array:
    """Choose a few queries: those with the largest errors in theirs, and as many at the end."""
    Q = asked.sizes.Q
    if 2 * few >= Q:
        return np.arange(Q)
    far = np.zeros(Q)
    for name, X in theirs.items():
        distance = np.nan_to_num(np.abs(asked.blank_unused(name, X) - asked.expected(name).X), nan=np.inf)
        far = np.maximum(far, distance.max((0, 2) if X.ndim == 3 else (0, 1, 3)) / asked.expected(name).limit)
    return np.unique([*np.argsort(-far, kind="stable")[:few], *range(Q - few, Q)])


class OtherCall(NamedTuple):
    """Another call; arguments: the different ones, by name; words: the same, as one writes them."""

    arguments: dict[str, Any]
    words: str

    def join(self, other: "OtherCall") -> "OtherCall":
        """Join the changes of two calls."""
        return OtherCall(self.arguments | other.arguments, ", ".join(filter(None, [self.words, other.words])))


AS_IT_IS = OtherCall({}, "")


@np.errstate(all="ignore")
def likely_calls(asked: Problem, theirs: Mapping[str, Array]) -> OtherCall | None:
    """Find a call that explains theirs, of those in which an argument was left out or the mask means something else.

    theirs: in the compared shapes.
    """
    if not may_explain(asked, theirs):
        return None
    near, orders = Near(asked, theirs), [AS_IT_IS]
    if not asked.call.causal and (asked.config.window is None or asked.config.window[1] is None):
        orders.append(OtherCall({"causal": True}, "causal=True"))  # else a window says how far queries look ahead
    for order, mask in itertools.product(orders, [AS_IT_IS, *masks(asked)]):
        other = mask.join(order)
        if other.words and near.to(asked.call._replace(**other.arguments)) and explains(asked, other, theirs):
            return other
    near, without = Near(asked, theirs, 1), [OtherCall({"mask": None}, "mask=None")] * (asked.call.mask is not None)
    for base in [*orders, *without]:
        for added in (with_offsets(near, base, asked.sizes.K - asked.sizes.Q), with_lengths(near, base)):
            if added is not None and explains(asked, added, theirs):
                return added
    return None


@np.errstate(all="ignore")
def unlikely_calls(asked: Problem, theirs: Mapping[str, Array], known: bool) -> OtherCall | None:
    """Find a call that explains theirs in which an argument that was given is left out, or is another offset.

    known: whether a mistake explains theirs, too; then no offsets are tried that no cache has.
    """
    if not may_explain(asked, theirs):
        return None
    given = [*asked.call.nondefaults(), *["causal"] * asked.call.causal]
    pairs = [PACKED, PLACES] if asked.call.is_packed() else []  # of which one alone is refused
    for name in given:
        left_out = next((pair for pair in pairs if name in pair), (name,))
        words = ", ".join(f"{one}={ROWS[one].default}" for one in left_out)
        other = OtherCall({one: ROWS[one].default for one in left_out}, words)
        if explains(asked, other, theirs):
            return other
    if known and "offset" not in given:
        return None
    moved = with_offsets(Near(asked, theirs, 1), AS_IT_IS, None)
    return moved if moved is not None and explains(asked, moved, theirs) else None


@np.errstate(all="ignore")
def tokens_alone(asked: Problem, theirs: Mapping[str, Array]) -> Array | None:
    """Return which queries are no padding, (B, Q), if theirs differ in padding alone; None if not.

    In self-attention a query is padding where no query sees the key at its place.
    """
    tokens = np.asarray(asked.visible.any((1, 2)))  # (B, K)
    said = asked.rows is not None or asked.empty_rows
    if said or not asked.one_input or tokens.all() or not (tokens & asked.rows_that_count).any():
        return None
    described = replace(asked, rows=tokens)
    for name in (name for name in theirs if name in PART_OF):
        right = asked.expected(name)
        if right.ratio(np.where(described.matters(name), asked.blank_unused(name, theirs[name]), right.X)) > 1:
            return None
    return tokens


@np.errstate(all="ignore")
def over_samples(asked: Problem, output: Array) -> Expected | None:
    """Return the expected output if queries see the other samples, not the other tokens; None if theirs is not that.

    output: theirs, (B, Q, D). It is tried where nothing hides keys, and all queries count.
    """
    sizes, call = asked.sizes, asked.call
    if sizes.B == 1 or sizes.Q != sizes.K or call.nondefaults() or call.hides() or not asked.rows_that_count.all():
        return None
    queries, keys, values = (X.swapaxes(0, 1) for X in (asked.queries, asked.keys, asked.values))  # (T, B, any)
    found = problem(asked.layer, queries, keys, values, {"causal": False}, angles=asked.angles).outputs()
    oracle, base = (X.swapaxes(0, 1) for X in found)  # (B, Q, D)
    expected = Expected.of(asked.config.dtype, oracle, base)
    return expected if expected.ratio(output) <= 1 else None


def may_explain(asked: Problem, theirs: Mapping[str, Array]) -> bool:
    """Return whether another call can explain theirs: all clear differences come after the rotation."""
    steps = {name: X for name, X in theirs.items() if name in PART_OF}
    far = ratios(asked, steps)
    early = (name for name in steps if PART_OF[name] in EARLY and not name.startswith("rotate"))
    return max(far.values(), default=0.0) >= SURE and all(far[name] <= 1 for name in early)


def masks(asked: Problem) -> Iterator[OtherCall]:
    """Yield the other meanings of a mask: its inverse, one of keys instead of pairs, its transpose."""
    mask, sizes = asked.call.mask, asked.sizes
    if mask is None:
        return
    readings = {"mask": mask}
    if mask.shape == (sizes.B, sizes.K):
        readings["mask[:, None]"] = mask[:, None]
    if mask.shape[-2:] == (sizes.K, sizes.Q):
        readings["mask.T" if mask.ndim == 2 else "mask.swapaxes(-1, -2)"] = mask.swapaxes(-1, -2)
    for words, X in readings.items():
        for inverted in (False, True):
            if inverted or words != "mask":
                yield OtherCall({"mask": ~X if inverted else X}, f"mask={'~' * inverted}{words}")


def with_offsets(near: Near, base: OtherCall, most: int | None) -> OtherCall | None:
    """Add the offset of each sample to a call, of those from 1 to `most` where none was given; None = any.

    That by which the last query sees the last key is tried first.
    """
    asked = near.asked
    call, sizes = asked.call._replace(**base.arguments), asked.sizes
    moves = call.causal or call.plan.window or call.plan.chunk or asked.config.rotary
    if not moves or call.positions is not None or (most is not None and (most < 1 or np.any(call.offset))):
        return None
    last = sizes.K - sizes.Q
    values = range(1, most + 1) if most is not None else range(-sizes.Q, 2 * sizes.K + 1)
    found = near.best(call, "offset", [last, *sorted((v for v in values if v != last), key=abs)])
    if found is None:
        return None
    if len(set(found.tolist())) == 1:
        return base.join(OtherCall({"offset": int(found[0])}, f"offset={found[0]}"))
    return base.join(OtherCall({"offset": found}, f"offset={write_list(found)}"))


def with_lengths(near: Near, base: OtherCall) -> OtherCall | None:
    """Add the length of each sample to a call where none were given, the longest first; not all are whole."""
    call, K = near.asked.call._replace(**base.arguments), near.asked.sizes.K
    if call.valid_lens is not None:
        return None
    found = near.best(call, "valid_lens", list(range(K, 0, -1)))
    if found is None or (found == K).all():
        return None
    return base.join(OtherCall({"valid_lens": found}, f"valid_lens={write_list(found)}"))


def write_list(values: Array) -> str:
    """Write the first of the values of samples as a list."""
    return f"[{', '.join(few([*map(str, values.tolist())]))}]"


def explains(asked: Problem, other: OtherCall, theirs: Mapping[str, Array]) -> bool:
    """Return whether all steps are another call's by the rule, and one of them clearly not the described call's."""
    described, shown, dtype = call_with(asked, other.arguments), False, asked.config.dtype
    for name in (name for name in theirs if name in PART_OF):
        if name not in described.oracle:  # as there is no step of a bias without one
            return False
        there, expected = described.blank_unused(name, theirs[name]), described.expected(name)
        if expected.ratio(there) > 1:
            return False
        if "16" in dtype:  # its bounds are so wide that a similar call is within them
            plain = described.blank_unused(name, described.base[name])
            if fraction(apart(there, expected.X), floor(dtype, expected.X, plain)) > NOISE:
                return False
        both = described.matters(name) & asked.matters(name) & np.isfinite(there)  # NaN shows nothing
        right = asked.expected(name)
        shown |= right.ratio(np.where(both, there, right.X)) >= SURE
    return shown and without_keys(asked, described, theirs)


def without_keys(asked: Problem, described: Problem, theirs: Mapping[str, Array]) -> bool:
    """Return whether theirs is plausible for queries that see a key as described, but none in the other call.

    Ports give 0, NaN, or the mean of all values then.
    """
    rows = asked.rows_that_count & ~described.rows_that_count
    if not rows.any():
        return True
    steps = {name: X for name, X in theirs.items() if name in PART_OF}
    judge = Judge(replace(described, rows=rows, empty_rows=True), steps, Focus())
    unseen = Mistake("what is seen where nothing is", "", "", ("weights",), EMPTY)
    return any(judge.verdict_on((form,)).ratio <= 1 for form in forms_of([unseen]))


def call_with(asked: Problem, arguments: Mapping[str, Any]) -> Problem:
    """Return the same problem with other arguments of the call."""
    given = {name: X for name, X in asked.call.arguments().items() if name in ROWS} | dict(arguments)
    inputs = asked.queries, asked.keys, asked.values
    made = problem(asked.layer, *inputs, given, asked.cotangent, asked.rows, asked.empty_rows, asked.angles)
    return with_rounding(made)


def describe_call(asked: Problem, other: OtherCall, theirs: Mapping[str, Array]) -> str:
    """Describe the call that explains theirs, known mistakes that look the same, and gradients that differ even so."""
    words = f"the same, if it was called with {other.words}"
    if alike := twins(asked, other):
        words += f"; or, in the port: {'; or '.join(alike)}"
    described = call_with(asked, other.arguments)
    gradients = {name: X.astype(np.float64) for name, X in theirs.items() if name.startswith(GRADIENT)}
    if different := [name for name, X in gradients.items() if described.expected(name).ratio(X) > 1]:
        words += f"; but these differ even so: {', '.join(different)}"
    return words


def twins(asked: Problem, other: OtherCall) -> list[str]:
    """Name the known mistakes by which the described call would see what another call sees, those of one plan once."""
    plan = make_plan(asked, numpy_dtype(asked.config.dtype))
    wanted = replace(plan, **hiding_fields(call_with(asked, other.arguments).call))
    if plan.frequencies is not None and not np.array_equal(plan.offsets, wanted.offsets):
        return []
    visible, found = wanted.visible(), dict[str, Plan]()
    for form in FORMS:
        made = form.change(plan) if form.mistake.parts == ("weights",) else None
        changed = made is not None and only_hides(made, plan) and not equal_plans(made, plan)
        if made is None or not changed or any(equal_plans(made, one) for one in found.values()):
            continue
        if np.array_equal(made.visible(), visible):
            found[f"{form.mistake.name}{f' ({form.how})' * bool(form.how)}"] = made
    return [*found]
