"""The weights and the cache of the heads on one of several devices of JAX, from those of the whole layer.

Letters as in the chapters.
"""

import dataclasses

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import numpy as jnp

from mha.core.cache import Cache
from mha.parallel.parts import heads_of_keys, names_of_copies, part_of


def of_device(config, axis, variables):
    """The variables of the heads on this device, inside `jax.shard_map` over an axis; config: the whole layer's.

    If the devices do not divide the heads of keys, each takes those that it uses. The bias of W_o is zero except on
    the first device: it is added once.
    """
    count, device, named = jax.lax.axis_size(axis), jax.lax.axis_index(axis), flatten_dict(variables["params"], sep=".")
    for name in names_of_copies(config, count) & named.keys():
        X, own = named[name], jnp.array(heads_of_keys(config, count))[device]  # (heads of keys here,)
        each = X.reshape(*X.shape[:-1], config.num_key_value_heads, -1)  # (any, G, d)
        named[name] = each[..., own, :].reshape(*X.shape[:-1], -1)  # (any, heads of keys here * d)
    if config.bias:
        named["W_o.bias"] = jnp.where(device == 0, named["W_o.bias"], 0)
    return {**variables, "params": unflatten_dict(named, sep=".")}


def config_of_devices(config, count):
    """The configuration of a cache for so many devices: with copies of heads of keys if they do not divide these."""
    return dataclasses.replace(config, num_key_value_heads=count * part_of(config, count).num_key_value_heads)


def with_copies(cache, config, count):
    """The cache of a layer, with the copies of heads that so many devices need; one that has them stays as it is."""
    kept = config_of_devices(config, count)
    if not isinstance(cache, Cache) or cache.config != config or kept == config:
        return cache
    keys, values, *state = cache.arrays()
    copies = kept.num_key_value_heads // config.num_key_value_heads
    heads = (jnp.repeat(X, copies, 1) for X in (keys, values))  # (B, heads of keys of all devices, S, d)
    return Cache(kept, (*heads, *state), cache.frozen).with_state(cache.slot_state())
