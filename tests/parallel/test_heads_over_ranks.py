"""A layer of PyTorch whose heads are split over ranks: numbers, bytes, dropout, weights, refusals, failure."""

import checked
import pytest
import ranks

pytestmark = pytest.mark.backends("torch")
CHECKS = "heads_over_ranks"


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks, of one group of two processes."""
    return ranks.outcomes(CHECKS, 2, tmp_path_factory.mktemp("ranks"), 100, checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "torch"))
def test_heads(outcomes, name):
    problems = "\n".join(outcomes[name])
    assert not problems.strip(), problems
