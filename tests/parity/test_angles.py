"""Bounds with angles of rotations in float32, as ports compute them, and arrays that a port alone rounds."""

import numpy as np
import planted
import pytest
from ports import Port

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.blind_spots.probes import change_call
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.wrong_setup import calls
from mha.parity.diagnosis.wrong_setup.calls import call_with
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem

H, G, D, d = 4, 2, 23, 14
FAR = 8009  # the first position
OPTIONS = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "key_dim": d, "seed": 3, "backend": "numpy"}
HALVES = ["float16", "bfloat16"]


class Rounded(Port):
    """A port with angles in float32; shift: of the positions of queries; places: what it does with positions."""

    def __init__(self, attention, shift=0, places=lambda places: places, **changed):
        super().__init__(attention)
        vars(self).update(changed, shift=shift, places=places)

    def turn(self, role, X, places):
        places = self.places(places + self.shift * (role == "q")).astype("float32")
        angles = (places[..., None] * self.frequencies(self.config.rotary).astype("float32"))[:, None]
        return self.turned(X, np.cos(angles), np.sin(angles), self.config.rotary.interleaved)


def in_bfloat16(places):
    return places.astype(numpy_dtype("bfloat16")).astype("float32")


def call_at(first, tokens):
    places = {"positions": first + np.arange(tokens), "key_positions": first + np.arange(tokens)}
    return {"causal": True} | places


T = 61
LAYER = mha.MultiHeadAttention(**OPTIONS, rotary=mha.Rotary(base=5e5))
X = np.random.default_rng(5).normal(size=(2, T, D)).astype("float32")
CALL = call_at(FAR, T)


def ported(**changed):
    return Rounded(LAYER, **changed)(X, X, X, **CALL)[0]


def asked(angles, **call):
    return problem(LAYER, X, X, X, planted.DEFAULTS | CALL | call, angles=angles)


@pytest.mark.margin(0.5, 1)  # it asks for one itself
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
    if dtype == "float32":  # in half precision the output alone is simulated
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
        coarse, fine = (all_steps(make_plan(one, kind))[0]["rotate_q"] for one in problems)
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
