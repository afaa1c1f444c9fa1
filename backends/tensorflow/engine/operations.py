"""TensorFlow's operations for planning a call, of which a size may be a tensor: known in the call alone."""

import tensorflow as tf

from mha.core.engine.operations import Operations

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


def same(X, Y):
    """Whether two arrays of two axes are the same: a tensor, or a bool where that is known."""
    if X is Y:
        return True
    if not X.shape.is_compatible_with(Y.shape):
        return False
    sizes = tf.reduce_all(tf.equal(tf.shape(X), tf.shape(Y)))
    return tf.cond(sizes, lambda: tf.reduce_all(tf.equal(X, Y)), lambda: tf.constant(False))


def either(same, these, those):
    """The results of one of two functions, by whether two arrays are the same, which may be known."""
    if isinstance(same, bool):
        return these() if same else those()
    return tf.cond(same, these, those)


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
    same=same,
    either=either,
)
