"""Go through two records step by step: is what enters and leaves each module in B what A's explains, up to rounding?"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from mha.parity.records import flows, growth
from mha.parity.records.contents import Record
from mha.parity.records.flows import Flow
from mha.parity.records.pairs import Matcher, Pair
from mha.parity.records.units import Step

VerdictName = Literal["same", "differs", "not told"]
BLIND = 0.5  # where a bound is so much of an array, nothing can be told
FAR = 0.3  # where an array differs by so much, nobody would call it the same
MASKED = -1e4  # a number below it hides, and is in no sum
EARLIER = 48  # arrays that what enters a module may be made of
TURNING = ("rot", "rope")  # in the classes of modules that make angles of positions


@dataclasses.dataclass(frozen=True, eq=False)
class StepRow:
    """What entered or left one module in one call: how far B is from A, and how far rounding may carry it.

    path, other: of the module in A and in B; what: "input" or "output"; call: the number of A's call of the model;
    far: the largest root mean square of the difference of a row, by that of A; bound: by the same; ratio: difference by
    bound, of the worst row: the same if at most 1; note: further words; after: the path of the module before it.
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


@dataclasses.dataclass(frozen=True, eq=False)
class Earlier:
    """An array of A that came before: its name for readers, its pair, and the container in which it was made."""

    name: str
    pair: Pair
    parent: str | None


class Stepper:
    """Judges the steps of one unit in their order; trusted: paths of B's layers that the oracle has found right."""

    def __init__(self, a: Record, b: Record, trusted: Mapping[str, bool]) -> None:
        self.a, self.b, self.trusted = a, b, trusted
        self.matcher = Matcher(a, b)
        self.earlier: dict[tuple[int, ...], Earlier] = {}

    def row(self, step: Step) -> StepRow | None:
        """Judge a step; None if there is nothing to compare, or if it is the array of the step before."""
        pair = self.matcher.pair(step.a, step.b, step.what)
        if pair is None:
            return None
        if isinstance(pair, str):
            alone = len(step.a) == len(step.b) == 1
            return self.made(step, None, np.inf, f"the {step.what} {pair}") if alone else None
        known = self.earlier.get(pair.where[0])
        known = known if known is not None and known.pair.a.size == pair.a.size else None
        if known is not None and known.pair.where[1] == pair.where[1]:
            return None
        note = ""
        if known is not None:  # in A it is the array of an earlier step
            flow = Flow("sum", (0,), (1.0,))
            far, most = flows.judged(pair, flow, [known.pair])
            note = f"in A it is {known.name}" if self.exceeds(far, most) else ""
        elif step.what == "output" and step.visit.leaf:
            far, most = pair.far, self.of_module(step, pair)
        else:
            far, most, note = self.between(step, pair)
        if known is None:
            name = f"the {step.what} of {step.visit.path or 'the model'}"
            parent = step.visit.path if step.what == "input" and not step.visit.leaf else step.visit.parent
            self.earlier[pair.where[0]] = Earlier(name, pair, parent)
        told = np.isfinite(most)  # of other rows, nothing is
        if len(told) and not told.any():
            return None
        ratios = np.divide(far, most, out=np.where(far > 0, np.inf, 0.0), where=(most > 0) & told)
        ratio = float(ratios[told].max(initial=0.0))
        if self.right(step):
            return self.made(step, pair, min(ratio, 1.0), "", most, True)
        return self.made(step, pair, ratio, note if ratio > 1 else "", most)

    def right(self, step: Step) -> bool:
        """Whether what is computed there is attention that the oracle has found right."""
        if step.what == "output" and step.visit.leaf:
            return self.trusted.get(step.other.path, False)
        parent = step.other.parent or ""
        return any(good and inside(parent, path) for path, good in self.trusted.items())

    @staticmethod
    def exceeds(far: np.ndarray, most: np.ndarray) -> bool:
        """Whether some row is further than it may be."""
        return bool((far > most).any())

    def made(
        self,
        step: Step,
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

    def of_module(self, step: Step, pair: Pair) -> np.ndarray:
        """How far the output of a module may be, by its inputs."""
        inputs = self.matcher.pair(step.a, step.b, "input")
        count = min(len(step.visit.inputs), len(step.other.inputs))
        others, furthest, chosen = 0.0, 0.0, np.zeros(len(pair.far), bool)
        for at in range(1, count):
            other = self.matcher.pair(step.a, step.b, "input", at)
            if not isinstance(other, Pair) or not other.a.size:
                continue
            if other.floats and other.a.min() > MASKED:
                others = max(others, other.relative)
            elif other.a.dtype.kind in "iu":
                furthest = max(furthest, float(other.a.max()))
                if len(other.far) == len(chosen):
                    chosen |= other.far > 0  # other experts, say
        kind = self.a.modules[step.visit.path]["class"].lower()
        if furthest and any(word in kind for word in TURNING):  # of positions alone: of the rest it takes the dtype
            most = growth.allowed(pair, None, 0.0, furthest)
        else:
            most = growth.allowed(pair, inputs if isinstance(inputs, Pair) else None, others)
        return np.where(chosen, np.inf, most)

    def between(self, step: Step, pair: Pair) -> tuple[np.ndarray, np.ndarray, str]:
        """How far what enters a module is, or leaves a container, from what it is made of, and how far it may be."""
        earlier = list(self.earlier.values())
        if not earlier:
            return pair.far, growth.OWN * pair.unit * pair.size, "what the model was called with differs"
        recent = [one for one in earlier if one.pair.floats][-EARLIER:]
        if pair.floats:
            flow = flows.flow_of(pair.a, pair.unit, [one.pair.a for one in recent])
            if flow is not None:
                sources = [recent[at] for at in flow.sources]
                far, most = flows.judged(pair, flow, [one.pair for one in sources])
                said = f"in A it is {flow.said([one.name for one in sources])}"
                if self.exceeds(far, most):
                    said += self.instead(pair, recent)
                return far, most, said
        own = (step.visit.path if step.what == "output" else step.visit.parent) or ""
        near = [one for one in earlier if one.pair.floats and one.parent is not None and one.parent == own]
        near = near or [one for one in earlier if one.pair.floats and inside(one.parent or "", own)][-8:]
        others = max((one.pair.relative for one in near or recent[-1:]), default=0.0)
        unit = max([pair.unit, *(one.pair.unit for one in near)])
        return pair.far, (growth.UNKNOWN * unit + growth.OTHERS * others) * pair.size, ""

    def instead(self, pair: Pair, recent: Sequence[Earlier]) -> str:
        """What it is in B, if that is found, too."""
        flow = flows.flow_of(pair.b, pair.unit, [one.pair.b for one in recent])
        return "" if flow is None else f"; in B it is {flow.said([recent[at].name for at in flow.sources])}"


def inside(path: str, other: str) -> bool:
    """Whether a path is another one, or inside of it."""
    return path == other or path.startswith(f"{other}." if other else "")
