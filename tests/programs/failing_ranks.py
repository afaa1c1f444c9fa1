"""Checks by two ranks of which one fails inside a call and goes on.

No rank waits for ever, and no call takes rows of two batches: ranks come together again, or refuse every later call.
"""

import torch
from sequence_over_ranks import HOWS, D, layer_of, part, random, refused

import mha
from mha import parallel
from mha.parallel.torch import exchange
from mha.parallel.torch.ring.circle import Circle

MIXED = "their batches would be mixed"


def rows(mesh):
    return part(random(2, 3 * mesh.size(), D), mesh).detach().requires_grad_()


def stop(*_):
    raise OSError("of a hook")


def check_a_round_that_fails(group):
    """All know it when the ring ends, forward and backward, and the next call works: by the kernel and without it."""
    fails, own = group.rank == 1, Circle.meetings
    expected = (MemoryError, "of this rank") if fails else (RuntimeError, "rank 1 has failed inside a call where")

    def failing(self, k, owner, score_bias):
        if fails and owner != self.here:  # not in the first round
            raise MemoryError("of this rank")
        return own(self, k, owner, score_bias)

    for options in ({}, {"softcap": 5.0}):
        layer, X = layer_of("ring", group.mesh, **options), rows(group.mesh)
        right, output = layer(X, X, X).detach(), layer(X, X, X, causal=True)
        Circle.meetings = failing
        try:
            refused(*expected, output.sum().backward)
            refused(*expected, layer, X, X, X, causal=True)
        finally:
            Circle.meetings = own
        assert torch.equal(layer(X, X, X), right)


def check_a_backward_pass_that_fails_before_the_ring(group):
    """Those that wait at the ring hear of the next call."""
    layer, X = layer_of("ring", group.mesh), rows(group.mesh)
    output = layer(X, X, X)
    if group.rank == 1:
        output.register_hook(stop)
        refused(OSError, "of a hook", output.sum().backward)
        refused(RuntimeError, "expected the same calls", layer, X, X, X)
    else:
        refused(RuntimeError, "expected the same calls", output.sum().backward)
    for _ in range(2):
        refused(RuntimeError, MIXED, layer, X, X, X)


def check_an_exchange_of_rows_that_fails(group):
    """Before a ring in zigzag and after it, in both passes: of queries, keys, values and what was pooled."""
    own = exchange._all_to_all
    for number in range(4):  # forward, then backward
        layer, X, done = layer_of("ring", group.mesh), rows(group.mesh), []

        def failing(*given, number=number, done=done):
            done.append(1)
            return stop() if len(done) > number and group.rank == 1 else own(*given)

        def call(layer=layer, X=X, number=number):
            output = layer(X, X, X, causal=True)
            assert number >= 2, "nothing failed forward"
            output.sum().backward()

        exchange._all_to_all = failing
        try:
            if group.rank == 1:
                refused(OSError, "of a hook", call)
            else:
                refused(RuntimeError, "expected the same calls", call)
        finally:
            exchange._all_to_all = own
        if group.rank == 1:
            refused(RuntimeError, "expected the same calls", layer, X, X, X)
        refused(RuntimeError, MIXED, layer, X, X, X)


def check_calls_that_fail_before_numbers_are_sent(group):
    """Of each way to split: all ranks have one error, and then refuse what would be another batch on one of them."""
    heads = mha.MultiHeadAttention(D, 6, dtype="float64", backend="torch").layer
    layers = [layer_of(how, group.mesh) for how in HOWS] + [parallel.parallelize(heads, group.mesh)]
    for layer in layers:
        X = rows(group.mesh) if layer.heads is None else random(2, 5, D)
        layer(X, X, X)
        if group.rank == 1:
            hook = layer.W_o.register_forward_pre_hook(stop) if layer.heads else layer.W_v.register_forward_hook(stop)
            refused(OSError, "of a hook", layer, X, X, X)
            hook.remove()
        refused(RuntimeError, "expected the same calls", layer, X, X, X)
        for _ in range(2):
            refused(RuntimeError, MIXED, layer, X, X, X)
