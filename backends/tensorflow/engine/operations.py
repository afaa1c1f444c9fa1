"""TensorFlow's operations for planning a call, of which a size may be a tensor: known in the call alone."""

import tensorflow as tf

from mha.engine.operations import Operations

from ..arrays import shape_of
from ..heads import repeat_heads
from ..hiding import four_axes, visible_keys


def smaller(X, Y):
    """The smaller one of two sizes."""
    return min(X, Y) if isinstance(X, int) and isinstance(Y, int) else tf.minimum(X, Y)


def larger(X, Y):
    """The larger one of two sizes."""
    return max(X, Y) if isinstance(X, int) and isinstance(Y, int) else tf.maximum(X, Y)


def root(X, Y):
    """The square root of the sum of two sizes, rounded down."""
    total = tf.cast(X, tf.float64) + tf.cast(Y, tf.float64)
    return tf.cast(tf.sqrt(total), tf.int32)


OPERATIONS = Operations(
    any=tf.reduce_any,
    min=tf.reduce_min,
    max=tf.reduce_max,
    minimum=tf.minimum,
    maximum=tf.maximum,
    where=tf.where,
    broadcast_to=tf.broadcast_to,
    reshape=tf.reshape,
    arange=lambda size, like: tf.range(size),
    tensor=lambda array, like: tf.constant(array),
    zeros=lambda shape, like: tf.zeros(shape, like.dtype),
    signed=lambda lengths, num_keys: lengths,  # which the engine has made int32
    visible_keys=visible_keys,
    repeat_heads=repeat_heads,
    four_axes=four_axes,
    shape=shape_of,
    smaller=smaller,
    larger=larger,
    root=root,
    lowest_of=tf.reduce_min,
    highest_of=tf.reduce_max,
)
