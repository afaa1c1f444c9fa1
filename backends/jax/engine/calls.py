"""Calls of a layer, each compiled as a whole: for the sizes of its arrays, and not for the lengths in them.

One by one, JAX would compile every operation for every new shape. What follows from the kind of a call is decided once:
which program computes it, and that its types, shapes and dtypes fit the layer.
"""

import collections
import functools
import operator
import weakref

import jax
import numpy as np

from mha.core.call import ARRAYS, OF_TOKENS, ROWS, Call, check
from mha.core.call.check import limit_lengths, near, offset_column, value_at_hand
from mha.core.options import checks

from .. import arrays
from .. import gradients as chapter
from .decoding import tracing
from .kernels import on_device_of
from .layer import MultiHeadAttention

PLANS: dict = {}  # the programs of calls, by their kind
MOST = 4096  # kinds, and programs, that are remembered
SWITCHES = {bool, type(None)}
_aval = operator.attrgetter("aval")
_NUMBERS = [(name, Call._fields.index(name), ROWS[name].default) for name in ARRAYS]
_seen = None  # a weak reference to lengths that were found to be right


def attend(layer, queries, keys, values, call):
    """Call a layer; call: an `mha.core.call.Call`, not checked yet."""
    if call.cache is not None:
        return decode(layer, queries, keys, values, check(arrays, layer, queries, keys, values, call))
    kind, given = program_kind(layer, queries, keys, values, call)
    plan, _ = PLANS.get(kind, (None, None))
    if plan is None:
        given, fixed = split_call(check(arrays, layer, queries, keys, values, call))
        plan = program(_attend, module_of(layer), fixed)
        if kind is not None:
            if len(PLANS) >= MOST:
                PLANS.clear()
            PLANS[kind] = plan, layer.config  # while it is kept, no other has its id
    elif given:
        given = check_values(given, keys.shape[1])
    with on_device_of(queries):
        return plan(*_apart(layer, call), *_once(queries, keys, values), given)


def decode(layer, queries, keys, values, call):
    """Compute a checked call with a cache; its slots are donated where their state is known, to be written in place."""
    (given, fixed), cache = split_call(call), call.cache
    if call.plan.step is None or cache.frozen:
        run = program(_attend, module_of(layer), fixed)
        with on_device_of(queries):
            return run(*_apart(layer, call), queries, keys, values, given)
    slots = cache.keys, cache.values
    given["cache"] = cache.after(None, None, *cache.arrays()[2:])
    first = (
        queries.shape[1] > 1 and call.plan.step.first == 0 and call.plan.step.in_order
    )  # one token is compiled once for all
    fixed = fixed.with_plan(engine=first)
    run = program(_decode, module_of(layer), fixed, giving=(6,))
    with on_device_of(queries):
        *results, after = run(*_apart(layer, call), queries, keys, values, given, slots)
    cache.use_up()
    return *results, after.with_state(call.plan.step.slot_state)


def vjp(layer, queries, keys, values, call):
    """The output of a checked call, and what pulls gradients back through it, as of the chapter."""
    output, pull_back = _run(chapter.vjp, layer, queries, keys, values, call)
    return output, lambda cotangent: dict(_pull(pull_back, cotangent))


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call, as of the chapter."""
    return dict(_run(chapter.gradients, layer, queries, keys, values, call, cotangent))


def trace(layer, queries, keys, values, call):
    """Every step of a checked call, as of the chapter."""
    return dict(_run(chapter.trace, layer, queries, keys, values, call))


# 1. Plans


def program_kind(layer, queries, keys, values, call):
    """Return the facts that decide a call's program, whatever its values, None if it has no plan; and its arrays."""
    given, switches = numbers(call), (call.causal, call.training, call.return_weights)
    if type(layer) is not MultiHeadAttention or not SWITCHES.issuperset(map(type, switches)):
        return None, given
    X = queries, keys, values, *given.values()
    # The types come before shapes: those of other frameworks have shapes of their own.
    types = (*map(type, X),)
    forms = map(_form if np.ndarray in types or int in types else _aval, X)
    try:
        return (id(layer.config), *switches, *given, keys is queries, values is keys, *types, *forms), given
    except AttributeError:
        return None, given


def _form(X):
    """Shape, dtype and place of an array of JAX or NumPy; all ints, as an offset may be, have the same."""
    if type(X) is int:
        return int
    return (X.shape, X.dtype) if type(X) is np.ndarray and X.dtype.isnative else X.aval


def check_values(given, num_keys):
    """Check the integers of a call whose kind is known, of which only values may be wrong, and return its arrays.

    Layers of a model take the same lengths, one after another: these are looked at once, as JAX's arrays do not change.
    """
    global _seen
    if "offset" in given:
        offset_column(given["offset"])
    for name in given.keys() & {*OF_TOKENS}:
        if (known := value_at_hand(arrays, given[name])) is not None:
            given[name] = near(name, known)
    lengths = given.get("valid_lens")
    if lengths is None or (_seen and _seen() is lengths):
        return given
    if (known := value_at_hand(arrays, lengths)) is None:
        return given
    limit, _ = limit_lengths(known, num_keys)
    if limit is known and type(lengths) is not np.ndarray and lengths.dtype == np.int32:
        _seen = weakref.ref(lengths)
        return given
    return given | {"valid_lens": arrays.tensor(checks.plain(limit))}  # JAX takes int64 in some contexts only


# 2. Programs


@functools.lru_cache(MOST)
def program(function, *known, giving=()):
    """Compile one of the functions below for a module and the fixed part of a call: a function of arrays.

    known: its first arguments, which are no arrays; giving: which of the arrays are donated.
    """
    return jax.jit(functools.partial(function, *known), donate_argnums=giving)


def _attend(module, fixed, variables, rngs, queries, keys, values, given):
    inputs = (queries, keys, values) if "cache" in given else _thrice(queries, keys, values)
    return module.apply(variables, *inputs, **fixed._replace(**given).arguments(), rngs=rngs)


def _decode(module, fixed, variables, rngs, queries, keys, values, given, slots):
    given["cache"] = given["cache"].after(*slots, *given["cache"].arrays()[2:])
    tracing.first = fixed.plan.engine
    try:
        return _attend(module, fixed, variables, rngs, queries, keys, values, given)
    finally:
        tracing.first = False


def _by_chapter(function, module, fixed, variables, rngs, queries, keys, values, given, *more):
    layer = module.bind(variables, rngs=rngs)
    found = function(layer, *_thrice(queries, keys, values), fixed._replace(**given), *more)
    return collections.OrderedDict(found) if isinstance(found, dict) else found  # a plain dict would come back sorted


@jax.jit
def _pull(pull_back, cotangent):
    return collections.OrderedDict(pull_back(cotangent))


def _run(function, layer, queries, keys, values, call, *more):
    """A function of the chapter on gradients for a checked call."""
    given, fixed = split_call(call)
    run = program(_by_chapter, function, module_of(layer), fixed)
    with on_device_of(queries):
        return run(*_apart(layer, call), *_once(queries, keys, values), given, *more)


def split_call(call):
    """Split a checked call into its arrays, by name, and the rest, which a program is compiled for."""
    given = numbers(call) | ({} if call.cache is None else {"cache": call.cache})
    return given, call._replace(**dict.fromkeys(given)).with_plan(known=None, extremes=None, step=None)


def numbers(call):
    """The arrays of a call by name, and any offset but 0, which counts as one: decoding has another for each token."""
    given = {}
    for name, place, default in _NUMBERS:
        X = call[place]
        if X is not default:
            given[name] = X
    return given


def _apart(layer, call):
    """A layer's variables, and the keys of its random numbers for a call."""
    return layer.variables, {"dropout": layer.make_rng("dropout")} if call.training and layer.config.dropout else {}


def module_of(layer):
    """A layer's module without variables: the same in every call, where `unbind` makes a new one."""
    return _module(layer.config) if type(layer) is MultiHeadAttention else layer.unbind()[0]


_module = functools.cache(MultiHeadAttention)


def _once(queries, keys, values):
    """The inputs, with None for one that is the same array as the one before: XLA cannot know it of two arguments."""
    return queries, None if keys is queries else keys, None if values is keys else values


def _thrice(queries, keys, values):
    """The inputs again, of what `_once` gives."""
    keys = queries if keys is None else keys
    return queries, keys, keys if values is None else values
