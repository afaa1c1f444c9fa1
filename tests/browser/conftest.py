"""The browser of these tests: Chromium, driven with Playwright.

`apt-get install chromium` brings it; MHA_CHROMIUM names one elsewhere.
"""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
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
