"""`mha.plot.splits`: which number of which token and feature lands in which head, right and by one reshape."""

import re

import numpy as np
import pytest
from calls import own

import mha
from mha.learn.plot.splits import HEADS

pytestmark = pytest.mark.backends("numpy")


def drawn(figure):
    """The panels of the three parts of a figure: in each cell its number, token and feature, and the colour's head."""
    from matplotlib.colors import to_rgb

    parts = []
    for room in figure.subfigs:
        panels = []
        for panel in room.axes:
            image = panel.get_images()[0].get_array()
            colours = [to_rgb(colour) for colour in HEADS]
            heads = [[colours.index(tuple(cell)) for cell in row] for row in image]
            written = {}
            for text in panel.texts:
                written.setdefault(text.get_position()[::-1], []).append(text.get_text().strip())
            cells = {place: (float(number), *re.findall(r"\d+", origin)) for place, (number, origin) in written.items()}
            panels.append((panel.get_title(), cells, heads))
        parts.append((room.get_suptitle(), panels))
    return parts


@pytest.mark.parametrize(("B", "T", "H", "d", "sample"), [(2, 5, 3, 2, 1), (1, 2, 2, 3, 0), (3, 1, 5, 2, 2)])
def test_each_number_says_where_it_comes_from(B, T, H, d, sample):
    X = np.arange(B * T * H * d).reshape(B, T, H * d) / 8
    (_, above), (right_title, right), (wrong_title, wrong) = drawn(mha.plot.splits(X, H, sample=sample))
    assert [title for title, _, _ in above] == [""]
    assert len(right) == len(wrong) == H
    assert "transpose(0, 2, 1, 3)" in right_title
    assert "transpose" not in wrong_title
    expected = {"right": mha.transpose_qkv(X, H), "wrong": X.reshape(B * H, T, d)}  # (B*H, T, d) both
    for kind, panels in (("right", right), ("wrong", wrong)):
        for head, (title, cells, heads) in enumerate(panels):
            assert title == f"head {head}"
            assert len(cells) == T * d
            for (row, column), (number, token, feature) in cells.items():
                value = expected[kind][sample * H + head, row, column]
                assert number == pytest.approx(value, rel=5e-3)
                assert X[sample, int(token), int(feature)] == value
                assert heads[row][column] == int(feature) // d
    for (row, column), (number, token, feature) in above[0][1].items():
        assert (row, column) == (int(token), int(feature))
        assert number == pytest.approx(X[sample, row, column], rel=5e-3)
    assert all(heads == [[head] * d] * T for head, (_, _, heads) in enumerate(right))


def test_titles_fit():
    figure = mha.plot.splits(np.ones((1, 2, 2)), 1)
    figure.draw_without_rendering()
    for room in figure.subfigs:
        assert room.texts[0].get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.all_backends
@pytest.mark.parametrize("name", list(mha.backends()))
def test_arrays_of_every_backend(rng, name):
    X = rng.normal(size=(2, 3, 4)).astype("float32")
    assert drawn(mha.plot.splits(own(name, X), 2)) == drawn(mha.plot.splits(X, 2))


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"X": [[[1.0]]]}, TypeError, "X is a list, expected an array of numpy"),
        ({"X": np.ones((2, 6))}, ValueError, "X has shape"),
        ({"num_heads": 4}, ValueError, "num_heads"),
        ({"num_heads": 0}, ValueError, "num_heads is 0, expected at least 1"),
        ({"sample": 2}, ValueError, r"sample is 2, expected 0 to 1, since X has shape \(2, 3, 6\)"),
        ({"sample": -1}, ValueError, "sample is -1, expected 0 to 1"),
        ({"sample": 1.0}, TypeError, r"sample is 1.0 \(float\), expected an int"),
        ({"X": np.ones((1, 67, 6))}, ValueError, "X has 67 tokens of 6 features, expected 1 to 400 numbers a sample"),
        ({"X": np.ones((1, 0, 6))}, ValueError, "X has 0 tokens of 6 features, expected 1 to 400 numbers a sample"),
    ],
)
def test_what_is_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        mha.plot.splits(**{"X": np.ones((2, 3, 6)), "num_heads": 2, **given})
