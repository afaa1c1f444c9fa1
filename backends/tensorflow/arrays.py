"""TensorFlow's arrays in and out: to and from NumPy, whose they are, where they lie."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from mha.core.call import ROWS
from mha.core.devices import device_in_words
from mha.core.options import checks

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras runs on {keras.backend.backend()}, expected tensorflow: set KERAS_BACKEND=tensorflow before its import"
    )


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return tf.constant(array)


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return np.asarray(X.numpy())  # of a scalar, TensorFlow makes a NumPy scalar


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, (tf.Tensor, tf.Variable, keras.Variable, keras.KerasTensor)) or checks.is_numpy(X)


def is_known(X):
    """Whether X has its values by now, and does not stand for those that a compiler will know only later."""
    if isinstance(X, tf.Variable):
        return tf.executing_eagerly()
    return isinstance(X, np.ndarray) or not (isinstance(X, keras.KerasTensor) or tf.is_symbolic_tensor(X))


def is_far(X):
    """Whether to read the values of X is to wait for a device that computes beside the processor."""
    return False


def value_of(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    if isinstance(X, np.ndarray):
        return X
    return to_numpy(X) if is_known(X) else None


def clone(X):
    """X in memory of its own, as this framework's array: what becomes of X does not change it."""
    return tf.constant(np.array(X)) if isinstance(X, np.ndarray) else tf.identity(X)


def value_and_gradients(function, arrays, cotangent=None):
    """The value of a function of arrays, and the gradients of sum(value * cotangent) by them; cotangent None = ones.

    The function may give both itself, as it must with NumPy. None for a gradient where it does not use the array.
    """
    arrays = [tf.convert_to_tensor(X) for X in arrays]
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        found = function(*arrays)
    if isinstance(found, tuple):
        return found
    if not tf.is_tensor(found):
        return found, (None,) * len(arrays)
    return found, tuple(tape.gradient(found, arrays, cotangent))


def context(dtype, tracked=True):
    """The context for a computation in this dtype; tracked: whether somebody may ask for its gradients later."""
    return contextlib.nullcontext()


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device(place=None):
    """A device in words, and whether float32 products may be in TF32 there; place None = where layers are made."""
    if not tf.config.list_logical_devices("GPU"):
        return "cpu"
    first, options = tf.config.list_physical_devices("GPU")[0], tf.config.experimental
    model = options.get_device_details(first).get("device_name", "")
    return device_in_words("gpu", model, options.tensor_float_32_execution_enabled())


def refuse_masks(keys, values):
    """Raise ValueError for a mask of Keras's own, as an Embedding with mask_zero gives: it would be overlooked."""
    for name, X in {"keys": keys, "values": values}.items():
        if getattr(X, "_keras_mask", None) is not None:
            raise ValueError(f"{name} carries a mask of Keras', expected it as mask= or valid_lens=; take it off")


def shape_of(X):
    """The sizes of X: numbers where they are known, else tensors; one question for all of them, as each is traced."""
    known = tuple(X.shape)
    if None not in known:
        return known
    asked = tf.unstack(tf.shape(X))
    return tuple(late if size is None else size for size, late in zip(known, asked, strict=True))


def must_fit(queries, keys, call, values=None, num_heads=None):
    """Stop where only a call inside `tf.function` shows that sizes do not fit; TensorFlow would broadcast."""
    if tf.executing_eagerly():
        return  # they were known, and checked
    (B, Q, _), K = shape_of(queries), shape_of(keys)[1]
    full = {"B": B, "Q": Q, "K": K, "H": num_heads}
    given = [("keys", keys, "B", False)] + ([] if values is None else [("values", values, "BK", False)])
    packed = {name: X for name, X in call.segment_ids().items() if X is not None}
    for name, X in (call.arrays() | packed).items():
        axes = next(axes for axes in ROWS[name].axes if len(axes) == len(X.shape))
        given.append((name, X, axes, ROWS[name].broadcasts))
    for name, X, axes, broadcasts in given:
        for axis, (size, letter) in enumerate(zip(shape_of(X), axes, strict=False)):
            if isinstance(size, int) and isinstance(full[letter], int):
                continue  # they were known here too
            fits = tf.equal(size, full[letter])
            if broadcasts:
                fits |= tf.equal(size, 1)
            # `tf.debugging.Assert` would trace two functions around this one operation.
            message = [tf.constant(f"axis {axis} of {name} has size"), size, "but expected was", full[letter]]
            tf.raw_ops.Assert(condition=fits, data=message)
