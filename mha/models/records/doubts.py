"""Tell the steps that differ apart: differences between two models, and other cuts.

Two models may cut the same computation into modules at other places: one returns the output of its activation, the
other the input. Such a module differs, and yet nothing that is computed from it does.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from mha.models.records.flows import RelationName
from mha.models.records.pairs import Pair
from mha.models.records.units import ModuleStep

TELLS = 3.0  # times the difference of what reads it, or its bound, that a difference has to be to show there

FAR = 0.3  # where an array differs by so much, nobody would call it the same


@dataclasses.dataclass(eq=False)
class Doubt:
    """A step that differs."""

    step: ModuleStep
    key: tuple[int, ...]  # the numbers of A's array
    scopes: set[str]  # the containers in which that is seen
    far: float  # its relative difference
    real: bool  # whether it is known to be a difference
    find_relation: Callable[[], RelationName]  # of B's numbers to A's
    used_as_is: bool = False  # whether a module of B is known to take it as it is
    readers: list["Reader"] = dataclasses.field(default_factory=list)  # steps that may be computed from it

    @functools.cached_property
    def relation(self) -> RelationName:
        """The relation of B's numbers to A's."""
        return self.find_relation()

    @property
    def place(self) -> tuple[str, str]:
        """The place of the step, the same in all layers."""
        return path_pattern(self.step.visit.path), self.step.what


class Reader(NamedTuple):
    """A step that may be computed from another one."""

    doubt: Doubt | None  # its own, None = it is the same
    bound: float  # up to which it is, by its size
    certain: bool  # whether it is known to be computed from the other


@dataclasses.dataclass(eq=False)
class EarlierArray:
    """An array of A that came before."""

    name: str  # for readers
    pair: Pair  # with B's
    most: np.ndarray  # how far rounding carries B's rows, about
    scopes: set[str]  # the containers in which it is seen
    doubt: Doubt | None = None  # if it differs

    @property
    def is_other_cut(self) -> bool:
        """Whether it differs, and is supposed to be another cut."""
        return self.doubt is not None and not self.doubt.real

    @property
    def far(self) -> np.ndarray:
        """How far B's rows are; of another cut, only as far as rounding explains it."""
        return np.minimum(self.pair.far, self.most) if self.is_other_cut else self.pair.far

    @property
    def relative(self) -> float:
        """The largest of these differences by the size of the row."""
        return dataclasses.replace(self.pair, far=self.far).relative


def path_pattern(path: str) -> str:
    """Return a path with {} for the numbers of layers."""
    return re.sub(r"(?<![^./_])\d+(?=[./])|(?<![^./])\d+$", "{}", path)


def cuts_of(doubts: Sequence[Doubt]) -> set[ModuleStep]:
    """Return the steps that are another cut: nothing computed from them differs in the end; in other layers, too.

    A reader that is not certain counts only if no reader is certain; of these, the first.
    """
    bounds: dict[ModuleStep, float] = {}  # up to which what comes of another cut is the same
    for one in reversed(doubts):
        bounds_of_readers = []
        for other, bound, certain in one.readers:
            far = bound if other is None else bounds.get(other.step, np.inf)
            if far == np.inf or one.far >= TELLS * far:
                bounds_of_readers.append((far, certain))
        chosen = [far for far, certain in bounds_of_readers if certain] or [far for far, _ in bounds_of_readers[:1]]
        if not one.real and chosen and max(chosen) < np.inf:
            bounds[one.step] = max(chosen)
    alike: dict[tuple[str, str], list[Doubt]] = {}
    for one in doubts:
        if one.step in bounds:
            alike.setdefault(one.place, []).append(one)
    return {*bounds, *(
        one.step for one in doubts if not one.real and any(
            one.used_as_is == other.used_as_is and one.relation == other.relation for other in alike.get(one.place, ())
        )
    )}  # fmt: skip


def unclear_of(doubts: Sequence[Doubt]) -> set[ModuleStep]:
    """Return the steps that differ by much, where no reader shows whether that is real."""
    found: set[ModuleStep] = set()
    for one in reversed(doubts):
        same = [reader.doubt is None or reader.doubt.step in found for reader in one.readers]
        if one.far > FAR and same and all(same) and one.relation and (not one.used_as_is or one.relation == "order"):
            found.add(one.step)
    return found


def first_difference(
    doubts: Sequence[Doubt], cuts: Collection[ModuleStep]
) -> tuple[ModuleStep | None, list[ModuleStep]]:
    """Return the first new difference, None if there is none, and the steps before it that are none.

    A module that returns a later step of the other model is none if a step behind it is, in no relation to A's.
    """
    left = [one for one in doubts if not one.real and one.step not in cuts]
    none: list[Doubt] = []
    for one in left:
        goes_on = any(
            reader.doubt is one for other in none if other.relation == one.relation for reader in other.readers
        )
        if not one.relation or (one.used_as_is and not goes_on):
            return one.step, [other.step for other in none]
        none.append(one)
    return (left[0].step if left else None), []
