"""One reason for one mistake: what an implementation has where a mistake hides all keys is no second one."""

import numpy as np
import pytest

import mha
from mha import parity

B, T, D, H = 3, 11, 12, 3
LENGTHS = [11, 7, 4]  # the first sample has no padding: an inverted mask hides all of it
SEEN = np.arange(T) < np.array(LENGTHS)[:, None, None, None]  # (B, 1, 1, T)
PADDED, ORDERED = {"valid_lens": LENGTHS}, {"causal": True}
EARLIER = np.tri(T, dtype=bool)
LOWEST = np.finfo("float32").min


def placed(number):
    """Set hidden scores to a number."""
    return lambda scores, seen: np.where(seen, scores, np.float32(number))


def added(number):
    """Add a number to hidden scores."""
    return lambda scores, seen: scores + np.where(seen, 0, number).astype("float32")


WAYS = {
    "minus infinity": placed(-np.inf), "-1e9": placed(-1e9), "the lowest": placed(LOWEST), "-1e4": placed(-1e4),
    "-1e9 added": added(-1e9), "-1e4 added": added(-1e4), "the lowest added": added(LOWEST),
}  # fmt: skip


def port(layer, X, seen, hide, axis=-1):
    """Another implementation: `seen` hides keys, and `hide` says how."""
    W = layer.weights
    q, k, v = ((X @ W[f"W_{role}.kernel"]).reshape(B, T, H, -1).swapaxes(1, 2) for role in "qkv")  # (B, H, T, d)
    scores = hide(q @ k.swapaxes(2, 3) / np.sqrt(np.float32(D // H)), seen)
    with np.errstate(invalid="ignore"):
        shares = np.exp(scores - scores.max(axis, keepdims=True))
        pooled = shares / shares.sum(axis, keepdims=True) @ v
    return pooled.swapaxes(1, 2).reshape(B, T, D) @ W["W_o.kernel"]  # (B, T, D)


@pytest.fixture(scope="module")
def given():
    """A layer, and inputs."""
    return mha.MultiHeadAttention(D, H, seed=4, backend="numpy"), np.random.default_rng(2).normal(
        size=(B, T, D)
    ).astype("float32")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("call", "right", "seen", "axis", "mistake"),
    [
        (PADDED, SEEN, ~SEEN, -1, "the mask is inverted"),
        (ORDERED, EARLIER, ~EARLIER, -1, "the mask is inverted"),
        (ORDERED, EARLIER, np.tri(T, k=-1, dtype=bool), -1, "causal order is off by one"),
        (PADDED, SEEN, SEEN.swapaxes(2, 3), -1, "the padding mask is on the axis of queries"),
        (PADDED, SEEN, SEEN, 1, "the softmax is over another axis"),
        (ORDERED, EARLIER, EARLIER, 1, "the softmax is over another axis"),
    ],
    ids=["padding", "order", "one too few", "queries", "heads of padding", "heads in order"],
)  # fmt: skip
def test_a_mistake_that_hides_all_keys_is_named_alone(given, way, call, right, seen, axis, mistake):
    layer, X = given
    assert parity.compare(layer, port(layer, X, right, WAYS[way]), X, X, X, **call)  # no other mistake is in it
    report = parity.compare(layer, port(layer, X, seen, WAYS[way], axis), X, X, X, **call)
    everywhere = axis == 1 and way == "minus infinity"  # NaN in each number, of which nothing is sure
    found = [names for names in report.diagnosis.alternatives if names not in alike(seen, way)]
    assert found == ([] if everywhere else [(mistake,)]), report


def alike(seen, way):
    """What else gives the very same numbers: a number that is added to whole rows hides nothing."""
    rows = seen.shape[-1] == 1 and "added" in way
    return [("the lengths are ignored",), ("everything is seen",)] if rows else []


def test_a_mask_that_is_too_weak_is_found_alone(given):
    layer, X = given
    found = parity.diagnose(layer, port(layer, X, SEEN, placed(-10.0)), X, X, X, **PADDED)
    assert found.alternatives == (("weak mask fill",),)


def test_rows_that_count_without_keys_are_a_second_mistake(given):
    layer, X = given
    lengths, seen = [11, 7, 0], np.arange(T) < np.array([11, 7, 0])[:, None, None, None]
    uniform, late = "rows without keys are uniform", np.tri(T, k=-1, dtype=bool)
    for order, count in ((EARLIER, 1), (late, 2)):
        call = {"valid_lens": lengths, "causal": True, "empty_rows": True}
        found = parity.diagnose(layer, port(layer, X, seen & order, placed(-1e9)), X, X, X, **call)
        assert found.known
        assert {len(names) for names in found.alternatives} == {count}, found
        assert count == 2 or found.mistakes == (uniform,)


def test_formulas_that_are_always_equal_are_one_reason():
    X = np.random.default_rng(2).normal(size=(B, T, D)).astype("float32")
    names = "the scale is applied twice", "the scale lacks its root"
    for options, scale, expected in (
        ({}, 1 / 4, names[:1]), ({"scale": 0.7}, 0.49, names[:1]), ({"scale": 0.7}, 0.25, names[1:]),
    ):  # fmt: skip
        layer, wrong = (
            mha.MultiHeadAttention(D, H, **own, seed=4, backend="numpy")
            for own in (options, options | {"scale": scale})
        )
        found = parity.diagnose(layer, wrong(X, X, X), X, X, X)
        assert found.alternatives == (expected,)
        assert found.explanations[0].also == (() if options else names[1:])
        assert ("(the same here as the scale lacks its root): dot products" in str(found)) == (not options)


def test_rows_without_keys_are_named_beside_a_merge_that_moves_them(given):
    """Padding on the left leaves such rows; a lost permute puts their numbers into others."""
    _, X = given
    layer = mha.MultiHeadAttention(D, H, window=(3, 0), seed=4, backend="numpy")
    mask = np.arange(T) >= np.array([0, 3, 5])[:, None, None]  # (B, 1, T)
    W_o = np.linalg.qr(layer.weights["W_o.kernel"])[0]  # whose transpose is its inverse, and moves no rounding
    layer.weights |= {"W_o.kernel": W_o}
    Y = port(layer, X, (mask & EARLIER & ~np.tri(T, k=-4, dtype=bool))[:, None], placed(-1e9))
    assert parity.compare(layer, Y, X, X, X, mask=mask, causal=True)
    pooled = (Y @ W_o.T).reshape(B, T, H, -1).swapaxes(1, 2)  # (B, H, T, d)
    report = parity.compare(layer, pooled.reshape(B, T, D) @ W_o, X, X, X, mask=mask, causal=True)
    named = {name for names in report.diagnosis.alternatives for name in names}
    assert {"the merge lacks the permute", "rows without keys are uniform"} <= named, str(report)
