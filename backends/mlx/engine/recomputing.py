"""A pooling in pieces: each waits for the one before, and is computed once more for its gradients.

MLX evaluates later what it is told to compute, in an order of its own, and makes room for all that may come next.
"""

import functools

import mlx.core as mx

from mha.core.engine import blocks

from ..hiding import four_axes, where
from ..pooling import draw_key, drawing


def in_pieces(pool_block, pieces, inputs, call, weights, draws):
    """The pooled values (B*H, Q, dv) of pool_block(queries, keys, values, call, weights), piece by piece.

    pieces: blocks of queries, and the keys that each needs; inputs: queries (B*H, Q, d), keys (B*G, K, d) and values
    (B*G, K, dv); weights: of the pooling, a list; draws: whether dropout draws. For gradients, which are by the
    inputs, the call's floats and the weights, nothing else is kept.
    """
    floats = {name: four_axes(X) for name, X in call.of_scores().items() if name != "mask"}
    others = {name: X for name, X in call.arrays().items() if name not in floats}
    rest, last = call.with_arrays(dict.fromkeys((*floats, *others))), 3 + len(floats) + len(weights)
    keys = mx.random.split(draw_key(), len(pieces)) if draws else [None] * len(pieces)
    pieces = [(*piece, key) for piece, key in zip(pieces, keys, strict=True)]

    def pool_piece(block, seen, key, own, constants):
        own_floats, own_weights = own[3 : 3 + len(floats)], own[3 + len(floats) :]
        # Of the call's arrays those of pairs are cut with it, and floats were before, where gradients see it.
        cut = blocks.call_of_block(rest._replace(**dict(zip(others, constants, strict=True))), block, seen)
        with drawing(key):
            cut = cut.with_arrays(dict(zip(floats, own_floats, strict=True)))
            return pool_block(*own[:3], cut, own_weights)  # (B*H, block, dv)

    def cuts(block, seen):
        return [*blocks.places(block, seen, floats.values()), *[...] * len(weights)]

    # What a custom function does not take counts as a constant, and is not mapped by `mx.vmap`.
    @mx.custom_function
    def pool_all(*arrays):
        found = []
        for block, seen, key in pieces:
            own = [X[cut] for X, cut in zip(arrays[:last], cuts(block, seen), strict=True)]
            own[0] = behind(found[-1:], own[0])
            found.append(pool_piece(block, seen, key, own, arrays[last:]))
        return mx.concatenate(found, 1)  # (B*H, Q, dv)

    @pool_all.vjp
    def pull_back(arrays, cotangent, output):
        found = [mx.zeros_like(X) for X in arrays]
        for block, seen, key in pieces:
            places = cuts(block, seen)
            own = [X[cut] for X, cut in zip(arrays[:last], places, strict=True)]
            own[0], part = (behind(found[:3], X) for X in (own[0], cotangent[:, block]))

            def piece(*own, piece=(block, seen, key)):
                return pool_piece(*piece, own, arrays[last:])

            for total, cut, X in zip(found, places, mx.vjp(piece, own, [part])[1], strict=False):
                total[cut] += X
        return found

    return pool_all(*inputs, *floats.values(), *weights, *others.values())


def behind(earlier, X):
    """Let X (B*H, block, any) wait for some earlier arrays: `mx.depends` takes no jvp, and no vmap."""
    numbers = [Y[:1, :1, :1].astype(X.dtype) for Y in earlier]  # (1, 1, 1) each
    return where(mx.array(True), X, functools.reduce(mx.minimum, numbers)) if numbers else X
