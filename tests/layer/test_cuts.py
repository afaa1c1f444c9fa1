"""How a call is cut into pieces."""

import numpy as np

from mha.core.call import Call, Plan
from mha.core.engine import blocks
from mha.core.engine.visible_range import lengths_hide, longest, span, uses_all


def made(*given, **named):
    """A call of these arguments, with what is of its plan."""
    planned = {name: named.pop(name) for name in named.keys() & {*Plan._fields}}
    return Call(*given, **named).with_plan(**planned)


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


def test_keys_that_order_and_window_let_be_seen():
    def seen(*sizes, **call):
        keys = span(made(**call), *sizes)
        return keys.start, keys.stop

    assert seen(3, 5) == (0, 5)
    assert seen(3, 5, causal=True) == (0, 3)
    assert seen(3, 5, causal=True, offset=1) == (0, 4)
    assert seen(3, 5, causal=True, offset=-9) == (0, 1)  # none is seen, one is kept
    assert seen(3, 9, window=(1, 2), offset=4) == (3, 9)
    assert seen(3, 9, window=(1, 1), offset=4) == (3, 8)
    assert seen(3, 9, window=(1, 1), causal=True, offset=4) == (3, 7)
    assert seen(3, 9, window=(None, 1), offset=4) == (0, 8)
    assert seen(3, 9, window=(1, None), offset=4) == (3, 9)
    assert seen(3, 9, window=(1, 1), offset=100) == (8, 9)
    assert seen(3, 9, window=(1, 1), offset=np.array([[4], [1]])) == (0, 8)
    assert seen(3, 9, window=(1, 1), offset="not known yet") == (0, 9)


def test_groups_of_samples(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)
    lengths = np.array([5, 2, 0])

    def groups(sizes, valid_lens=None, offset=None, **call):
        """Slices of the samples, with the keys that each needs, and whether lengths hide some of these."""
        known = {name: X for name, X in (("valid_lens", valid_lens), ("offset", offset)) if X is not None}
        call, found = made(valid_lens, offset=0 if offset is None else offset, **call).with_plan(known=known), []
        for samples in blocks.samples(call, sizes):
            own = call.part(samples)
            keys = span(own, *sizes[2:])
            last = max(keys.start + 1, min(keys.stop, longest(own, sizes[3])))
            found.append((samples.start, samples.stop, keys.start, last, lengths_hide(own, last)))
        return found

    assert groups((3, 2, 3, 5)) == [(0, 2, 0, 5, False), (2, 3, 0, 5, False)]  # 30 scores a sample
    assert groups((3, 2, 3, 5), lengths) == [(0, 2, 0, 5, True), (2, 3, 0, 1, True)]
    assert groups((3, 4, 4, 5), lengths) == [(0, 1, 0, 5, False), (1, 2, 0, 2, False), (2, 3, 0, 1, True)]
    assert groups((1, 4, 4, 5), np.array([[5, 5, 4, 5]])) == [(0, 1, 0, 5, True)]
    assert groups((1, 4, 3, 5), np.array([4]), causal=True) == [(0, 1, 0, 3, False)]  # the third query is the last
    offset = np.array([[1], [6]])
    assert groups((2, 4, 3, 9), None, offset, window=(1, 1)) == [(0, 1, 0, 5, False), (1, 2, 5, 9, False)]
    assert groups((2, 4, 3, 9), np.array([9, 5]), offset, window=(1, 1))[1] == (1, 2, 5, 6, True)


def test_where_every_query_sees_a_key():
    def used(num_queries, num_keys, hides=False, **call):
        return uses_all(made(np.array([1, 2]) if hides else None, **call), num_queries, num_keys)

    assert used(3, 5)
    assert not used(3, 5, True)
    assert used(3, 5, causal=True)
    assert not used(3, 5, causal=True, offset=-1)  # the first query is before the first key
    assert used(3, 5, window=(0, 1), offset=-1)
    assert used(3, 5, window=(3, 0), offset=3)
    assert not used(3, 5, window=(1, 0), offset=3)  # no query looks back to the first keys
    assert not used(3, 5, window=(1, 0), offset=4)  # the last query looks back to key 5
    assert not used(3, 5, mask=np.ones((3, 5), bool))
    assert not used(3, 5, score_bias=np.ones((3, 5)))


def test_blocks_of_a_window(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES", 60)

    def pieces(num_queries, num_keys, scores, **call):
        return [
            (queries.start, queries.stop, keys.start, keys.stop)
            for queries, keys in blocks.pieces(made(**call), num_queries, num_keys, scores)
        ]

    assert pieces(4, 7, 2) == [(0, 4, 0, 7)]
    assert pieces(5, 7, 2) == [(0, 3, 0, 7), (3, 5, 0, 7)]
    assert pieces(5, 7, 2, causal=True) == [(0, 3, 0, 3), (3, 5, 0, 5)]
    assert pieces(9, 30, 2, causal=True, window=(2, 0), offset=3) == [(0, 3, 1, 6), (3, 6, 4, 9), (6, 9, 7, 12)]
    assert pieces(4, 3, 5, window=(9, 9)) == [(0, 4, 0, 3)]  # a window wider than the keys
    monkeypatch.setattr(blocks, "SCORES", 2**30)
    assert len(pieces(1024, 1024, 1, window=(15, 0))) == 1024 // blocks.LEAST
    assert len(pieces(1024, 1024, 1, window=(511, 0))) == 4
    assert blocks.block(made(window=(1023, 0)), 4096, 4096, 1, share=4) == 256
