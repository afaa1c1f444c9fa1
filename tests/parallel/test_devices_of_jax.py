"""A layer of JAX over eight devices: what is sent, numbers, dropout, weights, refusals."""

import json
import os
import subprocess
import sys

import checked
import pytest
import ranks

pytestmark = pytest.mark.backends("jax")
CHECKS = "devices_of_jax"
LONG = (
    "check_a_cache_keeps_the_heads_of_a_device",
    "check_rows_that_do_not_divide_agree_where_shardings_are_types",
    "check_large_scores_agree",
    "check_heads_with_masks_of_their_own_agree",
    "check_sinks_agree",
    "check_norms_over_all_heads_agree",
    "check_heads_of_keys_that_two_devices_use_agree",
    "check_rows_that_do_not_divide_and_offsets_agree",
    "check_the_additive_ring_agrees",
)
FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
DEVICES = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS, "OMP_NUM_THREADS": "1"}


def found(folder, *names, module=CHECKS):
    """The results of all checks of a module, or those that are named, of one process with eight devices."""
    command = [sys.executable, str(ranks.HERE / f"{module}.py"), str(folder), *names]
    result = subprocess.run(command, env=os.environ | DEVICES, capture_output=True, text=True, check=False, timeout=500)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks."""
    return found(tmp_path_factory.mktemp("devices"), *checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "jax", *LONG))
def test_devices(outcomes, name):
    assert not outcomes[name], outcomes[name]
