"""Checks by the ranks of a group of a layer of PyTorch whose sequence is split.

Letters as in the lesson; N ranks.
"""

import time

import numpy as np
import ranks
import torch
from dropping import see_through
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import mha
from mha import parallel
from mha.core.engine import blocks
from mha.parallel import rows
from mha.parallel.torch import exchange
from mha.parallel.torch.ring import circle
from mha.parity.cases import devices

HOWS = ("ulysses", "ring", "gather")
WAYS = (*HOWS, "ring in zigzag")
D, H = 12, 6
# By the kernel and by scores; heads that share keys, and sinks beside them.
KINDS = ({}, {"softcap": 5.0}, {"num_key_value_heads": 2, "sinks": True})


def layer_of(how, mesh, *, readable=False, **options):
    """A layer of 6 heads, split; None for how: whole."""
    made = mha.MultiHeadAttention(D, H, dtype="float64", seed=1, readable=readable, backend="torch", **options).layer
    way = (how,) if how != "ring in zigzag" else ("ring", True)
    return made if how is None else parallel.parallelize(made, mesh, *way)


def random(*shape, seed=0):
    """The same numbers on every rank, which have gradients."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.requires_grad_()


def part(X, mesh, axis=1):
    """The rows of this rank: as many on each, but for the last ranks."""
    return X.tensor_split(mesh.size(), axis)[mesh.get_local_rank()]


def whole(X, mesh):
    """All ranks' values of an array, one after the other along the first axis."""
    found = [torch.empty_like(X) for _ in range(mesh.size())]
    distributed.all_gather(found, X.detach().contiguous(), group=mesh.get_group())
    return torch.stack(found)


def refused(kind, words, function, *given, **options):
    """See that a call raises an error of this kind with these words."""
    ranks.refused(lambda: function(*given, **options), words, kind=kind)


def same(found, expected, scale=1.0):
    """Whether two arrays of float64 are the same up to rounding."""
    expected = expected.detach().numpy()
    limit = mha.parity.bound("float64", expected, expected, gradient=True, scale=scale)
    assert (wrong := mha.parity.error(found.detach().numpy(), expected)) <= limit, (wrong, limit)


# 1. The same numbers as the whole layer's


def compared(group, options, sizes, call, rows=None, mesh=None):
    """See split layers give the whole layer's output and gradients.

    options: of the layer; sizes: how many queries and keys; call: other arguments; rows: the axes of those whose rows
    are split; mesh: another one than the group's.
    """
    mesh, inputs = mesh or group.mesh, [random(2, size, D, seed=seed) for seed, size in enumerate(sizes)]
    alone = layer_of(None, mesh, **options)
    expected = alone(inputs[0], inputs[1], inputs[1], **call)
    cotangent = random(*expected.shape, seed=5).detach()
    expected.backward(cotangent)
    own_call = call | {name: part(call[name], mesh, axis) for name, axis in (rows or {}).items()}
    if "valid_lens" in (rows or {}) and group.rank:
        own_call["valid_lens"] = own_call["valid_lens"].to(torch.int16)  # any dtype of integers, on any rank
    for way in WAYS:
        layer = layer_of(way, mesh, **options)
        queries, keys = (part(X, mesh).detach().requires_grad_() for X in inputs)
        output = layer(queries, keys, keys, **own_call)
        output.backward(part(cotangent, mesh))
        same(output, part(expected, mesh))
        for X, of_all in zip((queries, keys), inputs, strict=True):
            same(X.grad, part(of_all.grad, mesh))
        for X, of_all in zip(layer.parameters(), alone.parameters(), strict=True):
            same(X.grad, of_all.grad)


def ways_of(group, suite, cases, dtypes, ways=WAYS):
    """The results of the suite of `mha parity --distributed`, of the ways of these names, here or behind others."""
    start, distributed.init_process_group = distributed.init_process_group, lambda *given, **options: None
    try:  # the group is there already
        checks = devices.plan_rank("torch", suite, cases, dtypes, group.rank, group.count, "", ranks.WAIT)
    finally:
        distributed.init_process_group = start
    checks = [one for one in checks if one.name.endswith(ways)]
    assert checks
    for one in checks:
        for result in one.run():
            assert result.passed, (one.name, result)


@ranks.long
def check_the_suite(group):
    ways_of(group, "quick", None, ("float64",))


@ranks.long
def check_the_suite_in_small_blocks(group):
    before, blocks.SCORES = blocks.SCORES, 300
    try:
        pairs = "mask and bias of one row", "mask and bias of one column"
        ways_of(group, "quick", ("all options", "additive, all options", "window, offsets", *pairs), ("float64",))
    finally:
        blocks.SCORES = before


def check_narrow_windows(group):
    """Of which a block may need the last key of the rank before, and no other of its keys."""
    for window in ((1, 0), (0, 1), (2, None)):
        compared(group, {"window": window}, (7, 7), {})


def check_a_lesson(group):
    compared(group, {"readable": True}, (7, 7), {"valid_lens": [4, 7], "causal": True})


def check_a_call_of_mha(group):
    """A call of `mha.MultiHeadAttention`, of whose arguments some are nested lists."""
    mesh = group.mesh
    X = random(2, 2 * mesh.size(), D)
    mask = np.random.default_rng(0).random((len(X[0]), len(X[0]))) > 0.4
    expected = layer_of(None, mesh)(X, X, X, mask=mask, score_bias=mask * 1.5)
    own, of_own = part(X, mesh), part(torch.tensor(mask), mesh, 0).tolist()
    for how in HOWS:
        attention = mha.MultiHeadAttention(D, H, dtype="float64", seed=1, backend="torch")
        assert parallel.parallelize(attention.layer, mesh, how) is attention.layer
        bias = np.array(of_own) * 1.5
        same(attention(own, own, own, mask=of_own, score_bias=bias.tolist()), part(expected, mesh))
        refused(ValueError, "a layer that is split over", attention.trace, own, own, own)
        cache = mha.MultiHeadAttention(**vars(attention.config), backend="torch").cache(len(own), 9)
        words = f"cache has keys of 9 of its 9 slots, expected {9 // mesh.size()} as the layer"
        refused(ValueError, words, attention.layer, own, own, own, cache=cache)


def check_nan_that_is_seen_stays(group):
    """Also of a key that is alone on its rank, or first of those that a query sees there."""
    mesh = group.mesh
    X, sees = random(1, 6, D).detach(), torch.arange(6) >= 4
    X[0, 4, 2] = torch.nan  # of the last ranks alone
    queries, own = part(random(1, 6, D), mesh), part(X, mesh)
    for how, options in ((how, options) for how in HOWS for options in ({}, {"softcap": 5.0})):
        assert layer_of(how, mesh, **options)(queries, own, queries).isnan().all(), (how, options)
        found = layer_of(how, mesh, **options)(queries, own, queries, causal=True)
        assert found[:, part(sees, mesh, 0)].isnan().all(), (how, options)


def check_one_column_stands_for_the_keys_of_all_ranks(group):
    """Of a mask and a bias without lengths; where each rank has one key, a wrong number would be no error."""
    pairs = {"mask": torch.arange(7)[:, None] % 3 != 1, "score_bias": random(1, H, 7, 1, seed=2).detach()}
    for keys in (group.count, 7):
        compared(group, {"bias": True}, (7, keys), pairs, {"mask": 0, "score_bias": 2})


@ranks.long
def check_lengths_of_queries(group):
    """Longer on each rank, or above all keys on one alone, and of another dtype: they go with their queries."""
    above = torch.arange(13).repeat(2, 1) % 3 + 1
    above[0, -1] = 100
    before = blocks.SCORES
    try:
        for blocks.SCORES, causal in ((before, True), (60, True), (60, False)):
            for options in KINDS[:2]:
                lengths = torch.arange(3, 16).repeat(2, 1)
                compared(group, options, (13, 17), {"valid_lens": lengths, "causal": causal}, {"valid_lens": 1})
        compared(group, {}, (13, 13), {"valid_lens": above}, {"valid_lens": 1})
    finally:
        blocks.SCORES = before


def check_empty_calls(group):
    mesh = group.mesh
    full, none = torch.full((2, 4, D), torch.nan, dtype=torch.float64), random(2, 0, D)
    for how in HOWS:
        layer = layer_of(how, mesh, bias=True)
        for queries, keys in ((full, none), (none, full), (random(0, 4, D), random(0, 4, D))):
            layer.zero_grad()
            output = layer(queries, keys, keys)
            same(output, layer.W_o.bias.expand_as(output))
            output.sum().backward()
            for name, X in layer.named_parameters():
                expected = X.new_full(X.shape, output[..., 0].numel() * mesh.size() if name == "W_o.bias" else 0)
                same(X.grad, expected)


def check_a_group_of_one(group):
    alone = init_device_mesh("cpu", (group.count, 1), mesh_dim_names=("data", "sequence"))["sequence"]
    compared(group, {}, (5, 5), {"causal": True}, mesh=alone)


# 2. Ranks that differ


def check_calls_that_differ_are_refused(group):
    rank, mesh = group.rank, group.mesh
    X = torch.ones(2, 2, D, dtype=torch.float64)
    last, N = rank == mesh.size() - 1, mesh.size()
    bias = torch.zeros(2, 2 * N, dtype=torch.float64)
    pairs = {
        "causal": (True, False),
        "offset": (0, 3),
        "training": (False, True),
        "return_weights": (False, True),
        "valid_lens": ([2, 3], [2, 4]),
        "mask": (bias == 0, None),
        "score_bias": (bias, bias.clone().requires_grad_()),
        "head_gates": (None, bias.new_ones(H)),
    }
    told = {"score_bias": "requires_grad"}
    for how in HOWS:
        layer = layer_of(how, mesh)
        for name, both in pairs.items():
            words = f"{told.get(name, name)} of rank {N - 1} is not that of rank 0, expected the same on all {N} ranks"
            refused(ValueError, words, layer, X, X, X, **{name: both[last]})
        one_number, array = (3, [3, 3])
        refused(ValueError, "offset of rank", layer, X, X, X, offset=array if last else one_number)
        refused(ValueError, "offset of rank", layer, X, X, X, offset=[3, 3 + last])
        refused(ValueError, "valid_lens of rank", layer, X, X, X, [[3, 3]] * 2 if last else [3, 3])
        refused(ValueError, "mask of rank", layer, X, X, X, mask=(bias if last else bias[None]) == 0)
        refused(ValueError, "batch of rank", layer, *[X[:1] if last else X] * 3)
        refused(ValueError, "head_gates of rank", layer, X, X, X, head_gates=X.new_ones((2, H) if last else (H,)))
        layer(X, X, X)
    refused(ValueError, f"how of rank {N - 1}", layer_of("ring" if last else "gather", mesh), X, X, X)
    flagged = parallel.parallelize(layer_of(None, mesh), mesh, "ring", last or None)
    refused(ValueError, f"zigzag of rank {N - 1}", flagged, X, X, X)
    other = mha.MultiHeadAttention(D, H, seed=int(last), backend="torch").layer
    refused(ValueError, f"the weights of rank {N - 1}", parallel.parallelize, other, mesh, "ring")


def check_what_one_rank_refuses_is_told(group):
    rank, mesh = group.rank, group.mesh
    X, N = torch.ones(2, 2, D, dtype=torch.float64), mesh.size()
    wrong = rank == N - 1
    told = f"rank {N - 1} has refused its arguments"
    for layer in (parallel.parallelize(layer_of(None, mesh), mesh), *(layer_of(how, mesh) for how in HOWS)):
        keys = 2 if layer.sequence is None else 2 * N
        refused(ValueError, "queries has" if wrong else told, layer, torch.ones(2, 2, D + wrong, dtype=X.dtype), X, X)
        mask = torch.ones(2, keys + wrong, dtype=torch.bool)
        refused(ValueError, "mask" if wrong else told, layer, X, X, X, mask=mask)
        layer(X, X, X)


def check_what_does_not_fit_is_refused(group):
    rank, mesh = group.rank, group.mesh
    X, N = torch.ones(2, 2, D, dtype=torch.float64), mesh.size()
    for how in HOWS:
        layer = layer_of(how, mesh)
        rows = torch.ones(1 + (rank == 0), 2 * N, dtype=torch.bool)
        refused(ValueError, "mask has 1 rows on rank 1, expected 2: one for each", layer, X, X, X, mask=rows)
        refused(ValueError, f"expected (2, {2 * N})", layer, X, X, X, mask=rows[:1, :2].expand(2, 2))
        refused(ValueError, "return_weights came to a layer that is split", layer, X, X, X, return_weights=True)
        attention = mha.MultiHeadAttention(D, H, dtype="float64", backend="torch")
        attention.layer = layer
        refused(TypeError, "queries is of NumPy, expected tensors", attention, *[X.numpy()] * 3)


@ranks.long
def check_other_poolings(group):
    mesh = group.mesh

    class Own(mha.backends.torch.AttentionPooling):
        def scores(self, queries, keys):
            return queries[:, :, :1] - keys[:, None, :, 0]  # (B*H, Q, K)

    class Replaced(torch.nn.Module):
        def forward(self, queries, keys, values, visible=None, score_bias=None, training=None):
            weights = torch.full((*queries.shape[:2], keys.shape[1]), 1 / keys.shape[1], dtype=keys.dtype)
            return weights @ values, weights

    X = random(1, 6, D)
    for kind, hows in ((lambda: Own(0.0), HOWS), (Replaced, ("ulysses", "gather"))):
        expected = layer_of(None, mesh)
        expected.attention = kind()
        wanted, own = part(expected(X, X, X), mesh), part(X, mesh)
        for how in hows:
            layer = layer_of(how, mesh)
            layer.attention = kind()
            same(layer(own, own, own), wanted)
    layer = layer_of("ring", mesh)
    layer.attention = Replaced()
    refused(ValueError, 'how is "ring" for a pooling Replaced of its own', layer, own, own, own)


# 3. Dropout


def dropped(how, mesh, seed, rate=0.25, K=60):
    """The weights, all alike, that N ranks keep: 0 or 1 (N, Q, H, K); and what this rank would draw next."""
    made, (zeros, keys, values) = see_through("torch", rate, (1, H, 4, K), dtype="float64")
    layer = parallel.parallelize(made.layer, mesh, how)
    torch.manual_seed(seed)
    own = (part(torch.tensor(X), mesh) for X in (keys, values))
    output = layer(torch.tensor(zeros), *own, training=True)  # (1, 4, H*K)
    kept = whole(output[0].reshape(4, H, K) * (1 - rate), mesh)  # (N, 4, H, K), of 0 and 1
    return kept, torch.rand(())


def check_dropout(group):
    mesh = group.mesh
    for how in HOWS:
        kept, after = dropped(how, mesh, 3)
        same(kept, kept.round())
        assert {*kept.round().unique().tolist()} == {0, 1}
        rate, drawn = 1 - kept.mean(), kept.numel()
        assert abs(rate - 0.25) < 5 * (0.25 * 0.75 / drawn) ** 0.5, rate  # five standard deviations
        patterns = kept.round().flatten(0, 2)  # (N*4*H, K)
        assert len(patterns.unique(dim=0)) == len(patterns), how
        same(dropped(how, mesh, 3)[0], kept)
        assert not torch.equal(dropped(how, mesh, 4)[0], kept)
        assert len(whole(after, mesh).unique()) == 1, how


@ranks.long
def check_gradients_of_dropout(group):
    """Along a line, the slope of what was drawn is the gradient's: both passes drop the same."""
    mesh = group.mesh
    step = 1e-5
    before, blocks.SCORES = blocks.SCORES, 50
    options = {"dropout": 0.3, "softcap": 2.0}
    try:
        for how, pooling in ((how, pooling) for how in HOWS for pooling in ("dot", "additive")):
            layer = layer_of(how, mesh, pooling=pooling, **options)
            inputs = [part(random(2, 7, D, seed=seed), mesh).detach() for seed in range(3)]
            lines = [part(random(2, 7, D, seed=seed), mesh).detach() for seed in range(3, 6)]

            def total(along, layer=layer, inputs=inputs, lines=lines):
                torch.manual_seed(8)
                places = [X + along * line for X, line in zip(inputs, lines, strict=True)]
                found = layer(*places, causal=True, training=True).square().sum()
                return whole(found, mesh).sum() if isinstance(along, float) else found

            along = torch.zeros((), dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(total(along), along)
            with torch.no_grad():
                expected = (total(step) - total(-step)) / (2 * step)
            slope = whole(slope, mesh).sum()
            assert abs(slope - expected) <= 1e-7 * abs(expected), (how, pooling, slope, expected)
    finally:
        blocks.SCORES = before


# 4. What is sent, and kept


def check_bytes_that_are_sent(group):
    """Bytes that a rank sends to others, forward and backward, are those of the formulas, V = B T D e."""
    rank, mesh = group.rank, group.mesh
    N, T, counted = mesh.size(), 4 * mesh.size(), [0]
    V = T * D * 8
    to_all, gather, each = distributed.all_to_all_single, distributed.all_gather, distributed.batch_isend_irecv

    def all_to_all(found, given, sizes, counts, **options):
        counted[0] += (sum(counts) - counts[rank]) * given.element_size()
        return to_all(found, given, sizes, counts, **options)

    def all_gather(found, given, **options):
        counted[0] += (len(found) - 1) * given.nbytes
        return gather(found, given, **options)

    def point_to_point(operations):
        counted[0] += sum(one.tensor.nbytes for one in operations if one.op is distributed.isend)
        return each(operations)

    replaced = {"all_to_all_single": all_to_all, "all_gather": all_gather, "batch_isend_irecv": point_to_point}
    own, new = rows.consecutive([T // N] * N)[rank], rows.zigzag(T, N)
    moved = 4 * (V // N - V // T * sum(one.stop - one.start for one in rows.common(own, new[rank])))  # into zigzag
    whole_of = {
        "ulysses": (4 * (N - 1) * V // N**2, 4 * (N - 1) * V // N**2),
        "ring": (2 * (N - 1) * V // N + moved, (4 * N - 2) * V // N + moved),
        "gather": (2 * (N - 1) * V // N, 2 * (N - 1) * V // N),
    }
    X = part(random(1, T, D), mesh).detach().requires_grad_()
    assert exchange.distributed is circle.distributed is distributed
    try:
        for name, function in replaced.items():
            setattr(distributed, name, function)
        for how, expected in whole_of.items():
            found = []
            counted[0], layer = 0, layer_of(how, mesh)
            output = layer(X, X, X, [T - 1], causal=True)
            found.append(counted[0])
            counted[0] = 0
            output.sum().backward()
            assert (*found, counted[0]) == expected, (how, found, counted, expected)
    finally:
        for name, function in zip(replaced, (to_all, gather, each), strict=True):
            setattr(distributed, name, function)


# 5. A rank that ends


def check_a_rank_that_ends(group):
    rank, mesh = group.rank, group.mesh
    X, last, layer = torch.ones(1, 2, D, dtype=torch.float64), mesh.size() - 1, layer_of("ring", mesh)
    if rank == last:
        return
    started = time.monotonic()
    refused(RuntimeError, f"rank {last} does not answer rank {rank}", layer, X, X, X)
    assert time.monotonic() - started < ranks.WAIT
