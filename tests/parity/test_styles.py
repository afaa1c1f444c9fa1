"""The styles of right code in half precision: their simulation against a port that is written by hand.

Each field of a style shows: the simulation of a style that differs in it alone gives other numbers than the port.
"""

import dataclasses

import numpy as np
import planted
import pytest
from half_port import HalfPort
from ports import Port

import mha
from mha.core.options.config import numpy_dtype
from mha.parity.rule import simulation
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem
from mha.parity.rule.rounding import by_chance, one_by_one, through
from mha.parity.rule.rules import in_dtype
from mha.parity.rule.styles import FUSED, HALVES, PLAIN, QUERIES, QUERIES_FLASH, STEPS, TILES, WIDE, Border, Core

HALVES_OF = ["float16", "bfloat16"]
B, T, D, H, G, d = 2, 77, 23, 6, 2, 14
FAR = 8009  # the first position
# The least share of equal numbers in the same style, where another order of sums changes some; the largest in another.
SAME, OTHER = 0.97, 0.9

ROTARY, GIVEN = mha.Rotary(base=1e4), {"positions": FAR + np.arange(T), "key_positions": FAR + np.arange(T)}
BIASED = {"score_bias": np.random.default_rng(1).normal(size=(B, H, T, T))}
GATED = {"head_gates": np.random.default_rng(2).uniform(size=(B, H))}
MASK = {"mask": np.random.default_rng(3).random((B, 1, T, T)) < 0.8, "valid_lens": np.arange(B * T).reshape(B, T) // 3}
IN_STEPS, HALF = STEPS[0], HALVES[0][0]


def made(dtype, size=1.5, **options):
    """A layer with biases and scales, with kernels so many times as large, and sinks of which some are the largest."""
    sizes = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "key_dim": d, "seed": 3, "backend": "numpy"}
    layer, rng = mha.MultiHeadAttention(**sizes | options, dtype=dtype), np.random.default_rng(8)

    def vector(name, X):
        return rng.normal(5, 2, X.shape) if name == "sinks" else rng.normal("norm" in name, 0.5, X.shape)

    layer.weights = {
        name: (size * X if X.ndim == 2 else vector(name, X)).astype(X.dtype) for name, X in layer.weights.items()
    }
    return layer


def drawn(dtype, *shape, seed=4):
    return np.random.default_rng(seed).normal(size=shape).astype(numpy_dtype(dtype))


def prepared(dtype, call):
    """The arguments of a call, with those that are numbers in a dtype."""
    floats = {name: X.astype(numpy_dtype(dtype)) for name, X in call.items() if name in ("score_bias", "head_gates")}
    return call | floats


def asked(layer, X, Y, **call):
    return as_decoding(problem(layer, X, Y, Y, planted.DEFAULTS | call, empty_rows=True))


# The options of a layer, the other arguments of a call, a border, a core, and what differs in other styles.
NORM, AFTER = {"qk_norm": "rms", "scale": 1.7}, {"qk_norm": mha.Norm("layer", after=True), "scale": 1.1}
PLACES = {
    "dots": ({}, {}, {}, IN_STEPS, [{"dots": False}, {"scores": False}, {"weights": False}, {"softmax": "half"}]),
    "dots alone": ({"bias": True}, MASK, {}, STEPS[7], [{"dots": False}, {"scores": True}]),
    "scale rounded": ({"softcap": 5.1}, {}, {}, STEPS[4], [{"scale": "dots"}, {"scale": "queries, rounded"}]),
    "queries": ({}, MASK, {}, STEPS[1], [{"scale": "dots"}, {"scale": "queries, rounded"}, {"scores": False}]),
    "queries rounded": ({}, {}, {}, STEPS[2], [{"scale": "queries"}, {"scale": "queries, root"}]),
    "queries by the root": ({}, {}, {}, STEPS[5], [{"scale": "queries"}, {"scale": "queries, rounded"}]),
    "both": ({"scale": 0.3}, {}, {}, STEPS[6], [{"scale": "queries"}, {"scale": "dots"}]),
    "at once": ({"softcap": 5.1}, BIASED, {}, STEPS[10], [{"at_once": False}, {"scores": False, "at_once": False}]),
    "queries, at once": ({}, BIASED, {}, STEPS[9], [{"at_once": False}, {"scale": "dots"}]),
    "each step": ({"softcap": 5.1, "window": (30, 3)}, BIASED, {}, IN_STEPS, [{"at_once": True}, {"dots": False}]),
    "flash": ({}, {"causal": True}, {}, FUSED[0], [{"softmax": "float32"}, {"softmax": "float32", "weights": True}]),
    "weights": ({}, {"causal": True}, {}, FUSED[1], [{"weights": False}, {"softmax": "half"}]),
    "flash beside sinks": ({"sinks": True}, {}, {}, FUSED[0], [{"softmax": "float32"}, {"tile": 32}]),
    "tiles of 32": ({"sinks": True}, {}, {}, TILES[3], [{"tile": 0}, {"tile": 64}]),
    "tiles of 64": ({}, {}, {}, TILES[2], [{"tile": 32}, {"tile": 128}]),
    "fused queries": ({}, {}, {}, QUERIES[0], [{"scale": "queries, rounded"}, {"scale": "dots"}, {"scores": True}]),
    "to base 2": ({}, MASK, {}, QUERIES_FLASH[0], [{"base_2": False}, {"scale": "queries, rounded"}]),
    "to base 2 by a rounded scale": ({}, {}, {}, QUERIES_FLASH[1], [{"base_2": False}, {"scale": "queries"}]),
    "half": ({"sinks": True}, {}, {}, HALF, [{"softmax": "inverse"}, {"softmax": "one by one"}, {"weights": False}]),
    "inverse": ({}, MASK, {}, HALVES[1][0], [{"softmax": "half"}, {"softmax": "one by one"}]),
    "one by one": ({"sinks": True}, {}, {}, HALVES[2][1], [{"softmax": "inverse"}, {"softmax": "half"}]),
    "temperature": ({"temperature": mha.Temperature(0.4, 17)}, {}, {}, FUSED[0], [{"rounds": False}]),
    "products": ({"bias": True}, {}, {"products": True}, FUSED[0], [{"products": False}, {"last": True}]),
    "last": ({"bias": True}, {}, {"last": True}, FUSED[0], [{"products": True}, {"last": False}]),
    "scaled": ({"bias": True}, {}, {"scaled": True}, FUSED[0], [{"scaled": False}]),
    "norms": (NORM, {}, {"norms": True}, FUSED[0], [{"norms": False}, {"rounds": False}]),
    "norm of values": ({"value_norm": "rms"}, {}, {"norms": False}, FUSED[0], [{"norms": True}]),
    "norm after": (AFTER | {"rotary": ROTARY}, GIVEN, {"norms": False}, FUSED[0], [{"norms": True}, {"turns": False}]),
    "turned": ({"rotary": ROTARY}, GIVEN, {}, FUSED[0], [{"angles": False}, {"cosines": False}, {"turns": False}]),
    "turned once": ({"rotary": mha.Rotary(8, 1e4, True, magnitude=1.3)}, GIVEN, {"turns": False}, FUSED[0],
                    [{"turns": True}, {"cosines": False}, {"rounds": False}]),
    "turned in float64": ({"rotary": ROTARY}, GIVEN, {"angles": False, "cosines": False, "turns": False}, FUSED[0],
                          [{"angles": True}, {"cosines": True}, {"turns": True}]),
    "gates": ({"output_gate": "element"}, GATED, {"gates": True}, FUSED[0], [{"gates": False}, {"rounds": False}]),
    "a gate": ({"output_gate": "head", "bias": True}, GATED, {"products": True}, FUSED[0], [{"gates": True}]),
    "additive": ({"pooling": "additive"}, {"causal": True}, {}, FUSED[1], [{"weights": False}, {"softmax": "half"}]),
    "wide additive": ({"pooling": "additive"}, {}, dataclasses.asdict(WIDE), Core(), [{"rounds": True}]),
    "wide": ({"bias": True, "rotary": ROTARY, "qk_norm": "rms", "output_gate": "element"}, GATED | MASK,
             dataclasses.asdict(WIDE), Core(), [{"rounds": True}, {"weights": True}]),
}  # fmt: skip


def changed(border, core, changes):
    """The two with other fields, each of the one that has it."""
    kinds = ({name: X for name, X in changes.items() if hasattr(one, name)} for one in (border, core))
    return tuple(dataclasses.replace(one, **own) for one, own in zip((border, core), kinds, strict=True))


@pytest.mark.parametrize("dtype", HALVES_OF)
@pytest.mark.parametrize("name", PLACES)
def test_a_simulation_gives_the_numbers_of_a_port_by_hand_in_its_style_alone(name, dtype):
    options, call, border, core, others = PLACES[name]
    layer, X, Y = made(dtype, **options), drawn(dtype, B, T, D), drawn(dtype, B, T, D, seed=5)
    call = prepared(dtype, call)
    border = dataclasses.replace(Border.usual(layer.config), **border)
    theirs = HalfPort(layer, border, core).call(X, Y, Y, **call)
    half = asked(layer, X, Y, **call).half
    assert np.mean(half.simulation.output(border, core) == theirs) > SAME
    for changes in others:
        style = changed(border, core, changes)
        assert style != (border, core)
        assert np.mean(half.simulation.output(*style) == theirs) < OTHER, changes
    assert half.judge(theirs.astype("float64")).ratio < 0.5


@pytest.mark.parametrize("dtype", HALVES_OF)
def test_a_call_with_a_cache_is_simulated_too(dtype):
    layer, X = made(dtype, rotary=ROTARY, bias=True, window=(50, 0)), drawn(dtype, B, T, D)
    _, cache = layer(X[:, :-1], X[:, :-1], X[:, :-1], causal=True, cache=layer.cache(B, T))
    before, (keys, values) = {"causal": True, "cache": cache}, cache.arrays()[:2]
    heads = [Y.astype("float32").reshape(B, G, T, -1)[:, :, : T - 1] for Y in (keys, values)]  # (B, G, T - 1, d)
    last, places = X[:, -1:], {"positions": [T - 1], "key_positions": [T - 1]}
    for border, core in ((Border.usual(layer.config), IN_STEPS), (Border.usual(layer.config), FUSED[1])):
        port = HalfPort(layer, border, core)
        port.share = lambda Y: np.concatenate([heads[0], Y], 2).repeat(H // G, 1)
        port.share_values = lambda Y: np.concatenate([heads[1], Y], 2).repeat(H // G, 1)
        port.seen = lambda i, j, causal: np.arange(T) >= T - 51
        theirs = port.call(last, last, last, **{name: np.array(Y) for name, Y in places.items()})
        half = asked(layer, last, last, **before).half
        assert np.mean(half.simulation.output(border, core) == theirs) > SAME
        assert mha.parity.compare(layer, theirs, last, last, last, **before).rounding.left < 0.01


@pytest.mark.parametrize("dtype", HALVES_OF)
def test_rounding_in_the_bits_is_that_of_the_dtype(dtype):
    """Also of ties, the smallest and the largest numbers, infinity and NaN, in arrays without them, too."""
    into, kind, rng = through(dtype), numpy_dtype(dtype), np.random.default_rng(6)
    numbers = np.arange(2**16, dtype="uint16").view(kind).astype("float32")
    numbers = np.sort(numbers[np.isfinite(numbers)])
    ties = numbers[1:] / 2 + numbers[:-1] / 2
    normal = rng.normal(size=999).astype("float32")
    bits = rng.integers(2**32, size=10**5, dtype="uint32").view("float32")
    around = [np.nextafter(ties, np.float32(end)) for end in (-np.inf, np.inf)]
    for X in (bits, normal, 1e-6 * normal, ties, *around, np.array([65519, 65520, -np.inf, np.nan], "float32")):
        with np.errstate(all="ignore"):
            assert np.array_equal(into(X), X.astype(kind).astype("float32"), equal_nan=True)
    assert into(normal.astype("float64")).dtype == np.float64


WORDS = {
    PLAIN: "as a fused kernel does: nothing within",
    FUSED[0]: "as a fused kernel does: exponentials",
    TILES[0]: "as a fused kernel does: exponentials in tiles of 512 keys",
    QUERIES[0]: "as a fused kernel does: scaled queries, weights",
    QUERIES_FLASH[3]: "as a fused kernel does: queries scaled to base 2, exponentials in tiles of 64 keys",
    IN_STEPS: "in steps: dot products, scores, weights",
    STEPS[6]: "in steps: scaled queries, scores, weights",
    HALF: "in steps: dot products, scores, each step of the softmax, weights",
    HALVES[2][2]: "in steps: scaled queries, the scale, scores, each step of the softmax, each sum of exponentials, "
    "weights",
}


def test_the_words_of_styles():
    assert {core: str(core) for core in WORDS} == WORDS


FULL = {"softcap": 5.1, "sinks": True, "output_gate": "element", "bias": True, "window": (40, 3)}


def full(dtype="bfloat16"):
    """A layer with much that attention has, a call of it, and the simulation of that."""
    layer, X, call = made(dtype, **FULL), drawn(dtype, B, T, D), prepared(dtype, BIASED | MASK | GATED)
    return layer, X, call, asked(layer, X, X, **call).half.simulation


def test_some_rows_are_those_of_all(monkeypatch):
    style, rows = (Border(products=True, gates=True), IN_STEPS), (0, 3, 40, 76)
    whole = full()[-1].output(*style)
    assert np.array_equal(full()[-1].output(*style, rows), whole[:, rows])
    monkeypatch.setattr(simulation, "PAIRS", 5 * T)
    assert np.mean(full()[-1].output(*style) == whole) > SAME


def test_the_change_with_the_scale_and_the_largest_scores():
    layer, X, call, simulated = full()
    floats = {name: Y.astype("float64") for name, Y in call.items() if name in ("score_bias", "head_gates")}
    found = []

    class Scaled(Port):
        factor = 1.0

        @property
        def scale(self):
            return self.factor * super().scale

        def softmax(self, scores, seen):
            found.append(np.where(seen, abs(scores), 0).max((1, 3)))  # (B, Q)
            return super().softmax(scores, seen)

    def output(factor):
        Scaled.factor = factor
        with np.errstate(all="ignore"):
            return Scaled(in_dtype(layer, "float64"))(*[X.astype("float64")] * 3, **call | floats)[0]

    change = (output(1.001) - output(0.999)) / 0.002
    assert np.allclose(simulated.change_of_scale(WIDE), change, atol=1e-3 * abs(change).max())
    output(1.0)
    assert np.allclose(simulated.largest_scores(WIDE), found[-1], rtol=1e-4)
    assert asked(made("bfloat16", pooling="additive"), X, X).half.simulation.change_of_scale(WIDE) is None


# Sums and rounding by chance


@pytest.mark.parametrize("columns", [1, 2, 17])
def test_numbers_are_added_one_by_one_however_many_columns_there_are(columns):
    rows = np.random.default_rng(0).random((100, columns)).astype("float32")
    sums = np.zeros(columns, "float16")
    for row in rows.astype("float16"):
        sums = sums + row
    assert np.array_equal(one_by_one("float16", rows), sums.astype("float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_by_chance_takes_one_of_the_two_nearest_numbers_and_is_right_on_the_average(dtype):
    number, unit = np.float32(1.0), {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    X = np.full(20000, number + np.float32(0.25 * unit))
    found = by_chance(dtype, np.random.default_rng(0))(X)
    assert set(np.unique(found).tolist()) == {1.0, 1.0 + unit}
    assert (found > 1).mean() == pytest.approx(0.25, abs=0.02)
    exact = np.array([0.0, -2.5, np.inf, np.nan], "float32")
    assert np.array_equal(by_chance(dtype, np.random.default_rng(0))(exact), exact, equal_nan=True)
