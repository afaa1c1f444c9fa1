"""A base of the rotation that the catalogue does not list is fitted, and only if it explains all that was given."""

import numpy as np
import planted
import pytest
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.mistakes.of_rotations import BASES
from mha.parity.diagnosis.search import numbers
from mha.parity.diagnosis.search.sample import Focus
from mha.parity.diagnosis.search.time_budget import Effort
from mha.parity.rule.problem import problem

D, H, G, T = 42, 3, 1, 23
EVERYTHING, BASE = Focus(), numbers.NUMBERS[-1]
FAR = {"positions": 8009 + np.arange(T), "key_positions": 8009 + np.arange(T)}


def layer(dtype="float32", rotary=None, **options):
    return mha.MultiHeadAttention(
        D,
        H,
        num_key_value_heads=G,
        rotary=rotary or mha.Rotary(base=1e4),
        dtype=dtype,
        seed=3,
        backend="numpy",
        **options,
    )


def inputs(dtype="float32", count=T):
    return np.random.default_rng(5).normal(size=(2, count, D)).astype(numpy_dtype(dtype))


def of_base(base, **methods):
    """A port that computes its frequencies of a base, number by number."""

    def frequencies(self, rotary):
        return np.array([1 / base ** (2 * i / rotary.dim) for i in range(rotary.dim // 2)])

    return type("OfBase", (Port,), {"frequencies": frequencies, **methods})


def found(base, right=None, names=("output",), dtype="float32", X=None, methods=None, **call):
    """The diagnosis of what a port with a base gives."""
    right, X = right or layer(dtype), inputs(dtype) if X is None else X
    given = dict(zip(("output", "weights"), of_base(base, **methods or {})(right)(X, X, X, **call), strict=True))
    return parity.diagnose(right, {name: given[name] for name in names}, X, X, X, **call)


@pytest.mark.parametrize("base", [12345.0, 10100.0, 23.0, 2.5e8, 1230000.0])
@pytest.mark.parametrize("call", [{"causal": True}, {}, {"causal": True} | FAR], ids=["causal", "all", "far"])
def test_a_base_is_found_from_the_output_and_said(base, call):
    diagnosis = found(base, **call)
    assert diagnosis.alternatives == (("another base",),), diagnosis
    assert diagnosis.explanations[0].how == (f"{base:,.0f}",)
    assert diagnosis.explanations[0].ratio <= 1
    assert f"another base ({base:,.0f})" in str(diagnosis)


OTHER_ROTATIONS = {
    "a part, interleaved": mha.Rotary(6, 1e4, interleaved=True),
    "frequencies of its own": mha.linear(14, rope_theta=1e4, factor=4.0),
    "a magnitude": mha.Rotary(base=500.0, magnitude=1.3),
}


@pytest.mark.parametrize("rotary", OTHER_ROTATIONS)
def test_a_base_of_every_rotation_is_found(rotary):
    diagnosis = found(34567.0, layer(rotary=OTHER_ROTATIONS[rotary], qk_norm="rms"), ("output", "weights"), causal=True)
    assert diagnosis.explanations[0].how == ("34,567",), diagnosis


def test_a_base_is_found_from_rotated_steps():
    right, X = layer(), inputs()
    theirs = layer(rotary=mha.Rotary(base=4321.0)).trace(X, X, X)
    diagnosis = parity.diagnose(right, {name: theirs[name] for name in ("rotate_q", "rotate_k")}, X, X, X)
    assert diagnosis.explanations[0].how == ("4,321",), diagnosis


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_half_precision_the_number_is_about_that(dtype):
    X, right, wrong = inputs(dtype, 151), layer(dtype), layer(dtype, mha.Rotary(base=123456.0))
    (how,) = parity.diagnose(right, wrong(X, X, X), X, X, X).explanations[0].how
    assert how.startswith("about 12")
    assert float(how.removeprefix("about ").replace(",", "")) == pytest.approx(123456, rel=0.05)


def test_a_base_of_the_list_needs_no_fit(monkeypatch):
    monkeypatch.setattr(numbers, "fit_number", None)
    assert found(BASES[1]).explanations[0].how == (f"{BASES[1]:g}",)


def scaled_otherwise(self, q, k):
    return 0.3 * q @ k.swapaxes(2, 3)


def test_a_base_beside_another_mistake_is_unknown():
    assert not found(12345.0, methods={"score": scaled_otherwise}).known


class Counted(Effort):
    """Effort that ends after so many things, and counts them."""

    def __init__(self, most=10**6):
        super().__init__()
        self.most, self.given = most, 0

    def within(self, things):
        for thing in things[: self.most]:
            self.given += 1
            yield thing


def fitted(theirs, right=None, effort=None, X=None):
    right, X = right or layer(), inputs() if X is None else X
    return numbers.fit_number(BASE, problem(right, X, X, X, planted.DEFAULTS), theirs, EVERYTHING, effort or Counted())


def test_where_nothing_goes_by_the_base_none_is_looked_for():
    right, X, effort = layer(), inputs(), Counted()
    theirs = of_base(12345.0)(right)(X, X, X)[0]
    kernels = {"W_q": 2 * right.trace(X, X, X)["W_q"].reshape(2, T, H, -1).swapaxes(1, 2)}
    assert fitted(kernels | {"output": theirs}, effort=effort) is None
    assert fitted({"output": right(X, X, X)}, effort=effort) is None
    assert fitted({"output": np.where(theirs > 1, np.nan, theirs)}, effort=effort) is None
    assert effort.given == 0
    assert fitted({"output": theirs}, effort=effort).how == "12,345"
    assert effort.given == 186  # from 10 to 1e9, whose logarithms are 18.4 apart, in steps of 0.1


def test_a_layer_that_does_not_rotate_costs_nothing(monkeypatch):
    monkeypatch.setattr(numbers, "Fit", None)
    assert fitted({"output": inputs()}, mha.MultiHeadAttention(D, H, seed=3, backend="numpy")) is None


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
    fit = numbers.Fit(
        BASE,
        1e4,
        problem(layer(), *[inputs()] * 3, planted.DEFAULTS),
        "output",
        layer()(*[inputs()] * 3),
        EVERYTHING,
        "float64",
    )
    fit.left = lambda at: abs(np.exp(at) - 12345.678) / 10
    assert fit.shortest(30.0, np.log(12345.678)) == 12000.0
    assert fit.shortest(0.03, np.log(12345.678)) == 12346.0
    assert fit.shortest(0.0, np.log(12345.678)) == pytest.approx(12345.678, abs=1e-6)


def test_a_decoder_with_another_base_is_named():
    right, X = layer(), inputs()
    before, x = X[:, :-1], X[:, -1:]
    _, cache = right(before, before, before, causal=True, cache=right.cache(2, T))
    own = mha.Cache(layer(rotary=mha.Rotary(base=12345.0)).config, cache.reorder([0, 1]).arrays())
    output, left = layer(rotary=mha.Rotary(base=12345.0))(x, x, x, causal=True, cache=own)
    theirs = {"output": output, "cache.keys": left.keys}
    diagnosis = parity.diagnose(right, theirs, x, x, x, causal=True, cache=cache)
    assert diagnosis.explanations[0].how == ("12,345",), diagnosis
