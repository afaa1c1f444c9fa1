"""The book's names in PyTorch: `from mha.d2l import torch as d2l`.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens, d width of a head,
dv width of a value.

Only names, argument orders and what is kept after a call are the book's; what is computed is the backend's.

Source: Dive into Deep Learning, sections "Attention Scoring Functions" and "Multi-Head Attention".
"""

import functools

import torch

from mha import arguments, arrays, checks
from mha.d2l import common

from . import layer as lesson

# 1. Masked softmax

masked_softmax = arrays.masked_softmax


# 2. Attention poolings


class _KeepsWeights(common.KeepsWeights):
    def __getattr__(self, name):
        # PyTorch looks among the parameters for what a property does not find, and its message says less.
        return self.kept.attention_weights if name == "attention_weights" else super().__getattr__(name)


class _Pooling(_KeepsWeights, lesson.AttentionPooling):
    """What both poolings share: the book's arguments, and the weights kept after a call."""

    def forward(self, queries, keys, values, valid_lens=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, query_size) over keys (B, K, key_size).

        valid_lens: integers (B,) or (B, Q), None hides nothing; training: None = as the framework says.
        Returns the pooled values (B, Q, dv) and keeps `attention_weights` (B, Q, K).
        Raises TypeError or ValueError if a shape or dtype does not fit.
        """
        valid_lens = arguments.check_pooling("torch", self, queries, keys, values, valid_lens)
        visible = lesson.visible_keys(queries, keys, valid_lens)  # (B, 1, 1 or Q, K)
        visible = None if visible is None else visible[:, 0]  # (B, 1 or Q, K)
        steps = super().forward(queries, keys, values, visible, training=training)
        self.attention_weights = steps["weights"]  # (B, Q, K)
        return steps["pooled"]  # (B, Q, dv)


class DotProductAttention(_Pooling, lesson.DotProductAttention):
    """Scaled dot-product attention, made as `(dropout)`; queries and keys have the same width."""

    query_size = key_size = weights_dtype = None
    same_width = True

    def __init__(self, dropout):
        super().__init__(checks.probability("dropout", dropout))


class AdditiveAttention(_Pooling, lesson.AdditiveAttention):
    """Additive attention, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`."""

    same_width = False

    def __init__(self, *arguments, **options):
        super().__init__(**common.additive_options(arguments, options))

    # The first call tells the widths that were not given.
    query_size = property(lambda self: self.W_q.in_features or None)
    key_size = property(lambda self: self.W_k.in_features or None)
    weights_dtype = property(lambda self: self.w_v.weight.dtype)


# 3. The transposes

transpose_qkv = arrays.transpose_qkv
transpose_output = arrays.transpose_output


# 4. The layer


class _HeadPooling(_KeepsWeights, lesson.DotProductAttention):
    """The layer's own pooling, of the split heads, which keeps its weights after a call."""


class MultiHeadAttention(lesson.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    `(num_hiddens, num_heads, dropout, bias=False)`, where every input has width D = num_hiddens, or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.
    Called as `attention(queries, keys, values, valid_lens)`, it returns the output (B, Q, D) and keeps
    `attention.attention.attention_weights` (B*H, Q, K). `attention.train()` and `attention.eval()` switch dropout.
    """

    pooling = staticmethod(functools.partial(lesson.pooling, dot=_HeadPooling))

    def __init__(self, *arguments, **options):
        super().__init__(common.layer_config(arguments, options))

    @property
    def num_heads(self):
        """Number of heads H."""
        return self.config.num_heads

    def steps(self, *arguments, **options):
        """Every step from inputs to output, by name and in order; keeps the attention weights."""
        steps = super().steps(*arguments, **options)
        self.attention.attention_weights = steps["weights"]  # (B*H, Q, K)
        return steps

    def transpose_qkv(self, X):
        """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
        return transpose_qkv(X, self.num_heads)

    def transpose_output(self, X):
        """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
        return transpose_output(X, self.num_heads)


# 5. Arrays and figures

tensor = torch.tensor
ones = torch.ones
zeros = torch.zeros
normal = torch.normal
reshape = torch.reshape

check_shape = arrays.check_shape
show_heatmaps = common.show_heatmaps
