"""A rank of a split layer of PyTorch that fails inside a call, and goes on."""

import checked
import pytest
import ranks

pytestmark = pytest.mark.backends("torch")
CHECKS = "failing_ranks"


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The results of all checks, of one group of two processes."""
    return ranks.outcomes(CHECKS, 2, tmp_path_factory.mktemp("ranks"), 100, checked.asked(request))


@pytest.mark.parametrize("name", checked.parameters(CHECKS, "torch"))
def test_failing_ranks(outcomes, name):
    problems = "\n".join(outcomes[name])
    assert not problems.strip(), problems
