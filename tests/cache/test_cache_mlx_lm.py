"""The caches of mlx-lm, by what their classes have: ours goes on from each. tests/real/mlx has those of mlx-lm itself.

Letters: B samples, T tokens, D width, G heads of keys and values, S slots, d width of a head.
"""

import sys
import types

import numpy as np
import pytest
from layers import random_layer

import mha
from mha.weights.caches import mlx_lm

from .foreign import FIRST, HEADS, B, G, T, d, decoded, numbers, rest, same, tokens

EVERY = np.arange(FIRST)


def cache_of(name, keys, values, **more):
    """A cache of mlx-lm with these keys and values (B, S, G, d) in its slots."""
    made = type(name, (types.SimpleNamespace,), {})(**more)
    made.keys, made.values = (None if X is None else X.swapaxes(1, 2) for X in (keys, values))  # (B, G, S, d)
    return made


def in_slots(X, order, S):
    """Tokens (B, T, G, d) laid into S slots, the n-th slot having the token order[n]; NaN in all others."""
    found = np.full((B, S, G, d), np.nan)
    found[:, : len(order)] = X[:, order]
    return found


def ring(theirs, order, S, next_slot, keep=0, offset=FIRST):
    k, v = (in_slots(X, order, S) for X in (theirs.keys, theirs.values))
    return cache_of("RotatingKVCache", k, v, offset=offset, max_size=8, keep=keep, _idx=next_slot)


# What a decoder of 9 tokens has kept, as each class lays it; the window that its layer has, and the slots of ours.
PLAIN = {
    "KVCache": (lambda t: cache_of("KVCache", t.keys, t.values, offset=FIRST), T),
    "a subclass": (lambda t: type("Mine", (type(cache_of("KVCache", None, None)),), {})(
        keys=t.keys.swapaxes(1, 2), values=t.values.swapaxes(1, 2), offset=FIRST), T),
    "ConcatenateKVCache": (
        lambda t: cache_of("ConcatenateKVCache", t.keys[:, :FIRST], t.values[:, :FIRST], offset=FIRST), FIRST),
    "ChunkedKVCache, of one chunk": (
        lambda t: cache_of("ChunkedKVCache", t.keys, t.values, offset=FIRST, start_position=0), T),
    "RotatingKVCache, not full": (lambda t: ring(t, EVERY, 11, FIRST), 11),
    "RotatingKVCache, just full": (lambda t: ring(t, EVERY, FIRST, FIRST), FIRST),
    "RotatingKVCache, of a long prompt": (lambda t: ring(t, EVERY, FIRST, FIRST, keep=4), FIRST),
    "BatchKVCache": (
        lambda t: cache_of("BatchKVCache", t.keys, t.values, _idx=FIRST, left_padding=np.zeros(B, int)), T),
}  # fmt: skip


@pytest.mark.parametrize("form", PLAIN)
def test_ours_goes_on_from_a_cache_that_has_all_tokens(backend, rng, form):
    attention, X = random_layer(rng, HEADS, "float64", backend), tokens(rng)
    theirs, (native, size) = decoded(attention, X), PLAIN[form]
    cache = mha.Cache.from_native(native(theirs), attention)
    assert numbers(cache) == [[[*range(FIRST), *[-1] * (size - FIRST)]] * B, [FIRST] * B, [-1] * B]
    assert not np.isnan(mha.to_numpy(cache.keys)).any()
    cache = mha.Cache.from_native(native(theirs), attention, size=T)
    same(rest(attention, cache, X)[0], theirs.rest(X))


# Tokens by slots of a ring that has moved on: of 6 slots, where the next one goes.
MOVED = {
    "in the middle": ([7, 8, 3, 4, 5, 6], 6, 2),
    "at its end": ([3, 4, 5, 6, 7, 8], 6, 6),
    "at its beginning": ([3, 4, 5, 6, 7, 8], 6, 0),
    "longer than its window": ([2, 3, 4, 5, 6, 7, 8], 7, 7),
}


@pytest.mark.parametrize("form", MOVED)
def test_ours_goes_on_from_a_ring_that_has_moved_on(backend, rng, form):
    attention, X = random_layer(rng, HEADS | {"window": (5, 0)}, "float64", backend), tokens(rng)
    theirs, (order, S, next_slot) = decoded(attention, X), MOVED[form]
    cache = mha.Cache.from_native(ring(theirs, order, S, next_slot), attention)
    assert numbers(cache)[1:] == [[FIRST] * B, [FIRST - S - 1] * B]
    assert sorted(numbers(cache)[0][0]) == sorted(order)
    same(rest(attention, cache, X)[0], attention(X, X, X, causal=True)[:, FIRST:])


def test_ours_goes_on_from_a_chunk(backend, rng):
    """Of chunks of 4 tokens the first is gone: there is room for tokens behind the 5 that are left."""
    attention, X = random_layer(rng, HEADS | {"chunk": 4}, "float64", backend), tokens(rng)
    theirs = decoded(attention, X)
    k, v = (in_slots(A, [4, 5, 6, 7, 8], 7) for A in (theirs.keys, theirs.values))
    native = cache_of("ChunkedKVCache", k, v, offset=FIRST, start_position=4)
    cache = mha.Cache.from_native(native, attention)
    assert numbers(cache)[1:] == [[FIRST] * B, [3] * B]
    same(rest(attention, cache, X)[0], attention(X, X, X, causal=True)[:, FIRST:])


def test_padding_on_the_left_is_no_token(backend, rng):
    attention = random_layer(rng, HEADS, "float64", backend)
    k, v = rng.normal(size=(2, B, 7, G, d))
    native = cache_of("BatchKVCache", k, v, _idx=5, left_padding=np.array([3, 0]), _right_padding=None)
    cache = mha.Cache.from_native(native, attention)
    assert numbers(cache) == [[[0, 1, *[-1] * 5], [0, 1, 2, 3, 4, -1, -1]], [2, 5], [-1, -1]]
    found = mha.to_numpy(cache.keys).swapaxes(1, 2)  # (B, S, G, d)
    assert np.array_equal(found[0, :2], k[0, 3:5])
    assert np.array_equal(found[1, :5], k[1, :5])
    placed = mha.Cache.from_native(native, attention, positions=[9, 10, 11, 12, 13, -1, -1])
    assert numbers(placed)[0] == [[9, 10, 11, 12, 13, -1, -1]] * 2


def test_the_list_of_a_model_has_a_layer(backend, rng):
    attention = random_layer(rng, HEADS, "float64", backend)
    k, v = rng.normal(size=(2, B, 5, G, d))
    first, second = cache_of("KVCache", v, k, offset=2), cache_of("KVCache", k, v, offset=4)
    cache = mha.Cache.from_native([first, second], attention, layer=1)
    assert numbers(cache)[1] == [4, 4]
    assert np.array_equal(mha.to_numpy(cache.keys).swapaxes(1, 2)[:, :4], k[:, :4])
    assert numbers(mha.Cache.from_native([first], attention))[1] == [2, 2]
    with pytest.raises(ValueError, match="layer is None, expected one from 0 to 1"):
        mha.Cache.from_native([first, second], attention)


def test_what_is_no_plain_cache_is_refused_with_the_reason(rng):
    attention, X = mha.MultiHeadAttention(**HEADS, dtype="float64"), tokens(rng)
    theirs = decoded(attention, X)
    k, v = theirs.keys, theirs.values
    gone = ring(theirs, [3, 4, 5, 6, 7, 8], 6, 0)
    batch = {"left_padding": np.zeros(B, int)}
    wrong = {
        "native has a QuantizedKVCache, expected one of RotatingKVCache, .*: it is quantised: its keys": (
            cache_of("QuantizedKVCache", k, v, offset=FIRST)
        ),
        "native has a BatchRotatingKVCache, .* take one out by its `extract`": cache_of("BatchRotatingKVCache", k, v),
        "native has a CacheList, .* pass one of its `caches`": cache_of("CacheList", None, None),
        "native has a ArraysCache, .* no attention": cache_of("ArraysCache", None, None),
        "a KVCache without keys and values, expected one with tokens": cache_of("KVCache", None, None, offset=0),
        "offset of native is 21, expected 0 to 20": cache_of("KVCache", k, v, offset=T + 1),
        "offset is 1.5 .*, expected an int": cache_of("KVCache", k, v, offset=1.5),
        "offset of native is 30, expected 6 to 26": (cache_of("ChunkedKVCache", k, v, offset=30, start_position=6)),
        "_idx of native is 7, expected 0 to 6": ring(theirs, [3, 4, 5, 6, 7, 8], 6, 7),
        "native has _idx=3 and keep=0, which no ring of 11 slots has after 9 tokens": ring(theirs, EVERY, 11, 3),
        "native has _idx=1 and keep=2, which no ring of 6 slots has after 9 tokens": (
            ring(theirs, [0, 1, 8, 5, 6, 7], 6, 1, keep=2)
        ),
        "has had 9 tokens, of which it keeps the first 2 and the last 4: expected one that holds all": (
            ring(theirs, [0, 1, 8, 5, 6, 7], 6, 3, keep=2)
        ),
        "without the token at 2, which the layer sees from 9": gone,
        "has padding on the right, expected it on the left": (
            cache_of("BatchKVCache", k, v, _idx=FIRST, _right_padding=np.ones(B, int), **batch)
        ),
        "_idx of native is 21, expected 0 to 20": cache_of("BatchKVCache", k, v, _idx=T + 1, **batch),
        r"keys has shape \(2, 2, 20, 2\), expected \(B, 2, S, 3\)": (cache_of("KVCache", k[..., :2], v, offset=FIRST)),
    }
    for words, native in wrong.items():
        with pytest.raises((TypeError, ValueError), match=words):
            mha.Cache.from_native(native, attention)
    for native in (cache_of("KVCache", k, v, offset=FIRST), cache_of("BatchKVCache", k, v, _idx=FIRST, **batch)):
        with pytest.raises(ValueError, match="lengths is given, expected None: native says itself"):
            mha.Cache.from_native(native, attention, lengths=FIRST)


def test_classes_are_known_by_their_names():
    assert mlx_lm.name_of(cache_of("RotatingKVCache", None, None)) == "RotatingKVCache"
    assert mlx_lm.name_of([]) is None
    assert mlx_lm.KNOWN == "RotatingKVCache, ChunkedKVCache, BatchKVCache, KVCache, ConcatenateKVCache"


@pytest.mark.backends("mlx")
def test_mlx_lm_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    attention = mha.MultiHeadAttention(**HEADS, backend="mlx")
    with pytest.raises(ModuleNotFoundError, match="KVCache' needs mlx_lm: pip install \"mlx-lm>="):
        attention.cache(B, T).to_native("mlx_lm.KVCache")
