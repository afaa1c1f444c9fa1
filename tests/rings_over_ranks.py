"""Checks by the ranks of a group of rings of PyTorch: its kernel, rows in zigzag, segments; test_rings_over_ranks.py.

Letters as in the lesson; N ranks.
"""

import torch
from sequence_over_ranks import D, H, layer_of, part, random, same, ways_of, whole
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mha import parallel
from mha.backends.torch.parallel.ring import fused, scored
from mha.engine import cutting
from mha.parity.cases import devices


def check_the_suite_by_the_kernel(group):
    """PyTorch's kernel pools heads of which keys are as wide as values, whole and in small blocks."""
    before, size, devices.WIDTHS = devices.WIDTHS, cutting.SCORES, devices.WIDTHS | {"value_dim": 11}
    try:
        ways_of(group, "quick", None, ("float64",), ("ring", "ring in zigzag", "gather"))
        cutting.SCORES = 300
        ways_of(group, "quick", ("sinks, lengths", "segments", "chunks, offsets"), ("float64",), ("ring in zigzag",))
    finally:
        devices.WIDTHS, cutting.SCORES = before, size


def check_rings_where_there_is_no_kernel(group):
    X = random(2, 7, D)
    expected = part(layer_of(None, group.mesh)(X, X, X, causal=True), group.mesh)
    before, fused.FORWARD = fused.FORWARD, None
    try:
        same(layer_of("ring", group.mesh)(*3 * [part(X, group.mesh)], causal=True), expected)
    finally:
        fused.FORWARD = before


def check_a_causal_ring_is_balanced(group):
    """By pairs that are computed, forward and backward, counted by the kernel's arguments and by scores."""
    mesh, kernels, scores, done = group.mesh, (fused.FORWARD, fused.BACKWARD), scored.Scored.scores, [0]
    X = part(random(1, 24 * mesh.size(), D), mesh).detach().requires_grad_()

    def counted(kernel, first):
        def run(*given, **options):
            (Q, K), ordered = (given[first + more].shape[2] for more in (0, 1)), given[-1]
            done[0] += Q * (Q + 1) // 2 if ordered else Q * K
            return kernel(*given, **options)

        return run

    def counted_scores(self, attention, rows, queries, keys, call):
        done[0] += queries.shape[1] * keys.shape[1]
        return scores(self, attention, rows, queries, keys, call)

    before, cutting.SCORES = cutting.SCORES, H * 24**2 // 4  # so that blocks follow the order
    fused.FORWARD, fused.BACKWARD = counted(kernels[0], 0), counted(kernels[1], 1)
    scored.Scored.scores = counted_scores
    try:
        for options in ({}, {"softcap": 5.0}):
            busiest = {}
            for zigzag in (None, False):
                layer = parallel.parallelize(layer_of(None, mesh, **options), mesh, "ring", zigzag)
                done[0] = 0
                layer(X, X, X, causal=True).sum().backward()
                each = whole(torch.tensor(done[0]), mesh).double()
                busiest[zigzag] = float(each.max() / each.mean())
            assert busiest[None] <= 1.1, busiest
            assert busiest[False] > 1.3, busiest
    finally:
        cutting.SCORES, (fused.FORWARD, fused.BACKWARD), scored.Scored.scores = before, kernels, scores


def check_segments_over_a_ring_take_no_mask_of_all_keys(group):
    """No array has a row for each query here and a column for each key, in either pass."""
    mesh, T = group.mesh, 64 * group.count
    X, segments = random(1, T, D), torch.arange(T)[None] // 40
    expected = part(layer_of(None, mesh)(X, X, X, segments=segments, causal=True), mesh)
    own, before, cutting.SCORES = part(X, mesh).detach().requires_grad_(), cutting.SCORES, 1000
    options = {"segments": part(segments, mesh), "key_segments": segments, "causal": True}
    try:
        for zigzag in (None, True):
            layer = parallel.parallelize(layer_of(None, mesh), mesh, "ring", zigzag)
            with Largest() as largest:
                output = layer(own, own, own, **options)
                output.sum().backward()
            same(output, expected)
            assert largest.numbers < own.shape[1] * T, largest.numbers
    finally:
        cutting.SCORES = before


class Largest(TorchDispatchMode):
    """Knows the size of the largest array that an operation inside makes."""

    numbers = 0

    def __torch_dispatch__(self, function, types, given=(), options=None):
        """Call the operation, and look at what it gives."""
        found = function(*given, **(options or {}))
        for X in tree_leaves(found):
            self.numbers = max(
                self.numbers, X.untyped_storage().nbytes() // X.element_size() if torch.is_tensor(X) else 0
            )
        return found
