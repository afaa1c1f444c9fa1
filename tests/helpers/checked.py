"""Checks of one process, or of one group of processes, as tests: those that are asked for run together."""

import json
import os
import subprocess
import sys

import pytest
import ranks

FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
DEVICES = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS, "OMP_NUM_THREADS": "1"}


def parameters(module, backend, *long):
    """The checks of a module as parameters of a test; those that take long with this backend run with --long alone."""
    names = ranks.checks(module)
    assert {*long} <= {*names}
    return [pytest.param(name, marks=pytest.mark.long(backend) if name in long else ()) for name in names]


def asked(request):
    """The names of the checks that a run of tests asks for, of a fixture's module."""
    return [item.callspec.params["name"] for item in request.session.items if item.path == request.path]


def on_devices(module, folder, *names):
    """Run these checks of a module of JAX, or all, in one process with eight devices, and return their results."""
    command = [sys.executable, str(ranks.HERE / f"{module}.py"), str(folder), *names]
    environment = os.environ | DEVICES | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
