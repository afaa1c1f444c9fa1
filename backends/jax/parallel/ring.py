"""Keys and values that go round the devices, one device's at a time, while each keeps its queries.

Letters as in the chapters; a block is queries that are attended together, a place where the keys of one device lie in
the whole. What a device has seen so far is a maximum, a sum and pooled values for each query, as if the softmax were
over these keys alone; the next keys are merged into it. Sinks are there from the start. The backward pass goes round
again, and the gradients of keys and values travel with them until they are home: left to JAX, it would keep what every
step has computed.

Source: Liu et al., Ring Attention with Blockwise Transformers for Near-Infinite Context (2023); Dao et al.,
FlashAttention (2022), section 3.1 and appendix B, for the merge and its gradients.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from mha.call import Call
from mha.engine import cutting
from mha.engine.reach import by_group, reach

from .. import pooling as lesson
from ..engine.operations import OPERATIONS
from ..engine.pieces import at_keys, cut, varies
from ..heads import repeat_heads
from ..hiding import widen

PAIRS = ("valid_lens", "mask", "score_bias")
SMALL = 4  # times fewer scores at once than elsewhere: a device that is one of many holds little


class Circle(NamedTuple):
    """The facts of a call's way round the devices that a compiler must know."""

    pooling: Any  # a module, without its variables
    num_heads: int
    features: bool  # whether a score takes several numbers, as additive ones do
    rate: float
    causal: bool
    window: Any
    axis: str
    size: int


def pool(attention, q, k, v, num_heads, call, axis):
    """The pooled values (B*H, Q, dv) of q (B*H, Q, d) over all devices' k (B*G, K, d) and v (B*G, K, dv)."""
    if type(attention).weigh is not lesson.AttentionPooling.weigh:
        name = type(attention).__name__
        raise ValueError(f'how is "ring" for a pooling {name} of its own, expected one of the layer; use "gather"')
    rate = attention.dropout if call.training else 0.0
    key = attention.make_rng("dropout") if rate else None
    module, variables = attention.unbind()
    features = bool(jax.tree.leaves(variables))
    circle = Circle(module, num_heads, features, rate, call.causal, call.window, axis, jax.lax.axis_size(axis))
    # What devices share counts as their own from here on, so that its gradients add up.
    like = q, k, v, call.score_bias
    sinks = repeat_heads(call.sinks, len(q) // num_heads, num_heads)  # (B*H, 1, 1)
    q, k, v, bias, sinks, variables = _own((*like, sinks, variables), like)
    fixed = _own((call.valid_lens, call.mask, call.offset), like)
    return _round(circle, q, k, v, bias, sinks, variables, fixed, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _round(circle, q, k, v, bias, sinks, variables, fixed, key):
    return _forward(circle, q, k, v, bias, sinks, variables, fixed, key)[0]


def _forward(circle, q, k, v, bias, sinks, variables, fixed, key):
    def block(number, owner, kv, call, rows, state, carried):
        (q,), (k, v) = rows, kv
        scores, visible = _scores(circle, call, q, k, call.score_bias, variables)
        scores = _hidden(scores, visible)
        largest, total, pooled = (_folded(X, k) for X in state)
        most = jnp.maximum(largest, scores.max(-1, keepdims=True))  # (B*G, H/G*block, 1)
        base = jnp.where(most == -math.inf, 0, most)  # of a query that has seen no key
        weights, again = jnp.exp(scores - base), jnp.exp(largest - base)
        total = total * again + weights.sum(-1, keepdims=True)
        weights *= _kept(circle, weights.shape, weights.dtype, key, owner, number)
        pooled = pooled * again + jnp.matmul(weights, widen(v))  # (B*G, H/G*block, dv)
        return tuple(X.reshape(*q.shape[:2], -1) for X in (most, total, pooled)), carried  # (B*H, block, any)

    def see(owner, kv, state):
        return _by_blocks(circle, block, owner, kv, bias, fixed, (q,), state)[0]

    def step(carried, _):
        owner, kv, state = carried
        return (_before(circle, owner), _passed(circle, kv), see(owner, kv, state)), None

    parts = zip((1, 1, v.shape[2]), (-math.inf, 0, 0), strict=True)
    state = tuple(jnp.full((*q.shape[:2], width), value, widen(q).dtype) for width, value in parts)
    if sinks is not None:
        state = jnp.broadcast_to(widen(sinks), state[0].shape), jnp.ones_like(state[1]), state[2]
    start = jax.lax.axis_index(circle.axis), (k, v), _own(state, (q, k, v, bias))
    (owner, kv, state), _ = jax.lax.scan(step, start, length=circle.size - 1)
    largest, total, pooled = see(owner, kv, state)
    sees = total != 0  # so that NaN stays
    some = jnp.where(sees, total, 1)
    pooled = jnp.where(sees, pooled / some, 0).astype(v.dtype)  # (B*H, Q, dv)
    largest = jnp.where(sees, largest, 0)
    return pooled, (q, k, v, bias, sinks, variables, fixed, key, pooled, largest, some)


def _backward(circle, saved, gradient):
    q, k, v, bias, sinks, variables, fixed, key, pooled, largest, total = saved
    gradient = widen(gradient)
    shares = (gradient * widen(pooled)).sum(-1, keepdims=True)  # (B*H, Q, 1): what the softmax takes from each

    def block(number, owner, kv, call, rows, state, carried):
        (q, *rest), (k, v), (by_k, by_v, by_variables) = rows, kv, carried
        gradient, shares, largest, share = (_folded(X, k) for X in rest)  # (B*G, H/G*block, any)
        scores_of = functools.partial(_scores, circle, call)
        scores, pull, visible = jax.vjp(scores_of, q, k, call.score_bias, variables, has_aux=True)
        # From one logarithm of both, large scores would take the digits of the sum.
        weights = jnp.exp(_hidden(scores, visible) - largest) * share  # (B*G, H/G*block, K)
        kept = _kept(circle, weights.shape, weights.dtype, key, owner, number)
        by_v += jnp.matmul((weights * kept).swapaxes(1, 2), gradient)  # (B*G, K, dv)
        by_scores = weights * (jnp.matmul(gradient, widen(v).swapaxes(1, 2)) * kept - shares)
        by_q, more_k, by_bias, more_variables = pull(by_scores)
        by_variables = jax.tree.map(jnp.add, by_variables, more_variables)
        state = jax.tree.map(jnp.add, state, (by_q, by_bias))
        return state, (by_k + more_k, by_v, by_variables)

    def see(owner, kv, by_kv, sums):
        by_q, by_bias, by_variables = sums
        columns = _columns(by_bias, owner, kv[0].shape[1])
        carried = *by_kv, by_variables
        rows = q, gradient, shares, largest, 1 / total
        found = _by_blocks(circle, block, owner, kv, bias, fixed, rows, (by_q, columns), carried)
        (by_q, columns), (by_k, by_v, by_variables) = found
        return (by_k, by_v), (by_q, _replaced(by_bias, columns, owner), by_variables)

    def step(carried, _):
        owner, kv, by_kv, sums = carried
        by_kv, sums = see(owner, kv, by_kv, sums)
        return (_before(circle, owner), *_passed(circle, (kv, by_kv)), sums), None

    zeros = jax.tree.map(lambda X: jnp.zeros(X.shape, gradient.dtype), ((k, v), (q, bias, variables)))
    start = jax.lax.axis_index(circle.axis), (k, v), *_own(zeros, (q, k, v, bias))
    (owner, kv, by_kv, sums), _ = jax.lax.scan(step, start, length=circle.size - 1)
    by_kv, (by_q, *rest) = see(owner, kv, by_kv, sums)
    by_bias, by_variables = rest
    by_sinks = None
    if sinks is not None:
        by_sinks = -(shares * jnp.exp(widen(sinks) - largest) / total).sum(1, keepdims=True)  # (B*H, 1, 1)
    found = by_q, *_passed(circle, by_kv), by_bias, by_sinks, by_variables  # those of keys and values come home
    found = jax.tree.map(lambda X, of: X.astype(of.dtype), found, (q, k, v, bias, sinks, variables))
    return *found, None, None


_round.defvjp(_forward, _backward)


def _by_blocks(circle, function, owner, kv, bias, fixed, rows, state, carried=()):
    """function(number, owner, kv, call, rows, state, carried) for each block of queries: the new state, and carried.

    rows: arrays (B*H, Q, any), of which it is given those of the block; state: such arrays, or (B, H, Q, K) with sizes
    that may be 1, that it returns changed; carried: what is handed from block to block. A block that sees none of these
    keys, by order, window and lengths per sample, is left out.
    """
    (lens, mask, offset), Q, K = fixed, rows[0].shape[1], kv[0].shape[1]
    whole = Call(lens, mask, bias, circle.causal, offset, window=circle.window)
    first = (owner * K).reshape(1, 1)  # of the keys, as a column (1, 1)
    call = at_keys(whole, first, K)
    of_pair = len(rows[0]) * (rows[0].shape[2] if circle.features else 1)
    size = cutting.queries(Q, SMALL * of_pair * K)
    count = math.ceil(Q / size)
    arrays = rows, state, (call.valid_lens, call.mask, call.score_bias)
    rows, state, pairs = jax.tree.map(lambda X: _filled(X, count * size), arrays)

    def step(number, carry):
        state, carried = carry
        rows_here, state_here, pairs_here = jax.tree.map(lambda X: _some(X, number * size, size), (rows, state, pairs))
        own = call._replace(**dict(zip(PAIRS, pairs_here, strict=True)), offset=call.offset + number * size)
        given = rows_here, state_here, carried
        run = functools.partial(_applied, functools.partial(function, number, owner, kv, own))
        seen = _sees(own, size, K)
        changed, carried = run(given) if seen is None else jax.lax.cond(seen, run, lambda given: given[1:], given)
        state = jax.tree.map(lambda X, new: _with(X, new, number * size), state, changed)
        return state, carried

    state, carried = jax.lax.fori_loop(0, count, step, (state, carried))
    return jax.tree.map(
        lambda X: X if X.shape[_axis(X)] == 1 else jax.lax.slice_in_dim(X, 0, Q, axis=_axis(X)), state
    ), carried


def _applied(function, given):
    return function(*given)


def _axis(X):
    """The axis of queries of (B, Q), (B*H, Q, any) or (B, H, Q, K)."""
    return X.ndim // 2


def _filled(X, rows):
    """X with rows of zeros for queries that are not there; one row for all stays one."""
    if X.shape[_axis(X)] in (1, rows):
        return X
    more = [(0, 0)] * X.ndim
    more[_axis(X)] = 0, rows - X.shape[_axis(X)]
    return jnp.pad(X, more)


def _some(X, first, size):
    return X if X.shape[_axis(X)] == 1 else jax.lax.dynamic_slice_in_dim(X, first, size, _axis(X))


def _with(X, new, first):
    return new if X.shape[_axis(X)] == 1 else jax.lax.dynamic_update_slice_in_dim(X, new, first, _axis(X))


def _sees(call, queries, keys):
    """Whether a query may see a key by order, window and lengths per sample; None if nothing is known of it."""
    (left, right), found = reach(call), []
    if right is not None:
        found.append(call.offset.max() + queries - 1 + right >= 0)
    if left is not None:
        found.append(call.offset.min() - left < keys)
    if call.valid_lens is not None:
        found.append(call.valid_lens.max() > 0)
    return functools.reduce(jnp.logical_and, found) if found else None


def _scores(circle, call, q, k, bias, variables):
    """The scores of a block (B*G, H/G*block, K), capped and biased, and which of them are visible."""
    visible, bias, _ = by_group(OPERATIONS, q, k, circle.num_heads, call._replace(score_bias=bias))
    scores = circle.pooling.apply(variables, _folded(q, k), k, method="scores")
    if circle.pooling.softcap is not None:
        scores = lesson.cap(scores, circle.pooling.softcap, visible)
    return scores if bias is None else scores + widen(bias), visible


def _hidden(scores, visible):
    """Scores, -inf where hidden: in both passes, since XLA may round a product once with the difference after it."""
    return scores if visible is None else jnp.where(visible, scores, -math.inf)  # (B*G, H/G*block, K)


def _folded(X, k):
    """Heads of queries (B*H, Q, any) that share a head of keys in a row: (B*G, H/G*Q, any)."""
    return X.reshape(len(k), -1, X.shape[2])  # (B*G, H/G*Q, any)


def _kept(circle, shape, dtype, key, owner, number):
    """The factors of weights: 1, or with dropout 0, or more than 1 to make up; the same in both passes."""
    if not circle.rate:
        return 1
    key = jax.random.fold_in(jax.random.fold_in(key, owner), number)
    return jax.random.bernoulli(key, 1 - circle.rate, shape).astype(dtype) / (1 - circle.rate)


def _columns(pairs, owner, keys):
    """The part of a bias's gradient for the keys of one device; one column for all stays one."""
    if pairs is None or pairs.shape[3] == 1:
        return pairs
    return cut(pairs, (owner * keys).reshape(1, 1), keys, 3)  # (B or 1, H or 1, Q or 1, keys)


def _replaced(pairs, columns, owner):
    if pairs is None or pairs.shape[3] == 1:
        return columns
    return jax.lax.dynamic_update_slice_in_dim(pairs, columns, owner * columns.shape[3], 3)


def _passed(circle, arrays):
    """Arrays handed to the next device, for those that come from the one before."""
    ways = [(device, (device + 1) % circle.size) for device in range(circle.size)]
    return jax.tree.map(lambda X: jax.lax.ppermute(X, circle.axis, ways), arrays)


def _before(circle, owner):
    return (owner - 1) % circle.size


def _own(arrays, like):
    """Arrays that count as this device's own on every axis of the mesh on which one of `like` does."""
    axes = frozenset().union(*map(varies, jax.tree.leaves(like)))

    def own(X):
        missing = tuple(axes - varies(X))
        return jax.lax.pcast(X, missing, to="varying") if missing else X

    return jax.tree.map(own, arrays)
