"""A layer of JAX over eight devices: what is sent, numbers, dropout, weights, refusals."""

import checked
import pytest

pytestmark = pytest.mark.backends("jax")
CHECKS = "devices_of_jax"
LONG = (
    "check_few_heads_of_keys_send_their_gradients_too",
    "check_nan_that_is_seen_stays",
    "check_nothing_to_attend_to_is_no_error",
    "check_a_batch_on_one_device_is_computed_one_by_one",
    "check_weights_of_few_heads_of_keys_are_whole_on_each_device",
    "check_a_ring_keeps_its_digits_at_large_scores",
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


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks."""
    return checked.on_devices(CHECKS, tmp_path_factory.mktemp("devices"), *checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "jax", *LONG))
def test_devices(outcomes, name):
    assert not outcomes[name], outcomes[name]
