"""A bound with the rounding of angles: ports compute them in float32, and far from the start that is most of the error.

The port here is written by hand, as `transformers` computes: frequencies, angles, cosines and sines in float32.
"""

import numpy as np
import planted
import pytest

import mha
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.blind_spots.probes import change_call
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.wrong_setup import calls
from mha.parity.diagnosis.wrong_setup.calls import call_with
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.problem import problem

H, G, T, D, d = 4, 2, 61, 23, 14
FAR = 8009  # the first position
OPTIONS = {
    "num_hiddens": D, "num_heads": H, "key_dim": d, "num_key_value_heads": G, "rotary": mha.Rotary(base=5e5), "seed": 3,
    "backend": "numpy",
}  # fmt: skip
LAYER = mha.MultiHeadAttention(**OPTIONS)
X = np.random.default_rng(5).normal(size=(2, T, D)).astype("float32")
CALL = planted.DEFAULTS | {"causal": True, "positions": FAR + np.arange(T), "key_positions": FAR + np.arange(T)}


def ported(X, layer=LAYER, first=FAR, of_queries=0, of_keys=lambda places: places, groups=None, causal=True):
    """What a port gives; first: the position; of_queries, of_keys: what is added to positions, and a function of them;
    groups: the head of keys of each head of queries.
    """
    q, k, v = (X @ layer.weights[f"W_{role}.kernel"] for role in "qkv")
    q, k, v = (part.reshape(*part.shape[:2], -1, d).swapaxes(1, 2) for part in (q, k, v))  # (B, H or G, T, d)
    places = np.arange(first, first + X.shape[1]).astype("float32")
    frequencies = np.float32(1) / layer.config.rotary.base ** (np.arange(0, d, 2, dtype="float32") / np.float32(d))
    if layer.config.rotary.frequencies:
        frequencies = np.array(layer.config.rotary.frequencies, "float32")

    def turned(part, places):
        angles = places[:, None] * np.concatenate([frequencies, frequencies])  # (T, d)
        halves = np.concatenate([-part[..., d // 2 :], part[..., : d // 2]], -1)
        return part * np.cos(angles) + halves * np.sin(angles)

    q, k = turned(q, places + of_queries), turned(k, of_keys(places))
    groups = np.arange(H) // (H // G) if groups is None else groups
    scores = q @ k[:, groups].swapaxes(2, 3) / np.sqrt(d).astype(X.dtype)
    if causal:
        scores = np.where(np.tri(X.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    pooled = weights / weights.sum(-1, keepdims=True) @ v[:, groups]  # (B, H, T, d)
    merged = pooled.swapaxes(1, 2).reshape(*X.shape[:2], H * d)
    return (merged @ layer.weights["W_o.kernel"]).astype(X.dtype)


def asked(angles, layer=LAYER, **call):
    return problem(layer, X, X, X, CALL | call, angles=angles)


def in_bfloat16(places):
    return places.astype(numpy_dtype("bfloat16")).astype("float32")


def test_a_right_port_is_the_same_with_the_rounding_of_angles_and_not_without():
    with_angles, without = (asked(angles).expected("output") for angles in (True, False))
    assert with_angles.ratio(ported(X)) < 0.5
    assert without.ratio(ported(X)) > 2


@pytest.mark.parametrize("wrong", [{"of_queries": 1}, {"of_keys": in_bfloat16}], ids=["one further", "bfloat16"])
def test_wrong_positions_are_far_above_it(wrong):
    assert asked(True).expected("output").ratio(ported(X, **wrong)) > 100


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_base_alone_has_angles_in_float32(dtype):
    layer = mha.MultiHeadAttention(**OPTIONS, dtype=dtype)
    inputs = [X.astype(numpy_dtype(dtype))] * 3
    coarse, fine = (problem(layer, *inputs, CALL, angles=angles) for angles in (True, False))
    assert all(np.array_equal(coarse.oracle[name], fine.oracle[name]) for name in fine.oracle)
    assert np.array_equal(coarse.outputs()[0], fine.outputs()[0])
    alone, *steps = (X.astype("float64") for X in (coarse.outputs()[1], coarse.base["output"], fine.base["output"]))
    near, far = (np.abs(alone - X).max() for X in steps)
    assert near < far / 16  # a call that keeps no steps sums in another order on some processors
    assert np.array_equal(coarse.base["split_q"], fine.base["split_q"])
    for name in ("rotate_q", "rotate_k"):
        assert not np.array_equal(coarse.base[name], fine.base[name]) or dtype == "bfloat16"  # which hides it


def test_gradients_have_wider_bounds_too():
    bounds = [asked(angles).expected("gradient.W_q.kernel").limit for angles in (True, False)]
    assert bounds[0] > 2 * bounds[1]


def test_nothing_changes_in_float64_or_without_a_rotation():
    double = mha.MultiHeadAttention(**OPTIONS, dtype="float64")
    plain = mha.MultiHeadAttention(**OPTIONS | {"rotary": None})
    for layer in (double, plain):
        inputs = [X.astype(layer.config.dtype)] * 3
        coarse, fine = (problem(layer, *inputs, CALL, angles=angles).outputs() for angles in (True, False))
        assert all(np.array_equal(one, other) for one, other in zip(coarse, fine, strict=True))


def test_the_pipeline_has_the_same_angles():
    problems = asked(True), asked(False)
    for kind, dtype in (("float32", np.float32), ("float64", np.float64)):
        coarse, fine = (all_steps(make_plan(one, kind), ["rotate_q"])["rotate_q"] for one in problems)
        assert np.array_equal(coarse, fine) is (dtype == np.float64)
    assert np.array_equal(
        all_steps(make_plan(problems[0], "float32"), ["rotate_q"])["rotate_q"], problems[0].base["rotate_q"]
    )


def test_a_mistake_beside_rounded_angles_is_named():
    wrong = ported(X, groups=np.arange(H) % G)
    report = report_of(asked(True), wrong)
    assert report.diagnosis.mistakes == ("heads of keys are tiled, not repeated",), report
    assert report.diagnosis.explanations[0].ratio < 0.5
    assert not report_of(asked(False), wrong).diagnosis.known


def test_another_call_beside_rounded_angles_is_named():
    report = report_of(asked(True, causal=False), ported(X))
    assert report.diagnosis.call == {"causal": True}, report
    assert call_with(asked(True), {"causal": False}).angles
    assert change_call(asked(True)).angles


def test_samples_for_tokens_beside_rounded_angles_are_named():
    fast = mha.Rotary(frequencies=tuple(FAR / 3.0 ** np.arange(d // 2)))
    layer = mha.MultiHeadAttention(**OPTIONS | {"rotary": fast})
    theirs = ported(X.swapaxes(0, 1), layer, first=0, causal=False).swapaxes(0, 1)
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
