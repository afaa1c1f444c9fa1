"""Rings of PyTorch over four ranks: the kernel of a round, rows in zigzag, balance, and segments without a mask."""

import checked
import pytest
import ranks

pytestmark = pytest.mark.backends("torch")
CHECKS = "rings_over_ranks"
LONG = (
    "check_the_suite_by_the_kernel",
    "check_few_rows",
    "check_half_precision",
    "check_calls_without_gradients",
    "check_gradients_of_one_input",
    "check_lengths_of_queries",
)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks, of one group of four processes."""
    return ranks.outcomes(CHECKS, 4, tmp_path_factory.mktemp("ranks"), 150, checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "torch", *LONG))
def test_ring(outcomes, name):
    problems = "\n".join(outcomes[name])
    assert not problems.strip(), problems
