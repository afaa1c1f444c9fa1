"""Check a call before anything is computed, and turn its arrays into the backend's own.

The dispatch layer, the frameworks' own layers and the book's names all come through here, so that a bad argument meets
the same check and the same words on each of them.
"""

from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.cache import check_cache as fit_cache
from mha.core.cache import check_owner, plan_step
from mha.core.call.declaration import ROWS, Call
from mha.core.call.fitting import check_dense, check_dtype, fit_call, fit_inputs, fit_segments, shape_fits
from mha.core.options import checks
from mha.core.options.config import numpy_dtype


def check(arrays: Any, layer: Any, queries: Any, keys: Any, values: Any, call: Call) -> Call:
    """Check the arguments of a call of a layer, and turn its arrays into the backend's own.

    Args:
        arrays: the backend's module of that name; queries, keys and values must be its arrays.
        layer: the backend's own layer, with its `config`.
        queries, keys, values: as for `mha.MultiHeadAttention`.
        call: as its user gave it; its arrays may be nested lists or arrays of any framework.

    Returns:
        The call with arrays of the backend, lengths of at most K, an offset that is an int or a column (B or 1, 1), the
        layer's window and chunk, and the known values of lengths and offsets. What only a compiler will know stays
        unchecked, and so do integers on a GPU, unless a cache has to know them: to read them is to wait for it.

    Raises:
        TypeError, ValueError: if an argument does not fit.
    """
    plans: Any = None if layer.config.chunk else getattr(layer, "plans", None)  # a plan has no mask for chunks
    kind = None
    if plans is not None:
        kind = layer.kind(queries, keys, values, call)
        if kind in plans:
            return _check_by_plan(arrays, layer, queries, keys, values, call, plans[kind])
    config, place = layer.config, arrays.place(layer, queries)
    wait = call.cache is not None
    taken = {name: _read(arrays, config, name, X, wait) for name, X in zip(ROWS, call, strict=False) if X is not None}
    given, call = call, call._replace(**taken)
    frozen = False
    if call.cache is not None:  # whose slots are the keys; none are given beside a frozen one
        check_dense(arrays, place, "queries", queries, f"of shape (batch, queries, {config.query_size})")
        fit_cache(arrays, layer, (queries, keys, values), call)
        frozen = call.cache.frozen
    fit_inputs(arrays, config, place, queries, keys, values, alone=frozen)
    num_keys = keys.shape[1] if call.cache is None else call.cache.sizes[1]
    fit_call(arrays, config, place, (*queries.shape[:2], num_keys), call)
    if call.positions is not None and not (checks.is_whole(call.offset) and call.offset == 0):
        raise ValueError(
            f"offset is {checks.brief(given.offset)} beside positions, expected one of the two: positions say where "
            "each query is; leave offset out"
        )
    call = fit_segments(call, (queries.shape[1], num_keys))
    call = call.of_layer(config)._replace(causal=bool(call.causal))
    if call.cache is not None:
        call = call.with_plan(step=plan_step(call.cache, queries, call))
    call = check_values(arrays, place, num_keys if frozen else keys.shape[1], given, call)
    if kind is not None:
        call = layer.plan_call(queries, keys, call)
        plans.remember(kind, call)
    return call


def _check_by_plan(arrays: Any, layer: Any, queries: Any, keys: Any, values: Any, call: Call, seen: Call) -> Call:
    """Check the values of a call by the plan of an earlier one of its kind, and turn its arrays into the backend's."""
    lengths, plan = call.valid_lens, seen.plan
    if lengths is not None:
        known = lengths
        if not isinstance(lengths, np.ndarray):
            # As `value_at_hand`, without a function more: small calls of a known kind take as long as their functions.
            known = arrays.value_of(lengths) if call.cache is not None or not arrays.is_far(lengths) else None
        if known is not None:  # else a compiler or a device will know them
            limit, bounds = limit_lengths(known, keys.shape[1])
            if bounds is not None and bounds[0] == keys.shape[1]:  # nothing is hidden, and no token is padding
                return check(arrays, layer, queries, keys, values, call._replace(valid_lens=None))
            plan = plan._replace(known={"valid_lens": limit}, extremes=bounds)
            if limit is not known:
                lengths = limit
    given = {}
    if not (call.mask is call.score_bias is call.head_gates is None and call.offset == 0):
        given = call.nondefaults() | {"offset": offset_column(call.offset)}
    if lengths is not None:
        given["valid_lens"] = lengths
    for name, X in given.items():
        if isinstance(X, np.ndarray) and not arrays.is_own(X):
            given[name] = to_backend(arrays, arrays.place(layer, queries), X)
    if call.cache is not None:
        check_owner(call.cache, layer)
        by_value = seen._replace(**(given | (plan.known or {}))) if given or plan.known else seen
        plan = plan._replace(step=plan_step(call.cache, queries, by_value))
        given["cache"] = call.cache
    return seen._replace(**given, plan=plan) if given else seen


def check_values(arrays: Any, place: Any, num_keys: Any, given: Call, call: Call) -> Call:
    """Check the values of a call whose arguments fit, and turn its arrays into the backend's own, at the place.

    given: the same call before its known integers became NumPy's: those that can stay as they were are not turned.
    """
    known = {}
    lengths, bounds = limit_lengths(call.valid_lens, num_keys)
    if bounds is not None:
        known["valid_lens"] = lengths
        # JAX takes int64 in some contexts only.
        stays = lengths is call.valid_lens and arrays.is_own(given.valid_lens)
        if stays and (lengths.dtype == np.int32 if place is None else given.valid_lens.device == place):
            lengths = given.valid_lens
    offset = offset_column(call.offset)
    if isinstance(offset, np.ndarray):
        known["offset"] = offset
    tokens = {name: near(name, X) for name, X in call.of_tokens().items()}
    known |= {name: X for name, X in tokens.items() if isinstance(X, np.ndarray)}
    own = call._replace(valid_lens=lengths, offset=offset, **tokens)
    own = own.map_arrays(lambda X: to_backend(arrays, place, X))
    return own.with_plan(known=known, extremes=bounds)


def _read(arrays: Any, config: Any, name: str, X: Any, wait: bool) -> Any:
    """Turn an argument of this name into a NumPy array if it is a list, or if its values are needed and known.

    wait: whether to wait for a device that knows them; for one of another framework, always.
    """
    row = ROWS[name]
    if row.holds == "switch" or (row.holds != "integers" and arrays.is_own(X)):
        return X  # floats as they are, so that their gradients are kept
    if row.holds == "floats" and isinstance(X, (list, tuple)):
        return checks.cast(name, checks.array_of(name, X, config.dtype), numpy_dtype(config.dtype))
    return numpy_if_known(name, X, "bool" if row.holds == "booleans" else "int64", wait or not arrays.is_own(X))


def numpy_if_known(name: str, value: Any, empty: str = "int64", wait: bool = True) -> Any:
    """Turn nested lists, and arrays whose values are known by now, into NumPy arrays; leave the rest.

    Empty lists get the dtype `empty`; wait: whether those that a device computes beside the processor are read.
    """
    if value is None or type(value) is int:
        return value
    if isinstance(value, (list, tuple)):
        return checks.array_of(name, value, empty)
    backend = dispatch.backend_of(value)
    if backend is None:
        return value
    module = dispatch.load(backend)
    array = value_at_hand(module, value, wait) if module.is_own(value) else None
    return value if array is None else array


def value_at_hand(module: Any, X: Any, wait: bool = False) -> Any:
    """X as a NumPy array; None if only a compiler will know its values, or a device does and nobody waits for it."""
    return module.value_of(X) if wait or not module.is_far(X) else None


def to_backend(arrays: Any, place: Any, value: Any) -> Any:
    """Turn a NumPy array into the backend's own; leave anything else."""
    return arrays.tensor(checks.plain(value), place) if isinstance(value, np.ndarray) else value


def limit_lengths(valid_lens: Any, num_keys: int | None) -> tuple[Any, tuple[int, int] | None]:
    """Check that no length is below 0, and limit them to K, as longer ones hide nothing; return their extremes, too.

    None, and lengths whose values only a compiled program will know, are returned as they are, with None.
    """
    if not isinstance(valid_lens, np.ndarray):
        return valid_lens, None
    shortest, longest = checks.extremes(valid_lens)
    if shortest < 0:
        raise ValueError(f"valid_lens holds {shortest}, expected 0 or more: the number of keys to see")
    wide = valid_lens.dtype.kind == "i" and valid_lens.dtype.itemsize >= 4
    if wide and num_keys is not None and longest <= num_keys:
        return valid_lens, (shortest, longest)  # as most are
    # Python's ints do not overflow, whatever the integers' width and sign.
    limit = min(2**31 - 1 if num_keys is None else num_keys, int(np.iinfo(valid_lens.dtype).max))
    lengths = np.minimum(valid_lens, valid_lens.dtype.type(limit)).astype(np.int32)
    return lengths, (min(shortest, limit), min(longest, limit))


def offset_column(offset: Any) -> Any:
    """Check an offset; return an int, or integers as one column (B or 1, 1)."""
    is_known = isinstance(offset, np.ndarray)
    if not is_known and not checks.is_whole(offset):  # a compiler will know it
        return offset[:, None] if len(offset.shape) == 1 else offset[None, None]  # (B or 1, 1)
    far = max(map(abs, checks.extremes(offset))) if is_known else abs(int(offset))
    if far > checks.FURTHEST:
        raise ValueError(f"offset holds {far}, expected no position beyond {checks.FURTHEST} either way")
    return offset.astype(np.int32).reshape(-1, 1) if is_known and offset.ndim else int(offset)  # (B or 1, 1)


def near(name: str, positions: Any) -> Any:
    """Check that no position or segment is too far; return all below 0, which are padding, as -1, in 32 bits.

    Those whose values only a compiled program will know are returned as they are.
    """
    if not isinstance(positions, np.ndarray):
        return positions
    _, furthest = checks.extremes(positions)
    if furthest > checks.FURTHEST:
        raise ValueError(f"{name} holds {furthest}, expected none beyond {checks.FURTHEST}")
    return np.maximum(positions, -1 if positions.dtype.kind == "i" else 0).astype(np.int32)


def check_cotangent(arrays: Any, config: Any, place: Any, cotangent: Any, shape: tuple[int, ...]) -> None:
    """Check that a cotangent has the output's dtype and this shape; raise TypeError or ValueError if not."""
    check_dense(arrays, place, "cotangent", cotangent, f"of shape {shape} as the output")
    if not shape_fits(cotangent.shape, shape):
        raise ValueError(f"cotangent has shape {checks.shape(cotangent)}, expected {shape} as the output")
    check_dtype("cotangent", cotangent, config.dtype)


def check_widths(config: Any, W_q: Any, W_k: Any, W_v: Any) -> None:
    """Check that each projection gave all of its features: PyTorch's `parallelize_module` may split them."""
    H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
    for name, X, heads, width in (("W_q", W_q, H, d), ("W_k", W_k, G, d), ("W_v", W_v, G, dv)):
        if X.shape[-1] != heads * width:
            raise ValueError(
                f"{name} gave {X.shape[-1]} features, expected {heads * width} for {heads} heads: a plan that splits "
                "kernels alone splits no heads; leave the layer out of it, and call mha.parallel.parallelize, or add "
                "mha.parallel.plan"
            )
