"""The book's names in MXNet: `from mha.d2l import mxnet as d2l`.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens, d width of a head,
dv width of a value.

Only names, argument orders and what is kept after a call are the book's; what is computed is the backend's.

Source: Dive into Deep Learning, sections "Attention Scoring Functions" and "Multi-Head Attention".
"""

import functools

from mxnet import np

from mha import arguments, arrays, checks
from mha.d2l import common

from . import layer as lesson

# 1. Masked softmax


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, as `mha.masked_softmax`."""
    return arrays.masked_softmax(X, _whole(valid_lens))


def _whole(valid_lens):
    """Lengths as integers where they hold whole numbers: MXNet's `np.array([3, 2])` holds floats."""
    if not isinstance(valid_lens, np.ndarray) or "float" not in checks.dtype_name(valid_lens.dtype):
        return valid_lens
    whole = valid_lens.astype("int64")
    return whole if (whole.astype(valid_lens.dtype) == valid_lens).all() else valid_lens


# 2. Attention poolings


class _Pooling(common.KeepsWeights, lesson.AttentionPooling):
    """What both poolings share: the book's arguments, and the weights kept after a call."""

    def forward(self, queries, keys, values, valid_lens=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, query_size) over keys (B, K, key_size).

        valid_lens: integers (B,) or (B, Q), None hides nothing; training: None = as the framework says.
        Returns the pooled values (B, Q, dv) and keeps `attention_weights` (B, Q, K).
        Raises TypeError or ValueError if a shape or dtype does not fit.
        """
        valid_lens = arguments.check_pooling("mxnet", self, queries, keys, values, _whole(valid_lens))
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
    query_size = property(lambda self: max(self.W_q.weight.shape[1], 0) or None)  # unknown: 0 in 1.9, -1 in 2.0
    key_size = property(lambda self: max(self.W_k.weight.shape[1], 0) or None)
    weights_dtype = property(lambda self: self.w_v.weight.dtype)


# 3. The transposes

transpose_qkv = arrays.transpose_qkv
transpose_output = arrays.transpose_output


# 4. The layer


class _HeadPooling(common.KeepsWeights, lesson.DotProductAttention):
    """The layer's own pooling, of the split heads, which keeps its weights after a call."""


class MultiHeadAttention(lesson.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    `(num_hiddens, num_heads, dropout, use_bias=False)`, where every input has width D = num_hiddens, or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, use_bias=False)`.
    Called as `attention(queries, keys, values, valid_lens)`, it returns the output (B, Q, D) and keeps
    `attention.attention.attention_weights` (B*H, Q, K). `attention.initialize()` comes first;
    dropout is on inside `autograd.record()`.
    """

    pooling = staticmethod(functools.partial(lesson.pooling, dot=_HeadPooling))

    def __init__(self, *arguments, **options):
        super().__init__(common.layer_config(arguments, options, bias="use_bias"))

    @property
    def num_heads(self):
        """Number of heads H."""
        return self.config.num_heads

    def forward(self, queries, keys, values, valid_lens=None, *options):
        """Attend, with arguments as for the backend's layer; valid_lens may also be floats that are whole."""
        return super().forward(queries, keys, values, _whole(valid_lens), *options)

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

tensor = np.array
ones = np.ones
zeros = np.zeros
normal = np.random.normal
reshape = np.reshape

check_shape = arrays.check_shape
show_heatmaps = common.show_heatmaps
