"""All cases of a layer of PyTorch that is split, on several numbers of ranks; memory; compiled calls."""

import pytest
import ranks

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_cases_of_sequences(count, tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # what is freed goes back to the system at once
    ranks.assert_all_well("long_sequence_over_ranks", count, tmp_path, 300)


def test_one_rank_for_each_head(tmp_path):
    ranks.assert_all_well("sequence_over_ranks", 6, tmp_path, 200)


def test_heads_on_four_ranks(tmp_path):
    ranks.assert_all_well("heads_on_four_ranks", 4, tmp_path, 200)
