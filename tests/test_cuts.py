"""How a call is cut into pieces."""

import numpy as np

from mha import blocks


def test_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)
    assert blocks.fits(60)
    assert not blocks.fits(61)
    assert blocks.queries(7, 10) == 4  # two blocks of 4 and 3, not of 6 and 1
    assert blocks.queries(6, 10) == 6
    assert blocks.queries(5, 1000) == 1
    assert blocks.queries(0, 10) == 1
    assert blocks.cuts(31) == [8, 16, 24, 31]
    assert blocks.cuts(2) == [1, 2]


def test_groups_of_samples(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)
    lengths = np.array([5, 2, 0])

    def groups(*arguments):
        return [(samples.start, samples.stop, longest, hides) for samples, longest, hides in blocks.groups(*arguments)]

    assert groups(3, 2, 3, 5) == [(0, 2, 5, False), (2, 3, 5, False)]  # 30 scores a sample
    assert groups(3, 2, 3, 5, lengths) == [(0, 2, 5, True), (2, 3, 1, True)]
    assert groups(3, 4, 4, 5, lengths) == [(0, 1, 5, False), (1, 2, 2, False), (2, 3, 1, True)]
    assert groups(1, 4, 4, 5, np.array([[5, 5, 4, 5]])) == [(0, 1, 5, True)]
    assert groups(1, 4, 3, 5, np.array([4]), True) == [(0, 1, 3, False)]  # in order, the third query is the last
