"""From the call of a model to the call of a layer, by hand: masks, positions, packed texts, biases, caches.

Letters: B samples, Q queries, K keys, H heads.
"""

import contextlib
import types

import numpy as np
import pytest

import mha
from mha.core.options.config import Config
from mha.models.audit.calls.layer_call import WITHOUT_WINDOW, layer_call_arguments
from mha.models.audit.calls.model_calls import (
    CacheState,
    EarlierInputs,
    Histories,
    History,
    ModelCall,
    UnknownError,
    cache_state,
)
from mha.models.audit.calls.session import CapturedCall
from mha.models.audit.judging import layer_call_of, right_output
from mha.models.audit.layers.attention_layer import AttentionLayer
from mha.models.audit.layers.reference import Reference
from mha.weights.models import CallConvention

PLAIN, TURNING = Config(12, 3), Config(12, 3, rotary=mha.Rotary(4))
WINDOWED = Config(12, 3, rotary=mha.Rotary(4), window=(2, 0))
DECODER, ENCODER = (
    CallConvention(True, "attention_mask", "attention_mask"),
    CallConvention(False, "attention_mask", "attention_mask"),
)
NOTHING = Reference({}, None, "nothing")
LEFT = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def asked(arguments, attends=DECODER, config=TURNING, sizes=(2, 5, 5), history=None, truth=NOTHING, path="layers.0"):
    return layer_call_arguments(ModelCall(1, arguments, history or History()), attends, config, truth, path, sizes)


def test_a_call_without_more_is_causal_or_not():
    for attends, causal in ((DECODER, True), (ENCODER, False)):
        given, rows = asked({}, attends)
        assert given == {"causal": causal}
        assert rows.all()


def test_padding_hides_keys_and_its_rows_do_not_count():
    given, rows = asked({"attention_mask": LEFT})
    assert np.array_equal(given.pop("mask"), LEFT[:, None].astype(bool))
    assert given == {"causal": True}
    assert np.array_equal(rows, LEFT.astype(bool))


def test_after_a_cache_the_last_columns_are_of_the_queries():
    given, rows = asked({"attention_mask": LEFT}, sizes=(2, 2, 5), history=History(3))
    assert given["offset"] == 3
    assert given["mask"].shape == (2, 1, 5)
    assert rows.all()
    given, rows = asked({"attention_mask": LEFT[:, ::-1]}, sizes=(2, 2, 5), history=History(3))
    assert np.array_equal(rows, [[False, False], [True, True]])


def test_between_two_sequences_padding_alone_counts():
    attends = CallConvention(False, "decoder_attention_mask", "attention_mask", cross=True)
    given, rows = asked({"attention_mask": LEFT, "position_ids": np.arange(3)}, attends, sizes=(2, 3, 5))
    assert list(given) == ["mask"]
    assert rows.shape == (2, 3)


def test_positions_of_tokens_are_taken_and_those_of_padding_are_below_0():
    places = np.array([[1, 1, 0, 1, 2], [7, 8, 9, 10, 11]])
    given, _ = asked({"attention_mask": LEFT, "position_ids": places})
    expected = np.array([[-1, -1, 0, 1, 2], [7, 8, 9, 10, 11]])
    assert np.array_equal(given["positions"], expected)
    assert np.array_equal(given["key_positions"], expected)
    assert given["causal"]
    assert "mask" not in given


def test_positions_go_on_after_a_cache():
    history = History(3, positions=np.array([[4, 5, 6]]))
    given, _ = asked({"position_ids": np.array([[7, 8]])}, sizes=(2, 2, 5), history=history)
    assert np.array_equal(given["positions"], [[7, 8]] * 2)
    assert np.array_equal(given["key_positions"], [[4, 5, 6, 7, 8]] * 2)
    given, _ = asked({"position_ids": np.array([[3, 4]])}, sizes=(2, 2, 5), history=History(3))
    assert np.array_equal(given["key_positions"], [[0, 1, 2, 3, 4]] * 2)


def test_without_rotation_or_order_positions_do_not_matter():
    given, _ = asked({"position_ids": np.array([[3, 1, 2, 0, 4]])}, ENCODER, PLAIN)
    assert given == {"causal": False}


BEGINNING = {"position_ids": np.array([[0, 1, 2, 0, 1]])}


def test_positions_that_begin_again_without_a_cache_are_packed_texts():
    given, _ = asked(BEGINNING | {"use_cache": False})
    assert np.array_equal(given["segments"], [[0, 0, 0, 1, 1]] * 2)
    assert np.array_equal(given["key_segments"], given["segments"])
    assert np.array_equal(given["positions"], [[0, 1, 2, 0, 1]] * 2)


def test_with_a_cache_order_and_window_go_by_slots():
    said = Reference({}, {"use_cache": True}, "a model")
    for config, more in ((TURNING, {}), (WINDOWED, {WITHOUT_WINDOW: True})):
        given, _ = asked(BEGINNING, config=config, truth=said)
        i, j = np.indices((5, 5))
        expected = (j <= i) & ((i - j <= 2) | (config.window is None))
        assert np.array_equal(given.pop("mask"), np.broadcast_to(expected, (2, 5, 5)))
        assert not given["causal"]
        assert "segments" not in given
        assert {WITHOUT_WINDOW: given[WITHOUT_WINDOW]}.items() >= more.items()


@pytest.mark.parametrize("kind", ["booleans", "floats"])
def test_a_mask_with_four_axes_counts_alone(kind):
    seen = np.tri(2, 5, 1, dtype=bool)[None, None].repeat(2, 0)  # (B, 1, Q, K), and three slots more
    mask = np.concatenate([seen, np.zeros((2, 1, 2, 3), bool)], 3)
    if kind == "floats":
        mask = np.where(mask, 0, np.finfo("f4").min).astype("f4")
    given, _ = asked({"attention_mask": mask}, config=WINDOWED, sizes=(2, 2, 5), history=History(3))
    assert np.array_equal(given.pop("mask"), seen)
    assert given == {WITHOUT_WINDOW: True, "offset": 3}


def test_what_is_mended_is_right_where_rows_count_and_as_it_was_elsewhere():
    layer = mha.MultiHeadAttention(12, 3, backend="numpy", seed=1)
    X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("f4")
    known = AttentionLayer("layers.0", "bert", take=lambda tokens: (layer.config, layer.weights), attends=ENCODER)
    call = ModelCall(1, {"attention_mask": LEFT}, History())
    tap = CapturedCall(known, call, inputs=dict.fromkeys(("queries", "keys", "values"), X), outputs={"W_o": X})
    right, real = layer(X, X, X, mask=LEFT[:, None].astype(bool)), LEFT.astype(bool)
    found = right_output(tap, layer_call_of(tap, NOTHING))
    assert np.allclose(found[real], right[real], atol=1e-6)
    assert np.array_equal(found[~real], X[~real])


def test_numbers_in_such_a_mask_are_biases():
    mask = np.array([[[[0.5, -1e30]]]], "f4")
    given, _ = asked({"attention_mask": mask}, config=PLAIN, sizes=(1, 1, 2))
    assert np.array_equal(given["mask"], [[[[True, False]]]])
    assert np.array_equal(given["score_bias"], [[[[0.5, 0]]]])


def test_of_several_masks_the_one_of_the_layers_kind_counts():
    masks = {"full_attention": LEFT, "sliding_attention": LEFT[::-1]}
    for config, expected in ((TURNING, LEFT), (WINDOWED, LEFT[::-1])):
        given, _ = asked({"attention_mask": masks}, config=config)
        assert np.array_equal(given["mask"][:, 0], expected.astype(bool))


TABLES = {f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight": np.random.default_rng(seed).normal(
    size=(8, 3)) for seed, stack in enumerate(("encoder", "decoder"))}  # fmt: skip


@pytest.mark.parametrize(("stack", "causal"), [("encoder", False), ("decoder", True)])
def test_the_table_of_t5_is_that_of_its_stack(stack, causal):
    truth = Reference(TABLES, {"relative_attention_max_distance": 6}, "T5")
    table = TABLES[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    attends = CallConvention(causal, "", "", bias="t5")
    for Q in (5, 2):
        path = f"{stack}.block.1.layer.0.SelfAttention"
        given, _ = asked({}, attends, PLAIN, (2, Q, 5), History(5 - Q), truth, path)
        buckets = mha.t5_buckets(Q, 5, bidirectional=not causal, num_buckets=8, max_distance=6, offset=5 - Q)
        assert np.array_equal(given["score_bias"], table[buckets].transpose(2, 0, 1)[None])


@pytest.mark.parametrize(("bias", "factor"), [("alibi", 1), ("alibi, scaled", 0.5)])
def test_linear_biases_are_scaled_where_the_model_scales_them(bias, factor):
    given, _ = asked({}, CallConvention(True, "", "", bias=bias), PLAIN)
    assert np.allclose(given["score_bias"], factor * mha.alibi(3, 5, dtype="float64"))


PICTURES = np.broadcast_to(np.arange(5), (4, 2, 5)).copy()
PICTURES[2, 1, 3] = 7


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"attention_mask": LEFT}, {"sizes": (2, 2, 7)}, r"attention_mask has shape \(2, 5\), expected \(2, 7\)"),
        ({"attention_mask": np.ones((2, 1, 4, 5), bool)}, {}, r"expected \(2, 1, 5, 5\)"),
        (
            {"position_ids": np.array([[0, 2, 1, 3, 4]])},
            {"config": Config(12, 3, rotary=mha.Rotary(4), chunk=3)},
            "chunks",
        ),
        ({"position_ids": PICTURES}, {}, "position_ids has several positions for some tokens, as pictures do"),
        ({}, {"attends": CallConvention(True, "", "", bias="t5"), "config": PLAIN}, "has no relative_attention_bias"),
        (
            {"token_type_ids": np.array([[0, 1, 1, 0, 0]] * 2)},
            {"attends": CallConvention(True, "attention_mask", "attention_mask", without=("token_type_ids",))},
            "token_type_ids is given: how texts are called beside it is not known",
        ),
    ],
    ids=["keys", "queries", "chunks", "pictures", "no table of T5", "kinds of tokens"],
)
def test_a_call_that_does_not_say_enough_is_not_known(arguments, options, message):
    with pytest.raises(UnknownError, match=message):
        asked(arguments, **options)


# Caches


class Cache:
    """A cache as transformers has them."""

    def __init__(self, length):
        self.length = length

    def get_seq_length(self):
        return self.length

    def reorder_cache(self, rows):
        return "reordered"

    def crop(self, max_length):
        self.length = max_length


def filled(histories, cache, tokens=4):
    numbers = np.arange(2 * tokens).reshape(2, tokens, 1)  # (B, T, 1)
    places = np.arange(2 * tokens).reshape(2, tokens)  # (B, T)
    layers = {"own": EarlierInputs(numbers, numbers, False), "cross": EarlierInputs(numbers, numbers, True)}
    histories.keep(cache, History(tokens, layers, places))
    return numbers


def test_the_history_of_a_cache_is_found_again_if_its_length_fits():
    histories, cache = Histories(), Cache(4)
    filled(histories, cache)
    assert histories.of({"past_key_values": cache})[1].tokens == 4
    cache.length = 5
    assert not histories.of({"past_key_values": cache})[1].known
    cache.length = 0
    assert histories.of({"past_key_values": cache})[1] == History()
    assert not histories.of({"past_key_values": Cache(3)})[1].known
    assert not histories.of({"cache": object()})[1].known  # which says no length
    assert histories.of({})[0] is None
    assert histories.of({"cache": False})[0] is None


def test_what_changes_a_cache_changes_its_history():
    histories, cache = Histories(), Cache(4)
    numbers = filled(histories, cache)
    assert cache.reorder_cache(np.array([1, 1])) == "reordered"
    history = histories.of({"past_key_values": cache})[1]
    assert np.array_equal(history.layers["own"].keys, numbers[[1, 1]])
    assert np.array_equal(history.layers["cross"].values, numbers[[1, 1]])
    assert np.array_equal(history.positions, [[4, 5, 6, 7]] * 2)
    cache.crop(max_length=3)  # by a name of its own
    history = histories.of({"past_key_values": cache})[1]
    assert history.known
    assert [history.layers[name].keys.shape[1] for name in ("own", "cross")] == [3, 4]
    assert history.positions.shape == (2, 3)
    history.crop(-1)
    assert history.tokens == 2
    history.repeat(3)
    assert history.layers["own"].keys.shape == (6, 2, 1)
    assert history.positions.shape == (6, 2)
    histories.forget()
    assert "reorder_cache" not in vars(cache)


def of_layer(offset, **said):
    """The cache of a layer, as mlx-lm has them."""
    return types.SimpleNamespace(offset=offset, **said)


def test_a_list_of_caches_says_what_its_layers_have():
    kept = cache_state([types.SimpleNamespace(), of_layer(5, max_size=4), of_layer(5, max_size=7)])
    assert (kept.length, kept.most, kept.rounded, kept.padding) == (5, 7, False, None)
    kept = cache_state([of_layer(3, max_size=4), of_layer(3, bits=8)])
    assert (kept.length, kept.most, kept.rounded) == (3, None, True)
    assert cache_state(of_layer(0)).length == 0
    assert cache_state([of_layer(np.array([1, 2]))]).length is None
    for padding, more in (([3, 1], {}), ([1, 0], {"_offset": 5})):  # of the second, two tokens are forgotten
        kept = cache_state([of_layer(np.array([2, 4]), left_padding=np.array(padding), **more)])
        assert (kept.length, kept.padding.tolist()) == (5, [3, 1])
        assert kept.real_tokens(4).tolist() == [[False, False, False, True], [False, True, True, True]]
    assert cache_state([of_layer(np.array([5, 5]), left_padding=np.array([0, 0]))]).padding is None


def test_padding_in_a_cache_hides_keys_and_moves_positions():
    earlier = History(3, positions=np.array([[-2, -1, 0], [0, 1, 2]]))
    call = ModelCall(1, {}, earlier, CacheState(3, np.array([2, 0])))
    given, rows = layer_call_arguments(call, DECODER, TURNING, NOTHING, "layers.0", (2, 2, 5))
    assert given["key_positions"].tolist() == [[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert given["positions"].tolist() == [[1, 2], [3, 4]]
    assert rows.all()
    _, rows = layer_call_arguments(
        ModelCall(1, {}, History(), CacheState(0, np.array([2, 0]))), DECODER, TURNING, NOTHING, "", (2, 3, 3)
    )
    assert rows.tolist() == [[False, False, True], [True] * 3]
    for positions in (np.array([[0, 1, 2], [0, 1, 2]]), np.array([[0, 1, 2]]), None):
        call = ModelCall(1, {}, History(3, positions=positions), CacheState(3, np.array([2, 0])))
        with pytest.raises(UnknownError, match="padding in its cache is not what it was"):
            layer_call_arguments(call, DECODER, TURNING, NOTHING, "layers.0", (2, 2, 5))


@pytest.mark.parametrize(
    ("kept", "config", "message"),
    [
        (CacheState(3, most=4), TURNING, "its cache keeps 4 of 5 tokens"),
        (CacheState(3, most=2), WINDOWED, "its cache keeps 2 of 5 tokens"),
        (CacheState(3, most=3), WINDOWED, ""),
        (CacheState(3, most=5), TURNING, ""),
        (CacheState(3, rounded=True), TURNING, "its cache is quantised"),
    ],
)
def test_a_cache_that_forgets_or_rounds_is_not_known(kept, config, message):
    call = ModelCall(1, {}, History(3), kept)
    with pytest.raises(UnknownError, match=message) if message else contextlib.nullcontext():
        assert layer_call_arguments(call, DECODER, config, NOTHING, "layers.0", (2, 2, 5))


def test_the_length_of_a_cache_is_what_it_says():
    keys = np.zeros((2, 3, 7, 4))  # (B, G, T, d)
    lengths = [cache_state(cache).length for cache in (Cache(3), [], [None], ((keys, keys),), "cache", [3])]
    assert lengths == [3, 0, 0, 7, None, None]


def test_positions_of_texts_may_be_said_three_times():
    places = np.arange(3, 8)
    once = asked({"position_ids": np.broadcast_to(places, (2, 5))})[0]
    for rows in (3, 4):  # the first of four is the text's own
        said = np.broadcast_to(places, (rows, 2, 5)).copy()
        said[0] = said[0] if rows == 3 else 0
        found = asked({"position_ids": said})[0]
        assert found.keys() == once.keys()
        assert np.array_equal(found["positions"], once["positions"])


def test_a_layer_without_pictures_is_known():
    attends = CallConvention(True, "attention_mask", "attention_mask", without=("token_type_ids",))
    for nothing in ({}, {"token_type_ids": None}, {"token_type_ids": np.zeros((2, 5))}):
        assert asked(nothing, attends)[0] == {"causal": True}
