"""A cache of PyTorch whose slots are split over ranks: what it gives and keeps is that of the whole layer."""

import checked
import pytest
import ranks

pytestmark = pytest.mark.backends("torch")
CHECKS = "slots_over_ranks"


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks, of one group of four processes."""
    return ranks.outcomes(CHECKS, 4, tmp_path_factory.mktemp("ranks"), 100, checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "torch"))
def test_slots(outcomes, name):
    problems = "\n".join(outcomes[name])
    assert not problems.strip(), problems
