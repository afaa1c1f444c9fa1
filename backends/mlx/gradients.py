"""Chapter 5: how MLX differentiates: functions are transformed, and `mx.vjp` is told the cotangent before it runs."""

import mlx.core as mx

from mha.core.call import trace_call

from .arrays import clone, evaluate
from .heads import repeat_groups
from .pooling import draw_key, drawing
from .slots import take
from .weights import canonical, parameters, put, twin


def vjp(layer, queries, keys, values, call):
    """The output (B, Q, D) of a checked call, a `Call`, and what pulls gradients back through it.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, the call's floats where they are given, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    arrays, output_of = function_of(twin(layer), queries, keys, values, call)  # the layer itself may change
    arrays = {name: clone(X) for name, X in arrays.items()}

    def pull_back(cotangent):
        return gradients_of(output_of, arrays, cotangent)  # which runs the call again

    return evaluate(output_of(*arrays.values())), pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    arrays, output_of = function_of(layer, queries, keys, values, call._replace(training=False))
    if cotangent is None:
        cotangent = mx.ones((*queries.shape[:2], layer.config.num_hiddens), queries.dtype)
    return gradients_of(output_of, arrays, cotangent)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    return trace_call(layer.attend, queries, keys, values, call, take, repeat_groups)


def function_of(layer, queries, keys, values, call):
    """The arrays of a call by name, inputs and weights, and the call as a function of them, for the framework.

    The function draws the same numbers whenever it runs, and leaves the layer as it is.
    """
    inputs, weights = {"queries": queries, "keys": keys, "values": values} | call.differentiable(), parameters(layer)
    arguments = call.arguments()
    key = draw_key() if call.training and layer.config.dropout else None

    def output_of(*arrays):
        given = dict(zip([*inputs, *weights], arrays, strict=True))
        own = twin(layer)  # another thread may pull back, too
        for name in weights:
            put(own, name, given.pop(name))
        with drawing(key):
            return own(**arguments | given)  # (B, Q, D)

    return inputs | weights, output_of


def gradients_of(output_of, arrays, cotangent):
    """The gradients of a function by its arrays, by their names, those of weights in the canonical layout."""
    _, by_all = mx.vjp(output_of, list(arrays.values()), [cotangent])
    found = zip(arrays, by_all, strict=True)
    return evaluate({name: canonical(X) if "." in name else X for name, X in found})
