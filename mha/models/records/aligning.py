"""Pair the modules of two models: as the caller says, by names, by contents, and by order."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from mha.models.audit.layers.finding import first_names
from mha.models.records.contents import Record, RecordedCall

CLOSE = 1e-2  # relative difference of what is told of two arrays that may be the same
FURTHEST = 8  # of the smallest and of the largest numbers of an array
TINY = 1e-30
NOT_PAIRED = -1e9
ELSEWHERE = 0.75  # of a score, where what entered one module entered another one in B
NEARER = 0.1  # of a score, for each module that is paired and is between


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleSummary:
    """A module in the first call: sizes and summaries of its first input and output."""

    path: str
    sizes: tuple[int, int]
    summaries: tuple[np.ndarray, np.ndarray]

    def same(self, other: Self) -> bool:
        """Whether another one may have been given and have returned the same."""
        return self.sizes == other.sizes and all(map(are_close, self.summaries, other.summaries))


def module_summaries(record: Record, call: RecordedCall) -> list[ModuleSummary]:
    """Return the modules in a call of the model, in the order in which they were called."""
    found: dict[str, ModuleSummary] = {}
    summaries: dict[int, tuple[int, np.ndarray]] = {}

    def summary(numbers: tuple[int | None, ...]) -> tuple[int, np.ndarray]:
        if not numbers or numbers[0] is None:
            return 0, np.zeros(1)
        if numbers[0] not in summaries:
            X = record.array(numbers[0])
            summaries[numbers[0]] = X.size, summarise(X)
        return summaries[numbers[0]]

    for visit in call.visits:
        if visit.path not in found:
            (size_in, into), (size_out, out) = summary(visit.inputs), summary(visit.outputs)
            found[visit.path] = ModuleSummary(visit.path, (size_in, size_out), (into, out))
    return list(found.values())


def summarise(X: np.ndarray) -> np.ndarray:
    """Summarise an array in any order of axes: root mean square, smallest and largest numbers."""
    flat = X.reshape(-1).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return np.zeros(1 + 2 * FURTHEST)
    count = min(FURTHEST, flat.size)
    ends = np.partition(flat, (count - 1, flat.size - count))
    found = np.zeros(1 + 2 * FURTHEST)
    found[0] = np.sqrt((flat**2).mean())
    found[1 : 1 + count], found[-count:] = np.sort(ends[:count]), np.sort(ends[flat.size - count :])
    return found


def are_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two summaries may be of the same array, up to rounding."""
    return one.shape == other.shape and bool(np.abs(one - other).max() <= CLOSE * max(np.abs(one).max(), TINY))


def check_paths(paths: Any) -> dict[str, str | None]:
    """Check paths=. Raises TypeError or ValueError."""
    if paths is None:
        return {}
    if not isinstance(paths, Mapping) or not all(
        isinstance(a, str) and (b is None or isinstance(b, str)) for a, b in paths.items()
    ):
        raise TypeError(
            f"paths is a {type(paths).__name__}, expected a dict of paths in A to paths in B, such as "
            "{'model.layers.{}.self_attn': 'blocks_{}/attn'}; None leaves a module out"
        )
    for a, b in paths.items():
        if b is not None and a.count("{}") != b.count("{}"):
            raise ValueError(
                f"paths has {a!r}: {b!r}, expected as many {{}} on both sides, which are numbers of layers"
            )
    return dict(paths)


def partner_entry(path: str, paths: Mapping[str, str | None]) -> tuple[str | None, str] | None:
    """Return the partner that paths= names for a path of A, or for a module around it, and the rest of the path.

    None in the place of the partner leaves the module out.
    """
    for pattern, other in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        parts = "([^./]+)".join(re.escape(part) for part in pattern.split("{}"))
        if match := re.fullmatch(f"{parts}(?:[./](.+))?", path):
            *numbers, rest = match.groups()
            for number in numbers:
                other = other and other.replace("{}", number, 1)
            return other, rest or ""
    return None


def pair_modules(
    a: Sequence[ModuleSummary], b: Sequence[ModuleSummary], paths: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the path in B of each path of A, also of those that paths= leaves out."""
    in_a, in_b = {one.path: one for one in a}, {one.path: one for one in b}
    found: dict[str, str] = {}
    inside: dict[str, str] = {}
    for path in in_a:
        if entry := partner_entry(path, paths):
            other, rest = entry
            if other is None:
                continue
            inside[path] = other
            ends = [f"{other}{mark}{rest}" for mark in "./"] if rest else [other]
            if partner := next((end for end in ends if end in in_b), None):
                found[path] = partner
    for pattern, other in paths.items():
        if not any(partner_entry(path, {pattern: other}) for path in in_a):
            raise ValueError(
                f"paths has {pattern!r}, which fits no module that A called; it called {first_names(in_a, 6)}"
            )
    for path, place in inside.items():
        if not any(one == place or is_inside(one, place) for one in in_b):
            raise ValueError(
                f"paths says that {path} is {place!r} in B, which called no such module, but {first_names(in_b, 6)}"
            )
    used = set(found.values())
    for path in in_a:
        if path not in found and path not in inside and path in in_b and path not in used:
            found[path] = path
            used.add(path)
    left = [one for one in a if one.path not in found], [one for one in b if one.path not in used]
    found |= by_contents(*left, inside)
    found |= by_numbers(a, b, found)
    return found | by_order(a, b, found, inside)


def left_out(path: str, paths: Mapping[str, str | None]) -> bool:
    """Whether paths= leaves a module of A out."""
    entry = partner_entry(path, paths)
    return entry is not None and entry[0] is None


def may_pair(one: ModuleSummary, other: ModuleSummary, inside: Mapping[str, str]) -> bool:
    """Whether two modules can be the same."""
    place = inside.get(one.path)
    where = place is None or other.path == place or is_inside(other.path, place)
    return where and one.sizes[1] == other.sizes[1] and bool(one.path) == bool(other.path)


def by_contents(a: Sequence[ModuleSummary], b: Sequence[ModuleSummary], inside: Mapping[str, str]) -> dict[str, str]:
    """Pair modules that are given and return the same, if no other one does."""

    near_a = {
        one.path: [other.path for other in b if one.sizes[1] and may_pair(one, other, inside) and one.same(other)]
        for one in a
    }
    count = {other.path: sum(other.path in near for near in near_a.values()) for other in b}
    return {path: near[0] for path, near in near_a.items() if len(near) == 1 and count[near[0]] == 1}


def by_numbers(a: Sequence[ModuleSummary], b: Sequence[ModuleSummary], pairs: Mapping[str, str]) -> dict[str, str]:
    """Pair modules whose paths are those of a known pair but for the numbers of layers."""
    others = {pattern(one): pattern(other) for one, other in pairs.items() if numbers(one) == numbers(other)}
    left = {one.path for one in b} - set(pairs.values())
    found: dict[str, str] = {}
    for one in a:
        if one.path not in pairs and numbers(one.path) and pattern(one.path) in others:
            other = others[pattern(one.path)].format(*numbers(one.path))
            if other in left:
                found[one.path] = other
                left.remove(other)
    return found


def numbers(path: str) -> list[str]:
    """Return the numbers in a path."""
    return re.findall(r"\d+", path)


def pattern(path: str) -> str:
    """Return a path with {} in the places of its numbers."""
    return re.sub(r"\d+", "{}", path.replace("{", "").replace("}", ""))


def by_order(
    a: Sequence[ModuleSummary], b: Sequence[ModuleSummary], pairs: Mapping[str, str], inside: Mapping[str, str]
) -> dict[str, str]:
    """Pair modules of the same size in the order of calls, where places and ends of paths agree."""
    used = set(pairs.values())
    first, second = [one for one in a if one.path not in pairs], [one for one in b if one.path not in used]
    scores = np.full((len(first), len(second)), NOT_PAIRED)
    before_a, before_b = counts(a, pairs), counts(b, used)
    within = [{pairs[path] for path in pairs if is_inside(path, one.path)} for one in first]
    others = [{path for path in used if is_inside(path, other.path)} for other in second]
    for i, one in enumerate(first):
        entered = [are_close(one.summaries[0], other.summaries[0]) for other in second]
        elsewhere = any(entered) or any(are_close(one.summaries[0], other.summaries[0]) for other in b)
        for j, other in enumerate(second):
            # Most of the modules inside of both have to be the same, as far as it is known.
            same_parts = 2 * len(within[i] & others[j]) >= max(len(within[i]), len(others[j]))
            if may_pair(one, other, inside) and same_parts:
                near = NEARER * abs(before_a[one.path] - before_b[other.path])
                gone = ELSEWHERE if elsewhere and not entered[j] else 0.0
                ends = agreement_of_ends(one.path, other.path)
                scores[i, j] = 1 + 0.5 * (one.sizes[0] == other.sizes[0]) + ends - near - gone
    return {first[i].path: second[j].path for i, j in best_chain(scores)}


def best_chain(scores: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs of rows and columns, both rising, whose scores have the largest sum."""
    n, m = scores.shape
    best = np.zeros((n + 1, m + 1))
    for i in range(1, n + 1):
        row = np.maximum(best[i - 1, 1:], best[i - 1, :-1] + scores[i - 1])
        best[i, 1:] = np.maximum.accumulate(row)
    found = []
    i, j = n, m
    while i and j:
        if best[i, j] == best[i, j - 1]:
            j -= 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    return found[::-1]


def counts(modules: Sequence[ModuleSummary], paired: Any) -> dict[str, int]:
    """Count the paired modules that were called before each one."""
    found, count = {}, 0
    for one in modules:
        found[one.path] = count
        count += one.path in paired
    return found


def is_inside(path: str, other: str) -> bool:
    """Whether a module is inside of another one."""
    return path.startswith((f"{other}.", f"{other}/"))


def agreement_of_ends(one: str, other: str) -> float:
    """Return how much the ends of two paths agree, from 0 to 2."""
    parts, others = (re.split(r"[./]", path)[::-1] for path in (one, other))
    agree = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, others, strict=False))
    return 2 * len(list(agree)) / max(len(parts), len(others))
