"""The pictures of the comparison page in a browser: what is chosen, typed and seen, beside what Python computes."""

import numpy as np
import pytest
from playwright.sync_api import expect

import mha
from mha.learn.languages import LANGUAGES, catalogue
from mha.learn.plot import copying
from mha.learn.plot.cache_bytes import BYTES, by_groups, byte_text, name_of
from mha.learn.plot.masks import compose
from mha.learn.plot.slots import fill as filled

FORMS = ("splits-sizes", "slots-sizes", "bytes-sizes", "masks-sizes")


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


# 2. A cache that fills


def attention(left):
    return mha.MultiHeadAttention(4, 2, window=None if left is None else (left, 0), backend="numpy")


KINDS = {"slot written": "new", "slot seen": "seen", "slot unseen": "not seen", "slot empty": "empty"}


@pytest.mark.parametrize(("T", "S", "left"), [(9, 4, 2), (7, 3, 2), (5, 1, 0), (6, 5, 1), (4, 7, ""), (5, 5, "")])
def test_slots_fill_as_those_of_a_cache(visit, T, S, left):
    opened, texts = visit(), catalogue("en")["page"]["filling"]
    fill(opened, "slots-sizes", T=T, S=S, left=left)
    found = filled(attention(None if left == "" else left), T, S)
    opened.locator("#slots-token").fill("0")
    for t in range(T):
        expect(opened.locator("#slots-place")).to_have_text(f"t{t}")
        names = [[f"k{k}" if k >= 0 else "empty" for k in row] for row in found.positions[: t + 1]]
        assert tables(opened, "slots-table") == [names]
        kinds = opened.locator("#slots-table tr[aria-current] td").evaluate_all("all => all.map(one => one.className)")
        held, seen = found.positions[t], found.seen[t]
        assert [KINDS[kind] for kind in kinds] == [
            "empty" if k < 0 else "new" if k == t else "seen" if sees else "not seen"
            for k, sees in zip(held, seen, strict=True)
        ]
        listed = ", ".join(f"k{k} (s{slot})" for slot, k in enumerate(held) if seen[slot])
        said = [texts["goes"].format(t=t, S=S, slot=list(held).index(t), seen=listed)]
        said += [texts["loses"].format(k=found.lost[t])] if found.lost[t] >= 0 else []
        expect(opened.locator("#slots-said")).to_have_text(" ".join(said))
        if t < T - 1:
            opened.locator("#slots-next").click()
    expect(opened.locator("#slots-next")).to_be_disabled()
    opened.locator("#slots-token").focus()
    opened.keyboard.press("ArrowLeft")
    expect(opened.locator("#slots-place")).to_have_text(f"t{T - 2}")
    opened.locator("#slots-previous").click()
    expect(opened.locator("#slots-place")).to_have_text(f"t{T - 3}")


@pytest.mark.parametrize(("S", "left"), [(3, ""), (2, 2), (3, 5)])
def test_a_cache_that_is_full_refuses_the_token_that_mha_refuses(visit, S, left):
    opened = visit()
    fill(opened, "slots-sizes", T=9, S=S, left=left)
    opened.locator("#slots-token").focus()
    opened.keyboard.press("End")
    (refused,) = [t for t in range(9) if refuses(t + 1, S, left) and not refuses(t, S, left)]
    expect(opened.locator("#slots-said")).to_have_text(
        catalogue("en")["page"]["filling"]["full"].format(t=refused, k=refused - S)
    )
    expect(opened.locator("#slots-place")).to_have_text(f"t{refused}")
    expect(opened.locator("#slots-next")).to_be_disabled()
    assert opened.locator("#slots-table tbody tr").count() == refused
    opened.locator("#slots-previous").click()
    expect(opened.locator("#slots-said")).to_contain_text(f"Token {refused - 1} goes into slot")


def refuses(tokens, S, left):
    """Whether a cache of S slots is too small for so many tokens."""
    try:
        filled(attention(None if left == "" else left), max(tokens, 1), S)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    ("H", "d", "S", "B", "L"), [(32, 128, 8192, 1, 32), (12, 64, 1000, 3, 7), (1, 1, 1, 1, 1), (7, 9, 131, 2, 1)]
)
def test_bytes_are_those_that_python_counts(visit, H, d, S, B, L, dtype):
    opened = visit()
    fill(opened, "bytes-sizes", H=H, d=d, S=S, B=B, L=L, dtype=dtype)
    bars = by_groups(H, d, S, batch_size=B, layers=L, dtype=dtype)
    rows = opened.locator("#bytes-table tr").evaluate_all(
        "all => all.map(row => row.innerText.split('\\t').slice(0, 2))"
    )
    assert rows == [[f"{name_of(G, H)}, G = {G}", byte_text(count)] for G, count in bars.items()]
    widths = opened.locator("#bytes-table .meter > span").evaluate_all(
        "all => all.map(one => parseFloat(one.style.width))"
    )
    assert widths == pytest.approx([100 * count / bars[H] for count in bars.values()], rel=1e-3)


# 3. Masks together


@pytest.mark.parametrize(
    ("Q", "K", "valid", "left", "right", "causal"),
    [(5, 5, 3, 1, "", True), (5, 7, 4, "", "", False), (8, 6, 8, 2, 1, False), (3, 4, 0, 0, 0, True)],
)
def test_masks_and_weights_are_those_of_python(visit, Q, K, valid, left, right, causal):
    opened, texts = visit(), catalogue("en")["page"]["masks"]
    fill(opened, "masks-sizes", Q=Q, K=K, valid=valid, left=left, right=right, causal=causal)
    scores = np.array(opened.evaluate("masksPicture.scores.data")).reshape(1, Q, K)
    bounds = tuple(None if one == "" else one for one in (left, right))
    window = None if bounds == (None, None) else bounds
    found = compose(scores, [valid], causal=causal, window=window)
    everything = np.ones((1, Q, K), bool)
    rules = [found.rules.get(name, everything) for name in ("lengths", "causal", f"window {window}")]
    marked = [[["✓" if one else "hidden" for one in row] for row in sees[0]] for sees in (*rules, found.seen)]
    assert tables(opened, "masks-rules") == marked
    here = [
        [f"{weight:.2f}" if one else "hidden" for one, weight in zip(*rows, strict=True)]
        for rows in zip(found.seen[0], found.weights[0], strict=True)
    ]
    book = [[f"{weight:.2f}" for weight in row] for row in found.book[0]]
    assert tables(opened, "masks-weights") == [here, book]
    without = [f"q{q}" for q in np.flatnonzero(~found.seen[0].any(1))]
    said = texts["without"].format(queries=", ".join(without), share=f"{1 / K:.2f}") if without else texts["none"]
    expect(opened.locator("#masks-said")).to_have_text(said)
    for where in ("rules", "weights"):
        framed = opened.locator(f"#masks-{where} table:first-child tr.without th").all_inner_texts()
        assert framed == without * (4 if where == "rules" else 2)


def test_masks_say_their_rules(visit):
    opened = visit()
    titles = opened.locator("#masks-rules caption")
    assert titles.all_inner_texts() == ["Valid lengths: j < 3", "causal: j ≤ i", "window: i - 1 ≤ j", "all of them"]
    fill(opened, "masks-sizes", valid=2, left="", right=4, causal=False)
    assert titles.all_inner_texts() == ["Valid lengths: j < 2", "causal", "window: j ≤ i + 4", "all of them"]
    before = opened.locator("#masks-weights").inner_text()
    opened.locator("#masks-draw").click()
    assert opened.locator("#masks-weights").inner_text() != before


# 4. Copies


@pytest.mark.parametrize("percent", [0, 5, 35, 50, 100])
def test_heads_copy_what_those_of_python_do(visit, percent):
    opened, of = visit(), copying.task(2)
    opened.locator("#copies-share").fill(str(percent))
    opened.locator("#copies-sample").select_option("4")
    found = opened.evaluate("copiesPicture.found")
    one = copying.best_layer(of, copying.one_head(2, percent / 100))(*of[:3])
    two = copying.best_layer(of, copying.shares_of(2, 2))(*of[:3])
    for name, output in (("one", one), ("two", two)):
        errors = copying.errors(of, output)
        np.testing.assert_allclose(found[name]["wanted"], of.wanted[:, 0], rtol=1e-12)
        np.testing.assert_allclose(found[name]["output"], output[:, 0], atol=1e-12)
        np.testing.assert_allclose(found[name]["errors"], errors, atol=1e-12)
        assert found[name]["all"] == pytest.approx(errors.mean(), abs=1e-12)
    rows = [[f"{number:z.2f}" for number in row[4, 0]] for row in (of.wanted, one, two)]
    assert tables(opened, "copies-numbers") == [rows]
    first, second = (f"{error:z.3f}" for error in copying.errors(of, one))
    said = catalogue("en")["page"]["copies"]["said"].format(
        share=f"{percent / 100:.2f}", first=first, second=second, all="0.500", two="0.000"
    )
    expect(opened.locator("#copies-said")).to_have_text(said)


def test_errors_of_heads_are_shown(visit):
    opened, found = visit(), copying.page_data()
    errors = [[found[kind][at] for kind in ("least", "constructed")] + [found["fits"][at][-1]] for at in range(2)]
    assert tables(opened, "copies-errors") == [[[f"{error:.4f}" for error in row] for row in errors]]
    assert opened.locator("#copies-curve polyline").count() == 3
    lines = opened.locator("#copies-fits polyline").evaluate_all("all => all.map(one => one.points.length)")
    assert lines == [copying.STEPS + 1] * 2
    curve = opened.locator("#copies-curve .line.all").evaluate("one => [...one.points].map(point => point.y)")
    grid = opened.locator("#copies-curve .grid-line").evaluate_all("all => all.map(one => one.y1.baseVal.value)")
    assert curve == pytest.approx([grid[1]] * 41, abs=0.06)  # 1/2 for each weight
    before = opened.locator("#copies-curve .mark-line").get_attribute("x1")
    opened.locator("#copies-share").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.locator("#copies-percent")).to_have_text("0.55")
    assert float(opened.locator("#copies-curve .mark-line").get_attribute("x1")) > float(before)


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
