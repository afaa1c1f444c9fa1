"""A layer and one call of it in NumPy, checked, with its results in float64 and in the layer's own dtype."""

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mha import arrays, checks, dispatch
from mha.call import ROWS, Call, check, inputs
from mha.config import Config, numpy_dtype
from mha.layer import MultiHeadAttention
from mha.parity.same.layouts import GRADIENT, Sizes, matters, traced
from mha.parity.same.rules import bound, gradient_scale, in_dtype, ratio_of, row_bounds

Named = dict[str, np.ndarray]


class Expected(NamedTuple):
    """An array in float64, 0 where it does not matter, and how far the layer's dtype may be from it.

    limit: of the largest error; rows: of the root mean square of each row, see `rules.row_bounds`; None = any.
    """

    X: np.ndarray
    limit: float
    rows: np.ndarray | None = None

    def ratio(self, theirs: np.ndarray) -> float:
        """Their error by its bound, at most 1 if they are the same; theirs are 0 where it does not matter."""
        return ratio_of(theirs, self.X, self.limit, self.rows)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A layer on NumPy and the arguments of a call, checked.

    queries, keys, values: NumPy arrays in the layer's dtype; call: the rest, checked; cotangent: None = ones.
    """

    layer: MultiHeadAttention
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    call: Call
    cotangent: np.ndarray | None = None

    @property
    def config(self) -> Config:
        """The layer's configuration."""
        return self.layer.config

    @functools.cached_property
    def sizes(self) -> Sizes:
        """The sizes of the call."""
        return Sizes(len(self.queries), self.queries.shape[1], self.keys.shape[1], self.config)

    @functools.cached_property
    def visible(self) -> np.ndarray:
        """Which query sees which key, (B, H, Q, K)."""
        sizes = self.sizes
        visible = dispatch.lesson("numpy").visible_keys(self.queries, self.keys, self.call)
        full = sizes.B, self.config.num_heads, sizes.Q, sizes.K
        return np.broadcast_to(True if visible is None else visible, full)

    def matters(self, name: str) -> np.ndarray:
        """Return which numbers of an array count, see `layouts.matters`."""
        return matters(name, self.visible, self.config.num_key_value_heads)

    @functools.cached_property
    def base(self) -> Named:
        """Every step of NumPy in the layer's dtype, each in the shape in which it is compared."""
        return self.oracle if self.config.dtype == "float64" else self._steps(self.layer)

    @functools.cached_property
    def oracle(self) -> Named:
        """Every step of NumPy in float64, likewise."""
        return self._steps(in_dtype(self.layer, "float64"))

    @functools.cached_property
    def base_gradients(self) -> Named:
        """Every gradient of NumPy in the layer's dtype."""
        return self.oracle_gradients if self.config.dtype == "float64" else self._gradients(self.layer)

    @functools.cached_property
    def oracle_gradients(self) -> Named:
        """Every gradient of NumPy in float64."""
        return self._gradients(in_dtype(self.layer, "float64"))

    @functools.cached_property
    def known(self) -> dict[str, Expected]:
        """What `expected` has returned, by name."""
        return {}

    def alone(self) -> "Problem":
        """The same problem, with what is expected of the arrays that were asked for, and no other step."""
        made = dataclasses.replace(self)
        made.known.update(self.known)
        return made

    def expected(self, name: str) -> Expected:
        """Return what is expected of an array."""
        if name not in self.known:
            self.known[name] = self._expected(name)
        return self.known[name]

    def _expected(self, name: str) -> Expected:
        dtype = self.config.dtype
        if name.startswith(GRADIENT):
            short = name.removeprefix(GRADIENT)
            oracle, scale = self.oracle_gradients[short], gradient_scale(short, self.oracle_gradients)
            return Expected(oracle, bound(dtype, oracle, self.base_gradients[short], gradient=True, scale=scale))
        counts = self.matters(name)
        oracle, base = (np.where(counts, X[name], 0) for X in (self.oracle, self.base))
        return Expected(
            oracle, bound(dtype, oracle, base), row_bounds(dtype, oracle, base) if name == "output" else None
        )

    def gradients(self) -> list[str]:
        """List the names of all gradients."""
        inputs = "queries", "keys", "values", *self.call.differentiable()
        return [GRADIENT + name for name in (*inputs, *self.layer.weights)]

    def names(self) -> list[str]:
        """List the names of all arrays that can be compared: the steps of `trace`, then the gradients."""
        return [*self.base, *self.gradients()]

    def _arguments(self, layer: MultiHeadAttention) -> tuple[Any, ...]:
        """Inputs and the rest in a layer's dtype."""
        dtype = numpy_dtype(layer.config.dtype)
        call = self.call._replace(**{name: X.astype(dtype) for name, X in self.call.differentiable().items()})
        return *(X.astype(dtype) for X in (self.queries, self.keys, self.values)), call

    def _steps(self, layer: MultiHeadAttention) -> Named:
        module = dispatch.lesson("numpy")
        with dispatch.load("numpy").context(layer.config.dtype):
            steps = module.trace(layer.layer, *self._arguments(layer))
        return {name: traced(name, self.sizes.shape(name))[1](X) for name, X in steps.items()}

    def _gradients(self, layer: MultiHeadAttention) -> Named:
        module, dtype = dispatch.lesson("numpy"), numpy_dtype(layer.config.dtype)
        cotangent = None if self.cotangent is None else self.cotangent.astype(dtype)
        with dispatch.load("numpy").context(layer.config.dtype):
            return module.gradients(layer.layer, *self._arguments(layer), cotangent)


def problem(attention: Any, queries: Any, keys: Any, values: Any, call: Mapping[str, Any], cotangent: Any) -> Problem:
    """Make a problem of the arguments of `parity.compare`; call: the others by name. Raises as the layer does."""
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    layer, dtype = attention.to("numpy"), attention.config.dtype
    given = one_framework(queries, keys, values)
    queries, keys, values, _ = inputs.of_one_framework("numpy", dtype, *given)
    checks.flag("causal", call["causal"])
    whole = ("integers", "switch")  # of any framework, as every call takes them
    known = {name: X for name, X in call.items() if name in ROWS}
    rest = {name: X if ROWS[name].holds in whole else as_numpy(X) for name, X in known.items()}
    checked = check(dispatch.load("numpy"), layer.layer, queries, keys, values, Call(**rest))
    if cotangent is not None:
        cotangent, _ = inputs.array("numpy", dtype, "cotangent", as_numpy(cotangent))
        shape = (*queries.shape[:2], attention.config.num_hiddens)
        if cotangent.shape != shape or checks.dtype_name(cotangent.dtype) != dtype:
            raise ValueError(
                f"cotangent has shape {cotangent.shape} and dtype {cotangent.dtype}, expected {shape} and {dtype}"
            )
    return Problem(layer, queries.copy(), keys.copy(), values.copy(), checked, cotangent)


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
    return X if X is None or dispatch.backend_of(X) in (None, "numpy") else arrays.to_numpy(X)


def named(asked: Problem, theirs: Any) -> Named:
    """Copy their arrays into NumPy's, by the names of the report and in its order."""
    known = asked.names()
    if isinstance(theirs, tuple):
        if len(theirs) != 2:
            raise ValueError(f"theirs is a tuple of {len(theirs)}, expected the pair (output, weights)")
        theirs = {"output": theirs[0]} | ({} if theirs[1] is None else {"weights": theirs[1]})
    if not isinstance(theirs, Mapping):
        return {"output": floats("theirs", theirs)}
    if not theirs:
        raise ValueError(f"theirs is empty, expected an array or a mapping of some of {', '.join(known)}")
    found: Named = {}
    for name, X in theirs.items():
        full = name if name in known else f"{GRADIENT}{name}"
        if full not in known:
            raise ValueError(f"theirs has {unknown(name, known)}")
        if full in found:
            raise ValueError(f"theirs has {full} twice, as {name!r} too; leave one out")
        found[full] = floats(f"theirs[{name!r}]", X)
        weight = asked.layer.weights.get(full.removeprefix(GRADIENT))
        if weight is not None and weight.any() and np.array_equal(weight, found[full]):
            raise ValueError(f"theirs[{name!r}] is the weight itself, expected the gradient of the loss by it")
    return {name: found[name] for name in known if name in found}


def unknown(name: object, known: list[str]) -> str:
    """Return the words about a name that no array has."""
    near = difflib.get_close_matches(str(name), known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name!r}, expected some of {', '.join(known)}{meant}"


def floats(name: str, X: Any) -> np.ndarray:
    """Copy an array of floats of any framework into NumPy's."""
    if callable(X) and dispatch.backend_of(X) is None:
        raise TypeError(f"{name} is a {type(X).__name__}, which can be called, expected what it returns: an array")
    dispatch.module_of(X, name)  # or it is no array
    array = arrays.to_numpy(X)
    if checks.dtype_name(array.dtype) not in checks.FLOATS:
        raise TypeError(f"{name} has dtype {array.dtype}, expected {', '.join(checks.FLOATS)}")
    return np.array(array)


def checked_others(others: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the weights of other layers by their names."""
    if others is None:
        return {}
    if not isinstance(others, Mapping) or not all(isinstance(X, MultiHeadAttention) for X in others.values()):
        raise TypeError(f"others is {checks.brief(others)}, expected a mapping of names to mha.MultiHeadAttention")
    return {str(name): layer.weights for name, layer in others.items()}
