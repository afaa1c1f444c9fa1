"""The arguments of a call, checked before anything is computed: what does not fit is refused, the rest made one kind.

The dispatch layer, the frameworks' own layers and the book's names all come through here, so that a bad argument meets
the same check and the same words on each of them.
"""

from typing import Any, NamedTuple

import numpy as np

from mha import checks, dispatch
from mha.names import BackendName


class Checked(NamedTuple):
    """Lengths and mask of a call that has been checked.

    Passed to a layer as its `valid_lens`, it says that nothing is to be checked again.
    """

    valid_lens: Any
    mask: Any


def check(
    backend: BackendName,
    layer: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    mask: Any = None,
    causal: Any = False,
    training: Any = None,
    return_weights: Any = False,
) -> Checked:
    """Refuse arguments that do not fit a layer, and make lengths and mask the backend's own.

    Args:
        backend: the backend whose arrays queries, keys and values must be.
        layer: a backend's own layer, with its `config`.
        queries, keys, values, valid_lens, mask, causal, training, return_weights: as for `mha.MultiHeadAttention`; but
            training may be None. Lengths and mask may be nested lists or arrays of any framework; `Checked` lengths
            are returned as they are.

    Returns:
        Lengths and mask as arrays of the backend; None stays None. Lengths whose values are known are at most K; those
        that only a compiler will know come back as they are, unchecked.

    Raises:
        TypeError, ValueError: if an argument does not fit.
    """
    if isinstance(valid_lens, Checked):
        return valid_lens
    module = dispatch.load(backend)
    place = module.place(layer, queries)
    given, valid_lens = valid_lens, known("valid_lens", valid_lens)
    mask = mask if module.is_own(mask) else known("mask", mask, "bool")
    switches = causal, training, return_weights
    checks.inputs(layer.config, queries, keys, values, valid_lens, mask, *switches, is_own=module.is_own, place=place)
    limited = checks.lengths(valid_lens, keys.shape[1])
    # To turn these back into what they were would cost a small call much of its time.
    own = module.is_own(given) and not isinstance(given, np.ndarray)
    if own and limited is valid_lens:
        # JAX takes int64 in some contexts only.
        fits = valid_lens.dtype == np.int32 if place is None else given.device == place
        if fits:
            return Checked(given, native(module, place, mask))
    return Checked(native(module, place, limited), native(module, place, mask))


def check_pooling(
    backend: BackendName, pooling: Any, queries: Any, keys: Any, values: Any, valid_lens: Any = None
) -> Any:
    """Refuse arguments that do not fit an attention pooling, and make its lengths the backend's own.

    As `check`, for a pooling that tells what `checks.pooling_inputs` asks. Returns the lengths; None stays None.
    """
    module = dispatch.load(backend)
    place = module.place(pooling, queries)
    valid_lens = known("valid_lens", valid_lens)
    checks.pooling_inputs(pooling, queries, keys, values, valid_lens, module.DTYPES, is_own=module.is_own, place=place)
    return native(module, place, checks.lengths(valid_lens, keys.shape[1]))


def known(name: str, value: Any, empty: str = "int64") -> Any:
    """Nested lists, and arrays of any framework whose values are known by now, as NumPy arrays; the rest as it is.

    Lists with nothing in them get the dtype `empty`.
    """
    if value is None:
        return None
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
