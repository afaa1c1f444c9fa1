"""Send keys and values round the ranks, one rank's at a time, while each rank keeps its queries.

Letters as in layer.py. Each rank merges its result so far with that of the next keys, as if the softmax were over these
keys alone; sinks are there from the start. The backward pass goes round again, and the gradients of keys and values
travel with them until they are home. `circle` sends; `fused` and `scored` compute.

Source: Liu et al., Ring Attention with Blockwise Transformers for Near-Infinite Context (2023).
"""

import torch
from torch.autograd.function import once_differentiable

from mha.backends.torch.heads import repeat_heads
from mha.backends.torch.hiding import four_axes

from .fused import Fused
from .scored import Scored


def pool(attention, num_heads, mesh, places, q, k, v, call):
    """The pooled values (B*H, Q, dv) of q (B*H, Q, d) over all ranks' k (B*G, K, d) and v (B*G, K, dv).

    mesh: of the ranks; None: this one has all keys.
    places: the rows of queries and of keys of each rank in the whole, as `mha.parallel.rows` has them.
    call: for the queries here and all keys; its offset is that of the first query of the whole.
    """
    score_bias = None if call.score_bias is None else four_axes(call.score_bias)
    sinks = repeat_heads(call.plan.sinks, len(q) // num_heads, num_heads)  # (B*H, 1, 1)
    weights = dict(attention.named_parameters())
    kind = Fused if Fused.takes(attention, q, v, call) else Scored
    circle = kind(
        attention, mesh, places, num_heads, call._replace(score_bias=None).with_plan(sinks=None), tuple(weights)
    )
    return _Ring.apply(circle, q, k, v, score_bias, sinks, *weights.values())


class _Ring(torch.autograd.Function):
    """Attention over the keys of all ranks, with its forward and its backward pass."""

    @staticmethod
    def forward(ctx, circle, q, k, v, score_bias, sinks, *weights):
        pooled, *others = circle.forward(q, k, v, score_bias, sinks, weights)
        ctx.circle, ctx.others = circle, len(others)
        ctx.save_for_backward(q, k, v, score_bias, sinks, pooled, *others, *weights)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return None, *ctx.circle.backward(gradient, ctx.needs_input_grad[4], *ctx.saved_tensors)
