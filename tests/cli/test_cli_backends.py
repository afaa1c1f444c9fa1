"""`mha backends`: what is installed, what is missing and what is broken."""

import pytest
from commands import run

from mha.core import dispatch


def test_backends_shows_version_and_device(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", backend)
    result = run("backends")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith(backend))
    assert row.split()[:2] == [backend, dispatch.backends()[backend].version]
    assert dispatch.load(backend).device() in row
    assert row.rstrip().endswith("selected")
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == list(dispatch.FRAMEWORKS)


def test_backends_shows_whether_the_lesson_runs(monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    monkeypatch.setenv("MHA_READABLE", "1")
    noted = [line for line in run("backends").stdout.splitlines() if "readable" in line]
    assert [line.split()[0] for line in noted] == ["numpy"]


@pytest.mark.parametrize(("selected", "code"), [("numpy", 0), ("jax", 1)])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("absent", 'no_such_framework not installed: pip install "no-such-framework>=3"'),
        ("broken", "broken: OSError: libbroken.so: undefined symbol"),
    ],
)
def test_backends_goes_on_where_one_does_not_work(monkeypatch, request, kind, why, selected, code):
    name = request.getfixturevalue(kind)
    monkeypatch.setenv("MHA_BACKEND", selected)
    result = run("backends")
    assert result.exit_code == code
    assert why in next(line for line in result.stdout.splitlines() if line.startswith(name))
    assert result.stdout.splitlines()[-1].startswith(list(dispatch.FRAMEWORKS)[-1])
