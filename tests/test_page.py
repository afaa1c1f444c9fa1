"""The comparison page: what it is made of, without a browser; tests/browser looks at it in one."""

import ast
import json
import re
from importlib import resources

import numpy as np
import pytest
from commands import run

from mha import dispatch, page
from mha.languages import LANGUAGES, catalogue
from mha.page import lessons, measures, worker
from mha.page.make import SCRIPTS, embedded, marks, worst

NAMES = tuple(dispatch.FRAMEWORKS)
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


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_code_is_in_one_piece(name):
    source = (dispatch.FOLDER / name / "layer.py").read_text(encoding="utf-8").splitlines()
    lesson = lessons.read(name)
    shown = {}
    for pieces in lesson.sections.values():
        for piece in pieces:
            for number, line in enumerate(piece.text.splitlines(), piece.first):
                assert shown.setdefault(number, line) == source[number - 1]
    left = [line for number, line in enumerate(source, 1) if number not in shown and line]
    assert [f"# {title}" for title in lesson.sections if title] == left


@pytest.mark.parametrize("name", NAMES)
def test_every_function_of_a_lesson_is_a_piece(name):
    tree = ast.parse((dispatch.FOLDER / name / "layer.py").read_text(encoding="utf-8"))
    tops = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    methods = [node for one in tops if isinstance(one, ast.ClassDef) for node in one.body]
    functions = [node for node in methods if isinstance(node, ast.FunctionDef)]
    shown = [piece.name for pieces in lessons.read(name).sections.values() for piece in pieces]
    assert len(shown) == len(set(shown)) == 1 + len(tops) + len(functions)  # 1: the imports
    assert {node.name for node in tops} <= set(shown)


def test_the_same_functions_are_aligned():
    order = lessons.order([lessons.read(name) for name in NAMES])
    for name in NAMES:
        for title, pieces in lessons.read(name).sections.items():
            assert len(set(order[title])) == len(order[title])
            places = [order[title].index(piece.name) for piece in pieces if not piece.name.startswith("_")]
            assert places == sorted(places)
    assert order["3. The transposes"] == ["transpose_qkv", "transpose_output", "repeat_heads", "repeat_groups"]
    assert "AttentionPooling.__call__" in order["2. Attention poolings"]
    assert not [name for names in order.values() for name in names if name.endswith((".forward", ".setup", ".call"))]


STEP_CODE = {
    "W_q": r"W_q, W_k, W_v = self\.W_q\(queries\)",
    "split_q_reshape": r"reshape\(.*# \(B, T, H, d\)",
    "split_q_permute": r"(transpose|permute)\(.*# \(B, H, T, d\)",
    "split_q": r"return .*reshape.*# \(B\*H, T, d\)",
    "split_v": r"split_v = .*transpose_qkv\(W_v, G\)",
    "visible": r"visible = visible_keys\(",
    "scores": r"return .*\* scale",
    "weights": r"weights = visible_softmax\(scores",
    "pooled": r"pooled = .*self\.drop\(weights",
    "merged_reshape": r"reshape\(.*# \(B, H, T, d\)",
    "merged_permute": r"(transpose|permute)\(.*# \(B, T, H, d\)",
    "merged": r"return .*# \(B, T, H\*d\)",
    "output": r"output = self\.W_o\(merged\)",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_the_line_that_computes_it(name):
    source = (dispatch.FOLDER / name / "layer.py").read_text(encoding="utf-8").splitlines()
    lines = lessons.read(name).lines
    assert list(lines) == list(lessons.STEPS)
    assert lines["W_k"] == lines["W_v"] == lines["W_q"]
    assert lines["split_k"] == lines["split_v"]
    for step, pattern in STEP_CODE.items():
        assert re.search(pattern, source[lines[step] - 1]), step


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
    assert "<" not in embedded({"a": "<b>"})
    with pytest.raises(ValueError, match="JSON"):
        embedded({"a": np.nan})


def test_every_script_is_in_the_page():
    folder = resources.files("mha.page")
    assert {file.name for file in folder.iterdir() if file.name.endswith(".js")} == set(SCRIPTS)


def test_the_page_has_all_lessons(data):
    assert [one["name"] for one in data["frameworks"]] == list(NAMES)
    assert list(data["lessons"]["lines"]) == list(NAMES)
    order = lessons.order([lessons.read(name) for name in NAMES])
    assert [[piece["name"] for piece in one["pieces"]] for one in data["lessons"]["sections"]] == list(order.values())


def test_every_text_that_the_page_names_is_there(made, data):
    html = re.sub(r"<script.*</script>", "", made, flags=re.DOTALL)
    named = set(re.findall(r'data-(?:text|label)="([^"]+)"', html))
    script = made.rpartition("<script>")[2]
    named |= set(re.findall(r'textOf\([^,`]+, "([^"]+)"', script))
    named |= set(re.findall(r'wrong: "([^"]+)"', script))
    assert len(named) > 45
    for language in LANGUAGES:
        assert named - data["texts"][language].keys() == set(), language


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_section_step_fact_and_word_has_a_text(language):
    texts = catalogue(language)["page"]
    assert list(texts["sections"]) == [f"s{at}" for at in range(len(lessons.read("numpy").sections))]
    assert list(texts["steps_of"]) == list(lessons.STEPS)
    assert list(texts["facts"]) == list(measures.NAMES)


def test_english_titles_are_those_of_the_lessons():
    texts = catalogue("en")["page"]["sections"]
    assert list(texts.values())[1:] == [title for title in lessons.read("torch").sections if title]


def test_the_page_is_readable_without_scripts(made):
    assert f'<h1 data-text="title">{catalogue("en")["page"]["title"]}</h1>' in made


def test_parity_shows_the_worst_of_each_check():
    assert worst(RESULTS) == [
        {"backend": "numpy", "check": "steps", "count": 2, "failed": 0, "ratio": 0.5},
        {"backend": "torch", "check": "steps", "count": 2, "failed": 1, "ratio": None},
    ]


# 4. What is measured

# What the table says of each framework; a new release may well answer otherwise, and then the page is right.
KNOWN = {
    "numpy": {"kernel": "none", "random": "next_draw", "mask": "none"},
    "torch": {"kernel": "", "training": "drops", "mask": "hides", "no_keys": "nan", "heads": "error", "lazy": "eager"},
    "tensorflow": {"kernel": "", "training": "keeps", "mask": "attends", "heads": "accepted", "lazy": "lazy"},
    "jax": {"kernel": "", "training": "error", "mask": "attends", "random": "same_draw", "compiled": "each_size"},
    "mxnet": {"layer": "none", "kernel": "of_dense", "training": "keeps", "compiled": "one_program"},
}
KERNELS = {"numpy": "", "torch": "(out, in)", "tensorflow": "(in, out)", "jax": "(in, out)", "mxnet": "(out, in)"}


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
    assert {name: measured[name][0][0] for name in KNOWN[backend]} == KNOWN[backend]
    assert measured["kernel"][0][1] == KERNELS[backend]


def test_a_fact_that_fails_says_why(monkeypatch):
    def fail():
        raise OSError("no\nsuch thing")

    monkeypatch.setattr("mha.backends.numpy.facts.dtype", fail)
    found = worker.measure("numpy")
    assert found["dtype"] == [("failed", "OSError: no such thing")]
    assert found["random"][0][0] == "next_draw"


def test_observations_become_words():
    assert measures.orientation((3, 5), 3) == "(in, out)"
    assert measures.orientation((5, 3), 3) == "(out, in)"
    assert measures.polarity(np.array([0, 0.5, 0.5]), 0) == "hides"
    assert measures.polarity(np.array([1.0, 0, 0]), 0) == "attends"
    assert [measures.alone(np.array([value] * 4)) for value in (np.nan, 0, 0.25)] == ["nan", "zeros", "uniform"]
    assert [measures.programs(count, 3) for count in (1, 2, 3)] == ["one_program", "some_programs", "each_size"]
    assert measures.spread(np.array([1.0, 3])) == "mean 2.00, std 1.000"
    assert measures.spread(np.array([-1.0, 0])) == "mean -0.50, std 0.500"
    assert measures.spread(np.array([-0.001, 0])) == "mean 0.00, std 0.001"
    with pytest.raises(ValueError, match="expected key 0"):
        measures.polarity(np.array([0.2, 0.8]), 0)
    with pytest.raises(ValueError, match="expected NaN, zeros"):
        measures.alone(np.array([0.2, 0.8]))


# 5. The command


def test_the_command_writes_the_page(tmp_path):
    report, file = tmp_path / "parity.json", tmp_path / "page.html"
    report.write_text(json.dumps(REPORT | {"results": RESULTS[:2]}), encoding="utf-8")
    done = run("page", "-o", str(file), "--backends", "numpy", "--parity", str(report))
    assert (done.exit_code, done.output) == (0, f"wrote {file}\n")
    assert '"of_array","float64"' in file.read_text(encoding="utf-8")


def test_the_command_fails_where_parity_did(tmp_path):
    report, file = tmp_path / "parity.json", tmp_path / "page.html"
    report.write_text(json.dumps(REPORT), encoding="utf-8")
    done = run("page", "-o", str(file), "--backends", "numpy", "--parity", str(report))
    assert (done.exit_code, "1 of 4 results of parity failed" in done.output) == (1, True)
    assert file.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"results": [{}], "backends": {}}', '{"results": 3, "backends": {}}']
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
    monkeypatch.setattr("mha.page.differences.LIMIT", 0.01)
    assert page.measure(["numpy"]) == {"numpy": {"problem": "gave nothing for 0.01 seconds"}}
