"""A base, a scale, a factor, sinks and an epsilon that the catalogue does not list are fitted, if they explain all."""

import numpy as np
import planted
import pytest
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.parity.diagnosis.mistakes.of_rotations import BASES
from mha.parity.diagnosis.search import numbers
from mha.parity.diagnosis.search.sample import Focus
from mha.parity.diagnosis.search.time_budget import Effort
from mha.parity.rule.problem import problem

D, H, G, T, d = 42, 3, 1, 23, 14
CAUSAL = {"causal": True}
FAR = {"positions": 8009 + np.arange(T), "key_positions": 8009 + np.arange(T)}
BASE = numbers.NUMBERS[-1]


def layer(dtype="float32", **options):
    options = {"rotary": mha.Rotary(base=1e4)} | options
    made = mha.MultiHeadAttention(D, H, num_key_value_heads=G, dtype=dtype, seed=3, backend="numpy", **options)
    larger = {name: (2 * X).astype(X.dtype) if X.ndim == 2 else X for name, X in made.weights.items()}
    if "sinks" in larger:
        larger["sinks"] = np.array([1.5, -0.7, 2.1], dtype)
    return restore(made.config, larger, "numpy")


def inputs(dtype="float32", count=T, size=1.0):
    return (size * np.random.default_rng(5).normal(size=(2, count, D))).astype(numpy_dtype(dtype))


def port(**methods):
    return type("Wrong", (Port,), methods)


def of_base(base, **methods):
    """A port that computes its frequencies of a base, number by number."""

    def frequencies(self, rotary):
        return np.array([1 / base ** (2 * i / rotary.dim) for i in range(rotary.dim // 2)])

    return port(frequencies=frequencies, **methods)


def scaled(scale):
    return port(score=lambda self, q, k: q @ k.swapaxes(2, 3) * q.dtype.type(scale))


def heated(temperature):
    """A port that divides all scores by a temperature, also those of sinks."""
    return port(
        softmax=lambda self, scores, seen: Port.softmax(self, scores / scores.dtype.type(temperature), seen),
        sinks=lambda self: Port.sinks(self) / np.float32(temperature),
    )


def with_epsilon(eps):
    """A port whose norms have another epsilon."""
    return port(root=lambda self, X, own: np.sqrt(X + X.dtype.type(eps)))


def found(kind, right=None, names=("output",), X=None, **call):
    """The explanation of what a port gives; None if there is no sure one, or more than one."""
    right, X = right or layer(), inputs() if X is None else X
    given = dict(zip(("output", "weights"), kind(right)(X, X, X, **call), strict=True))
    explanations = parity.diagnose(right, {name: given[name] for name in names}, X, X, X, **call).explanations
    return explanations[0] if len(explanations) == 1 else None


# A base


@pytest.mark.parametrize(
    ("base", "call"),
    [(12345.0, CAUSAL), (10100.0, {}), (23.0, CAUSAL | FAR), (2.5e8, {}), (1230000.0, CAUSAL), (12345.0, FAR)],
    ids=["causal", "close to ours", "causal and far", "large", "large and causal", "far"],
)
def test_a_base_is_found_from_the_output_and_said(base, call):
    one = found(of_base(base), **call)
    assert one.mistakes == ("another base",)
    (how,) = one.how
    assert f"{float(how.replace(',', '')):.5g}" == f"{base:.5g}"  # on some processors more digits are rounding
    assert one.ratio <= 1


OTHER_ROTATIONS = {
    "a part, interleaved": mha.Rotary(6, 1e4, interleaved=True),
    "frequencies of its own": mha.linear(14, rope_theta=1e4, factor=4.0),
    "a magnitude": mha.Rotary(base=500.0, magnitude=1.3),
}


@pytest.mark.parametrize("rotary", OTHER_ROTATIONS)
def test_a_base_of_every_rotation_is_found(rotary):
    right = layer(rotary=OTHER_ROTATIONS[rotary], qk_norm="rms")
    assert found(of_base(34567.0), right, ("output", "weights"), **CAUSAL).how == ("34,567",)


def test_a_base_is_found_from_rotated_steps():
    X = inputs()
    theirs = layer(rotary=mha.Rotary(base=4321.0)).trace(X, X, X)
    diagnosis = parity.diagnose(layer(), {name: theirs[name] for name in ("rotate_q", "rotate_k")}, X, X, X)
    assert diagnosis.explanations[0].how == ("4,321",), diagnosis


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.long("numpy"))])
def test_in_half_precision_the_number_is_about_that(dtype):
    X, right = inputs(dtype, 151), layer(dtype)
    for name, options, number in (
        ("another base", {"rotary": mha.Rotary(base=123456.0)}, 123456),
        ("another scale", {"scale": 0.61}, 0.61),
    ):
        (one,) = parity.diagnose(right, layer(dtype, **options)(X, X, X), X, X, X).explanations
        assert one.mistakes == (name,)
        about, said, *_ = one.how[0].split()
        assert about == "about"
        assert float(said.replace(",", "")) == pytest.approx(number, rel=0.05)


def test_numbers_of_the_list_need_no_fit(monkeypatch):
    monkeypatch.setattr(numbers, "fit_number", None)
    assert found(of_base(BASES[1]), **CAUSAL).how == (f"{BASES[1]:g}",)
    assert found(scaled(1 / D**0.5)).mistakes == ("the scale of D for that of d",)
    assert found(with_epsilon(1e-2), layer(qk_norm=mha.Norm("rms", 1e-6))).how == ("0.01",)


def test_a_base_beside_another_mistake_and_other_scores_are_unknown():
    assert found(of_base(12345.0, score=lambda self, q, k: 0.3 * q @ k.swapaxes(2, 3))) is None
    squared = port(score=lambda self, q, k: (scores := Port.score(self, q, k)) + 0.05 * scores**2)
    assert found(squared, **CAUSAL) is None


class Counted(Effort):
    """Effort that ends after so many things, and counts them."""

    def __init__(self, most=10**6):
        super().__init__()
        self.most, self.given = most, 0

    def within(self, things):
        for thing in things[: self.most]:
            self.given += 1
            yield thing


def fitted(theirs, right=None, effort=None):
    asked = problem(right or layer(), *[inputs()] * 3, planted.DEFAULTS)
    return numbers.fit_number(BASE, asked, theirs, Focus(), effort or Counted())


def test_where_nothing_goes_by_the_base_none_is_looked_for(monkeypatch):
    right, X, effort = layer(), inputs(), Counted()
    theirs = of_base(12345.0)(right)(X, X, X)[0]
    kernels = {"W_q": 2 * right.trace(X, X, X)["W_q"].reshape(2, T, H, -1).swapaxes(1, 2)}
    assert fitted(kernels | {"output": theirs}, effort=effort) is None
    assert fitted({"output": right(X, X, X)}, effort=effort) is None
    assert fitted({"output": np.where(theirs > 1, np.nan, theirs)}, effort=effort) is None
    assert effort.given == 0
    assert fitted({"output": theirs}, effort=effort).how == "12,345"
    assert effort.given == 186  # from 10 to 1e9, whose logarithms are 18.4 apart, in steps of 0.1
    monkeypatch.setattr(numbers, "Fit", None)
    assert fitted({"output": theirs}, layer(rotary=None)) is None


def test_a_search_that_is_cut_short_finds_none():
    X = inputs()
    theirs = of_base(12.0)(layer())(X, X, X)[0]
    assert fitted({"output": theirs}).how == "12"
    assert fitted({"output": theirs}, effort=Counted(50)) is None


def test_a_base_that_leaves_half_of_the_error_is_none():
    X, rng = inputs(), np.random.default_rng(2)
    right, theirs = layer()(X, X, X), of_base(12345.0)(layer())(X, X, X)[0]
    noise = np.sqrt(((theirs - right) ** 2).mean()) * rng.normal(size=theirs.shape).astype("float32")
    assert fitted({"output": theirs + 0.2 * noise}).how.startswith("12,")
    assert fitted({"output": theirs + noise}) is None
    nearly = theirs + 0.4 * noise
    assert fitted({"output": nearly}) is not None
    assert not parity.diagnose(layer(), nearly, X, X, X).explanations


def test_the_number_has_few_digits():
    asked, X = problem(layer(), *[inputs()] * 3, planted.DEFAULTS), inputs()
    fit = numbers.Fit(BASE, 1e4, asked, "output", layer()(X, X, X), Focus(), "float64")
    fit.left = lambda at: abs(np.exp(at) - 12345.678) / 10
    assert fit.shortest(30.0, np.log(12345.678)) == 12000.0
    assert fit.shortest(0.03, np.log(12345.678)) == 12346.0
    assert fit.shortest(0.0, np.log(12345.678)) == pytest.approx(12345.678, abs=1e-6)


def test_a_decoder_with_another_base_is_named():
    right, wrong, X = layer(), layer(rotary=mha.Rotary(base=12345.0)), inputs()
    before, x = X[:, :-1], X[:, -1:]
    _, cache = right(before, before, before, causal=True, cache=right.cache(2, T))
    own = mha.Cache(wrong.config, cache.reorder([0, 1]).arrays())
    output, left = wrong(x, x, x, causal=True, cache=own)
    theirs = {"output": output, "cache.keys": left.keys}
    diagnosis = parity.diagnose(right, theirs, x, x, x, causal=True, cache=cache)
    assert diagnosis.explanations[0].how == ("12,345",), diagnosis


# A scale, a factor of all scores, sinks, an epsilon

LAYERS = {"plain": {"rotary": None}, "rotated": {}, "capped": {"softcap": 3.0}, "normed": {"qk_norm": "rms"},
          "with a scale of its own": {"scale": 0.11}}  # fmt: skip


@pytest.mark.parametrize(("options", "scale"), [*((name, 0.61) for name in LAYERS), ("rotated", 0.0123)])
def test_a_scale_is_found_and_said(options, scale):
    one = found(scaled(scale), layer(**LAYERS[options]), **CAUSAL)
    assert one.mistakes == ("another scale",), one
    said, where = one.how[0].split(" where ")
    assert float(said) == pytest.approx(scale, rel=1e-5)
    assert where == f"{LAYERS[options].get('scale', d**-0.5):.3g} is right"
    assert one.ratio <= 1


def test_a_scale_is_found_from_weights_and_said_in_few_digits():
    assert found(scaled(0.61), names=("output", "weights")).how == ("0.61 where 0.267 is right",)


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"sinks": True}], ids=str)
def test_a_temperature_after_the_cap_is_found(options):
    one = found(heated(1.9), layer(**options), **CAUSAL)
    assert one.mistakes == ("scores are multiplied",), one
    assert float(one.how[0]) == pytest.approx(1 / 1.9, rel=1e-4)


def test_a_temperature_beside_a_bias_is_found_and_without_any_is_another_scale():
    bias = np.random.default_rng(4).normal(size=(1, H, T, T)).astype("float32")
    assert found(heated(0.8), score_bias=bias).how == ("1.25",)
    one = found(heated(0.8), layer(scale=0.2))
    assert (one.mistakes, one.how) == (("another scale",), ("0.25 where 0.2 is right",))
    assert numbers.times_of(problem(layer(), *[inputs()] * 3, planted.DEFAULTS)) is None


@pytest.mark.parametrize("times", [2, 7])
def test_sinks_that_count_several_times_are_found(times):
    one = found(port(sinks=lambda self: Port.sinks(self) + np.float32(np.log(times))), layer(sinks=True), **CAUSAL)
    assert (one.mistakes, float(one.how[0].split()[0])) == (("sinks count several times",), times)


def test_an_epsilon_is_found():
    right = layer(qk_norm=mha.Norm("rms", 1e-6))
    one = found(with_epsilon(0.037), right, X=inputs(size=0.1), **CAUSAL)
    assert one.mistakes == ("another epsilon",), one
    assert float(one.how[0]) == pytest.approx(0.037, rel=0.01)


def test_a_layer_with_additive_pooling_has_no_number():
    asked = problem(layer(pooling="additive", rotary=None), *[inputs()] * 3, planted.DEFAULTS)
    assert [number.right(asked) for number in numbers.NUMBERS] == [None] * 5


def test_frequencies_of_a_plain_rotation_may_be_divided():
    slower = port(frequencies=lambda self, rotary: np.array([10000 ** (-2 * i / d) / 8 for i in range(d // 2)]))
    one = found(slower, **CAUSAL)
    assert (one.mistakes, one.how) == (("frequencies are scaled linearly",), ("by 8",))
