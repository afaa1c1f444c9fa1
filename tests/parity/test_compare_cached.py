"""Comparisons of a call with a cache: its output, its weights by slots, and what it leaves in the slots."""

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem

B, H, G, D, S = 3, 6, 2, 24, 11
OPTIONS = {
    "plain": {},
    "in groups": {"num_key_value_heads": G, "rotary": mha.Rotary(4), "bias": True},
    "a ring": {"window": (3, None), "rotary": mha.Rotary(2, interleaved=True)},
    "all": {"num_key_value_heads": G, "window": (4, 0), "rotary": mha.Rotary(4), "qk_norm": "rms", "softcap": 3.0},
}
NAMES = ["output", "cache.keys", "cache.values", "cache.positions"]


def layer(backend="numpy", dtype="float64", **options):
    return mha.MultiHeadAttention(D, H, dtype=dtype, seed=3, backend=backend, **options)


def tokens(count, dtype="float64", seed=1):
    return np.random.default_rng(seed).normal(size=(B, count, D)).astype(numpy_dtype(dtype))


def begun(attention, size=S, lengths=(4, 2, 3)):
    """A cache after a prompt that is padded on the right."""
    X = tokens(4, attention.config.dtype)
    return attention(X, X, X, lengths, causal=True, cache=attention.cache(B, size))[1]


def copy(cache):
    return cache.reorder(range(B))


def taken(output, cache, **more):
    """What an implementation hands over of a call with a cache."""
    slots = {"cache.keys": cache.keys, "cache.values": cache.values, "cache.positions": cache.positions}
    return {"output": output, **more} | slots


LONG = pytest.mark.long(*adapters.COMPILED)  # which compile each call of each


@pytest.mark.parametrize("options", [pytest.param(name, marks=() if name == "all" else LONG) for name in OPTIONS])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=LONG)])
def test_what_a_layer_leaves_in_its_slots_is_the_same(backend, options, dtype):
    window = OPTIONS[options].get("window")
    attention = layer(backend, dtype, **OPTIONS[options])
    cache, x = begun(attention, None if window else S), tokens(1, dtype, 2)
    before = copy(cache)
    output, weights, cache = attention(x, x, x, causal=True, cache=cache, return_weights=True)
    theirs = taken(output, cache, weights=weights)
    report = parity.compare(attention, theirs, x, x, x, causal=True, cache=before)
    assert report, str(report)
    assert [row.name for row in report.rows] == ["weights", *NAMES]
    assert parity.compare(layer("numpy", dtype, **OPTIONS[options]), theirs, x, x, x, causal=True, cache=before)
    x, before = tokens(3, dtype, 3), copy(cache)  # a ring pushes out what its first queries see
    output, cache = attention(x, x, x, [3, 1, 2], causal=True, cache=cache)
    report = parity.compare(attention, taken(output, cache), x, x, x, [3, 1, 2], causal=True, cache=before)
    assert report, str(report)
    assert "known mistakes" not in str(report)


def test_each_array_is_named_with_its_place():
    attention = layer(dtype="float32", num_key_value_heads=G)
    cache, x = begun(attention), tokens(1, "float32", 2)
    before = copy(cache)
    output, weights, left = attention(x, x, x, cache=cache, return_weights=True)
    right = {name: mha.to_numpy(X) for name, X in taken(output, left, weights=weights).items()}
    for name, at, of in [
        ("weights", (2, 5, 0, 3), "samples 2 of 3; heads 5 of 6; slots 3 of 11"),
        ("cache.keys", (1, 1, 2, 3), "samples 1 of 3; heads 1 of 2; slots 2 of 11"),
        ("cache.values", (0, 0, 4, 0), "samples 0 of 3; heads 0 of 2; slots 4 of 11"),
        ("cache.positions", (2, 6), "samples 2 of 3; slots 6 of 11"),
    ]:
        wrong = right[name].copy()
        wrong[at] += 1
        report = parity.compare(attention, right | {name: wrong}, x, x, x, cache=before)
        assert [row.name for row in report.rows if not row.passed] == [name]
        assert report.first.place.index == at
        assert report.first.place.where.startswith(of)
        assert report.first.place.count == 1


def test_positions_are_exact_however_far():
    attention = layer(dtype="float16")
    x, far = tokens(1, "float16"), 1_000_000
    output, left = attention(x, x, x, positions=[far], cache=attention.cache(B, S))
    for by in (0, 1):
        places = np.where(left.positions < 0, -1, left.positions + by).astype("int64")
        theirs = {"output": output, "cache.positions": places}
        report = parity.compare(attention, theirs, x, x, x, positions=[far], cache=attention.cache(B, S))
        assert bool(report) == (by == 0)
        assert report.rows[1].note == ""


def test_what_is_in_an_empty_slot_or_in_padding_does_not_count():
    attention = layer()
    cache, x = begun(attention), tokens(2, seed=2)
    x[1, 1] = np.nan
    before = copy(cache)
    output, left = attention(x, x, x, [2, 1, 2], causal=True, cache=cache)
    theirs = {name: X.copy() for name, X in taken(output, left).items()}
    theirs["output"][1, 1] = np.nan
    theirs["W_k"] = x @ attention.weights["W_k.kernel"]  # of the tokens of the call alone
    for name in NAMES[1:3]:
        theirs[name][1, :, 3:] = np.nan  # of this sample, three tokens are real
    report = parity.compare(attention, theirs, x, x, x, [2, 1, 2], causal=True, cache=before)
    assert report, str(report)
    theirs["cache.values"][1, :, 2] = np.nan
    assert not parity.compare(attention, theirs, x, x, x, [2, 1, 2], causal=True, cache=before)


def test_slots_in_other_layouts():
    attention = layer(num_key_value_heads=G)
    cache, x = begun(attention), tokens(1, seed=2)
    before = copy(cache)
    output, left = attention(x, x, x, cache=cache)
    for turned in (
        {"cache.keys": left.keys.swapaxes(1, 2), "cache.values": left.values.reshape(B * G, S, -1)},
        {"cache.keys": np.repeat(left.keys, H // G, 1), "cache.values": left.values.swapaxes(1, 2).reshape(B, S, -1)},
    ):
        assert parity.compare(attention, {"output": output, **turned}, x, x, x, cache=before)
    attention = layer(window=(H - 1, None))  # as many slots as heads: as an mha.Cache has them, unless it is said
    cache = attention(x, x, x, cache=attention.cache(B))[1]
    for layout, keys in ((None, cache.keys), ("(B, T, H, d)", cache.keys.swapaxes(1, 2))):
        assert parity.compare(attention, {"cache.keys": keys}, x, x, x, cache=attention.cache(B), layout=layout)


def test_cross_attention_to_a_frozen_cache(backend):
    attention = layer(backend)
    keys, x = tokens(5), tokens(2, seed=2)
    frozen = attention.cache_of(keys, valid_lens=[5, 1, 3])
    output, weights, _ = attention(x, cache=frozen, return_weights=True)
    assert parity.compare(attention, (output, weights), x, None, None, cache=frozen)
    longer = attention(x, cache=attention.cache_of(keys, valid_lens=[5, 2, 3]))[0]
    report = parity.compare(attention, longer, x, None, None, cache=frozen)
    assert report.first.place.where == "samples 1 of 3"
    with pytest.raises(ValueError, match=r"theirs has 'cache\.keys', expected some of W_q"):
        parity.compare(attention, {"cache.keys": keys}, x, None, None, cache=frozen)


def test_a_call_that_pushes_out_what_it_sees_has_no_weights_by_slots():
    attention = layer(window=(3, None))
    x = tokens(3, seed=2)
    before = begun(attention, None)
    with pytest.raises(ValueError, match="theirs has 'weights', expected some of W_q"):
        parity.compare(attention, {"weights": np.ones((B, H, 3, 4))}, x, x, x, causal=True, cache=before)


def test_what_does_not_fit_is_refused():
    attention, x = layer(), tokens(1)
    cache = begun(attention)
    for theirs, more, error, words in [
        (x, {"cache": "none"}, TypeError, "cache is 'none' .str., expected an mha.Cache"),
        (x, {"cache": begun(layer(window=(2, 0)))}, ValueError, "cache is of a layer with another configuration"),
        (x, {"cache": cache, "cotangent": x}, ValueError, "cotangent is given beside a cache, expected None"),
        ({"gradient.queries": x}, {"cache": cache}, ValueError, "theirs has 'gradient.queries', expected some of W_q"),
        ({"cache.keys": x}, {}, ValueError, "theirs has 'cache.keys', expected some of"),
        ({"cache.positions": cache.positions * 1.0}, {"cache": cache}, TypeError, "dtype float64, expected integers"),
        (x, {"cache": cache, "positions": [1]}, ValueError, "positions goes back to 1 in sample 0"),
    ]:
        with pytest.raises(error, match=words):
            parity.compare(attention, theirs, x, x, x, **more)
    with pytest.raises(ValueError, match="keys and values are given beside a frozen cache"):
        parity.compare(attention, x, x, x, x, cache=attention.cache_of(x))
    with pytest.raises(ValueError, match="keys and values are None, expected those of the new tokens"):
        parity.compare(attention, x, x, None, None, cache=cache)
    attention(x, x, x, cache=cache)
    with pytest.raises(ValueError, match="cache is used up"):
        parity.compare(attention, x, x, x, x, cache=cache)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_pipeline_without_mistakes_is_the_cached_call(options):
    attention, x = layer(**OPTIONS[options]), tokens(2, seed=2)
    window = OPTIONS[options].get("window")
    given = {"causal": True, "valid_lens": [2, 1, 2], "cache": begun(attention, None if window else S)}
    asked = as_decoding(problem(attention, x, x, x, given))
    for samples in (slice(None), [2, 0]):
        bench = Bench(asked, "float64", samples)
        for name in asked.names():
            counts, expected = (bench.cut(name, X) for X in (asked.matters(name), asked.expected(name).X))
            found = np.where(counts, bench.steps((), name), 0)
            assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max(), name
