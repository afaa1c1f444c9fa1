"""Remember plans of calls: the decisions that follow from types, shapes, dtypes, devices and modes alone."""

import operator
from typing import Any

import numpy as np

from mha.core.cache import Cache
from mha.core.call.declaration import ARRAYS, Call

MOST = 256  # plans of one layer
SWITCHES = bool, type(None)
_arrays = operator.itemgetter(*(Call._fields.index(name) for name in ARRAYS if name != "offset"))


class Plans(dict[Any, Call]):
    """The plans of one layer: its checked calls by their kind. Copies of the layer share them; no file has them."""

    def remember(self, kind: Any, call: Call) -> None:
        """Remember a call of this kind; its arrays are left out, so that they can be freed."""
        if len(self) >= MOST:
            self.clear()
        without_arrays = call.map_arrays(lambda X: None)._replace(cache=None)
        self[kind] = without_arrays.with_plan(known=None, extremes=None, step=None)

    def __deepcopy__(self, memo: Any) -> "Plans":
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


def call_kind(
    types: tuple[type, ...], state: tuple[Any, ...], queries: Any, keys: Any, values: Any, call: Call
) -> tuple[Any, ...] | None:
    """Return the facts that decide how a call is computed, whatever its values; None if it has no plan.

    types: those of arrays that have a shape and a dtype, and a device if their framework does not move them by itself;
    state: of the layer, the identity of its configuration first.
    """
    causal, offset, training, return_weights = call.causal, call.offset, call.training, call.return_weights
    if type(queries) not in types or type(offset) is not int or {type(causal), type(return_weights)} != {bool}:
        return None
    if type(training) not in SWITCHES or call.by_tokens():  # 1 is as True, as a key
        return None
    kind = [*state, causal, offset if offset == 0 else 1, training, return_weights]
    kind += queries.shape, queries.dtype, getattr(queries, "device", None)
    slots: tuple[Any, ...] = ()
    if call.cache is not None:
        if type(call.cache) is not Cache or call.cache.frozen or id(call.cache.config) != state[0]:
            return None
        slots = call.cache.arrays()[:1]
    for X in (keys, values, *slots):
        if X is None or X is queries:
            kind.append(X is None)
        elif type(X) in types:
            kind += X.shape, X.dtype, getattr(X, "device", None)
        else:
            return None
    for X in _arrays(call):
        if X is None:
            kind.append(X)
        elif type(X) in types or type(X) is np.ndarray:
            kind += X.shape, X.dtype, getattr(X, "device", None)
        else:
            return None
    return tuple(kind)
