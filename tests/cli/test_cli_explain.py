"""`mha explain`: every step is shown, in every language and on narrow terminals; what is wrong with it, in one line."""

import json
import re

import adapters
import pages
import pytest
from commands import narrow, refused, run, run_installed
from rich.cells import cell_len

from mha import explain
from mha.cli import explain as command
from mha.core.tables import wrap_anywhere
from mha.learn.languages import LANGUAGES, catalogue

FRAMES = "│╭╮╰╯─|+-"


def shown(*arguments):
    """The output of the command."""
    result = run("explain", "--backend", "numpy", *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def joined(text):
    """A text without its white space, in which languages break lines differently."""
    return re.sub(r"\s", "", text)


def test_every_step_is_shown():
    text = shown()
    steps = explain.steps("numpy", valid_lens=[3, 2])
    rows = re.findall(r"^ *(?:\d+\.)? +(\w+) +(\(B.*?\)) +(\(\d.*\))$", text, re.MULTILINE)
    assert rows == [(step.name, step.letters, str(step.shape)) for step in steps]
    for step in steps:
        assert joined(step.meaning) in joined(text)
        if step.source:
            assert f"{step.file}:{step.line} {step.function}\n" in text
            assert joined(step.source) in joined(text)
    assert text.count("transpose_qkv\n") == 3  # one line is told once for queries, keys and values
    numbers = re.findall(r"^ *(\d+)\. ", text, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 15)]
    told = "Sizes: batch B = 2, queries Q = 4, keys and values K = 6, hidden units D = 100, heads H = 5."
    assert told in " ".join(text.split())


def test_sizes_are_those_that_were_asked_for():
    sizes = ["--batch", "3", "--queries", "2", "--keys", "7", "--hiddens", "24", "--heads", "6", "--kv-heads", "2"]
    text = shown(*sizes, "--lens", "1, 9,4")
    assert re.search(r"repeat_k +\(B\*H, K, d\) +\(18, 7, 4\)", text)
    assert re.search(r"visible +\(B, 1, 1, K\) +\(3, 1, 1, 7\)", text)
    assert "Heads of keys and values: G = 2. Each of them serves 3 heads of queries." in text
    for language in LANGUAGES:
        told = catalogue(language)["explain"]["groups"].format(G=2, times=3)
        assert told.count("2") == told.count("3") == 1
        assert joined(told) in joined(shown(*sizes, "--lang", language))
    assert "Valid lengths: 1, 9, 4." in text
    assert "Valid lengths:" not in shown(*sizes)
    assert "visible_keys(" not in shown(*sizes)


@pytest.mark.backends("torch")
def test_the_page_shows_what_is_printed():
    told = re.findall(r"```text\n(.*?)```", pages.text("docs/explain.md"), re.DOTALL)
    for block, options in zip(told, ([], ["--values"], ["--decode", "2"]), strict=True):
        assert block in re.sub(" +\n", "\n", run("explain", "--backend", "torch", *options).stdout)


def test_the_page_s_code_runs(monkeypatch, capsys):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    exec(*pages.code("docs/explain.md"), {})
    assert "'rotate_q', 'rotate_k', 'repeat_k', 'repeat_v', 'scores'" in capsys.readouterr().out


def test_the_example_in_numbers():
    text = shown("--values")
    for matrix in ("key 0  10 11", "key 1  14 15", "query 0  0.75 0.25", "query 1  0.50 0.50", "query 0  11 12 15 16"):
        assert matrix in text
    assert re.search(r"3: sample 1, head 1 .*\n.*key 0  20 21 .*\n.*key 1  24 25 ", text)
    assert "True False" in text
    for note in catalogue("en")["explain"]["example"].values():
        assert joined(note.format(backend="numpy")) in joined(text) or note == "Each head has a colour:"


def test_numbers_in_the_notes_are_in_the_example():
    """They are typed in the texts: of each stage, they are those of its arrays and of what these are made of."""
    steps = {step.name: step.value for step in explain.example("numpy")}
    shown = {f"{number:.2f}" for X in steps.values() for number in X.astype(float).ravel().tolist()}
    for name, note in catalogue("en")["explain"]["example"].items():
        numbers = {f"{float(number):.2f}" for number in re.findall(r"\d+(?:\.\d+)?", note)}
        assert numbers <= shown | {"2.00", "3.00"}, name  # H, and e to the power of ln(3)


def test_a_head_has_one_colour_on_its_whole_path():
    steps, axes = explain.example("numpy"), catalogue("en")["explain"]["axes"]
    colours = {}
    for step in steps:
        if step.name in ("values", "reshape_v", "permute_v", "split_v"):
            for panel in command._matrices(step, 2, axes):
                text = panel.renderable
                for span in text.spans:
                    if span.style in command.COLOURS:
                        colours.setdefault(text.plain[span.start : span.end].strip(), set()).add(span.style)
    heads = {str(number): {command.COLOURS[(number - 10) % 4 // 2]} for number in range(10, 26)}
    assert colours == heads


@pytest.mark.parametrize("arguments", [(), ("--values",)])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_fits_a_usual_terminal(monkeypatch, language, arguments):
    narrow(monkeypatch, 80)
    text = shown("--lang", language, *arguments)
    assert max(map(cell_len, text.splitlines())) <= 80
    texts = catalogue(language)["explain"]
    told = texts["example"] if arguments else {name: texts[name] for name in ("title", "run")}
    for name, note in told.items():
        assert joined(note.format(backend="numpy")) in joined(text) or name == "heads", note  # where there is colour
    if arguments:
        assert texts["axes"]["K"].format(number=1) in text
    else:
        assert joined(texts["steps"]["weights"]) in joined(text)


@pytest.mark.parametrize("arguments", [(), ("--values",)])
def test_a_narrow_terminal_breaks_no_word(monkeypatch, arguments):
    words = {}
    for width in (60, 250):
        narrow(monkeypatch, width)
        text = shown(*arguments)
        words[width] = set(re.sub(f"[{FRAMES}]", " ", text).split())
        assert [line for line in text.splitlines() if len(line) > width and len(line.split()) > 1] == []
    assert words[60] == words[250]


def test_as_json(tmp_path):
    file = tmp_path / "steps.json"
    text = shown("--json", str(file), "--lang", "id")
    written = json.loads(file.read_text())
    assert (written["backend"], written["language"]) == ("numpy", "id")
    assert [step["name"] for step in written["steps"]][-1] == "output"
    assert all(step["meaning"] and "value" not in step and "values" not in step for step in written["steps"])
    assert joined(written["steps"][-1]["meaning"]) in joined(text)
    result = run("explain", "--backend", "numpy", "--values", "--json", "-")
    steps = {step["name"]: step for step in json.loads(result.stdout)["steps"]}
    assert steps["merged"]["values"][1] == [[18, 19, 20, 21]] * 2
    assert steps["merged"]["letters"] == "(B, Q, H*dv)"
    assert steps["merged"]["shape"] == [2, 2, 4]
    assert "query 0  11 12 15 16" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--heads", "7"], "--hiddens is 100, expected a multiple of --heads = 7; choose --heads 5"),
        (["--hiddens", "7", "--heads", "99"], "--hiddens is 7, expected a multiple of --heads = 99; choose --heads 7"),
        (["--kv-heads", "2"], "--kv-heads is 2, expected a divisor of --heads = 5: each serves equally many"),
        (["--lens", "3,2,1"], "--lens is 3,2,1, expected 2 lengths, one for each sample; --batch says how many"),
        (["--lens", "3,x"], "--lens is 3,x, expected whole numbers of at least 0, joined by commas, such as 3,2"),
        (["--lens", "3,-1"], "--lens is 3,-1, expected whole numbers of at least 0, joined by commas, such as 3,2"),
        (["--lang", "de"], "--lang is 'de', expected one of en, zh, ja, id, vi"),
        (["--backend", "cupy"], f"--backend is 'cupy', expected one of {adapters.NAMES}"),
        (["--values", "--heads", "5"], "--heads came with --values, whose sizes are fixed; leave out one of the two"),
        (["--keys", "10000000"], "a step has 2,000,000,000 numbers, expected at most 10,000,000; choose smaller sizes"),
        (["--json", "/no/folder/x"], "--json is /no/folder/x, but there is no folder /no/folder; make it first"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(arguments, text):
    refused(f"mha: {text}\n", "explain", *arguments)


def test_installed_in_a_pipe_that_has_no_unicode():
    result = run_installed("explain", "--values", "--lang", "vi", PYTHONIOENCODING="ascii", LANG="ja_JP.UTF-8")
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode("ascii")
    assert "10 11 12 13" in text
    assert "\x1b" not in text


def test_lines_of_any_language():
    assert wrap_anywhere("one two three", 9, "  ") == ["  one two", "  three"]
    assert wrap_anywhere("注意力权重之和为 1，而", 8) == ["注意力权", "重之和为", "1，而"]  # noqa: RUF001
    # No line begins with a closing mark, or ends with an opening one.
    assert wrap_anywhere("キーと値。（隠す）", 6) == ["キーと", "値。", "（隠", "す）"]  # noqa: RUF001
    assert wrap_anywhere("a longer-word-than-that, b", 6) == ["a", "longer-word-than-that,", "b"]
    assert wrap_anywhere("longer-word-than-that, b", 6, " ") == [" longer-word-than-that,", " b"]
    assert wrap_anywhere("it is 1 * 2 = 2 here", 12) == ["it is", "1 * 2 = 2", "here"]
