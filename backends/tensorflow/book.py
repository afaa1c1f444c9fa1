"""The book's names in TensorFlow: `from mha.d2l import tensorflow as d2l`.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens, d width of a head,
dv width of a value.

Only names, argument orders and what is kept after a call are the book's; what is computed is the backend's.

Source: Dive into Deep Learning, sections "Attention Scoring Functions" and "Multi-Head Attention".
"""

import keras
import tensorflow as tf

from mha import arguments, arrays, checks
from mha.d2l import common

from . import layer as lesson

# 1. Masked softmax

masked_softmax = arrays.masked_softmax


# 2. Attention poolings


class _Pooling(common.KeepsWeights, lesson.AttentionPooling):
    """What both poolings share: the book's arguments, and the weights kept after a call."""

    def __call__(self, queries, keys, values, valid_lens=None, training=None):
        """Refuse what does not fit, before Keras converts it or puts words of its own around the error; then `call`."""
        valid_lens = arguments.check_pooling("tensorflow", self, queries, keys, values, valid_lens)
        return super().__call__(queries, keys, values, valid_lens=valid_lens, training=training)

    def call(self, queries, keys, values, valid_lens=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, query_size) over keys (B, K, key_size).

        valid_lens: integers (B,) or (B, Q), None hides nothing; training: whether to drop weights.
        Returns the pooled values (B, Q, dv) and keeps `attention_weights` (B, Q, K).
        Raises TypeError or ValueError if a shape or dtype does not fit.
        """
        visible = lesson.visible_keys(queries, keys, valid_lens)  # (B, 1, 1 or Q, K)
        visible = None if visible is None else visible[:, 0]  # (B, 1 or Q, K)
        steps = super().call(queries, keys, values, visible, training=training)
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
    query_size = property(lambda self: self.W_q.kernel.shape[0] if self.W_q.built else None)
    key_size = property(lambda self: self.W_k.kernel.shape[0] if self.W_k.built else None)
    weights_dtype = property(lambda self: self.w_v.dtype)


# 3. The transposes

transpose_qkv = arrays.transpose_qkv
transpose_output = arrays.transpose_output


# 4. The layer


class _HeadPooling(common.KeepsWeights, lesson.DotProductAttention):
    """The layer's own pooling, of the split heads, which keeps its weights after a call."""


@keras.saving.register_keras_serializable("mha.d2l")
class MultiHeadAttention(lesson.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    `(num_hiddens, num_heads, dropout, bias=False)`, where every input has width D = num_hiddens, or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.
    Called as `attention(queries, keys, values, valid_lens)`, it returns the output (B, Q, D) and keeps
    `attention.attention.attention_weights` (B*H, Q, K). `training=True` turns dropout on.
    """

    @staticmethod
    def pooling(config):
        """The book's attention pooling, which keeps its weights."""
        if config.pooling != "dot":  # as Keras' own saver might tell, of a file by another program
            raise TypeError("the layer's pooling is AdditiveAttention, expected DotProductAttention, the book's")
        return _HeadPooling(config.dropout)

    def __init__(self, *arguments, config=None, **options):
        keras_options = {name: options.pop(name) for name in ("name", "trainable") if name in options}
        if config is None:  # else Keras' own saver makes the layer again, from what `get_config` told
            config = common.layer_config(arguments, options)
        super().__init__(config, **keras_options)

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

tensor = tf.constant
ones = tf.ones
zeros = tf.zeros
normal = tf.random.normal
reshape = tf.reshape

check_shape = arrays.check_shape
show_heatmaps = common.show_heatmaps
