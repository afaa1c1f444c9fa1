"""The fixture `mha_backend` for pytest, which loads this file wherever `mha` is installed.

It lies beside `mha`, not in it, and imports it only for a test that asks for the fixture: so it neither slows the start
of pytest nor comes before what measures coverage or filters warnings.
"""

import importlib
from typing import Any

import pytest

NAME = "mha_backend"


@pytest.fixture(scope="session")
def mha_backend(request: pytest.FixtureRequest) -> str:
    """The name of an installed backend of `mha`: a test that asks for it runs once on each.

    A framework that is there but broken is an error of the tests that ask for it, with its own message.
    """
    backend: str = request.param
    importlib.import_module("mha.dispatch").load(backend)
    return backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for the fixture on every installed backend, unless it says itself on which."""
    told = any(map(_names, metafunc.definition.iter_markers("parametrize")))
    if NAME in metafunc.fixturenames and not told:
        mha = importlib.import_module("mha")
        installed = [name for name, known in mha.backends().items() if known.installed]
        metafunc.parametrize(NAME, installed, indirect=True, scope="session")


def _names(mark: pytest.Mark) -> bool:
    """Whether a mark of a test is of this fixture."""
    given: Any = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return NAME in ([one.strip() for one in given.split(",")] if isinstance(given, str) else given)
