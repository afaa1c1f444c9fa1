"""A layer and one call of it, checked and in NumPy, and what float64 and the layer's own dtype make of it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import arguments, arrays, checks, dispatch, inputs
from mha.config import Config, numpy_dtype
from mha.layer import MultiHeadAttention
from mha.parity.layouts import GRADIENT, Sizes, kind, matters, ways
from mha.parity.rules import bound, gradient_scale, in_dtype

Named = dict[str, np.ndarray]
CALL = ("valid_lens", "mask", "score_bias", "causal", "offset", "head_gates")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A layer on NumPy and the arguments of a call, checked.

    queries, keys, values: NumPy arrays in the layer's dtype; hiding, head_gates: the rest, as NumPy arrays;
    cotangent: None = ones.
    """

    layer: MultiHeadAttention
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    hiding: arguments.Hiding
    head_gates: np.ndarray | None
    cotangent: np.ndarray | None = None

    @property
    def config(self) -> Config:
        """The layer's."""
        return self.layer.config

    @functools.cached_property
    def sizes(self) -> Sizes:
        """The sizes of the call."""
        return Sizes(len(self.queries), self.queries.shape[1], self.keys.shape[1], self.config)

    @functools.cached_property
    def visible(self) -> np.ndarray:
        """Which query sees which key, (B, H, Q, K)."""
        sizes = self.sizes
        visible = dispatch.lesson("numpy").visible_keys(self.queries, self.keys, *self.hiding)
        full = sizes.B, self.config.num_heads, sizes.Q, sizes.K
        return np.broadcast_to(True if visible is None else visible, full)

    def matters(self, name: str) -> np.ndarray:
        """What of an array counts, see `layouts.matters`."""
        return matters(name, self.visible, self.config.num_key_value_heads)

    @functools.cached_property
    def base(self) -> Named:
        """Every step of NumPy in the layer's dtype, each in the shape that steps are compared in."""
        return self._steps(self.layer)

    @functools.cached_property
    def oracle(self) -> Named:
        """Every step of NumPy in float64, likewise."""
        return self._steps(in_dtype(self.layer, "float64"))

    @functools.cached_property
    def base_gradients(self) -> Named:
        """Every gradient of NumPy in the layer's dtype."""
        return self._gradients(self.layer)

    @functools.cached_property
    def oracle_gradients(self) -> Named:
        """Every gradient of NumPy in float64."""
        return self._gradients(in_dtype(self.layer, "float64"))

    def expected(self, name: str) -> tuple[np.ndarray, float]:
        """What float64 has of an array, 0 where it does not matter, and how far the layer's dtype may be from it."""
        dtype = self.config.dtype
        if name.startswith(GRADIENT):
            short = name.removeprefix(GRADIENT)
            oracle, scale = self.oracle_gradients[short], gradient_scale(short, self.oracle_gradients)
            return oracle, bound(dtype, oracle, self.base_gradients[short], gradient=True, scale=scale)
        counts = self.matters(name)
        oracle, base = (np.where(counts, X[name], 0) for X in (self.oracle, self.base))
        return oracle, bound(dtype, oracle, base)

    def names(self) -> list[str]:
        """All arrays that there are to compare: the steps of `trace`, then the gradients."""
        given = [name for name in ("score_bias",) if self.hiding.score_bias is not None]
        given += [name for name in ("head_gates",) if self.head_gates is not None]
        gradients = ("queries", "keys", "values", *given, *self.layer.weights)
        return [*self.base, *(GRADIENT + name for name in gradients)]

    def _arguments(self, layer: MultiHeadAttention) -> tuple[Any, ...]:
        """Inputs and the rest in a layer's dtype."""
        dtype = numpy_dtype(layer.config.dtype)
        hiding, floats = self.hiding, (self.hiding.score_bias, self.head_gates)
        bias, gates = (X if X is None else X.astype(dtype) for X in floats)
        call = arguments.Checked(hiding._replace(score_bias=bias), gates)
        return *(X.astype(dtype) for X in (self.queries, self.keys, self.values)), call

    def _steps(self, layer: MultiHeadAttention) -> Named:
        module = dispatch.lesson("numpy")
        with dispatch.load("numpy").context(layer.config.dtype):
            steps = module.trace(layer.layer, *self._arguments(layer))
        turned = {}
        for name, X in steps.items():
            shape = self.sizes.shape(name)
            split = "(B, T, H*d)" if name in ("W_q", "W_k", "W_v", "merged") else "(B*H, T, d)"
            layout = {"rows": split, "pairs": "(B*H, Q, K)", "whole": ""}[kind(name)]
            turned[name] = ways(name, shape)[layout][1](X)
        return turned

    def _gradients(self, layer: MultiHeadAttention) -> Named:
        module, dtype = dispatch.lesson("numpy"), numpy_dtype(layer.config.dtype)
        cotangent = None if self.cotangent is None else self.cotangent.astype(dtype)
        with dispatch.load("numpy").context(layer.config.dtype):
            return module.gradients(layer.layer, *self._arguments(layer), cotangent=cotangent)


def problem(attention: Any, queries: Any, keys: Any, values: Any, call: Mapping[str, Any], cotangent: Any) -> Problem:
    """A problem of the arguments of `parity.compare`; call: those named in CALL. Raises as a call of the layer does."""
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    layer, dtype = attention.to("numpy"), attention.config.dtype
    given = one_framework(queries, keys, values)
    queries, keys, values, _ = inputs.of_one_framework("numpy", dtype, *given)
    checks.flag("causal", call["causal"])
    rest = {name: as_numpy(X) if name in ("mask", "score_bias", "head_gates") else X for name, X in call.items()}
    hiding, gates = arguments.check("numpy", layer.layer, queries, keys, values, **rest)
    if cotangent is not None:
        cotangent, _ = inputs.array("numpy", dtype, "cotangent", as_numpy(cotangent))
        shape = (*queries.shape[:2], attention.config.num_hiddens)
        if cotangent.shape != shape or checks.dtype_name(cotangent.dtype) != dtype:
            raise ValueError(
                f"cotangent has shape {cotangent.shape} and dtype {cotangent.dtype}, expected {shape} and {dtype}"
            )
    return Problem(layer, queries.copy(), keys.copy(), values.copy(), hiding, gates, cotangent)


def one_framework(queries: Any, keys: Any, values: Any) -> tuple[Any, ...]:
    """Queries, keys and values as NumPy arrays, or as the lists that they are; they must be of one framework."""
    named = {"queries": queries, "keys": keys, "values": values}
    kinds = {name: dispatch.backend_of(X) for name, X in named.items() if not isinstance(X, (list, tuple))}
    first = next(iter(kinds.items()), None)
    for name, backend in kinds.items():
        if first is not None and backend != first[1]:
            raise TypeError(f"{name} is of {backend}, expected {first[1]} as {first[0]}; convert with mha.to_numpy")
    return tuple(map(as_numpy, named.values()))


def as_numpy(X: Any) -> Any:
    """An array of any framework as NumPy's; anything else as it is, to be refused where it is checked."""
    return X if X is None or dispatch.backend_of(X) in (None, "numpy") else arrays.to_numpy(X)
