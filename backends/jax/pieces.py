"""A large call in pieces, in XLA's own loops: some heads of one sample, whole samples, or queries of one head.

Letters as in layer.py. A group is the heads that are attended together, a block the queries that are.
"""

import functools
import math

import jax
from jax import numpy as jnp

from mha import blocks

from . import layer as lesson

LONG = 4  # times the usual number of queries make a block of one head: XLA's products of a few are slow


def pool_pieces(pooling, queries, keys, values, num_heads, valid_lens, mask, causal, training):
    """As `pooling.pool`, in pieces of one size each; lengths and mask hide only what they hide in a piece."""
    (BH, Q, d), K, dv = queries.shape, keys.shape[1], values.shape[2]
    of_head = pooling.scores_of_query(queries[:1], keys[:1])
    heads = blocks.heads(BH, num_heads, Q * of_head)
    size = Q if heads > 1 else blocks.queries(Q, math.ceil(of_head / LONG))
    groups, count = math.ceil(BH / heads), math.ceil(Q / size)
    arrays = _padded(queries, keys, values, valid_lens, mask, groups * heads - BH, count * size - Q)
    queries, keys, values, valid_lens, mask = arrays
    queries = queries.reshape(groups, heads, count, size, d).swapaxes(1, 2)  # (groups, blocks, heads, size, d)
    # Transposed, so are their gradients, for which XLA has fast products.
    keys = keys.reshape(groups, heads, K, d).swapaxes(2, 3)  # (groups, heads, d, K)
    values = values.reshape(groups, heads, K, dv).swapaxes(2, 3)  # (groups, heads, dv, K)
    cuts = blocks.cuts(K) if causal or valid_lens is not None else [K]  # a branch each: a compiled size is fixed
    key = pooling.make_rng("dropout") if training and pooling.dropout else jax.random.key(0)
    pooling, variables = pooling.unbind()  # JAX' own loops and branches take pure functions
    again = functools.partial(jax.checkpoint, prevent_cse=False)

    def pool_group(inputs):
        queries, keys, values, group = inputs  # (blocks, heads, size, d), (heads, d, K), (heads, dv, K), ()
        head = group * heads + jnp.arange(heads)  # (heads,)
        sample, head = head // num_heads % (BH // num_heads), head % num_heads
        lens = None if valid_lens is None else _by_block(valid_lens[sample], count)  # (blocks, heads, 1 or size)
        seen = None if mask is None else _by_block(mask[sample % mask.shape[0], head % mask.shape[1]], count)
        key_of_group = jax.random.fold_in(key, group)

        def pool_some(inputs):
            queries, lens, seen, block = inputs  # (heads, size, d), (heads, 1 or size), (heads, 1 or size, K or 1)
            first, last = block * size, K if lens is None else lesson._signed(lens, K).max()
            last = jnp.minimum(last, first + size) if causal else last
            rngs = {"dropout": jax.random.fold_in(key_of_group, block)}

            def pool_cut(cut, queries):
                pairs = (X[:, :, :cut].swapaxes(1, 2) for X in (keys, values))  # (heads, K, d)
                inputs = queries, *pairs, 1, *blocks.part(lens, seen, keys=slice(cut)), causal, first, training
                return pooling.apply(variables, *inputs, rngs=rngs, method="pool_block")  # (heads, size, dv)

            branches = [again(functools.partial(pool_cut, cut)) for cut in cuts]  # else each keeps room for all
            return jax.lax.switch(jnp.searchsorted(jnp.array(cuts), last), branches, queries)  # (heads, size, dv)

        return jax.lax.map(again(pool_some), (queries, lens, seen, jnp.arange(count)))  # (blocks, heads, size, dv)

    inputs = queries, keys, values, jnp.arange(groups)
    pooled = jax.lax.map(pool_group, inputs)  # (groups, blocks, heads, size, dv)
    pooled = pooled.swapaxes(1, 2).reshape(groups * heads, count * size, dv)  # (B*H, Q, dv), and more
    return pooled[:BH, :Q]  # (B*H, Q, dv)


def _padded(queries, keys, values, valid_lens, mask, more_heads, more_queries):
    """Queries, keys and values (B*H, T, d) with so many heads and queries more, lengths (B, 1 or Q), mask of four axes.

    What is added is zeros, and is cut off in the end.
    """
    if valid_lens is not None:
        valid_lens = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        if valid_lens.shape[1] > 1:
            valid_lens = jnp.pad(valid_lens, ((0, 0), (0, more_queries)))  # (B, more)
    if mask is not None and mask.shape[2] > 1:
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, more_queries), (0, 0)))  # (B or 1, H or 1, more, K or 1)
    queries = jnp.pad(queries, ((0, more_heads), (0, more_queries), (0, 0)))  # (more, more, d)
    keys, values = (jnp.pad(X, ((0, more_heads), (0, 0), (0, 0))) for X in (keys, values))  # (more, K, d)
    return queries, keys, values, valid_lens, mask


def _by_block(X, count):
    """X (heads, 1 or Q, ...) in blocks of queries, (blocks, heads, 1 or size, ...); what all share is repeated."""
    if X.shape[1] == 1:
        return jnp.broadcast_to(X, (count, *X.shape))
    return X.reshape(X.shape[0], count, -1, *X.shape[2:]).swapaxes(0, 1)  # (blocks, heads, size, ...)
