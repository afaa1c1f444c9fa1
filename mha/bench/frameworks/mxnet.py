"""MXNet, imperative: our layer alone, since Gluon has no attention; of one token also the products that it needs."""

import functools
from collections.abc import Callable
from typing import Any

from mxnet import autograd, np, npx

from mha.backends.mxnet.arrays import tensor
from mha.bench import decoding, steps
from mha.bench.cases import Shape
from mha.bench.steps import REFERENCE, Implementation, Results, Step
from mha.core.cache import Cache
from mha.core.call import GIVEN, Call
from mha.layer import MultiHeadAttention


def passes(attention: MultiHeadAttention, shape: Shape, kind: str) -> dict[str, Implementation]:
    """The implementations of inference or training by name, ours first.

    In training, a step gives the output too, but `attention.gradients(...)` does not.
    """
    layer: Any = attention.layer
    hiding = shape.call()

    def ours(X: Any, lengths: Any, **options: Any) -> Any:
        return layer(X, X, X, *Call(lengths, **hiding, **options)[GIVEN])

    step = _training if kind == "training" else _inference
    made = steps.of_layer(ours, functools.partial(step, layer, shape))
    return made | steps.user_calls(attention, shape, kind, tensor, _waiting)


def tokens(attention: MultiHeadAttention, shape: Shape) -> dict[str, Implementation]:
    """The implementations of decoding by name, ours first."""
    layer: Any = attention.layer
    x = tensor(shape.inputs())

    def ours() -> Step:
        def call(cache: Cache) -> Any:
            return layer(x, x, x, *Call(causal=True, cache=cache)[GIVEN])

        return _waiting(decoding.decoder(attention, shape, call))

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

    made = {REFERENCE: Implementation("layer", ours), "the products alone": Implementation("kernel", products)}
    return made | decoding.user_calls(attention, shape, tensor, _waiting)


def product(A: Any) -> Step:
    """A step that multiplies a square matrix by itself."""
    A = tensor(A)
    return _waiting(lambda: Results(np.dot(A, A)))


def _inference(layer: Any, shape: Shape, call: Callable) -> Step:
    X, lengths = steps.tensors(tensor, shape.inputs(), shape.lengths())
    return _waiting(lambda: Results(call(X, lengths)))


def _training(layer: Any, shape: Shape, call: Callable) -> Step:
    X, lengths, cotangent = steps.tensors(tensor, shape.inputs(), shape.lengths(), shape.cotangent())
    X.attach_grad()
    variables = [X, *(W.data() for W in layer.collect_params().values())]

    def step() -> Results:
        with autograd.record():
            output = call(X, lengths)
        gradients = autograd.grad([output], variables, [cotangent])  # arrays of MXNet's older kind
        by_input, *by_weights = (X.as_np_ndarray() for X in gradients)
        return Results(output, (by_input,), tuple(by_weights))

    return _waiting(step)


def _waiting(step: Step) -> Step:
    """A step that waits for its results, which MXNet computes in its own threads."""

    def wait() -> Results:
        results = step()
        for X in (results.output, *results.by_input, *results.by_weights):
            if X is not None:
                X.wait_to_read()
        return results

    return wait
