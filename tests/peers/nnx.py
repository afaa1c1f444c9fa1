"""`flax.nnx.MultiHeadAttention`: as in `flax.linen`, but an object that holds its weights."""

from flax import nnx

from peers.linen import by_part, mask_of, own_options, results


def new(**options):
    return nnx.MultiHeadAttention(
        **own_options(in_features=11, in_kv_features=13, decode=False) | options, rngs=nnx.Rngs(5)
    )


def run(layer, call):
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    hiding = mask_of(call)

    def attend(params, *inputs):
        forward = nnx.capture(nnx.merge(graph, params, rest), nnx.Intermediate)
        output, state = forward(*inputs, mask=hiding, deterministic=not call.training, sow_weights=True)
        return output, nnx.to_pure_dict(state)["attention_weights"]

    return results(call, attend, params, lambda params: by_part(nnx.to_pure_dict(params)))
