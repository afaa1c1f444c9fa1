"""A layer of PyTorch whose sequence is split over ranks: numbers, refusals, dropout, bytes, and a rank that ends."""

import checked
import pytest
import ranks

pytestmark = pytest.mark.backends("torch")
CHECKS = "sequence_over_ranks"
LONG = "check_the_suite", "check_gradients_of_dropout", "check_lengths_of_any_dtype", "check_other_poolings"


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks, of one group of three processes: as many rows on each do not go round."""
    return ranks.outcomes(CHECKS, 3, tmp_path_factory.mktemp("ranks"), 100, checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "torch", *LONG))
def test_sequence(outcomes, name):
    problems = "\n".join(outcomes[name])
    assert not problems.strip(), problems
