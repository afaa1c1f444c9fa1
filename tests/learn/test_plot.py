"""`mha.plot`: files of all pictures; those of attention weights, their cells, colours and names; those of masks."""

import itertools
import sys

import numpy as np
import pytest
from calls import own

import mha
from mha.learn.plot import masks
from mha.learn.plot.masks import compose

TOKENS = ["the", "cat", "sat", "$5", "猫", "."]
pytestmark = pytest.mark.backends("numpy")


def weights(rng, *shape):
    """Attention weights of this shape, (..., Q, K)."""
    scores = np.exp(rng.normal(size=shape))
    return scores / scores.sum(-1, keepdims=True)


def maps(figure):
    """The heat maps of a figure, by their titles; the colour bar has none."""
    return {axes.get_title(): axes for axes in figure.axes if axes.get_images()}


def cells(axes):
    return axes.get_images()[0].get_array()


def hatched(axes, shape):
    """Which cells of a heat map (Q, K) the hatched rectangles cover."""
    (collection,) = axes.collections
    assert collection.get_hatch()
    found = np.zeros(shape, bool)
    for path in collection.get_paths():
        (left, top), (right, bottom) = path.vertices.min(0) + 0.5, path.vertices.max(0) + 0.5
        found[int(top) : int(bottom), int(left) : int(right)] = True
    return found


# All pictures


PICTURES = {
    "heatmaps": lambda path: mha.plot.heatmaps(np.ones((1, 2, 3)), path=path),
    "masks": lambda path: masks(mha.tensor(np.ones((1, 2, 3)), "bfloat16"), path=path),
    "splits": lambda path: mha.plot.splits(mha.tensor(np.ones((1, 2, 6)), "bfloat16"), 3, path=path),
    "slots": lambda path: mha.plot.slots(mha.MultiHeadAttention(6, 2, seed=0, backend="numpy"), 2, 3, path=path),
    "cache_bytes": lambda path: mha.plot.cache_bytes(2, 3, 5, path=path),
    "copies": lambda path: mha.plot.copies(path=path),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_written_in_the_format_of_its_ending(tmp_path, monkeypatch, name):
    with pytest.raises(ValueError, match=r"path is 'one.gif', expected a name that ends in .png or .svg"):
        PICTURES[name]("one.gif")
    PICTURES[name](tmp_path / "one.SVG")
    assert (tmp_path / "one.SVG").read_bytes().startswith(b"<?xml")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r'mha.plot needs matplotlib.*: pip install "matplotlib>=3.8"'):
        PICTURES[name](None)


def test_a_picture_of_points(tmp_path):
    PICTURES["heatmaps"](tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


# Attention weights


def test_each_head_has_its_weights_and_all_one_scale(rng):
    found = weights(rng, 2, 5, 4, 6)
    figure = mha.plot.heatmaps(found, sample=1)
    drawn = maps(figure)
    assert list(drawn) == [f"head {head}" for head in range(5)]
    for head, axes in enumerate(drawn.values()):
        np.testing.assert_array_equal(cells(axes), found[1, head])
        assert axes.get_images()[0].get_clim() == (0, found[1].max())
    bars = [axes for axes in figure.axes if axes.get_ylabel() == "attention weight"]
    assert len(bars) == 1
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("keys", "queries")


def test_three_shapes_are_the_same_picture(rng):
    found = weights(rng, 2, 3, 4, 6)
    wanted = [cells(axes) for axes in maps(mha.plot.heatmaps(found, sample=1)).values()]
    for figure in (mha.plot.heatmaps(found[1]), mha.plot.heatmaps(found.reshape(6, 4, 6), num_heads=3, sample=1)):
        np.testing.assert_array_equal([cells(axes) for axes in maps(figure).values()], wanted)


def test_heads_are_chosen_in_their_order(rng):
    found = weights(rng, 5, 4, 6)
    found[0] = 0  # which would change the scale if it were drawn, and hatch all
    found[0, :, 0] = 1
    drawn = maps(mha.plot.heatmaps(found, heads=[3, 1]))
    assert list(drawn) == ["head 3", "head 1"]
    np.testing.assert_array_equal(cells(drawn["head 3"]), found[3])
    assert drawn["head 1"].get_images()[0].get_clim() == (0, found[[3, 1]].max())


def test_what_is_hidden_is_hatched_and_has_no_colour(rng):
    found = weights(rng, 2, 4, 6)
    found[0, 1:3, 2:4] = 0
    found[1, 2] = 0  # a query that may see no key
    drawn = maps(mha.plot.heatmaps(found))
    for head in range(2):
        axes = drawn[f"head {head}"]
        np.testing.assert_array_equal(np.ma.getmaskarray(cells(axes)), found[head] == 0)
        np.testing.assert_array_equal(hatched(axes, (4, 6)), found[head] == 0)


@pytest.mark.parametrize("axes", [(1, 1), (1, 2), (2, 2)])
def test_hidden_cells_may_be_told(rng, axes):
    found = weights(rng, 2, 2, 4, 6)
    found[:, :, 0, 0] = 0  # a weight that is only small
    told = rng.random((*axes, 4, 6)) < 0.4
    told = told[0, 0] if axes == (1, 1) else told[0] if axes == (1, 2) else told
    drawn = maps(mha.plot.heatmaps(found, hidden=told, sample=1))
    for head, whole in enumerate(np.broadcast_to(told, found.shape)[1]):
        np.testing.assert_array_equal(hatched(drawn[f"head {head}"], (4, 6)), whole)
    assert 0 in told.astype(int)


def test_nothing_seen_at_all_is_drawn():
    drawn = maps(mha.plot.heatmaps(np.zeros((1, 2, 3))))
    assert hatched(drawn["head 0"], (2, 3)).all()


def test_tokens_name_rows_and_columns(rng):
    figure = mha.plot.heatmaps(weights(rng, 5, 4, 6), TOKENS[2:], TOKENS, title="Heads")
    written = [name.replace("$", r"\$") for name in TOKENS]
    drawn = list(maps(figure).values())
    for place, axes in enumerate(drawn):
        assert [label.get_text() for label in axes.get_yticklabels()] == (written[2:] if place in (0, 3) else [])
        assert [label.get_text() for label in axes.get_xticklabels()] == (written if place >= 2 else [])
    assert {label.get_rotation() for label in drawn[-1].get_xticklabels()} == {90}
    assert figure.get_suptitle() == "Heads"


def test_a_figure_grows_and_names_all_of_64_tokens(rng):
    tokens = [f"w{number}" for number in range(64)]
    small = mha.plot.heatmaps(weights(rng, 3, 8, 8), tokens[:8], tokens[:8])
    large = mha.plot.heatmaps(weights(rng, 3, 64, 64), tokens, tokens)
    assert all(one < other for one, other in zip(small.get_size_inches(), large.get_size_inches(), strict=True))
    labels = maps(large)["head 0"].get_xticklabels()
    assert len(labels) == 64
    large.draw_without_rendering()  # but laid out
    boxes = [label.get_window_extent() for label in labels]
    assert all(one.x1 <= other.x0 for one, other in itertools.pairwise(boxes))  # none covers the next
    assert min(label.get_fontsize() for label in labels) >= 6


def test_names_are_thinned_where_they_cannot_fit(rng):
    axes = maps(mha.plot.heatmaps(weights(rng, 1, 2, 250)))["head 0"]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [str(number) for number in range(0, 250, 3)]


def test_pyplot_knows_no_figure(rng, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    mha.plot.heatmaps(weights(rng, 1, 2, 3))
    assert pyplot.get_fignums() == before


def test_arrays_of_every_dtype(rng):
    found = weights(rng, 1, 2, 3)
    for dtype in ("float16", "bfloat16", "float32"):
        narrow = mha.tensor(found, dtype)
        np.testing.assert_array_equal(cells(maps(mha.plot.heatmaps(narrow))["head 0"]), narrow[0].astype(float))


@pytest.mark.all_backends
@pytest.mark.parametrize("name", list(mha.backends()))
def test_arrays_of_every_backend(rng, name):
    found = weights(rng, 1, 2, 3)
    drawn = maps(mha.plot.heatmaps(own(name, found), hidden=own(name, found > 0.3)))
    np.testing.assert_array_equal(np.ma.getdata(cells(drawn["head 0"])), found[0])
    np.testing.assert_array_equal(hatched(drawn["head 0"], (2, 3)), found[0] > 0.3)


REFUSED = [
    ({"weights": [[[1.0]]]}, TypeError, "X is a list, expected an array of numpy"),
    (
        {"weights": np.ones((2, 3))},
        ValueError,
        r"weights has shape \(2, 3\), expected \(batch, heads, queries, keys\) or",
    ),
    (
        {"weights": np.ones((2, 0, 3))},
        ValueError,
        r"weights has shape \(2, 0, 3\), expected at least one query and one",
    ),
    ({"weights": np.ones((2, 2, 3), int)}, TypeError, "weights has dtype int64, expected floats"),
    ({"weights": np.full((2, 2, 3), np.nan)}, ValueError, "weights holds NaN, infinity or numbers below 0"),
    ({"weights": np.full((2, 2, 3), -0.1)}, ValueError, "weights holds NaN, infinity or numbers below 0"),
    ({"num_heads": 4}, ValueError, r"num_heads is 4, but weights has shape \(6, 2, 3\); expected 6 or leave it out"),
    ({"weights": np.ones((2, 6, 2, 3)), "num_heads": 3}, ValueError, "num_heads is 3, but weights has shape"),
    ({"num_heads": 0}, ValueError, "num_heads is 0, expected at least 1"),
    ({"sample": 1}, ValueError, r"sample is 1, expected 0 to 0, since weights has shape \(6, 2, 3\)"),
    ({"sample": 0.0}, TypeError, r"sample is 0.0 \(float\), expected an int"),
    ({"heads": [6]}, ValueError, r"heads\[0\] is 6, expected 0 to 5"),
    ({"heads": []}, TypeError, r"heads is \[\] \(list\), expected a list of ints, such as \[0, 2\], or None for all"),
    ({"heads": 2}, TypeError, r"heads is 2 \(int\), expected a list of ints"),
    ({"queries": ["a"]}, ValueError, "queries holds 1 names, expected 2, one for each of the queries"),
    ({"keys": "abc"}, TypeError, r"keys is 'abc' \(str\), expected a list of 3 strings, or None"),
    ({"hidden": np.ones((2, 3))}, TypeError, "hidden has dtype float64, expected bool: True where the key is hidden"),
    ({"hidden": np.ones((3, 2), bool)}, ValueError, r"hidden has shape \(3, 2\), expected \(2, 3\), \(6, 2, 3\) or"),
]


@pytest.mark.parametrize(("given", "kind", "text"), REFUSED)
def test_what_is_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        mha.plot.heatmaps(**{"weights": np.ones((6, 2, 3)), **given})


def test_a_dollar_is_no_formula():
    figure = mha.plot.heatmaps(np.ones((2, 1, 1)), ["$x"], ["_y^2$ $"], title=r"costs $\foo$")
    figure.canvas.draw()
    assert figure.get_suptitle() == r"costs $\foo$"


# Masks


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
        hides = hatched(panel, shown.shape)
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
    ],
)
def test_masks_that_are_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        masks(**{"scores": np.ones((1, 2, 3)), **given})
