"""Calls as compiled functions: one for each kind of call, for any sizes, shared by the layers of one configuration.

A function takes the weights of a layer among its arguments. So it keeps no layer in memory, and weights that were
assigned, frozen or given by a `keras.StatelessScope` count in the next call. A layer whose parts are not those that its
configuration tells of runs as it is, operation by operation.
"""

import collections
import contextlib
import threading

import keras
import numpy as np
import tensorflow as tf

from mha import blocks
from mha.arguments import Checked

MOST = 256  # functions, that are kept: each takes some MiB
# What a layer or a part of it may have of its own, beside its class: then it computes what a function does not know.
METHODS = frozenset({"call", "attend", "output", "steps", "pool", "pool_block", "scores", "weigh", "drop"})

_functions: collections.OrderedDict = collections.OrderedDict()  # by kind of call, the last used at the end
_lock = threading.RLock()


class Told(threading.local):
    """What the code that this thread traces has been told of the call.

    seed: (2,) integers for dropout, None = the layer draws them; fits: whether scores of unknown sizes are one piece.
    """

    seed, fits = None, False


told = Told()


@contextlib.contextmanager
def telling(**known):
    """Tell the code inside what is known: the attributes of `Told`."""
    before = {name: getattr(told, name) for name in known}
    vars(told).update(known)
    try:
        yield
    finally:
        vars(told).update(before)


def variables(layer, kinds, *arrays):
    """The variables of a layer that may run compiled on these arrays, else None.

    kinds: the class of pooling that each `Config.pooling` asks for.
    """
    config, pooling = layer.config, layer.attention
    parts = [layer.W_q, layer.W_k, layer.W_v, layer.W_o]
    if config.pooling == "additive" and type(pooling) is kinds["additive"]:
        parts += [pooling.W_q, pooling.W_k, pooling.w_v]
    if (
        tf.executing_eagerly()
        and not tf.config.functions_run_eagerly()
        and type(pooling) is kinds[config.pooling]
        and pooling.dropout == pooling.dropping.rate == config.dropout
        and all(X is None or (isinstance(X, (tf.Tensor, np.ndarray)) and 0 not in X.shape) for X in arrays)
        and all(map(_is_untouched, (layer, pooling, *parts)))
        and all(_is_plain(part, config.dtype) for part in parts)
    ):
        return [X for part in parts for X in (part.kernel, part.bias) if X is not None]
    return None


def run(function, layer, variables, arrays, *switches):
    """function(layer, queries, keys, values, lengths, mask, *switches, and further arrays), compiled.

    variables: as the function of this name gives them; arrays: queries, keys, values, lengths and mask, which are
    checked, and further ones; switches: causal, and where the function takes them training and return_weights.
    """
    weights = [_weight(X.value) for X in variables]
    seed = drawn_seed(layer) if any(switches[1:2]) else None
    return prepare(function, layer, variables, weights, seed, arrays, *switches)(arrays)


def prepare(function, layer, variables, weights, seed, arrays, *switches):
    """The function of arrays like these that `run` runs, of these weights, and with dropout from this seed or None."""
    fits = _fits(layer.config, *arrays[:2], switches[0])
    arrays = _tensors(seed, *arrays)
    sizes = tuple((X.shape, isinstance(weight, tf.Variable)) for X, weight in zip(variables, weights, strict=True))
    given = tuple(None if X is None else (X.dtype, *_known(index, X.shape)) for index, X in enumerate(arrays))
    kind = function.__name__, layer.config, sizes, given, switches, fits, blocks.SCORES
    with _lock:
        if kind not in _functions:
            _functions[kind] = _compile(function, layer, variables, weights, given, switches, fits)
        _functions.move_to_end(kind)
        compiled = _functions[kind]
        if len(_functions) > MOST:
            _functions.popitem(last=False)
    return lambda arrays: compiled(*weights, *(X for X in _tensors(seed, *arrays) if X is not None))


def drawn_seed(layer):
    """A seed for the dropout of one call, (2,) integers; None if the layer drops nothing."""
    return tf.cast(layer.attention.dropping.seed_generator.next(), tf.int32) if layer.config.dropout else None


def _tensors(seed, *arrays):
    """The arrays of a call as tensors, or None; the lengths, the fifth of them, as int32."""
    tensors = [X if X is None or isinstance(X, tf.Tensor) else tf.convert_to_tensor(X) for X in (seed, *arrays)]
    if tensors[4] is not None and tensors[4].dtype != tf.int32:
        tensors[4] = tf.cast(tensors[4], tf.int32)  # none is above the number of keys
    return tensors


def _weight(value):
    """A variable as it is, which the function reads: that costs less than to read it here. Else a tensor."""
    # A variable that a `tf.distribute` strategy has copied is of several.
    is_one = isinstance(value, tf.Variable) and not isinstance(value, tf.distribute.DistributedValues)
    return value if is_one else tf.convert_to_tensor(value)


def _compile(function, layer, variables, weights, given, switches, fits):
    """The function of a kind of call; this layer is what it is traced with, and is not kept."""

    def call(*tensors):
        tensors = iter(tensors)
        weights = [tf.convert_to_tensor(next(tensors)) for _ in variables]
        arrays = (None if known is None else next(tensors) for known in given)
        seed, queries, keys, values, valid_lens, mask, *more = arrays
        with telling(seed=seed, fits=fits), keras.StatelessScope(zip(variables, weights, strict=True)):
            return function(layer, queries, keys, values, Checked(valid_lens, mask), None, *switches, *more)

    specs = [X if isinstance(X, tf.Variable) else tf.TensorSpec(X.shape, X.dtype) for X in weights]
    specs += [tf.TensorSpec(sizes, dtype) for dtype, *sizes in filter(None, given)]
    return tf.function(call, autograph=False).get_concrete_function(*specs)


def _is_untouched(part):
    """Whether a layer or a part of it does what its class does."""
    return METHODS.isdisjoint(vars(part)) and part.activity_regularizer is None


def _is_plain(part, dtype):
    """Whether a projection is as `dense` makes it, so that its weights are all there is to know."""
    return (
        type(part) is keras.layers.Dense
        and part.built
        and part.activation is keras.activations.linear
        and not part.lora_enabled
        and part.dtype_policy.name == dtype
        and part.kernel.value.dtype == dtype  # no layer around this one has it cast
    )


def _known(index, shape):
    """What a function knows of the shape of an array, numbered as in `run`: widths, and where a mask has size 1."""
    if index == 0:
        return tuple(shape)
    if index == 5:
        return tuple(1 if size == 1 else None for size in shape)
    return (None,) * 2 + tuple(shape[2:]) if len(shape) == 3 else (None,) * len(shape)


def _fits(config, queries, keys, causal):
    """Whether the scores of a call are one piece."""
    (B, Q), K = queries.shape[:2], keys.shape[1]
    pairs = B * config.num_heads * Q * (min(Q, K) if causal else K)
    return blocks.fits(pairs * config.key_dim if config.pooling == "additive" else pairs)
