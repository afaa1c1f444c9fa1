"""A layer of JAX over several devices, by `jax.shard_map`: batch, heads and sequence, and weights in and out."""

from .files import gather, load, save
from .spread import attend, plan
