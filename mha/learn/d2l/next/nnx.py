"""The lesson's layer and pooling as modules of Flax's NNX, as the book's next edition makes and calls them.

A module of NNX holds its weights, and says itself whether dropout is on: `nnx.view(layer, deterministic=True)` turns it
off. Those here hold the parts alone. The steps are those of the lesson's modules, which are linen's and hold nothing.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, dv width of a value.
"""

from collections.abc import Callable

from flax import nnx

from mha.backends.jax import arrays, layer, pooling
from mha.backends.jax.hiding import visible_keys
from mha.core.options import checks
from mha.core.options.config import Config
from mha.learn.d2l import common

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")


class Steps(layer.MultiHeadAttention):
    """The lesson's layer, with the parts of another module: `parts()` gives them by the lesson's names."""

    # A function: linen takes modules of NNX apart, and puts copies together.
    parts: Callable = dict

    def setup(self):
        for name, part in self.parts().items():
            setattr(self, name, part)


class Pooling(pooling.DotProductAttention):
    """The lesson's pooling, with the dropout of another module."""

    dropping: Callable | None = None

    def setup(self):
        """Make no dropout of its own."""

    def drop(self, weights, training):
        """Dropout of attention weights, as the other module says; the kept ones grow to make up."""
        return self.dropping(weights)


class DotProductAttention(common.DotProduct, nnx.Module):
    """Scaled dot-product attention, made as `(dropout, rngs=None)`; queries and keys have the same width."""

    def __init__(self, dropout, rngs=None):
        rngs = nnx.Rngs(dropout=0) if rngs is None else rngs
        self.dropout = nnx.Dropout(checks.probability("dropout", dropout), rngs=rngs)

    def __call__(self, queries, keys, values, valid_lens=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d).

        valid_lens: integers (B,) or (B, Q), None hides nothing.
        Returns the pooled values (B, Q, dv) and the attention weights (B, Q, K), before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit.
        """
        visible = common.visible(arrays, visible_keys, self, queries, keys, values, valid_lens)
        return self.steps().apply({}, queries, keys, values, visible)

    def steps(self):
        """The pooling of the lesson, with the dropout here."""
        return Pooling(self.dropout.rate, dropping=self.dropout.__call__)


class MultiHeadAttention(common.Layer, nnx.Module):
    """Multi-head attention, made as `(num_hiddens, num_heads, dropout, bias=False, rngs=None)`."""

    # No `config`, which says of a layer that it keeps its weights as the lesson's does.
    num_hiddens = property(lambda self: self.options.num_hiddens)
    num_heads = property(lambda self: self.options.num_heads)

    def __init__(self, num_hiddens, num_heads, dropout, bias=False, rngs=None):
        self.options = Config(num_hiddens, num_heads, dropout, bias)
        rngs = nnx.Rngs(params=0, dropout=1) if rngs is None else rngs
        self.attention = DotProductAttention(dropout, rngs)
        for name in PROJECTIONS:
            setattr(self, name, dense(num_hiddens, num_hiddens, bias, rngs))

    def __call__(self, queries, keys, values, valid_lens=None):
        """Attend with queries (B, Q, D) to keys and values (B, K, D).

        valid_lens: integers (B,) or (B, Q), None hides nothing.
        Returns the output (B, Q, D) and the attention weights (B*H, Q, K), before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit.
        """
        steps = Steps(self.options, parts=self.parts)
        output, weights = steps.apply({}, queries, keys, values, valid_lens, return_weights=True)
        B, H, Q, K = weights.shape
        return output, weights.reshape(B * H, Q, K)  # (B, Q, D), (B*H, Q, K)

    def parts(self):
        """The parts by the lesson's names, as functions."""
        projections = {name: getattr(self, name).__call__ for name in PROJECTIONS}
        return projections | {"attention": self.attention.steps()}


def dense(in_size, out_size, bias, rngs):
    """A dense layer of NNX from in_size to out_size features."""
    return nnx.Linear(in_size, out_size, use_bias=bias, rngs=rngs)
