"""A scale, a factor of all scores and an epsilon that the catalogue does not list are fitted, and said."""

import numpy as np
import planted
import pytest
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.parity.diagnosis.search import numbers
from mha.parity.rule.problem import problem

D, H, G, T, d = 42, 3, 1, 23, 14
CALL = {"causal": True}
ROTARY = mha.Rotary(base=1e4)


def layer(dtype="float32", **options):
    made = mha.MultiHeadAttention(
        D, H, num_key_value_heads=G, dtype=dtype, seed=3, backend="numpy", **{"rotary": ROTARY} | options
    )
    larger = {name: (2 * X).astype(X.dtype) if X.ndim == 2 else X for name, X in made.weights.items()}
    if "sinks" in larger:
        larger["sinks"] = np.array([1.5, -0.7, 2.1], dtype)
    return restore(made.config, larger, "numpy")


def inputs(dtype="float32", size=1.0):
    return (size * np.random.default_rng(5).normal(size=(2, T, D))).astype(numpy_dtype(dtype))


def scaled(scale):
    """A port with another scale."""
    return type("Scaled", (Port,), {"score": lambda self, q, k: q @ k.swapaxes(2, 3) * q.dtype.type(scale)})


def heated(temperature):
    """A port that divides all scores by a temperature, also those of sinks."""

    def softmax(self, scores, seen):
        return Port.softmax(self, scores / scores.dtype.type(temperature), seen)

    return type(
        "Heated", (Port,), {"softmax": softmax, "sinks": lambda self: Port.sinks(self) / np.float32(temperature)}
    )


def with_epsilon(eps):
    """A port whose norms have another epsilon."""
    return type("WithEpsilon", (Port,), {"root": lambda self, X, own: np.sqrt(X + X.dtype.type(eps))})


def found(right, kind, X, names=("output",), **call):
    """The explanation of what a port gives; None if there is no sure one, or more than one."""
    given = dict(zip(("output", "weights"), kind(right)(X, X, X, **call), strict=True))
    diagnosis = parity.diagnose(right, {name: given[name] for name in names}, X, X, X, **call)
    return diagnosis.explanations[0] if len(diagnosis.explanations) == 1 else None


LAYERS = {
    "plain": {"rotary": None},
    "rotated": {},
    "capped": {"softcap": 3.0},
    "normed": {"qk_norm": "rms"},
    "with a scale of its own": {"scale": 0.11},
}


@pytest.mark.parametrize(("options", "scale"), [*((name, 0.61) for name in LAYERS), ("rotated", 0.0123)])
def test_a_scale_is_found_and_said(options, scale):
    right, X = layer(**LAYERS[options]), inputs()
    one = found(right, scaled(scale), X, **CALL)
    assert one.mistakes == ("another scale",), one
    own = LAYERS[options].get("scale", 14**-0.5)
    said, where = one.how[0].split(" where ")
    assert float(said) == pytest.approx(scale, rel=1e-5)
    assert where == f"{own:.3g} is right"
    assert one.ratio <= 1


def test_a_scale_is_found_from_weights_and_said_in_few_digits():
    one = found(layer(), scaled(0.61), inputs(), ("output", "weights"))
    assert one.how == ("0.61 where 0.267 is right",)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_half_precision_the_number_is_about_that(dtype):
    right, wrong, X = layer(dtype), layer(dtype, scale=0.61), inputs(dtype)
    (one,) = parity.diagnose(right, wrong(X, X, X), X, X, X).explanations
    assert one.mistakes == ("another scale",)
    assert one.how[0].startswith("about 0.6")


def test_a_scale_of_the_list_needs_no_fit(monkeypatch):
    monkeypatch.setattr(numbers, "fit_number", None)
    assert found(layer(), scaled(1 / D**0.5), inputs()).mistakes == ("the scale of D for that of d",)


HEATED = {"capped": {"softcap": 3.0}, "sinks": {"sinks": True}}


@pytest.mark.parametrize("options", HEATED)
@pytest.mark.parametrize("temperature", [1.9])
def test_a_temperature_after_the_cap_is_found(options, temperature):
    one = found(layer(**HEATED[options]), heated(temperature), inputs(), **CALL)
    assert one.mistakes == ("scores are multiplied",), one
    assert float(one.how[0]) == pytest.approx(1 / temperature, rel=1e-4)


def test_a_temperature_beside_a_bias_is_found():
    bias = np.random.default_rng(4).normal(size=(1, H, T, T)).astype("float32")
    assert found(layer(), heated(0.8), inputs(), score_bias=bias).how == ("1.25",)


def test_a_temperature_without_any_is_another_scale():
    one = found(layer(scale=0.2), heated(0.8), inputs())
    assert (one.mistakes, one.how) == (("another scale",), ("0.25 where 0.2 is right",))
    asked = problem(layer(), *[inputs()] * 3, planted.DEFAULTS)
    assert numbers.times_of(asked) is None


@pytest.mark.parametrize("eps", [0.037])
def test_an_epsilon_is_found(eps):
    one = found(layer(qk_norm=mha.Norm("rms", 1e-6)), with_epsilon(eps), inputs(size=0.1), **CALL)
    assert one.mistakes == ("another epsilon",), one
    assert float(one.how[0]) == pytest.approx(eps, rel=0.01)


def test_an_epsilon_of_a_hundredth_is_listed(monkeypatch):
    monkeypatch.setattr(numbers, "fit_number", None)
    assert found(layer(qk_norm=mha.Norm("rms", 1e-6)), with_epsilon(1e-2), inputs()).how == ("0.01",)


def squared(self, q, k):
    scores = q @ k.swapaxes(2, 3) * q.dtype.type(self.scale)
    return scores + 0.05 * scores**2


def test_other_scores_are_unknown():
    kind = type("Squared", (Port,), {"score": squared})
    assert found(layer(), kind, inputs(), **CALL) is None


def test_a_layer_with_additive_pooling_has_no_scale():
    asked = problem(layer(pooling="additive", rotary=None), *[inputs()] * 3, planted.DEFAULTS)
    assert [number.right(asked) for number in numbers.NUMBERS] == [None] * 5


@pytest.mark.parametrize("factor", [8])
def test_frequencies_of_a_plain_rotation_may_be_divided(factor):
    def frequencies(self, rotary):
        return np.array([10000 ** (-2 * i / d) / factor for i in range(d // 2)])

    one = found(layer(), type("Slower", (Port,), {"frequencies": frequencies}), inputs(), **CALL)
    assert (one.mistakes, one.how) == (("frequencies are scaled linearly",), (f"by {factor}",))
