"""Split heads of PyTorch on four ranks: beside split batches, in checkpoints of other numbers of ranks, compiled."""

import pytest
import ranks

pytestmark = pytest.mark.backends("torch")
CHECKS = "heads_on_four_ranks"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What came of all checks, of one group of four processes."""
    return ranks.outcomes(CHECKS, 4, tmp_path_factory.mktemp("ranks"), 200)


@pytest.mark.parametrize("name", ranks.checks(CHECKS))
def test_heads(outcomes, name):
    problems = "\n".join(outcomes[name])
    assert not problems.strip(), problems
