"""`mha.d2l.jax.MultiHeadAttention`, bound: it returns its attention weights beside the output, (B*H, Q, K)."""

from peers import PROJECTIONS, own
from peers.linen import results


def run(layer, call):
    module, variables = layer.unbind()
    lengths, mask = own("jax", call.valid_lens), own("jax", call.mask)

    def attend(variables, *inputs):
        output, shares = module.apply(variables, *inputs, lengths, mask, training=call.training)
        return output, (shares.reshape(len(output), -1, *shares.shape[1:]),)  # (B, H, Q, K)

    return results(call, attend, variables, by_part)


def by_part(variables):
    """The parameters as arrays by our names."""
    return {f"{name}.{kind}": X for name in PROJECTIONS for kind, X in variables["params"][name].items()}
