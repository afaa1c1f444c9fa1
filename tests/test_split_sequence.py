"""A layer of PyTorch whose sequence is split over ranks: three processes make the checks of `sequence_on_ranks.py`."""

import pytest
from start_ranks import on_ranks

pytestmark = pytest.mark.backends("torch")

CHECKS = (
    "cases", "small_blocks", "readable", "through_the_whole", "nan_that_is_seen", "nothing_there", "one_rank",
    "only_some_gradients", "differing", "refused_alike", "another_pooling", "dropout", "dropout_gradients", "sent",
    "one_ends",
)  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of three ranks raised, by check."""
    return on_ranks("sequence_on_ranks.py", tmp_path_factory.mktemp("ranks"), 3, *CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_of_ranks(told, name):
    for rank, raised in enumerate(told):
        assert raised.get(name, "was not reached") == "", f"rank {rank}: {raised}"
