"""The book's names in MXNet: `from mha.d2l import mxnet as d2l`. `common.py` has what all share."""

import functools

from mha.core import dispatch

dispatch.load("mxnet")  # first: if the framework is missing, this says how to install it

from mxnet import np

from mha import arrays
from mha.arrays import check_shape, transpose_output, transpose_qkv
from mha.backends.mxnet import arrays as own
from mha.backends.mxnet import layer, pooling
from mha.backends.mxnet.hiding import visible_keys
from mha.core.options import checks
from mha.learn.d2l import common
from mha.learn.d2l.common import show_heatmaps


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, as `mha.masked_softmax`."""
    return arrays.masked_softmax(X, _whole(valid_lens))


def _whole(valid_lens):
    """Lengths as integers where they hold whole numbers: MXNet's `np.array([3, 2])` holds floats."""
    if not isinstance(valid_lens, np.ndarray) or "float" not in checks.dtype_name(valid_lens.dtype):
        return valid_lens
    whole = valid_lens.astype("int64")
    return whole if (whole.astype(valid_lens.dtype) == valid_lens).all() else valid_lens


class _Pooling(common.KeepsWeights, pooling.AttentionPooling):
    """A pooling called as `common.DotProduct` says, which keeps the weights of a call."""

    def forward(self, queries, keys, values, valid_lens=None, training=None):
        visible = common.visible(own, visible_keys, self, queries, keys, values, _whole(valid_lens))
        return super().forward(queries, keys, values, visible, training=training)[0]  # (B, Q, dv)


class DotProductAttention(common.DotProduct, _Pooling, pooling.DotProductAttention):
    """Scaled dot-product attention, made as `(dropout)`; `common.DotProduct` says how it is called."""


class AdditiveAttention(common.Additive, _Pooling, pooling.AdditiveAttention):
    """Additive attention, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`.

    `common.DotProduct` says how it is called.
    """

    # The first call shows the widths that were not given.
    query_size = property(lambda self: max(self.W_q.weight.shape[1], 0) or None)  # unknown: 0 in 1.9, -1 in 2.0
    key_size = property(lambda self: max(self.W_k.weight.shape[1], 0) or None)
    weights_dtype = property(lambda self: self.w_v.weight.dtype)


class _HeadPooling(common.KeepsWeights, pooling.DotProductAttention):
    """The layer's own pooling, of the split heads, which keeps its weights after a call."""


class MultiHeadAttention(common.Layer, layer.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    Called as `attention(queries, keys, values, valid_lens)`, it returns the output (B, Q, D) and keeps
    `attention.attention.attention_weights` (B*H, Q, K). `attention.initialize()` comes first;
    dropout is on inside `autograd.record()`.
    """

    bias_name = "use_bias"
    pooling = staticmethod(functools.partial(pooling.pooling, dot=_HeadPooling))

    def forward(self, queries, keys, values, valid_lens=None, *options):
        """Attend, with arguments as for the backend's layer; valid_lens may also be floats that are whole."""
        return super().forward(queries, keys, values, _whole(valid_lens), *options)


tensor = np.array
ones = np.ones
zeros = np.zeros
normal = np.random.normal
reshape = np.reshape
