"""The comparison page: what it is made of, without a browser; tests/browser looks at it in one."""

import ast
import itertools
import json
import re
from pathlib import Path

import adapters
import numpy as np
import pytest
from commands import run

from mha.core import dispatch
from mha.learn import page
from mha.learn.languages import LANGUAGES, catalogue
from mha.learn.page import lessons, measures, worker
from mha.learn.page.make import SCRIPTS, marks, text_of, to_json, worst
from mha.learn.plot import copying

NAMES = tuple(dispatch.FRAMEWORKS)
PICTURES = ("splits", "filling", "masks", "copies")
RESULTS = [
    {"backend": "numpy", "check": "steps", "ratio": 0.25, "passed": True},
    {"backend": "numpy", "check": "steps", "ratio": 0.5, "passed": True},
    {"backend": "torch", "check": "steps", "ratio": None, "passed": False},
    {"backend": "torch", "check": "steps", "ratio": 0.5, "passed": True},
]
REPORT = {"backends": {"numpy": {"numpy": "2.0"}}, "results": RESULTS}


@pytest.fixture(scope="module")
def made():
    """A page of a machine without any framework; one fails, with a problem that could break out of its element."""
    return page.make({"torch": {"problem": "</script><b>&"}}, REPORT)


@pytest.fixture(scope="module")
def data(made):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL)
    return json.loads(found)


# 1. The lessons


def source(place):
    """The text of a file of the backends, as "torch/heads.py"."""
    return (dispatch.FOLDER / place).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "chapter"), [*itertools.product(NAMES, dispatch.CHAPTERS)])
def test_every_line_and_every_function_of_a_lesson_is_in_one_piece(name, chapter):
    lines, shown = source(f"{name}/{chapter}.py").splitlines(), {}
    pieces = lessons.read(name)[chapter]
    for piece in pieces:
        for number, line in enumerate(piece.text.splitlines(), piece.first):
            assert shown.setdefault(number, line) == lines[number - 1]
    assert [line for number, line in enumerate(lines, 1) if number not in shown and line] == []
    tree = ast.parse("\n".join(lines))
    tops = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    methods = [node for one in tops if isinstance(one, ast.ClassDef) for node in one.body]
    functions = [node for node in methods if isinstance(node, ast.FunctionDef)]
    names = [piece.name for piece in pieces]
    assert len(names) == len(set(names)) == 1 + len(tops) + len(functions)  # 1: the imports
    assert {node.name for node in tops} <= set(names)


@pytest.mark.parametrize("chapter", dispatch.CHAPTERS)
def test_the_same_functions_are_aligned(chapter):
    each = [lessons.read(name)[chapter] for name in NAMES]
    order = lessons.order(each)
    assert len(set(order)) == len(order)
    for pieces in each:
        places = [order.index(piece.name) for piece in pieces if not piece.name.startswith("_")]
        assert places == sorted(places)
    assert not [name for name in order if name.endswith((".forward", ".setup", ".call"))]


def test_pieces_have_the_names_that_all_share():
    first, *heads = lessons.order([lessons.read(name)["heads"] for name in NAMES])
    assert (first, heads[:4]) == ("imports", ["transpose_qkv", "transpose_output", "repeat_heads", "repeat_groups"])
    assert "AttentionPooling.__call__" in lessons.order([lessons.read(name)["pooling"] for name in NAMES])


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_the_line_that_computes_it(name):
    """As `mha explain` has it, whose tests look at every step."""
    lines = lessons.lines(name)
    assert list(lines) == list(lessons.STEPS)
    for step, code in {"W_k": "self.W_k(keys)", "permute_q": "# (B, H, T, d)", "output": "self.W_o(merged)"}.items():
        file, number = lines[step].split(":")
        assert code in source(f"{name}/{file}").splitlines()[int(number) - 1], step


# 2. Differences


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("a = b", "a = b", []),
        ("np.where(X)", "jnp.where(X)", ["np"]),
        ("X.permute(0, 2)", "X.transpose(0, 2)", ["permute"]),
        ("tf.reshape(X, (B, T))", "X.reshape(B, T)", ["tf", "(X,", ")"]),
        ("a b c", "a c", ["b"]),
        ("a c", "a b c", []),
        ("a\n    b", "a b", []),  # what is broken differently is the same
        ("x y\nz w", "a b", ["x y", "z w"]),
        ("x", "", ["x"]),
        ("", "x", []),
    ],
)
def test_differences_are_words(text, reference, expected):
    assert [text[start:end] for start, end in lessons.differing(text, reference)] == expected


def test_marks_are_of_each_other_framework_that_has_the_piece():
    found = {name: lessons.Piece("f", 1, text) for name, text in (("numpy", "np.a"), ("jax", "jnp.a"))}
    assert marks("np.a", "numpy", found) == {"jax": [(0, 2)]}


# 3. The page


def test_the_page_loads_nothing(made):
    elements = re.sub(r"<script.*?</script>", "", made, flags=re.DOTALL)
    assert "http" not in elements
    sources = re.findall(r'(?:src|href)="([^"]*)"', made)
    assert sources
    assert all(one.startswith(("#", "data:")) for one in sources)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|WebSocket|localStorage", made)
    assert "<!-- " not in made  # all parts are in


def test_data_cannot_end_its_element(made, data):
    assert data["measured"]["torch"]["problem"] == "</script><b>&"
    assert made.count("</script>") == 2
    assert "<" not in to_json({"a": "<b>"})
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": np.nan})


def test_every_script_is_in_the_page():
    folder = Path(page.__file__).parent / "scripts"
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*.js")} == set(SCRIPTS)


def test_the_page_has_all_lessons(data):
    assert [one["name"] for one in data["frameworks"]] == list(NAMES)
    assert list(data["lessons"]["lines"]) == list(NAMES)
    read = [lessons.read(name) for name in NAMES]
    order = {chapter: lessons.order([own[chapter] for own in read]) for chapter in dispatch.CHAPTERS}
    assert {one["name"]: [piece["name"] for piece in one["pieces"]] for one in data["lessons"]["chapters"]} == order


def test_every_text_that_the_page_names_is_there(made, data):
    html = re.sub(r"<script.*</script>", "", made, flags=re.DOTALL)
    keys = set(re.findall(r'data-(?:text|label)="([^"]+)"', html))
    script = made.rpartition("<script>")[2]
    keys |= set(re.findall(r'textOf\([^,`]+, "([^"]+)"', script))
    keys |= set(re.findall(r'wrong: "([^"]+)"', script))
    assert len(keys) > 45
    for language in LANGUAGES:
        for key in keys:
            assert text_of(data["texts"][language], key), (language, key)


def test_the_page_has_the_numbers_of_copies(data):
    assert data["copying"] == copying.page_data()


def test_every_text_of_a_picture_is_named(made):
    for picture in PICTURES:
        for key in catalogue("en")["page"][picture]:
            assert f'"{picture}.{key}"' in made


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_chapter_step_fact_and_word_has_a_text(language):
    texts = catalogue(language)["page"]
    assert list(texts["chapter_titles"]) == list(dispatch.CHAPTERS)
    assert list(texts["steps_of"]) == list(lessons.STEPS)
    assert list(texts["facts"]) == list(measures.NAMES)


def test_english_titles_are_those_of_the_lessons():
    for chapter, title in catalogue("en")["page"]["chapter_titles"].items():
        first = source(f"torch/{chapter}.py").splitlines()[0].replace("PyTorch diff", "each framework diff")
        number, words = title.split(". ")
        assert first.startswith(f'"""Chapter {number}: {words[0].lower()}{words[1:]}')


def test_the_page_is_readable_without_scripts(made):
    assert f'<h1 data-text="title">{catalogue("en")["page"]["title"]}</h1>' in made


def test_parity_shows_the_worst_of_each_check():
    assert worst(RESULTS) == [
        {"backend": "numpy", "check": "steps", "count": 2, "failed": 0, "ratio": 0.5},
        {"backend": "torch", "check": "steps", "count": 2, "failed": 1, "ratio": None},
    ]


# 4. What is measured


@pytest.fixture(scope="module")
def measured(backend):
    return worker.measure(backend)


def test_every_fact_is_measured(backend, measured):
    assert list(measured) == list(measures.NAMES)
    words = catalogue("en")["page"]["words"]
    for name, fact in measured.items():
        assert fact, name
        assert all(word in words or (word == "" and detail) for word, detail in fact), name
        assert "failed" not in dict(fact), (name, fact)
    json.dumps(measured, allow_nan=False)


def test_facts_are_as_known(backend, measured):
    for name, begins in adapters.of(backend).measures:
        assert " ".join(measured[name][0]).strip().startswith(begins), name


def test_a_fact_that_fails_says_why(monkeypatch):
    def fail():
        raise OSError("no\nsuch thing")

    monkeypatch.setattr("mha.learn.page.frameworks.numpy.dtype", fail)
    found = worker.measure("numpy")
    assert found["dtype"] == [("failed", "OSError: no such thing")]
    assert found["random"][0][0] == "next_draw"


def test_observations_become_words():
    assert measures.orientation((3, 5), 3) == "(in, out)"
    assert measures.orientation((5, 3), 3) == "(out, in)"
    assert measures.polarity(np.array([0, 0.5, 0.5]), 0) == "hides"
    assert measures.polarity(np.array([1.0, 0, 0]), 0) == "attends"
    assert [measures.alone(np.array([value] * 4)) for value in (np.nan, 0, 0.25)] == ["nan", "zeros", "uniform"]
    for made, word in (("a", "one_program"), ("ab", "some_programs"), ("abc", "each_size")):
        assert measures.programs("jit", made, [].append) == [(word, f"jit: {len(made)}")]
    assert measures.spread(np.array([1.0, 3])) == "mean 2.00, std 1.000"
    assert measures.spread(np.array([-1.0, 0])) == "mean -0.50, std 0.500"
    assert measures.spread(np.array([-0.001, 0])) == "mean 0.00, std 0.001"
    with pytest.raises(ValueError, match="expected key 0"):
        measures.polarity(np.array([0.2, 0.8]), 0)
    with pytest.raises(ValueError, match="expected NaN, zeros"):
        measures.alone(np.array([0.2, 0.8]))


# 5. The command


@pytest.mark.parametrize(("results", "failed"), [(RESULTS[:2], ""), (RESULTS, "1 of 4 results of mha parity failed\n")])
def test_the_command_writes_the_page_and_fails_where_parity_did(tmp_path, results, failed):
    report, file = tmp_path / "parity.json", tmp_path / "page.html"
    report.write_text(json.dumps(REPORT | {"results": results}), encoding="utf-8")
    done = run("page", "-o", str(file), "--backends", "numpy", "--parity", str(report))
    assert (done.exit_code, done.output) == (bool(failed), f"wrote {file}\n{failed}")
    assert '"of_array","float64"' in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"results": [{}], "backends": {}}',
        '{"results": 3, "backends": {}}',
        '{"results": [], "backends": 3}',
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, text):
    report = tmp_path / "parity.json"
    report.write_text(text, encoding="utf-8")
    done = run("page", "-o", str(tmp_path / "page.html"), "--backends", "numpy", "--parity", str(report))
    assert done.exit_code == 2
    assert f"--parity is {report}, expected a report as `mha parity --json {report}` writes it" in done.output
    assert not (tmp_path / "page.html").exists()


def test_a_report_that_is_not_there_is_refused(tmp_path):
    done = run("page", "-o", str(tmp_path / "page.html"), "--backends", "numpy", "--parity", "nowhere.json")
    assert (done.exit_code, done.output) == (
        2,
        "mha: --parity is nowhere.json, which cannot be read: No such file or directory\n",
    )


def test_a_framework_that_breaks_says_so():
    done = []
    found = page.measure(["nothing", "numpy"], done.append)
    assert "nothing" in found["nothing"]["problem"]
    assert found["numpy"]["versions"]["numpy"] == np.__version__
    assert done == ["nothing", "numpy"]


def test_a_framework_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("mha.learn.page.differences.LIMIT", 0.01)
    assert page.measure(["numpy"]) == {"numpy": {"problem": "gave nothing for 0.01 seconds"}}
