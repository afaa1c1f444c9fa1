"""The arguments of a call beside queries, keys and values. Each is declared here once; all else derives from its row.

Letters: B batch, H heads, Q queries, K key-value pairs.
"""

import collections
import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from mha.core.options.checks import extremes

ALL = slice(None)


@dataclasses.dataclass(frozen=True)
class Argument:
    """The declaration of one argument.

    meaning: a sentence for its users.
    holds: the kind of its values.
    axes: its shapes, a letter for each axis; "" is a plain int.
    broadcasts: whether any size may be 1.
    moves: whether its numbers grow with the queries, and with the keys, that are cut off at the front.
    hides: whether it hides keys from queries.
    hidden: of an array that does, the value that hides a key, or everything from a query.
    usual: of integers, between which numbers (from, below) they are in a usual call of so many tokens: of so many
        queries if it has a number for each of them, else of so many keys; None = of any number.
    differentiable: whether it has gradients.
    expected, of_dtype: the words of an error for a value, and for a dtype, that does not fit; "" = the usual ones.
    hint: a function of the name of a wrong dtype: returns what is added to the error.
    default: its value where it is not given.
    step: the step of a trace that it makes, if any.
    """

    meaning: str
    holds: Literal["integers", "booleans", "floats", "switch"]
    axes: tuple[str, ...] = ()
    broadcasts: bool = False
    moves: tuple[int, int] = (0, 0)
    hides: bool = False
    hidden: Any = None
    usual: Callable[[int], tuple[int, int]] | None = None
    differentiable: bool = False
    expected: str = ""
    of_dtype: str = ""
    hint: Callable[[str], str] = lambda dtype: ""
    default: Any = None
    step: str = ""


PAIRS = ("QK", "BQK", "BHQK")
OF_QUERIES = "integers of shape (queries,) or (batch, queries)"
OF_KEYS = "integers of shape (keys,) or (batch, keys)"

LENGTHS = Argument(
    "integers: query i of sample b sees key j iff j < valid_lens[b(, i)]",
    "integers", ("B", "BQ"), moves=(0, -1), hides=True, hidden=0, usual=lambda keys: (keys // 3, keys),
    expected="integers of shape (batch,) or (batch, queries)", of_dtype="integers; masks go to mask=",
)  # fmt: skip
MASK = Argument(
    "booleans, True = may attend",
    "booleans", PAIRS, broadcasts=True, hides=True, hidden=False,
    expected="booleans, True = may attend",
    hint=lambda dtype: "; floats that are added to the scores go to score_bias=" if "float" in dtype else "",
)  # fmt: skip
SCORE_BIAS = Argument(
    "floats of the layer's dtype, added to the scores; -inf hides, a large negative number does not",
    "floats", PAIRS, broadcasts=True, hides=True, hidden=-np.inf, differentiable=True, step="biased",
    expected="a dense array of {dtype}, added to the scores",
    hint=lambda dtype: "; booleans go to mask=" if dtype == "bool" else "",
)  # fmt: skip
CAUSAL = Argument("whether query i sees key j only if j <= offset + i", "switch", hides=True, default=False)
OFFSET = Argument(
    "the position of the first query; key j is at position j",
    "integers", ("", "B"), moves=(1, -1), default=0,
    expected="an int, or integers of shape (batch,)",
)  # fmt: skip
HEAD_GATES = Argument(
    "floats of the layer's dtype, which multiply the pooled heads",
    "floats", ("H", "BH"), differentiable=True, step="head_gated",
    expected="a dense array of {dtype}, the heads' factors",
)  # fmt: skip
POSITIONS = Argument(
    "integers: the position of each query, instead of offset + i; one below 0 is padding, and sees nothing",
    "integers", ("Q", "BQ"), hides=True, hidden=-1, usual=lambda tokens: (-1, tokens),
    expected=OF_QUERIES,
)  # fmt: skip
KEY_POSITIONS = Argument(
    "integers: the position of each key, instead of j; one below 0 is padding, and is seen by no query",
    "integers", ("K", "BK"), hides=True, hidden=-1, usual=lambda tokens: (-1, tokens),
    expected=OF_KEYS,
)  # fmt: skip
SEGMENTS = Argument(
    "integers: the segment of each query, which sees the keys of its own one; below 0 is padding, and sees nothing",
    "integers", ("Q", "BQ"), hides=True, hidden=-1, usual=lambda tokens: (-1, 3),
    expected=OF_QUERIES,
)  # fmt: skip
KEY_SEGMENTS = Argument(
    "integers: the segment of each key, None = as of the queries; below 0 is padding, and is seen by no query",
    "integers", ("K", "BK"), hides=True, hidden=-1, usual=lambda tokens: (-1, 3),
    expected=OF_KEYS,
)  # fmt: skip


class Arguments(TypedDict, total=False):
    """The arguments that every call takes by keyword; a call takes valid_lens before them, by position too."""

    mask: Annotated[Any, MASK]
    score_bias: Annotated[Any, SCORE_BIAS]
    causal: Annotated[bool, CAUSAL]
    offset: Annotated[Any, OFFSET]
    head_gates: Annotated[Any, HEAD_GATES]
    positions: Annotated[Any, POSITIONS]
    key_positions: Annotated[Any, KEY_POSITIONS]
    segments: Annotated[Any, SEGMENTS]
    key_segments: Annotated[Any, KEY_SEGMENTS]


ROWS: dict[str, Argument] = {"valid_lens": LENGTHS} | {
    name: row
    for name, hint in typing.get_type_hints(Arguments, include_extras=True).items()
    for row in hint.__metadata__
}
ARRAYS = tuple(name for name, row in ROWS.items() if row.holds != "switch")
OF_PAIRS = tuple(name for name, row in ROWS.items() if row.axes == PAIRS)
OF_TOKENS = tuple(name for name, row in ROWS.items() if row.axes in (("Q", "BQ"), ("K", "BK")))
PLACES = "positions", "key_positions"
PACKED = "segments", "key_segments"
FLOATS = tuple(name for name, row in ROWS.items() if row.differentiable)
# What its user gives with a call: also an `mha.Cache`, and two switches that not every call takes.
ARGUMENTS = {name: row.default for name, row in ROWS.items()} | {
    "cache": None,
    "training": None,
    "return_weights": False,
}
GIVEN = slice(len(ARGUMENTS))  # of a call's fields, these


class Plan(typing.NamedTuple):
    """The facts of a checked call beside what its user gave, and what an engine decides.

    window, chunk: of the layer.
    sinks: of the layer, (1, H, 1, 1), where they count.
    gates: the projections for the layer's output gate, (B*H, Q, dv or 1).
    traced: whether the steps of the call are traced.
    known: the values of its integers, by name, as NumPy arrays; None or without a name = not known yet.
    extremes: the smallest and the largest of its lengths, if known.
    room: how many scores are computed at once, None = as many as a processor's cache has room for.
    lesson: whether the lesson computes it.
    engine: other decisions of the backend's engine, of a kind of its own; None = none yet.
    step: what it does to the slots of its cache; columns: where these are among the keys.
    """

    window: Any = None
    chunk: Any = None
    sinks: Any = None
    gates: Any = None
    traced: bool = False
    known: Any = None
    extremes: Any = None
    room: int | None = None
    lesson: bool = False
    engine: Any = None
    step: Any = None
    columns: Any = None


_DEFAULTS = ARGUMENTS | {"plan": Plan()}
_namedtuple: Any = collections.namedtuple  # type checkers know no fields that are declared elsewhere
_Fields: Any = _namedtuple("_Fields", _DEFAULTS, defaults=_DEFAULTS.values())


class Call(_Fields):
    """A call: what its user gives beside queries, keys and values, with the plan for it, which goes through all steps.

    Once it is checked, its arrays are those of the backend, an offset is an int or a column (B or 1, 1), and the plan
    has the values of lengths and offsets that are known.
    """

    __slots__ = ()

    def with_plan(self, **changes: Any) -> "Call":
        """The same call with changes of its plan."""
        return self._replace(plan=self.plan._replace(**changes))

    def of_layer(self, config: Any) -> "Call":
        """The call to a layer with this configuration, whose window and chunk hide keys, too."""
        return self.with_plan(window=config.window, chunk=config.chunk)

    def arguments(self) -> dict[str, Any]:
        """Its arguments by name, as the frameworks' own layers take them: of a checked offset, a row or a number."""
        offset = self.offset
        if len(getattr(offset, "shape", ())) == 2:  # (B or 1, 1)
            offset = offset[0, 0] if offset.shape[0] == 1 else offset[:, 0]  # (), (B,)
        return dict(zip(ARGUMENTS, self, strict=False)) | {"offset": offset}

    def nondefaults(self) -> dict[str, Any]:
        """Its arrays, and an offset other than 0, by name."""
        return {name: X for name in ARRAYS if (X := getattr(self, name)) is not None and X is not ROWS[name].default}

    def arrays(self) -> dict[str, Any]:
        """Its arrays by name, those that are given; an offset may be an int."""
        named = {name: getattr(self, name) for name in ARRAYS}
        return {name: X for name, X in named.items() if X is not None and type(X) is not int}

    def value_of(self, name: str) -> Any:
        """The value of an integer argument: an int or NumPy integers; None if it is not given, or not known yet."""
        given = getattr(self, name)
        is_value = given is None or isinstance(given, (int, np.ndarray))
        return given if is_value else (self.plan.known or {}).get(name)

    def position_ids(self) -> dict[str, Any]:
        """The positions of its queries and of its keys by name, None where they are not given."""
        return {"positions": self.positions, "key_positions": self.key_positions}

    def by_positions(self) -> bool:
        """Whether positions are given, of queries or of keys."""
        return self.positions is not None or self.key_positions is not None

    def is_packed(self) -> bool:
        """Whether segments of queries are given, as they are for texts that are packed into one row."""
        return self.segments is not None

    def by_tokens(self) -> bool:
        """Whether positions or segments of queries or of keys are given, or there are chunks."""
        return not (
            self.positions is self.key_positions is self.segments is self.key_segments is None
            and self.plan.chunk is None
        )

    def of_tokens(self) -> dict[str, Any]:
        """Its integers of which each query or each key has one, by name, those that are given."""
        return self._given(OF_TOKENS)

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        found = {}
        # Where PyTorch's compiler resumes after a break, it does not know what a comprehension closes over.
        for name in names:
            X = getattr(self, name)
            if X is not None:
                found[name] = X
        return found

    def segment_ids(self) -> dict[str, Any]:
        """The segments of its queries and of its keys by name, None where there are none."""
        of_keys = self.segments if self.key_segments is None else self.key_segments
        return {"segments": self.segments, "key_segments": of_keys}

    def with_segments(self, of_queries: Any, of_keys: Any) -> "Call":
        """The same call with these segments."""
        return self._replace(segments=of_queries, key_segments=of_keys)

    def pairs(self) -> dict[str, Any]:
        """Its arrays with a number for each query and key, by name, those that are given."""
        return self._given(OF_PAIRS)

    def of_scores(self) -> dict[str, Any]:
        """Its arrays that hide keys from queries or count in their scores, by name: those of pairs, and sinks."""
        return self.pairs() | ({} if self.plan.sinks is None else {"sinks": self.plan.sinks})

    def with_arrays(self, named: Mapping[str, Any]) -> "Call":
        """The same call with these arrays by name, of its own and of `of_scores`, or None for them."""
        if "sinks" not in named:
            return self._replace(**named)
        own = {name: X for name, X in named.items() if name != "sinks"}
        return self._replace(**own).with_plan(sinks=named["sinks"])

    def map_arrays(self, function: Callable[[Any], Any]) -> "Call":
        """The same call, with a function of its arrays in their places."""
        return self._replace(**{name: function(X) for name, X in self.arrays().items()})

    def differentiable(self) -> dict[str, Any]:
        """Its arrays that have gradients, by name."""
        return {name: X for name, X in self.arrays().items() if ROWS[name].differentiable}

    def hides(self) -> bool:
        """Whether something may hide a key from a query."""
        return (
            self.plan.window is not None
            or self.plan.chunk is not None
            or any(row.hides and getattr(self, name) is not row.default for name, row in ROWS.items())
        )

    def part(self, samples: slice = ALL, heads: slice = ALL, queries: slice = ALL, keys: slice = ALL) -> "Call":
        """The call for some samples, heads, queries and keys, which are slices; the first of each counts as 0.

        Only slices are taken, which arrays of every framework know.
        """
        if self.segments is not None and self.key_segments is None and (queries is not ALL or keys is not ALL):
            known = self.plan.known or {}
            known = known | ({"key_segments": known["segments"]} if "segments" in known else {})
            return self._replace(**self.segment_ids()).with_plan(known=known).part(samples, heads, queries, keys)
        cuts = {"B": samples, "H": heads, "Q": queries, "K": keys}
        firsts = [0 if cut.start is None else cut.start for cut in (queries, keys)]
        numbers = self.arrays() | ({"offset": self.offset} if type(self.offset) is int else {})
        changed = {name: of_part(name, X, cuts, firsts) for name, X in numbers.items()}
        if self.plan.known:
            known = {name: of_part(name, X, cuts, firsts) for name, X in self.plan.known.items()}
            changed["plan"] = self.plan._replace(known=known, extremes=extremes_of(known.get("valid_lens")))
        return self._replace(**changed)


def axes_of(name: str, X: Any) -> str:
    """The letters of the axes of an argument of this name; those of a checked offset are B1."""
    axes = ROWS[name].axes
    return next((each for each in axes if len(each) == len(X.shape)), f"{axes[-1]}1")


def extremes_of(lengths: Any) -> tuple[int, int] | None:
    """The smallest and the largest length, NumPy integers; None if these are not known."""
    return None if lengths is None else extremes(lengths)


def of_part(name: str, X: Any, cuts: dict[str, slice], firsts: list[Any]) -> Any:
    """An argument of this name for a part of a call; cuts: slices by letter, firsts: the first query and key of it."""
    if type(X) is not int:
        # What one number stands for is the same for all.
        sizes = zip(axes_of(name, X), X.shape, strict=True)
        taken = [ALL if size == 1 else cuts.get(letter, ALL) for letter, size in sizes]
        X = X[tuple(taken)] if any(cut is not ALL for cut in taken) else X
    for direction, first in zip(ROWS[name].moves, firsts, strict=True):
        if direction and not (isinstance(first, int) and first == 0):
            X = X + direction * first
    return X
