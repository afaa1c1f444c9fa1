"""A bound with the roundings of ports: angles in float32; in half precision cosines, sines and more are rounded, too.

The port here is written by hand, as `transformers` computes: frequencies, angles, cosines and sines in float32. In half
precision it rounds what it keeps in arrays of that, and is exact in between. Far from the start rounded angles are most
of the error; with large weights a softmax has near ties, and each rounding shows.
"""

import itertools

import numpy as np
import planted
import pytest
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.parity.diagnosis.blind_spots.probes import change_call
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.wrong_setup import calls
from mha.parity.diagnosis.wrong_setup.calls import call_with
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem
from mha.parity.rule.rounding_of_ports import layers_of_ports, worst
from mha.parity.rule.rules import in_dtype

H, G, D, d = 4, 2, 23, 14
FAR = 8009  # the first position
OPTIONS = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "key_dim": d, "seed": 3, "backend": "numpy"}
HALVES = ["float16", "bfloat16"]


class Rounded(Port):
    """A port that rounds what it keeps to its dtype; fused: all but what is within attention; shift: of queries."""

    fused = False

    def __init__(self, attention, shift=0, **changed):
        super().__init__(in_dtype(attention, "float32"))
        self.kind, self.shift = numpy_dtype(attention.config.dtype), shift
        vars(self).update(changed)

    def r(self, X):
        return X.astype(self.kind).astype("float32")

    def project(self, name, X):
        return self.r(super().project(name, X))

    def norm(self, role, X):
        return self.r(super().norm(role, X))

    def temper(self, X, places):
        return self.r(super().temper(X, places))

    def turn(self, role, X, places):
        if self.config.rotary is None:
            return X
        places = self.places(places + self.shift * (role == "q")).astype("float32")
        angles = (places[..., None] * self.frequencies(self.config.rotary).astype("float32"))[:, None]
        return self.turned(X, *(np.float32(self.magnitude(role)) * f(angles) for f in (np.cos, np.sin)),
                           self.config.rotary.interleaved)  # fmt: skip

    def places(self, places):
        return places

    def turned(self, X, cos, sin, interleaved):
        cos, sin, (a, b) = self.r(cos), self.r(sin), self.pairs(X, cos.shape[-1], interleaved)
        Y = X.copy()
        Y[..., a] = self.r(X[..., a] * cos) - self.r(X[..., b] * sin)
        Y[..., b] = self.r(X[..., b] * cos) + self.r(X[..., a] * sin)
        return self.r(Y)

    def pairs(self, X, n, interleaved):
        at = np.arange(2 * n)
        return (at[::2], at[1::2]) if interleaved else (at[:n], at[n:])

    def inside(self, X):
        return X if self.fused else self.r(X)

    def score(self, q, k):
        return self.inside(self.inside(q @ k.swapaxes(2, 3)) * np.float32(self.scale))

    def softmax(self, scores, seen):
        return self.inside(super().softmax(scores, seen))

    def gate(self, pooled, gates):
        return self.r(pooled)


def in_bfloat16(places):
    return places.astype(numpy_dtype("bfloat16")).astype("float32")


def call_at(first, tokens):
    places = {"positions": first + np.arange(tokens), "key_positions": first + np.arange(tokens)}
    return {"causal": True} | places


# Angles, in float32

T = 61
LAYER = mha.MultiHeadAttention(**OPTIONS, rotary=mha.Rotary(base=5e5))
X = np.random.default_rng(5).normal(size=(2, T, D)).astype("float32")
CALL = call_at(FAR, T)


def ported(**changed):
    return Rounded(LAYER, **changed)(X, X, X, **CALL)[0]


def asked(angles, **call):
    return problem(LAYER, X, X, X, planted.DEFAULTS | CALL | call, angles=angles)


def test_a_right_port_is_the_same_with_the_rounding_of_angles_and_not_without():
    with_angles, without = (asked(angles).expected("output") for angles in (True, False))
    assert with_angles.ratio(ported()) < 0.5
    assert without.ratio(ported()) > 2


@pytest.mark.parametrize("wrong", [{"shift": 1}, {"places": in_bfloat16}], ids=["one further", "bfloat16"])
def test_wrong_positions_are_far_above_it(wrong):
    assert asked(True).expected("output").ratio(ported(**wrong)) > 100


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_the_base_alone_has_angles_in_float32(dtype):
    layer, inputs = restore_in(dtype), [X.astype(numpy_dtype(dtype))] * 3
    coarse, fine = (problem(layer, *inputs, planted.DEFAULTS | CALL, angles=angles) for angles in (True, False))
    assert all(np.array_equal(coarse.oracle[name], fine.oracle[name]) for name in fine.oracle)
    assert np.array_equal(coarse.outputs()[0], fine.outputs()[0])
    alone, *steps = (Y.astype("float64") for Y in (coarse.outputs()[1], coarse.base["output"], fine.base["output"]))
    near, far = (np.abs(alone - Y).max() for Y in steps)
    assert near < far / 16  # a call that keeps no steps sums in another order on some processors
    assert np.array_equal(coarse.base["split_q"], fine.base["split_q"])
    for name in ("rotate_q", "rotate_k"):
        assert not np.array_equal(coarse.base[name], fine.base[name]) or dtype == "bfloat16"  # which hides it


def restore_in(dtype):
    return mha.MultiHeadAttention(**OPTIONS, rotary=mha.Rotary(base=5e5), dtype=dtype)


def test_gradients_have_wider_bounds_too():
    bounds = [asked(angles).expected("gradient.W_q.kernel").limit for angles in (True, False)]
    assert bounds[0] > 2 * bounds[1]


def test_nothing_changes_in_float64_or_without_a_rotation():
    for layer in (restore_in("float64"), mha.MultiHeadAttention(**OPTIONS)):
        inputs = [X.astype(layer.config.dtype)] * 3
        coarse, fine = (
            problem(layer, *inputs, planted.DEFAULTS | CALL, angles=angles).outputs() for angles in (True, False)
        )
        assert all(np.array_equal(one, other) for one, other in zip(coarse, fine, strict=True))


def test_the_pipeline_has_the_same_angles():
    problems = asked(True), asked(False)
    for kind in ("float32", "float64"):
        coarse, fine = (all_steps(make_plan(one, kind), ["rotate_q"])["rotate_q"] for one in problems)
        assert np.array_equal(coarse, fine) is (kind == "float64")
        assert kind == "float64" or np.array_equal(coarse, problems[0].base["rotate_q"])


def test_a_mistake_or_another_call_beside_rounded_angles_is_named():
    wrong = ported(share=lambda X: X[:, np.arange(H) % G], share_values=lambda X: X[:, np.arange(H) % G])
    report = report_of(asked(True), wrong)
    assert report.diagnosis.mistakes == ("heads of keys are tiled, not repeated",), report
    assert report.diagnosis.explanations[0].ratio < 0.5
    assert not report_of(asked(False), wrong).diagnosis.known
    report = report_of(asked(True, causal=False), ported())
    assert report.diagnosis.call == {"causal": True}, report
    assert call_with(asked(True), {"causal": False}).angles
    assert change_call(asked(True)).angles


def test_samples_for_tokens_beside_rounded_angles_are_named():
    fast = mha.Rotary(frequencies=tuple(FAR / 3.0 ** np.arange(d // 2)))
    layer, Y = mha.MultiHeadAttention(**OPTIONS, rotary=fast), X.swapaxes(0, 1)
    theirs = Rounded(layer)(Y, Y, Y)[0].swapaxes(0, 1)
    problems = (problem(layer, X, X, X, planted.DEFAULTS, angles=angles) for angles in (True, False))
    assert [calls.over_samples(one, theirs) is not None for one in problems] == [True, False]


def test_a_call_with_a_cache_has_them_too():
    first, last = X[:, :-1], X[:, -1:]
    _, cache = LAYER(first, first, first, causal=True, positions=FAR + np.arange(T - 1), cache=LAYER.cache(2, T))
    call = planted.DEFAULTS | {"causal": True, "positions": [FAR + T - 1], "cache": cache}
    coarse, fine = (as_decoding(problem(LAYER, last, last, last, call, angles=angles)) for angles in (True, False))
    assert coarse.angles
    assert not np.array_equal(coarse.base["rotate_k"], fine.base["rotate_k"])
    assert np.array_equal(coarse.base["cache.positions"], fine.base["cache.positions"])


# Half precision

KINDS = {
    "rotated": {"rotary": mha.Rotary(base=1e4)},
    "rotated in part, neighbours, magnified": {"rotary": mha.Rotary(8, 1e4, True, magnitude=1.3), "bias": True},
    "normed": {"rotary": mha.Rotary(base=1e4), "qk_norm": mha.Norm("rms"), "scale": 2.3},
    "normed after": {"rotary": mha.Rotary(base=1e4), "qk_norm": mha.Norm("rms", after=True), "scale": 2.3},
    "tempered": {"rotary": mha.Rotary(base=1e4), "temperature": mha.Temperature(0.4, 17)},
    "not rotated": {"bias": True, "value_dim": 5},
    "capped": {"rotary": mha.Rotary(base=1e4), "softcap": 20.0, "sinks": True},
}


def layer_of(kind, dtype, size=3.0):
    """A layer with weights so many times as large, and its input."""
    made = mha.MultiHeadAttention(**OPTIONS | KINDS[kind], dtype=dtype)
    rng = np.random.default_rng(8)
    weights = {name: X if X.ndim == 2 else rng.normal(1, 0.5, X.shape) for name, X in made.weights.items()}
    larger = {
        name: (X * (1 if "norm" in name else size)).astype(numpy_dtype(dtype))
        for name, X in weights.items()
    }  # fmt: skip
    return restore(made.config, larger, "numpy"), rng.normal(size=(2, 151, D)).astype(numpy_dtype(dtype))


def half_problem(made, X, first, angles=True):
    return problem(made, X, X, X, planted.DEFAULTS | call_at(first, 151), angles=angles)


def ratio(kind, dtype, first, angles=True, size=3.0, **changed):
    made, X = layer_of(kind, dtype, size)
    theirs = Rounded(made, **changed)(*[X.astype("float32")] * 3, **call_at(first, 151))[0]
    return half_problem(made, X, first, angles).expected("output").ratio(theirs)


@pytest.mark.parametrize("fused", [False, True], ids=["in steps", "fused"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_port_in_half_precision_is_the_same(kind, dtype, fused):
    assert all(ratio(kind, dtype, first, fused=fused, size=size) < 0.6 for first in (0, FAR) for size in (1.0, 3.0))


@pytest.mark.parametrize("dtype", HALVES)
def test_without_these_roundings_it_is_not(dtype):
    assert max(ratio("rotated", dtype, first, angles=False, size=6.0) for first in (0, FAR)) > 1
    assert all(ratio("rotated", dtype, first, size=6.0) < 0.3 for first in (0, FAR))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fused", [False, True], ids=["in steps", "fused"])
def test_wrong_positions_in_half_precision_are_far_above_it(dtype, fused):
    for size in (1.0, 3.0, 6.0):
        assert ratio("rotated", dtype, FAR, fused=fused, size=size, shift=1) > 4
        assert ratio("rotated", dtype, FAR, fused=fused, size=size, places=in_bfloat16) > 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", HALVES)
def test_its_numbers_are_those_of_the_port(kind, dtype):
    """But for few, in which sums of float32 in another order lie on the other side of what is rounded."""
    (made, X), call = layer_of(kind, dtype), call_at(FAR, 151)
    found = [one(X, X, X, **call).astype("float64") for one in layers_of_ports(made)]
    ports = [Rounded(made, fused=fused)(*[X.astype("float32")] * 3, **call)[0] for fused in (True, False)]
    plain = made(X, X, X, **call).astype("float64")
    for one, port in zip(found, ports, strict=True):
        assert np.mean(one != port) < 0.2
        assert np.abs(one - port).mean() < 0.3 * np.abs(plain - port).mean()


def test_in_other_precisions_there_is_one():
    (made, X), call = layer_of("rotated", "float32"), call_at(FAR, 151)
    (single,) = layers_of_ports(made)
    assert not np.array_equal(single(X, X, X, **call), made(X, X, X, **call))
    assert np.allclose(single(X, X, X), made(X, X, X), atol=1e-3)
    double, X = layer_of("rotated", "float64")
    assert layers_of_ports(double) == [double]


def test_the_base_errs_as_the_worse_of_the_two():
    made, X = layer_of("rotated", "bfloat16")
    asked = half_problem(made, X, 0)
    oracle, base = asked.outputs()
    errors = [np.square(one(X, X, X, **call_at(0, 151)) - oracle).mean(-1) for one in layers_of_ports(made)]
    assert np.array_equal(np.square(base - oracle).mean(-1), np.maximum(*errors))
    assert np.array_equal(asked.base["output"], base)


def test_an_overflow_on_the_way_does_not_count():
    """Dot products of float16 may be infinite before they are scaled."""
    made, X = layer_of("not rotated", "float16", 40.0)
    fused, steps = (one(X, X, X) for one in layers_of_ports(made))
    assert np.isnan(steps).any()
    assert np.isfinite(fused).all()
    oracle, base = problem(made, X, X, X, planted.DEFAULTS, angles=True).outputs()
    rows = np.isnan(steps).any(-1)
    assert np.array_equal(base[rows], fused[rows])
    assert np.isfinite(base).all()
    assert np.array_equal(worst(oracle, [fused, steps]), base)
    in_part = np.array([[9.0, np.inf]]), np.array([[9.0, 1.0]])
    assert worst(np.ones((1, 2)), [np.array([[2.0, 1.0]]), in_part[0]]).tolist() == [[2.0, 1.0]]
    assert worst(np.ones((1, 2)), [np.array([[2.0, 1.0]]), in_part[1]]).tolist() == [[9.0, 1.0]]


@pytest.mark.parametrize("blank", [False, True])
def test_an_overflow_that_comes_through_is_named(blank):
    class Overflowing(Rounded):
        def softmax(self, scores, seen):
            weights = super().softmax(scores, seen)
            return np.nan_to_num(weights) if blank else weights

    class ScaledFirst(Rounded):
        def score(self, q, k):
            return self.r(self.r(q * np.float32(self.scale)) @ k.swapaxes(2, 3))

    layer = mha.MultiHeadAttention(64, 4, num_key_value_heads=2, bias=True, dtype="float16", seed=0, backend="numpy")
    X = 110 * np.random.default_rng(5).normal(size=(2, 9, 64)) / np.resize([60, 1], 9)[:, None]
    X = X.astype("float16")
    with np.errstate(all="ignore"):
        right, wrong = (kind(layer)(*[X.astype("float32")] * 3, causal=True)[0] for kind in (ScaledFirst, Overflowing))
    assert np.isnan(wrong).any() != blank
    assert parity.compare(layer, right.astype("float16"), X, X, X, causal=True)
    report = parity.compare(layer, wrong.astype("float16"), X, X, X, causal=True)
    assert report.diagnosis.alternatives == (("dot products overflow float16",),), report


def test_the_pipeline_rounds_cosines_and_sines():
    made, X = layer_of("rotated in part, neighbours, magnified", "bfloat16")
    asked = half_problem(made, X, FAR)
    rotated = {kind: all_steps(make_plan(asked, kind), ["rotate_q"])["rotate_q"] for kind in ("bfloat16", "float64")}
    port = Rounded(made, pairs=None)
    port.turned = lambda X, cos, sin, interleaved: Port.turned(port, X, port.r(cos), port.r(sin), interleaved)
    q = all_steps(make_plan(asked, "bfloat16"), ["split_q"])["split_q"].astype("float32")
    there = port.r(port.turn("q", q, call_at(FAR, 151)["positions"][None]))
    assert np.array_equal(rotated["bfloat16"], there)
    assert np.array_equal(rotated["float64"], asked.oracle["rotate_q"])


def test_gradients_have_these_roundings_too():
    made, X = layer_of("rotated", "bfloat16", 1.0)
    coarse, fine = (half_problem(made, X, 0, angles).base_gradients for angles in (True, False))
    assert all(not np.array_equal(coarse[name], fine[name]) for name in ("W_q.kernel", "queries"))
    assert all(np.isfinite(X).all() for X in itertools.chain(coarse.values(), fine.values()))


# One array alone that is rounded is a mistake


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("role", ["queries", "keys", "values", "weights"])
def test_what_is_rounded_alone_is_named(role, kind):
    def rounded(Y):
        return Y.astype(numpy_dtype(kind)).astype(Y.dtype)

    methods = {
        "queries": {"score": lambda self, q, k: Port.score(self, rounded(q), k)},
        "keys": {"share": lambda self, Y: rounded(Port.share(self, Y))},
        "values": {"share_values": lambda self, Y: rounded(Port.share_values(self, Y))},
        "weights": {"softmax": lambda self, scores, seen: rounded(Port.softmax(self, scores, seen))},
    }
    right = mha.MultiHeadAttention(42, 3, num_key_value_heads=1, rotary=mha.Rotary(), seed=3, backend="numpy")
    X = np.random.default_rng(5).normal(size=(2, 31, 42)).astype("float32")
    theirs = type("Wrong", (Port,), methods[role])(right)(X, X, X, causal=True)[0]
    (one,) = parity.diagnose(right, theirs, X, X, X, causal=True).explanations
    name = "softmax in half precision" if role == "weights" else "heads in half precision"
    how = f"{kind}, weights alone" if role == "weights" else f"{role}, {kind}"
    assert (one.mistakes, one.how, one.sure) == ((name,), (how,), True)
    assert one.left < 0.05
