"""MXNet, one token: our layer with a cache, beside the products that it needs."""

from typing import Any

from mxnet import np, npx

from mha.backends.mxnet.arrays import tensor
from mha.bench import decoding
from mha.bench.cases import Shape
from mha.bench.steps import Implementation, Results, Step
from mha.core.cache import Cache
from mha.core.call import GIVEN, Call
from mha.layer import MultiHeadAttention


def implementations(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations by name, ours first."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours() -> Step:
        def call(cache: Cache) -> Any:
            return layer(x, x, x, *Call(causal=True, cache=cache)[GIVEN])

        return _waiting_step(decoding.decoder(attention, shape, call))

    def products() -> Step:
        heads = (X.reshape(-1, *X.shape[2:])[:, : shape.T] for X in decoding.heads(shape))  # (B*G, T, d)
        keys, values = (tensor(X.copy()) for X in heads)
        kernels = [tensor(attention.weights[f"W_{one}.kernel"]) for one in "qkvo"]
        row = x.reshape(shape.B, shape.D)  # (B, D)

        def step() -> Results:
            W_q, W_k, W_v = (np.dot(row, kernel) for kernel in kernels[:3])  # (B, H*d)
            q = W_q.reshape(keys.shape[0], -1, keys.shape[2])  # (B*G, H/G, d)
            scores = npx.batch_dot(q, keys, transpose_b=True)  # (B*G, H/G, T)
            pooled = npx.batch_dot(scores, values)  # (B*G, H/G, d)
            np.dot(pooled.reshape(shape.B, -1), kernels[3]).wait_to_read()  # (B, D)
            W_k.wait_to_read()
            W_v.wait_to_read()
            return Results()

        return step

    return {
        "attention.layer": Implementation("layer", ours),
        "the products alone": Implementation("kernel", products),
    } | decoding.user_calls(attention, shape, tensor, _waiting_step)


def _waiting_step(step: Step) -> Step:
    """A step that waits for its result, which MXNet computes later."""

    def run() -> Results:
        results = step()
        results.output.wait_to_read()
        return results

    return run
