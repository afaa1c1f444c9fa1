"""The same numbers as the lesson's, in less time and memory, where nobody asks for attention weights.

Letters as in layer.py. A call is compiled as a whole, for the sizes of its arrays and not for the lengths in them.
"""

import collections
import functools
import math

import jax
from flax import linen as nn
from jax import numpy as jnp

from mha import arguments, blocks
from mha.arguments import Checked, Hiding

from . import layer as lesson
from .layer import blank, repeat_heads, transpose_output, transpose_qkv, visible_keys
from .pieces import pool_pieces

SHORT = 512  # keys of a sample, of which a quarter is a small product
FEW = 2**16  # numbers, for whose product the kernel's layout does not matter


# 1. Which queries and keys count


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = blocks.part(None, mask)[1].any(1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal=causal)[:, 0]  # (B, Q, K)
        return visible.any(2), visible.any(1)
    Q, K = queries.shape[1], keys.shape[1]
    limits = jnp.full((1, 1), K)  # (1, 1)
    if valid_lens is not None:
        limits = lesson._signed(valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens, K)  # (B, 1 or Q)
    if causal:
        limits = jnp.minimum(limits, jnp.arange(1, Q + 1))  # (B, Q)
    return limits > 0, jnp.arange(K) < limits.max(1)[:, None]


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        options = num_heads, valid_lens, mask, causal
        if blocks.fits(queries.shape[0] * queries.shape[1] * self.scores_of_query(queries[:1], keys[:1])):
            return self.pool_block(queries, keys, values, *options, 0, training)
        return pool_pieces(self, queries, keys, values, *options, training)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        visible = visible_keys(queries, keys, valid_lens, mask, causal=causal, offset=first)
        visible = repeat_heads(visible, queries.shape[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training=training)["pooled"]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return queries.shape[0] * keys.shape[1]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, by `output` where that is enough."""
        if return_weights or self.needs_lesson(queries, keys, hiding, head_gates):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        call = hiding.valid_lens, hiding.mask, hiding.causal, training
        return self.output(queries, keys, values, *call)  # (B, Q, D)

    def needs_lesson(self, queries, keys, hiding, head_gates):
        """Whether an array is empty, an option is known to the lesson alone, or the pooling has been replaced."""
        empty = 0 in (*queries.shape[:2], keys.shape[1])
        # To initialise is to make every parameter, which a branch or a loop would not.
        empty = empty or self.is_initializing()
        plain = blocks.is_plain(self.config, hiding, head_gates)
        return empty or not plain or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        H, last = self.config.num_heads, queries.shape[1] if causal else keys.shape[1]
        keys, values = keys[:, :last], values[:, :last]
        hiding = *blocks.part(valid_lens, mask, keys=slice(last)), causal
        B, Q, K = queries.shape[0], queries.shape[1], keys.shape[1]
        if valid_lens is not None or mask is not None:
            sees, seen = used(queries, keys, *hiding)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        if valid_lens is None or blocks.fits(B * H * Q * K) or K < SHORT:
            W_k, W_v = _project(self.W_k, keys, H), _project(self.W_v, values, H)  # (B, K, H*d)
        else:
            W_k, W_v = _of_seen(self.W_k, keys, seen), _of_seen(self.W_v, values, seen)  # (B, K, H*d)
        W_q = _project(self.W_q, queries, H)  # (B, Q, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        pooled = self.attention.pool(split_q, split_k, split_v, H, *hiding, training)  # (B*H, Q, dv)
        return _project(self.W_o, transpose_output(pooled, H), H)  # (B, Q, D)


# 4. Calls

build = functools.partial(lesson.build, kind=MultiHeadAttention)


def attend(layer, queries, keys, values, *call, training=None, return_weights=False, **options):
    """As the lesson's, compiled."""
    options |= {"training": training, "return_weights": return_weights}
    checked = arguments.check("jax", layer, queries, keys, values, *call, **options)
    rngs = {"dropout": layer.make_rng("dropout")} if training and layer.config.dropout else {}
    return _attend(*_apart(layer), rngs, queries, keys, values, *_parted(checked), training, return_weights)


def vjp(layer, queries, keys, values, *call, training=False, **options):
    """As the lesson's, compiled."""
    checked = arguments.check("jax", layer, queries, keys, values, *call, **options)
    rngs = {"dropout": layer.make_rng("dropout")} if training and layer.config.dropout else {}
    output, pull_back = _vjp(*_apart(layer), rngs, queries, keys, values, *_parted(checked), training)
    return output, lambda cotangent: dict(_pulled(pull_back, cotangent))


def gradients(layer, queries, keys, values, *call, cotangent=None, **options):
    """As the lesson's, compiled."""
    checked = arguments.check("jax", layer, queries, keys, values, *call, **options)
    return dict(_gradients(*_apart(layer), queries, keys, values, *_parted(checked), cotangent))


def trace(layer, queries, keys, values, *call, **options):
    """As the lesson's, compiled."""
    checked = arguments.check("jax", layer, queries, keys, values, *call, **options)
    return dict(_trace(*_apart(layer), queries, keys, values, *_parted(checked)))


# One by one, JAX would compile every operation for every new shape. A plain dict would come back sorted.


@functools.partial(jax.jit, static_argnames=("module", "fixed", "training", "return_weights"))
def _attend(module, variables, rngs, queries, keys, values, arrays, fixed, training, return_weights):
    options = {"training": training, "return_weights": return_weights}
    return module.apply(variables, queries, keys, values, _whole(arrays, fixed), rngs=rngs, **options)


@functools.partial(jax.jit, static_argnames=("module", "fixed", "training"))
def _vjp(module, variables, rngs, queries, keys, values, arrays, fixed, training):
    layer = module.bind(variables, rngs=rngs)
    return lesson.vjp(layer, queries, keys, values, _whole(arrays, fixed), training=training)


@jax.jit
def _pulled(pull_back, cotangent):
    return collections.OrderedDict(pull_back(cotangent))


@functools.partial(jax.jit, static_argnames=("module", "fixed"))
def _gradients(module, variables, queries, keys, values, arrays, fixed, cotangent):
    inputs = queries, keys, values, _whole(arrays, fixed)
    return collections.OrderedDict(lesson.gradients(module.bind(variables), *inputs, cotangent=cotangent))


@functools.partial(jax.jit, static_argnames=("module", "fixed"))
def _trace(module, variables, queries, keys, values, arrays, fixed):
    inputs = queries, keys, values, _whole(arrays, fixed)
    return collections.OrderedDict(lesson.trace(module.bind(variables), *inputs))


def _parted(checked):
    """The arrays of a checked call, and what a compiler must know of it: its order, its window, and an offset of 0.

    Any other offset counts as an array: decoding has another one for each token.
    """
    valid_lens, mask, score_bias, causal, offset, window = checked.hiding
    from_0 = type(offset) is int and offset == 0
    arrays = valid_lens, mask, score_bias, None if from_0 else offset, checked.head_gates
    return arrays, (causal, from_0, window)


def _whole(arrays, fixed):
    """A checked call again, of its two parts."""
    valid_lens, mask, score_bias, offset, head_gates = arrays
    causal, from_0, window = fixed
    return Checked(Hiding(valid_lens, mask, score_bias, causal, 0 if from_0 else offset, window), head_gates)


def _apart(layer):
    """A layer's module and its variables; the module is the same in every call, where `unbind` makes a new one."""
    return (_module(layer.config), layer.variables) if type(layer) is MultiHeadAttention else layer.unbind()


_module = functools.cache(MultiHeadAttention)


def _project(dense, X, num_heads):
    """dense(X); of a large X by a kernel with an axis for the heads, for whose gradient XLA has a faster product."""
    if X.size < FEW or type(dense) is not nn.Dense:
        return dense(X)
    module, variables = dense.unbind()
    return module.clone(dot_general=functools.partial(_dot_by_head, num_heads)).apply(variables, X)


def _dot_by_head(num_heads, X, kernel, dimensions, **options):
    """The product of X (B, T, in) and a kernel (in, out) that is (in, H, d) while it is multiplied: (B, T, out)."""
    split = kernel.reshape(len(kernel), math.gcd(num_heads, kernel.shape[1]), -1)  # (in, H, d)
    return jax.lax.dot_general(X, split, dimensions, **options).reshape(*X.shape[:2], -1)  # (B, T, out)


def _of_seen(dense, X, seen):
    """dense(X) for X (B, K, in) by quarters of the rows, zeros for quarters where `seen` (B, K) is False throughout."""
    B, K, width = X.shape
    size = math.ceil(K / 4)
    X = jnp.pad(X, ((0, 0), (0, 4 * size - K), (0, 0))).reshape(B * 4, size, width)  # (B*4, size, in)
    seen = jnp.pad(jnp.broadcast_to(seen, (B, K)), ((0, 0), (0, 4 * size - K))).reshape(B * 4, size)  # (B*4, size)
    module, variables = dense.unbind()

    def project(inputs):
        X, seen = inputs  # (size, in), (size,)
        pure = functools.partial(module.apply, variables)
        return jax.lax.cond(seen.any(), pure, lambda X: jnp.zeros_like(pure(X)), X)  # (size, out)

    return jax.lax.map(project, (X, seen)).reshape(B, 4 * size, -1)[:, :K]  # (B, K, out)
