"""What a layer does with caches: makes one of its own, and calls with one."""

from typing import Any

import numpy as np

from mha import dispatch
from mha.arrays import to_numpy
from mha.cache import slots
from mha.cache.cache import Cache
from mha.cache.fitting import check_owner
from mha.call import Call, inputs


def decode(attention: Any, calls: Any, queries: Any, keys: Any, values: Any, call: Call) -> tuple[Any, ...]:
    """A call of an `mha.MultiHeadAttention` with a cache, which is of its backend whatever the inputs are."""
    backend, module = attention.backend, dispatch.load(attention.backend)
    if isinstance(call.cache, Cache):
        check_owner(call.cache, attention.layer)
        if call.cache.backend != (backend if dispatch.FRAMEWORKS[backend].arrays else "numpy"):
            raise ValueError(f"cache is of {call.cache.backend}, expected {backend} as the layer: call cache.to")
    # Beside a frozen cache there are no keys and values: the queries stand in for them.
    given = [queries if X is None else X for X in (queries, keys, values)]
    *arrays, kind = inputs.of_one_framework(backend, attention.config.dtype, *given)
    if kind != backend:
        place = module.place(attention.layer)
        arrays = [inputs.taken(module, place, X) for X in arrays]
    arrays = [None if X is None else own for X, own in zip((queries, keys, values), arrays, strict=True)]
    with module.context(attention.config.dtype, tracked=kind == backend):
        *results, cache = calls.attend(attention.layer, *arrays, call)
        results = results if kind == backend else map(module.to_numpy, results)
        return *results, cache.owned(attention.layer)


def frozen(attention: Any, keys: Any, values: Any, valid_lens: Any, key_positions: Any) -> Cache:
    """See `mha.MultiHeadAttention.cache_of`: the heads are those of the steps of a call."""
    given = {"keys": keys, "values": keys if values is None else values}
    given = {name: to_numpy(X) if dispatch.backend_of(X) else X for name, X in given.items()}
    (k, _), (v, _) = (inputs.array("numpy", attention.config.dtype, *one) for one in given.items())
    queries = np.zeros((len(k), 1, attention.config.query_size), k.dtype)  # (B, 1, query_size)
    steps = attention.trace(queries, k, v, valid_lens, key_positions=key_positions)
    return Cache.of_layer(attention, slots.frozen(attention.config, steps, valid_lens, key_positions), frozen=True)
