"""Checks by the ranks of a group of rings of PyTorch: its kernel, rows in zigzag, segments.

Letters as in the lesson; N ranks.
"""

import ranks
import torch
from sequence_over_ranks import HOWS, KINDS, WAYS, D, H, compared, layer_of, part, random, same, ways_of, whole
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mha import parallel
from mha.core.engine import blocks
from mha.parallel.torch.ring import fused, scored
from mha.parallel.torch.ring.circle import Circle
from mha.parity.cases import devices


def check_chunks_beside_others(group):
    """Beside a window, where both count from an offset of each sample, or of all; and beside segments."""
    for offset in ([5, 9], [-3, 2], 3):
        compared(group, {"chunk": 5, "window": (3, None)}, (13, 17), {"offset": offset, "causal": True})
    segments, of_keys = (torch.arange(size).repeat(2, 1) // 7 for size in (13, 17))
    call = {"segments": segments, "key_segments": of_keys, "causal": True, "offset": 2}
    compared(group, {"chunk": 5}, (13, 17), call, {"segments": 1})


@ranks.long
def check_few_rows(group):
    """Ranks without queries or keys, and queries before the first key or after the last, in causal order."""
    for sizes, offset in (
        ((0, 5), 0),
        ((5, 0), 1),
        ((3, 2), 0),
        ((2, 9), 3),
        ((9, 2), -2),
        ((9, 5), -30),
        ((5, 9), 30),
    ):
        for options in KINDS:
            compared(group, options, sizes, {"causal": True, "offset": offset})


def check_rows_that_see_nothing(group):
    """By lengths of 0, and by masks of which a row, a column, and all rows of a rank hide everything, in any head."""
    mask = torch.rand(13, 17, generator=torch.Generator().manual_seed(2)) > 0.5
    mask[4], mask[:, 3], mask[11:] = False, False, False
    of_heads = mask.repeat(2, H, 1, 1)
    of_heads[1, 2] = False
    for options in KINDS:
        compared(group, options, (13, 17), {"valid_lens": [0, 17], "causal": True})
        compared(group, options, (13, 17), {"mask": mask, "causal": True, "offset": 4}, {"mask": 0})
        compared(group, options, (13, 17), {"mask": of_heads, "offset": -3}, {"mask": 2})


@ranks.long
def check_calls_without_gradients(group):
    X = random(2, 9, D).detach()
    for options in KINDS:
        expected = part(layer_of(None, group.mesh, **options)(X, X, X, causal=True), group.mesh)
        for how in HOWS:
            for without in (torch.no_grad, torch.inference_mode):
                with without():
                    same(layer_of(how, group.mesh, **options)(*3 * [part(X, group.mesh)], causal=True), expected)


@ranks.long
def check_gradients_of_one_input(group):
    """Of causal calls of a frozen layer, where the others have none."""
    for options in KINDS:
        for trained in range(3):
            whole_inputs = [random(2, 9, D, seed=seed).detach().requires_grad_(seed == trained) for seed in range(3)]
            layer_of(None, group.mesh, **options).requires_grad_(False)(
                *whole_inputs, causal=True
            ).square().sum().backward()
            for way in WAYS:
                layer = layer_of(way, group.mesh, **options).requires_grad_(False)
                own = [part(X, group.mesh).detach().requires_grad_(X.requires_grad) for X in whole_inputs]
                layer(*own, causal=True).square().sum().backward()
                same(own[trained].grad, part(whole_inputs[trained].grad, group.mesh))
                assert not layer(*(X.detach() for X in own)).requires_grad
                if "ring" in way:  # whose gradients have none of their own
                    (once,) = torch.autograd.grad(layer(*own).square().sum(), own[trained], create_graph=True)
                    ranks.refused(once.sum().backward, "once_differentiable", kind=RuntimeError)


@ranks.long
def check_half_precision(group):
    """Gradients that travel are sums in float32."""
    passed, dtypes = Circle.pass_on, set()

    def seen(self, arrays, owner):
        dtypes.update(X.dtype for X in arrays)
        return passed(self, arrays, owner)

    Circle.pass_on = seen
    try:
        ways_of(group, "quick", ("heads of equal widths",), ("bfloat16",), ("ring", "ring in zigzag", "gather"))
    finally:
        Circle.pass_on = passed
    assert dtypes == {torch.float32}


@ranks.long
def check_the_suite_by_the_kernel(group):
    """PyTorch's kernel pools heads of which keys are as wide as values, whole and in small blocks."""
    before, size, devices.WIDTHS = devices.WIDTHS, blocks.SCORES, devices.WIDTHS | {"value_dim": 11}
    try:
        ways_of(group, "quick", None, ("float64",), ("ring", "ring in zigzag", "gather"))
        blocks.SCORES = 300
        ways_of(group, "quick", ("sinks, lengths", "segments", "chunks, offsets"), ("float64",), ("ring in zigzag",))
        ways_of(group, "quick", ("segments",), ("float64",), ("ulysses", "gather"))
    finally:
        devices.WIDTHS, blocks.SCORES = before, size


def check_rings_where_there_is_no_kernel(group):
    before, fused.FORWARD = fused.FORWARD, None
    try:
        compared(group, {}, (7, 7), {"causal": True})
    finally:
        fused.FORWARD = before


def check_zigzag_for_what_is_no_ring_is_refused(group):
    """A layer stays whole then; `zigzag=False` is no error, as it asks for nothing."""
    for how in (None, "gather", "ulysses"):
        layer = layer_of(None, group.mesh)
        words = f"zigzag is True beside how={how!r}, expected None"
        ranks.refused(lambda layer=layer, how=how: parallel.parallelize(layer, group.mesh, how, True), words)
        assert not hasattr(layer, "sequence")
    parallel.parallelize(layer, group.mesh, "gather", False)
    layer = layer_of(None, group.mesh)
    ranks.refused(lambda: parallel.parallelize(layer, group.mesh, "ring", 1), "zigzag is 1", kind=TypeError)


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

    before, blocks.SCORES = blocks.SCORES, H * 24**2 // 4  # so that blocks follow the order
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
        blocks.SCORES, (fused.FORWARD, fused.BACKWARD), scored.Scored.scores = before, kernels, scores


def check_segments_take_no_mask_of_all_keys(group):
    """No array has a row for each query here and a column for each key; without rounds, few pairs are computed."""
    mesh, T = group.mesh, 64 * group.count
    X, segments = random(1, T, D), torch.arange(T)[None] // 40
    expected = part(layer_of(None, mesh)(X, X, X, segments=segments, causal=True), mesh)
    own, before = part(X, mesh).detach().requires_grad_(), (blocks.SCORES, blocks.LEAST)
    blocks.SCORES, blocks.LEAST = 1000, 16
    options = {"segments": part(segments, mesh), "key_segments": segments, "causal": True}
    try:
        for how, zigzag in (("ring", None), ("ring", True), ("ulysses", None), ("gather", None)):
            layer = parallel.parallelize(layer_of(None, mesh), mesh, how, zigzag)
            with Largest() as largest:
                output = layer(own, own, own, **options)
                few = 0 < largest.pairs < H * T * T // (3 * group.count)
                assert few or how == "ring", (how, largest.pairs)
                output.sum().backward()
            same(output, expected)
            assert largest.numbers < own.shape[1] * T, (how, largest.numbers)
    finally:
        blocks.SCORES, blocks.LEAST = before


class Largest(TorchDispatchMode):
    """Knows the size of the largest array that an operation inside makes, and the pairs that PyTorch's kernel takes."""

    numbers = pairs = 0

    def __torch_dispatch__(self, function, types, given=(), options=None):
        """Call the operation, and look at what it gives."""
        found = function(*given, **(options or {}))
        if "scaled_dot_product" in str(function):
            self.pairs += given[0][..., 0].numel() * given[1].shape[2]
        for X in tree_leaves(found):
            self.numbers = max(
                self.numbers, X.untyped_storage().nbytes() // X.element_size() if torch.is_tensor(X) else 0
            )
        return found
