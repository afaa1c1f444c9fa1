"""A bound in half precision with the roundings of ports: they round cosines and sines, what these multiply, and more.

The port here is written by hand, as `transformers` computes: it rounds to half precision, and is exact in between. With
large weights a softmax has near ties, and each rounding shows.
"""

import itertools

import numpy as np
import planted
import pytest
from ports import Port

import mha
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem
from mha.parity.rule.rounding_of_ports import layers_of_ports, worst
from mha.parity.rule.rules import in_dtype

H, G, T, D, d = 4, 2, 151, 23, 14
OPTIONS = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "key_dim": d, "seed": 3, "backend": "numpy"}
KINDS = {
    "rotated": {"rotary": mha.Rotary(base=1e4)},
    "rotated in part, neighbours, magnified": {"rotary": mha.Rotary(8, 1e4, True, magnitude=1.3), "bias": True},
    "normed": {"rotary": mha.Rotary(base=1e4), "qk_norm": mha.Norm("rms"), "scale": 2.3},
    "normed after": {"rotary": mha.Rotary(base=1e4), "qk_norm": mha.Norm("rms", after=True), "scale": 2.3},
    "tempered": {"rotary": mha.Rotary(base=1e4), "temperature": mha.Temperature(0.4, 17)},
    "not rotated": {"bias": True, "value_dim": 5},
    "capped": {"rotary": mha.Rotary(base=1e4), "softcap": 20.0, "sinks": True},
}
DTYPES = ["float16", "bfloat16"]


class Rounded(Port):
    """A port that rounds to half precision what it keeps in arrays of that; fused: all but what is within attention."""

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


def layer(kind, dtype, size=3.0):
    """A layer with weights so many times as large, and its input."""
    made = mha.MultiHeadAttention(**OPTIONS | KINDS[kind], dtype=dtype)
    rng = np.random.default_rng(8)
    weights = {name: X if X.ndim == 2 else rng.normal(1, 0.5, X.shape) for name, X in made.weights.items()}
    larger = {
        name: (X * (1 if "norm" in name else size)).astype(numpy_dtype(dtype))
        for name, X in weights.items()
    }  # fmt: skip
    X = rng.normal(size=(2, T, D)).astype(numpy_dtype(dtype))
    return restore(made.config, larger, "numpy"), X


def call(first):
    places = {"positions": first + np.arange(T), "key_positions": first + np.arange(T)}
    return {"causal": True} | places


def ratio(kind, dtype, first, angles=True, size=3.0, **changed):
    made, X = layer(kind, dtype, size)
    theirs = Rounded(made, **changed)(*[X.astype("float32")] * 3, **call(first))[0]
    return problem(made, X, X, X, planted.DEFAULTS | call(first), angles=angles).expected("output").ratio(theirs)


@pytest.mark.parametrize("fused", [False, True], ids=["in steps", "fused"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_port_is_the_same(kind, dtype, fused):
    assert all(ratio(kind, dtype, first, fused=fused, size=size) < 0.6 for first in (0, 8009) for size in (1.0, 3.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_these_roundings_it_is_not(dtype):
    assert max(ratio("rotated", dtype, first, angles=False, size=6.0) for first in (0, 8009)) > 1
    assert all(ratio("rotated", dtype, first, size=6.0) < 0.3 for first in (0, 8009))


def in_bfloat16(places):
    return places.astype(numpy_dtype("bfloat16")).astype("float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fused", [False, True], ids=["in steps", "fused"])
def test_wrong_positions_are_far_above_it(dtype, fused):
    for size in (1.0, 3.0, 6.0):
        assert ratio("rotated", dtype, 8009, fused=fused, size=size, shift=1) > 4
        assert ratio("rotated", dtype, 8009, fused=fused, size=size, places=in_bfloat16) > 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_its_numbers_are_those_of_the_port(kind, dtype):
    """But for few, in which sums of float32 in another order lie on the other side of what is rounded."""
    made, X = layer(kind, dtype)
    found = [one(X, X, X, **call(8009)).astype("float64") for one in layers_of_ports(made)]
    ports = [Rounded(made, fused=fused)(*[X.astype("float32")] * 3, **call(8009))[0] for fused in (True, False)]
    plain = made(X, X, X, **call(8009)).astype("float64")
    for one, port in zip(found, ports, strict=True):
        assert np.mean(one != port) < 0.2
        assert np.abs(one - port).mean() < 0.3 * np.abs(plain - port).mean()


def test_in_other_precisions_there_is_one():
    made, X = layer("rotated", "float32")
    (single,) = layers_of_ports(made)
    assert not np.array_equal(single(X, X, X, **call(8009)), made(X, X, X, **call(8009)))
    assert np.allclose(single(X, X, X), made(X, X, X), atol=1e-3)
    double, X = layer("rotated", "float64")
    assert layers_of_ports(double) == [double]


def test_the_base_errs_as_the_worse_of_the_two():
    made, X = layer("rotated", "bfloat16")
    asked = problem(made, X, X, X, planted.DEFAULTS | call(0), angles=True)
    oracle, base = asked.outputs()
    errors = [np.square(one(X, X, X, **call(0)) - oracle).mean(-1) for one in layers_of_ports(made)]
    assert np.array_equal(np.square(base - oracle).mean(-1), np.maximum(*errors))
    assert np.array_equal(asked.base["output"], base)


def test_an_overflow_on_the_way_does_not_count():
    """Dot products of float16 may be infinite before they are scaled."""
    made, X = layer("not rotated", "float16", 40.0)
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


def test_the_pipeline_rounds_cosines_and_sines():
    made, X = layer("rotated in part, neighbours, magnified", "bfloat16")
    asked = problem(made, X, X, X, planted.DEFAULTS | call(8009), angles=True)
    rotated = {kind: all_steps(make_plan(asked, kind), ["rotate_q"])["rotate_q"] for kind in ("bfloat16", "float64")}
    port = Rounded(made, pairs=None)
    port.turned = lambda X, cos, sin, interleaved: Port.turned(port, X, port.r(cos), port.r(sin), interleaved)
    q = all_steps(make_plan(asked, "bfloat16"), ["split_q"])["split_q"].astype("float32")
    there = port.r(port.turn("q", q, call(8009)["positions"][None]))
    assert np.array_equal(rotated["bfloat16"], there)
    assert np.array_equal(rotated["float64"], asked.oracle["rotate_q"])


def test_gradients_have_these_roundings_too():
    made, X = layer("rotated", "bfloat16", 1.0)
    coarse, fine = (
        problem(made, X, X, X, planted.DEFAULTS | call(0), angles=angles).base_gradients for angles in (True, False)
    )
    assert all(not np.array_equal(coarse[name], fine[name]) for name in ("W_q.kernel", "queries"))
    assert all(np.isfinite(X).all() for X in itertools.chain(coarse.values(), fine.values()))
