"""Find steps that are written another way, which later steps undo: other numbers, but the same computation.

Such as rotated queries and keys whose positions are all shifted by one number, queries and keys whose components are in
another order, a scale that is in the queries, and not in the scores, or scores from which the largest of each row is
taken.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha.core.options.config import score_options
from mha.core.tables import few, number
from mha.parity.diagnosis.pipeline.parts import PART_OF, PARTS, compute
from mha.parity.diagnosis.pipeline.pieces import Array, turn
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.layouts import FROM_SOFTMAX, OF_KEYS, OF_QUERIES, PAIRS, STEPS, kind
from mha.parity.rule.problem import Problem
from mha.parity.rule.relations import pairing_order
from mha.parity.rule.rules import error, fraction, largest

ROTATED = ("rotate_q", "rotate_k")
MORE = 2  # rows beyond the numbers that are fitted to them, at least
FACTOR, SHIFTED = "times ", "with a number added to each row"
HEADS, COMPONENTS = "with its heads in another order", "with the components of a head in another order"
PAIRS_OF = "neighbours for halves", "halves for neighbours"
ORDERS = HEADS, COMPONENTS, *(f"with {words}" for words in PAIRS_OF)
FEW = 64  # rows by which an order is found
CLEAR = 4.0  # bounds: a later step that would be so far away shows that theirs was not used


def undo_shifts(asked: Problem, taken: Mapping[str, Array], passed: Mapping[str, bool]) -> tuple[dict[str, Array], str]:
    """Rotate steps with shifted positions back: return them by name, {} if none is shifted, and a note.

    With padding on the left, some count positions from the first token on, others from the first place.
    taken: arrays by name, in the compared shapes; passed: whether each is the same, in the order of `trace`. One shift
    of queries and keys leaves the scores the same. It has to be that of both; where one of them alone is given, what
    comes after it has to tell.
    """
    given = [name for name in ROTATED if name in taken]
    if all(passed[name] for name in given):
        return {}, ""
    shifts = [shift_of(asked, name, taken[name]) for name in given]
    alike = all(np.array_equal(shifts[0], shift) for shift in shifts)
    rotary: Any = asked.config.rotary
    back = -shifts[0][:, None], np.array(rotary.angles()), rotary.interleaved
    turned = {name: turn(taken[name].astype(np.float64), *back) for name in given}
    fits = all(asked.expected(name).ratio(asked.blank_unused(name, X)) <= 1 for name, X in turned.items())
    after = next((passed[name] for name in passed if name in (*PAIRS, *FROM_SOFTMAX)), False)
    if not (alike and fits) or (len(given) == 1 and not after):
        return {}, ""
    by = ", ".join(few([*map(str, shifts[0])]))
    return turned, f"all positions of a sample are shifted by one number ({by}), no score is"


def shift_of(asked: Problem, name: str, X: Array) -> Array:
    """Find the shift of each sample, (B,), that comes nearest; of those that are equally near, the smallest."""
    rotary: Any = asked.config.rotary
    ours, theirs = (components(asked.blank_unused(name, Y), rotary) for Y in (asked.oracle[name], X))  # (B, H, T, n)
    given = [asked.call.offset, *(X for X in asked.call.position_ids().values() if X is not None)]
    far = max(asked.sizes.Q, asked.sizes.K) + max(int(np.abs(X).max(initial=0)) for X in given)
    shifts = np.array(sorted(range(-far, far + 1), key=abs))
    turns = np.exp(-1j * shifts[:, None] * np.array(rotary.angles()))  # (shifts, n)
    fits = (ours.conj() * theirs).sum((1, 2)) @ turns.T  # (B, shifts)
    return shifts[np.nan_to_num(fits.real).argmax(1)]


def components(X: Array, rotary: Any) -> Array:
    """Return the pairs of components that rotate together as complex numbers, (B, H, T, d) -> (B, H, T, n)."""
    n, X = len(rotary.angles()), X.astype(np.float64)
    if rotary.interleaved:
        return X[..., 0 : 2 * n : 2] + 1j * X[..., 1 : 2 * n : 2]
    return X[..., :n] + 1j * X[..., n : 2 * n]


class Way(NamedTuple):
    """A way in which a step is written, in words, and how far the step is from theirs then, by its bound."""

    how: str
    ratio: float

    @property
    def note(self) -> str:
        """Return the words beside a step that later ones undo."""
        return f"ours {self.how}, which later steps take back"


class Rewritten(NamedTuple):
    """Steps that are written another way, by name."""

    taken_back: dict[str, Way]  # later steps, or products of queries and keys, show that they have no effect
    open: dict[str, Way]  # nothing shows it, as nothing after them was given
    strange: dict[str, str]  # without effect, but written in no known way; with the step that shows it


NONE = Rewritten({}, {}, {})


@np.errstate(all="ignore")
def find_rewritten(asked: Problem, taken: Mapping[str, Array], passed: Mapping[str, bool]) -> Rewritten:
    """Find the steps that differ, and are written another way.

    taken: arrays by name, in the compared shapes; passed: whether each is the same, in the order of `trace`.
    """
    found = Rewritten({}, {}, {})
    if asked.sizes.slots is not None:  # the slots are a result, too
        return found
    steps = [name for name in passed if name in STEPS or name == "output"]
    for name in reversed(steps):
        if passed[name] or name not in taken or name == "output":
            continue
        after = steps[steps.index(name) + 1 :]
        later = next((one for one in after if follows(PART_OF[name], PART_OF[one])), None)
        right = later is None or passed[later] or later in found.taken_back
        scored = scored_steps(asked, taken)
        known = name in scored  # then the products of both decide
        way = way_of(asked, name, taken[name]) if right or known or name in PAIRS else None
        bent = asked.config.sinks or (name == "scores" and {*score_options(asked.config)} - {"pooling"})
        if way and way.how == SHIFTED and ((later and right) or not bent):
            found.taken_back[name] = way  # the softmax takes it back
        elif later and right and would_show(asked, name, taken[name], later):
            if way:
                found.taken_back[name] = way
            else:
                found.strange[name] = later
        elif known and (product := way_by_products(asked, taken, scored, way)):
            found.taken_back[name] = product
        elif way and later is None and not known and way.how.startswith((FACTOR, *ORDERS)):
            found.open[name] = way
    said = {**found.taken_back, **found.open, **found.strange}
    left = [name for name in steps if not passed[name] and name in taken and name not in said]
    for name in [*found.taken_back]:  # of a step that is wrong, this one is a consequence
        before = steps[: steps.index(name)]
        if any(one in before and follows(PART_OF[one], PART_OF[name]) for one in left):
            del found.taken_back[name]
    for name in [*found.taken_back]:  # weights are a result: their heads have the order of the steps before
        how = found.taken_back[name].how
        if name == "weights" and all(one == name or way.how != how for one, way in found.taken_back.items()):
            del found.taken_back[name]
    return found


def follows(part: str, after: str) -> bool:
    """Return whether a part of the computation is this one, or is computed from it."""
    return part == after or any(follows(part, one) for one in PARTS[after])


def would_show(asked: Problem, name: str, X: Array, later: str) -> bool:
    """Return whether a later step would differ clearly if it were computed from theirs."""
    if PART_OF[later] == PART_OF[name]:
        return True
    plan, handed = make_plan(asked, "float64"), dict[str, Array]()
    for part in PARTS:
        steps, handed[part] = compute(part, plan, handed)
        if part == PART_OF[name]:
            handed[part] = handed[part] + asked.blank_unused(name, X - asked.oracle[name])
        if later in steps:
            return asked.expected(later).ratio(asked.blank_unused(later, steps[later])) >= CLEAR
    return False


def way_by_products(asked: Problem, taken: Mapping[str, Array], scored: Sequence[str], way: Way | None) -> Way | None:
    """Return how scored queries or keys are written, if their products are the same; None if not."""
    pairs = []
    for arrays in (asked.oracle, taken):
        q, k = (arrays[name].astype(np.float64) for name in scored)
        pairs.append(q @ np.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(2, 3))  # (B, H, Q, K)
    right, there = (np.where(asked.pairs_that_count, X, 0) for X in pairs)
    scale = largest(asked.expected("scores").X) / largest(right) if right.any() else 0.0
    ratio = fraction(error(there, right) * scale, asked.expected("scores").limit)
    if ratio > 1:
        return None
    return Way(way.how if way else "in another basis", ratio)


def scored_steps(asked: Problem, taken: Mapping[str, Array]) -> list[str]:
    """Name the given steps of queries and of keys that have the numbers that are scored; [] if either is missing."""
    found: list[str] = []
    for names in (OF_QUERIES, OF_KEYS) if asked.config.pooling == "dot" else ():
        there = [name for name in asked.oracle if name in names]
        last = asked.oracle[there[-1]]
        found += [name for name in there if name in taken and np.array_equal(asked.oracle[name], last)][:1]
    return found if len(found) == 2 else []


def way_of(asked: Problem, name: str, X: Array) -> Way | None:
    """Find how a step is written; None if in no known way."""
    expected, counts = asked.expected(name), np.broadcast_to(asked.matters(name), X.shape)
    right, there = expected.X, np.where(counts, X.astype(np.float64), 0)
    if not np.isfinite(there).all() or not right.any() or not there.any():
        return None
    limit = expected.limit * max(1.0, largest(there) / largest(right))
    for how, made in ways(asked, name, right, there, counts):
        if (ratio := fraction(error(np.where(counts, made, 0), there), limit)) <= 1:
            return Way(how, ratio)
    return None


def ways(asked: Problem, name: str, right: Array, there: Array, counts: Array) -> Iterator[tuple[str, Array]]:
    """Yield the ways in which a step may be written, each with its words: scores (B, H, Q, K), or rows (B, H, T, d)."""
    for step, X in asked.oracle.items():
        if step != name and kind(step) == kind(name) and X.shape == right.shape and name != "weights":
            yield f"as {step} is", X
    factor = float((right * there).sum() / (right * right).sum())
    if name != "weights" and factor:
        yield f"{FACTOR}{number(factor)}", factor * right
    yield HEADS, right[:, nearest_rows(by_head(right), by_head(there))]
    if kind(name) == "pairs":
        if name in PAIRS and name != "weights":
            far = np.where(counts, there - right, 0)
            yield SHIFTED, right + far.sum(3, keepdims=True) / counts.sum(3, keepdims=True)
        return
    B, H, T, d = right.shape
    if name in (*OF_QUERIES, *OF_KEYS):
        for words, neighbours in zip(PAIRS_OF, (True, False), strict=True):
            yield f"with {words}", right[..., pairing_order(asked.config, neighbours)]
    flat, other = (X.transpose(1, 3, 0, 2).reshape(H, d, B * T) for X in (right, there))
    orders = [nearest_rows(*two) for two in zip(flat[..., :FEW], other[..., :FEW], strict=True)]
    yield COMPONENTS, np.stack([right[:, h][..., order] for h, order in enumerate(orders)], 1)
    order = nearest_rows(*(X.reshape(H * d, B * T)[:, :FEW] for X in (flat, other)))
    mixed = right.transpose(0, 2, 1, 3).reshape(B, T, H * d)[..., order]  # (B, T, H*d)
    yield "with its features in another order", mixed.reshape(B, T, H, d).transpose(0, 2, 1, 3)  # (B, H, T, d)
    squares = (right * right).sum(3, keepdims=True)
    yield "with a factor of each row", right * (right * there).sum(3, keepdims=True) / np.where(squares, squares, 1)
    if counts[..., 0].sum((0, 2)).min() >= d + MORE:
        turned = [right[:, h] @ np.linalg.lstsq(flat[h].T, other[h].T, rcond=None)[0] for h in range(H)]
        yield "in another basis", np.stack(turned, 1)


def by_head(X: Array) -> Array:
    """Reshape an array to one row for each head, (B, H, T, any) -> (H, B*T*any)."""
    return X.swapaxes(0, 1).reshape(X.shape[1], -1)


def nearest_rows(X: Array, Y: Array) -> Array:
    """Find the order of X's rows in which each is the nearest of Y's, (n, any)."""
    far = (X * X).sum(1)[None] - 2 * Y @ X.T  # (n of Y, n of X)
    return far.argmin(1)
