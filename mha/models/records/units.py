"""Pair the calls of two records: a call with a call, or the steps of a decode with one pass over all tokens."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from mha.models.records.aligning import are_close, summarise
from mha.models.records.contents import Record, Visit
from mha.models.records.pairs import Chunk
from mha.models.records.tokens import Text, cut_where_different

Visits = dict[tuple[str, int], list[Chunk]]  # by path and number
FEW = 8  # calls of a text that are compared one by one; more are compared together
MOST = 64  # calls of one module in a call of the model that are paired by their contents


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleStep:
    """The inputs or the outputs of one module's call in A and of its partner in B."""

    what: Literal["input", "output"]
    a: Sequence[Chunk]
    b: Sequence[Chunk]

    @property
    def visit(self) -> Visit:
        """The visit in A, the first one of a decode."""
        return self.a[0].visit

    @property
    def other(self) -> Visit:
        """The visit in B."""
        return self.b[0].visit


def units_of(a: Sequence[Text], b: Sequence[Text]) -> Iterator[tuple[Text, Text, str]]:
    """Pair the texts of two records in their order; call by call where both took the same few calls.

    Yields calls of A and of B that are compared together, and which part of them is not, in words.
    """
    for one, other in zip(a, b, strict=False):
        sizes = [[[grid.shape for grid in grids] for grids in side.grids] for side in (one, other)]
        if sizes[0] != sizes[1] or len(one.calls) > FEW:
            yield cut_where_different(one, other)
            continue
        for at in range(len(one.calls)):
            first, second = (Text(side.calls[at : at + 1], side.grids[at : at + 1]) for side in (one, other))
            yield first, second, ""


def steps_of(first: Text, second: Text, records: Any, partners: Mapping[str, str]) -> list[ModuleStep]:
    """List the inputs and outputs of modules with a partner, in the order of A's calls."""
    a, b = visits_of(first), visits_of(second)
    reorder_visits(records, a, b, partners)
    found = []
    for (path, number), chunks in a.items():
        if path in partners and (others := b.get((partners[path], number))):
            order, visit = chunks[0].call.number, chunks[0].visit
            found.append(((order, visit.entered), ModuleStep("input", chunks, others)))
            found.append(((order, visit.left), ModuleStep("output", chunks, others)))
    return [step for _, step in sorted(found, key=lambda one: one[0])]


def visits_of(text: Text) -> Visits:
    """Return the visits of each module, by the calls of the model."""
    found: Visits = {}
    for call, grids in zip(text.calls, text.grids, strict=True):
        for visit in call.visits:
            found.setdefault((visit.path, visit.number), []).append(Chunk(call, grids, visit))
    return found


def reorder_visits(records: tuple[Record, Record], a: Visits, b: Visits, partners: Mapping[str, str]) -> None:
    """Number the calls of a module in B as in A, where they are the same in another order."""
    counts: dict[str, int] = {}
    for path, number in a:
        counts[path] = max(counts.get(path, 0), number + 1)
    for path, count in counts.items():
        other = partners.get(path)
        if other is None or not 1 < count <= MOST or (other, count - 1) not in b or (other, count) in b:
            continue
        first, second = (
            [[summarise(record.array(X)) for X in visits[name, at][0].visit.firsts] for at in range(count)]
            for record, visits, name in ((records[0], a, path), (records[1], b, other))
        )
        if (order := same_in_other_order(first, second)) is not None:
            b.update({(other, at): b[other, place] for at, place in enumerate(order)})


def same_in_other_order(a: list[list[np.ndarray]], b: list[list[np.ndarray]]) -> list[int] | None:
    """Return the place in B of each one in A; None if that is no other order, or if they differ."""

    def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
        return len(one) == len(other) and all(map(are_close, one, other))

    if all(map(same, a, b)):
        return None
    order: list[int] = []
    for one in a:
        place = next((at for at, other in enumerate(b) if at not in order and same(one, other)), None)
        if place is None:
            return None
        order.append(place)
    return order
