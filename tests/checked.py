"""Checks of one process, or of one group of processes, as tests: those that are asked for run together."""

import pytest
import ranks


def parameters(module, backend, *long):
    """The checks of a module as parameters of a test; those that take long with this backend run with --long alone."""
    names = ranks.checks(module)
    assert {*long} <= {*names}
    return [pytest.param(name, marks=pytest.mark.long(backend) if name in long else ()) for name in names]


def asked(request):
    """The names of the checks that a run of tests asks for, of a fixture's module."""
    return [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
