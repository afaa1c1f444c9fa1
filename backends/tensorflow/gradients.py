"""Chapter 5: how TensorFlow differentiates: a tape of what has been computed, walked backwards by `tf.GradientTape`."""

import tensorflow as tf

from mha.core.call import trace_call

from .heads import repeat_groups
from .slots import take
from .weights import parameters


def vjp(layer, queries, keys, values, call):
    """The output (B, Q, D) of a checked call, a `Call`, and what pulls gradients back through it.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, the call's floats where they are given, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    given = {"queries": queries, "keys": keys, "values": values} | call.differentiable()
    inputs = {name: tf.identity(X) for name, X in given.items()}
    weights = {name: X.value for name, X in parameters(layer).items()}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([*inputs.values(), *weights.values()])
        output = layer(**call.arguments() | inputs)

    def pull_back(cotangent):
        by_all = tape.gradient(output, [*inputs.values(), *weights.values()], cotangent)
        return dict(zip([*inputs, *weights], by_all, strict=True))

    return output, pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, call._replace(training=False))
    return pull_back(tf.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    return trace_call(layer.attend, queries, keys, values, call, take, repeat_groups)
