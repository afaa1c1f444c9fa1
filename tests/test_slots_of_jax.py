"""A cache of JAX whose slots are split over devices."""

import pytest
import ranks
from test_devices_of_jax import found

pytestmark = pytest.mark.backends("jax")
CHECKS = "slots_of_jax"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The results of all checks."""
    return found(tmp_path_factory.mktemp("slots"), module=CHECKS)


@pytest.mark.parametrize("name", ranks.checks(CHECKS))
def test_slots(outcomes, name):
    assert not outcomes[name], outcomes[name]
