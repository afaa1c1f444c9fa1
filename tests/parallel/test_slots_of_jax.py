"""A cache of JAX whose slots are split over devices."""

import checked
import pytest

pytestmark = pytest.mark.backends("jax")
CHECKS = "slots_of_jax"
LONG = [  # they compile for a minute together
    "check_a_prompt_and_tokens_agree",
    "check_blocks_of_queries_agree",
    "check_a_frozen_cache_agrees",
    "check_what_nobody_sees_may_be_no_number",
    "check_dropout_drops_weights_of_slots_and_tokens",
    "check_a_token_sends_three_sums",
    "check_half_precision_is_by_the_rule",
    "check_no_tokens_change_nothing",
]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks."""
    return checked.on_devices(CHECKS, tmp_path_factory.mktemp("slots"), *checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "jax", *LONG))
def test_slots(outcomes, name):
    assert not outcomes[name], outcomes[name]
