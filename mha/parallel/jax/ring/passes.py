"""Send keys and values round the devices, one device's at a time, while each keeps its queries.

Letters as in the chapters; a block is queries that are attended together. A device keeps a maximum, a sum and pooled
values for each query, as if the softmax were over the keys so far; the next keys are merged into them.
Sinks are there from the start. The backward pass goes round again, and the gradients of keys and values travel with
them until they are home: left to JAX, it would keep what every step has computed.

Source: Liu et al., Ring Attention with Blockwise Transformers for Near-Infinite Context (2023); Dao et al.,
FlashAttention (2022), section 3.1 and appendix B, for the merge and its gradients.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from mha.backends.jax import pooling as lesson
from mha.backends.jax.engine.operations import OPERATIONS
from mha.backends.jax.heads import repeat_heads
from mha.backends.jax.hiding import widen
from mha.core.engine.visible_range import pairs_by_group

from .blocks import OF_ROWS, as_own, axis_of_rows, by_blocks


class Circle(NamedTuple):
    """The constants of one call's passes round the devices, which a compiler must know."""

    pooling: Any  # a module, without its variables
    num_heads: int
    features: bool  # whether a score takes several numbers, as additive ones do
    rate: float
    causal: bool
    window: Any
    chunk: Any
    axis: str
    size: int
    runs: int  # of rows that follow each other, on each device: 2 in zigzag

    def first(self, device, run, rows):
        """The place in the whole sequence of the first row of a run on a device; rows: of a run."""
        return (jnp.where(run == 0, device, 2 * self.size - 1 - device) if self.runs == 2 else device) * rows


def pool(attention, q, k, v, num_heads, call, axis, in_zigzag=False):
    """The pooled values (B*H, Q, dv) of q (B*H, Q, d) over all devices' k (B*G, K, d) and v (B*G, K, dv).

    call: of the rows here and all keys, with the offset of the whole's first query; in_zigzag: whether the rows are
    exchanged into zigzag first, and the pooled values back.
    """
    if type(attention).weigh is not lesson.AttentionPooling.weigh:
        name = type(attention).__name__
        raise ValueError(f'how is "ring" for a pooling {name} of its own, expected one of the layer; use "gather"')
    rate = attention.dropout if call.training else 0.0
    key = attention.make_rng("dropout") if rate else None
    module, variables = attention.unbind()
    facts = {"features": bool(jax.tree.leaves(variables)), "rate": rate, "runs": 2 if in_zigzag else 1}
    facts |= {"causal": call.causal, "window": call.plan.window, "chunk": call.plan.chunk}
    circle = Circle(module, num_heads, axis=axis, size=jax.lax.axis_size(axis), **facts)
    if in_zigzag:
        q, k, v = (into_zigzag(X, axis, 1) for X in (q, k, v))  # (B*H, T, d)
        rows = {name: (X, axis_of_rows(X)) for name in OF_ROWS if (X := getattr(call, name)) is not None}
        call = call._replace(**{name: into_zigzag(X, axis, at) for name, (X, at) in rows.items() if X.shape[at] > 1})
    # What devices share counts as their own from here on, so that its gradients add up.
    like = q, k, v, call.score_bias
    sinks = repeat_heads(call.plan.sinks, len(q) // num_heads, num_heads)  # (B*H, 1, 1)
    q, k, v, bias, sinks, variables = as_own((*like, sinks, variables), like)
    fixed = call._replace(score_bias=None, head_gates=None).arrays()
    fixed["offset"] = jnp.asarray(call.offset).reshape(-1, 1)  # (B or 1, 1)
    pooled = _round(circle, q, k, v, bias, sinks, variables, as_own(fixed, like), key)  # (B*H, Q, dv)
    return out_of_zigzag(pooled, axis, 1) if in_zigzag else pooled


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _round(circle, q, k, v, bias, sinks, variables, fixed, key):
    return _forward(circle, q, k, v, bias, sinks, variables, fixed, key)[0]


def _forward(circle, q, k, v, bias, sinks, variables, fixed, key):
    def block(owner, number, kv, call, rows, state, carried):
        (q,), (k, v) = rows, kv
        scores, visible = _scores(circle, call, q, k, call.score_bias, variables)
        scores = _hide(scores, visible)
        largest, total, pooled = (_fold_heads(X, k) for X in state)
        most = jnp.maximum(largest, scores.max(-1, keepdims=True))  # (B*G, H/G*block, 1)
        base = jnp.where(most == -math.inf, 0, most)  # of a query that has seen no key
        weights, again = jnp.exp(scores - base), jnp.exp(largest - base)
        total = total * again + weights.sum(-1, keepdims=True)
        weights *= _dropout_factors(circle, weights.shape, weights.dtype, key, owner, number)
        pooled = pooled * again + jnp.matmul(weights, widen(v))  # (B*G, H/G*block, dv)
        return tuple(X.reshape(*q.shape[:2], -1) for X in (most, total, pooled)), carried  # (B*H, block, any)

    def see(owner, kv, state):
        return by_blocks(circle, functools.partial(block, owner), owner, kv, bias, fixed, (q,), state)[0]

    def step(carried, _):
        owner, kv, state = carried
        return (_device_before(circle, owner), _pass_on(circle, kv), see(owner, kv, state)), None

    parts = zip((1, 1, v.shape[2]), (-math.inf, 0, 0), strict=True)
    state = tuple(jnp.full((*q.shape[:2], width), value, widen(q).dtype) for width, value in parts)
    if sinks is not None:
        state = jnp.broadcast_to(widen(sinks), state[0].shape), jnp.ones_like(state[1]), state[2]
    start = jax.lax.axis_index(circle.axis), (k, v), as_own(state, (q, k, v, bias))
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

    def block(owner, number, kv, call, rows, state, carried):
        (q, *rest), (k, v), ((by_k, by_v), by_variables) = rows, kv, carried
        gradient, shares, largest, share = (_fold_heads(X, k) for X in rest)  # (B*G, H/G*block, any)
        scores_of = functools.partial(_scores, circle, call)
        scores, pull, visible = jax.vjp(scores_of, q, k, call.score_bias, variables, has_aux=True)
        # From one logarithm of both, large scores would take the digits of the sum.
        weights = jnp.exp(_hide(scores, visible) - largest) * share  # (B*G, H/G*block, K)
        kept = _dropout_factors(circle, weights.shape, weights.dtype, key, owner, number)
        by_v += jnp.matmul((weights * kept).swapaxes(1, 2), gradient)  # (B*G, K, dv)
        by_scores = weights * (jnp.matmul(gradient, widen(v).swapaxes(1, 2)) * kept - shares)
        by_q, more_k, by_bias, more_variables = pull(by_scores)
        by_variables = jax.tree.map(jnp.add, by_variables, more_variables)
        state = jax.tree.map(jnp.add, state, (by_q, by_bias))
        return state, ((by_k + more_k, by_v), by_variables)

    def see(owner, kv, by_kv, sums):
        *state, by_variables = sums
        rows = q, gradient, shares, largest, 1 / total
        given = owner, kv, bias, fixed, rows, tuple(state), (by_kv, by_variables)
        state, (by_kv, by_variables) = by_blocks(circle, functools.partial(block, owner), *given)
        return by_kv, (*state, by_variables)

    def step(carried, _):
        owner, kv, by_kv, sums = carried
        by_kv, sums = see(owner, kv, by_kv, sums)
        return (_device_before(circle, owner), *_pass_on(circle, (kv, by_kv)), sums), None

    zeros = jax.tree.map(lambda X: jnp.zeros(X.shape, gradient.dtype), ((k, v), (q, bias, variables)))
    start = jax.lax.axis_index(circle.axis), (k, v), *as_own(zeros, (q, k, v, bias))
    (owner, kv, by_kv, sums), _ = jax.lax.scan(step, start, length=circle.size - 1)
    by_kv, (by_q, *rest) = see(owner, kv, by_kv, sums)
    by_bias, by_variables = rest
    by_sinks = None
    if sinks is not None:
        by_sinks = -(shares * jnp.exp(widen(sinks) - largest) / total).sum(1, keepdims=True)  # (B*H, 1, 1)
    found = by_q, *_pass_on(circle, by_kv), by_bias, by_sinks, by_variables  # those of keys and values come home
    found = jax.tree.map(lambda X, of: X.astype(of.dtype), found, (q, k, v, bias, sinks, variables))
    return *found, None, None


_round.defvjp(_forward, _backward)


def _scores(circle, call, q, k, bias, variables):
    """The scores of a block (B*G, H/G*block, K), capped and biased, and which of them are visible."""
    visible, bias, _ = pairs_by_group(OPERATIONS, q, k, circle.num_heads, call._replace(score_bias=bias))
    scores = circle.pooling.apply(variables, _fold_heads(q, k), k, method="scores")
    return circle.pooling.bend(scores, visible, bias), visible


def _hide(scores, visible):
    """Scores with -inf where hidden: in both passes, since XLA may round a product and a difference together."""
    return scores if visible is None else jnp.where(visible, scores, -math.inf)  # (B*G, H/G*block, K)


def _fold_heads(X, k):
    """Put the heads of queries that share a head of keys in one row: (B*H, Q, any) -> (B*G, H/G*Q, any)."""
    return X.reshape(len(k), -1, X.shape[2])  # (B*G, H/G*Q, any)


def _dropout_factors(circle, shape, dtype, key, owner, number):
    """The factors by which dropout multiplies weights, the same in both passes; 1 without dropout."""
    if not circle.rate:
        return 1
    key = jax.random.fold_in(jax.random.fold_in(key, owner), number)
    return jax.random.bernoulli(key, 1 - circle.rate, shape).astype(dtype) / (1 - circle.rate)


def _pass_on(circle, arrays):
    """Send arrays to the next device, and return those of the device before."""
    ways = [(device, (device + 1) % circle.size) for device in range(circle.size)]
    return jax.tree.map(lambda X: jax.lax.ppermute(X, circle.axis, ways), arrays)


def _device_before(circle, owner):
    return (owner - 1) % circle.size


# Rows in zigzag, as `mha.parallel.rows` says


def into_zigzag(X, axis, dim):
    """X with its consecutive rows, along `dim`, exchanged into zigzag over the devices of an axis of the mesh."""
    ways, (first, second) = _ways(axis), jnp.split(X, 2, dim)
    even, odd = (jax.lax.ppermute(X, axis, way) for X, way in zip((first, second), ways, strict=True))
    return jnp.concatenate(_swap_on_odd(even, odd, axis), dim)


def out_of_zigzag(X, axis, dim):
    """X with consecutive rows again: the inverse of `into_zigzag`."""
    ways, pieces = _ways(axis), _swap_on_odd(*jnp.split(X, 2, dim), axis)
    pieces = (
        jax.lax.ppermute(X, axis, [(came, went) for went, came in way]) for X, way in zip(pieces, ways, strict=True)
    )
    return jnp.concatenate([*pieces], dim)


def _ways(axis):
    """The pairs (from, to) of devices for the even pieces, and those for the odd ones.

    The rows of N devices make 2N pieces. Of consecutive ones, device r has pieces 2r and 2r + 1; in zigzag, r and
    2N - 1 - r. All even pieces go to different devices, and so do all odd ones.
    """
    N = jax.lax.axis_size(axis)
    homes = [min(piece, 2 * N - 1 - piece) for piece in range(2 * N)]
    return [*enumerate(homes[::2])], [*enumerate(homes[1::2])]


def _swap_on_odd(X, Y, axis):
    """X and Y in this order on an even device, else swapped: the first piece of an odd device is odd."""
    is_even = jax.lax.axis_index(axis) % 2 == 0
    return jnp.where(is_even, X, Y), jnp.where(is_even, Y, X)
