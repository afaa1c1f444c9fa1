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
from mha.arguments import Checked, Hiding

from .heads import HeadNorm

ARRAYS = ("seed", "queries", "keys", "values", "valid_lens", "mask", "score_bias", "offset", "head_gates", "cotangent")
MOST = 256  # functions, that are kept: each takes some MiB
# What a layer or a part of it may have of its own, beside its class: then it computes what a function does not know.
METHODS = frozenset({"call", "attend", "output", "steps", "turn", "pool", "pool_block", "scores", "weigh", "drop"})

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
    parts, norms = [layer.W_q, layer.W_k, layer.W_v, layer.W_o], []
    if config.pooling == "additive" and type(pooling) is kinds["additive"]:
        parts += [pooling.W_q, pooling.W_k, pooling.w_v]
    if config.qk_norm:
        norms += [layer.q_norm, layer.k_norm]
    if (
        tf.executing_eagerly()
        and not tf.config.functions_run_eagerly()
        and type(pooling) is kinds[config.pooling]
        and pooling.dropout == pooling.dropping.rate == config.dropout
        and pooling.softcap == config.softcap
        and (config.pooling == "additive" or pooling.scale == config.scale)
        and all(isinstance(X, (tf.Tensor, np.ndarray)) and 0 not in X.shape for X in arrays)
        and all(map(_is_untouched, (layer, pooling, *parts, *norms)))
        and all(_is_plain(part, config.dtype) for part in parts)
        and all(_is_norm(part, config) for part in norms)
    ):
        kernels = [X for part in parts for X in (part.kernel, part.bias) if X is not None]
        return kernels + [part.scale for part in norms]
    return None


def run(function, layer, variables, inputs, checked, cotangent=None, **switches):
    """function(layer, *inputs, checked, **switches), and cotangent= where it is given, compiled.

    variables: as the function of this name gives them; inputs: queries, keys and values; checked: the other arguments
    of a call; switches: where the function takes them, training and return_weights.
    """
    weights = [_weight(X.value) for X in variables]
    seed = drawn_seed(layer) if switches.get("training") else None
    return prepare(function, layer, variables, weights, seed, inputs, checked, cotangent, **switches)(cotangent)


def prepare(function, layer, variables, weights, seed, inputs, checked, cotangent=None, **switches):
    """What `run` runs, of these weights, and with dropout from this seed or None, as a function of the cotangent."""
    hiding, fits = checked.hiding, _fits(layer.config, *inputs[:2], checked.hiding)
    extra = hiding.score_bias, _column(hiding.offset), checked.head_gates
    arrays = [_tensor(X) for X in (seed, *inputs, _int32(hiding.valid_lens), hiding.mask, *extra)]
    given = tuple(map(_known, ARRAYS, (*arrays, _tensor(cotangent))))
    sizes = tuple((X.shape, isinstance(weight, tf.Variable)) for X, weight in zip(variables, weights, strict=True))
    kind = function.__name__, layer.config, sizes, given, hiding.causal, *switches.values(), fits, blocks.SCORES
    with _lock:
        if kind not in _functions:
            _functions[kind] = _compile(function, layer, variables, weights, given, hiding.causal, switches, fits)
        _functions.move_to_end(kind)
        compiled = _functions[kind]
        if len(_functions) > MOST:
            _functions.popitem(last=False)
    return lambda cotangent=None: compiled(*weights, *(X for X in (*arrays, _tensor(cotangent)) if X is not None))


def drawn_seed(layer):
    """A seed for the dropout of one call, (2,) integers; None if the layer drops nothing."""
    return tf.cast(layer.attention.dropping.seed_generator.next(), tf.int32) if layer.config.dropout else None


def _tensor(X):
    """An array as a tensor; None stays None."""
    return X if X is None or isinstance(X, tf.Tensor) else tf.convert_to_tensor(X)


def _int32(valid_lens):
    """Lengths as int32: none is above the number of keys."""
    return valid_lens if valid_lens is None or valid_lens.dtype == tf.int32 else tf.cast(valid_lens, tf.int32)


def _column(offset):
    """An offset as an array, (B, 1) or (1, 1), so that it may be another in the next call; None for 0."""
    return None if isinstance(offset, int) and offset == 0 else tf.reshape(offset, (-1, 1))  # (B or 1, 1)


def _weight(value):
    """A variable as it is, which the function reads: that costs less than to read it here. Else a tensor."""
    # A variable that a `tf.distribute` strategy has copied is of several.
    is_one = isinstance(value, tf.Variable) and not isinstance(value, tf.distribute.DistributedValues)
    return value if is_one else tf.convert_to_tensor(value)


def _compile(function, layer, variables, weights, given, causal, switches, fits):
    """The function of a kind of call; this layer is what it is traced with, and is not kept."""

    def call(*tensors):
        tensors = iter(tensors)
        weights = [tf.convert_to_tensor(next(tensors)) for _ in variables]
        arrays = (None if known is None else next(tensors) for known in given)
        seed, queries, keys, values, valid_lens, mask, score_bias, offset, head_gates, cotangent = arrays
        hiding = valid_lens, mask, score_bias, causal, 0 if offset is None else offset, layer.config.window
        named = switches if cotangent is None else {**switches, "cotangent": cotangent}
        with telling(seed=seed, fits=fits), keras.StatelessScope(zip(variables, weights, strict=True)):
            return function(layer, queries, keys, values, Checked(Hiding(*hiding), head_gates), **named)

    specs = [X if isinstance(X, tf.Variable) else tf.TensorSpec(X.shape, X.dtype) for X in weights]
    specs += [tf.TensorSpec(sizes, dtype) for dtype, sizes in filter(None, given)]
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


def _is_norm(part, config):
    """Whether a norm is as the layer made it, so that its scale is all there is to know."""
    made = type(part) is HeadNorm and part.dtype_policy.name == part.scale.value.dtype == config.dtype
    return made and (part.kind, part.eps) == (config.qk_norm, config.qk_norm_eps)


def _known(name, X):
    """What a function knows of a tensor of this name: its dtype, its widths, and where sizes may be 1; None of None."""
    if X is None:
        return None
    if name == "seed":
        return X.dtype, tuple(X.shape)
    if name in ("mask", "score_bias", "offset"):
        return X.dtype, tuple(1 if size == 1 else None for size in X.shape)
    return X.dtype, (None,) * 2 + tuple(X.shape[2:]) if len(X.shape) == 3 else (None,) * len(X.shape)


def _fits(config, queries, keys, hiding):
    """Whether the scores of a call are one piece."""
    (B, Q), K = queries.shape[:2], keys.shape[1]
    seen = blocks.span(hiding, Q, K, None if isinstance(hiding.offset, int) else np.asarray(hiding.offset))
    pairs = B * config.num_heads * Q * (seen.stop - seen.start)
    return blocks.fits(pairs * config.key_dim if config.pooling == "additive" else pairs)
