"""`mha.plot.copies`: what one head and several reach in a task that copies several tokens, and the picture of it."""

import numpy as np
import pytest

from mha.learn.plot import copies, copying

pytestmark = pytest.mark.backends("numpy")
THINGS = (2, 3, 5)


@pytest.mark.parametrize("things", THINGS)
def test_no_token_says_anything_of_another(things):
    of = copying.task(things)
    N, T, n = of.values.shape
    assert (N, T, n) == (2 * (things + 1), things + 1, 2)
    flat = of.values.reshape(N, T * n)
    np.testing.assert_allclose(flat.T @ flat / N, np.eye(T * n), atol=1e-12)
    for thing in range(things):
        np.testing.assert_array_equal(of.wanted[:, 0, 2 * thing : 2 * thing + 2], of.values[:, thing])
    assert copying.task(things, seed=1).values[0, 0, 0] != of.values[0, 0, 0]


@pytest.mark.parametrize("things", THINGS)
def test_the_least_error_is_the_share_of_things_without_a_head(things):
    of = copying.task(things)
    found = [copying.least(of, heads) for heads in range(1, things + 2)]
    assert found == pytest.approx([max(0, 1 - heads / things) for heads in range(1, things + 2)], abs=1e-12)


@pytest.mark.parametrize("things", THINGS)
def test_a_layer_is_constructed_that_reaches_it(things):
    of = copying.task(things)
    for heads in range(1, things + 1):
        shares = copying.shares_of(things, heads)
        layer = copying.best_layer(of, shares)
        output, weights = layer(*of[:3], return_weights=True)
        np.testing.assert_allclose(weights[3, :, 0], shares, atol=1e-12)
        error = ((output - of.wanted) ** 2).sum() / (of.wanted**2).sum()
        assert error == pytest.approx(1 - heads / things, abs=1e-12)
        assert copying.errors(of, output).mean() == pytest.approx(error, abs=1e-12)


def test_one_head_has_half_of_the_error_whatever_its_weight():
    """By hand: the best factor of thing i is w_i / (w_0^2 + w_1^2), which leaves 1 - w_i^2 / (w_0^2 + w_1^2) of it."""
    of = copying.task(2)
    for share, first in ((0, 1), (0.2, 1 - 0.04 / 0.68), (0.5, 0.5), (0.75, 0.1), (1, 0)):
        output = copying.best_layer(of, copying.one_head(2, share))(*of[:3])
        assert copying.errors(of, output) == pytest.approx([first, 1 - first], abs=1e-12)


def test_no_weights_and_no_kernels_do_better(rng):
    of = copying.task(3)
    for heads in (1, 2):
        for weights in rng.dirichlet(np.ones(4), size=(20, heads)):
            error = copying.errors(of, copying.best_layer(of, weights)(*of[:3])).mean()
            assert error >= copying.least(of, heads) - 1e-12
    lost = copying.errors(of, copying.best_layer(of, [[0.4, 0.2, 0.2, 0.2]])(*of[:3])).mean()  # on what nobody wants
    assert lost == pytest.approx(1 - 0.24 / 0.28 / 3, abs=1e-12)


@pytest.mark.parametrize("things", [2, 3])
def test_a_fit_ends_there_too(things):
    of = copying.task(things)
    for heads in range(1, things + 1):
        found = copying.fit(of, heads)
        first = copying.errors(of, copying.layer(of, heads)(*of[:3])).mean()
        assert len(found) == copying.STEPS + 1
        assert found[0] == pytest.approx(first, rel=1e-12)
        assert min(found) >= copying.least(of, heads) - 1e-12
        assert max(found[120:]) <= copying.least(of, heads) + 1e-3  # it stays there
        assert found[-1] <= copying.least(of, heads) + 1e-4


def test_the_first_step_of_a_fit_is_adams():
    """Its first step is the rate, against the sign of each gradient, whatever the gradient's size."""
    of = copying.task(2)
    layer = copying.layer(of, 2)
    output = layer(*of[:3])
    gradients = layer.gradients(*of[:3], cotangent=2 * (output - of.wanted) / (of.wanted**2).sum())
    layer.weights = {
        name: W - 0.1 * gradients[name] / (abs(gradients[name]) + 1e-8) for name, W in layer.weights.items()
    }
    expected = copying.errors(of, layer(*of[:3])).mean()
    assert copying.fit(of, 2, steps=3)[1] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("things", [2, 3])
def test_a_picture_has_these_numbers(things):
    of = copying.task(things)
    numbers, one, fit, ends = copies(things).axes
    best = [copying.best_layer(of, copying.shares_of(things, H))(*of[:3])[0, 0] for H in range(1, things + 1)]
    rows = np.array([of.wanted[0, 0], *best])
    np.testing.assert_allclose(numbers.get_images()[0].get_array(), rows, atol=1e-12)
    written = {text.get_position()[::-1]: text.get_text() for text in numbers.texts}
    assert written == {place: f"{rows[place]:z.2f}" for place in np.ndindex(rows.shape)}
    heads = ["1 head", "2 heads", "3 heads"][:things]
    assert [label.get_text() for label in numbers.get_yticklabels()] == ["wanted", *heads]
    first, other, whole = (line.get_ydata() for line in one.lines)
    assert list(one.lines[0].get_xdata()[[0, 10, 40]]) == pytest.approx([0, 0.25, 1])
    assert first[[0, 40]] == pytest.approx([1, 0], abs=1e-12)
    assert other[[0, 40]] == pytest.approx([1 - 1 / (things - 1), 1], abs=1e-12)
    np.testing.assert_allclose(whole, 1 - 1 / things, rtol=1e-12)
    assert [list(line.get_ydata()) for line in fit.lines[::2]] == [copying.fit(of, H) for H in range(1, things + 1)]
    assert [line.get_ydata()[0] for line in fit.lines[1::2]] == [copying.least(of, H) for H in range(1, things + 1)]
    heights = np.array([bar.get_height() for bar in ends.patches]).reshape(3, things)
    for found, bound in zip(heights, (1e-12, 1e-12, 1e-3), strict=True):
        np.testing.assert_allclose(found, 1 - np.arange(1, things + 1) / things, atol=bound)
    assert [text.get_text() for text in ends.texts] == [f"{height:.3f}" for height in heights.ravel()]
    legends = [[text.get_text() for text in panel.get_legend().get_texts()] for panel in (one, fit, ends)]
    others = "thing 1" if things == 2 else "any other thing"
    assert legends == [["thing 0", others, "all"], heads, ["the least", "constructed", "fitted"]]


def test_the_page_gets_these_numbers():
    found, of = copying.page_data(), copying.task(2)
    assert found["values"] == of.values.tolist()
    assert found["least"] == [copying.least(of, 1), copying.least(of, 2)]
    assert found["constructed"] == pytest.approx([0.5, 0], abs=1e-12)
    assert found["fits"] == [pytest.approx(copying.fit(of, heads), abs=1e-6) for heads in (1, 2)]


@pytest.mark.parametrize(
    ("things", "kind", "text"),
    [
        (1, ValueError, "things is 1, expected 2 to 6"),
        (7, ValueError, "things is 7, expected 2 to 6"),
        (2.0, TypeError, r"things is 2.0 \(float\), expected a positive int"),
    ],
)
def test_what_is_refused(things, kind, text):
    with pytest.raises(kind, match=text):
        copies(things)
