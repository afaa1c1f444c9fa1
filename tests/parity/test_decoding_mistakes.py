"""Known mistakes in decoding, made in the lesson of each backend, are named first; right decoders are not blamed."""

import adapters
import decoders
import make_mistakes
import numpy as np
import planted_in_decodes
import pytest
from planted_in_decodes import PLANTED

import mha
from mha import parity
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.diagnosis.mistakes.catalogue import CACHED_CATALOGUE
from mha.parity.diagnosis.mistakes.mistake import forms_of
from mha.parity.diagnosis.mistakes.of_decoding import OF_DECODING
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem

B, H, G, D = 3, 6, 2, 24
TURNED = {"num_key_value_heads": G, "rotary": mha.Rotary(4), "bias": True}
RING = {"window": (3, None), "rotary": mha.Rotary(4)}
EVEN, RAGGED = None, [4, 2, 3]
OUTPUT, ALL = ["output"], ["output", "cache.keys", "cache.values", "cache.positions"]
COMPILED = pytest.mark.long(*adapters.COMPILED)  # which compile each


def tokens(count, seed):
    return np.random.default_rng(seed).normal(size=(B, count, D))


def begun(options, lengths, size, prompt=4):
    """A layer, and its cache after a prompt."""
    attention = mha.MultiHeadAttention(D, H, dtype="float64", seed=3, backend="numpy", **options)
    X = tokens(prompt, 1)
    _, cache = attention(X, X, X, lengths, causal=True, cache=attention.cache(B, size))
    return attention, cache


# Mistakes, none of which is made by code of `mha.parity`


def test_every_form_of_every_mistake_is_planted():
    known = [(mistake.name, how) for mistake in OF_DECODING for how in mistake.forms]
    planted = [(planted.name, planted.how) for planted in PLANTED]
    assert planted[: len(known)] == known  # and behind them some that any call may have


@COMPILED
def test_a_lesson_is_itself_where_nothing_is_planted(backend):
    assert planted_in_decodes.unlike(backend) is None


LAST = list({planted.name: planted for planted in PLANTED}.values())  # the last form of each
OTHERS = [planted for planted in PLANTED if planted not in LAST]
NUMPY = pytest.mark.backends("numpy"), pytest.mark.long("numpy")
EACH = [*(pytest.param(one, marks=COMPILED) for one in LAST), *(pytest.param(one, marks=NUMPY) for one in OTHERS)]

HIDDEN = {  # what is kept is wrong, in this array, and no output shows it yet
    ("keys are kept before they turn", ""): "cache.keys",
    ("keys or values are kept before their projection", "values"): "cache.values",
    ("keys or values are kept before their projection", "keys"): "cache.keys",
    ("tokens are written to a slot beside theirs", "one too far"): "cache.keys",
    **{("a crop leaves positions", f"of {count} behind the newest"): "cache.positions" for count in (1, 2, 3, 4)},
}


@pytest.mark.parametrize("planted", EACH, ids=lambda planted: f"{planted.name} {planted.how}")
def test_a_mistake_is_noticed_and_named_first(backend, planted):
    answer = make_mistakes.asked(planted, backend)
    assert answer.whole.split()[0] == "1", answer
    noticed = HIDDEN.get((planted.name, planted.how), "output")
    assert answer.noticed == f"`{noticed}`"
    assert answer.output.split()[0] == ("1" if noticed == "output" else "the"), answer  # the same
    if noticed != "output":
        theirs = planted_in_decodes.decoded(backend, planted.decode, planted.functions, planted.given)
        assert planted.decode.compared({noticed: theirs[noticed]}).diagnosis.mistakes == (planted.name,)


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


# Right ones, and what is unknown


@pytest.mark.parametrize("options", [{}, TURNED, RING], ids=["plain", "turned", "ring"])
def test_a_right_decoder_is_not_blamed(backend, options):
    attention, cache = begun(options, RAGGED, 11)
    own, x = cache.to(backend), tokens(3, 2)
    other = attention.to(backend)
    output, left = other(x, x, x, [3, 1, 2], causal=True, cache=own)
    theirs = dict(zip(ALL, (output, left.keys, left.values, left.positions), strict=True))
    by_hand = decoders.Decoder(attention, cache, x, [3, 1, 2]).run()
    for found in (theirs, by_hand):
        report = parity.compare(attention, found, x, x, x, [3, 1, 2], causal=True, cache=cache)
        assert report, str(report)
        assert report.diagnosis.mistakes == ()


@pytest.mark.parametrize(
    ("name", "given"), [pytest.param("W_k.kernel", ALL, marks=pytest.mark.long("numpy")), ("W_v.kernel", OUTPUT)]
)
def test_what_is_no_known_mistake_gets_no_name(name, given):
    attention, cache = begun(TURNED, RAGGED, 11)
    x, random = tokens(2, 2), np.random.default_rng(7)
    other = mha.MultiHeadAttention(**vars(attention.config), backend="numpy")
    noise = 1 + 0.1 * random.normal(size=attention.weights[name].shape)
    other.weights = attention.weights | {name: attention.weights[name] * noise}
    theirs = decoders.Decoder(other, cache, x).run()
    assert (
        parity.diagnose(attention, {one: theirs[one] for one in given}, x, x, x, causal=True, cache=cache).mistakes
        == ()
    )


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
