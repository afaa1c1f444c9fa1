"""The comparison page in a browser: what is clicked, typed and seen, in Chromium, driven with Playwright.

`apt-get install chromium` brings the browser; MHA_CHROMIUM names one elsewhere.
"""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import mha
from mha.core import dispatch
from mha.learn.languages import LANGUAGES, catalogue
from mha.learn.page import lessons

NAMES = tuple(dispatch.FRAMEWORKS)
STEPS = tuple(lessons.STEPS)


def arrays(opened):
    """The steps that the player has drawn and computed, and its sizes."""
    drawn, steps, sizes = opened.evaluate("[play.drawn, play.steps, play.sizes]")

    def array(X):
        return np.array(X["data"]).reshape(X["shape"])

    return {name: array(X) for name, X in drawn.items()}, {name: array(X) for name, X in steps.items()}, sizes


def oracle(drawn, sizes):
    """Every step of the same inputs and weights by NumPy's lesson, in float64."""
    weights = {f"{name}.kernel": drawn[name][0] for name in ("W_q", "W_k", "W_v", "W_o")}
    attention = mha.MultiHeadAttention(sizes["D"], sizes["H"], dtype="float64", backend="numpy", readable=True)
    attention.weights = weights
    inputs = [drawn[name] for name in ("queries", "keys", "values")]
    return attention.trace(*inputs, sizes["lengths"], causal=sizes["causal"])


def fill(opened, **sizes):
    for name, value in sizes.items():
        box = opened.locator(f"#sizes [name={name}]")
        box.set_checked(value) if isinstance(value, bool) else box.fill(str(value))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"B": 1, "lengths": "", "Q": 5, "K": 2, "D": 12, "H": 3},
        {"B": 3, "lengths": "0 4 1", "causal": True, "D": 16, "H": 8},
        {"K": 8, "Q": 8, "D": 1, "H": 1, "lengths": "8, 1"},
    ],
)
def test_the_player_computes_what_numpy_does(visit, sizes):
    opened = visit()
    fill(opened, **sizes)
    expect(opened.locator("#sizes-wrong")).to_be_hidden()
    drawn, steps, told = arrays(opened)
    assert {name: told[name] for name in sizes if name != "lengths"} == {
        name: sizes[name] for name in sizes if name != "lengths"
    }
    expected = oracle(drawn, told)
    for name in STEPS:
        if name in expected:
            assert steps[name].shape == expected[name].shape, name
            np.testing.assert_allclose(steps[name], expected[name], rtol=1e-12, atol=1e-12, err_msg=name)
    B, Q, K, D, H = (told[name] for name in "BQKDH")
    split = steps["W_q"].reshape(B, Q, H, D // H)
    np.testing.assert_array_equal(steps["reshape_q"], split)
    np.testing.assert_array_equal(steps["permute_q"], split.swapaxes(1, 2))
    np.testing.assert_array_equal(steps["reshape_pooled"], steps["pooled"].reshape(B, H, Q, D // H))
    np.testing.assert_array_equal(steps["permute_pooled"], steps["reshape_pooled"].swapaxes(1, 2))
    seen = np.arange(K) < np.array(told["lengths"])[:, None, None, None]
    seen = seen & (np.arange(K) <= np.arange(Q)[:, None]) if told["causal"] else np.broadcast_to(seen, (B, 1, Q, K))
    np.testing.assert_array_equal(steps["visible"], seen)


def test_steps_show_their_numbers_and_lines(visit):
    opened = visit()
    fill(opened, B=2, Q=3, K=4, D=6, H=2, lengths="3, 2")
    opened.locator("#sample").select_option("1")
    _, steps, _ = arrays(opened)
    for step in STEPS:
        opened.locator(f"[data-step={step}]").click()
        expect(opened.locator("#step-name")).to_have_text(step)
        X = steps[step]
        expect(opened.locator("#numbers")).to_have_text(str(X.shape))
        shown = opened.locator("#values tbody td").all_inner_texts()
        own = X[2:] if X.shape[0] == 4 else X[1:]  # of sample 1
        expected = [str(one) if own.dtype == bool else f"{one:.2f}" for one in own.ravel()]
        assert [text.replace("-0.00", "0.00") for text in expected] == shown, step
        for name in NAMES:
            place = lessons.lines(name)[step]
            file, number = place.split(":")
            line = (dispatch.FOLDER / name / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
            assert line.strip() in opened.locator(f"[data-source={name}]").inner_text()
            assert place in opened.locator(f"[data-source={name}]").inner_text()
            lit = opened.locator(f"[data-framework={name}] .lit")
            assert lit.evaluate_all("all => all.map(one => one.dataset.line)") == [place]


def test_heat_maps_follow_sizes(visit):
    opened = visit()
    fill(opened, B=1, lengths="2", Q=2, K=3, D=9, H=3)
    assert opened.locator("#heat table").count() == 3
    assert opened.locator("#heat td.hidden-key").count() == 3 * 2
    assert opened.locator("#heat td.hidden-key").first.inner_text() == "hidden"
    before = opened.locator("#heat").inner_text()
    opened.locator("#draw").click()
    assert opened.locator("#heat").inner_text() != before
    fill(opened, causal=True)
    assert opened.locator("#heat td.hidden-key").count() == 3 * 3


@pytest.mark.parametrize("S", [2, 3, 5])
def test_the_ring_is_the_cache_of_a_decoder(visit, S):
    opened = visit()
    fill(opened, B=2, Q=5, K=7, D=6, H=2, lengths="7 3", S=S)
    drawn, _, _ = arrays(opened)
    attention = mha.MultiHeadAttention(6, 2, window=(S - 1, None), dtype="float64", backend="numpy")
    attention.weights = {f"{name}.kernel": drawn[name][0] for name in ("W_q", "W_k", "W_v", "W_o")}
    for sample, tokens in enumerate((5, 3)):
        opened.locator("#sample").select_option(str(sample))
        tables = opened.locator("#ring table").evaluate_all(
            "all => all.map(one => [...one.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))"
        )
        cache, expected = attention.cache(1), [[], []]
        for t in range(tokens):
            x = [drawn[name][sample : sample + 1, t : t + 1] for name in ("queries", "keys", "values")]
            _, weights, cache = attention(*x, causal=True, cache=cache, return_weights=True)
            lost = f" (lost k{cache.lost[0]})" if cache.lost[0] >= 0 else ""
            for head, rows in enumerate(expected):
                slots = zip(cache.positions[0], weights[0, head, 0], strict=True)
                rows.append([f"t{t}{lost}", *("empty" if k < 0 else f"k{k} {weight:.2f}" for k, weight in slots)])
        assert tables == expected
        hatched = opened.locator("#ring td.hidden-key").all_text_contents()
        assert hatched == [cell for rows in expected for row in rows for cell in row if cell == "empty"] != []


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"D": 7}, "7 hidden units cannot be divided among 2 heads."),
        ({"B": 9}, "batch B must be a whole number from 1 to 4."),
        ({"Q": ""}, "queries Q must be a whole number from 1 to 8."),
        ({"K": 2.5}, "keys K must be a whole number from 1 to 8."),
        ({"S": 0}, "slots S must be a whole number from 1 to 8."),
        ({"lengths": "3"}, "Valid lengths: give 2 numbers from 0 to 4, such as 3, 2; or nothing."),
        ({"lengths": "5, -1"}, "Valid lengths: give 2 numbers from 0 to 4, such as 3, 2; or nothing."),
    ],
)
def test_wrong_sizes_are_refused_in_words(visit, sizes, said):
    opened = visit()
    before = opened.locator("#values").inner_text()
    fill(opened, **sizes)
    expect(opened.locator("#sizes-wrong")).to_have_text(said)
    assert opened.locator("#values").inner_text() == before


def test_tabs_show_one_framework_each(visit):
    opened = visit("view=one")
    for name in NAMES:
        opened.locator(f"#tab-{name}").click()
        expect(opened.locator(f"#tab-{name}")).to_have_attribute("aria-selected", "true")
        assert set(opened.locator("pre.code").evaluate_all("all => all.map(one => one.dataset.framework)")) == {name}
        shown = opened.locator("pre.code").evaluate_all(
            "all => all.map(one => [...one.children].map(line => line.textContent).join('\\n'))"
        )
        files = [dispatch.FOLDER / name / f"{chapter}.py" for chapter in dispatch.CHAPTERS]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        assert all(text.replace("\u200b", "") in source for text in shown)
        assert sum(map(len, shown)) > 0.9 * len(source)
    assert opened.locator("[role=tab][aria-selected=true]").count() == 1
    expect(opened.locator("#panel")).to_have_attribute("role", "tabpanel")


def test_a_link_leads_to_each_chapter(visit):
    opened = visit("view=one&step=scores")
    for chapter in dispatch.CHAPTERS:
        opened.locator("#chapters a", has_text=f"{chapter}.py").click()
        expect(opened.locator(f"#chapter-{chapter}")).to_be_focused()
        expect(opened.locator(f"#chapter-{chapter}")).to_be_in_viewport()
    assert "step=scores" in opened.url  # the choices stay


def test_columns_are_chosen(visit):
    opened = visit("view=all")
    row = opened.locator("[data-piece=transpose_qkv] figure")
    assert row.count() == len(NAMES)
    opened.locator("#columns input[value=numpy]").uncheck()
    opened.locator("#columns input[value=mxnet]").uncheck()
    shown = row.locator("pre").evaluate_all("all => all.map(one => one.dataset.framework)")
    assert shown == [name for name in NAMES if name not in ("numpy", "mxnet")]
    boxes = [row.nth(at).bounding_box() for at in range(3)]
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    assert boxes[0]["y"] == boxes[1]["y"] == boxes[2]["y"]


def test_differences_are_marked_against_the_chosen_framework(visit):
    opened = visit("view=all")

    def marked(name):
        return opened.locator(f"[data-piece=transpose_qkv] [data-framework={name}] mark").all_inner_texts()

    opened.locator("#reference").select_option("numpy")
    assert marked("numpy") == marked("jax") == []
    assert marked("torch") == ["permute"]
    expect(opened.locator("#legend")).to_have_text("NumPy does not have this word here")
    opened.locator("#reference").select_option("torch")
    assert marked("jax") == ["transpose"]
    opened.locator("#reference").select_option("")
    assert "transpose" in marked("numpy")


@pytest.mark.parametrize("view", ["one", "all"])
@pytest.mark.parametrize("width", [390, 1440])
def test_shapes_are_in_sight(visit, view, width):
    opened = visit(f"view={view}&framework=tensorflow", width)
    for at in range(opened.locator("[data-piece=transpose_qkv] .shape").count()):
        shape = opened.locator("[data-piece=transpose_qkv] .shape").nth(at)
        shape.scroll_into_view_if_needed()
        box, code = shape.bounding_box(), shape.locator("xpath=ancestor::pre").bounding_box()
        assert code["x"] <= box["x"]
        assert box["x"] + box["width"] <= code["x"] + code["width"] + 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_language_changes_all_texts(visit, language):
    opened = visit("lang=" + ("zh" if language == "en" else "en"))
    opened.locator("#language").select_option(language)
    texts = catalogue(language)["page"]
    assert opened.locator("html").get_attribute("lang") == language
    expect(opened.locator("h1")).to_have_text(texts["title"])
    expect(opened.locator("#meaning")).to_have_text(texts["steps_of"]["W_q"])
    expect(opened.locator(".lesson h3").nth(3)).to_have_text(texts["chapter_titles"]["layer"])
    expect(opened.locator("#facts tbody th").nth(2)).to_have_text(texts["facts"]["names"])
    assert texts["words"]["none"] in opened.locator("#facts [data-fact=mask]").inner_text()
    assert opened.title() == texts["title"]
    assert f"lang={language}" in opened.url
    assert "undefined" not in opened.locator("body").inner_text()


def test_choices_are_in_the_address(visit):
    opened = visit("lang=vi&theme=dark&view=one&framework=jax&reference=torch&step=scores&columns=nonsense")
    assert opened.locator("html").get_attribute("lang") == "vi"
    expect(opened.locator("#tab-jax")).to_have_attribute("aria-selected", "true")
    expect(opened.locator("#step-name")).to_have_text("scores")
    assert opened.locator("#reference").input_value() == "torch"
    opened.evaluate("location.hash = 'lang=ja&step=output'")
    expect(opened.locator("#step-name")).to_have_text("output")
    assert opened.locator("html").get_attribute("lang") == "ja"
    visit("lang=xx&step=nothing&view=%3Cb%3E")  # unknown choices are left at their defaults


def colour(opened):
    return opened.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_or_the_choice(visit):
    light, dark = visit(scheme="light"), visit(scheme="dark")
    assert colour(light) == "rgb(255, 255, 255)" != colour(dark)
    night = colour(dark)
    light.locator("#theme").select_option("dark")
    dark.locator("#theme").select_option("light")
    assert (colour(light), colour(dark)) == (night, "rgb(255, 255, 255)")


CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const parts = colour.slice(0, 3).map((one) => linear(one / 255));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.checkVisibility() || one.disabled || one.closest(".out-of-sight, .skip, option, script")) continue;
    const [first, second] = [light(rgba(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a);
    const ratio = (first + 0.05) / (second + 0.05);
    if (ratio < 4.5) found.push(`${one.tagName}.${one.className} ${one.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("step", ["weights", "merged"])
def test_texts_have_contrast(visit, scheme, step):
    opened = visit(f"step={step}&view=all", scheme=scheme)
    fill(opened, B=1, lengths="", Q=8, K=8, D=16, H=8)
    assert opened.evaluate(CONTRAST) == []


def test_keys_alone_are_enough(visit):
    opened = visit("view=one")
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"
    opened.locator("[data-step=W_q]").focus()
    for key, step in (
        ("ArrowRight", "W_k"),
        ("ArrowDown", "W_v"),
        ("ArrowLeft", "W_k"),
        ("End", "output"),
        ("Home", "W_q"),
    ):
        opened.keyboard.press(key)
        assert opened.evaluate("document.activeElement.dataset.step") == step
        expect(opened.locator("#step-name")).to_have_text(step)
    opened.locator("#tab-numpy").focus()
    for key, name in (("ArrowRight", "torch"), ("End", NAMES[-1]), ("Home", "numpy"), ("ArrowLeft", "numpy")):
        opened.keyboard.press(key)
        assert opened.evaluate("document.activeElement.id") == f"tab-{name}"
        expect(opened.locator(f"#tab-{name}")).to_have_attribute("aria-selected", "true")
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.id") == "panel"  # one tab is in the order of Tab
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_phone_does_not_scroll_sideways(visit, language):
    opened = visit(f"lang={language}", width=390)
    assert opened.locator("#tabs").is_visible()  # one framework at first
    for view in ("one", "all"):
        opened.locator(f"#view input[value={view}]").check()
        for step in ("W_q", "permute_q", "weights"):
            opened.locator(f"[data-step={step}]").click()
            assert opened.evaluate("document.documentElement.scrollWidth") <= 390, (view, step)
    fill(opened, B=1, lengths="", Q=8, K=8, D=16, H=8)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def test_motion_is_reduced_where_it_is_asked_for(visit):
    opened = visit()
    assert opened.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "smooth"
    opened.emulate_media(reduced_motion="reduce")
    assert opened.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_what_was_measured_is_shown(visit):
    opened = visit()
    facts = opened.locator("#facts")
    assert "float64" in facts.locator("[data-fact=dtype]").inner_text()
    assert "<b>broken</b>" in facts.inner_text()  # as it is, not as an element
    assert facts.locator("b").count() == 0
    assert "not installed" in facts.inner_text()
    expect(opened.locator("#verdict")).to_have_text("1 of 2 results failed.")
    assert re.search(r"0\.25[\s\S]*∞[\s\S]*1 failed", opened.locator("#ratios").inner_text())
