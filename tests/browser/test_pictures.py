"""The pictures of the comparison page in a browser: what is chosen, typed and seen, beside what Python computes."""

import numpy as np
import pytest
from playwright.sync_api import expect

import mha
from mha.languages import LANGUAGES, catalogue

FORMS = ("splits-sizes",)


def fill(opened, form, **values):
    """Type numbers into a form, tick its boxes and choose in its lists."""
    for name, value in values.items():
        box = opened.locator(f"#{form} [name={name}]")
        if isinstance(value, bool):
            box.set_checked(value)
        elif box.evaluate("one => one.tagName") == "SELECT":
            box.select_option(str(value))
        else:
            box.fill(str(value))


def tables(opened, where):
    """The text of each cell of the bodies of tables, row by row, without their heads."""
    rows = "[...one.tBodies[0].rows].map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    return opened.locator(f"#{where} table").evaluate_all(f"all => all.map(one => {rows})")


# 1. The wrong reshape


@pytest.mark.parametrize(("T", "H", "d"), [(4, 2, 3), (5, 3, 2), (1, 4, 1), (7, 1, 4)])
def test_the_split_is_that_of_the_lesson(visit, T, H, d):
    opened = visit()
    fill(opened, "splits-sizes", T=T, H=H, d=d)
    X = np.array(opened.evaluate("splitsPicture.X.data")).reshape(1, T, H * d)
    origins = np.array([[[f"t{t} f{f}" for f in range(H * d)] for t in range(T)]])

    def cells(numbers, places):
        return [
            [
                [f"{x:.2f}{o}".replace("-0.00", "0.00") for x, o in zip(*rows, strict=True)]
                for rows in zip(*pair, strict=True)
            ]
            for pair in zip(numbers, places, strict=True)
        ]

    places = np.arange(T * H * d).reshape(1, T, H * d)
    right = origins.reshape(-1)[mha.transpose_qkv(places, H)]
    assert tables(opened, "splits-input") == cells(X, origins)
    assert tables(opened, "splits-right") == cells(mha.transpose_qkv(X, H), right)
    assert tables(opened, "splits-wrong") == cells(X.reshape(H, T, d), origins.reshape(H, T, d))
    count = int((right == origins.reshape(H, T, d)).sum())
    said = catalogue("en")["page"]["splits"]["count"].format(right=count, all=T * H * d)
    expect(opened.locator("#splits-count")).to_have_text(said)


def test_a_token_is_followed(visit):
    opened = visit()
    fill(opened, "splits-sizes", T=4, H=2, d=3)
    opened.locator("#splits-sizes [name=followed]").focus()
    opened.keyboard.press("ArrowDown")  # from t1
    assert opened.evaluate("document.activeElement.name") == "followed"
    for where in ("input", "right", "wrong"):
        marked = opened.locator(f"#splits-{where} td.followed small").all_inner_texts()
        assert marked == [f"t2 f{f}" for f in range(6)]
    fill(opened, "splits-sizes", T=2)  # token 2 is gone
    assert opened.locator("#splits-input td.followed small").all_inner_texts() == [f"t1 f{f}" for f in range(6)]
    before = opened.locator("#splits").inner_text()
    opened.locator("#splits-draw").click()
    assert opened.locator("#splits").inner_text() != before


# All pictures


@pytest.mark.parametrize("form", FORMS)
def test_wrong_numbers_are_refused_in_words(visit, form):
    opened = visit()
    box = opened.locator(f"#{form} input[type=number]").first
    before, most = opened.locator(f"section:has(#{form}) table").all_inner_texts(), box.get_attribute("max")
    box.fill(str(int(most) + 1))
    expect(opened.locator(f"#{form}-wrong")).to_contain_text(f" to {most}.")
    assert opened.locator(f"section:has(#{form}) table").all_inner_texts() == before
    box.fill(most)
    expect(opened.locator(f"#{form}-wrong")).to_be_hidden()


def test_every_form_is_tried(visit):
    assert visit().locator("form").evaluate_all("all => all.map(one => one.id)") == ["sizes", *FORMS]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_phone_does_not_scroll_sideways_with_the_largest_sizes(visit, language):
    opened = visit(f"lang={language}", width=390)
    for form in FORMS:
        for box in opened.locator(f"#{form} input[type=number]").all():
            box.fill(box.get_attribute("max"))
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390, form
    assert "undefined" not in opened.locator("main").inner_text()
