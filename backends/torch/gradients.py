"""Chapter 5: how PyTorch differentiates: a tape of what has been computed, walked backwards by `torch.autograd`."""

import copy

import torch

from mha.core.call import trace_call

from .heads import repeat_groups
from .slots import take
from .weights import canonical, parameters


def vjp(layer, queries, keys, values, call):
    """The output (B, Q, D) of a checked call, a `Call`, and what pulls gradients back through it.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, the call's floats where they are given, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    with torch.inference_mode(False), torch.enable_grad():  # the caller may have switched gradients off
        given = {"queries": queries, "keys": keys, "values": values} | call.differentiable()
        inputs = {name: X.detach().clone().requires_grad_() for name, X in given.items()}
        twin = copy.deepcopy(layer).requires_grad_()  # the layer itself may be frozen, or change
        weights = parameters(twin)
        output = twin(**call.arguments() | inputs)

    def pull_back(cotangent):
        by_all = torch.autograd.grad([output], [*inputs.values(), *weights.values()], [cotangent], retain_graph=True)
        return {
            name: canonical(X) if name in weights else X for name, X in zip([*inputs, *weights], by_all, strict=True)
        }

    return output.detach(), pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, call._replace(training=False))
    return pull_back(torch.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    return trace_call(layer.attend, queries, keys, values, call, take, repeat_groups)
