"""One step of a ring, by blocks: the queries here meet the keys of one device, and blocks that see none are left out.

Letters as in the chapters; a block is queries that are attended together, a run rows of a device that follow each other
in the whole: all of them, or in zigzag each half.
"""

import functools
import math

import jax
from jax import numpy as jnp

from mha.backends.jax.engine.pieces import at_keys, varies
from mha.backends.jax.hiding import visible_keys
from mha.core.call import PACKED, PLACES, ROWS, Call
from mha.core.engine import blocks as cutting
from mha.core.engine.visible_range import reach

OF_ROWS = tuple(name for name, row in ROWS.items() if "Q" in "".join(row.axes))  # each query has its own row of these
SMALL = 4  # times fewer scores at once than elsewhere: a device that is one of many holds little


def by_blocks(circle, function, owner, kv, bias, fixed, rows, state, carried=((), ())):
    """Call function(number, kv, call, rows, state, carried) for each block of queries and run of keys.

    A block that sees none of these keys, by order, window, lengths per sample and segments, is left out.

    Args:
        owner: the device whose keys they are.
        fixed: the arrays of the call by name, without the bias.
        rows: arrays (B*H, Q, any); the function gets those of the block.
        state: arrays (B*H, Q, any), or (B, H, Q, all keys) with sizes that may be 1; the function gets the part of the
            block and the run, and returns it changed.
        carried: arrays (B*G, K, any) of the keys, likewise by runs, and others, handed on from call to call.

    Returns:
        The new state and carried.
    """
    whole = Call(score_bias=bias, causal=circle.causal, **fixed).with_plan(window=circle.window, chunk=circle.chunk)
    runs, here, shape = circle.runs, jax.lax.axis_index(circle.axis), rows[0].shape
    Q, K = shape[1] // runs, kv[0].shape[1] // runs  # of a run
    size = cutting.queries(Q, SMALL * shape[0] * (shape[2] if circle.features else 1) * K)
    blocks = math.ceil(Q / size)  # of a run
    own = {name: getattr(whole, name) for name in OF_ROWS if getattr(whole, name) is not None}
    rows, state, own = (pad_rows(each, runs, blocks * size) for each in (rows, state, own))

    def step(number, carry):
        state, (of_keys, others) = carry
        block, run = number % (runs * blocks), number // (runs * blocks)
        row, column = block * size, circle.first(owner, run, K)
        part = functools.partial(part_of, row=row, size=size, column=column, keys=K)
        of_run = functools.partial(jax.tree.map, lambda X: jax.lax.dynamic_slice_in_dim(X, run * K, K, 1))
        rows_here, state_here = jax.tree.map(part, (rows, state))
        pairs = {name: part_of(X, row, size) for name, X in own.items()}
        offset = whole.offset + circle.first(here, block // blocks, Q) + block % blocks * size  # (B or 1, 1)
        call = at_keys(whole._replace(**pairs, offset=offset), column[None, None], K)
        given = of_run(kv), rows_here, state_here, (of_run(of_keys), others)
        seen = _sees(call, size, K)

        def run_block(given):
            kv, *rest = given
            return function(number, kv, call, *rest)

        found = run_block(given) if seen is None else jax.lax.cond(seen, run_block, lambda given: given[2:], given)
        changed, (keys_changed, others) = found
        state = jax.tree.map(lambda X, new: _with(X, new, row, column), state, changed)
        of_keys = jax.tree.map(
            lambda X, new: jax.lax.dynamic_update_slice_in_dim(X, new, run * K, 1), of_keys, keys_changed
        )
        return state, (of_keys, others)

    state, carried = jax.lax.fori_loop(0, runs * runs * blocks, step, (state, carried))
    return jax.tree.map(lambda X: _without(X, runs, Q), state), carried


def use_flags(queries, keys, call):
    """Flags of the queries (B, Q) that see a key, and of the keys (B, K) that a query sees, in any head.

    call: with numbers of tokens, such as positions, (B or 1, T). Queries take turns in blocks: no array has all pairs.
    """
    (B, Q, _), K = queries.shape, keys.shape[1]
    size = cutting.queries(Q, SMALL * B * K)
    count = math.ceil(Q / size)
    rows = {name: getattr(call, name) for name in OF_ROWS if getattr(call, name) is not None}
    rows = pad_rows(rows, 1, count * size)

    def step(seen, number):
        here = {name: part_of(X, number * size, size) for name, X in rows.items()}
        block = jnp.zeros((B, size, 0), queries.dtype)
        visible = visible_keys(block, keys, call._replace(**here, offset=call.offset + number * size))
        visible = jnp.broadcast_to(visible.any(1), (B, size, K))
        return seen | visible.any(1), visible.any(2)  # (B, K), (B, size)

    start = as_own(jnp.zeros((B, K), bool), (queries, keys, call.arrays()))
    seen, sees = jax.lax.scan(step, start, jnp.arange(count))  # (B, K), (count, B, size)
    return sees.swapaxes(0, 1).reshape(B, count * size)[:, :Q], seen  # (B, Q), (B, K)


def as_own(arrays, like):
    """Mark arrays as differing between devices on every axis of the mesh on which an array of `like` differs."""
    axes = frozenset().union(*map(varies, jax.tree.leaves(like)))

    def own(X):
        missing = tuple(axes - varies(X))
        return jax.lax.pcast(X, missing, to="varying") if missing else X

    return jax.tree.map(own, arrays)


def axis_of_rows(X):
    """The axis of queries of (B, Q), (B*H, Q, any) or (B, H, Q, K)."""
    return X.ndim // 2


def pad_rows(arrays, runs, rows):
    """Arrays with padding rows, so that each run has as many; an array with one row for all queries keeps it.

    In arrays that are given by name, a padding row sees no key.
    """
    named = arrays.items() if isinstance(arrays, dict) else enumerate(arrays)
    found = {name: _pad_runs(X, runs, rows, -1 if name in (*PACKED, *PLACES) else 0) for name, X in named}
    return found if isinstance(arrays, dict) else tuple(found.values())


def _pad_runs(X, runs, rows, value):
    if X is None or X.shape[axis_of_rows(X)] in (1, runs * rows):
        return X
    X, axis = _in_runs(X, runs), axis_of_rows(X) + 1
    more = [(0, 0)] * X.ndim
    more[axis] = 0, rows - X.shape[axis]
    return _together(jnp.pad(X, more, constant_values=value), axis)


def _without(X, runs, rows):
    """X without the padding rows at the end of each run."""
    if X.shape[axis_of_rows(X)] in (1, runs * rows):
        return X
    axis = axis_of_rows(X) + 1
    return _together(jax.lax.slice_in_dim(_in_runs(X, runs), 0, rows, axis=axis), axis)


def _in_runs(X, runs):
    """X with an axis of runs before that of queries."""
    axis = axis_of_rows(X)
    return X.reshape(*X.shape[:axis], runs, -1, *X.shape[axis + 1 :])  # (..., runs, rows, ...)


def _together(X, axis):
    """X with an axis of rows and the axis of runs before it merged into one."""
    return X.reshape(*X.shape[: axis - 1], -1, *X.shape[axis + 1 :])  # (..., Q, ...)


def part_of(X, row, size, column=0, keys=None):
    """The part of X from a row on, `size` rows, and in (B, H, Q, K) from a column on, `keys` columns, None = all."""
    if X.shape[axis_of_rows(X)] != 1:
        X = jax.lax.dynamic_slice_in_dim(X, row, size, axis_of_rows(X))
    return X if keys is None or X.ndim < 4 or X.shape[3] == 1 else jax.lax.dynamic_slice_in_dim(X, column, keys, 3)


def _with(X, new, row, column):
    """X with `new` in the place of a part."""
    first, row, column = [jnp.int32(0)] * X.ndim, jnp.asarray(row, jnp.int32), jnp.asarray(column, jnp.int32)
    if X.shape[axis_of_rows(X)] != 1:
        first[axis_of_rows(X)] = row
    if X.ndim == 4 and X.shape[3] != 1:
        first[3] = column
    return jax.lax.dynamic_update_slice(X, new, first)


def _sees(call, queries, keys):
    """Whether a query may see a key by order, window, lengths per sample and packed texts; None = nothing can be said.

    Only the smallest and the largest number of a text and position are compared: between them, anything may be.
    """
    (left, right), found = reach(call), []
    if right is not None:
        found.append(call.offset.max() + queries - 1 + right >= 0)
    if left is not None:
        found.append(call.offset.min() - left < keys)
    if call.valid_lens is not None:
        found.append(call.valid_lens.max() > 0)
    if call.is_packed():
        found += _meet(*call.segment_ids().values(), 0, 0)
    if call.by_positions():
        left, right = call.plan.window or (None, None)
        found += _meet(call.positions, call.key_positions, left, 0 if call.causal else right)
    return functools.reduce(jnp.logical_and, found) if found else None


def _meet(own, others, left, right):
    """Whether a number of a query and one of a key can be as near as left and right say; those below 0 do not count."""
    most = jnp.iinfo(own.dtype).max
    (first, last), (least, largest) = ((jnp.where(X < 0, most, X).min(), X.max()) for X in (own, others))
    found = [last >= 0, largest >= 0]
    if right is not None:
        found.append(least - right <= last)
    if left is not None:
        found.append(first - left <= largest)
    return found
