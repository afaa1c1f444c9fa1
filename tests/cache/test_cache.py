"""The cache of a layer: decoding in portions is one causal call, whatever the portions; and what is refused."""

import copy

import numpy as np
import pytest

import mha
from mha.core import dispatch
from mha.core.call import GIVEN, Call
from mha.core.options.config import numpy_dtype
from mha.parity import compare

B, T, D, H = 3, 11, 24, 4
PORTIONS = {"one by one": (1,) * T, "a prompt first": (4, 3, 1, 1, 1, 1), "at once": (T,)}
OPTIONS = {
    "plain": {},
    "turned, in groups": {"num_key_value_heads": 2, "rotary": mha.Rotary(4), "bias": True, "scale": 0.7},
    "a ring": {"window": (3, None)},
    "a ring, normed and capped": {
        "window": (2, 1),
        "qk_norm": "rms",
        "softcap": 5.0,
        "rotary": mha.Rotary(6),
        "sinks": True,
        "output_gate": "head",
    },
    "additive": {"pooling": "additive", "output_gate": "element"},
}
LEFT = [[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1, -1]]


def layer(backend, dtype="float64", **options):
    return mha.MultiHeadAttention(D, H, dtype=dtype, seed=3, backend=backend, **options)


def pair(backend, **options):
    """A layer, and the same one on NumPy, whose calls without a cache are what is expected of it."""
    return layer(backend, **options), layer("numpy", **options)


def numbers(cache):
    """Positions, lengths and what is lost, as lists."""
    return [mha.to_numpy(X).tolist() for X in (cache.positions, cache.lengths, cache.lost)]


def tokens(seed, count=T):
    return np.random.default_rng(seed).normal(size=(B, count, D))


def decoded(attention, X, portions, cache, **call):
    """The output of a decoder that is given these portions of its tokens, and the cache that is left."""
    outputs, first = [], 0
    for count in portions:
        x = X[:, first : first + count]
        output, cache = attention(x, x, x, causal=True, cache=cache, **call)
        outputs.append(output)
        first += count
    return np.concatenate(outputs, 1), cache


def same(found, expected):
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.nanmax(np.abs(found - expected)) <= 1e-12 * np.nanmax(np.abs(expected))


# JAX compiles each portion, and has no other way for a longer one, unless tokens of one portion meet in a slot.
WAYS = [(options, "a prompt first") for options in OPTIONS]
WAYS += [
    ("a ring", "one by one"),
    ("a ring", "at once"),
    pytest.param("plain", "at once", marks=pytest.mark.long("jax")),
]


@pytest.mark.parametrize(("options", "portions"), WAYS)
def test_portions_are_one_causal_call(backend, options, portions):
    (attention, whole), X = pair(backend, **OPTIONS[options]), tokens(1)
    left = OPTIONS[options].get("window", (None,))[0]
    output, cache = decoded(attention, X, PORTIONS[portions], attention.cache(B, T if left is None else None))
    same(output, whole(X, X, X, causal=True))
    lost = -1 if left is None else T - 1 - (left + 1)
    assert numbers(cache)[1:] == [[T] * B, [lost] * B]
    assert mha.to_numpy(cache.positions).max() == T - 1


def test_training_drops_weights_of_slots_and_of_tokens(backend):
    attention, X = layer(backend, dropout=0.5), tokens(2)
    kept, _ = decoded(attention, X, PORTIONS["a prompt first"], attention.cache(B, T))
    dropped, _ = decoded(attention, X, PORTIONS["a prompt first"], attention.cache(B, T), training=True)
    assert (np.abs(dropped - kept).max((0, 2)) > 1e-3).all()  # in each of the calls


def test_precision_is_by_the_rule(backend):
    for dtype in dispatch.FRAMEWORKS[backend].dtypes:
        attention = layer(backend, dtype, num_key_value_heads=2)
        X = tokens(2).astype(numpy_dtype(dtype))
        output, _ = decoded(attention, X, (5, 1, 1, 1, 1, 1, 1), attention.cache(B, T))
        assert compare(layer("numpy", dtype, num_key_value_heads=2), output, X, X, X, causal=True)


def test_padding_is_never_kept(backend):
    attention, whole = pair(backend, num_key_value_heads=2, rotary=mha.Rotary(6))
    X, positions = tokens(3, 7), np.array(LEFT)
    poisoned = np.where(positions[:, :, None] < 0, np.nan, X)
    cache = attention.cache(B, 9)
    output, cache = attention(poisoned, poisoned, poisoned, causal=True, positions=positions, cache=cache)
    same(output, whole(X, X, X, causal=True, positions=positions, key_positions=positions))
    assert numbers(cache) == [
        [[0, 1, 2, 3, 4, -1, -1, -1, -1], [0, 1, 2, 3, 4, 5, 6, -1, -1], [0, 1, 2, -1, -1, -1, -1, -1, -1]],
        [5, 7, 3], [-1, -1, -1],
    ]  # fmt: skip
    x = tokens(4, 2)
    x[2], x[1, 1] = np.nan, np.nan
    output, cache = attention(x, x, x, valid_lens=[2, 1, 0], causal=True, cache=cache)
    assert (output[2] == 0).all()
    assert (output[1, 1] == 0).all()
    assert not np.isnan(output).any()
    assert numbers(cache)[1] == [7, 8, 3]
    rows = np.concatenate([X[1], x[1, :1]])[None]  # of the middle sample, which was never padded in between
    same(output[1:2, :1], whole(rows[:, 7:], rows, rows, causal=True, offset=7))


@pytest.mark.parametrize("weights", [False, True])
def test_a_token_that_is_padding_in_every_sample(backend, weights):
    attention, X = layer(backend, num_key_value_heads=1), tokens(3, 2)
    _, cache = attention(X, X, X, causal=True, cache=attention.cache(B, 7))
    before, x = numbers(cache), tokens(4, 1)
    output, *_, cache = attention(x, x, x, causal=True, positions=B * [[-1]], cache=cache, return_weights=weights)
    assert (output == 0).all()
    assert numbers(cache) == before


def test_a_slot_that_is_empty_or_hidden_does_not_count(backend):
    (attention, whole), X = pair(backend), tokens(5, 3)
    _, cache = decoded(attention, X, (2,), attention.cache(B, 5))
    arrays = [mha.to_numpy(one).copy() for one in cache.arrays()]
    arrays[0][:, :, 2:], arrays[1][:, :, 2:] = np.nan, np.nan
    poisoned = mha.Cache(cache.config, arrays).to(backend)
    mask = np.ones((1, 1, 1, 5), bool)
    mask[..., 0] = False
    x = X[:, 2:]
    same(attention(x, x, x, cache=poisoned, mask=mask)[0], whole(x, X, X, mask=mask[..., :3]))
    poisoned = mha.Cache(cache.config, arrays).to(backend)
    output, poisoned = attention(x, x, x, valid_lens=[1, 0, 1], cache=poisoned)
    same(output[::2], whole(x, X, X)[::2])
    output, _ = attention(x, x, x, valid_lens=[1, 1, 1], causal=True, cache=poisoned)
    same(output[1], whole(x, X, X)[1])  # whose last slot nobody has written to


def test_a_token_that_is_no_number_does_not_count_behind_the_window(backend):
    (attention, whole), X = pair(backend, window=(1, None)), tokens(22, 4)
    X[:, 0] = np.nan
    expected = whole(*[X[:, 1:]] * 3, causal=True)[:, 1:]
    for more in ({}, {"valid_lens": [1, 1, 1]}, {"mask": np.ones((1, 1, 1, 3), bool)}):
        output, cache = decoded(attention, X, (1, 1, 1), attention.cache(B, 3), **more)
        assert np.isnan(output[:, :2]).all()
        same(output[:, 2:], expected[:, :1])
        x = X[:, 3:]  # goes to the slot of the first token
        same(attention(x, x, x, causal=True, cache=cache, **more)[0], expected[:, 1:])
    _, cache = decoded(attention, X, (1, 1, 1), attention.cache(B, 5))
    x, lengths = X[:, 3:], [1, 0, 1]
    output, cache = attention(x, x, x, lengths, causal=True, cache=cache)  # three tokens, or four
    output, _ = attention(x, x, x, [0, 1, 0], causal=True, cache=cache, mask=np.ones((1, 1, 1, 5), bool))
    same(output[1], expected[1, 1:])


def test_padding_is_given_to_a_ring_that_has_wrapped(backend):
    (attention, whole), X = pair(backend, window=(3, None)), tokens(26, 7)
    _, cache = decoded(attention, X, (4, 1, 1), attention.cache(B))
    x = X[:, 6:]
    output, cache = attention(x, x, x, [1, 0, 1], causal=True, cache=cache)
    expected = whole(X, X, X, causal=True)[:, 6:]
    same(output[::2], expected[::2])
    assert numbers(cache)[1:] == [[7, 6, 7], [2, 1, 2]]
    output, _ = attention(x, x, x, [0, 1, 0], causal=True, cache=cache)
    same(output[1], expected[1])


def test_a_call_that_pushes_out_what_it_sees_takes_no_mask(backend):
    attention, X = layer(backend, window=(3, None)), tokens(7)
    _, cache = decoded(attention, X, (4,), attention.cache(B))
    x, before = X[:, 4:6], numbers(cache)
    for more in ({"return_weights": True}, {"mask": np.ones((2, 4), bool)}, {"score_bias": np.zeros((2, 4))}):
        with pytest.raises(ValueError, match=r"slots of sample 0 that its queries see.* give its 2 tokens in"):
            attention(x, x, x, causal=True, cache=cache, **more)
    assert numbers(cache) == before


def test_a_ring_that_is_too_small_is_full(backend):
    attention, X = layer(backend, window=(3, None)), tokens(21, 4)
    _, cache = decoded(attention, X, (3,), attention.cache(B, 3))
    x = X[:, 3:]
    for more in ({}, {"valid_lens": [1, 1, 0]}):
        with pytest.raises(ValueError, match="sample 0 would have 4 tokens, and the cache has 3 slots"):
            attention(x, x, x, causal=True, cache=cache, **more)


def test_a_call_of_no_tokens_changes_nothing(backend):
    attention, X = layer(backend), tokens(22, 3)
    _, cache = decoded(attention, X, (3,), attention.cache(B, 5))
    x, before = X[:, :0], numbers(cache)
    for more in ({}, {"valid_lens": [0, 0, 0]}, {"positions": np.empty((B, 0), int)}):
        output, cache = attention(x, x, x, causal=True, cache=cache, **more)
        assert output.shape == (B, 0, D)
        assert numbers(cache) == before


def test_a_tree_of_drafts_is_verified_and_taken_back(backend):
    (attention, whole), X = pair(backend, rotary=mha.Rotary(6)), tokens(8, 8)
    _, cache = decoded(attention, X, (3,), attention.cache(B, 8))
    # Two drafts of two tokens each: slots 3 and 5 are one, 4 and 6 the other.
    mask = np.zeros((4, 8), bool)
    mask[:, :3] = True
    for query, seen in enumerate(([3], [4], [3, 5], [4, 6])):
        mask[query, seen] = True
    drafts = X[:, 3:7]
    output, cache = attention(drafts, drafts, drafts, causal=True, positions=[3, 3, 4, 4], mask=mask, cache=cache)
    path = X[:, [0, 1, 2, 4, 6]]
    expected = whole(path, path, path, causal=True)
    same(output[:, [1, 3]], expected[:, 3:])
    cache = cache.crop(3)
    assert numbers(cache)[:2] == [[[0, 1, 2, -1, -1, -1, -1, -1]] * B, [3] * B]
    output, cache = decoded(attention, path[:, 3:], (1, 1), cache)
    same(output, expected[:, 3:])


def test_what_is_left_after_a_crop_lies_in_its_order(backend):
    (attention, whole), X = pair(backend, rotary=mha.Rotary(6)), tokens(9, 6)
    order = [2, 0, 1, 3]  # positions of one call go back
    x = X[:, order]
    _, cache = attention(x, x, x, positions=order, causal=True, cache=attention.cache(B, 8))
    cache, empty = cache.crop([2, 3, 4]), [-1] * 4
    assert numbers(cache)[:2] == [[[0, 1, -1, -1, *empty], [2, 0, 1, -1, *empty], [2, 0, 1, 3, *empty]], [2, 3, 4]]
    later = np.stack([X[b, n : n + 1] for b, n in enumerate((2, 3, 4))])
    output, _ = attention(later, later, later, causal=True, cache=cache)
    expected = whole(X, X, X, causal=True)
    same(output, np.stack([expected[b, n : n + 1] for b, n in enumerate((2, 3, 4))]))


def test_beams_are_reordered_and_decoded_on(backend):
    (attention, whole), X = pair(backend, num_key_value_heads=2), tokens(10)
    _, cache = decoded(attention, X, (5,), attention.cache(B, T))
    beams = cache.reorder([2, 0, 0, 1])
    x = tokens(11, 4)[[0, 1, 2, 0], :1]
    rows = np.concatenate([X[[2, 0, 0, 1], :5], x], 1)
    output, beams = attention(x, x, x, causal=True, cache=beams)
    same(output, whole(rows, rows, rows, causal=True)[:, 5:])
    assert cache.sizes == (B, T)
    assert beams.sizes == (4, T)


def test_a_frozen_cache_is_cross_attention(backend):
    options = {"num_key_value_heads": 2, "rotary": mha.Rotary(6), "key_size": 17, "value_size": 13}
    norms = {"qk_norm": mha.Norm("rms", 0.3, after=True), "value_norm": "layer"}
    attention, whole = pair(backend, **options, **norms)
    rng, queries = np.random.default_rng(12), tokens(12, 2)
    keys, values, lengths = rng.normal(size=(B, 5, 17)), rng.normal(size=(B, 5, 13)), np.array([5, 2, 0])
    hidden = np.arange(5)[None, :, None] >= lengths[:, None, None]
    poisoned = [np.where(hidden, np.nan, X) for X in (keys, values)]
    frozen = attention.cache_of(*poisoned, valid_lens=lengths)
    for offset in (0, 3):  # it is not used up
        output, weights, again = attention(queries, cache=frozen, offset=offset, return_weights=True)
        expected = whole(queries, keys, values, lengths, offset=offset, return_weights=True)
        same(output, expected[0])
        same(weights, expected[1])
        same(attention(queries, cache=frozen, offset=offset)[0], expected[0])
        assert again.frozen
        assert numbers(again) == numbers(frozen)
    assert numbers(frozen)[1] == [5, 2, 0]
    places = [4, 2, 9, -1, 0]
    frozen = attention.cache_of(keys, values, key_positions=places)
    output, _ = attention(queries, cache=frozen, positions=[3, -1])
    same(output, whole(queries, keys, values, positions=[3, -1], key_positions=places))


def test_lengths_beside_a_frozen_cache_count_its_slots(backend):
    (attention, whole), X, queries = pair(backend, rotary=mha.Rotary(6)), tokens(20), tokens(21, 2)
    frozen, lengths = attention.cache_of(X), [T, 3, 0]
    for portion in (queries, queries[:, :1]):
        same(attention(portion, cache=frozen, valid_lens=lengths)[0], whole(portion, X, X, lengths))


def test_a_cache_goes_through_a_file_and_to_another_backend(backend, tmp_path):
    (attention, other), X = pair(backend, window=(3, None)), tokens(13)
    _, cache = decoded(attention, X, (6,), attention.cache(B, 5))
    cache.save(tmp_path / "cache.safetensors")
    there = mha.Cache.load(tmp_path / "cache.safetensors", backend="numpy")
    assert numbers(there) == numbers(cache)
    assert there.backend == "numpy"
    here = cache.to("numpy").to(backend)
    for found in (there, here):
        np.testing.assert_array_equal(mha.to_numpy(found.keys), mha.to_numpy(cache.keys))
        np.testing.assert_array_equal(mha.to_numpy(found.values), mha.to_numpy(cache.values))
    expected = other(X, X, X, causal=True)[:, 6:]
    same(decoded(attention, X[:, 6:], (1, 4), here)[0], expected)
    same(decoded(other, X[:, 6:], (1, 4), there)[0], expected)
    data = (tmp_path / "cache.safetensors").read_bytes()
    (tmp_path / "cut").write_bytes(data[:-8])
    attention.save(tmp_path / "layer")
    for name, words in {"cut": "expected .* as its header says", "layer": "holds no cache"}.items():
        with pytest.raises(ValueError, match=words):
            mha.Cache.load(tmp_path / name)


def test_a_call_uses_its_cache_up(backend):
    attention, x = layer(backend), tokens(14, 1)
    cache = attention.cache(B, 5)
    _, after = attention(x, x, x, cache=cache)
    for use in (
        lambda: cache.keys,
        lambda: attention(x, x, x, cache=cache),
        lambda: cache.crop(0),
        lambda: cache.reorder([0]),
    ):
        with pytest.raises(ValueError, match="cache is used up, expected the one that the last call returned"):
            use()
    assert repr(cache) == "Cache(used up)"
    assert "size=5" in repr(after)


def test_what_does_not_fit_a_cache_is_refused_and_leaves_it(backend):
    attention, other, X, x = layer(backend), layer(backend), tokens(15, 3), tokens(16, 1)
    _, cache = decoded(attention, X, (3,), attention.cache(B, 5))
    frozen, before = attention.cache_of(X), numbers(cache)
    of_other, narrow = other.cache(B, 5), layer(backend, bias=True).cache(B, 5)
    wrong = {
        "expected an mha.Cache": lambda: attention(x, x, x, cache=3),
        "of another layer": lambda: attention(x, x, x, cache=of_other),
        "another": lambda: attention(x, x, x, cache=narrow),
        "has batch size 2, expected 3 as the cache": lambda: attention(x[:2], x[:2], x[:2], cache=cache),
        "keys has 3 rows a sample, expected 1": lambda: attention(x, X, X, cache=cache),
        "offset is given": lambda: attention(x, x, x, offset=3, cache=cache),
        "key_positions is given": lambda: attention(x, x, x, key_positions=[3], cache=cache),
        "goes back to 2 in sample 0": lambda: attention(x, x, x, positions=[2], cache=cache),
        "the cache is full: sample 0 would have 6 tokens": lambda: attention(X, X, X, cache=cache),
        r"valid_lens has shape \(3, 1\)": lambda: attention(x, x, x, valid_lens=[[1], [1], [0]], cache=cache),
        "valid_lens is given beside positions": lambda: attention(x, x, x, [1, 1, 1], positions=[5], cache=cache),
        "keys and values are None": lambda: attention(x, cache=cache),
        "keys and values are None, expected those": lambda: attention(x, x, cache=cache),
        "are None, expected those of the new tokens": lambda: attention(x, None, x, cache=cache),
        "keys and values are given beside a frozen": lambda: attention(x, x, x, cache=frozen),
        "are given beside a frozen cache, expected None": lambda: attention(x, x, cache=frozen),
        "beside a frozen cache, expected None: it has": lambda: attention(x, None, x, cache=frozen),
        "there is nothing to take back": lambda: frozen.crop(1),
        "expected 0 to 3": lambda: cache.crop(4),
        "from 0 to 2": lambda: cache.reorder([3]),
        "rows is .*expected integers": lambda: cache.reorder([0.5]),
        "size is None, expected how many tokens the cache shall hold": lambda: attention.cache(B),
        "expected 0 to 0": lambda: attention.cache(B, 4).crop(1),
        "batch_size is 0": lambda: attention.cache(0, 4),
        "cache is given, expected None: gradients": lambda: attention.gradients(x, x, x, cache=cache),
        "expected None: gradients are of one call with all tokens": lambda: attention.vjp(x, x, x, cache=cache),
        "keys is a NoneType": lambda: attention(x),
    }
    for words, call in wrong.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    assert numbers(cache) == before
    assert numbers(attention(x, x, x, cache=cache)[1])[1] == [4] * B


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_slots_of_its_own(backend, copied):
    (attention, whole), X = pair(backend), tokens(27, 4)
    _, cache = decoded(attention, X, (2,), attention.cache(B, 5))
    other, expected = copied(cache), whole(X, X, X, causal=True)
    draft = -X[:, 2:]
    attention(draft, draft, draft, causal=True, cache=other)
    same(decoded(attention, X[:, 2:], (1, 1), cache)[0], expected[:, 2:])


def test_nothing_is_left_of_a_draft_of_no_numbers(backend):
    (attention, whole), X = pair(backend), tokens(20, 5)
    _, cache = decoded(attention, X[:, :3], (3,), attention.cache(B, 5))
    draft, x = np.full((B, 2, D), np.nan), X[:, 3:]
    _, cache = attention(draft, draft, draft, causal=True, cache=cache)
    output, cache = attention(x, x, x, valid_lens=[2, 1, 2], causal=True, cache=cache.crop(3))
    expected = whole(X, X, X, causal=True)
    same(output[::2], expected[::2, 3:])
    same(output[1, :1], expected[1, 3:4])  # whose last slot was the draft's


def test_a_crop_that_a_ring_has_lost_is_refused(backend):
    (attention, whole), X = pair(backend, window=(3, None)), tokens(17)
    _, cache = decoded(attention, X, (6,), attention.cache(B, 5))  # position 0 is lost
    with pytest.raises(ValueError, match="which has lost what is at 0 and seen from there"):
        cache.crop(3)
    same(decoded(attention, X[:, 4:], (1, 1), cache.crop(4))[0], whole(X, X, X, causal=True)[:, 4:6])


@pytest.mark.backends("torch", "mxnet", "mlx")  # the others take arrays of NumPy
def test_the_layer_itself_refuses_the_cache_of_another_backend(backend):
    attention, X = layer(backend), tokens(23, 1)
    own = mha.tensor(X, backend=backend)
    cache = attention.cache(B, 4).to("numpy")
    with pytest.raises(TypeError, match=r"cache is of numpy, expected one of the layer's backend: call cache\.to"):
        attention.layer(own, own, own, *Call(cache=cache)[GIVEN])


def test_an_offset_beside_positions_is_refused_beside_a_frozen_cache(backend):
    attention, X = layer(backend), tokens(19, 3)
    frozen = attention.cache_of(X)
    with pytest.raises(ValueError, match=r"offset is 2 .* beside positions, expected one of the two"):
        attention(X, cache=frozen, positions=[0, 1, 2], offset=2)
