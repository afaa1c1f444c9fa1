"""Call a layer with a cache, and make frozen caches."""

from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.cache import slots
from mha.core.cache.cache import Cache
from mha.core.call import Call, inputs, prepare


def decode(attention: Any, calls: Any, queries: Any, keys: Any, values: Any, call: Call) -> tuple[Any, ...]:
    """Call an `mha.MultiHeadAttention` with a cache, which is of its backend; the inputs may be NumPy's."""
    backend, module = attention.backend, dispatch.load(attention.backend)
    arrays, kind = prepare.own_inputs(attention, queries, keys, values, call.cache)
    with module.context(attention.config.dtype, tracked=kind == backend):
        *results, cache = calls.attend(attention.layer, *arrays, call)
        results = results if kind == backend else map(module.to_numpy, results)
        return *results, cache.set_owner(attention.layer)


def frozen_cache(attention: Any, keys: Any, values: Any, valid_lens: Any, key_positions: Any) -> Cache:
    """Make the cache of `mha.MultiHeadAttention.cache_of` from the heads in the steps of a call."""
    both = {"keys": keys, "values": keys if values is None else values}
    both = {name: inputs.to_numpy(name, X) if dispatch.backend_of(X) else X for name, X in both.items()}
    (k, _), (v, _) = (inputs.array_and_backend("numpy", attention.config.dtype, *one) for one in both.items())
    queries = np.zeros((len(k), 1, attention.config.query_size), k.dtype)  # (B, 1, query_size)
    steps = attention.trace(queries, k, v, valid_lens, key_positions=key_positions)
    return Cache.of_layer(attention, slots.freeze(attention.config, steps, valid_lens, key_positions), frozen=True)
