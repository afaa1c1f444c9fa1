"""The trace of a call with a cache: each step is that of one causal call, and the cache stays as it was."""

import numpy as np
import pytest

import mha

B, T, D, H, S = 3, 7, 24, 4, 11
MODERN = {"num_key_value_heads": 2, "rotary": mha.Rotary(4), "qk_norm": "rms", "softcap": 3.0, "bias": True}
OPTIONS = {"plain": {}, "all, in a ring": MODERN | {"window": (3, None)}}
PAIRS = ("scores", "capped", "biased", "weights")
OF_KEYS = ("W_k", "W_v", "split_k", "split_v", "norm_k", "rotate_k")
LEFT = [[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4], [-1, 0, 1, 2, 3]]


def layer(backend, **options):
    return mha.MultiHeadAttention(D, H, dtype="float64", seed=3, backend=backend, **options)


def tokens(seed, count=T):
    return np.random.default_rng(seed).normal(size=(B, count, D))


def contents(cache):
    return [mha.to_numpy(X).copy() for X in cache.arrays()]


def same(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.abs(found - expected).max(initial=0) <= 1e-12 * np.abs(expected).max(initial=0)


def by_positions(step, places):
    """Columns of a step (B*H, Q, K) at the positions (B, S) of the slots; empty ones get zeros."""
    columns = np.repeat(np.maximum(places, 0), H, 0)[:, None]  # (B*H, 1, S)
    filled = np.repeat(places >= 0, H, 0)[:, None]  # (B*H, 1, S)
    return np.where(filled, np.take_along_axis(step, columns, 2), 0)


def at_filled(step, places):
    return np.where(np.repeat(places >= 0, H, 0)[:, None], step, 0)


@pytest.mark.parametrize("readable", [False, pytest.param(True, marks=pytest.mark.long("jax"))])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_steps_are_those_of_one_causal_call(backend, options, readable):
    attention, X = layer(backend, readable=readable, **OPTIONS[options]), tokens(1)
    ring, gates = "window" in OPTIONS[options], np.linspace(0.5, 2, H)
    bias = np.random.default_rng(2).normal(size=(1, H, T, T)) if ring else None
    cache, first = attention.cache(B, 5 if ring else S), 0
    for count in (4, 1, 1, 1):
        now, end = slice(first, first + count), first + count
        x, (_, size) = X[:, now], cache.sizes
        newest = end - 1 - (end - 1 - np.arange(size)) % size  # (S,): the position that a slot has after the call
        places = np.broadcast_to(np.maximum(newest, -1), (B, size))  # (B, S)
        own = None if bias is None else bias[:, :, now][..., np.maximum(places[0], 0)]
        call = {"causal": True, "score_bias": own, "head_gates": gates}
        before = contents(cache)
        steps = attention.trace(x, x, x, cache=cache, **call)
        for found, expected in zip(contents(cache), before, strict=True):
            np.testing.assert_array_equal(found, expected)
        whole = bias if bias is None else bias[..., :end, :end]
        expected = layer("numpy", **OPTIONS[options]).trace(*[X[:, :end]] * 3, **call | {"score_bias": whole})
        assert list(steps) == list(expected)
        seen = by_positions(expected["weights"][:, now], places) > 0  # (B*H, Q, S): other scores may be of zeros
        for name, step in expected.items():
            if name in PAIRS:
                assert steps[name].shape == (B * H, count, cache.sizes[1])
                same(np.where(seen, steps[name], 0), np.where(seen, by_positions(step[:, now], places), 0))
                assert name != "weights" or (steps[name][~seen] == 0).all()
            else:
                same(steps[name], step[:, now])
        output, weights, cache = attention(x, x, x, cache=cache, return_weights=True, **call)
        np.testing.assert_array_equal(contents(cache)[2], places)
        same(steps["output"], output)
        same(steps["weights"], weights.reshape(steps["weights"].shape))
        first = end


def test_padding_has_no_slot(backend):
    attention, X, positions = layer(backend, **MODERN), tokens(3, 5), np.array(LEFT)
    whole = layer("numpy", **MODERN)
    poisoned = np.where(positions[:, :, None] < 0, np.nan, X)
    cache = attention.cache(B, S)
    steps = attention.trace(poisoned, poisoned, poisoned, causal=True, positions=positions, cache=cache)
    expected = whole.trace(X, X, X, causal=True, positions=positions, key_positions=positions)
    _, after = attention(poisoned, poisoned, poisoned, causal=True, positions=positions, cache=cache)
    places, real = contents(after)[2], positions >= 0
    for name, step in expected.items():
        if name in PAIRS:
            columns = [np.pad(step[b * H : (b + 1) * H][:, :, real[b]], [(0, 0), (0, 0), (0, S)]) for b in range(B)]
            step = np.concatenate([X[..., :S] for X in columns])  # (B*H, Q, S)
            found = at_filled(steps[name], places)
        else:
            found = steps[name]
        counts = np.repeat(real, len(step) // B, 0)[:, :, None]  # (B or B*H, Q, 1)
        same(np.where(counts, found, 0), np.where(counts, step, 0))


def test_a_frozen_cache_has_no_new_keys(backend):
    options, X, queries = {"num_key_value_heads": 2, "bias": True}, tokens(4, 5), tokens(5, 2)
    attention, whole = layer(backend, **options), layer("numpy", **options)
    frozen = attention.cache_of(X, valid_lens=[5, 2, 0])
    steps, expected = attention.trace(queries, cache=frozen), whole.trace(queries, X, X, [5, 2, 0])
    assert list(steps) == list(expected)
    places = contents(frozen)[2]
    for name, step in expected.items():
        if name in OF_KEYS:
            assert steps[name].shape == (len(step), 0, step.shape[2])
        elif name in PAIRS:
            same(at_filled(steps[name], places), at_filled(step, places))
        else:
            same(steps[name], step)


def test_no_tokens_have_steps_of_no_rows(backend):
    attention, X = layer(backend, **MODERN), tokens(6, 3)
    _, cache = attention(X, X, X, causal=True, cache=attention.cache(B, S))
    x = X[:, :0]
    steps = attention.trace(x, x, x, causal=True, cache=cache)
    expected = layer("numpy", **MODERN).trace(X, X, X, causal=True)
    assert list(steps) == list(expected)
    for name, step in steps.items():
        width = S if name in PAIRS else expected[name].shape[2]
        assert step.shape == (len(expected[name]), 0, width)


def test_steps_that_have_no_slot_are_refused(backend):
    attention, X = layer(backend, window=(3, None)), tokens(7)
    x = X[:, :4]
    _, cache = attention(x, x, x, causal=True, cache=attention.cache(B))
    x, before = X[:, 4:6], contents(cache)
    with pytest.raises(ValueError, match=r"its queries see, which .* has no trace; give its 2 tokens in smaller"):
        attention.trace(x, x, x, causal=True, cache=cache)
    for found, expected in zip(contents(cache), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.backends("numpy", "torch", "mlx")
def test_the_framework_s_layer_refuses_queries_that_are_no_array(backend):
    attention = mha.MultiHeadAttention(6, 2, backend=backend)
    X = mha.ones((1, 2, 6), backend=backend)
    for wrong in ("text", [[1]], None):
        with pytest.raises(TypeError, match=r"queries is .*, expected a dense array of shape \(batch, queries, 6\)"):
            attention.layer(wrong, X, X, cache=attention.cache(1, 4))


def test_a_frozen_cache_of_nothing_is_refused_by_name(backend):
    with pytest.raises(TypeError, match="keys is a NoneType, expected a NumPy array, nested lists or an array"):
        mha.MultiHeadAttention(6, 2, backend=backend).cache_of(None)
