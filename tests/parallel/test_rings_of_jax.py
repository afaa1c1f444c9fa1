"""A ring of JAX over eight devices: rows in zigzag, segments and positions."""

import checked
import pytest

pytestmark = pytest.mark.backends("jax")
CHECKS = "rings_of_jax"
LONG = [  # they compile for a minute together
    "check_lengths_per_query_and_masks_agree_in_zigzag",
    "check_tokens_agree_in_a_ring",
    "check_rows_go_into_zigzag_and_back",
    "check_zigzag_sends_queries_keys_values_and_outputs_there_and_back",
    "check_additive_scores_agree_in_zigzag",
    "check_half_precision_agrees_in_zigzag",
    "check_dropout_differs_between_devices_and_halves_in_zigzag",
    "check_chunks_beside_segments_agree_in_a_ring",
    "check_blocks_that_do_not_divide_the_rows_see_no_padding",
    "check_segments_that_do_not_meet_are_left_out",
    "check_segments_and_positions_take_no_memory_of_all_pairs",
]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks."""
    return checked.on_devices(CHECKS, tmp_path_factory.mktemp("rings"), *checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "jax", *LONG))
def test_rings(outcomes, name):
    assert not outcomes[name], outcomes[name]
