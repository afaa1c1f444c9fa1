"""Chapter 5: how JAX differentiates: a function of arrays and variables becomes another one, by `jax.vjp`."""

import functools

import jax
from jax import numpy as jnp

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
    inputs = {"queries": queries, "keys": keys, "values": values} | call.differentiable()
    rngs = {"dropout": layer.make_rng("dropout")} if call.training and layer.config.dropout else {}
    module, variables = layer.unbind()

    def apply(inputs, variables):
        return module.apply(variables, **call.arguments() | inputs, rngs=rngs)

    output, pull = jax.vjp(apply, inputs, variables)

    def pull_back(pull, cotangent):
        by_inputs, by_variables = pull(cotangent)
        return {name: by_inputs[name] for name in inputs} | parameters(module.bind(by_variables))

    return output, jax.tree_util.Partial(pull_back, pull)  # a function of arrays, which `jax.jit` may return


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, call._replace(training=False))
    return pull_back(jnp.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    module, variables = layer.unbind()
    attend = functools.partial(module.apply, variables, method="attend")
    return trace_call(attend, queries, keys, values, call, take, repeat_groups)
