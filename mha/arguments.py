"""The arguments of a call, checked before anything is computed: what does not fit is refused, the rest made one kind.

The dispatch layer, the frameworks' own layers and the book's names all come through here, so that a bad argument meets
the same check and the same words on each of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mha import calls, checks, dispatch
from mha.config import numpy_dtype
from mha.names import BackendName


class Hiding(NamedTuple):
    """What hides keys from queries, of a call that has been checked; see `visible_keys` of the lessons.

    offset: the position of the first query, an int, or integers (B, 1) or (1, 1).
    """

    valid_lens: Any = None
    mask: Any = None
    score_bias: Any = None
    causal: bool = False
    offset: Any = 0
    window: tuple[int | None, int | None] | None = None

    def arrays(self) -> dict[str, Any]:
        """Its arrays by name, those that are given; an offset may be an int."""
        named = {name: getattr(self, name) for name in ("valid_lens", "mask", "score_bias", "offset")}
        return {name: X for name, X in named.items() if X is not None and type(X) is not int}


class Checked(NamedTuple):
    """The arguments of a call that has been checked, beside queries, keys and values.

    Passed to a layer as its `valid_lens`, it says that nothing is to be checked again.
    """

    hiding: Hiding
    head_gates: Any = None

    def arrays(self) -> list[Any]:
        """Its arrays, those that are given."""
        gates = [] if self.head_gates is None else [self.head_gates]
        return [*self.hiding.arrays().values(), *gates]

    def replaced(self, named: dict[str, Any]) -> "Checked":
        """The same, with those arrays that are named: of score_bias and head_gates."""
        hiding = self.hiding._replace(score_bias=named.get("score_bias"))
        return Checked(hiding, named.get("head_gates"))

    def mapped(self, function: Callable[[Any], Any]) -> "Checked":
        """The same, with a function of its arrays in their places."""
        changed = {name: function(X) for name, X in self.hiding.arrays().items()}
        gates = None if self.head_gates is None else function(self.head_gates)
        return Checked(self.hiding._replace(**changed), gates)


def check(
    backend: BackendName,
    layer: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    mask: Any = None,
    score_bias: Any = None,
    causal: Any = False,
    offset: Any = 0,
    head_gates: Any = None,
    training: Any = None,
    return_weights: Any = False,
) -> Checked:
    """Refuse arguments that do not fit a layer, and make those beside queries, keys and values the backend's own.

    Args:
        backend: the backend whose arrays queries, keys and values must be.
        layer: a backend's own layer, with its `config`.
        queries, keys, values, and the others: as for `mha.MultiHeadAttention`; but training may be None. All but
            queries, keys and values may be nested lists or arrays of any framework; `Checked` lengths are returned as
            they are.

    Returns:
        The others as arrays of the backend; None stays None. Lengths whose values are known are at most K; those that
        only a compiler will know come back as they are, unchecked.

    Raises:
        TypeError, ValueError: if an argument does not fit.
    """
    if isinstance(valid_lens, Checked):
        return valid_lens
    module, config = dispatch.load(backend), layer.config
    place = module.place(layer, queries)
    given, valid_lens = valid_lens, known("valid_lens", valid_lens)
    mask = mask if module.is_own(mask) else known("mask", mask, "bool")
    switches = causal, training, return_weights
    calls.inputs(config, queries, keys, values, valid_lens, mask, *switches, is_own=module.is_own, place=place)
    if not (score_bias is None and head_gates is None and type(offset) is int):
        score_bias = module_floats(module, "score_bias", score_bias, config.dtype)
        head_gates = module_floats(module, "head_gates", head_gates, config.dtype)
        offset = known("offset", offset)
        sizes = *queries.shape[:2], keys.shape[1]
        calls.extras(config, sizes, score_bias, offset, head_gates, is_own=module.is_own, place=place)
    offset = _column(module, place, calls.offset(offset))
    causal = bool(causal)
    limited = calls.lengths(valid_lens, keys.shape[1])
    # To turn these back into what they were would cost a small call much of its time.
    own = module.is_own(given) and not isinstance(given, np.ndarray)
    # JAX takes int64 in some contexts only.
    if own and limited is valid_lens and (valid_lens.dtype == np.int32 if place is None else given.device == place):
        limited = given
    native_mask, native_bias, native_gates = (native(module, place, X) for X in (mask, score_bias, head_gates))
    hiding = Hiding(native(module, place, limited), native_mask, native_bias, causal, offset, config.window)
    return Checked(hiding, native_gates)


def check_pooling(
    backend: BackendName, pooling: Any, queries: Any, keys: Any, values: Any, valid_lens: Any = None
) -> Any:
    """Refuse arguments that do not fit an attention pooling, and make its lengths the backend's own.

    As `check`, for a pooling that tells what `calls.pooling_inputs` asks. Returns the lengths; None stays None.
    """
    module = dispatch.load(backend)
    place = module.place(pooling, queries)
    valid_lens = known("valid_lens", valid_lens)
    calls.pooling_inputs(pooling, queries, keys, values, valid_lens, module.DTYPES, is_own=module.is_own, place=place)
    return native(module, place, calls.lengths(valid_lens, keys.shape[1]))


def known(name: str, value: Any, empty: str = "int64") -> Any:
    """Nested lists, and arrays of any framework whose values are known by now, as NumPy arrays; the rest as it is.

    Lists with nothing in them get the dtype `empty`.
    """
    if value is None or type(value) is int:
        return value
    if isinstance(value, (list, tuple)):
        return checks.listed(name, value, empty)
    backend = dispatch.backend_of(value)
    if backend is None:
        return value
    module = dispatch.load(backend)
    array = module.known(value) if module.is_own(value) else None
    return value if array is None else array


def native(module: Any, place: Any, value: Any) -> Any:
    """A NumPy array as the backend's own; anything else as it is."""
    return module.tensor(checks.plain(value), place) if isinstance(value, np.ndarray) else value


def module_floats(module: Any, name: str, value: Any, dtype: str) -> Any:
    """Floats of the backend as they are, so that their gradients are kept; others that are known as NumPy arrays.

    Nested lists become arrays of the given dtype, that of the layer.
    """
    if isinstance(value, (list, tuple)):
        return checks.cast(name, checks.listed(name, value, dtype), numpy_dtype(dtype))
    return value if module.is_own(value) else known(name, value)


def _column(module: Any, place: Any, offset: Any) -> Any:
    """Offsets as one column, (B, 1) or (1, 1); an int as it is."""
    if type(offset) is int:
        return offset
    if isinstance(offset, np.ndarray):
        return native(module, place, offset.reshape(-1, 1))  # (B or 1, 1)
    return offset[:, None] if len(offset.shape) == 1 else offset[None, None]  # (B or 1, 1)
