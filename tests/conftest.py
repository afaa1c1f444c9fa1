"""One suite, any backends: `pytest --backends torch,jax`; without the option, all five.

A backend that is asked for and cannot be loaded is an error, never a skip.
"""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from mha import dispatch


def pytest_addoption(parser):
    parser.addoption(
        "--backends", default=",".join(dispatch.NEEDS), help="the backends to test, joined by commas; default: all five"
    )


def pytest_configure(config):
    config.backends = config.getoption("--backends").split(",")
    for backend in config.backends:
        try:
            with warnings.catch_warnings():
                # What a framework deprecates in its own import, such as MXNet's use of an old NumPy, is not ours.
                warnings.simplefilter("ignore", DeprecationWarning)
                dispatch.load(dispatch.backend_name(backend))
        except Exception as error:
            raise pytest.UsageError(f"--backends asks for {backend!r}, which does not load: {error}") from error


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", metafunc.config.backends, scope="session")


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20170612)


@pytest.fixture(scope="session")
def python():
    """A function that runs code in a new Python process, which must end well, and returns what it prints."""

    def run(code, *arguments, **environment):
        command = [sys.executable, "-c", code, *arguments]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
