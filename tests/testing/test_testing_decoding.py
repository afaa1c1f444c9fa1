"""`mha.testing.assert_parity` with a state: right decoders pass; wrong ones fail, at the token that is wrong."""

import re

import adapters
import decoders
import failures
import numpy as np
import pytest
from mha.testing.decoding import decodings

import mha

failure_of = failures.of(mha.testing.assert_parity)

CASES = ["decoding", "decoding, groups", "decoding, window"]
ALL = [name + ragged for name in CASES for ragged in ("", ", ragged")]


def from_slots(kind, size=12, positions=True):
    """An implementation of a decoder that goes from slots to slots; positions: whether it is told them."""

    def run(x, attention, state, lengths=None):
        cache = attention.cache(len(x), size) if state is None else state
        one = kind(attention, cache, x, lengths)
        output, *slots = one.run().values()
        kept = [X.astype(x.dtype) if X.dtype.kind == "f" else X for X in slots]
        return output, mha.Cache(cache.config, (*kept, cache.lengths + np.array(one.lengths, "int32"), cache.lost))

    def told(x, attention, state=None, valid_lens=None):
        return run(x, attention, state, None if valid_lens is None else valid_lens.tolist())

    def untold(x, attention, state=None):
        return run(x, attention, state)

    return told if positions else untold


class OneTooFar(decoders.Decoder):
    """A decoder whose tokens after the prompt are one position too far."""

    def position(self, b, i):
        return self.next(b) + i + (self.counts[b] > 0)


class WideWindow(decoders.Decoder):
    def sees(self, b, i, token):
        place = self.position(b, i)
        return 0 <= token.place <= place and token.place >= place - self.config.window[0] - 1


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
    outcome = mha.testing.assert_parity(from_slots(decoders.Decoder), "numpy")
    assert list(outcome.reports) == [f"{dtype}, {name}" for name in ALL for dtype in ("float64", "float32")]
    assert all(outcome.reports.values())
    assert len(mha.testing.assert_parity(from_slots(decoders.Decoder), "numpy", cases=ALL[3]).reports) == 4


@pytest.mark.parametrize(
    ("kind", "case", "where", "why"),
    [
        (OneTooFar, CASES[1], "token 5 of sample 0 differs first, in call 1 after the prompt",
         "new tokens are one position off"),
        (WideWindow, CASES[2], "tokens: 6, then 1, 1, 1, 3, 1; token 4 of sample 0 differs first, in the prompt",
         "the window is one wider to the left"),
    ],
)  # fmt: skip
def test_a_failure_says_at_which_token(kind, case, where, why):
    text = failure_of(from_slots(kind), "numpy", dtypes="float64", cases=case)
    assert where in text
    assert f"this case alone: cases='{case}', dtypes='float64'" in text
    assert f"why: {why}" in text.replace("one of these, which all fit what was given\n", "")


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

    assert "why: unknown" in failure_of(from_slots(Louder), "numpy", dtypes="float64", cases=ALL[0])


def test_what_a_decoder_does_not_take_is_left_out():
    step = from_slots(decoders.Decoder, positions=False)
    outcome = mha.testing.assert_parity(step, "numpy", dtypes="float64")
    assert list(outcome.reports) == [f"float64, {name}" for name in CASES]
    assert set(outcome.left_out.values()) == {"it takes neither valid_lens nor positions"}
    text = failure_of(step, "numpy", cases="decoding, ragged")
    assert "nothing was compared, every case is left out" in text


def test_a_layer_of_ones_own_with_a_prompt_longer_than_its_window():
    options = {"num_hiddens": 24, "num_heads": 4, "window": (29, 0)}
    sizes = []

    def step(x, attention, state=None, valid_lens=None):
        sizes.append(x.shape)
        return from_slots(decoders.Decoder, 39)(x, attention, state, valid_lens)

    outcome = mha.testing.assert_parity(step, "numpy", attention=options, dtypes="float64")
    assert list(outcome.reports) == ["float64, decoding", "float64, decoding, ragged"]
    assert sizes[:6] == [(3, n, 24) for n in (32, 1, 1, 1, 3, 1)]
    text = failure_of(from_slots(WideWindow, 39), "numpy", attention=options, dtypes="float64")
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
