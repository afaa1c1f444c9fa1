"""A cache of JAX whose slots are split over devices."""

import pytest
import ranks
from test_devices_of_jax import found

pytestmark = pytest.mark.backends("jax")
CHECKS = "slots_of_jax"
QUICK = [
    "check_lengths_masks_and_biases_agree",
    "check_batch_heads_and_slots_are_split_together",
    "check_gradients_are_those_of_the_whole_layer",
    "check_what_does_not_fit_is_refused",
]
OTHERS = [name for name in ranks.checks(CHECKS) if name not in QUICK]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The results of the quick checks."""
    return found(tmp_path_factory.mktemp("slots"), *QUICK, module=CHECKS)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """The results of the other ones, which compile for a minute."""
    return found(tmp_path_factory.mktemp("slots"), *OTHERS, module=CHECKS)


@pytest.mark.parametrize("name", QUICK)
def test_slots(outcomes, name):
    assert not outcomes[name], outcomes[name]


@pytest.mark.long("jax")
@pytest.mark.parametrize("name", OTHERS)
def test_slots_at_length(others, name):
    assert not others[name], others[name]
