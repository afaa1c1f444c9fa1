"""Go through two records step by step: does A explain each input and output of B, up to rounding?"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from mha.models.records import flows
from mha.models.records.doubts import FAR, Doubt, EarlierArray, Reader
from mha.models.records.flows import Flow, relation_of
from mha.models.records.pairs import Matcher, Pair, mean_square
from mha.models.records.units import ModuleStep
from mha.parity.rule.rules import UNIT

VerdictName = Literal["same", "differs", "not told", "another cut"]
BLIND = 0.5  # where a bound is so much of an array, nothing can be told
MASKED = -1e4  # a number below it hides, and is in no sum
EARLIER = 48  # arrays that what enters a module may be made of
TURNING = ("rot", "rope")  # in the classes of modules that make angles of positions
OWN = 8.0  # units of rounding that a module may add
GROWN = 3.0  # times as much as A's rows show, a difference may grow
FEATURES = 64  # with fewer, a row's mean varies more, as in `mha.parity.rule.rules`
OTHERS = 8.0  # times the relative difference of its other inputs, or of what it may be made of
UNKNOWN = 32.0  # units of rounding of what is computed in a way that is not known, such as attention
TRIED_ROWS = 128  # pairs of rows


@dataclasses.dataclass(frozen=True, eq=False)
class StepRow:
    """An input or output of one module in one call: how far B is from A, and how far rounding may carry it.

    Attributes:
        path, other: of the module in A and in B.
        what: "input" or "output".
        call: the number of A's call of the model.
        far: the largest root mean square of the difference of a row, by that of A.
        bound: of it, by the same.
        ratio: difference by bound, of the worst row: the same if at most 1.
        verdict: "same", "differs", "not told" or "another cut".
        note: further words.
        leaf: whether the module calls no other one.
    """

    path: str
    other: str
    what: Literal["input", "output"]
    call: int
    far: float
    bound: float
    ratio: float
    verdict: VerdictName
    note: str = ""
    leaf: bool = False


class Judgement(NamedTuple):
    """The judgement of a step."""

    far: np.ndarray  # how far its rows are from what they should be, (N,)
    most: np.ndarray  # how far they may be, (N,)
    carried: np.ndarray  # how far rounding carries them from A's, about
    note: str  # what they should be, in words
    doubts: Sequence[Doubt]  # the steps it is computed from that differ
    certain: bool  # whether it is known to be computed from them


@dataclasses.dataclass
class StepFacts:
    """The facts about two records before their steps are judged."""

    matcher: Matcher  # of their arrays
    trusted: Mapping[str, bool]  # by path, whether the oracle finds B's attention layer right
    partners: Collection[str]  # paths of A's modules that are compared
    flows: dict[ModuleStep, Flow | None] = dataclasses.field(default_factory=dict)  # that were looked for


class Stepper:
    """The judge of the steps of one unit, in their order: `found` has the row of each, and its doubt if it differs.

    real: steps that are known to be a difference; others that differ are supposed to be another cut.
    """

    def __init__(self, facts: StepFacts, real: Collection[ModuleStep] = ()) -> None:
        self.facts, self.matcher, self.real = facts, facts.matcher, real
        self.found: list[tuple[StepRow, Doubt | None]] = []
        self.views: dict[Any, EarlierArray] = {}  # by the numbers of both arrays
        self.earlier: dict[tuple[int, ...], EarlierArray] = {}  # by A's: the first, or the first that agrees
        self.doubts: list[Doubt] = []

    def add(self, step: ModuleStep) -> None:
        """Judge a step, unless there is nothing to compare, or it is the array of a step before."""
        pair = self.matcher.pair(step.a, step.b, step.what)
        if pair is None:
            return
        visit, leaves = step.visit, step.what == "output"
        here = self.container(visit.path if leaves and not visit.leaf else visit.parent)
        seen_in = set() if visit.leaf and not leaves else {self.container(visit.parent if leaves else visit.path)}
        if isinstance(pair, str):
            if len(step.a) == len(step.b) == 1:
                row = self.make_row(step, None, np.inf, f"the {step.what} {pair}")
                self.found.append((row, self.add_doubt(step, None, seen_in)))
            return
        before = self.of_array(pair.where[0], here)
        for one in before:
            one.scopes |= seen_in
        if (same := self.views.get(pair.where)) is not None:
            same.scopes |= seen_in
            self.read([] if same.doubt else before, None, pair.relative, True)
            return
        judgement = self.judge_step(step, pair, here)
        ratios = np.divide(
            judgement.far, judgement.most, out=np.where(judgement.far > 0, np.inf, 0.0), where=judgement.most > 0
        )
        is_bounded = np.isfinite(judgement.most)  # of other rows, nothing is
        ratio, right = float(ratios[is_bounded].max(initial=0.0)), self.right(step)
        doubt = self.add_doubt(step, pair, seen_in) if ratio > 1 and not right else None
        if doubt is not None or ratio <= 1:
            bound = max(pair.relative, dataclasses.replace(pair, far=judgement.most).relative)
            self.read(judgement.doubts, doubt, bound, judgement.certain)
        name = f"the {step.what} of {visit.path or 'the model'}"
        view = self.views[pair.where] = EarlierArray(name, pair, judgement.carried, seen_in, doubt)
        first = self.earlier.setdefault(pair.where[0], view)
        if first.doubt is not None and doubt is None:
            self.earlier[pair.where[0]] = view
        if is_bounded.any() or not len(is_bounded):
            ratio = min(ratio, 1.0) if right else ratio
            self.found.append(
                (self.make_row(step, pair, ratio, judgement.note if ratio > 1 else "", judgement.most, right), doubt)
            )

    def add_doubt(self, step: ModuleStep, pair: Pair | None, scopes: set[str]) -> Doubt:
        """Doubt a step that differs."""
        real = step in self.real
        if pair is None:
            doubt = Doubt(step, (), scopes, np.inf, real, lambda: "")
        else:
            sources = [one.pair for one in self.recent()]
            doubt = Doubt(step, pair.where[0], scopes, pair.relative, real, lambda: relation_of(pair, sources))
        self.doubts.append(doubt)
        return doubt

    def recent(self) -> list[EarlierArray]:
        """Return the last arrays of floats that came before."""
        return [one for one in self.earlier.values() if one.pair.floats][-EARLIER:]

    def of_array(self, key: tuple[int, ...], here: str) -> list[Doubt]:
        """Return the doubts of an array of A in a container, if it is not the same there."""
        first = self.earlier.get(key)
        if first is not None and first.doubt is None and here in first.scopes:
            return []
        return [one for one in self.doubts if one.key == key and here in one.scopes]

    @staticmethod
    def read(doubts: Sequence[Doubt], by: Doubt | None, bound: float, certain: bool) -> None:
        """Note the result of a step that reads these: its doubt, or the bound of what it may differ."""
        for one in doubts:
            one.readers.append(Reader(by, bound, certain))

    def container(self, path: str | None) -> str:
        """Return the path of a module that is compared, or of the nearest one around it."""
        while path and path not in self.facts.partners:
            path = re.split(r"[./][^./]*$", path)[0] if re.search(r"[./]", path) else ""
        return path or ""

    def right(self, step: ModuleStep) -> bool:
        """Whether a step is computed by attention that the oracle finds right."""
        if step.what == "output" and step.visit.leaf:
            return self.facts.trusted.get(step.other.path, False)
        parent = step.other.parent or ""
        return any(good and is_inside(parent, path) for path, good in self.facts.trusted.items())

    def make_row(
        self,
        step: ModuleStep,
        pair: Pair | None,
        ratio: float,
        note: str,
        most: np.ndarray | None = None,
        right: bool = False,
    ) -> StepRow:
        """Make the row of a step; right: as the oracle says."""
        far = bound = np.inf
        if pair is not None and most is not None:
            some = (pair.size > 0) & np.isfinite(most)
            far = float((pair.far[some] / pair.size[some]).max(initial=0.0))
            bound = float(np.median(most[some] / pair.size[some])) if some.any() else 0.0
        blind = (bound > BLIND or far > FAR) and not right
        verdict: VerdictName = "differs" if ratio > 1 else "not told" if blind else "same"
        return StepRow(
            step.visit.path, step.other.path, step.what, step.a[0].call.number, far, bound, ratio, verdict, note,
            step.visit.leaf,
        )  # fmt: skip

    def judge_step(self, step: ModuleStep, pair: Pair, here: str) -> Judgement:
        """Judge an input or output of a module; here: the container in which it is computed."""
        first = self.earlier.get(pair.where[0])
        if first is not None and first.pair.a.size == pair.a.size:  # in A, that array
            return self.of_flow(pair, Flow("sum", (0,), (1.0,)), [first], here)
        if step.what == "output" and step.visit.leaf:
            return self.of_module(step, pair)
        return self.between(step, pair, here)

    def of_flow(self, pair: Pair, flow: Flow, sources: Sequence[EarlierArray], here: str) -> Judgement:
        """Judge an array that is made of earlier ones of B, or of A's where B cuts elsewhere."""
        doubts = [doubt for one in sources for doubt in self.of_array(one.pair.where[0], here)]
        far, most, sizes = flows.compare_flow(pair, flow, [one.pair for one in sources])
        theirs = sum(one.relative for one in sources) * sizes
        note = f"in A it is {flow.describe([one.name for one in sources])}"
        if any(one.is_other_cut for one in sources):
            for one in sources:
                if one.doubt is not None and not (far > most).any():
                    one.doubt.used_as_is = True
            far, most = pair.far, most + GROWN * theirs
        return Judgement(far, most, most + theirs, note, doubts, True)

    def of_module(self, step: ModuleStep, pair: Pair) -> Judgement:
        """Judge the output of a module by its inputs."""
        inputs = self.matcher.pair(step.a, step.b, "input")
        count = min(len(step.visit.inputs), len(step.other.inputs))
        others, furthest, chosen, doubts = 0.0, 0.0, np.zeros(len(pair.far), bool), []
        for at in range(1, count):
            other = self.matcher.pair(step.a, step.b, "input", at)
            if not isinstance(other, Pair) or not other.a.size:
                continue
            if other.floats and other.a.min() > MASKED:
                one = self.views.get(other.where)
                others = max(others, other.relative if one is None else one.relative)
                doubts += [one.doubt] if one is not None and one.doubt is not None else []
            elif other.a.dtype.kind in "iu":
                furthest = max(furthest, float(other.a.max()))
                if len(other.far) == len(chosen):
                    chosen |= other.far > 0  # other experts, say
        kind = self.matcher.a.modules[step.visit.path]["class"].lower()
        if furthest and any(word in kind for word in TURNING):  # of the rest it takes the dtype
            most = row_bounds(pair, None, 0.0, furthest)
        else:
            if isinstance(inputs, Pair) and (one := self.views.get(inputs.where)) is not None:
                if one.doubt is not None:
                    one.doubt.used_as_is = True
                    doubts.append(one.doubt)
                inputs = dataclasses.replace(inputs, far=one.far)
            most = row_bounds(pair, inputs if isinstance(inputs, Pair) else None, others)
        most = np.where(chosen, np.inf, most)
        return Judgement(pair.far, most, most / GROWN, "", doubts, True)

    def between(self, step: ModuleStep, pair: Pair, here: str) -> Judgement:
        """Judge the input of a module, or the output of a container, by the earlier arrays."""
        earlier = list(self.earlier.values())
        if not earlier:
            most = OWN * pair.unit * pair.size
            return Judgement(pair.far, most, 0 * most, "what the model was called with differs", [], True)
        recent = self.recent()
        if pair.floats:
            if step not in self.facts.flows:
                self.facts.flows[step] = flows.flow_of(pair.a, pair.unit, [one.pair.a for one in recent])
            if (flow := self.facts.flows[step]) is not None:
                found = self.of_flow(pair, flow, [recent[at] for at in flow.sources], here)
                if (found.far > found.most).any():  # then it is said how it is made in B, if that is found
                    own = flows.flow_of(pair.b, pair.unit, [one.pair.b for one in recent])
                    if own is not None:
                        names = [recent[at].name for at in own.sources]
                        return found._replace(note=f"{found.note}; in B it is {own.describe(names)}")
                return found
        near = [one for one in earlier if one.pair.floats and here in one.scopes]
        near = near or [one for one in earlier if one.pair.floats and any(is_inside(X, here) for X in one.scopes)][-8:]
        others = max((one.relative for one in near or recent[-1:]), default=0.0)
        unit = max([pair.unit, *(one.pair.unit for one in near)])
        most = (UNKNOWN * unit + OTHERS * others) * pair.size
        return Judgement(pair.far, most, most / OTHERS, "", [one for one in self.doubts if here in one.scopes], False)


def is_inside(path: str, other: str) -> bool:
    """Whether a path is another one, or inside of it."""
    return path == other or path.startswith(f"{other}." if other else "")


# The error of the output of a module: its own rounding, and what it inherits from its input. A module whose rows are
# computed one by one shows in A alone how much it enlarges a difference: its rows differ, too.


def largest_growth(inputs: Pair, outputs: Pair) -> float:
    """Return how much a difference of A's input grows in its output at most."""
    if not inputs.floats or len(inputs.a) != len(outputs.a):
        size = float(inputs.size.max(initial=0.0))
        return float(outputs.size.max(initial=0.0)) / size if size and inputs.floats else 0.0
    N = len(inputs.a)
    into, out = inputs.size, outputs.size
    found = [float((out[into > 0] / into[into > 0]).max(initial=0.0))]
    if N > 1:
        random = np.random.default_rng(N)
        one = random.integers(N, size=TRIED_ROWS)
        other = (one + random.integers(1, N, size=TRIED_ROWS)) % N
        X, Y = (mean_square(Z.a[one].astype(np.float64) - Z.a[other].astype(np.float64)) for Z in (inputs, outputs))
        some = X / (1e3 * inputs.unit) > into[one]
        found.append(float((Y[some] / X[some]).max(initial=0.0)))
    return max(found)


def row_bounds(outputs: Pair, inputs: Pair | None, others: float, furthest: float = 0.0) -> np.ndarray:
    """Return the bound of the error of each row of an output, (N,).

    others: the largest relative difference of its other inputs; furthest: the largest position, if it is made of
    angles, which all ports compute in float32.
    """
    unit, size = outputs.unit, outputs.size
    found = (OWN * unit + OTHERS * others) * size + UNIT["float32"] * furthest
    if inputs is None:
        return found
    unit = max(unit, inputs.unit)
    found = found + OWN * (unit - outputs.unit) * size
    if not inputs.floats:
        wrong = inputs.far > 0
        if len(wrong) == len(size):
            return np.where(wrong, np.inf, found)
        return np.full_like(found, np.inf) if wrong.any() else found
    grows = max(largest_growth(inputs, outputs), np.finfo(float).tiny)
    if len(inputs.far) == len(size):
        far, into = inputs.far, inputs.size
    else:
        far, into = inputs.far.max(initial=0.0), inputs.size.max(initial=0.0)
    few = max(1.0, (FEATURES / max(1, min(inputs.a.shape[1], outputs.a.shape[1]))) ** 0.5)
    return np.nan_to_num(found + few * grows * (OWN * unit * into + GROWN * far), nan=np.inf)
