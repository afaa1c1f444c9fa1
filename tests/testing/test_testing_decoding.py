"""`mha.testing.assert_parity` with a state: right decoders pass; wrong ones fail, at the token that is wrong."""

import re

import adapters
import decoders
import numpy as np
import pytest
from mha.testing.decoding import decodings

import mha

CASES = ["decoding", "decoding, groups", "decoding, window"]
ALL = [name + ragged for name in CASES for ragged in ("", ", ragged")]


def turn(X, places, rotary):
    """Turn the first components of heads (B, T, any, d), in halves, by places (B, T)."""
    n = rotary.dim // 2
    angles = places[..., None, None] * np.float64(rotary.base) ** (-np.arange(n) / n)  # (B, T, 1, n)
    a, b = X[..., :n], X[..., n : 2 * n]
    turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    return np.concatenate([*turned, X[..., 2 * n :]], -1).astype(X.dtype)


def decoder(mistake=""):
    """A decoder in NumPy as somebody may write it: keys and values grow, and each has its position."""

    def step(x, attention, state=None, positions=None):
        config, weights, (B, n, _) = attention.config, attention.weights, x.shape

        def heads(name, count):
            Y = x @ weights[f"W_{name}.kernel"] + weights.get(f"W_{name}.bias", 0)
            return Y.reshape(B, n, count, -1)

        H, G = config.num_heads, config.num_key_value_heads
        q, k, v = heads("q", H), heads("k", G), heads("v", G)
        first = state is None
        if mistake == "positions off by one" and not first:
            positions = np.where(positions < 0, -1, positions + 1)
        if config.rotary:
            q, k = turn(q, positions, config.rotary), turn(k, positions, config.rotary)
        kept = [] if first else [state]
        places = positions.copy()
        if mistake == "padding is cached":
            places = np.where(places < 0, np.arange(n), places)
        k, v, at = (np.concatenate([*(one[i] for one in kept), new], 1) for i, new in enumerate((k, v, places)))
        seen = (at[:, None] >= 0) & (at[:, None] <= positions[..., None])  # (B, n, T)
        if config.window:
            seen = seen & (at[:, None] >= positions[..., None] - config.window[0] - (mistake == "a wide window"))
        k, v = (np.repeat(X, H // G, 2) for X in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[3]).astype(x.dtype)
        shares = np.exp(np.where(seen[:, None], scores, -np.inf))
        with np.errstate(invalid="ignore"):
            shares = (shares / shares.sum(3, keepdims=True)).astype(x.dtype)
        pooled = np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(B, n, -1)
        k, v = k[:, :, :: H // G], v[:, :, :: H // G]
        return pooled @ weights["W_o.kernel"] + weights.get("W_o.bias", 0), (k, v, at)

    return step


def failure_of(*arguments, **options):
    with pytest.raises(AssertionError) as failure:
        mha.testing.assert_parity(*arguments, **options)
    return str(failure.value)


@pytest.mark.parametrize("cases", [ALL[:2], pytest.param(ALL, marks=pytest.mark.long(*adapters.COMPILED))], ids=len)
def test_a_cache_of_ours_is_a_state(backend, cases):
    calls = []

    def step(queries, keys, values, attention, state=None, valid_lens=None, causal=False):
        calls.append((None if valid_lens is None else mha.to_numpy(valid_lens).tolist(), queries.shape[1], causal))
        cache = attention.cache(3, 12) if state is None else state
        return attention(queries, keys, values, valid_lens, causal=True, cache=cache)

    outcome = mha.testing.assert_parity(step, backend, dtypes="float64", cases=cases)
    assert list(outcome.reports) == [f"float64, {name}" for name in cases]
    assert outcome.left_out == {}
    assert calls[:6] == [(None, n, True) for n in (5, 1, 1, 1, 3, 1)]
    assert calls[6:12] == [([5, 2, 4], 5, True), *((None, n, True) for n in (1, 1, 1, 3, 1))]


def test_a_decoder_of_somebody_passes_in_each_dtype():
    outcome = mha.testing.assert_parity(decoder(), "numpy")
    assert list(outcome.reports) == [f"{dtype}, {name}" for name in ALL for dtype in ("float64", "float32")]
    assert all(outcome.reports.values())
    assert len(mha.testing.assert_parity(decoder(), "numpy", cases=ALL[3]).reports) == 4


@pytest.mark.parametrize(
    ("mistake", "case", "where", "why"),
    [
        ("positions off by one", CASES[1], "token 5 of sample 0 differs first, in call 1 after the prompt",
         "new tokens are one position off"),
        ("a wide window", CASES[2], "tokens: 6, then 1, 1, 1, 3, 1; token 4 of sample 0 differs first, in the prompt",
         "the window is one wider to the left"),
    ],
)  # fmt: skip
def test_a_failure_says_at_which_token(mistake, case, where, why):
    text = failure_of(decoder(mistake), "numpy", dtypes="float64", cases=case)
    assert where in text
    assert f"this case alone: cases='{case}', dtypes='float64'" in text
    assert f"why: {why}" in text.replace("one of these, which all fit what was given\n", "")


def from_slots(kind):
    """An implementation of a decoder that goes from slots to slots."""

    def step(x, attention, state=None, valid_lens=None):
        cache = attention.cache(len(x), 12) if state is None else state
        one = kind(attention, cache, x, None if valid_lens is None else valid_lens.tolist())
        output, *slots = one.run().values()
        lengths = cache.lengths + np.array(one.lengths, "int32")
        return output, mha.Cache(cache.config, (*slots, lengths, cache.lost))

    return step


@pytest.mark.parametrize(
    ("kind", "case", "call", "why"),
    [
        (decoders.TurnedAgainForGood, ALL[3], 1, "keys in the slots turn again"),
        (decoders.SlotTooFarUnseen, ALL[0], 0, "tokens are written to a slot beside theirs"),
    ],
)
def test_a_mistake_in_every_call_is_named(kind, case, call, why):
    text = failure_of(from_slots(kind), "numpy", dtypes="float64", cases=case)
    assert f"differs first, in {f'call {call} after the prompt' if call else 'the prompt'}" in text
    assert text.partition("why: ")[2].removeprefix("one of these, which all fit what was given\n").startswith(why), text


def test_what_is_no_known_mistake_is_unknown():
    class Louder(decoders.Decoder):
        def kept_value(self, b, i):
            return 1.1 * self.value(b, i)

    mha.testing.assert_parity(from_slots(decoders.Decoder), "numpy", dtypes="float64")
    assert "why: unknown" in failure_of(from_slots(Louder), "numpy", dtypes="float64", cases=ALL[0])


def test_what_a_decoder_does_not_take_is_left_out():
    def step(x, attention, state=None):
        return decoder()(x, attention, state, self_counted(x, state))

    def self_counted(x, state):
        first = 0 if state is None else state[2].shape[1]
        return np.broadcast_to(first + np.arange(x.shape[1]), x.shape[:2])

    outcome = mha.testing.assert_parity(step, "numpy", dtypes="float64")
    assert list(outcome.reports) == [f"float64, {name}" for name in CASES]
    assert set(outcome.left_out.values()) == {"it takes neither valid_lens nor positions"}
    text = failure_of(step, "numpy", cases="decoding, ragged")
    assert "nothing was compared, every case is left out" in text


def test_a_layer_of_ones_own_with_a_prompt_longer_than_its_window():
    options = {"num_hiddens": 24, "num_heads": 4, "window": (29, 0)}
    sizes = []

    def step(x, attention, state=None, positions=None):
        sizes.append(x.shape)
        return decoder()(x, attention, state, positions)

    outcome = mha.testing.assert_parity(step, "numpy", attention=options, dtypes="float64")
    assert list(outcome.reports) == ["float64, decoding", "float64, decoding, ragged"]
    assert sizes[:6] == [(3, n, 24) for n in (32, 1, 1, 1, 3, 1)]
    text = failure_of(decoder("a wide window"), "numpy", attention=options, dtypes="float64")
    assert "token 30 of sample 0 differs first, in the prompt" in text
    assert "the window is one wider to the left" in text
    attention = mha.MultiHeadAttention(**options, dtype="float64", seed=1, backend="numpy")
    assert list(mha.testing.assert_parity(step, attention=attention).reports) == list(outcome.reports)
    longest = (cases[0].num_keys for cases in (decodings(options | {"window": (left, 0)}) for left in (1300, 1400)))
    assert list(longest) == [1303 + 7, 5 + 7]  # as long a prompt as memory allows


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda x: x, r"TypeError: it returned .*, expected the pair \(output, state\)"),
        (lambda x: (x, x, x), r"expected the pair \(output, state\)"),
        (lambda x: (x[:, :1], 0), r"ValueError: output has shape \(3, 1, 30\), expected \(3, 5, 30\)"),
    ],
)
def test_what_is_no_output_and_state_is_refused(result, words):
    text = failure_of(lambda x, attention, state=None: result(x), "numpy", dtypes="float64", cases="decoding")
    assert re.search(words, text)
