"""Gradients and steps of a call, compiled as a whole."""

import tensorflow as tf

from mha.core.call import FLOATS
from mha.core.options.config import shapes

from .. import gradients as chapter
from .compiled import draw_seed, run
from .layer import attend_steps, variables_of


def vjp(layer, queries, keys, values, call):
    """The output of a checked call, and what pulls gradients back through it, as of the chapter.

    That makes the call once more, as one function of both.
    """
    own = variables_of(layer, queries, keys, values, call)
    if own is None:
        return chapter.vjp(layer, queries, keys, values, call)
    call = call._replace(training=bool(call.training and layer.config.dropout))
    own = own[0], [tf.convert_to_tensor(X) for X in own[1]]  # as they are now
    same = layer, own, queries, keys, values, call
    seed = draw_seed(layer) if call.training else None

    def pull_back(cotangent):
        return _in_order(layer, run(_pull, *same, seed, cotangent=cotangent))

    return run(attend_steps, *same, seed), pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call, as of the chapter."""
    own, call = variables_of(layer, queries, keys, values, call), call._replace(training=False)
    if own is None:
        return chapter.gradients(layer, queries, keys, values, call, cotangent)
    found = run(chapter.gradients, layer, own, queries, keys, values, call, cotangent=cotangent)
    return _in_order(layer, found)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call, as of the chapter."""
    own, call = variables_of(layer, queries, keys, values, call), call._replace(training=False).with_plan(lesson=True)
    if own is None:
        return chapter.trace(layer, queries, keys, values, call)
    return run(chapter.trace, layer, own, queries, keys, values, call)


def _pull(layer, queries, keys, values, call, cotangent):
    """The gradients of a call for a cotangent."""
    return chapter.vjp(layer, queries, keys, values, call)[1](cotangent)


def _in_order(layer, found):
    """Gradients by name, which a compiled function gives in the names' order."""
    names = "queries", "keys", "values", *FLOATS, *shapes(layer.config)
    return {name: found[name] for name in names if name in found}
