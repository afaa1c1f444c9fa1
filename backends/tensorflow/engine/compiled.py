"""Calls as compiled functions: one for each kind of call, for any sizes, shared by the layers of one configuration.

A function takes the weights of a layer among its arguments. So it keeps no layer in memory, and weights that were
assigned, frozen or given by a `keras.StatelessScope` count in the next call. A layer whose parts are not those that its
configuration asks for runs as it is, operation by operation.
"""

import collections
import contextlib
import threading
import weakref

import keras
import numpy as np
import tensorflow as tf

from mha.core.call import ARRAYS, OF_PAIRS, ROWS, Call
from mha.core.call.declaration import extremes_of
from mha.core.engine import blocks
from mha.core.engine.visible_range import span
from mha.core.options import checks
from mha.core.options.config import OF_POOLING

from ..arrays import tensor
from ..heads import HeadNorm

ORDER = ("queries", "keys", "values", *ARRAYS, "seed")
INTEGERS = [name for name in ARRAYS if ROWS[name].holds == "integers"]
MOST = 256  # functions, that are kept: each takes some MiB
# What a layer or a part of it may have of its own, beside its class: then it computes what a function does not know.
METHODS = frozenset({
    "call", "attend", "project", "zero_unused", "transform_heads",
    "pool", "merge", "pool_block", "scores", "weigh", "drop",
})  # fmt: skip

_functions: collections.OrderedDict = collections.OrderedDict()  # by kind of call, the last compiled at the end
_lock = threading.RLock()


class Tracing(threading.local):
    """The facts of a call that are known while this thread traces its code.

    seed: (2,) integers for dropout, None = the layer draws them; fits: whether scores of unknown sizes are one piece;
    lengths: "one" if all are equal and not 0, "some" if none is 0, "any" if nothing is known of them.
    """

    seed, fits, lengths = None, False, "any"


tracing = Tracing()


@contextlib.contextmanager
def trace_with(**known):
    """Trace the code inside with this knowledge: the attributes of `Tracing`."""
    before = {name: getattr(tracing, name) for name in known}
    vars(tracing).update(known)
    try:
        yield
    finally:
        vars(tracing).update(before)


def is_untouched(part):
    """Whether a layer or a part of it does what its class does."""
    return METHODS.isdisjoint(vars(part)) and part.activity_regularizer is None


def variables(layer):
    """The variables of a layer whose parts are as it made them, and their values; None: it does not run compiled."""
    config, pooling, dtype = layer.config, layer.attention, tf.as_dtype(layer.config.dtype)
    dense, norms = [layer.W_q, layer.W_k, layer.W_v, layer.W_o], []
    if config.output_gate:
        dense.append(layer.W_g)
    if config.pooling == "additive":
        dense += pooling.W_q, pooling.W_k, pooling.w_v
    if config.qk_norm:
        norms += [(layer.q_norm, config.qk_norm), (layer.k_norm, config.qk_norm)]
    if config.value_norm:
        norms.append((layer.v_norm, config.value_norm))
    for part in (layer, pooling, *dense, *(part for part, _ in norms)):
        if not is_untouched(part):
            return None
    for part in dense:
        plain = type(part) is keras.layers.Dense and part.activation is keras.activations.linear
        if not plain or part.lora_enabled or part.dtype_policy.name != dtype.name:
            return None
    for part, norm in norms:
        if type(part) is not HeadNorm or part.norm != norm:
            return None
    kept = [getattr(config, name) for name in OF_POOLING]
    if [*map(vars(pooling).get, OF_POOLING)] != kept or pooling.dropping.rate != config.dropout:
        return None
    found = [X for part in dense for X in (part.kernel, part.bias) if X is not None] + [part.scale for part, _ in norms]
    if config.sinks:
        found.append(layer.sinks)
    weights = [X.value for X in found]
    for place, weight in enumerate(weights):
        if weight.dtype != dtype:  # a layer around this one has it cast
            return None
        # A variable is read by the function: that costs less than to read it here. A copied one is of several.
        if not isinstance(weight, tf.Variable) or isinstance(weight, tf.distribute.DistributedValues):
            weights[place] = tf.convert_to_tensor(weight)
    return found, weights


class Programs(dict):
    """The compiled functions of calls of one kind, by what their values decide; they may have been dropped.

    fits: whether the scores of such a call are one piece; None = each call decides.
    """

    fits = None


def run(function, layer, own, queries, keys, values, call, seed=None, facts=(), exact=False, **more):
    """Run function(layer, queries, keys, values, call) compiled, with facts and more arrays by name where given.

    own: the layer's variables and their values, as `variables` gives them; seed: for the dropout of a call in training;
    facts: names and what decides how it is compiled; exact: whether it is compiled for these sizes alone.
    """
    (variables, weights), plan = own, Programs() if call.plan.engine is None else call.plan.engine
    given = [queries, None if keys is queries else keys, None if values is keys else values]
    given += [getattr(call, name) for name in ARRAYS]
    arrays = {}
    for name, X in (*zip(ORDER, (*given, seed), strict=True), *more.items()):
        if X is not None and not (type(X) is int and X == 0):  # an offset
            arrays[name] = _tensor(name, X) if name in INTEGERS or not isinstance(X, tf.Tensor) else X
    known = {}
    if not (call.plan.lesson or call.return_weights):
        one = fits(layer.config, queries, keys, call) if plan.fits is None else plan.fits
        known = {"fits": one, "lengths": _lengths(call)}
    kind = function.__name__, *arrays, facts, *known.values(), *map(type, weights)
    compiled = plan[kind]() if kind in plan else None
    if compiled is None:
        compiled = _function_of_kind(function, layer, variables, weights, arrays, call, facts, exact, known)
        plan[kind] = weakref.ref(compiled)
    return compiled(*weights, *arrays.values())


def draw_seed(layer):
    """A seed for the dropout of one call, (2,) integers."""
    return tf.cast(layer.attention.dropping.seed_generator.next(), tf.int32)


def _function_of_kind(function, layer, variables, weights, arrays, call, facts, exact, known):
    """The compiled function of a kind of call; arrays: by name; known: attributes of `Tracing`; others as of `run`."""
    specs = tuple((name, X.dtype, tuple(X.shape) if exact else _sizes(name, X)) for name, X in arrays.items())
    sizes = tuple((X.shape, isinstance(weight, tf.Variable)) for X, weight in zip(variables, weights, strict=True))
    switches = call.causal, call.training, call.return_weights, facts, *known.values(), blocks.SCORES
    kind = function.__name__, layer.config, sizes, specs, *switches
    with _lock:
        if kind not in _functions:
            fixed = Call(causal=call.causal, training=call.training, return_weights=call.return_weights)
            fixed = fixed.of_layer(layer.config).with_plan(known={})
            _functions[kind] = _compile(function, layer, variables, weights, specs, fixed, facts, known)
        _functions.move_to_end(kind)
        compiled = _functions[kind]
        if len(_functions) > MOST:
            _functions.popitem(last=False)
    return compiled


def _compile(function, layer, variables, weights, specs, fixed, facts, known):
    """A compiled function; this layer is what it is traced with, and is not kept; fixed: the call without arrays."""

    def call(*tensors):
        values, given = tensors[: len(weights)], tensors[len(weights) :]
        arrays = {name: X for (name, *_), X in zip(specs, given, strict=True)}
        queries = arrays.pop("queries")
        keys = arrays.pop("keys", queries)
        inputs = queries, keys, arrays.pop("values", keys)
        seed, more = arrays.pop("seed", None), {name: arrays.pop(name) for name in arrays.keys() - {*ORDER}}
        values = zip(variables, map(tf.convert_to_tensor, values), strict=True)
        with trace_with(seed=seed, **known), keras.StatelessScope(values):
            return function(layer, *inputs, fixed._replace(**arrays), **dict(facts), **more)

    signature = [X if isinstance(X, tf.Variable) else tf.TensorSpec(X.shape, X.dtype) for X in weights]
    signature += [tf.TensorSpec(sizes, dtype) for _, dtype, sizes in specs]
    return tf.function(call, autograph=False).get_concrete_function(*signature)


def _tensor(name, X):
    """An array of this name as a tensor; integers as int32: no length is above the number of keys."""
    if name == "offset" and type(X) is int:  # as an array, so that it may be another in the next call
        return tf.constant([[X]], tf.int32)  # (1, 1)
    if name in INTEGERS and X.dtype != tf.int32:
        return tf.cast(X, tf.int32)
    return tensor(checks.plain(X)) if isinstance(X, np.ndarray) else X


def _sizes(name, X):
    """The sizes of a tensor of this name that a function knows: widths, and where one is 1."""
    if name == "seed":
        return tuple(X.shape)
    if name in (*OF_PAIRS, "offset"):
        return tuple(1 if size == 1 else None for size in X.shape)
    if len(X.shape) == 4:  # the slots of heads
        return None, X.shape[1], None, X.shape[3]
    return (None,) * 2 + tuple(X.shape[2:]) if len(X.shape) == 3 else (None,) * len(X.shape)


def fits(config, queries, keys, call):
    """Whether the scores of a call are one piece."""
    (B, Q), K = queries.shape[:2], keys.shape[1]
    seen = span(call, Q, K)
    pairs = B * config.num_heads * Q * (seen.stop - seen.start)
    return blocks.fits(pairs * config.key_dim if config.pooling == "additive" else pairs)


def _lengths(call):
    """The known facts of a call's lengths, for `Tracing`."""
    bounds = call.plan.extremes or (call.plan.known and extremes_of(call.value_of("valid_lens")))
    if not bounds or bounds[0] == 0:
        return "any"
    return "one" if bounds[0] == bounds[1] else "some"
