"""The caches of other libraries: a decoder of theirs and one of ours go on from each other's, on random weights.

Letters: B samples, T tokens, H heads, G heads of keys and values, D width, S slots, d width of a head.
"""

import sys
import types
from typing import get_args

import numpy as np
import peers
import pytest
from layers import random_layer
from mha.names import BackendName, CacheKind

import mha
from mha.core import dispatch
from mha.weights.caches import foreign

from .foreign import FIRST, HEADS, B, D, G, T, d, decoded, numbers, rest, same, tokens


class Kept(types.SimpleNamespace):
    """What a cache of transformers has, or a layer in it."""

    def get_seq_length(self):
        return self.tokens


def of_flax(k, v, n):
    return {"cached_key": k, "cached_value": v, "cache_index": np.array(n)}


def stacked(k, v, n):
    return {"cached_key": np.stack([v, k]), "cached_value": np.stack([k, v]), "cache_index": np.array([1, n])}


def of_model(k, v, n):
    """(B, layers, 2, S, G, d)"""
    return np.stack([np.stack(pair, 1) for pair in ((v, k), (k, v))], 1)


def in_layer(k, v, n, **more):
    return Kept(keys=k.swapaxes(1, 2), values=v.swapaxes(1, 2), tokens=n, **more)


# Keys and values (B, S, G, d) of which n slots are filled, as each library has them, and what it does not say.
FORMS = {
    "Flax": (of_flax, {}),
    "Flax, a stack of layers": (stacked, {"layer": 1}),
    "Flax, by position": (of_flax, {"positions": [*range(FIRST), *[-1] * (T - FIRST)]}),
    "transformers, as many slots as tokens": (
        lambda k, v, n: Kept(layers=[in_layer(k[:, :n], v[:, :n], n)], tokens=n),
        {"size": T},
    ),
    "transformers, more slots": (
        lambda k, v, n: Kept(layers=[in_layer(v, k, 3), in_layer(k, v, n)], tokens=n),
        {"layer": 1},
    ),
    "transformers, a layer": (in_layer, {}),
    "keras-hub": (lambda k, v, n: np.stack([k, v], 1), {"lengths": FIRST}),
    "keras-hub, a model": (of_model, {"layer": 1, "lengths": [FIRST] * B}),
    "ONNX": (lambda k, v, n: (k[:, :n].swapaxes(1, 2), v[:, :n].swapaxes(1, 2)), {"size": T}),
    "ONNX, more slots": (lambda k, v, n: [k.swapaxes(1, 2), v.swapaxes(1, 2)], {"lengths": FIRST}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_ours_goes_on_from_a_decoder_by_hand(backend, rng, form):
    attention, X = random_layer(rng, HEADS, "float64", backend), tokens(rng)
    theirs, (native, said) = decoded(attention, X), FORMS[form]
    cache = mha.Cache.from_native(native(theirs.keys, theirs.values, theirs.index), attention, **said)
    kept = [mha.to_numpy(A) for A in (cache.keys, cache.values)]
    for found, expected in zip(kept, (theirs.keys, theirs.values), strict=True):
        assert np.array_equal(found[:, :, :FIRST], expected[:, :FIRST].swapaxes(1, 2))
        assert (found[:, :, FIRST:] == 0).all()
    assert numbers(cache) == [[[*range(FIRST), *[-1] * (T - FIRST)]] * B, [FIRST] * B, [-1] * B]
    output, cache = rest(attention, cache, X)
    same(output, theirs.rest(X))
    same(mha.to_numpy(cache.keys), theirs.keys.swapaxes(1, 2))
    same(mha.to_numpy(cache.values), theirs.values.swapaxes(1, 2))


# The kinds that are driven beside their own framework's layer: the peer that has it, and the backend.
LAYERS = {"flax.linen": ("linen", "jax"), "flax.nnx": ("nnx", "jax"), "keras-hub": ("keras", "tensorflow")}
EVEN = {"num_hiddens": D, "num_heads": 3, "bias": True}  # no groups; and Keras rounds 1 / sqrt(d), but not of 4


def in_backend(kinds):
    return [pytest.param(kind, marks=pytest.mark.backends(LAYERS[kind][1])) for kind in kinds]


@pytest.mark.parametrize("kind", in_backend(LAYERS))
def test_ours_goes_on_from_the_frameworks_layer(rng, kind):
    peer, backend = LAYERS[kind]
    attention, X = random_layer(rng, EVEN, "float64", backend), tokens(rng)
    with dispatch.load(backend).context("float64"):
        theirs = peers.of(peer).Decoder(attention, B, T)
        said = {"lengths": FIRST} if kind == "keras-hub" else {}
        for t in range(FIRST):
            theirs(X[:, t : t + 1])
        cache = mha.Cache.from_native(theirs.cache, attention, **said)
        assert numbers(cache)[1] == [FIRST] * B
        for t in range(FIRST, T):
            x = X[:, t : t + 1]
            output, cache = attention(x, x, x, causal=True, cache=cache)
            same(output, theirs(x))
        end = mha.Cache.from_native(theirs.cache, attention, **said and {"lengths": T})
    assert numbers(cache) == numbers(end)
    for name in ("keys", "values"):
        same(*(mha.to_numpy(getattr(one, name)) for one in (cache, end)))


@pytest.mark.parametrize("kind", in_backend(["flax.linen", "flax.nnx"]))
@pytest.mark.parametrize("prompt", [0, FIRST])
def test_flax_goes_on_from_ours(rng, kind, prompt):
    attention, X = random_layer(rng, EVEN, "float64", "jax"), tokens(rng)
    cache = attention.cache(B, T)
    if prompt:
        x = X[:, :prompt]
        _, cache = attention(x, x, x, causal=True, cache=cache)
    places, *rest = [mha.to_numpy(A) for A in cache.arrays()[2:]]
    heads = [mha.to_numpy(A) for A in (cache.keys, cache.values)]
    poisoned = [np.where(places[:, None, :, None] >= 0, A, np.nan) for A in heads]  # in empty slots
    cache = mha.Cache(cache.config, [*poisoned, places, *rest])
    with dispatch.load("jax").context("float64"):
        theirs = peers.of(LAYERS[kind][0]).Decoder(attention, B, T)
        theirs.cache = cache.to_native(kind)
        output = np.concatenate([theirs(X[:, t : t + 1]) for t in range(prompt, T)], 1)
    same(output, attention(X, X, X, causal=True)[:, prompt:])


@pytest.mark.backends("jax")
def test_a_layer_of_nnx_itself_is_its_cache(rng):
    attention, X = random_layer(rng, EVEN, "float64", "jax"), tokens(rng)
    with dispatch.load("jax").context("float64"):
        theirs = peers.of("nnx").Decoder(attention, B, T)
        theirs(X[:, :1])
        caches = [mha.Cache.from_native(one, attention) for one in (theirs.layer, theirs.cache)]
        assert np.array_equal(*(mha.to_numpy(one.keys) for one in caches))
        assert numbers(caches[0])[1] == [1, 1]
        theirs.layer.cached_key = None
        with pytest.raises(ValueError, match="without a cache, expected one after `init_cache`"):
            mha.Cache.from_native(theirs.layer, attention)


def test_what_comes_back_is_the_same_bit_by_bit(backend, rng):
    """Through the kinds that this backend's arrays make; tests/real has those of transformers."""
    attention, X = random_layer(rng, HEADS, "float64", backend), tokens(rng)[:, :FIRST]
    _, cache = attention(X, X, X, causal=True, cache=attention.cache(B, T))
    heads = [mha.to_numpy(A).swapaxes(1, 2) for A in (cache.keys, cache.values)]
    for native, said in (of_flax(*heads, FIRST), {}), (np.stack(heads, 1), {"lengths": FIRST}):
        back = mha.Cache.from_native(native, attention, **said)
        for found, expected in zip(back.arrays(), cache.arrays(), strict=True):
            assert np.array_equal(mha.to_numpy(found), mha.to_numpy(expected))


def test_arrays_of_the_framework_are_taken(backend, rng):
    attention, X = random_layer(rng, HEADS, "float64", backend), tokens(rng)[:, :FIRST]
    _, cache = attention(X, X, X, causal=True, cache=attention.cache(B, FIRST))
    both = np.stack([mha.to_numpy(A).swapaxes(1, 2) for A in (cache.keys, cache.values)], 1)  # (B, 2, S, G, d)
    with dispatch.load(backend).context("float64"):
        for native in (cache.keys, cache.values), mha.tensor(both, backend=backend):
            found = mha.Cache.from_native(native, attention, lengths=FIRST)
            assert np.array_equal(mha.to_numpy(found.keys), mha.to_numpy(cache.keys))
            assert np.array_equal(mha.to_numpy(found.values), mha.to_numpy(cache.values))


def test_padding_and_lengths_of_each_sample_are_by_position(backend, rng):
    """Slots in which there is padding are left out: the n-th real token is in slot n, as our own cache has it."""
    attention, X = random_layer(rng, HEADS, "float64", backend), tokens(rng)[:, :5]
    k, v = rng.normal(size=(2, B, 5, G, d))
    places = np.array([[-1, -1, 0, 1, 2], [0, 1, 2, -3, 7]])
    cache = mha.Cache.from_native(of_flax(k, v, 5), attention, positions=places, size=6)
    assert numbers(cache) == [[[0, 1, 2, -1, -1, -1], [0, 1, 2, 7, -1, -1]], [3, 4], [-1, -1]]
    for found, given in ((cache.keys, k), (cache.values, v)):
        found = mha.to_numpy(found).swapaxes(1, 2)
        assert np.array_equal(found[0, :3], given[0, 2:])
        assert np.array_equal(found[1, :4], given[1, [0, 1, 2, 4]])
        assert (found[0, 3:] == 0).all()
        assert (found[1, 4:] == 0).all()
    ragged = mha.Cache.from_native(np.stack([k, v], 1), attention, lengths=[0, 4])
    assert numbers(ragged) == [[[-1] * 5, [0, 1, 2, 3, -1]], [0, 4], [-1, -1]]
    _, after = attention(X[:, :1], X[:, :1], X[:, :1], cache=cache)
    assert numbers(after)[0] == [[0, 1, 2, 3, -1, -1], [0, 1, 2, 7, 8, -1]]


@pytest.mark.parametrize("kept", [4, FIRST])  # of a window of 5: the last ones, or all
def test_a_window_that_has_moved_on_goes_on_in_a_ring(backend, rng, kept):
    attention, X = random_layer(rng, HEADS | {"window": (4, 0)}, "float64", backend), tokens(rng)
    theirs = decoded(attention, X)
    k, v = (A[:, FIRST - kept : FIRST] for A in (theirs.keys, theirs.values))
    for size in (None, 5):
        cache = mha.Cache.from_native(in_layer(k, v, FIRST, is_sliding=True), attention, size=size)
        slots = max(kept, 5) if size is None else size
        assert cache.sizes == (B, slots)
        assert numbers(cache)[1:] == [[FIRST] * B, [FIRST - min(kept, slots) - 1] * B]
        same(rest(attention, cache, X)[0], attention(X, X, X, causal=True)[:, FIRST:])


@pytest.mark.parametrize("order", ["of its slots", "any"])
def test_slots_of_a_ring_are_taken_in_any_order(backend, rng, order):
    """The oldest token is the next to go, wherever it was; sample 1 has had padding and so fewer tokens."""
    attention, X = random_layer(rng, HEADS | {"window": (4, 0)}, "float64", backend), tokens(rng)
    places = np.arange(T) - [[0], [3]]  # (B, T)
    said = {"causal": True, "positions": np.maximum(places[:, :FIRST], -1)}
    _, ours = attention(X[:, :FIRST], X[:, :FIRST], X[:, :FIRST], cache=attention.cache(B), **said)
    k, v, positions = (mha.to_numpy(A) for A in (ours.keys, ours.values, ours.positions))
    if order != "of its slots":
        columns = np.argsort(positions, 1) if order == "of time" else np.stack([rng.permutation(5) for _ in range(B)])
        positions = np.take_along_axis(positions, columns, 1)
        k, v = (np.take_along_axis(A, columns[:, None, :, None], 2) for A in (k, v))
    theirs = mha.Cache.from_native((k, v), attention, positions=positions)
    assert numbers(theirs) == numbers(ours)
    for t in range(FIRST, T):
        x, said = X[:, t : t + 1], {"causal": True, "positions": places[:, t : t + 1]}
        expected, ours = attention(x, x, x, cache=ours, **said)
        found, theirs = attention(x, x, x, cache=theirs, **said)
        assert np.array_equal(found, expected)


def test_tokens_that_begin_late_are_all_there(rng):
    """Nothing says that there were tokens before the first, where a query of the window would see them."""
    attention = random_layer(rng, HEADS | {"window": (4, 0)}, "float64", "numpy")
    k, v = rng.normal(size=(2, B, G, 3, d))
    cache = mha.Cache.from_native((k, v), attention, positions=[7, 8, 6])
    assert numbers(cache) == [[[6, 7, 8, -1, -1]] * B, [3] * B, [-1] * B]


def test_a_cache_of_others_may_be_empty(rng):
    attention = random_layer(rng, HEADS, "float64", "numpy")
    k, v = rng.normal(size=(2, B, T, G, d))
    pair = k[:, :0].swapaxes(1, 2), v[:, :0].swapaxes(1, 2)  # of no slots
    for native, said in ((of_flax(k, v, 0), {}), (np.stack([k, v], 1), {"lengths": 0}), (pair, {"size": T})):
        cache = mha.Cache.from_native(native, attention, **said)
        assert numbers(cache) == [[[-1] * T] * B, [0] * B, [-1] * B]
        assert not cache.keys.any()


def test_what_a_layer_still_sees_may_not_be_gone(rng):
    wide, narrow = (mha.MultiHeadAttention(**HEADS, window=window, dtype="float64") for window in (None, (4, 0)))
    k, v = rng.normal(size=(2, B, 3, G, d))
    for attention in (wide, narrow):
        with pytest.raises(ValueError, match="in 3 slots, without the token at 5, which the layer sees from 9"):
            mha.Cache.from_native(in_layer(k, v, 9, is_sliding=True), attention, size=3)
    with pytest.raises(ValueError, match="without the token at 0, which the layer sees from 3; expected a larger size"):
        mha.Cache.from_native((k.swapaxes(1, 2), v.swapaxes(1, 2)), wide, size=2)


def test_what_does_not_fit_is_refused(rng):
    attention = mha.MultiHeadAttention(**HEADS, dtype="float64")
    k, v = rng.normal(size=(2, B, 5, G, d))
    swapped, both = (k.swapaxes(1, 2), v.swapaxes(1, 2)), np.stack([k, v], 1)
    layers = Kept(layers=[in_layer(k, v, 5)] * 2, tokens=5)
    wrong = {
        "native is a int, expected Flax's cached_key": (3, {}),
        "native holds cached_key, and lacks cached_value, cache_index": ({"cached_key": k}, {}),
        "native holds params, cache, and lacks cached_key": ({"params": {}, "cache": of_flax(k, v, 5)}, {}),
        "native has shape .*, expected .B, 2, S, H, d.": (k, {}),
        r"cached_key has shape \(2, 2, 5, 3\), expected \(B, S, 2, 3\): 2 heads of width 3": (of_flax(*swapped, 5), {}),
        r"native\[0\] has shape \(2, 5, 2, 3\), expected \(B, 2, S, 3\)": ((k, v), {}),
        r"keys has shape .*, expected \(B, 2, S, 3\)": (in_layer(k[..., :2], v, 5), {}),
        r"cached_value has shape \(2, 4, 2, 3\), expected \(2, 5, 2, 3\)": (of_flax(k, v[:, :4], 4), {}),
        r"cached_value has shape \(1, 5, 2, 3\), expected \(2, 5, 2, 3\)": (of_flax(k, v[:1], 4), {}),
        "cached_key has dtype float32, expected float64 as the layer": (of_flax(k.astype("float32"), v, 5), {}),
        "cached_key is a list, expected an array": (of_flax(k.tolist(), v, 5), {}),
        "cache_index is 6, expected 0 to 5": (of_flax(k, v, 6), {}),
        "cache_index has shape .* float64, expected one integer": (of_flax(k, v, np.nan), {}),
        "has two caches, expected one: pass its self": (Kept(self_attention_cache=layers), {}),
        "without keys and values as layer 0, expected one with tokens": (Kept(layers=[Kept(keys=None)]), {}),
        "has 5 tokens of layer 0 as they are, expected 8, as it says": (in_layer(k, v, 8), {}),
        "layer is None, expected one from 0 to 1, as native has": (layers, {}),
        "layer is 2, expected one from 0 to 1": (layers, {"layer": 2}),
        "layer is -1, expected one from 0 to 1": (layers, {"layer": -1}),
        "layer is 0.5 .*, expected an int": (layers, {"layer": 0.5}),
        "layer is 0 .*, expected None: native is a pair": (swapped, {"layer": 0}),
        "layer is 0 .*, expected None: native is of one layer": (both, {"layer": 0, "lengths": 5}),
        "layer is 1 .*, expected None: native is of one layer": (of_flax(k, v, 5), {"layer": 1}),
        "lengths is None, expected how many slots are filled": (both, {}),
        r"lengths is 6 .*, expected an int or integers of shape \(2,\), from 0 to 5": (both, {"lengths": 6}),
        r"lengths is \[-1, 2\]": (both, {"lengths": [-1, 2]}),
        r"lengths is \[1, 2, 3\]": (both, {"lengths": [1, 2, 3]}),
        "lengths is 0.5 .*, expected integers": (both, {"lengths": 0.5}),
        "lengths is given, expected None: native says itself that 5 slots": (of_flax(k, v, 5), {"lengths": 5}),
        "lengths is given beside positions": (both, {"lengths": 5, "positions": [*range(5)]}),
        r"positions is \[0, 1\] .*, expected integers of shape \(5,\) or \(2, 5\)": (both, {"positions": [0, 1]}),
        "positions is .* up to 1073741824": (both, {"positions": [0, 1, 2, 3, 2**30 + 1]}),
        "positions is .*, expected integers": (both, {"positions": [0.5] * 5}),
        "size is 0, expected at least 1": (swapped, {"size": 0}),
        r"native has shape .*, expected \(B, 2, S, H, d\), keys and values in its second": (
            np.stack([k, v, k], 1), {"lengths": 3}),
    }  # fmt: skip
    for words, (native, said) in wrong.items():
        with pytest.raises((TypeError, ValueError), match=words):
            mha.Cache.from_native(native, attention, **said)
    with pytest.raises(TypeError, match=r"attention is .*, expected an mha\.MultiHeadAttention"):
        mha.Cache.from_native(swapped, attention.layer)


def test_what_has_no_index_for_all_is_not_made(rng):
    attention = mha.MultiHeadAttention(**HEADS, dtype="float64", window=(4, 0))
    X = tokens(rng)
    _, ragged = attention(X, X, X, [3, 5], causal=True, cache=attention.cache(B, T))
    _, wrapped = attention(X, X, X, causal=True, cache=attention.cache(B))
    _, elsewhere = attention(X, X, X, positions=np.arange(T) + 1, causal=True, cache=attention.cache(B, T))
    one, *_, other = foreign.KINDS
    wrong = {
        f"kind is 'flax', expected one of {', '.join(foreign.KINDS)}": (wrapped, "flax"),
        "cache has 3 tokens of one sample and 5 of another, .* cache.reorder chooses": (ragged, one),
        "cache has had 20 tokens in 5 slots, .* of a larger size": (wrapped, one),
        "cache has positions other than 0, 1 and so on": (elsewhere, other),
    }
    for words, (cache, kind) in wrong.items():
        with pytest.raises(ValueError, match=words):
            cache.to_native(kind)


@pytest.mark.backends("jax")
def test_positions_that_a_compiler_alone_knows_are_not_made():
    import jax

    attention = mha.MultiHeadAttention(**HEADS, backend="jax")
    with pytest.raises(ValueError, match="cache has positions that a compiler alone knows"):
        jax.jit(lambda cache: cache.to_native("flax.linen"))(attention.cache(B, T))


@pytest.mark.backends("torch")
def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    attention = mha.MultiHeadAttention(**HEADS, backend="torch")
    with pytest.raises(ModuleNotFoundError, match='StaticCache\' needs transformers: pip install "transformers>=5"'):
        attention.cache(B, T).to_native("transformers.StaticCache")


def test_a_type_checker_knows_the_kinds():
    gone = get_args(BackendName) != tuple(dispatch.FRAMEWORKS)  # a folder, whose kinds may stay
    assert [kind for kind in get_args(CacheKind) if kind in foreign.KINDS or not gone] == [*foreign.KINDS]
