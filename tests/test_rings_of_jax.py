"""A ring of JAX over eight devices: rows in zigzag, segments and positions."""

import pytest
import ranks
from test_devices_of_jax import found

pytestmark = pytest.mark.backends("jax")
CHECKS = "rings_of_jax"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The results of all checks."""
    return found(tmp_path_factory.mktemp("rings"), module=CHECKS)


@pytest.mark.parametrize("name", ranks.checks(CHECKS))
def test_rings(outcomes, name):
    assert not outcomes[name], outcomes[name]
