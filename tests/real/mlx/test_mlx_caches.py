"""Caches of mlx-lm in the middle of a text: a layer of its models and one of ours go on from each other's.

Letters: B sentences, T tokens, D width.
"""

import numpy as np
import pytest
from mlx_lm.models import cache as caches
from real_mlx import small

import mha
from mha import parity

B, T, FIRST = 2, 23, 11


@pytest.fixture(params=["llama", "qwen3", "gemma3_text", "gpt2", "gpt_oss"])
def model(request, tmp_path):
    config = small.configured(request.param)
    return small.saved(small.made(config), config, tmp_path)


@pytest.fixture
def llama(tmp_path):
    config = small.configured("llama")
    return small.saved(small.made(config), config, tmp_path)


def tokens(count=T):
    return np.random.default_rng(7).integers(1, 90, (B, count))


def portion(model, prefix, given, kept, sizes):
    """What enters and leaves a layer while the model is given tokens in portions of these sizes."""
    parts = np.split(given, np.cumsum(sizes)[:-1], 1)
    pairs = [small.calls(model, prefix, part, kept) for part in parts]
    return [np.concatenate(X, 1) for X in zip(*pairs, strict=True)]


def ours_goes_on(model, layer, prefix, kept, number, given, sizes, **said):
    """Both decode token by token after portions of these sizes; each is the layer on the whole text up to rounding."""
    start = sum(sizes)
    before, first = portion(model, prefix, given[:, :start], kept, sizes)
    cache = mha.Cache.from_native(kept, layer, layer=number, **said)
    inputs, theirs, outputs = [before], [first], [first]
    for t in range(start, given.shape[1]):
        x, output = small.calls(model, prefix, given[:, t : t + 1], kept)
        ours, cache = layer(x, x, x, causal=True, cache=cache)
        inputs.append(x)
        theirs.append(output)
        outputs.append(mha.to_numpy(ours))
    X = np.concatenate(inputs, 1)
    for found in (theirs, outputs):
        assert parity.ratio(layer, np.concatenate(found, 1), X, X, X, causal=True) <= 1
    return cache


@pytest.mark.parametrize("sizes", [(1,), (FIRST,), (1, 1, 5, 1), (3, 8), (1,) * FIRST], ids=str)
def test_ours_goes_on_from_the_caches_of_a_model(tmp_path, backend, model, sizes):
    """Layers with a window of 4 tokens have a `RotatingKVCache`, the others a `KVCache`."""
    for number, (_, prefix) in enumerate(small.places(tmp_path)):
        layer = mha.load(tmp_path, backend, prefix=prefix)
        kept = caches.make_prompt_cache(model)
        assert isinstance(kept[number], caches.KVCache if layer.config.window is None else caches.RotatingKVCache)
        said = {"size": 32} if layer.config.window is None else {}
        ours_goes_on(model, layer, prefix, kept, number, tokens(), sizes, **said)


@pytest.mark.parametrize("sizes", [(255, 1), (250, 9), (1, 256)], ids=str)
def test_ours_goes_on_where_theirs_has_grown(tmp_path, backend, llama, sizes):
    (_, prefix), *_ = small.places(tmp_path)
    layer, kept = mha.load(tmp_path, backend, prefix=prefix), caches.make_prompt_cache(llama)
    ours_goes_on(llama, layer, prefix, kept, 0, tokens(sum(sizes) + 5), sizes, size=300)


def test_ours_goes_on_where_theirs_was_trimmed(tmp_path, backend, model):
    _, prefix = small.places(tmp_path)[-1]
    layer, kept, given = mha.load(tmp_path, backend, prefix=prefix), caches.make_prompt_cache(model), tokens()
    if caches.can_trim_prompt_cache(kept):
        small.calls(model, prefix, given[:, :3], kept)
    assert caches.can_trim_prompt_cache(kept)  # no window is full
    assert caches.trim_prompt_cache(kept, 2) == 2
    cache = mha.Cache.from_native(kept[-1], layer, size=None if layer.config.window else 32)
    assert mha.to_numpy(cache.lengths).tolist() == [1] * B
    before = small.calls(model, prefix, given[:, :1], caches.make_prompt_cache(model))[0]
    X, expected = small.calls(model, prefix, given[:, 1:5], kept)
    output, _ = layer(X, X, X, causal=True, cache=cache)
    whole = np.concatenate([before, X], 1)
    first = layer(*[whole] * 3, causal=True)[:, :1]
    for found in (expected, output):
        assert parity.ratio(layer, np.concatenate([first, found], 1), whole, whole, whole, causal=True) <= 1


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("sizes", [(5,), (FIRST,), (1,) * FIRST, (5, 6)], ids=str)
def test_a_ring_goes_on_where_nothing_that_is_seen_is_gone(tmp_path, backend, llama, keep, sizes):
    """Models without windows have rings of `max_kv_size`, which lose what the layer sees once they are full."""
    (_, prefix), *_ = small.places(tmp_path)
    layer, given = mha.load(tmp_path, backend, prefix=prefix), tokens()
    roomy = [caches.RotatingKVCache(max_size=T, keep=keep) for _ in range(2)]
    ours_goes_on(llama, layer, prefix, roomy, 0, given, sizes, size=T)
    full = [caches.RotatingKVCache(max_size=8, keep=keep) for _ in range(2)]
    portion(llama, prefix, given, full, (*sizes, *[1] * (T - sum(sizes))))
    with pytest.raises(ValueError, match="it keeps the first 4 and the last 4" if keep else "which the layer sees"):
        mha.Cache.from_native(full[0], layer)


def test_padding_on_the_left_of_a_batch_is_left_out(tmp_path, backend, llama):
    (_, prefix), *_ = small.places(tmp_path)
    layer, given, left = mha.load(tmp_path, backend, prefix=prefix), tokens(), (4, 0)
    kept = [caches.BatchKVCache(list(left)) for _ in range(2)]
    before, first = portion(llama, prefix, given[:, :FIRST], kept, (8, 1, 2))
    cache = mha.Cache.from_native(kept, layer, layer=0, size=T)
    assert mha.to_numpy(cache.lengths).tolist() == [FIRST - 4, FIRST]
    inputs, theirs, outputs = [before], [first], [first]
    for t in range(FIRST, T):
        x, output = small.calls(llama, prefix, given[:, t : t + 1], kept)
        ours, cache = layer(x, x, x, causal=True, cache=cache)
        inputs.append(x)
        theirs.append(output)
        outputs.append(mha.to_numpy(ours))
    for found in (theirs, outputs):
        for b, padding in enumerate(left):
            X = np.concatenate(inputs, 1)[b : b + 1, padding:]
            assert parity.ratio(layer, np.concatenate(found, 1)[b : b + 1, padding:], X, X, X, causal=True) <= 1


def test_samples_of_a_merged_batch_have_their_own_lengths(tmp_path, backend, llama):
    """As the server of mlx-lm puts requests together, and takes them apart."""
    (_, prefix), *_ = small.places(tmp_path)
    layer, given = mha.load(tmp_path, backend, prefix=prefix), tokens()
    one, other = caches.make_prompt_cache(llama), caches.make_prompt_cache(llama)
    small.calls(llama, prefix, given[:1, :7], one)
    small.calls(llama, prefix, given[1:, :3], other)
    merged = caches.BatchKVCache.merge([one[0], other[0]])
    cache = mha.Cache.from_native(merged, layer)
    assert mha.to_numpy(cache.lengths).tolist() == [7, 3]
    alone = mha.Cache.from_native(merged.extract(1), layer)
    for found in (cache.keys[1:], alone.keys):
        assert np.array_equal(mha.to_numpy(found)[:, :, :3], np.array(other[0].keys)[:, :, :3])


@pytest.mark.parametrize("prompt", [0, FIRST])
def test_theirs_goes_on_from_ours(tmp_path, backend, llama, prompt):
    (_, prefix), *_ = small.places(tmp_path)
    layer, given, kept = mha.load(tmp_path, backend, prefix=prefix), tokens(), caches.make_prompt_cache(llama)
    before = first = np.empty((B, 0, 32), "float32")
    cache = layer.cache(B, T)
    if prompt:
        before, first = small.calls(llama, prefix, given[:, :prompt], kept)
        _, cache = layer(before, before, before, causal=True, cache=cache)
    kept[0] = cache.to_native("mlx_lm.KVCache")
    assert isinstance(kept[0], caches.KVCache)
    assert kept[0].offset == prompt
    X, output = portion(llama, prefix, given[:, prompt:], kept, [1] * (T - prompt))
    whole = np.concatenate([before, X], 1)
    assert parity.ratio(layer, np.concatenate([first, output], 1), whole, whole, whole, causal=True) <= 1
    back = mha.Cache.from_native(kept[0], layer)
    assert mha.to_numpy(back.lengths).tolist() == [T] * B


def test_quantised_caches_are_refused(tmp_path, llama):
    (_, prefix), *_ = small.places(tmp_path)
    layer, kept = mha.load(tmp_path, prefix=prefix), [caches.KVCache() for _ in range(2)]
    kept[0].update_and_fetch(*[mha.tensor(np.ones((1, 4, 5, 64), "float32"), backend="mlx")] * 2)
    with pytest.raises(ValueError, match=r"native has a QuantizedKVCache, .* it is quantised"):
        mha.Cache.from_native(kept[0].to_quantized(), layer)
