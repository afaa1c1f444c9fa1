"""Checks of a layer of JAX over eight devices that take long.

Letters as in devices_of_jax.py.
"""

import jax
from devices_of_jax import OF_ALL, WAYS, B, D, T, agree, dropout_of, mesh, sent, sharded_batch, texts
from jax.sharding import NamedSharding, PartitionSpec

import mha
from mha import parallel
from mha.core.call import Call
from mha.parallel.jax import ring


def needed(function, *arrays):
    """MiB that XLA needs on each device for a call and its gradients, beside arguments and results."""

    def both(*arrays):
        output, pull = jax.vjp(function, *arrays)
        return output, pull(output)

    place = NamedSharding(mesh(), PartitionSpec(None, "devices"))
    arrays = [jax.ShapeDtypeStruct(shape, "float32", sharding=place) for shape in arrays]
    return jax.jit(both).lower(*arrays).compile().memory_analysis().temp_size_in_bytes / 2**20


def check_a_ring_keeps_little(group):
    """The measured figures are in docs/scale.md: 14.1 and 21.1; scores of all pairs would be 256 MiB."""
    size, attention = 8192, mha.MultiHeadAttention(512, 8, backend="jax", seed=0)
    module, variables = attention.layer.unbind()

    def pooled(q, k, v):
        call = q, k, v, 8, Call(), "devices"
        return module.bind(variables).attention.apply({}, *call, method=ring.pool)

    spec = PartitionSpec(None, "devices")
    heads = jax.shard_map(pooled, mesh=mesh(), in_specs=3 * (spec,), out_specs=spec)
    assert needed(heads, *3 * [(8, size, 64)]) <= 15

    def whole(X):
        return parallel.attend(module, variables, X, X, X, mesh=mesh(), sequence="devices", how="ring")

    assert needed(whole, (1, size, 512)) <= 24


def check_sharded_batches_are_never_collected(group):
    for size, causal in ((256, False), (2048, False), (2048, True)):
        sharded_batch(size, causal)


def check_norms_over_all_heads_agree_and_send_a_number_for_each_row(group):
    """Of queries two means are sent, of keys two, of values one, and as many backward."""
    for case in ("norms over all heads", "norms over all heads, after the rotation"):
        agree({"heads", "ulysses", *(f"data x heads x {how}" for how in ("ring", "ulysses", "gather"))}, case)
    forward, both = (sum(sent(text)["all-reduce"]) for text in texts(OF_ALL, heads="devices"))
    assert (forward, both) == (B * T * (5 + D), B * T * (2 * 5 + D + 3 * D) + D)


def check_few_heads_of_keys_agree(group):
    for case in ("few heads of keys", "heads of keys on two devices", "norms over all heads, few of keys"):
        agree({"heads", *(f"data x heads x {how}" for how in ("ring", "ulysses", "gather"))}, case)


def check_large_scores_agree(group):
    for dtype in ("float64", "float32"):
        agree({"ring", "ulysses", "gather"}, "scale 30, lengths", dtype)


def check_dropout_differs_in_the_other_ways(group):
    for way in (WAYS[1], *WAYS[3:]):
        dropout_of(way)
