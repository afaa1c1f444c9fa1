"""Checks by the ranks of a group of a cache of PyTorch whose slots are split.

Letters as in the lesson; N ranks. The oracle is NumPy, for gradients the whole layer.
"""

import numpy as np
import torch
from ranks import refused
from sequence_over_ranks import D, H
from torch.distributed.device_mesh import init_device_mesh

import mha
from mha import parallel
from mha.core.engine import blocks

OPTIONS = {
    "all slots": {"num_key_value_heads": 3, "rotary": mha.Rotary(2), "softcap": 5.0, "qk_norm": "layer", "sinks": True},
    "a ring": {"window": (7, 0), "bias": True, "output_gate": "head"},
    "additive": {"pooling": "additive", "window": (5, None), "sinks": True},
    "chunks": {"chunk": 4, "rotary": mha.Rotary(2)},
}
SIZE = 24


def split(mesh, how="ring", seed=0, **options):
    """An attention, whole on NumPy, and with its slots on the ranks of a mesh."""
    whole = mha.MultiHeadAttention(D, H, seed=seed, backend="numpy", dtype="float64", **options)
    random = np.random.default_rng(seed)
    whole.weights = {name: random.normal(size=X.shape) for name, X in whole.weights.items()}
    attention = whole.to("torch")
    parallel.parallelize(attention.layer, mesh, how)
    return whole, attention


def decode(group, options, portions, size=SIZE, how="ring", **call):
    """Decode in portions on the ranks and on NumPy: outputs and caches agree after each; returns the last cache."""
    (whole, attention), N, rank = split(group.mesh, how, **options), group.count, group.rank
    X = np.random.default_rng(1).normal(size=(4, sum(portions), D))
    cache, first = attention.cache(4, size), 0
    expected = whole.cache(4, cache.positions.shape[1])  # as many slots as go round
    for rows in portions:
        x = X[:, first : first + rows]
        given = {name: make(rows) for name, make in call.items()}
        with torch.no_grad():
            output, cache = attention(*3 * [torch.tensor(x)], causal=True, cache=cache, **given)
        right, expected = whole(x, x, x, causal=True, cache=expected, **given)
        close(output, right)
        for found, array in zip(cache.arrays()[:2], expected.arrays()[:2], strict=True):
            close(found, array[:, :, rank::N])
        for found, array in zip(cache.arrays()[2:], expected.arrays()[2:], strict=True):
            assert np.array_equal(found, array)
        first += rows
    return cache


def close(found, expected):
    """Two arrays agree, and no number is missing."""
    found = np.asarray(found.detach())
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max(initial=0) <= 1e-11 * max(1, np.abs(expected).max(initial=0))


def check_a_prompt_and_tokens_agree(group):
    for name, options in OPTIONS.items():
        size = SIZE if name == "all slots" else None
        portions = (5, 1, 1, 1, 3, 1, 1) if name in ("all slots", "additive") else (5, 1, 1, 1, 1, 1, 1, 1)
        cache = decode(group, options, portions, size, how=("ring", "ulysses", "gather")[group.count % 3])
        assert cache.keys.shape[2] * group.count == cache.positions.shape[1]


def check_lengths_masks_and_biases_agree(group):
    random = np.random.default_rng(3)
    given = {
        "valid_lens": lambda rows: np.array([rows, rows // 2, 0, max(0, rows - 1)]),
        "mask": lambda rows: random.random((4, 1, rows, SIZE)) > 0.3,
        "score_bias": lambda rows: random.normal(size=(1, H, rows, SIZE)),
    }
    decode(group, {}, (5, 2, 2, 1), **given)
    decode(group, {"num_key_value_heads": 2}, (3, 3), mask=lambda rows: np.arange(rows)[:, None] != 1)


def check_blocks_of_queries_agree(group):
    before, blocks.SCORES = blocks.SCORES, 4 * H * SIZE
    try:
        decode(group, OPTIONS["all slots"], (5, 3), valid_lens=lambda rows: np.array([rows, 2, 1, 0]))
    finally:
        blocks.SCORES = before


def check_heads_and_slots_are_split_together(group):
    if group.count % 2:
        return
    both = init_device_mesh("cpu", (2, group.count // 2), mesh_dim_names=("heads", "slots"))
    options = {"num_key_value_heads": 2, "bias": True, "qk_norm": mha.Norm("rms", over="all"), "sinks": True}
    whole = mha.MultiHeadAttention(D, H, seed=0, backend="numpy", dtype="float64", **options)
    attention = whole.to("torch")
    parallel.parallelize(parallel.parallelize(attention.layer, both["heads"]), both["slots"], "ring")
    X = np.random.default_rng(1).normal(size=(2, 7, D))
    expected, cache = whole.cache(2, SIZE), attention.cache(2, SIZE)
    assert cache.keys.shape == (2, 1, SIZE // (group.count // 2), D // H)
    for rows in (slice(0, 5), slice(5, 6), slice(6, 7)):
        output, cache = attention(*3 * [torch.tensor(X[:, rows])], causal=True, cache=cache)
        right, expected = whole(*3 * [X[:, rows]], causal=True, cache=expected)
        close(output, right)


def check_gradients_are_those_of_the_whole_layer(group):
    """Also in a ring, whose slots are overwritten by the call that attends to them."""
    grouped = {"sinks": True, "num_key_value_heads": 2}
    gated, ring = {"pooling": "additive", "output_gate": "element"}, {"window": (7, 0)}
    for options, size in ((grouped, SIZE), (gated, SIZE), (ring, 12)):
        whole, attention = split(group.mesh, **options)
        alone = whole.to("torch")
        X, bias = np.random.default_rng(2).normal(size=(2, 16, D)), np.random.default_rng(4).normal(size=(1, 1, 6, 1))
        found = []
        for one in (alone, attention):
            own, biases = torch.tensor(X[:, 10:], requires_grad=True), torch.tensor(bias, requires_grad=True)
            _, cache = one(*3 * [torch.tensor(X[:, :10])], causal=True, cache=one.cache(2, size))
            given = {} if options is ring else {"score_bias": biases.expand(1, 1, 6, size)}
            output, _ = one(own, own, own, causal=True, cache=cache, **given)
            output.square().sum().backward()
            found.append({"own": own.grad} | {n: p.grad for n, p in one.layer.named_parameters()})
            found[-1] |= {"bias": biases.grad} if given else {}
        for name, gradient in found[0].items():
            close(found[1][name], gradient.numpy())


def check_a_frozen_cache_agrees(group):
    whole, attention = split(group.mesh, sinks=True)
    X, lens = np.random.default_rng(1).normal(size=(2, SIZE, D)), np.array([SIZE, 7])
    frozen = whole.to("torch").cache_of(torch.tensor(X), valid_lens=lens)
    keys, values, *others = frozen.arrays()
    own = [X[:, :, group.rank :: group.count].contiguous() for X in (keys, values)]
    cache = mha.Cache(attention.config, (*own, *others), frozen=True)
    for given in (None, np.array([5, 9])):
        output, left = attention(torch.tensor(X[:, :3]), None, None, given, cache=cache)
        close(output, whole(X[:, :3], X, X, lens if given is None else np.minimum(lens, given)))
        assert left is cache


def check_empty_slots_may_hold_anything(group):
    (whole, attention), X = split(group.mesh), np.random.default_rng(1).normal(size=(2, 3, D))
    cache = attention.cache(2, SIZE)
    cache.values.fill_(torch.nan)
    with torch.no_grad():
        output, left = attention(*3 * [torch.tensor(X)], causal=True, cache=cache)
    close(output, whole(X, X, X, causal=True))
    assert not left.values[:, :, : max(1, 3 // group.count)].isnan().any() or group.rank >= 3


def check_tokens_are_taken_back(group):
    """While they did not go round; and what would need all slots is refused."""
    (whole, attention), X = split(group.mesh, window=(7, 0)), np.random.default_rng(1).normal(size=(2, 12, D))
    (_, cache), (_, expected) = (
        one(*3 * [given], causal=True, cache=one.cache(2, 12))
        for one, given in ((attention, torch.tensor(X[:, :5])), (whole, X[:, :5]))
    )
    cache, expected = cache.crop(np.array([3, 4])), expected.crop(np.array([3, 4]))
    x = X[:, 7:9]
    output, cache = attention(*3 * [torch.tensor(x)], causal=True, cache=cache)
    close(output, whole(x, x, x, causal=True, cache=expected)[0])
    refused(lambda: cache.save(group.folder / "none"), "save came to a cache with keys of")
    refused(lambda: cache.to("numpy"), "to came to a cache with keys of")
    draft = torch.tensor([[0, 2, 1]])
    _, cache = attention(*3 * [torch.tensor(X[:, :3])], positions=draft.expand(2, 3), cache=attention.cache(2, 12))
    refused(lambda: cache.crop(2), "positions would move tokens to other slots")


def check_what_does_not_fit_is_refused(group):
    whole, attention = split(group.mesh)
    X = torch.ones(2, 1, D, dtype=torch.float64)
    refused(lambda: attention.cache(2, 24 * group.count + 1), f"expected a multiple of the {group.count} ranks")
    cache = whole.to("torch").cache(2, SIZE)
    refused(
        lambda: attention(X, X, X, cache=mha.Cache(cache.config, cache.arrays())), "make it with attention.cache after"
    )
    refused(lambda: attention(X, X, X, cache=attention.cache(2, SIZE), return_weights=True), "no rank has them")
    told = "valid_lens of rank" if group.count > 1 else ""
    lens = [1, 0 if group.rank == group.count - 1 else 1]
    refused(lambda: attention(X, X, X, lens, cache=attention.cache(2, SIZE)), told)
    wrong = torch.ones(2, 1, D + (group.rank == 1), dtype=torch.float64)
    said = "keys has" if group.rank == 1 else "rank 1 has refused its arguments"
    refused(lambda: attention(X, wrong, X, cache=attention.cache(2, SIZE)), said)
    attention(X, X, X, cache=attention.cache(2, SIZE))
