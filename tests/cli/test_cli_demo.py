"""`mha demo`: every step with its shape and its place in the code, every head as a picture."""

import importlib
import re

import numpy as np
from commands import run, run_installed

import mha
from mha.cli import grids
from mha.core import dispatch
from mha.learn.explain.lines import place


def test_demo_shows_the_steps_and_where_they_are_computed(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    result = run("demo", "--backend", backend)
    assert result.exit_code == 0, result.output
    assert f"on the backend '{backend}'" in result.stdout
    assert "mha.MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5)" in result.stdout
    assert "output.shape: (2, 4, 100)" in result.stdout
    row = re.compile(r"^(\w+) +(\(B.*?\)) +(\(\d.*?\))(?: +([\w/]+).py:(\d+) (\w+))? *$", re.MULTILINE)
    rows = {name: rest for name, *rest in row.findall(result.stdout)}
    steps = mha.MultiHeadAttention(100, 5, backend="numpy").trace(*(np.ones((2, T, 100), "float32") for T in (4, 6, 6)))
    assert list(rows) == ["queries", "keys", "values", *steps]
    sizes = {"B": 2, "H": 5, "Q": 4, "K": 6, "D": 100, "d": 20, "dv": 20}
    for name, (letters, shape, *_) in rows.items():
        assert eval(letters, {}, sizes) == eval(shape)
        assert name not in steps or eval(shape) == steps[name].shape
    # The folder's own path may be long.
    assert max(len(line) for line in result.stdout.splitlines() if str(dispatch.FOLDER) not in line) <= 80
    for name in steps:
        where = place(backend, name)
        assert rows[name][2:] == [where.file.removesuffix(".py"), str(where.line), where.function]
    assert "code, in mha/backends/" in result.stdout
    assert "MHA_READABLE=1" in result.stdout


def test_demo_runs_the_lines_that_it_points_at(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", backend)  # which the command sets, and which goes back with this
    dispatch.load(backend)
    pooling, ran = importlib.import_module(f"mha.backends.{backend}.pooling"), []
    visible_softmax = pooling.visible_softmax
    monkeypatch.setattr(pooling, "visible_softmax", lambda *arrays: ran.append(arrays) or visible_softmax(*arrays))
    run("demo", "--backend", backend)
    # For the steps, and for the weights of the heads. A compiler may trace the same lines for the example's own call.
    assert sum(dispatch.load(backend).value_of(scores) is not None for scores, *_ in ran) >= 2


def test_demo_shows_every_head(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", backend)
    lines = run("demo").stdout.splitlines()
    top = next(i for i, line in enumerate(lines) if "head 0" in line)
    assert re.findall(r"head (\d)", lines[top]) == list("01234")
    heads = zip(*(re.findall(r"[^│╭╮╰╯|+]{14}", line) for line in lines[top + 1 : top + 6]), strict=True)
    pictures = ["\n".join(head) for head in heads]
    assert len(set(pictures)) == 5
    for picture in pictures:
        numbers, *queries = picture.splitlines()
        assert numbers.split() == list("012345")
        # Three keys may be seen by all four queries, the other three are blank.
        assert [bool(query[2:8].strip()) and " " not in query[2:8] for query in queries] == [True] * 4
        assert [query[8:].strip() for query in queries] == [""] * 4


def test_heat_map():
    weights = np.array([[0.0, 1e-9, 0.2], [0.5, 0.7, 1.0]])
    assert grids.heat_map(weights, grids.ASCII) == "   0 1 2\n0   ..--\n1 ++##@@"
    assert grids.heat_map(weights, grids.BLOCKS) == "   0 1 2\n0   ··░░\n1 ▒▒▓▓██"


def test_installed_demo_in_a_pipe_is_plain_text():
    result = run_installed("demo", PYTHONIOENCODING="utf-8")
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    assert "on the backend 'numpy'" in text
    assert "\x1b" not in text
    assert "█" in text
