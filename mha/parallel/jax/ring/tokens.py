"""Numbers of rows and keys, such as positions, by which they are hidden: a mask would take memory for all pairs.

Letters as in the chapters.
"""

from mha.backends.jax.engine.operations import OPERATIONS
from mha.backends.jax.hiding import places
from mha.core.engine.visible_range import by_segments


def as_numbers(queries, keys, call):
    """The call whose numbers of tokens, if it goes by any, are given for queries (B or 1, Q) and keys (B or 1, K).

    Chunks become packed texts, or beside others go by positions.
    """
    if not call.by_tokens():
        return call
    if call.plan.chunk and not call.is_packed() and not call.by_positions():
        call = by_segments(OPERATIONS, queries, keys, call)
    own, others = call.packed().values()
    if own is not None:
        call = call.with_segments(places(queries, own), places(keys, others))
    if call.by_positions() or call.plan.chunk:
        placed = places(queries, call.positions, call.offset), places(keys, call.key_positions)
        call = call._replace(positions=placed[0], key_positions=placed[1])
    return call
