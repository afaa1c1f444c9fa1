"""Known mistakes in decoding, each made in a decoder of its own, are named first; right decoders are not blamed."""

import decoders
import numpy as np
import pytest

import mha
from mha import parity
from mha.parity.diagnosis.mistakes.catalogue import CACHED_CATALOGUE
from mha.parity.diagnosis.mistakes.mistake import forms_of
from mha.parity.diagnosis.mistakes.of_decoding import OF_DECODING
from mha.parity.diagnosis.mistakes.with_mistakes import Bench
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem

B, H, G, D = 3, 6, 2, 24
TURNED = {"num_key_value_heads": G, "rotary": mha.Rotary(4), "bias": True}
RING = {"window": (3, None), "rotary": mha.Rotary(4)}
EVEN, RAGGED = None, [4, 2, 3]
ALL = ["output", "cache.keys", "cache.values", "cache.positions"]


def tokens(count, seed):
    return np.random.default_rng(seed).normal(size=(B, count, D))


def begun(options, lengths, size, prompt=4):
    """A layer, and its cache after a prompt."""
    attention = mha.MultiHeadAttention(D, H, dtype="float64", seed=3, backend="numpy", **options)
    X = tokens(prompt, 1)
    _, cache = attention(X, X, X, lengths, causal=True, cache=attention.cache(B, size))
    return attention, cache


def diagnosed(decoder, options, lengths, size, count=1, given=ALL, prompt=4):
    """The diagnosis of a decoder's call by some of its arrays."""
    attention, cache = begun(options, lengths, size, prompt)
    x = tokens(count, 2)
    theirs = decoder(attention, cache, x).run()
    return parity.diagnose(attention, {name: theirs[name] for name in given}, x, x, x, causal=True, cache=cache)


OUTPUT, KEPT, PLACES = ALL[:1], ALL[1:3], ALL[3:]
NAMED = [
    (decoders.OneTooFar, "new tokens are one position off", TURNED, RAGGED, 11, [ALL, OUTPUT, PLACES]),
    (decoders.AtTheNewest, "new tokens are one position off", TURNED, EVEN, 11, [ALL, OUTPUT, PLACES]),
    (decoders.Padded, "positions are counted from the padded length", TURNED, RAGGED, 11, [ALL, OUTPUT, PLACES]),
    (decoders.PaddedSlots, "positions are counted from the padded length", TURNED, RAGGED, 11, [ALL, OUTPUT, PLACES]),
    (decoders.OfFirst, "all samples share a position", TURNED, [3, 4, 2], 11, [ALL, OUTPUT, PLACES]),
    (decoders.OfShortest, "all samples share a position", TURNED, [3, 4, 2], 11, [ALL, OUTPUT, PLACES]),
    (decoders.KeysBySlot, "tokens turn by their slots", RING, EVEN, None, [ALL, OUTPUT, KEPT]),
    (decoders.AllBySlot, "tokens turn by their slots", RING, EVEN, None, [ALL, OUTPUT]),
    (decoders.TurnedAgain, "keys in the slots turn again", TURNED, RAGGED, 11, [ALL, OUTPUT]),
    (decoders.MovedOn, "keys in the slots turn again", RING, EVEN, None, [ALL, OUTPUT]),
    (decoders.TurnedAgainForGood, "keys in the slots turn again", TURNED, RAGGED, 11, [ALL, OUTPUT, KEPT]),
    (decoders.Stretched, "the rotation is stretched in the middle", TURNED, RAGGED, 11, [ALL, OUTPUT, KEPT]),
    (decoders.StretchedBase, "the rotation is stretched in the middle", RING | {"rotary": mha.Rotary(4)}, EVEN, 11,
     [ALL, OUTPUT]),
    (decoders.KeptUnturned, "keys are kept before they turn", TURNED, RAGGED, 11, [ALL, KEPT]),
    (decoders.SeenUnturned, "keys are kept before they turn", TURNED, RAGGED, 11, [ALL]),
    (decoders.RawValues, "keys or values are kept before their projection", {}, RAGGED, 11, [ALL, KEPT]),
    (decoders.RawValuesSeen, "keys or values are kept before their projection", {}, RAGGED, 11, [ALL, OUTPUT, KEPT]),
    (decoders.SlotTooFar, "tokens are written to a slot beside theirs", TURNED, RAGGED, 11, [ALL, KEPT, PLACES]),
    (decoders.OverNewest, "tokens are written to a slot beside theirs", TURNED, RAGGED, 11, [ALL, OUTPUT, PLACES]),
    (decoders.SlotTooFarUnseen, "tokens are written to a slot beside theirs", TURNED, EVEN, 11, [ALL, OUTPUT]),
    (decoders.BySlots, "order goes by slots", RING, [6, 5, 7], None, [ALL, OUTPUT]),
    (decoders.UpperLeft, "causal order is aligned to the upper left", TURNED, EVEN, 11, [ALL, OUTPUT]),
    (decoders.EmptySeen, "empty slots are seen", TURNED, RAGGED, 11, [ALL, OUTPUT]),
    (decoders.OfOthers, "beams are reordered for keys alone", TURNED, EVEN, 11, [ALL, OUTPUT, KEPT]),
    (decoders.KeysOfOthers, "beams are reordered for values alone", TURNED, EVEN, 11, [ALL, OUTPUT, KEPT]),
    (decoders.Stale, "the cache is that of another sample", TURNED, RAGGED, 11, [ALL, OUTPUT, KEPT]),
    (decoders.Wide, "the window is one wider to the left", RING | {"window": (2, None)}, EVEN, 11, [ALL, OUTPUT]),
    (decoders.Narrow, "the window is one narrower to the left", RING | {"window": (2, None)}, EVEN, 11, [ALL, OUTPUT]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("decoder", "name", "options", "lengths", "size", "what"), NAMED, ids=[one[0].__name__ for one in NAMED]
)
def test_a_mistake_is_named_first(decoder, name, options, lengths, size, what):
    prompt = 4 if lengths is None else max(lengths)
    prompt = 6 if size is None and lengths is None else prompt
    for given in what[:2]:
        found = diagnosed(decoder, options, lengths, size, given=given, prompt=prompt)
        assert found.mistakes == (name,), (given, str(found))


@pytest.mark.parametrize(
    ("decoder", "name"),
    [(decoders.OfOthers, "beams are reordered for keys alone"),
     (decoders.KeysOfOthers, "beams are reordered for values alone"),
     (decoders.Stale, "the cache is that of another sample")],
)  # fmt: skip
def test_slots_of_the_first_sample_are_named(decoder, name):
    class Reordered(decoder):
        pass

    Reordered.rows = [0, 0, 0]
    assert diagnosed(Reordered, TURNED, EVEN, 11).mistakes == (name,)


@pytest.mark.parametrize(("decoder", "factor"), [(decoders.Stretched, 2), (decoders.StretchedBase, 8)])
def test_a_rotation_that_is_stretched_is_named(decoder, factor):
    class Stretched(decoder):
        pass

    Stretched.factor = factor
    found = diagnosed(Stretched, {"rotary": mha.Rotary(4)}, EVEN, 11)
    assert found.mistakes == ("the rotation is stretched in the middle",), str(found)
    assert f"by {factor}" in found.explanations[0].how[0]


@pytest.mark.parametrize(("turns", "stays"), [(1, False), (-1, True)])
def test_keys_that_are_moved_on_are_named(turns, stays):
    class Moved(decoders.TurnedAgain):
        def again(self, place):
            return turns

        def kept(self):
            return [[self.turn(self.keys[b, :, s], turns) for s in range(self.S)] for b in range(self.B)]

        def run(self):
            found = super().run()
            if stays:
                moved, old = np.array(self.kept()).swapaxes(1, 2), np.arange(self.S)  # (B, G, S, d)
                for b in range(self.B):
                    kept = old != self.slot(b, 0)
                    found["cache.keys"][b, :, kept] = moved[b, :, kept]
            return found

    found = diagnosed(Moved, RING, EVEN, None, prompt=6)
    assert found.mistakes == ("keys in the slots turn again",), str(found)
    assert ("stay" in found.explanations[0].how[0]) == stays


def test_heads_of_keys_in_another_order_are_named():
    found = diagnosed(decoders.Tiled, TURNED, EVEN, 11)
    assert found.mistakes == ("heads of keys are tiled, not repeated",), str(found)


def test_a_portion_that_is_written_first_is_named():
    found = diagnosed(decoders.WrittenFirst, RING, EVEN, None, count=3, prompt=6)
    assert found.mistakes == ("a portion overwrites what its first queries see",), found


@pytest.mark.parametrize(("lengths", "count"), [(EVEN, 1), (RAGGED, 2)], ids=["even", "ragged"])
def test_a_window_that_is_ignored_is_told_of_no_ring(lengths, count):
    attention, cache = begun({"window": (2, None)}, lengths, 11)
    without, other = begun({}, lengths, 11)
    x = tokens(count, 2)
    theirs, _ = without(x, x, x, causal=True, cache=other)
    found = parity.diagnose(attention, {"output": theirs}, x, x, x, causal=True, cache=cache)
    assert ("the window is ignored",) in [one.mistakes for one in found.explanations], str(found)
    assert not {"order goes by slots", "a portion overwrites what its first queries see"}.intersection(
        name for one in found.explanations for name in one.mistakes
    ), str(found)


def test_padding_that_is_kept_is_named():
    attention = mha.MultiHeadAttention(D, H, dtype="float64", seed=3, backend="numpy", **TURNED)
    x, cache = tokens(4, 1), attention.cache(B, 11)
    theirs = decoders.PaddingKept(attention, cache, x, RAGGED).run()
    for given in (ALL, PLACES):  # what is in slots that are empty here does not count
        chosen = {name: theirs[name] for name in given}
        found = parity.diagnose(attention, chosen, x, x, x, RAGGED, causal=True, cache=cache)
        assert found.mistakes == ("padding is taken for tokens",), (given, str(found))


def test_positions_that_a_crop_left_are_named():
    attention, cache = begun(TURNED, EVEN, 11)
    X = tokens(3, 5)
    _, cache = attention(X, X, X, causal=True, cache=cache)
    cache, x = cache.crop(4), tokens(1, 2)
    theirs = decoders.Uncropped(attention, cache, x).run()
    for given in (ALL, PLACES):
        chosen = {name: theirs[name] for name in given}
        found = parity.diagnose(attention, chosen, x, x, x, causal=True, cache=cache)
        assert found.mistakes == ("a crop leaves positions",), (given, str(found))


def test_a_bias_by_slots_is_named():
    slopes = 0.7 ** np.arange(1, H + 1)  # of a bias that is not linear to the last bit
    attention, cache = begun({"window": (3, None)}, EVEN, None, 6)
    x = tokens(1, 2)
    bias = (-slopes[:, None, None] * (6 - np.array([4, 5, 6, 3]))).astype(float)  # of the slots after the call
    right, wrong = (one(attention, cache, x, slopes=slopes).run() for one in (decoders.Decoder, decoders.BiasBySlot))
    assert parity.compare(attention, right, x, x, x, causal=True, score_bias=bias[None], cache=cache)
    for given in (ALL, OUTPUT):
        theirs = {name: wrong[name] for name in given}
        found = parity.diagnose(attention, theirs, x, x, x, causal=True, score_bias=bias[None], cache=cache)
        assert found.mistakes == ("the bias goes by slots",), found


@pytest.mark.parametrize("options", [{}, TURNED, RING], ids=["plain", "turned", "ring"])
def test_a_right_decoder_is_not_blamed(backend, options):
    attention, cache = begun(options, RAGGED, 11)
    own, x = cache.to(backend), tokens(3, 2)
    other = attention.to(backend)
    output, left = other(x, x, x, [3, 1, 2], causal=True, cache=own)
    theirs = {"output": output, "cache.keys": left.keys, "cache.values": left.values, "cache.positions": left.positions}
    by_hand = decoders.Decoder(attention, cache, x, [3, 1, 2]).run()
    for found in (theirs, by_hand):
        report = parity.compare(attention, found, x, x, x, [3, 1, 2], causal=True, cache=cache)
        assert report, str(report)
        assert report.diagnosis.mistakes == ()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("W_k.kernel", ALL),
        pytest.param("W_v.kernel", OUTPUT, marks=pytest.mark.long("numpy")),
    ],
)
def test_what_is_no_known_mistake_gets_no_name(name, given):
    attention, cache = begun(TURNED, RAGGED, 11)
    x, random = tokens(2, 2), np.random.default_rng(7)
    other = mha.MultiHeadAttention(**vars(attention.config), backend="numpy")
    noise = 1 + 0.1 * random.normal(size=attention.weights[name].shape)
    other.weights = attention.weights | {name: attention.weights[name] * noise}
    theirs = decoders.Decoder(other, cache, x).run()
    chosen = {one: theirs[one] for one in given}
    assert parity.diagnose(attention, chosen, x, x, x, causal=True, cache=cache).mistakes == ()


CALLS = {
    "ragged": (TURNED, RAGGED, 11, 3, {"valid_lens": [3, 1, 2]}),
    "a ring": (RING, EVEN, None, 3, {}),
    "all": (
        RING | {"num_key_value_heads": G, "qk_norm": "rms", "softcap": 2.0}, EVEN, None, 1,
        {"mask": np.ones((1, 4), bool), "score_bias": np.zeros((B, H, 1, 4)), "head_gates": np.ones((B, H))},
    ),
    "additive": ({"pooling": "additive"}, RAGGED, 11, 2, {}),
    "frozen": (TURNED, EVEN, 11, 2, {}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_every_form_can_be_made_in_a_cached_call(call):
    options, lengths, size, count, more = CALLS[call]
    attention, cache = begun(options, lengths, size, 6 if size is None else 4)
    x = tokens(count, 2)
    own = (x, x)
    if call == "frozen":
        cache, own = attention.cache_of(tokens(5, 3), valid_lens=[5, 1, 3]), (None, None)
    asked = as_decoding(problem(attention, x, *own, {"causal": call != "frozen", "cache": cache} | more))
    made = 0
    for samples in (slice(None), [1]):
        bench = Bench(asked, "float64", samples)
        for form in bench.possible(forms_of(CACHED_CATALOGUE)):
            with np.errstate(all="ignore"):
                shapes = {name: X.shape for name in asked.names() if (X := bench.steps((form,), name)) is not None}
            assert shapes == {name: bench.steps((), name).shape for name in shapes}, form.mistake.name
            made += form.mistake in OF_DECODING
            bench.forget()
    assert (made == 0) == (call == "frozen")


def test_every_mistake_has_a_decoder():
    names = {one[1] for one in NAMED} | {
        "a portion overwrites what its first queries see", "padding is taken for tokens", "a crop leaves positions",
        "the bias goes by slots",
    }  # fmt: skip
    assert names >= {mistake.name for mistake in OF_DECODING}
