"""Split heads of PyTorch on four ranks: beside split batches, in checkpoints of other numbers of ranks, compiled."""

import pytest
import ranks


@pytest.mark.backends("torch")
def test_four_ranks(tmp_path):
    ranks.assert_all_well("heads_on_four_ranks", 4, tmp_path, 200)
