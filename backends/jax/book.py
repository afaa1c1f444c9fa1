"""The book's names in JAX, with Flax's linen modules: `from mha.d2l import jax as d2l`.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens, d width of a head,
dv width of a value.

A linen module keeps nothing after a call, so the attention weights are returned beside the output. Only names, argument
orders and what is returned are the book's; what is computed is the backend's.

Source: Dive into Deep Learning, sections "Attention Scoring Functions" and "Multi-Head Attention".
"""

import random

import jax
from jax import numpy as jnp

from mha import arguments, arrays, checks
from mha.d2l import common

from . import layer as lesson

# 1. Masked softmax

masked_softmax = arrays.masked_softmax


# 2. Attention poolings


class _Pooling(lesson.AttentionPooling):
    """What both poolings share: the book's arguments, and the weights returned."""

    def __call__(self, queries, keys, values, valid_lens=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, query_size) over keys (B, K, key_size).

        valid_lens: integers (B,) or (B, Q), None hides nothing; training: whether to drop weights.
        Returns the pooled values (B, Q, dv) and the attention weights (B, Q, K).
        Raises TypeError or ValueError if a shape or dtype does not fit.
        """
        lesson._refuse_to_narrow(getattr(queries, "dtype", "float32"))
        valid_lens = arguments.check_pooling("jax", self, queries, keys, values, valid_lens)
        visible = lesson.visible_keys(queries, keys, valid_lens)  # (B, 1, 1 or Q, K)
        visible = None if visible is None else visible[:, 0]  # (B, 1 or Q, K)
        steps = super().__call__(queries, keys, values, visible, training=training)
        return steps["pooled"], steps["weights"]  # (B, Q, dv), (B, Q, K)


class DotProductAttention(_Pooling, lesson.DotProductAttention):
    """Scaled dot-product attention, made as `(dropout)`; queries and keys have the same width."""

    query_size = key_size = weights_dtype = None
    same_width = True

    def __init__(self, dropout, **flax_options):
        lesson.DotProductAttention.__init__(self, checks.probability("dropout", dropout), **flax_options)


class AdditiveAttention(_Pooling, lesson.AdditiveAttention):
    """Additive attention, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`."""

    same_width = False

    def __init__(self, *arguments, **options):
        flax_options = {name: options.pop(name) for name in ("dtype", "softcap", "name", "parent") if name in options}
        lesson.AdditiveAttention.__init__(self, **common.additive_options(arguments, options), **flax_options)

    weights_dtype = property(lambda self: self.dtype)


# 3. The transposes

transpose_qkv = arrays.transpose_qkv
transpose_output = arrays.transpose_output


# 4. The layer


class MultiHeadAttention(lesson.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    `(num_hiddens, num_heads, dropout, bias=False)`, where every input has width D = num_hiddens, or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.
    Called as `attention.init_with_output(key, queries, keys, values, valid_lens, training=False)[0]`, or with `apply`,
    it returns the output (B, Q, D) and the attention weights (B*H, Q, K). `training=True` turns dropout on.
    """

    def __init__(self, *arguments, config=None, **options):
        # Flax clones a module by its fields: `config` and its own two.
        flax_options = {name: options.pop(name) for name in ("name", "parent") if name in options}
        super().__init__(config or common.layer_config(arguments, options), **flax_options)

    @property
    def num_heads(self):
        """Number of heads H."""
        return self.config.num_heads

    def __call__(
        self,
        queries, keys, values, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, head_gates=None,
        training=None, return_weights=True,
    ):  # fmt: skip
        """Attend, with arguments as for the backend's layer, and return output and attention weights."""
        checks.flag("return_weights", return_weights)
        call = valid_lens, mask, score_bias, causal, offset, head_gates, training
        output, weights = super().__call__(queries, keys, values, *call, return_weights=True)
        B, H, Q, K = weights.shape
        weights = weights.reshape(B * H, Q, K)  # (B*H, Q, K)
        return (output, weights) if return_weights else output  # (B, Q, D)

    def transpose_qkv(self, X):
        """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
        return transpose_qkv(X, self.num_heads)

    def transpose_output(self, X):
        """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
        return transpose_output(X, self.num_heads)


# 5. Arrays and figures

tensor = jnp.array
ones = jnp.ones
zeros = jnp.zeros
normal = jax.random.normal
reshape = jnp.reshape


def get_key():
    """A new key for JAX's random numbers, drawn by Python's `random`."""
    return jax.random.PRNGKey(random.getrandbits(31))


check_shape = arrays.check_shape
show_heatmaps = common.show_heatmaps
