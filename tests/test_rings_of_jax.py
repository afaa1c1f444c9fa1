"""A ring of JAX over eight devices: rows in zigzag, segments and positions."""

import pytest
import ranks
from test_devices_of_jax import found

pytestmark = pytest.mark.backends("jax")
CHECKS = "rings_of_jax"
QUICK = [
    "check_zigzag_balances_a_causal_ring",
    "check_all_options_agree_in_zigzag",
    "check_lengths_per_query_and_masks_agree_in_zigzag",
    "check_tokens_agree_in_a_ring",
    "check_zigzag_for_what_is_no_ring_is_refused",
]
OTHERS = [name for name in ranks.checks(CHECKS) if name not in QUICK]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The results of the quick checks."""
    return found(tmp_path_factory.mktemp("rings"), *QUICK, module=CHECKS)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """The results of the other ones, which compile for a minute."""
    return found(tmp_path_factory.mktemp("rings"), *OTHERS, module=CHECKS)


@pytest.mark.parametrize("name", QUICK)
def test_rings(outcomes, name):
    assert not outcomes[name], outcomes[name]


@pytest.mark.long("jax")
@pytest.mark.parametrize("name", OTHERS)
def test_rings_at_length(others, name):
    assert not others[name], others[name]
