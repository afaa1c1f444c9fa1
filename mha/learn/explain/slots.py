"""Explain what a call does to the slots of a cache, with the functions of the lesson."""

from typing import Any

import numpy as np

from mha import arrays


def after_call(module: Any, k: Any, v: Any, inputs: dict[str, Any], call: Any) -> tuple[Any, Any, dict[str, Any], Any]:
    """The contents of a cache's slots after a call, and the steps that put them there.

    module: the lesson; k (B*G, K, d), v (B*G, K, dv): the heads of the new tokens; call: checked, with a cache.
    Returns the heads in the slots, (B*G, S, d) and (B*G, S, dv); the steps by name, none for a frozen cache, where
    "slots" (B, K) is -1 for padding; and the call of the queries with the slots.
    """
    cache = call.cache
    *_, call = module.place(*(inputs.get(name) for name in ("queries", "keys", "values")), call)
    steps = {}
    if not cache.frozen:
        S = cache.sizes[1]
        _, slots, _ = module.slots_after(cache.positions, cache.lengths, cache.lost, call)  # (B, S + K)
        *_, cache = module.remember(k, v, call)
        real = arrays.to_numpy(call.key_positions) >= 0  # (B, K)
        steps = {
            "slots": np.where(real, arrays.to_numpy(slots)[:, S:], -1),  # (B, K)
            "positions_after": cache.positions,
            "lost_after": cache.lost,
            "keys_after": cache.keys,
            "values_after": cache.values,
        }
    call = call._replace(key_positions=cache.positions, offset=0)
    heads = (arrays.to_numpy(X) for X in (cache.keys, cache.values))  # (B, G, S, d), (B, G, S, dv)
    k, v = (arrays.tensor(X.reshape(-1, *X.shape[2:]), backend=cache.backend) for X in heads)  # (B*G, S, d), ...
    return k, v, steps, call
