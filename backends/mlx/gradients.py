"""Chapter 5: how MLX differentiates: functions are transformed, and `mx.vjp` is told the cotangent before it runs."""

import copy

import mlx.core as mx

from mha.call import keeping

from .arrays import copied, evaluated
from .pooling import drawing, drawn_key
from .slots import by_slots
from .weights import canonical, parameters, put


def vjp(layer, queries, keys, values, call):
    """The output (B, Q, D) of a checked call, an `mha.call.Call`, and what pulls gradients back through it.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, the call's floats where they are given, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    names, arrays, output_of = function_of(layer, queries, keys, values, call)
    arrays = [copied(X) for X in arrays]

    def pull_back(cotangent):
        _, by_all = mx.vjp(output_of, arrays, [cotangent])  # which runs the call again
        return named(layer, names, by_all)

    return evaluated(output_of(*arrays)), pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    names, arrays, output_of = function_of(layer, queries, keys, values, call._replace(training=False))
    if cotangent is None:
        cotangent = mx.ones((*queries.shape[:2], layer.config.num_hiddens), queries.dtype)
    _, by_all = mx.vjp(output_of, arrays, [cotangent])
    return named(layer, names, by_all)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    with keeping() as steps:
        layer.attend(queries, keys, values, call._replace(training=False, traced=True))
    return steps if call.cache is None else by_slots(steps, call.cache)


def function_of(layer, queries, keys, values, call):
    """A call as a function of arrays, for the framework to transform: their names, the arrays, and the function.

    It draws the same numbers whenever it runs, and changes weights of its own copies of the layer alone.
    """
    twin, weights = copy.deepcopy(layer), parameters(layer)  # the layer itself may change
    given = {"queries": queries, "keys": keys, "values": values} | call.differentiable()
    key = drawn_key() if call.training and layer.config.dropout else None

    def output_of(*arrays):
        inputs = dict(zip([*given, *weights], arrays, strict=True))
        own = copy.deepcopy(twin)  # another thread may pull back, too
        for name in weights:
            put(own, name, inputs.pop(name))
        with drawing(key):
            return own(**call.arguments() | inputs)  # (B, Q, D)

    return [*given, *weights], [*given.values(), *weights.values()], output_of


def named(layer, names, by_all):
    """Gradients by their names, those of weights in the canonical layout."""
    weights = parameters(layer)
    return {name: canonical(X) if name in weights else X for name, X in zip(names, evaluated(by_all), strict=True)}
