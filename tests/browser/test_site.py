"""The site in a browser: pages, search, links, both colour schemes, a phone's width; nothing is loaded from elsewhere.

Needs what the tox environment `browser` installs.
"""

import functools
import http.server
import inspect
import subprocess
import sys
import threading

import pages
import pytest
from playwright.sync_api import expect

from mha import explain, parity, testing

PHONE, LAPTOP, DESK = {"width": 390, "height": 844}, {"width": 1366, "height": 768}, {"width": 1440, "height": 900}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and prints nothing of it."""

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The built site."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place]
    built = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return place


@pytest.fixture(scope="module")
def address(folder):
    """The site, served on this machine."""
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def opened(browser, address):
    """A function that opens a page of the site; at the end, nothing was amiss and nothing came from elsewhere."""
    amiss, contexts = [], []

    def page(path="index.html", viewport=DESK, **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        shown = context.new_page()
        shown.on(
            "console", lambda message: amiss.append(message.text) if message.type in ("error", "warning") else None
        )
        shown.on("pageerror", lambda error: amiss.append(str(error)))
        shown.on("response", lambda response: amiss.append(response.url) if response.status >= 400 else None)
        shown.on("request", lambda request: amiss.append(request.url) if not own(request.url) else None)
        shown.goto(address + path)
        return shown

    def own(url):
        return url.startswith((address, "data:", "blob:"))

    yield page
    for context in contexts:
        context.close()
    assert amiss == []


@pytest.fixture(scope="module")
def paths(folder):
    """Every page of the site."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))


def test_the_search_finds_an_argument(opened):
    page = opened()
    page.get_by_role("textbox", name="Search").click()
    expect(page.locator(".md-search-result__meta")).to_have_text(
        "Type to start searching", timeout=30_000
    )  # it is read
    page.keyboard.type("valid_lens")
    results = page.locator(".md-search-result__link")
    expect(results.first).to_be_visible(timeout=30_000)
    results.first.click()
    page.wait_for_url("**/*valid_lens*")  # what is marked on the page that is found
    expect(page.locator("article mark").first).to_have_text("valid_lens")


@pytest.mark.parametrize("door", ["How to use the layer", "How to port a model and prove it", "The course"])
def test_a_door_leads_in(opened, door):
    page = opened()
    page.locator("article").get_by_role("link", name=door, exact=False).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(door)


def test_each_section_of_the_navigation_opens(opened):
    page = opened()
    titles = page.locator(".md-tabs__link").all_inner_texts()
    assert len(titles) >= 8
    for title in titles:
        page.locator(".md-tabs__link", has_text=title.strip()).first.click()
        expect(page.locator(".md-tabs__item--active")).to_contain_text(title.strip())


@pytest.mark.parametrize("path", ["semantics.html", "differences.html", "mistakes.html", "weights.html"])
def test_tables_fit_a_laptop(opened, path):
    page = opened(path, viewport=LAPTOP)
    rooms = page.locator(".md-typeset__scrollwrap")  # a bar appears in it where a table is wider
    expect(rooms).not_to_have_count(0)
    wider = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    assert rooms.evaluate_all(wider) == []


def test_a_solution_is_folded_away_until_it_is_asked_for(opened):
    page = opened("course/1-the-layer.html")
    solution = page.locator("details").first
    code = solution.locator("code").first
    expect(code).not_to_be_visible()
    solution.locator("summary").click()
    expect(code).to_be_visible()
    expect(solution).to_contain_text("the same: True")


def test_the_reference_has_arguments_and_types(opened):
    page = opened("reference/layer.html")
    article = page.locator("article")
    expect(article.get_by_role("heading", name="mha.MultiHeadAttention", exact=False).first).to_be_visible()
    for name in ("num_key_value_heads", "qk_norm", "valid_lens", "return_weights"):
        expect(article).to_contain_text(name)


@pytest.mark.parametrize("module", [explain, parity, testing])
def test_the_reference_has_every_function_and_class_of_a_module(opened, module):
    name = module.__name__
    page = opened(f"reference/{name.removeprefix('mha.')}.html")
    shown = set(page.locator("[id]").evaluate_all("all => all.map(one => one.id)"))
    public = {one: getattr(module, one) for one in module.__all__}
    things = [(one, X) for one, X in public.items() if inspect.isfunction(X) or inspect.isclass(X)]
    assert [one for one, X in things if shown.isdisjoint((f"{name}.{one}", f"{X.__module__}.{one}"))] == []


def test_the_comparison_page_is_there(opened):
    page = opened("page.html")
    page.get_by_role("link", name="The page itself").first.click()
    page.wait_for_url("**/comparison.html*")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_the_dark_scheme_is_chosen_by_the_system_and_by_hand(opened):
    page = opened(color_scheme="dark")
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    page.get_by_title("Light").click()
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "default")


def test_no_page_is_wider_than_a_phone(opened, address, paths):
    page = opened(viewport=PHONE)
    assert len(paths) > 30
    wide = []
    for path in paths:
        page.goto(address + path)
        if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
            wide.append(path)
    assert wide == []


def test_the_navigation_opens_on_a_phone(opened):
    page = opened(viewport=PHONE)
    link = page.locator(".md-nav--primary").get_by_role("link", name="Course", exact=True)
    expect(link).not_to_be_in_viewport()
    page.locator(".md-header label[for=__drawer]").click()
    link.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("The course")


def test_every_picture_is_shown_and_described(opened, address, folder, paths):
    page = opened()
    illustrated = [path for path in paths if "<img" in (folder / path).read_text(encoding="utf-8")]
    assert len(illustrated) >= 3
    for path in illustrated:
        page.goto(address + path)
        pictures = page.locator("article img")
        for number in range(pictures.count()):
            picture = pictures.nth(number)
            assert picture.evaluate("one => one.complete && one.naturalWidth > 0"), path
            assert picture.get_attribute("alt"), path
