"""A mistake in what hides keys is named whichever way the call says it: as lengths, a mask, a bias, positions, texts.

What an implementation gives is computed here from the formula in float64; no code of the catalogue makes a mistake.
"""

import numpy as np
import pytest

import mha
from mha import parity

B, H, G, T, D = 5, 4, 2, 7, 24
LENGTHS = np.array([4, 3, 6, 5, 7])
i, j = np.arange(T)[:, None], np.arange(T)
PADDING = (j < LENGTHS[:, None])[:, None, None]  # (B, 1, 1, K)
ORDER = (j <= i)[None, None]
BAND = ORDER & (i - j <= 2)
TEXTS = np.array(
    [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 2], [0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 2]]
)
PLACES = np.array([[list(row[:at]).count(text) for at, text in enumerate(row)] for row in TEXTS])
OWN_TEXT = (TEXTS[:, :, None] == TEXTS[:, None])[:, None]  # (B, 1, Q, K)
PLACED = np.where(PADDING[:, 0, 0], j, -1)  # (B, K)
OTHER = np.random.default_rng(6).normal(size=(1, H, T, T)).astype("float32")


def full(seen):
    return np.broadcast_to(seen, (B, H, T, T)).copy()


def biased(seen, rest=0.0):
    """The same as a bias of scores."""
    return np.where(seen, np.float32(rest), np.float32(-np.inf))


def own(texts):
    return {"segments": texts, "key_segments": texts}


ONE_TEXT = {"segments": np.zeros((B, T), int), "key_segments": np.where(PLACED < 0, -1, 0)}
AT = {"positions": PLACES, "key_positions": PLACES}
# What is seen, and the ways to say so: options of the layer, and arguments of a call.
PATTERNS = {
    "padding": (PADDING, {
        "lengths": ({}, {"valid_lens": LENGTHS}),
        "mask of keys": ({}, {"mask": PADDING[:, 0]}),
        "mask of pairs": ({}, {"mask": full(PADDING)}),
        "bias": ({}, {"score_bias": biased(PADDING)}),
        "bias of pairs": ({}, {"score_bias": biased(full(PADDING))}),
        "bias with numbers": ({}, {"score_bias": biased(PADDING, OTHER)}),
        "positions": ({}, {"key_positions": PLACED}),
        "segments": ({}, ONE_TEXT),
    }),
    "order": (ORDER, {
        "causal": ({}, {"causal": True}),
        "mask": ({}, {"mask": ORDER[0, 0]}),
        "bias": ({}, {"score_bias": biased(ORDER)}),
        "bias with numbers": ({}, {"score_bias": biased(ORDER, OTHER)}),
        "lengths": ({}, {"valid_lens": np.tile(np.arange(1, T + 1), (B, 1))}),
        "window": ({"window": (None, 0)}, {}),
        "positions": ({}, {"causal": True, "positions": j + 3, "key_positions": j + 3}),
    }),
    "padding and order": (PADDING & ORDER, {
        "lengths, causal": ({}, {"valid_lens": LENGTHS, "causal": True}),
        "mask, causal": ({}, {"mask": PADDING[:, 0], "causal": True}),
        "mask": ({}, {"mask": (PADDING & ORDER)[:, 0]}),
        "bias": ({}, {"score_bias": biased(PADDING & ORDER)}),
        "bias with numbers": ({}, {"score_bias": biased(PADDING & ORDER, OTHER)}),
        "lengths": ({}, {"valid_lens": np.minimum(np.arange(1, T + 1), LENGTHS[:, None])}),
        "lengths, bias": ({}, {"valid_lens": LENGTHS, "score_bias": biased(ORDER)}),
        "mask, bias": ({}, {"mask": PADDING[:, 0], "score_bias": biased(ORDER)}),
        "lengths, mask": ({}, {"valid_lens": LENGTHS, "mask": ORDER[0, 0]}),
        "bias, causal": ({}, {"score_bias": biased(PADDING), "causal": True}),
        "mask that has the order, causal": ({}, {"mask": (PADDING & ORDER)[:, 0], "causal": True}),
        "positions, causal": ({}, {"key_positions": PLACED, "causal": True}),
        "segments, causal": ({}, ONE_TEXT | {"causal": True}),
    }),
    "window": (BAND, {
        "window": ({"window": (2, 0)}, {}),
        "window, causal": ({"window": (2, None)}, {"causal": True}),
        "mask": ({}, {"mask": BAND[0, 0]}),
        "bias": ({}, {"score_bias": biased(BAND)}),
        "window, mask": ({"window": (2, None)}, {"mask": ORDER[0, 0]}),
    }),
    "texts": (OWN_TEXT & ORDER, {
        "segments, causal": ({}, own(TEXTS) | {"causal": True}),
        "segments, positions, causal": ({}, own(TEXTS) | AT | {"causal": True}),
        "mask": ({}, {"mask": (OWN_TEXT & ORDER)[:, 0]}),
        "mask, causal": ({}, {"mask": OWN_TEXT[:, 0], "causal": True}),
        "mask, positions": ({}, {"mask": (OWN_TEXT & ORDER)[:, 0]} | AT),
        "bias": ({}, {"score_bias": biased(OWN_TEXT & ORDER)}),
    }),
}  # fmt: skip


def tiled(seen):
    return np.tile(full(seen)[:, 0], (H, 1, 1)).reshape(B, H, T, T)


def longer(by):
    return (j < (LENGTHS + by)[:, None])[:, None, None]


def later(by):
    return (j <= i + by)[None, None]


def beside(by):
    """Each token in the text of its neighbour."""
    moved = TEXTS[:, np.clip(j - by, 0, T - 1)]
    return (moved[:, :, None] == moved[:, None])[:, None] & ORDER


# What is seen with a mistake: one in all patterns, and those of some.
IN_ALL = {
    "ignored": lambda seen: np.ones((1, 1, T, T), bool), "inverted": lambda seen: ~full(seen),
    "on the axis of queries": lambda seen: full(seen).swapaxes(2, 3), "tiled": tiled,
    "that of the first sample": lambda seen: seen[:1], "moved": lambda seen: np.roll(full(seen), 1, 3),
}  # fmt: skip
IN_SOME = {
    "padding": {"too long": longer(1), "too short": longer(-1)},
    "order": {"too late": later(1), "too early": later(-1)},
    "padding and order": {
        "padding ignored": ORDER, "order ignored": PADDING, "padding inverted": ~PADDING & ORDER,
        "order inverted": PADDING & ~ORDER, "order reversed": PADDING & ORDER.swapaxes(2, 3),
        "lengths too long": longer(1) & ORDER, "lengths too short": longer(-1) & ORDER,
        "order too late": PADDING & later(1), "order too early": PADDING & later(-1),
        "padding on queries": PADDING.swapaxes(2, 3) & ORDER, "padding tiled": tiled(PADDING) & ORDER,
        "padding of the first sample": PADDING[:1] & ORDER, "joined by or": PADDING | ORDER,
    },
    "window": {
        "wider": ORDER & (i - j <= 3), "narrower": ORDER & (i - j <= 1), "window ignored": ORDER,
        "order ignored": (i - j <= 2)[None, None], "symmetric": (abs(i - j) <= 2)[None, None],
    },
    "texts": {
        "texts ignored": ORDER, "order ignored": OWN_TEXT, "one later": beside(1), "one earlier": beside(-1),
        "earlier texts": (TEXTS[:, :, None] >= TEXTS[:, None])[:, None] & ORDER,
        "leaking in the order of places": (PLACES[:, None] <= PLACES[:, :, None])[:, None],
        "text 0 as padding": OWN_TEXT & ORDER & (TEXTS != 0)[:, None, None],
    },
}  # fmt: skip
WEIGHED = "low, not hidden", "a little lower", "blanked after the softmax", "added as a number"
CAPPED = "the mask, the bias, the cap", "the mask, the cap, the bias", "the bias, the cap, the mask"
# A token at position -1 comes before all others: what sees padding as such, in the order of rows, has other positions.
UNKNOWN = {("padding and order", "positions, causal", what) for what in ("padding inverted", "joined by or")}


def shares(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def weigh(scores, seen, how=None):
    """Attention weights; how: None = the right way."""
    if how == "low, not hidden":
        return shares(np.where(seen, scores, -10.0))
    if how == "a little lower":
        return shares(np.where(seen, scores, scores - 10.0))
    if how == "blanked after the softmax":
        return shares(scores) * seen
    if how == "added as a number":
        return shares(scores + seen)
    powers = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    sums = powers.sum(-1, keepdims=True)
    return powers / np.where(sums == 0, 1, sums)


def attend(layer, X, seen, bias=0.0, how=None):
    """The output from the formula in float64, without rotation, in float32."""
    W, config = {name: W.astype(float) for name, W in layer.weights.items()}, layer.config
    heads, groups, cap = config.num_heads, config.num_key_value_heads, config.softcap
    counts = {"W_q": heads, "W_k": groups, "W_v": groups}
    q, k, v = (
        np.repeat((X @ W[f"{name}.kernel"]).reshape(*X.shape[:2], n, -1).swapaxes(1, 2), heads // n, 1)
        for name, n in counts.items()
    )
    scores = q @ k.swapaxes(2, 3) / q.shape[3] ** 0.5
    seen = np.broadcast_to(seen, scores.shape)
    low = np.where(seen, 0, -np.inf)
    if cap:
        order = {
            CAPPED[0]: lambda: cap * np.tanh((scores + low + bias) / cap),
            CAPPED[1]: lambda: cap * np.tanh((scores + low) / cap) + bias,
            CAPPED[2]: lambda: cap * np.tanh((scores + bias) / cap) + low,
        }
        weights = shares(order[how]()) if how else weigh(cap * np.tanh(scores / cap) + bias, seen)
    else:
        weights = weigh(scores + bias, seen, how)
    merged = (weights @ v).swapaxes(1, 2).reshape(*X.shape[:2], -1)
    return (merged @ W["W_o.kernel"]).astype("float32")


def drawn(samples=B):
    return (1.5 * np.random.default_rng(5).normal(size=(samples, T, D))).astype("float32")


def made(heads=H, groups=G, **options):
    return mha.MultiHeadAttention(D, heads, num_key_value_heads=groups, seed=1, backend="numpy", **options)


def named(report):
    """Whether a report that differs is sure of a reason."""
    assert not report
    return report.diagnosis.known


QUICK = ["padding", "mask of keys"], ["order", "bias"], ["padding and order", "mask"], ["texts", "mask, positions"]
WAYS = [
    pytest.param(name, way, id=f"{name}: {way}", marks=() if [name, way] in QUICK else pytest.mark.long("numpy"))
    for name, (_, ways) in PATTERNS.items()
    for way in ways
]


@pytest.mark.parametrize(("pattern", "way"), WAYS)
def test_a_mistake_is_named_whichever_way_the_call_says_what_hides(pattern, way):
    seen, ways = PATTERNS[pattern]
    options, call = ways[way]
    bias, X = call.get("score_bias", np.zeros(1)), drawn()
    bias = np.where(np.isfinite(bias), bias, 0)  # somebody's bias is finite where something hides

    def asked(layer, *mistake):
        return parity.compare(layer, attend(layer, X, *mistake), X, X, X, **call)

    layer, bent = made(**options), made(softcap=2.0, **options)
    assert asked(layer, seen, bias)
    assert asked(bent, seen, bias)
    others = {what: change(seen) for what, change in IN_ALL.items()} | IN_SOME[pattern]
    others = {what: other for what, other in others.items() if not np.array_equal(full(other), full(seen))}
    reports = {what: asked(layer, other, bias) for what, other in others.items()}
    reports |= {how: asked(layer, seen, bias, how) for how in WEIGHED}
    reports |= {how: asked(bent, seen, bias, how) for how in (CAPPED if bias.any() else CAPPED[:2])}
    missed = {what for what, report in reports.items() if not named(report)}
    assert missed == {what for one, other, what in UNKNOWN if (one, other) == (pattern, way)}
