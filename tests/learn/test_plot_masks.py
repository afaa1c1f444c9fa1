"""`mha.plot.masks`: what each rule hides, what all of them do, and the weights here and in the book."""

import numpy as np
import pytest
from calls import own

import mha
from mha.learn.plot import masks
from mha.learn.plot.masks import compose

pytestmark = pytest.mark.backends("numpy")
B, Q, K = 2, 5, 7
QUERY, KEY = np.arange(Q)[:, None], np.arange(K)
MASK = (KEY + QUERY) % 3 > 0
LENGTHS = np.array([3, 6])[:, None, None]
# Of each rule: the argument, what it says in a picture, and the keys that a query sees.
RULES = {
    "valid_lens": ([3, 6], "lengths", KEY < LENGTHS),
    "mask": (MASK, "mask", MASK),
    "causal": (True, "causal", KEY <= QUERY),
    "window": ((1, 2), "window (1, 2)", (QUERY - 1 <= KEY) & (KEY <= QUERY + 2)),
}


def drawn(figure):
    """Of each panel by its title: which cells (Q, K) are hatched, the numbers in the others, and the framed rows."""
    found = {}
    for panel in figure.axes:
        if not panel.get_images():
            continue
        shown = panel.get_images()[0].get_array()
        hides, (collection,) = np.zeros(shown.shape, bool), panel.collections
        for path in collection.get_paths():
            (left, top), (right, bottom) = path.vertices.min(0) + 0.5, path.vertices.max(0) + 0.5
            hides[int(top) : int(bottom), int(left) : int(right)] = True
        np.testing.assert_array_equal(np.ma.getmaskarray(shown), hides)
        numbers = {(q, k): text.get_text() for text in panel.texts for k, q in [text.get_position()]}
        rows = [int(frame.get_y() + 0.5) for frame in panel.patches]
        found[panel.get_title()] = hides, numbers, rows
    return found


@pytest.mark.parametrize("given", [(), ("causal",), ("valid_lens", "window"), tuple(RULES)])
def test_rules_and_their_weights(rng, given):
    scores = rng.normal(size=(B, Q, K))
    expected = {RULES[name][1]: np.broadcast_to(RULES[name][2], (B, Q, K)) for name in given}
    seen = np.logical_and.reduce([np.ones((B, Q, K), bool), *expected.values()])
    powers = np.where(seen, np.exp(scores), 0)
    total = powers.sum(-1, keepdims=True)
    weights = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    book = np.where(total > 0, weights, 1 / K)
    arguments = {name: RULES[name][0] for name in given}
    found = compose(scores, **arguments)
    assert list(found.rules) == list(expected)
    for name, sees in expected.items():
        np.testing.assert_array_equal(found.rules[name], sees)
    np.testing.assert_array_equal(found.seen, seen)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-12)
    np.testing.assert_allclose(found.book, book, rtol=1e-12)
    for sample in range(B):
        pictures = drawn(masks(scores, **arguments, sample=sample))
        nothing = np.flatnonzero(~seen[sample].any(1)).tolist()
        assert list(pictures) == [*expected, "all of them", "weights", "weights in the book"]
        assert all(rows == nothing for _, _, rows in pictures.values())
        for name, sees in {**expected, "all of them": seen, "weights": seen}.items():
            np.testing.assert_array_equal(pictures[name][0], ~sees[sample])
        assert not pictures["weights in the book"][0].any()
        places = list(zip(*np.nonzero(seen[sample]), strict=True))
        assert pictures["weights"][1] == {place: f"{weights[sample][place]:.2f}" for place in places}
        every = np.ndindex(Q, K)
        assert pictures["weights in the book"][1] == {place: f"{book[sample][place]:.2f}" for place in every}
    if len(given) == len(RULES):
        assert not seen[0].any(1).all()  # a query without keys is among them


def test_pictures_are_written(tmp_path, rng):
    scores = mha.tensor(rng.normal(size=(1, 2, 3)), "bfloat16")
    for name, start in (("masks.png", b"\x89PNG"), ("masks.svg", b"<?xml")):
        masks(scores, path=tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.all_backends
@pytest.mark.parametrize("name", list(mha.backends()))
def test_scores_of_every_backend(rng, name):
    scores = rng.normal(size=(1, 2, 3)).astype("float32")
    assert drawn(masks(own(name, scores)))["weights"][1] == drawn(masks(scores))["weights"][1]


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"scores": [[[1.0]]]}, TypeError, "X is a list, expected an array of numpy"),
        ({"scores": np.ones((2, 3))}, ValueError, r"scores has shape \(2, 3\), expected \(batch, queries, keys\), at"),
        ({"scores": np.ones((1, 0, 3))}, ValueError, r"scores has shape \(1, 0, 3\), expected .* at least one of each"),
        ({"scores": np.ones((1, 2, 3), int)}, TypeError, "scores has dtype int64, expected floats"),
        ({"scores": np.full((1, 2, 3), -np.inf)}, ValueError, "scores"),
        ({"scores": np.ones((1, 2, 25))}, ValueError, "scores has 2 queries and 25 keys, expected at most 24"),
        ({"valid_lens": [3, 3]}, ValueError, "valid_lens"),
        ({"mask": np.ones((3, 2), bool)}, ValueError, "mask"),
        ({"causal": 1}, TypeError, "causal is 1"),
        ({"window": 3}, TypeError, "window is 3"),
        ({"sample": 1}, ValueError, r"sample is 1, expected 0 to 0, since scores has shape \(1, 2, 3\)"),
        ({"path": "masks.jpg"}, ValueError, "path is 'masks.jpg', expected a name that ends in .png or .svg"),
    ],
)
def test_what_is_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        masks(**{"scores": np.ones((1, 2, 3)), **given})
