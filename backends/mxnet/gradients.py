"""Chapter 5: how MXNet differentiates: a tape of what `autograd.record()` has seen, walked backwards."""

import copy

from mxnet import autograd, np
from mxnet.gluon import nn

from mha.core.call import trace_call

from .heads import repeat_groups
from .slots import take
from .weights import canonical, data, parameters, reading


def vjp(layer, queries, keys, values, call):
    """The output (B, Q, D) of a checked call, a `Call`, and what pulls gradients back through it.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, the call's floats where they are given, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    given = {"queries": queries, "keys": keys, "values": values} | call.differentiable()
    inputs = {name: X.detach() for name, X in given.items()}
    for X in inputs.values():
        X.attach_grad()
    twin = thaw(layer)  # the layer itself may be frozen, or change
    weights = {name: data(X) for name, X in parameters(twin).items()}
    queries, keys, values = (inputs[name] for name in ("queries", "keys", "values"))
    with autograd.record(train_mode=call.training):
        own = call._replace(**{name: inputs[name] for name in call.differentiable()})
        output = twin(queries, keys, values, *own.arguments().values())

    def pull_back(cotangent):
        by_all = autograd.grad([output], [*inputs.values(), *weights.values()], [cotangent], retain_graph=True)
        by_all = [X.as_np_ndarray() for X in by_all]
        return {
            name: canonical(X) if name in weights else X for name, X in zip([*inputs, *weights], by_all, strict=True)
        }

    return output.detach(), pull_back


def gradients(layer, queries, keys, values, call, cotangent=None):
    """The gradients of a checked call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, call._replace(training=False))
    return pull_back(np.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, call):
    """Every step of a checked call without dropout, by name and in order."""
    return trace_call(layer.attend, queries, keys, values, call, take, repeat_groups)


def thaw(layer):
    """A copy of a layer, of which no parameter is frozen; it has no trainer."""
    kept = {id(parameter._trainer): None for parameter in layer.collect_params().values()}  # by `copy`, not copied

    def forget(block):
        kept.update({id(getattr(block, "_cached_op", None)): None, id(getattr(block, "_cached_graph", ())): ()})

    layer.apply(forget)  # what `hybridize` compiled, which cannot be copied
    with reading:
        twin = copy.deepcopy(layer, kept)
    adopt(twin)
    for parameter in twin.collect_params().values():
        parameter.grad_req = "null"  # or the copy, which no gradient belongs to, takes "write" for done
        parameter.grad_req = "write"
    return twin


def adopt(block):
    """Make the parts of a copied block its children: MXNet 2.0 refers to these weakly, and copies that."""
    for name, part in list(vars(block).items()):
        if isinstance(part, nn.Block):
            block.register_child(part, name)
            adopt(part)
