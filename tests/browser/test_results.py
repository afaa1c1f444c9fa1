"""The pages of results in a browser: what is on the first screen, and that no other file is asked for."""

import plain_kernel
import pytest
import small_llama
from commands import run
from playwright.sync_api import expect
from small_llama_mistakes import Interleaved

from mha import parity

HEIGHT = 900
KERNEL = """
import sys
sys.path.append({folder!r})
import plain_kernel

def wrong(q, k, v, causal=False):
    return plain_kernel.attend(q, k, v, causal, wrong="tiled heads")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a wrong kernel, and of a wrong model, alone and beside the right one."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "kernels.py").write_text(KERNEL.format(folder=plain_kernel.__file__.rpartition("/")[0]), "utf-8")
    ids, mask = small_llama.tokens()
    for name, mistaken in {"right": small_llama.Attention, "wrong": Interleaved}.items():
        with parity.record(made := small_llama.Model(mistaken), folder / name, weights=True):
            made(ids, mask)
    right, wrong = str(folder / "right"), str(folder / "wrong")
    commands = {
        "kernel": ("kernel", f"{folder / 'kernels.py'}:wrong", "--backend", "numpy", "--dtype", "float32"),
        "audit": ("audit", wrong),
        "compare": ("compare", right, wrong),
    }
    for name, arguments in commands.items():
        assert run(*arguments, "--html", str(folder / f"{name}.html")).exit_code == 1
    return {name: folder / f"{name}.html" for name in commands}


@pytest.mark.parametrize(
    ("name", "words"),
    [("kernel", "why: heads of keys are tiled"), ("audit", "interleaved"), ("compare", "interleaved")],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_mistake_and_its_picture_are_on_the_first_screen(browser, pages, name, words, scheme):
    asked, said = [], []
    context = browser.new_context(viewport={"width": 1280, "height": HEIGHT}, color_scheme=scheme)
    opened = context.new_page()
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: said.append(message.text))
    opened.goto(pages[name].as_uri())
    expect(opened).to_have_title(f"mha {name}")
    mistake, picture = opened.locator("p.finding", has_text=words), opened.locator("svg").first
    for one in (mistake, picture, picture.locator("rect.wrong").first):
        box = one.bounding_box()
        assert box["height"] > 0
        assert box["y"] + box["height"] < HEIGHT
    width, outer = opened.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= outer
    filled = picture.locator("rect.wrong").first.evaluate("one => getComputedStyle(one).fill")
    assert filled == {"light": "rgb(176, 0, 32)", "dark": "rgb(255, 82, 82)"}[scheme]
    assert (asked, said) == ([pages[name].as_uri()], [])
    assert pages[name].stat().st_size < 1_000_000
    context.close()
