"""The fixture `mha_backend` for pytest, which loads this file wherever `mha` is installed.

It is beside `mha`, not in it, and imports `mha` only for a test that uses the fixture. So it does not slow the start of
pytest, and coverage and filters of warnings are in place before `mha` is imported.
"""

import importlib
from typing import Any

import pytest

NAME = "mha_backend"


@pytest.fixture(scope="session")
def mha_backend(request: pytest.FixtureRequest) -> str:
    """Return the name of an installed backend of `mha`: a test that takes it runs once on each.

    If a framework is installed but broken, the tests that take it fail with the framework's own message.
    """
    backend: str = request.param
    importlib.import_module("mha.core.dispatch").load(backend)
    return backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes the fixture on every installed backend, unless the test chooses backends itself."""
    chosen = any(map(_names, metafunc.definition.iter_markers("parametrize")))
    if NAME in metafunc.fixturenames and not chosen:
        mha = importlib.import_module("mha")
        installed = [name for name, known in mha.backends().items() if known.installed]
        metafunc.parametrize(NAME, installed, indirect=True, scope="session")


def _names(mark: pytest.Mark) -> bool:
    """Return whether a mark of a test parametrizes this fixture."""
    given: Any = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return NAME in ([one.strip() for one in given.split(",")] if isinstance(given, str) else given)
