"""What hides by positions, segments or chunks, as numbers of rows and keys: a mask would have a place for all pairs.

Letters as in the chapters.
"""

from mha.backends.jax.engine.operations import OPERATIONS
from mha.backends.jax.hiding import places
from mha.core.engine.visible_range import by_segments


def as_numbers(queries, keys, call):
    """The call whose segments and positions, if it goes by any, are given for queries (B or 1, Q) and keys (B or 1, K).

    Chunks become segments, or beside other segments go by positions.
    """
    if not call.by_tokens():
        return call
    if call.plan.chunk and call.segments is None and not call.by_positions():
        call = by_segments(OPERATIONS, queries, keys, call)
    own, others = call.packed().values()
    if own is not None:
        call = call._replace(segments=places(queries, own), key_segments=places(keys, others))
    if call.by_positions() or call.plan.chunk:
        placed = places(queries, call.positions, call.offset), places(keys, call.key_positions)
        call = call._replace(positions=placed[0], key_positions=placed[1])
    return call
