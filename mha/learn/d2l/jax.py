"""The book's names in JAX, with Flax: `from mha.d2l import jax as d2l`. `common.py` has what all share.

A linen module keeps nothing after a call, so the attention weights are returned beside the output.
"""

import random

from mha.core import dispatch

dispatch.load("jax")  # first: if the framework is missing, this says how to install it

import jax
from jax import numpy as jnp

from mha.arrays import check_shape, masked_softmax, transpose_output, transpose_qkv
from mha.backends.jax import arrays, layer, pooling
from mha.backends.jax.hiding import visible_keys
from mha.core.call import ARGUMENTS, bind_call
from mha.core.options import checks
from mha.core.options.config import OF_POOLING, OF_SCORES
from mha.learn.d2l import common
from mha.learn.d2l.common import show_heatmaps


class _Pooling(pooling.AttentionPooling):
    """A pooling called as `common.DotProduct` says, which returns the weights of a call."""

    def __call__(self, queries, keys, values, valid_lens=None, training=None):
        arrays.refuse_to_narrow(getattr(queries, "dtype", "float32"))
        visible = common.visible(arrays, visible_keys, self, queries, keys, values, valid_lens)
        return super().__call__(queries, keys, values, visible, training=training)  # (B, Q, dv), (B, Q, K)


class DotProductAttention(common.DotProduct, _Pooling, pooling.DotProductAttention):
    """Scaled dot-product attention, made as `(dropout)`; `common.DotProduct` says how it is called."""

    def __init__(self, dropout, **flax_options):
        pooling.DotProductAttention.__init__(self, checks.probability("dropout", dropout), **flax_options)


class AdditiveAttention(common.Additive, _Pooling, pooling.AdditiveAttention):
    """Additive attention, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`.

    `common.DotProduct` says how it is called.
    """

    def __init__(self, *arguments, **options):
        own = "dtype", *(set(OF_POOLING) & set(OF_SCORES)), "name", "parent"
        flax_options = {name: options.pop(name) for name in own if name in options}
        pooling.AdditiveAttention.__init__(self, **common.additive_options(arguments, options), **flax_options)

    weights_dtype = property(lambda self: self.dtype)


class MultiHeadAttention(common.Layer, layer.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    Called as `attention.init_with_output(key, queries, keys, values, valid_lens, training=False)[0]`, or with `apply`,
    it returns the output (B, Q, D) and the attention weights (B*H, Q, K). `training=True` turns dropout on.
    """

    def __init__(self, *arguments, config=None, **options):
        # Flax clones a module by its fields: `config` and its own two.
        flax_options = {name: options.pop(name) for name in ("name", "parent") if name in options}
        config = config or common.layer_config(arguments, options)
        layer.MultiHeadAttention.__init__(self, config, **flax_options)

    def __call__(self, queries, keys, values, *given, **named):
        """Attend, with arguments as for the backend's layer, and return output and attention weights.

        return_weights: False returns the output alone.
        """
        by_default = {} if len(given) == len(ARGUMENTS) else {"return_weights": True}
        call = bind_call(given, by_default | named)
        checks.flag("return_weights", call.return_weights)
        output, weights = super().__call__(queries, keys, values, call._replace(return_weights=True))
        B, H, Q, K = weights.shape
        weights = weights.reshape(B * H, Q, K)  # (B*H, Q, K)
        return (output, weights) if call.return_weights else output  # (B, Q, D)


tensor = jnp.array
ones = jnp.ones
zeros = jnp.zeros
normal = jax.random.normal
reshape = jnp.reshape


def get_key():
    """A new key for JAX's random numbers, drawn by Python's `random`."""
    return jax.random.PRNGKey(random.getrandbits(31))
