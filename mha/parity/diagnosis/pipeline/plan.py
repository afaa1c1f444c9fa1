"""The plan of a call: all that it is computed from; a mistake is a function from one plan to another."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mha.core.call import Call
from mha.core.options.config import Config, numpy_dtype
from mha.core.options.norms import Norm
from mha.parity.diagnosis.pipeline.pieces import (
    CONDITIONS,
    Array,
    Steps,
    bend,
    cap,
    log_sum_exp,
    merge,
    regroup,
    root,
    rotate,
    scores,
    share,
    sigmoid,
    softmax,
    split,
    widen,
)
from mha.parity.rule.decoding import Decoding
from mha.parity.rule.heads import scale_of
from mha.parity.rule.problem import Problem
from mha.parity.rule.rounding import as_it_is, through

REMEMBERED = 2**28  # bytes, about
OFFSETS = "offsets", "order_offsets", "window_offsets", "chunk_offsets"
# Fields of a plan that say which query sees which key, and nothing else.
OF_HIDING = (
    "hiding", "lengths", "mask", "window", "chunk", "order_offsets", "window_offsets", "chunk_offsets", "segments",
    "key_segments",
)  # fmt: skip
# Fields with numbers of a call, or that by chance are the same in one.
OF_CALL = (*OF_HIDING, "queries", "keys", "values", "score_bias", "gates", "offsets", "positions", "key_positions")


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a call is computed from; a mistake is a function from one plan to another.

    Letters as in the lessons, and S slots before the call. None = there is no such thing in the call.
    """

    # The layer and its call.
    config: Config
    weights: dict[str, Array]
    queries: Array  # (B, T, any), as keys and values
    keys: Array
    values: Array
    lengths: Any  # (B, 1, 1 or Q, 1), or None
    mask: Any  # four axes, or None
    score_bias: Any  # as the mask
    gates: Any  # (B, H, 1, 1), or None
    # For each purpose: (B or 1, 1), the position of the first query; or (B or 1, Q), a number to add to that of each.
    offsets: Array  # for the rotation
    order_offsets: Array  # for the causal order
    window_offsets: Array
    chunk_offsets: Array
    # By token, as the call gives them: (B or 1, T), or None.
    positions: Any
    key_positions: Any
    segments: Any
    key_segments: Any
    window: Any
    chunk: Any
    # The layer's numbers.
    scale: float
    softcap: float | None
    norms: dict[str, Norm]  # by role, the norm of its heads
    frequencies: Any
    angles: Any  # the dtype of frequencies and angles
    base: float  # of the rotation
    interleaved: bool
    magnitude: float  # of the rotation
    temperature: Any
    heads: int
    groups: int
    samples: Any  # to compute: a slice, or a list of integers
    rows: slice  # queries to compute, from the scores on; a mistake that needs all of them sets it to all
    features: Any  # of the output, to compute: a slice, or a list of integers
    hiding: dict[str, Callable[..., Array]]  # by name, the conditions for a key to be seen
    # Positions: None = the right ones, or a function of plan, role (not of the temperature) and right positions.
    rotary_offsets: Any = None
    tempered_places: Any = None
    tempered: tuple[str, ...] = ("q",)  # the roles that the temperature's factors multiply
    factors: Callable[[Array], Array] = as_it_is  # changes these factors
    magnified: tuple[str, ...] = ("q", "k")  # the roles that the magnitude multiplies
    # Pieces of the computation.
    root: Callable[[Array, float], Array] = root
    rotate: Callable[..., Array] = rotate
    table: Callable[[Array], Array] = as_it_is  # changes cosines and sines
    opened: Callable[[Array], Array] | None = None  # makes the output gate of its projection, (B, H, T, dv or 1)
    closed: Callable[[Array], Array] | None = None  # makes gates of the output from their projection, (B, T, any)
    split: Callable[[Array, int], Array] = split
    merge: Callable[[Array], Array] = merge
    share: Callable[[Array, int], Array] = share
    share_values: Callable[[Array, int], Array] = share
    cached: Callable[[Array], Array] = as_it_is  # changes keys and values before they are shared
    scores: Callable[..., Array] = scores
    cap: Callable[..., Array] = cap
    bend: Callable[..., Steps] = bend
    softmax: Callable[..., Array] = softmax
    log_sum_exp: Callable[..., Array] = log_sum_exp  # of a kernel
    axis: int = 3  # of the softmax, in (B, H, Q, K)
    after: Callable[[Array], Array] = as_it_is  # changes the weights
    blanked: bool = True  # whether values that no query sees become 0
    into_product: Callable[[Array], Array] = as_it_is  # changes both sides of each matrix product
    rounded: Callable[[Array], Array] = as_it_is  # changes each result
    # The slots of a cache.
    kept_k: Any = None  # keys in the slots before the call, (B, G, S, any)
    kept_v: Any = None
    columns: Any = None  # (B, S), the slot or token before it, of S + K, that each slot holds after the call
    read_k: Any = None  # other keys in the slots, for this call alone
    # Functions of plan, role and heads, from new keys or values to those that the slots keep, and that the call sees.
    stored: Callable[..., Array] = lambda plan, role, X: X
    read: Callable[..., Array] = lambda plan, role, X: X
    computed: dict[tuple[Any, ...], tuple[Any, ...]] = dataclasses.field(default_factory=dict)  # by `once`, shared

    @property
    def projects(self) -> bool:
        """Return whether there are projections around attention: a kernel has none."""
        return "W_o.kernel" in self.weights

    @property
    def places_are_given(self) -> bool:
        """Return whether the call says at which positions queries or keys are."""
        return self.positions is not None or self.key_positions is not None

    @property
    def num_keys(self) -> int:
        """Return the number of keys to see: those in slots before the call, and its own."""
        return int(self.keys.shape[1] + (0 if self.kept_k is None else self.kept_k.shape[2]))

    @property
    def key_places(self) -> Array:
        """Return the positions of keys, (B or 1, 1, 1, K)."""
        places = np.arange(self.num_keys)[None] if self.key_positions is None else self.key_positions
        return places[:, None, None]

    def query_places(self, offsets: Array) -> Array:
        """Return the positions of the queries to compute, (B or 1, 1, rows, 1), by these offsets."""
        return (offsets + np.arange(self.queries.shape[1]))[:, None, self.rows, None]

    def of_samples(self, X: Array) -> Array:
        """Take the samples to compute from an array (B or 1, ...)."""
        return X[self.samples] if len(X) == len(self.queries) else X

    def of_pairs(self, X: Array) -> Array:
        """Take the samples and queries to compute from an array (B or 1, H or 1, Q or 1, K or 1)."""
        X = self.of_samples(X)
        return X[:, :, self.rows] if X.shape[2] == self.queries.shape[1] else X

    def product(self, A: Array, B: Array) -> Array:
        """Return A @ B in A's dtype, multiplied in float32 at least."""
        A, B, dtype = widen(A), widen(B), A.dtype
        return self.rounded(np.matmul(self.into_product(A), self.into_product(B)).astype(dtype, copy=False))

    def output(self, merged: Array) -> Array:
        """Return merged heads (B, Q, H*dv) @ kernel + bias, in the features to compute; a kernel projects nothing."""
        if not self.projects:
            return merged[..., self.features]
        kernel = self.once("features", lambda X: X[..., self.features], self.weights["W_o.kernel"])
        return self.add_bias("W_o", self.product(merged, kernel), self.features)

    def add_bias(self, name: str, X: Array, features: Any = slice(None)) -> Array:
        """Add the bias of a projection to X; features: of the bias."""
        bias = self.weights.get(f"{name}.bias")
        return X if bias is None else self.rounded(X + bias[features])

    def project(self, name: str, X: Array) -> Array:
        """Project inputs (B, T, any), the samples to compute, where the plan does; each product is computed once."""
        if not self.projects:
            return self.of_samples(X)
        how, kernel = (self.into_product, self.rounded), self.weights[f"{name}.kernel"]
        return self.add_bias(name, self.once(how, lambda *_: self.product(self.of_samples(X), kernel), X, kernel))

    def once(self, how: Any, make: Callable[..., Any], *arrays: Array) -> Any:
        """Return make(*arrays), computed once for these very arrays; how: tells the results of one function apart."""
        key = how, *map(id, arrays)
        if (known := self.computed.get(key)) is None:
            known = *arrays, make(*arrays)  # the arrays, so that their ids stay theirs
            if sum(getattr(found[-1], "nbytes", 0) for found in self.computed.values()) < REMEMBERED:
                self.computed[key] = known
        return known[-1]

    def visible(self, names: Iterable[str] | None = None) -> Array:
        """Return which query sees which key, (B, H, Q, K), in the part to compute, by these conditions; None = all."""
        B, _, Q, _ = self.of_pairs(np.empty((len(self.queries), 1, self.queries.shape[1], 1))).shape
        seen = np.ones((1, 1, 1, 1), bool)
        for name in self.hiding if names is None else names:
            seen = seen & self.of_pairs(self.hiding[name](self))
        return np.broadcast_to(seen, (B, self.heads, Q, self.num_keys))

    def read_slots(self, role: str, X: Array) -> Array:
        """Return the keys or values that the call sees, (B, G, T, any); X: those of its own tokens, (B, G, K, any)."""
        plan = self if self.read_k is None else dataclasses.replace(self, kept_k=self.read_k)
        return self.cached(plan.behind_slots(role, self.read(self, role, X)))

    def behind_slots(self, role: str, X: Array) -> Array:
        """Put keys or values of the call, (B, G, K, any), behind those in the slots: (B, G, T, any)."""
        kept = self.kept_k if role == "k" else self.kept_v
        return X if kept is None else np.concatenate([regroup(self.of_samples(kept), X.shape[1]), X], 2)

    def by_slots(self, X: Array, axis: int = 3) -> Array:
        """Take what the slots hold after the call, of S slots and K tokens in an axis; X: of the samples to compute."""
        if self.columns is None:
            return X
        columns = self.of_samples(self.columns)
        columns = columns.reshape(len(columns), *[1] * (axis - 1), -1, *[1] * (X.ndim - 1 - axis))
        sizes = [*X.shape[:axis], columns.shape[axis], *X.shape[axis + 1 :]]
        return np.take_along_axis(X, np.broadcast_to(columns, sizes), axis)


def replace(plan: Plan, **changes: Any) -> Plan:
    """Return the plan with other fields, as `dataclasses.replace` does, which is slow for so many of them."""
    made = object.__new__(Plan)
    vars(made).update(vars(plan), **changes)
    return made


def make_plan(
    problem: Problem, dtype: Any, samples: Any = slice(None), rows: slice = slice(None), features: Any = slice(None)
) -> Plan:
    """Make the plan of a call, without mistakes, in a dtype; samples, rows, features: those to compute."""
    config, kind, bias, gates = problem.config, numpy_dtype(dtype), problem.call.score_bias, problem.call.head_gates
    rounds = problem.angles and kind != np.float64  # angles, cosines and sines, as all ports do
    if gates is not None:
        gates = np.broadcast_to(gates, (len(problem.queries), config.num_heads))[:, :, None, None].astype(kind)
    slots: dict[str, Any] = {}
    if isinstance(problem, Decoding):
        own = problem.slots
        slots = {"kept_k": own.keys.astype(kind), "kept_v": own.values.astype(kind), "columns": own.columns}
    norms = {"q": config.qk_norm, "k": config.qk_norm, "v": config.value_norm}
    return Plan(
        config=config,
        weights={name: X.astype(kind, copy=False) for name, X in problem.layer.weights.items()},
        queries=problem.queries.astype(kind), keys=problem.keys.astype(kind), values=problem.values.astype(kind),
        score_bias=None if bias is None else four_axes(bias).astype(np.promote_types(kind, np.float32)), gates=gates,
        scale=scale_of(config),
        softcap=config.softcap, norms={role: own for role, own in norms.items() if own},
        frequencies=None if config.rotary is None else np.array(config.rotary.angles()),
        angles=np.dtype("float32" if rounds else "float64"),
        table=through(kind) if rounds else as_it_is,
        base=1.0 if config.rotary is None else config.rotary.base,
        interleaved=config.rotary is not None and config.rotary.interleaved,
        temperature=config.temperature, opened=sigmoid if config.output_gate else None,
        magnitude=1.0 if config.rotary is None else config.rotary.magnitude,
        heads=config.num_heads, groups=config.num_key_value_heads, samples=samples, rows=rows,
        features=features, **slots,
        **hiding_fields(problem.call),
    )  # fmt: skip


def hiding_fields(call: Call) -> dict[str, Any]:
    """Make the fields of a plan that tell which query sees which key, from the arguments of a checked call."""
    lengths = None if call.valid_lens is None else call.valid_lens.reshape(len(call.valid_lens), 1, -1, 1)
    mask, bias = (None if X is None else four_axes(X) for X in (call.mask, call.score_bias))
    if mask is None and bias is not None and hides_alone(bias[..., :1, :]) and hides_alone(bias):
        mask, bias = bias == 0, None
    by_token = call.position_ids() | call.segment_ids()
    placed = {name: None if X is None else X.reshape(-1, X.shape[-1]) for name, X in by_token.items()}
    given = {
        "lengths": lengths, "mask": mask, "bias": bias, "order": call.causal or None, "window": call.plan.window,
        "chunk": call.plan.chunk,
    } | placed  # fmt: skip
    hiding = {name: CONDITIONS[name] for name, X in given.items() if X is not None}
    offset, positions = np.asarray(call.offset).reshape(-1, 1), placed["positions"]
    offset = offset if positions is None else positions - np.arange(positions.shape[1])  # (B or 1, 1 or Q)
    found = {"lengths": lengths, "mask": mask, "window": call.plan.window, "chunk": call.plan.chunk, "hiding": hiding}
    return found | dict.fromkeys(OFFSETS, offset) | placed


def hides_alone(bias: Array) -> bool:
    """Return whether a bias is a mask: all its numbers are 0 or minus infinity."""
    return bool(((bias == 0) | (bias == -np.inf)).all())


def same_call(one: Plan, other: Plan) -> bool:
    """Return whether two plans see the same in one call, so that only their formulas may differ."""
    return all(getattr(one, field) is getattr(other, field) for field in OF_CALL)


def equal_plans(one: Plan, other: Plan) -> bool:
    """Return whether two plans are equal, field by field: then the change between them is no mistake here."""
    return all(
        one.computed is other.computed
        if field.name == "computed"
        else _equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(Plan)
    )


def _equal(X: Any, Y: Any) -> bool:
    """Return whether two fields are equal: arrays by their numbers, mappings of arrays too, the rest by itself."""
    if isinstance(X, dict) and isinstance(Y, dict):
        return X.keys() == Y.keys() and all(_equal(X[name], Y[name]) for name in X)
    if isinstance(X, Array) and isinstance(Y, Array):
        return X is Y or np.array_equal(X, Y, equal_nan=True)
    if isinstance(X, float) and isinstance(Y, float):
        return math.isclose(X, Y, rel_tol=1e-14)  # one formula may round in another order
    return X is Y or (not isinstance(X, Array) and not isinstance(Y, Array) and bool(X == Y))


def four_axes(pairs: Array) -> Array:
    """Give (Q, K), (B, Q, K) or (B, H, Q, K) all four axes; any size may be 1."""
    pairs = pairs[None] if pairs.ndim == 2 else pairs
    return pairs[:, None] if pairs.ndim == 3 else pairs  # (B, 1 or H, Q, K)
