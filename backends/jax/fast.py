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
from .heads import positions
from .layer import blank, four_axes, repeat_heads, transpose_output, transpose_qkv, visible_keys
from .pieces import devices, in_reach, pool_pieces, signed

SHORT = 512  # keys of a sample, of which a quarter is a small product
FEW = 2**16  # numbers, for whose product the kernel's layout does not matter


# 1. Which queries and keys count


def used(queries, keys, hiding):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; hiding: of the call.

    It takes no array of all pairs where each query sees the keys from a first to a last one, and no key between those
    of all queries is left out.
    """
    valid_lens, (left, right) = hiding.valid_lens, blocks.reach(hiding)
    per_query = valid_lens is not None and valid_lens.shape[1] > 1
    if hiding.mask is not None or hiding.score_bias is not None or (per_query and left is not None):
        visible = visible_keys(queries, keys, *hiding).any(1)  # (B, Q, K)
        return visible.any(2), visible.any(1)
    each_query, each_key = positions(queries, hiding.offset), positions(keys)  # (B or 1, Q), (1, K)
    K = keys.shape[1]
    first, last = jnp.zeros_like(each_query), jnp.full_like(each_query, K)  # (B or 1, Q)
    if left is not None:
        first = jnp.maximum(each_query, left) - left
    if right is not None:
        last = jnp.minimum(each_query, K - right - 1) + right + 1  # of 32 bits, in which two far positions do not fit
    if valid_lens is not None:
        last = jnp.minimum(last, valid_lens)  # (B, Q)
    sees = first < last  # (B or 1, Q)
    first, last = jnp.where(sees, first, K), jnp.where(sees, last, 0)
    return sees, (first.min(1)[:, None] <= each_key) & (each_key < last.max(1)[:, None])


# 2. Attention poolings


class AttentionPooling(lesson.AttentionPooling):
    """A pooling of the lesson that also pools without keeping weights."""

    def pool(self, queries, keys, values, num_heads, hiding, training):
        """The pooled values (B*H, Q, dv) alone, for queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv).

        hiding: of the call. No weights are kept: blocks of queries follow each other, and are computed once more for
        their gradients, so that scores take the memory of one block. A block leaves out the keys that order and window
        hide from all of it.
        """
        inputs = queries, keys, values, num_heads, hiding, training
        fits = blocks.fits(self.scores_of_pair(queries) * queries.shape[1] * keys.shape[1])
        return self.pool_block(*inputs) if fits else pool_pieces(self, *inputs)  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, hiding, training):
        """As `pool`, for the queries of one block."""
        visible, score_bias = by_group(queries, keys, num_heads, hiding)
        folded = queries.reshape(len(keys), -1, queries.shape[2])  # (B*G, H/G*Q, d)
        pooled = self.weigh(folded, keys, values, visible, score_bias, training)["pooled"]  # (B*G, H/G*Q, dv)
        return pooled.reshape(*queries.shape[:2], -1)  # (B*H, Q, dv)

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take, over all heads (B*H)."""
        return queries.shape[0]


class DotProductAttention(AttentionPooling, lesson.DotProductAttention):
    """As the lesson's."""


class AdditiveAttention(AttentionPooling, lesson.AdditiveAttention):
    """As the lesson's; its features count as scores, of which each takes several."""

    def scores_of_pair(self, queries):
        """How many numbers the scores of one query and one key take: n features for each head."""
        return super().scores_of_pair(queries) * queries.shape[2]


pooling = functools.partial(lesson.pooling, dot=DotProductAttention, additive=AdditiveAttention)


def by_group(queries, keys, num_heads, hiding):
    """What is visible and the bias for heads of keys (B*G, K, d), with the queries (B*H, Q, d) that share one in a row.

    Both broadcast against (B*G, H/G*Q, K), or are None.
    """
    (BH, Q, _), (BG, _, _), B = queries.shape, keys.shape, len(queries) // num_heads

    def folded(pairs):
        if pairs is None or BG == BH or pairs.shape[1] == pairs.shape[2] == 1:
            return repeat_heads(pairs, B, num_heads * BG // BH)  # (B*G, Q or 1, K)
        pairs = jnp.broadcast_to(pairs, (B, num_heads, Q, pairs.shape[3]))  # (B, H, Q, K or 1)
        return pairs.reshape(BG, BH // BG * Q, -1)  # (B*G, H/G*Q, K or 1)

    score_bias = None if hiding.score_bias is None else four_axes(hiding.score_bias)
    return folded(visible_keys(queries, keys, *hiding)), folded(score_bias)


# 3. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """As the lesson's; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As the lesson's, by `output` where that is enough."""
        if return_weights or self.needs_lesson(queries, keys):
            return super().attend(queries, keys, values, hiding, head_gates, training, return_weights)
        return self.output(queries, keys, values, hiding, head_gates, training)  # (B, Q, D)

    def needs_lesson(self, queries, keys):
        """Whether an array is empty or the pooling has been replaced."""
        empty = 0 in (*queries.shape[:2], keys.shape[1])
        # To initialise is to make every parameter, which a branch or a loop would not.
        return empty or self.is_initializing() or not isinstance(self.attention, AttentionPooling)

    def output(self, queries, keys, values, hiding, head_gates, training):
        """The output (B, Q, D) alone, arguments as of `attend`: no weights are kept, keys that nobody sees left out.

        The steps are those of `steps`, and the pooling works on blocks.
        """
        H, G = self.config.num_heads, self.config.num_key_value_heads
        keys, values, hiding = in_reach(queries, keys, values, signed(hiding, keys.shape[1]))
        B, Q, K = queries.shape[0], queries.shape[1], keys.shape[1]
        has_lengths = hiding.valid_lens is not None
        if not blocks.all_used(hiding, Q, [(slice(B), slice(K), has_lengths)]):
            sees, seen = used(queries, keys, hiding)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        if not has_lengths or blocks.fits(B * H * Q * K) or K < SHORT:
            W_k, W_v = _project(self.W_k, keys, G), _project(self.W_v, values, G)  # (B, K, G*d)
        else:
            W_k, W_v = _of_seen(self.W_k, keys, seen), _of_seen(self.W_v, values, seen)  # (B, K, G*d)
        W_q = _project(self.W_q, queries, H)  # (B, Q, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        q, k, _ = self.turn(split_q, split_k, hiding.offset)
        pooled = self.attention.pool(q, k, split_v, H, hiding, training)  # (B*H, Q, dv)
        if head_gates is not None:
            pooled = pooled * jnp.broadcast_to(head_gates, (B, H)).reshape(B * H, 1, 1)  # (B*H, Q, dv)
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
