"""`mha.plot.slots` and `mha.plot.cache_bytes`: what is in the slots of a cache, and how many bytes caches take."""

import numpy as np
import pytest

import mha
from mha.learn.plot import cache_bytes, slots
from mha.learn.plot.cache_bytes import by_groups, byte_text
from mha.learn.plot.slots import KINDS, fill


def layer(window=None, backend="numpy", **options):
    return mha.MultiHeadAttention(6, 2, window=window, seed=0, backend=backend, **options)


def by_hand(t, S, left):
    """The positions in S slots after token t, the kind of each, and the key that is lost."""
    held = [-1] * S
    for n in range(t + 1):
        lost, held[n % S] = held[n % S], n
    kinds = [
        "empty" if k < 0 else "new" if k == t else "seen" if left is None or k >= t - left else "not seen" for k in held
    ]
    return held, kinds, lost


@pytest.mark.parametrize(("T", "S", "left"), [(7, 3, 2), (9, 5, 2), (4, 2, 0), (5, 7, None), (3, 3, None)])
@pytest.mark.parametrize("name", list(mha.backends()))
@pytest.mark.all_backends
def test_a_picture_has_what_the_cache_has(name, T, S, left):
    from matplotlib.colors import to_rgba

    attention = layer(None if left is None else (left, 0), name, bias=True)
    panel = slots(attention, T, S).axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == [f"t{t}" for t in range(T)]
    assert [label.get_text() for label in panel.get_xticklabels()] == [f"s{slot}" for slot in range(S)]
    drawn, written = {}, {}
    for cell in panel.patches:
        drawn[int(cell.get_y() + 0.5), int(cell.get_x() + 0.5)] = cell
    for text in panel.texts:
        x, t = text.get_position()
        written[t, x if x == int(x) else "lost"] = text.get_text()
    for t in range(T):
        held, kinds, lost = by_hand(t, S, left)
        for slot, (position, kind) in enumerate(zip(held, kinds, strict=True)):
            assert drawn[t, slot].get_facecolor() == to_rgba(KINDS[kind])
            assert bool(drawn[t, slot].get_hatch()) is (kind == "empty")
            assert written.pop((t, slot), None) == (f"k{position}" if position >= 0 else None)
        assert written.pop((t, "lost"), None) == (f"k{lost} is lost" if lost >= 0 else None)
    assert written == {}
    assert len(drawn) == T * S


@pytest.mark.backends("numpy")
@pytest.mark.parametrize("options", [{"pooling": "additive"}, {"sinks": True}, {"num_key_value_heads": 1}])
def test_other_layers_are_drawn(options):
    filled = fill(layer((2, 0), query_size=3, key_size=5, value_size=2, **options), 5, 4)
    assert filled.positions.tolist()[-1] == [4, 1, 2, 3]
    assert filled.seen.tolist()[-1] == [True, False, True, True]
    assert filled.lost.tolist() == [-1, -1, -1, -1, 0]


@pytest.mark.backends("numpy")
def test_a_chunk_ends_what_is_seen():
    filled = fill(layer(chunk=3), 5)
    assert filled.positions.tolist()[3] == [3, 1, 2]  # a cache of its own size
    assert filled.seen.tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
        [True, False, False],
        [True, True, False],
    ]


@pytest.mark.backends("numpy")
def test_bytes_are_those_of_a_cache():
    expected = {}
    for G in (6, 3, 2, 1):
        cache = mha.MultiHeadAttention(30, 6, num_key_value_heads=G, dtype="float64").cache(7, 11)
        expected[G] = 3 * (cache.keys.nbytes + cache.values.nbytes)
    assert by_groups(6, 5, 11, batch_size=7, layers=3, dtype="float64") == expected
    assert list(by_groups(6, 5, 11)) == [6, 3, 2, 1]
    for dtype in ("float16", "bfloat16", "float32"):
        cache = mha.MultiHeadAttention(30, 6, dtype=dtype).cache(1, 11)
        assert by_groups(6, 5, 11, dtype=dtype)[6] == cache.keys.nbytes + cache.values.nbytes


@pytest.mark.backends("numpy")
def test_bars_are_as_long_as_bytes_are_many():
    panel = cache_bytes(12, 64, 1000, layers=2).axes[0]
    assert [bar.get_width() for bar in panel.patches] == list(by_groups(12, 64, 1000, layers=2).values())
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == ["MHA, G = 12", "GQA, G = 6", "GQA, G = 4", "GQA, G = 3", "GQA, G = 2", "MQA, G = 1"]
    said = [text.get_text().strip() for text in panel.texts]
    assert said == ["11.7 MiB", "5.86 MiB", "3.91 MiB", "2.93 MiB", "1.95 MiB", "1000 KiB"]
    assert panel.get_title() == "H = 12, d = 64, S = 1,000, B = 1, layers: 2, float32"
    assert [label.get_text() for label in cache_bytes(1, 8, 8).axes[0].get_yticklabels()] == ["MHA, G = 1"]


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(
    ("count", "text"),
    [(8, "8 B"), (1023, "1023 B"), (1024, "1 KiB"), (1152, "1.13 KiB"), (10 * 2**20 + 2**19, "10.5 MiB"),
     (2**30 - 1, "1024 MiB"), (2**40, "1 TiB"), (2**62, "4096 PiB")],
)  # fmt: skip
def test_bytes_have_three_digits(count, text):
    assert byte_text(count) == text


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"attention": 3}, TypeError, "attention is a int, expected an mha.MultiHeadAttention"),
        ({"tokens": 0}, ValueError, "tokens is 0, expected at least 1"),
        ({"tokens": 65}, ValueError, "tokens is 65, expected at most 64: each slot is drawn after each token"),
        ({"size": 65}, ValueError, "size is 65, expected at most 64"),
        ({"size": 2.0}, TypeError, r"size is 2.0 \(float\), expected a positive int"),
        ({"size": 2}, ValueError, "the cache is full: sample 0 would have 3 tokens, and the cache has 2 slots"),
        ({"size": None}, ValueError, "size"),
    ],
)
def test_what_is_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        slots(**{"attention": layer(), "tokens": 3, "size": 3, **given})


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"num_heads": 0}, ValueError, "num_heads is 0, expected at least 1"),
        ({"head_dim": "8"}, TypeError, "head_dim is '8'"),
        ({"dtype": "int8"}, ValueError, "dtype is 'int8', expected one of float16, bfloat16, float32, float64"),
    ],
)
def test_bytes_that_are_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        cache_bytes(**{"num_heads": 2, "head_dim": 3, "size": 4, **given})


@pytest.mark.backends("numpy")
def test_a_picture_is_as_large_as_its_slots():
    assert slots(layer((1, 0)), 7, 3).get_size_inches() == pytest.approx([0.5 * 3 + 3.1, 0.3 * 7 + 1.2])
    assert np.array_equal(cache_bytes(4, 2, 2).get_size_inches(), [6.5, 0.9 + 0.3 * 3])
