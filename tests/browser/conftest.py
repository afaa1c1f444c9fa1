"""The browser of these tests, and the comparison page in it: Chromium, driven with Playwright.

`apt-get install chromium` brings it; MHA_CHROMIUM names one elsewhere.
"""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

from mha.learn import page

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

RESULTS = [
    {"backend": "numpy", "check": "steps", "ratio": 0.25, "passed": True},
    {"backend": "jax", "check": "steps", "ratio": None, "passed": False},
]


@pytest.fixture(scope="session")
def browser():
    """Chromium; where there is none, every test fails and says so."""
    found = os.environ.get("MHA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.fail("there is no Chromium: `apt-get install chromium`, or name one in MHA_CHROMIUM", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def file(tmp_path_factory):
    """The page of a machine where NumPy was measured, PyTorch failed, and parity failed on JAX."""
    made = tmp_path_factory.mktemp("made") / "page.html"
    measured = page.measure(["numpy"]) | {"torch": {"problem": "<b>broken</b>"}}
    made.write_text(page.make(measured, {"backends": {}, "results": RESULTS}), encoding="utf-8")
    return made.as_uri()


@pytest.fixture
def visit(browser, file):
    """Open the page: visit(after "#", width, colour scheme); no error is said and no other file is asked for."""
    said, asked, contexts = [], [], []

    def visit(hash="", width=1440, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(f"{file}#{hash}")
        return opened

    yield visit
    for context in contexts:
        context.close()
    assert said == []
    assert {url.partition("#")[0] for url in asked} <= {file, "data:,"}
