"""The ways to split a layer over ranks in PyTorch, to be measured: ours, and PyTorch's own around its kernel."""

import functools

import numpy as np
import torch
import torch.distributed
from torch.nn import functional

from mha import parallel, parity
from mha.backends.torch.arrays import tensor
from mha.bench.steps import UNSPLIT, Results, UnavailableError, Way
from mha.parallel.torch.proof import HEADS, Ranks, rows_here
from mha.parallel.torch.sequence import HOWS
from mha.parity.cases.devices import part_of_call

# By name, what `parallelize` takes.
WAYS = {HEADS: {}, **{how: {"how": how} for how in HOWS}, "ring in order": {"how": "ring", "zigzag": False}}
CONTEXT = "context_parallel"


class Group:
    """One rank of a group, a process with one thread on the processor."""

    def __init__(self, rank, count, meet, limit):
        torch.set_num_threads(1)
        self.rank, self.count = rank, count
        self.mesh = Ranks(rank, count, meet, limit).mesh

    def together(self, value):
        """The values of all ranks, in their order."""
        found = [None] * self.count
        torch.distributed.all_gather_object(found, value)
        return found

    def ways(self, shape, kind):
        """By name, a function that makes a way to call a layer of a shape."""
        ours = {name: functools.partial(self.split, shape, kind, options) for name, options in WAYS.items()}
        unsplit, theirs = (functools.partial(make, shape, kind) for make in (self.unsplit, self.context))
        return {UNSPLIT: unsplit, **ours, CONTEXT: theirs}

    def unsplit(self, shape, kind):
        """The whole layer, on the first rank alone."""
        layer, lengths = shape.layer("torch").layer, shape.lengths()
        X, cotangent = tensor(shape.inputs()), tensor(shape.cotangent())
        step = _step(kind, layer, lambda: layer(X, X, X, lengths, **shape.call()), X, cotangent)
        return Way(None if self.rank else step, lambda results: Results(*self.together(results)[0]))

    def split(self, shape, kind, options):
        """A layer split over all ranks by these options of `parallelize`."""
        layer, lengths = shape.layer("torch").layer, shape.lengths()
        try:
            parallel.parallelize(layer, self.mesh, **options)
        except ValueError as error:  # of a number of heads
            raise UnavailableError(error) from None
        rows = rows_here(shape.T, self.mesh if options else None)
        call = shape.call()
        if "segments" in call:
            call["key_segments"] = call["segments"]  # of all keys
        call, _ = part_of_call(call, queries=rows)
        X, cotangent = (tensor(np.ascontiguousarray(whole[:, rows])) for whole in (shape.inputs(), shape.cotangent()))
        step = _step(kind, layer, lambda: layer(X, X, X, lengths, **call), X, cotangent)
        return Way(step, self.join_rows if options else lambda results: results)

    def join_rows(self, results):
        """The results of the whole sequence, from the rows of each rank."""
        outputs, by_inputs, _ = zip(*self.together(results), strict=True)
        return Results(torch.cat(outputs, 1), tuple(torch.cat(found, 1) for found in zip(*by_inputs, strict=True)))

    def context(self, shape, kind):
        """PyTorch's context parallelism, around its kernel and our projections; it takes no mask."""
        try:
            from torch.distributed.tensor.experimental import _attention, context_parallel
        except ImportError as error:  # an old PyTorch
            raise UnavailableError(parity.one_line(error)) from None
        if shape.lengths() is not None or shape.window or shape.segments or shape.G:
            raise UnavailableError("it takes no lengths, window, segments or shared heads of keys")
        layer = shape.layer("torch").layer
        X, cotangent = tensor(shape.inputs()), tensor(shape.cotangent())

        def inside(*buffers):
            """PyTorch's context, in which whole buffers become the rows of this rank; they stay so after it."""
            return context_parallel(
                self.mesh, buffers=list(buffers), buffer_seq_dims=[1] * len(buffers), no_restore_buffers={*buffers}
            )

        def call():
            q, k, v = (W(X).unflatten(2, (shape.H, -1)).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))
            pooled = functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)  # (B, H, Q, d)
            return layer.W_o(pooled.transpose(1, 2).flatten(2))  # (B, Q, D)

        def step():
            with inside(torch.zeros(1, shape.T)):  # it takes no context without a buffer
                return own()

        def whole(results):
            parts = [results.output, *results.by_input]
            output, *by_input = _attention.context_parallel_unshard(self.mesh, parts, [1] * len(parts))
            return Results(output, tuple(by_input))

        try:
            with inside(X, cotangent):
                own = _step(kind, layer, call, X, cotangent)
            output = whole(step()).output
        except Exception as error:  # it knows some calls alone
            raise UnavailableError(f"on the processor it raised {parity.one_line(error)}") from None
        if output.shape != shape.inputs().shape:
            raise UnavailableError(f"on the processor its output has shape {tuple(output.shape)}")
        return Way(step, whole)


def _step(kind, layer, call, X, cotangent):
    """A step of a call; its gradients are added to the ones before."""
    layer.train(kind == "training")
    if kind != "training":
        return torch.inference_mode()(lambda: Results(call()))
    X.requires_grad_()

    def step():
        if X.grad is not None:
            X.grad.zero_()
        output = call()
        output.backward(cotangent)
        return Results(output.detach(), (X.grad,))

    return step
