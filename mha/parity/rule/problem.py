"""A layer and one call of it in NumPy, checked, with its results in float64 and in the layer's own dtype."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.cache import Cache
from mha.core.call import ROWS, Call, check, inputs
from mha.core.options import checks
from mha.core.options.config import Config, numpy_dtype
from mha.core.options.names import FloatName
from mha.layer import MultiHeadAttention
from mha.parity.rule.layouts import (
    GRADIENT,
    INPUTS,
    MEANS,
    OF_INPUTS,
    Sizes,
    Turn,
    matters,
    means,
    trace_layout,
    turn_of,
)
from mha.parity.rule.rounding import with_coarse_angles
from mha.parity.rule.rules import (
    UNIT,
    bound,
    error,
    fraction,
    gradient_scale,
    in_dtype,
    nearest,
    outside,
    row_bounds,
    worst_row,
)

Named = dict[str, np.ndarray]
StyleName = Literal["fused", "steps"]
Means = tuple[tuple[np.ndarray, float], ...]
CLEAR = 4.0  # times a bound that an output exceeds: then no style of half precision is looked for


class Verdict(NamedTuple):
    """The verdict on an array.

    Attributes:
        error: the largest one, infinite where only one of the two arrays is NaN or infinite.
        limit: how large that may be.
        rest: in half precision, the worst of all that is measured, by its limit; 0 where errors alone count.
        worst: what that is, in words.
        rounding: of an output in half precision that is not far off, how it rounds, a `Rounding`.
    """

    error: float
    limit: float
    rest: float = 0.0
    worst: str = ""
    rounding: Any = None

    @property
    def ratio(self) -> float:
        """Return the worst of all by its limit: the same if at most 1."""
        return max(fraction(self.error, self.limit), self.rest)


class Expected(NamedTuple):
    """The expected array in float64, 0 where numbers do not matter, and the judge of how far another may be from it.

    limit: of the largest error; rows: of the root mean square of each row, see `rules.row_bounds`; None = any. half: in
    half precision, the rule for a whole output. means: of a gradient there, right arrays, each with its bound of the
    root mean square of all errors; being near one of them is enough. shares: of the limit, for each number; None = 1.
    """

    X: np.ndarray
    limit: float
    rows: np.ndarray | None = None
    half: Any = None
    means: Means = ()
    shares: np.ndarray | None = None

    @classmethod
    def of(cls, dtype: FloatName, oracle: np.ndarray, base: np.ndarray, by_rows: bool = True) -> "Expected":
        """Expect an oracle; base: the plain computation in dtype; by_rows: whether the mean of each row counts."""
        return cls(oracle, bound(dtype, oracle, base), row_bounds(dtype, oracle, base) if by_rows else None)

    def judge(self, theirs: np.ndarray) -> Verdict:
        """Judge an array, 0 where it does not matter."""
        far = error(self.scale(theirs), self.scale(self.X))
        if far == math.inf or not self.in_half:
            return Verdict(far, self.limit)
        if self.half is not None and self.X.size and (far <= CLEAR * self.limit < math.inf or self.half.has_ties):
            rounding = self.half.judge(theirs)
            words = f"{rounding.worst} that the nearest style of rounding leaves"
            limit = rounding.limit if self.shares is None else self.limit
            return Verdict(far, limit, rounding.ratio, words, rounding)
        mean = nearest(theirs, self.means) if self.rows is None else worst_row(theirs, self.X, self.rows)
        return Verdict(far, self.limit, max(fraction(far, self.limit), fraction(*mean)), "the mean square of all")

    def scale(self, X: np.ndarray) -> np.ndarray:
        """Divide numbers by their shares of the limit, so that one limit is that of all."""
        return X if self.shares is None else X / self.shares

    def distances(self, theirs: np.ndarray) -> np.ndarray:
        """Return the error of each number, by its share of the limit; infinite where one alone is NaN."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.abs(self.scale(theirs - self.X)), nan=np.inf)

    @property
    def in_half(self) -> bool:
        """Return whether more than the largest error is measured, as of outputs and gradients in half precision."""
        return self.rows is not None or bool(self.means)

    def ratio(self, theirs: np.ndarray) -> float:
        """Return the ratio of an array, 0 where it does not matter: the same if at most 1."""
        return self.judge(theirs).ratio

    def ratio_of_rest(self, rest: np.ndarray) -> float:
        """Return the ratio of the errors that mistakes leave, were they all; infinite where these have bounds alone."""
        return math.inf if self.half is None and not self.means else self.ratio(self.X + rest)

    def ratio_of_mistake(self, theirs: np.ndarray, enough: float, plain: Callable[[], Any]) -> float:
        """Return the ratio of right code with a mistake, or one that is enough; plain: computes it without."""
        found = self._replace(half=None).ratio(theirs)
        if self.half is None or found > enough:
            return found
        return max(found, self.half.ratio_of_change(theirs.astype(np.float64) - plain()))

    def outside(self, theirs: np.ndarray, verdict: Verdict) -> np.ndarray:
        """Return which numbers of an array are wrong by a verdict; all that are measured if no error is too large."""
        if verdict.error > verdict.limit:
            return outside(self.scale(theirs), self.scale(self.X), verdict.limit)
        return np.broadcast_to(True if verdict.rounding is None else verdict.rounding.rows[..., None], theirs.shape)

    def part(self, cut: Callable[[np.ndarray], np.ndarray], samples: Any, rows: Any, by_rows: bool) -> "Expected":
        """Return what is expected of some samples and queries, as cut takes them; by_rows: whether row means count."""
        bounds = self.rows[samples][:, rows] if by_rows and self.rows is not None else None
        return Expected(cut(self.X), self.limit, bounds, shares=None if self.shares is None else cut(self.shares))


@dataclasses.dataclass(frozen=True)
class Problem:
    """A layer on NumPy and the arguments of a call, checked, with the expected results."""

    layer: MultiHeadAttention
    queries: np.ndarray  # in the layer's dtype, as keys and values
    keys: np.ndarray
    values: np.ndarray
    call: Call  # the other arguments, checked
    cotangent: np.ndarray | None = None  # the gradient of the loss by the output, None = ones
    rows: np.ndarray | None = None  # the queries that count, booleans (B, Q), None = all
    empty_rows: bool = True  # whether queries that see no key count
    angles: bool = False  # whether the base takes angles in float32, as all ports do; never in float64
    style: StyleName | None = None  # the styles of half precision that are right, None = all

    @property
    def config(self) -> Config:
        """Return the layer's configuration."""
        return self.layer.config

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Return the sizes of the call."""
        return Sizes(len(self.queries), self.queries.shape[1], self.keys.shape[1], self.config)

    @functools.cached_property
    def visible(self) -> np.ndarray:
        """Return which query sees which key, (B, H, Q, K)."""
        sizes = self.sizes
        visible = dispatch.lesson("numpy").visible_keys(self.queries, self.keys, self.call)
        full = sizes.B, self.config.num_heads, sizes.Q, sizes.K
        return np.broadcast_to(True if visible is None else visible, full)

    @functools.cached_property
    def one_input(self) -> bool:
        """Return whether queries, keys and values are the same numbers, as in self-attention."""
        return np.array_equal(self.queries, self.keys) and np.array_equal(self.keys, self.values)

    @functools.cached_property
    def rows_that_count(self) -> np.ndarray:
        """Return which queries count, (B, Q): those of `rows` that see a key, or all of them with `empty_rows`."""
        sizes = self.sizes
        seeing = np.ones((sizes.B, sizes.Q), bool) if self.empty_rows else np.asarray(self.visible.any((1, 3)))
        return seeing if self.rows is None else seeing & self.rows

    @functools.cached_property
    def pairs_that_count(self) -> np.ndarray:
        """Return which visible pairs of a query and a key count, (B, H, Q, K): those of the rows that count."""
        return self.visible & self.rows_that_count[:, None, :, None]

    def by_slots(self, pairs: np.ndarray) -> np.ndarray:
        """Return pairs of queries and keys as they are compared: by slots, if the call has a cache."""
        return pairs

    def title(self, name: str) -> str:
        """Return the name of an array in a report."""
        return name

    def turn(self, name: str, X: np.ndarray, layout: str | None = None) -> Turn | str:
        """Return the function from their array to the compared shape, or why none fits; layout: as of `choices`."""
        return turn_of(name, X, self.expected(name).X.shape, self.config.num_heads, layout)

    def matters(self, name: str) -> np.ndarray:
        """Return which numbers of an array count, see `layouts.matters`."""
        return matters(name, self.pairs_that_count, self.rows_that_count, self.config.num_key_value_heads)

    def blank_unused(self, name: str, X: np.ndarray) -> np.ndarray:
        """Return an array in float64, 0 where it does not matter."""
        return np.where(self.matters(name), X.astype(np.float64), 0)

    @functools.cached_property
    def half(self) -> Any:
        """Return the rule for an output in half precision, None in others, and without queries."""
        if UNIT[self.config.dtype] < UNIT["float16"] or not self.sizes.B * self.sizes.Q:
            return None
        from mha.parity.rule.half_precision import HalfPrecision  # which other precisions do without
        from mha.parity.rule.simulation import Simulation

        simulation = Simulation(self.layer, *self._arguments("float32"))
        return HalfPrecision(simulation, self._output(self.wide), self.rows_that_count, self.style)

    @functools.cached_property
    def plain(self) -> MultiHeadAttention:
        """Return the layer that computes the base."""
        return with_coarse_angles(self.layer) if self.angles else self.layer

    @functools.cached_property
    def wide(self) -> MultiHeadAttention:
        """Return the layer in float64."""
        return in_dtype(self.layer, "float64")

    def with_layers_of(self, other: "Problem") -> "Problem":
        """Return this problem; it reuses the layers that another one made, if the layer is the same."""
        if self.layer is other.layer and self.angles == other.angles:
            vars(self).update({name: X for name, X in vars(other).items() if name in ("plain", "wide")})
        return self

    @functools.cached_property
    def base(self) -> Named:
        """Return every step of NumPy in the layer's dtype, each in the compared shape."""
        return self.oracle if self.config.dtype == "float64" else self._steps(self.plain)

    @functools.cached_property
    def oracle(self) -> Named:
        """Return every step of NumPy in float64, each in the compared shape."""
        return self._steps(self.wide)

    @functools.cached_property
    def base_gradients(self) -> Named:
        """Return every gradient of NumPy in the layer's dtype."""
        return self.oracle_gradients if self.config.dtype == "float64" else self._gradients(self.plain)

    @functools.cached_property
    def oracle_gradients(self) -> Named:
        """Return every gradient of NumPy in float64."""
        return self._gradients(self.wide)

    @functools.cached_property
    def expectations(self) -> dict[str, Expected]:
        """Return the results of `expected` so far, by name."""
        return {}

    def forget(self) -> None:
        """Free the steps and gradients, which are computed again when they are asked for."""
        for name in ("oracle", "base", "oracle_gradients", "base_gradients", "wide"):
            vars(self).pop(name, None)

    def alone(self) -> "Problem":
        """Return the same problem with the arrays expected so far, and without the steps, which take memory."""
        made = dataclasses.replace(self)
        made.expectations.update(self.expectations)
        return made

    def expected(self, name: str) -> Expected:
        """Return the expected array of this name, and its bounds."""
        if name not in self.expectations:
            self.expectations[name] = self._expect(name)
        return self.expectations[name]

    def _expect(self, name: str) -> Expected:
        if name.startswith(GRADIENT):
            short, sides = name.removeprefix(GRADIENT), (self.oracle_gradients, self.base_gradients)
            if short == INPUTS:
                oracle, base = (np.sum([one[name] for name in OF_INPUTS], 0) for one in sides)
            else:
                oracle, base = (one[short] for one in sides)
            return self.expected_gradient(short, oracle, base, gradient_scale(short, self.oracle_gradients))
        if name == "output":
            return self.expected_output()
        oracle, base = (self.blank_unused(name, X[name]) for X in (self.oracle, self.base))
        return Expected(oracle, self.limit(name, oracle, base))

    def expected_gradient(self, name: str, oracle: np.ndarray, base: np.ndarray, scale: float) -> Expected:
        """Return the expected gradient, and its bound; scale: as of `bound`."""
        return Expected(oracle, self.limit(GRADIENT + name, oracle, base, scale))

    def limit(self, name: str, oracle: np.ndarray, base: np.ndarray, scale: float = 0.0) -> float:
        """Return how far an array may be; base: NumPy's in the layer's dtype; scale: as of `bound`."""
        return bound(self.config.dtype, oracle, base, gradient=name.startswith(GRADIENT), scale=scale)

    def expected_output(self) -> Expected:
        """Return the expected output, without the memory that the steps take."""
        oracle, base = (self.blank_unused("output", X) for X in self.outputs())
        rows = row_bounds(self.config.dtype, oracle, base)
        return Expected(oracle, self.limit("output", oracle, base), rows, self.half)

    def gradients(self) -> list[str]:
        """List the names of all gradients; that of the one input, where there is one, is the sum of three."""
        inputs = *OF_INPUTS, *[INPUTS] * self.one_input, *self.call.differentiable()
        return [GRADIENT + name for name in (*inputs, *self.layer.weights)]

    def names(self) -> list[str]:
        """List the names of all arrays that can be compared: the steps of `trace`, then the gradients."""
        return [*self.base, *self.gradients()]

    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the output in float64 and in the layer's dtype, without the memory that the steps take."""
        if self.half is not None:
            return self.half.oracle_output, self.half.base()
        return self._output(self.wide), self._output(self.plain)

    def _output(self, layer: MultiHeadAttention) -> np.ndarray:
        *inputs, call = self._arguments(layer.config.dtype)
        arguments = call.arguments()
        return np.asarray(layer(*inputs, **{name: arguments[name] for name in ROWS}))

    def _arguments(self, dtype: FloatName) -> tuple[Any, ...]:
        """Return inputs and the other arguments in a dtype."""
        kind = numpy_dtype(dtype)
        call = self.call._replace(**{name: X.astype(kind) for name, X in self.call.differentiable().items()})
        return *(X.astype(kind) for X in (self.queries, self.keys, self.values)), call

    def _trace(self, layer: MultiHeadAttention) -> Named:
        """Return every step of the call in a layer's dtype, as `trace` has them."""
        module = dispatch.lesson("numpy")
        with dispatch.load("numpy").context(layer.config.dtype):
            return module.trace(layer.layer, *self._arguments(layer.config.dtype))

    def _steps(self, layer: MultiHeadAttention) -> Named:
        found: Named = {}
        for name, X in self._trace(layer).items():
            found[name] = trace_layout(name, self.sizes.shape(name))[1](X)
            if name == "weights":
                found[MEANS] = means(found[name])
        return found

    def _gradients(self, layer: MultiHeadAttention) -> Named:
        module, dtype = dispatch.lesson("numpy"), numpy_dtype(layer.config.dtype)
        cotangent = None if self.cotangent is None else self.cotangent.astype(dtype)
        with dispatch.load("numpy").context(layer.config.dtype):
            return module.gradients(layer.layer, *self._arguments(layer.config.dtype), cotangent)


def problem(
    attention: Any,
    queries: Any,
    keys: Any,
    values: Any,
    call: Mapping[str, Any],
    cotangent: Any = None,
    rows: Any = None,
    empty_rows: bool = True,
    angles: bool = False,
    style: str | None = None,
) -> Problem:
    """Make a problem of the arguments of `parity.compare`; call: the others by name. Raises as the layer does.

    A cache among them is copied. Beside a frozen one, the queries stand in for keys and values.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    layer, dtype = attention.to("numpy"), attention.config.dtype
    if (cache := call.get("cache")) is not None:
        if not isinstance(cache, Cache):
            raise TypeError(f"cache is {checks.brief(cache)}, expected an mha.Cache, as attention.cache makes it")
        cache = cache.to("numpy")  # a copy: a call leaves its cache used up
    alone = cache is not None and keys is None and values is None  # beside a frozen cache, which has them
    given = one_framework(queries, queries if alone else keys, queries if alone else values)
    queries, keys, values, _ = inputs.of_one_framework("numpy", dtype, *given)
    checks.flag("causal", call["causal"])
    whole = ("integers", "switch")  # of any framework, as every call takes them
    known = {name: X for name, X in call.items() if name in ROWS}
    rest = {name: X if ROWS[name].holds in whole else as_numpy(X) for name, X in known.items()}
    own = (None, None) if alone else (keys, values)
    checked = check(dispatch.load("numpy"), layer.layer, queries, own[0], own[1], Call(**rest, cache=cache))
    if cache is not None and cotangent is not None:
        raise ValueError("cotangent is given beside a cache, expected None: a call with a cache has no gradients")
    if cotangent is not None:
        cotangent, _ = inputs.array_and_backend("numpy", dtype, "cotangent", as_numpy(cotangent))
        shape = (*queries.shape[:2], attention.config.num_hiddens)
        if cotangent.shape != shape or checks.dtype_name(cotangent.dtype) != dtype:
            raise ValueError(
                f"cotangent has shape {cotangent.shape} and dtype {cotangent.dtype}, expected {shape} and {dtype}"
            )
    rows = None if rows is None else rows_of(rows, queries.shape[:2])
    if rows is not None:  # the loss is of these alone
        ones = np.ones((*queries.shape[:2], attention.config.num_hiddens), queries.dtype)
        cotangent = np.where(rows[..., None], ones if cotangent is None else cotangent, np.zeros_like(ones))
    style = None if style is None else checks.choice("style", style, get_args(StyleName))
    counting = rows, checks.flag("empty_rows", empty_rows), angles, style
    return Problem(layer, queries.copy(), keys.copy(), values.copy(), checked, cotangent, *counting)


def with_rows(asked: Problem) -> Problem:
    """Return the problem; ValueError if none of its rows counts: then any arrays would be the same."""
    if asked.rows_that_count.size and not asked.rows_that_count.any():
        which = "no query" if asked.rows is None else "no query of rows"
        raise ValueError(f"{which} sees a key, so that no row counts; with empty_rows=True such rows count, too")
    return asked


def rows_of(rows: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return rows= as NumPy's booleans (B, Q); TypeError or ValueError if it is anything else, or all are False."""
    expected = f"booleans of shape {shape}: (batch, queries), True = the row counts"
    if isinstance(rows, (list, tuple)):
        rows = checks.array_of("rows", rows, "bool")
    if dispatch.backend_of(rows) is None:
        raise TypeError(f"rows is {checks.brief(rows)}, expected {expected}")
    found = arrays.to_numpy(rows)
    if found.dtype != bool:
        raise TypeError(f"rows has dtype {checks.dtype_name(found.dtype)}, expected {expected}")
    if found.shape != shape:
        raise ValueError(f"rows has shape {found.shape}, expected {expected}")
    if found.size and not found.any():
        raise ValueError("rows is all False, expected True for the rows that count, one at least")
    return np.array(found)


def one_framework(queries: Any, keys: Any, values: Any) -> tuple[Any, ...]:
    """Return queries, keys and values as NumPy arrays; lists stay lists. All must be of one framework."""
    named = {"queries": queries, "keys": keys, "values": values}
    kinds = {name: dispatch.backend_of(X) for name, X in named.items() if not isinstance(X, (list, tuple))}
    first = next(iter(kinds.items()), None)
    for name, backend in kinds.items():
        if first is not None and backend != first[1]:
            raise TypeError(f"{name} is of {backend}, expected {first[1]} as {first[0]}; convert with mha.to_numpy")
    return tuple(map(as_numpy, named.values()))


def as_numpy(X: Any) -> Any:
    """Turn an array of any framework into NumPy's; anything else stays as it is, and the checks refuse it."""
    return X if dispatch.backend_of(X) in (None, "numpy") else arrays.to_numpy(X)
