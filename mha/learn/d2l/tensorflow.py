"""The book's names in TensorFlow: `from mha.d2l import tensorflow as d2l`. `common.py` has what all share."""

from mha.core import dispatch

dispatch.load("tensorflow")  # first: if the framework is missing, this says how to install it

import keras
import tensorflow as tf

from mha.arrays import check_shape, masked_softmax, transpose_output, transpose_qkv
from mha.backends.tensorflow import arrays as own
from mha.backends.tensorflow import layer, pooling
from mha.backends.tensorflow.hiding import visible_keys
from mha.core.call import Call
from mha.core.call.of_parts import pooling_lengths
from mha.learn.d2l import common
from mha.learn.d2l.common import show_heatmaps


class _Pooling(common.KeepsWeights, pooling.AttentionPooling):
    """A pooling called as `common.DotProduct` says, which keeps the weights of a call."""

    def __call__(self, queries, keys, values, valid_lens=None, training=None):
        """Refuse what does not fit, before Keras converts it or puts words of its own around the error; then `call`."""
        valid_lens = pooling_lengths(own, self, queries, keys, values, valid_lens)
        return super().__call__(queries, keys, values, valid_lens=valid_lens, training=training)

    def call(self, queries, keys, values, valid_lens=None, training=None):
        own.must_fit(queries, keys, Call(valid_lens), values)
        visible = visible_keys(queries, keys, Call(valid_lens))  # (B, 1, 1 or Q, K)
        visible = None if visible is None else visible[:, 0]  # (B, 1 or Q, K)
        return super().call(queries, keys, values, visible, training=training)[0]  # (B, Q, dv)


class DotProductAttention(common.DotProduct, _Pooling, pooling.DotProductAttention):
    """Scaled dot-product attention, made as `(dropout)`; `common.DotProduct` says how it is called."""


class AdditiveAttention(common.Additive, _Pooling, pooling.AdditiveAttention):
    """Additive attention, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`.

    `common.DotProduct` says how it is called.
    """

    # The first call shows the widths that were not given.
    query_size = property(lambda self: self.W_q.kernel.shape[0] if self.W_q.built else None)
    key_size = property(lambda self: self.W_k.kernel.shape[0] if self.W_k.built else None)
    weights_dtype = property(lambda self: self.w_v.dtype)


class _HeadPooling(common.KeepsWeights, pooling.DotProductAttention):
    """The layer's own pooling, of the split heads, which keeps its weights after a call."""


@keras.saving.register_keras_serializable("mha.d2l")
class MultiHeadAttention(common.Layer, layer.MultiHeadAttention):
    """Multi-head attention, made in the argument order of either edition.

    Called as `attention(queries, keys, values, valid_lens)`, it returns the output (B, Q, D) and keeps
    `attention.attention.attention_weights` (B*H, Q, K). `training=True` turns dropout on.
    """

    @staticmethod
    def pooling(config):
        """The book's attention pooling, which keeps its weights."""
        if config.pooling != "dot":  # which a file by another program may ask for through Keras's own saver
            raise TypeError("the layer's pooling is AdditiveAttention, expected DotProductAttention, the book's")
        return _HeadPooling(config.dropout)

    def __init__(self, *arguments, config=None, **options):
        keras_options = {name: options.pop(name) for name in ("name", "trainable") if name in options}
        if config is None:  # else Keras's own saver makes the layer again, from what `get_config` gave
            config = common.layer_config(arguments, options)
        layer.MultiHeadAttention.__init__(self, config, **keras_options)


tensor = tf.constant
ones = tf.ones
zeros = tf.zeros
normal = tf.random.normal
reshape = tf.reshape
