"""The book's names in PyTorch: `from mha.d2l import torch as d2l`. `common.py` has what all share."""

import functools

from mha.core import dispatch

dispatch.load("torch")  # first: if the framework is missing, this says how to install it

import torch

from mha.arrays import check_shape, masked_softmax, transpose_output, transpose_qkv
from mha.backends.torch import arrays, layer, pooling
from mha.backends.torch.hiding import visible_keys
from mha.learn.d2l import common
from mha.learn.d2l.common import show_heatmaps


class _KeepsWeights(common.KeepsWeights):
    def __getattr__(self, name):
        # PyTorch looks among the parameters for what a property does not find, and its message says less.
        return self.kept.attention_weights if name == "attention_weights" else super().__getattr__(name)


class _Pooling(_KeepsWeights, pooling.AttentionPooling):
    """A pooling called as `common.DotProduct` says, which keeps the weights of a call."""

    def forward(self, queries, keys, values, valid_lens=None, training=None):
        visible = common.visible(arrays, visible_keys, self, queries, keys, values, valid_lens)
        return super().forward(queries, keys, values, visible, training=training)[0]  # (B, Q, dv)


class DotProductAttention(common.DotProduct, _Pooling, pooling.DotProductAttention):
    """Scaled dot-product attention, made as `(dropout)`; `common.DotProduct` says how it is called."""


class AdditiveAttention(common.Additive, _Pooling, pooling.AdditiveAttention):
    """Additive attention, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`.

    `common.DotProduct` says how it is called.
    """

    # The first call shows the widths that were not given.
    query_size = property(lambda self: self.W_q.in_features or None)
    key_size = property(lambda self: self.W_k.in_features or None)
    weights_dtype = property(lambda self: self.w_v.weight.dtype)


class _HeadPooling(_KeepsWeights, pooling.DotProductAttention):
    """The layer's own pooling, of the split heads, which keeps its weights after a call."""


class MultiHeadAttention(common.Layer, layer.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    Called as `attention(queries, keys, values, valid_lens)`, it returns the output (B, Q, D) and keeps
    `attention.attention.attention_weights` (B*H, Q, K). `attention.train()` and `attention.eval()` switch dropout.
    """

    pooling = staticmethod(functools.partial(pooling.pooling, dot=_HeadPooling))


tensor = torch.tensor
ones = torch.ones
zeros = torch.zeros
normal = torch.normal
reshape = torch.reshape
