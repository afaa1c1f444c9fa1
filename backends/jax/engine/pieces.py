"""A large call in pieces, in XLA's own loops: blocks of the queries of some heads of one sample, or of whole samples.

On a GPU they are as few as its memory allows, and need all keys that a window leaves, as it would wait for a branch.

Letters as in the chapters. Where XLA compiles, sizes are known, and offsets but 0 are not.
"""

import functools
import math

import jax
from jax import numpy as jnp

from mha.core.call import ROWS
from mha.core.engine import blocks
from mha.core.engine.visible_range import reach, span

from ..hiding import four_axes, places, signed

TOGETHER = "devices"  # whose samples are computed at once
LONG = 4  # times the usual number of queries make a block of one head: XLA's products of a few are slow


def prepare(call, num_keys):
    """A call with lengths (B, 1 or Q) and an offset, an int or (B or 1, 1), that may become negative.

    Mask and bias have four axes; numbers of tokens, such as positions, two: (B or 1, T). What is known of numbers is
    left out: JAX would compile anew for each.
    """
    lens, offset = call.valid_lens, call.offset
    lens = None if lens is None else signed(lens, num_keys).reshape(len(lens), -1)  # (B, 1 or Q)
    offset = offset if type(offset) is int else jnp.asarray(offset, int)  # (B or 1, 1)
    pairs = {name: four_axes(X) for name, X in call.pairs().items()}
    given = call.of_tokens() if call.is_packed() else {}
    tokens = {name: places(None, X) for name, X in given.items()}  # (B or 1, T)
    return call._replace(valid_lens=lens, offset=offset, **pairs, **tokens).with_plan(known=None, extremes=None)


def in_reach(queries, keys, values, call):
    """Return the keys and values that order and window let be seen, as far as their number is known; and their call.

    call: as `prepare`.
    """
    Q, K, (left, right) = queries.shape[1], keys.shape[1], reach(call)
    if call.is_packed():
        return keys, values, call
    seen = span(call, Q, K)
    if type(call.offset) is int or None in (left, right) or Q + left + right >= K:
        return keys[:, seen], values[:, seen], call.part(keys=seen)
    size = Q + left + right
    first = jnp.clip(call.offset - left, 0, K - size)  # (B or 1, 1)
    return cut(keys, first, size, 1), cut(values, first, size, 1), at_keys(call, first, size)


def pool_pieces(pooling, queries, keys, values, num_heads, call):
    """The pooled values of `pooling.pool`, in pieces of one size each; call: as `prepare`."""
    B, n = len(queries) // num_heads, devices(queries, len(queries) // num_heads)
    key = pooling.make_rng("dropout") if call.training and pooling.dropout else jax.random.key(0)
    of_pair = pooling.scores_of_pair(queries[:1])
    pure = functools.partial(_pool_pieces, *pooling.unbind(), of_pair, num_heads, call, n > 1)
    arrays = call._replace(head_gates=None, **call.segment_ids()).arrays()
    if n == 1:
        return pure(key, queries, keys, values, arrays)

    def parts(X):
        return X.reshape(n, -1, *X.shape[1:])  # (n, B/n*H, T, d)

    own = {name: len(X) == B for name, X in arrays.items()}
    arrays = {name: parts(X) if own[name] else X for name, X in arrays.items()}
    axes = 0, 0, 0, 0, {name: 0 if is_own else None for name, is_own in own.items()}
    each = jax.vmap(pure, axes, axis_name=TOGETHER)
    pooled = each(jax.random.split(key, n), parts(queries), parts(keys), parts(values), arrays)  # (n, B/n*H, Q, dv)
    return pooled.reshape(len(queries), *pooled.shape[2:])  # (B*H, Q, dv)


def _pool_pieces(pooling, variables, of_pair, num_heads, call, together, key, queries, keys, values, arrays):
    """The pooled values of `pool_pieces`, by a pooling beside its variables.

    of_pair: numbers that a score of one head takes; together: whether others are computed at once, by `jax.vmap`;
    arrays: those of the call that hide or are added, by name.
    """
    call = call._replace(**arrays)
    (BH, Q, d), (BG, K, _), dv = queries.shape, keys.shape, values.shape[2]
    B, n = BH // num_heads, BH // BG  # samples; heads of queries that share a head of keys
    G, of_pair, (left, right) = num_heads // n, of_pair * n, reach(call)
    room, packed = call.plan.room, call.is_packed()
    long, branches = (LONG, True) if room is None else (1, False)
    size, seen = blocks.queries(Q, math.ceil(of_pair * K / long), room=room), K
    if packed and branches:
        size = min(size, blocks.LEAST)
    elif not packed and None not in (left, right):
        narrow = blocks.block(call, Q, K, of_pair)
        if narrow + left + right < K:  # else all keys may be seen
            size, seen = narrow, narrow + left + right
    scores = of_pair * size * (math.ceil(seen / LONG) if packed and branches else seen)
    heads = blocks.heads(BG, G, scores, room=room)
    offset = call.offset + jnp.zeros((1, 1), int)  # (B or 1, 1)
    if (packed and branches) or (seen < K and len(offset) > 1):
        heads = min(heads, G)  # each sample has its own keys
    sizes = max(1, heads // G), min(heads, G) * n, size  # samples, heads and queries of a piece
    counts = math.ceil(B / sizes[0]), num_heads // sizes[1], math.ceil(Q / size)
    arranged = functools.partial(_arrange, sizes=sizes, counts=counts)
    # Transposed, so are their gradients, for which XLA has fast products.
    flipped = (X.reshape(B, G, 1, *X.shape[1:]).swapaxes(3, 4) for X in (keys, values))  # (B, G, 1, d, K)
    keys, values = (_arrange(X, (sizes[0], sizes[1] // n, 1), (*counts[:2], 1)) for X in flipped)
    lens = None if call.valid_lens is None else call.valid_lens[:, None, :, None]  # (B, 1, 1 or Q, 1)
    names, pairs = call.of_scores().keys(), call.of_scores().values()
    tokens = _tokens(call, K, branches) if packed else (None, None)  # (B or 1, 1, Q, n), (B or 1, 1, 1, n, K)
    arrays = [None if X is None else arranged(X) for X in (lens, offset[:, :, None, None], *tokens, *pairs)]
    cuts = [K]  # a branch each: a compiled size is fixed
    if branches and packed:
        cuts = blocks.doublings(2 * blocks.LEAST, K)
    elif branches and (right is not None or lens is not None):
        cuts = blocks.cuts(K)
    again = functools.partial(jax.checkpoint, prevent_cse=False)

    def pool_some(piece, queries, keys, values, lens, offset, of_queries, of_keys, *pairs):
        queries = queries.reshape(-1, size, d)  # (heads of queries, size, d)
        keys, values = (X.reshape(-1, *X.shape[3:]) for X in (keys, values))  # (heads of keys, d, K)
        lens = None if lens is None else lens[:, 0, :, 0]  # (samples, size or 1)
        offset = offset[:, 0, 0] + piece % counts[2] * size  # (samples or 1, 1)
        block = call._replace(valid_lens=lens, offset=offset).with_arrays(dict(zip(names, pairs, strict=True)))
        if packed:
            block = _of_block(block, of_queries[:, 0], of_keys[:, 0, 0])
        rngs = {"dropout": jax.random.fold_in(key, piece)}

        def pool_keys(queries, first, size):
            needed = (cut(X, first, size, 2).swapaxes(1, 2) for X in (keys, values))  # (heads of keys, size, d)
            inputs = queries, *needed, sizes[1], at_keys(block, first, size)
            return pooling.apply(variables, *inputs, rngs=rngs, method="pool_block")  # (heads of queries, size, dv)

        if seen < K:
            return pool_keys(queries, jnp.clip(offset - left, 0, K - seen), seen)
        if cuts == [K]:
            return pool_keys(queries, 0, K)
        first, last = 0, K if lens is None else lens.max()
        if packed:
            first, last = K - of_queries[..., -2].max(), jnp.minimum(last, of_queries[..., -1].max())
            if left is not None:
                first = jnp.maximum(first, jnp.maximum(offset.min(), left) - left)
        if right is not None:
            last = jnp.minimum(last, jnp.minimum(offset.max(), K - right) + size + right)
        needed = last - first
        if together:
            needed = jax.lax.pmax(needed, TOGETHER)  # so that it is still one branch that is computed
        # Computed again one by one, or each branch keeps room for what all keep.
        firsts = [jnp.clip(first, 0, K - most)[None, None] if packed else 0 for most in cuts]
        branches = [
            again(functools.partial(pool_keys, first=first, size=most))
            for first, most in zip(firsts, cuts, strict=True)
        ]
        return jax.lax.switch(jnp.searchsorted(jnp.array(cuts), needed), branches, queries)

    queries = arranged(queries.reshape(B, num_heads, Q, d))  # (S, P, C, m, h, q, d)
    pooled = _in_loops(again(pool_some), counts, (queries, keys, values, *arrays))  # (S, P, C, rows, size, dv)
    pooled = pooled.reshape(*counts, *sizes, dv).transpose(0, 3, 1, 4, 2, 5, 6)  # (S, m, P, h, C, q, dv)
    pooled = pooled.reshape(-1, num_heads, counts[2] * size, dv)  # (B, H, Q, dv), and more
    return pooled[:B, :, :Q].reshape(BH, Q, dv)  # (B*H, Q, dv)


def devices(X, batch_size):
    """How many samples to compute at once, one of each device, where a batch may lie on several.

    XLA sends all samples to all devices where a loop goes through them. An array's type has the mesh that it lies on,
    but not always how; inside `jax.shard_map` a device has its own.
    """
    mesh = jax.typeof(X).sharding.mesh
    return 1 if mesh.empty or varies(X) else math.gcd(batch_size, mesh.size)


def varies(X):
    """The axes of the mesh on which the devices have an array of their own, inside `jax.shard_map`."""
    kind = jax.typeof(X)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # as JAX 0.10 has it


def cut(X, first, size, axis):
    """Cut so many places out of an axis of X, from the first: an int, or integers (B, 1) of each sample, or (1, 1)."""
    if type(first) is int:
        return jax.lax.slice_in_dim(X, first, first + size, axis=axis)
    if len(first) == 1:
        return jax.lax.dynamic_slice_in_dim(X, first[0, 0], size, axis)
    X = jnp.broadcast_to(X, (len(first), *X.shape[1:]))  # (B, ...)
    return jax.vmap(lambda X, first: jax.lax.dynamic_slice_in_dim(X, first, size, axis - 1))(X, first[:, 0])


def at_keys(call, first, size):
    """The call for so many keys from the first, as for `cut`, which counts as 0; call: as `prepare`."""
    lens = None if call.valid_lens is None else call.valid_lens - first  # (B, 1 or Q)
    pairs = {name: X if X.shape[3] == 1 else cut(X, first, size, 3) for name, X in call.pairs().items()}
    of_keys = {name: X for name, X in call.of_tokens().items() if "K" in ROWS[name].axes}
    tokens = {name: cut(X, first, size, 1) for name, X in of_keys.items()}  # (B or 1, size)
    return call._replace(valid_lens=lens, offset=call.offset - first, **pairs, **tokens)


def _tokens(call, num_keys, with_extents):
    """The numbers of each query, (B or 1, 1, Q, n), and of each key, (B or 1, 1, 1, n, K), of a packed call.

    Of a query: segment; position; with_extents: also how many keys are behind the first of its segment, this one too,
    and the place behind the last. Of a key: segment; position.
    """
    (own, others), placed = call.segment_ids().values(), [X for X in call.position_ids().values() if X is not None]
    of_queries, of_keys = [own, *placed[:1]], [others, *placed[1:]]
    if with_extents:
        first, last = _extents(own, others)
        of_queries += [num_keys - first, last]
    rows = max(map(len, (*of_queries, *of_keys)))
    of_queries, of_keys = ([jnp.broadcast_to(X, (rows, X.shape[1])) for X in each] for each in (of_queries, of_keys))
    return jnp.stack(of_queries, -1)[:, None], jnp.stack(of_keys, 1)[:, None, None]


def _of_block(call, of_queries, of_keys):
    """The call of a block with its tokens, of queries (B or 1, block, n) and keys (B or 1, n, K)."""
    call = call.with_segments(of_queries[..., 0], of_keys[:, 0])
    return call._replace(positions=of_queries[..., 1], key_positions=of_keys[:, 1]) if call.by_positions() else call


def _extents(own, others):
    """The first key of each query's segment and the place behind the last, (B or 1, Q); K and 0 where it has none."""
    order = jnp.argsort(others, stable=True)  # (B or 1, K)
    ranked, K, rows = jnp.take_along_axis(others, order, 1), others.shape[1], max(len(own), len(others))
    each = [jnp.broadcast_to(X, (rows, X.shape[1])) for X in (order, ranked, own)]

    def extent(order, ranked, own):
        left, right = (jnp.searchsorted(ranked, own, side=side) for side in ("left", "right"))  # (Q,)
        sees = (left < right) & (own >= 0)
        return jnp.where(sees, order[jnp.minimum(left, K - 1)], K), jnp.where(sees, order[right - 1] + 1, 0)

    return jax.vmap(extent)(*each)


def _arrange(X, sizes, counts):
    """X (B, H, Q, ...) by groups of samples, of their heads, and blocks of queries: (S, P, C, m, h, q, ...).

    sizes: m, h and q, of a piece; counts: S, P and C, of these. What B and Q lack is added as zeros; a size of 1, which
    is the same for all, stays 1.
    """
    numbers = zip(X.shape[:3], sizes, counts, strict=True)
    (m, S), (h, P), (q, C) = ((1, 1) if given == 1 else (size, count) for given, size, count in numbers)
    rest = X.shape[3:]
    X = jnp.pad(X, [(0, S * m - X.shape[0]), (0, 0), (0, C * q - X.shape[2]), *len(rest) * [(0, 0)]])
    X = X.reshape(S, m, P, h, C, q, *rest)  # (S, m, P, h, C, q, ...)
    return jnp.moveaxis(X, (0, 2, 4), (0, 1, 2))  # (S, P, C, m, h, q, ...)


def _in_loops(function, counts, arrays, place=0):
    """function(place, *items) for every place, in one loop within another, and its results stacked.

    arrays: with an axis of this count or 1 for each loop; what is 1 long is the item of all, None stays None.
    """
    if not counts:
        return function(place, *arrays)
    own = [None if X is None or len(X) == 1 else X for X in arrays]
    shared = [X if X is None or len(X) > 1 else X[0] for X in arrays]

    def step(inputs):
        number, items = inputs
        chosen = [X if item is None else item for X, item in zip(shared, items, strict=True)]
        return _in_loops(function, counts[1:], chosen, place * counts[0] + number)

    if counts[0] == 1:
        return step((0, own))[None]
    return jax.lax.map(step, (jnp.arange(counts[0]), own))
