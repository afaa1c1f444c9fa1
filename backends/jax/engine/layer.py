"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's.
"""

import functools
import math

import jax
from jax import numpy as jnp

from mha.core.engine import blocks
from mha.core.engine.visible_range import by_segments, usage, uses_all, without_positions, zero_out

from .. import layer as lesson
from ..heads import transpose_qkv
from .decoding import pool_slots, remember_heads
from .kernels import beside_gpu
from .operations import OPERATIONS, operations_at
from .pieces import devices, in_reach, prepare
from .pooling import AttentionPooling, pooling

SHORT = 512  # keys of a sample, of which a quarter is a small product


class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def setup(self):
        super().setup()
        H, G = self.config.num_heads, self.config.num_key_value_heads
        gates = ((self.W_g, H),) if self.config.output_gate else ()
        for dense, heads in ((self.W_q, H), (self.W_k, G), (self.W_v, G), (self.W_o, H), *gates):
            # A module that has its name is frozen, and another one cannot have the same.
            object.__setattr__(dense, "dot_general", functools.partial(_dot_by_head, heads))

    def attend(self, queries, keys, values, call):
        """Take the steps as the lesson, or by pieces where that is enough."""
        if self.in_lesson(queries, keys, call):
            return super().attend(queries, keys, values, call.with_plan(lesson=True))
        call = beside_gpu(call, queries)
        if call.cache is None and (not call.is_packed() or call.plan.chunk is not None):
            call = by_segments(OPERATIONS, queries, keys, call)
        return super().attend(queries, keys, values, call)

    def in_lesson(self, queries, keys, call):
        """Whether the lesson computes a call: it keeps the weights, an array is empty, the pooling was replaced."""
        # To initialise is to make every parameter, which a branch or a loop would not.
        if call.return_weights or call.plan.traced or self.is_initializing():
            return True
        empty = 0 in (*queries.shape[:2], keys.shape[1] if call.cache is None else call.cache.sizes[1])
        return empty or not isinstance(self.attention, AttentionPooling)

    def project(self, queries, keys, values, call):
        """Heads of queries, and of keys and values in reach, zero where they are not used; and the call of these."""
        if call.plan.lesson or call.cache is not None:
            return super().project(queries, keys, values, call)
        H, G = self.config.num_heads, self.config.num_key_value_heads
        keys, values, call = in_reach(queries, keys, values, prepare(call, keys.shape[1]))
        Q, K, by_lengths = queries.shape[1], keys.shape[1], call.valid_lens is not None and call.plan.room is None
        if not uses_all(call, Q, K):
            sees, seen = usage(operations_at(call), queries, keys, call)
            queries, keys, values = zero_out(OPERATIONS, queries, keys, values, sees, seen)
        if by_lengths and K >= SHORT and not blocks.fits(len(queries) * H * Q * K):
            W_k, W_v = _project_rows(self.W_k, keys, seen), _project_rows(self.W_v, values, seen)  # (B, K, G*d)
        else:
            W_k, W_v = self.W_k(keys), self.W_v(values)  # (B, K, G*d)
        q, k, v = transpose_qkv(self.W_q(queries), H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        return q, k, v, self.beside_gates(queries, call)

    def remember(self, k, v, call):
        """Put new tokens into the slots: as soon as there is an output, or as the lesson does."""
        return super().remember(k, v, call) if call.plan.lesson else remember_heads(k, v, call)

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache, whose slots are written now."""
        return super().recall(output, weights, call, cache if call.plan.lesson else cache(output))

    def pool(self, q, k, v, call):
        """The pooled heads (B*H, Q, dv) alone."""
        if call.plan.lesson:
            return super().pool(q, k, v, call)
        call = self.beside_sinks(call)
        if call.cache is not None:
            return pool_slots(self.attention, q, k, v, self.config.num_heads, call), None  # (B*H, Q, dv)
        call = without_positions(call)
        return self.attention.pool(q, k, v, self.config.num_heads, call), None  # (B*H, Q, dv)


def _dot_by_head(num_heads, X, kernel, dimensions, **options):
    """The product of X (B, T, in) and a kernel (in, out): (B, T, out).

    With an axis for the heads, XLA has a faster product for the kernel's gradient; without it, JAX 0.12 adds that up in
    bfloat16 on a processor, where the kernel has that dtype.
    """
    width, num_features = kernel.shape
    H = math.gcd(num_heads, num_features)
    split = kernel.reshape(width, H, num_features // H)  # (in, H, d)
    return jax.lax.dot_general(X, split, dimensions, **options).reshape(*X.shape[:-1], num_features)  # (B, T, out)


def _project_rows(dense, X, seen):
    """dense(X) for X (B, K, in) by quarters of the rows, zeros for quarters where `seen` (B, K) is False throughout."""
    (B, K, width), n = X.shape, devices(X, len(X))
    size = math.ceil(K / 4)
    X = jnp.pad(X, ((0, 0), (0, 4 * size - K), (0, 0))).reshape(n, -1, size, width)  # (n, B/n*4, size, in)
    seen = jnp.pad(jnp.broadcast_to(seen, (B, K)), ((0, 0), (0, 4 * size - K))).reshape(n, -1, size)  # (n, B/n*4, size)
    module, variables = dense.unbind()

    def project(inputs):
        X, seen = inputs  # (n, size, in), (n, size)
        pure = functools.partial(module.apply, variables)
        return jax.lax.cond(seen.any(), pure, lambda X: jnp.zeros_like(pure(X)), X)  # (n, size, out)

    found = jax.lax.map(project, (X.swapaxes(0, 1), seen.swapaxes(0, 1)))  # (B/n*4, n, size, out)
    return found.swapaxes(0, 1).reshape(B, 4 * size, -1)[:, :K]  # (B, K, out)
