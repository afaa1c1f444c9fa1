"""All cases of a layer of PyTorch whose sequence is split, on several numbers of ranks; memory; compiled calls."""

import pytest
from start_ranks import on_ranks

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    ("count", "checks"),
    [(2, ("all_cases", "compiled")), (3, ("all_cases",)), (4, ("all_cases",)), (5, ("cases", "one_ends"))],
)
def test_of_ranks(tmp_path, count, checks):
    assert on_ranks("sequence_on_ranks.py", tmp_path, count, *checks) == [dict.fromkeys(checks, "")] * count


def test_memory_of_ulysses(tmp_path):
    # What is freed goes back to the system at once.
    told = on_ranks("sequence_on_ranks.py", tmp_path, 4, "memory", MALLOC_MMAP_THRESHOLD_="65536")
    assert told == [{"memory": ""}] * 4
