"""The limits by which `mha.parity` finds a reason, or takes weights for the same: each pinned from both sides."""

import dataclasses

import numpy as np
import planted
import pytest

import mha
from mha import parity
from mha.parity.diagnosis.compare import diagnosis
from mha.parity.diagnosis.mistakes.catalogue import FORMS
from mha.parity.diagnosis.mistakes.mistake import Mistake
from mha.parity.diagnosis.mistakes.of_precision import everything
from mha.parity.diagnosis.mistakes.of_scores import of_slopes
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.search import precision
from mha.parity.diagnosis.search.sample import Focus
from mha.parity.diagnosis.search.search import Search
from mha.parity.diagnosis.search.time_budget import Effort
from mha.parity.diagnosis.search.verdicts import Judge, MistakeVerdict
from mha.parity.rule.problem import problem
from mha.parity.rule.relations import MatrixChange, relate

pytestmark = pytest.mark.margin(1, 1)

EVERYTHING = Focus()
FORM = next(form for form in FORMS if form.mistake.name == "W_q.kernel is not transposed")


def small(Q=5, D=24, H=4, dtype="float32", **options):
    """A layer, and a problem of one call of it."""
    layer = mha.MultiHeadAttention(D, H, dtype=dtype, seed=0, backend="numpy", **options)
    X = np.random.default_rng(1).normal(size=(1, Q, D)).astype(layer.weights["W_q.kernel"].dtype)
    return layer, problem(layer, X, X, X, planted.DEFAULTS, None)


def rms(X):
    return float(np.sqrt((X.astype("float64") ** 2).mean()))


@pytest.mark.parametrize(("first", "second", "order"), [
    ((1, 0.9), (2, 0.1), -1), ((1, 0.31), (1, 0.44), -1), ((1, 0.31), (1, 0.34), 0),
])  # fmt: skip
def test_of_equally_many_mistakes_those_with_a_ratio_smaller_by_a_tenth_come_first(first, second, order):
    ranks = [
        diagnosis.rank(diagnosis.Explanation(("one",) * count, ("",) * count, ("",) * count, ratio, 0.0, True))
        for count, ratio in (first, second)
    ]
    assert (ranks[0] > ranks[1]) - (ranks[0] < ranks[1]) == order


@pytest.mark.parametrize(("off", "goes"), [(0, True), (0.03, True), (0.05, False)])
def test_a_bias_goes_by_slopes_where_it_is_the_same_for_all_heads_but_for_these(off, goes):
    layer, asked = small(H=6)
    bias = mha.alibi(6, 5)
    bias[0, 3, 0, 2] *= 1 + off
    call = problem(layer, asked.queries, asked.keys, asked.values, planted.DEFAULTS | {"score_bias": bias}, None)
    assert (of_slopes("as of a power of 2", make_plan(call, "float64")) is not None) is goes


# How many pairs are tried, what makes a reason sure, and how much of an error it may leave


def test_without_a_window_pairs_are_those_of_different_numbers():
    asked = small()[1]
    search = Search(asked, {"output": -asked.base["output"]}, FORMS, EVERYTHING, Effort())
    classes = len(search.classes)
    assert 1 < classes < len(search.forms)
    assert len(search.pairs) == classes * (classes - 1) // 2


@pytest.mark.parametrize(("ratio", "near"), [(0.9, 4), (1.1, 1), (3.9, 1), (6, 1.5)])
def test_mistakes_may_be_further_from_an_array_that_is_right(ratio, near):
    """In bounds: four where nothing is wrong, else a quarter of the error, and at least one."""
    asked = small()[1]
    expected, bound, *_ = asked.expected("output")
    theirs = expected.copy()
    theirs[0, 0, 0] += ratio * bound
    search = Search(asked, {"output": theirs}, (), EVERYTHING, Effort())
    assert search.limits["output"] == pytest.approx(near * bound, rel=0.02)


@pytest.mark.parametrize(("ratio", "left", "noise", "same"), [
    (0.9, 0.225, 1.8, True), (1.1, 0.225, 1.8, False), (0.9, 0.275, 1.8, False), (0.9, 0.225, 2.2, False),
])  # fmt: skip
def test_a_reason_gives_their_numbers_if_little_is_left_of_the_error(ratio, left, noise, same):
    assert MistakeVerdict(ratio, left, noise, 0).same is same


@pytest.mark.parametrize(("far", "left", "sure"), [
    (4.4, 0.2, True), (3.6, 0.2, False), (3.6, 0.11, False), (3.6, 0.09, True), (0.0, 0.0, False), (4.4, 0.26, False),
])  # fmt: skip
def test_a_reason_is_sure_far_from_the_right_answer_or_if_it_leaves_very_little(far, left, sure):
    assert diagnosis.explanation_of((FORM,), MistakeVerdict(0.9, left, 0.0, 0), far).sure is sure


@pytest.mark.parametrize("share", [0.225, 0.275])
def test_what_a_mistake_leaves_of_the_error_is_measured(share):
    layer, asked = small()
    right, kernel = asked.oracle["output"], layer.weights["W_q.kernel"]
    layer.weights = layer.weights | {"W_q.kernel": kernel.T}
    wrong = layer(asked.queries, asked.keys, asked.values).astype("float64")
    theirs = wrong + share / (1 + share) * (right - wrong)
    found = Judge(asked, {"output": theirs}, EVERYTHING).verdict_on((FORM,))
    assert found.left == pytest.approx(share, rel=1e-3)  # of the rounding of one of the two
    assert found.ratio > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("share", [1.8, 2.2])
def test_noise_in_half_precision_is_measured_by_that_of_numpy(dtype, share):
    _, asked = small(dtype=dtype)
    oracle, base = asked.oracle["output"], asked.base["output"].astype("float64")
    unit = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    noise = rms(base - oracle) + 2 * unit * rms(oracle)
    found = Judge(asked, {"output": oracle + share * noise}, EVERYTHING).verdict_on(())
    assert found.noise == pytest.approx(share)
    assert found.noise > 2 or found._replace(left=0.0).same
    _, asked = small(dtype="float32")
    assert Judge(asked, {"output": asked.oracle["output"] + 1e-6}, EVERYTHING).verdict_on(()).noise == 0


@pytest.mark.parametrize(("far", "sure"), [(3.6, ()), (4.4, (("bfloat16 arithmetic",),))])
def test_rounding_is_looked_for_far_from_the_right_answer(far, sure):
    _, asked = small()
    theirs = all_steps(everything("bfloat16")(make_plan(asked, "float32")))[0]["output"]
    found, _, _ = diagnosis.attempts(asked, {"output": theirs}, (), far, Effort())
    assert tuple(one.mistakes for one in found if one.sure) == sure


@pytest.mark.parametrize(("far", "known"), [(3.6, False), (4.4, True)])
def test_dropout_is_looked_for_far_from_the_right_answer(far, known):
    layer, asked = small(Q=11, dropout=0.5)
    theirs = {"output": layer(asked.queries, asked.keys, asked.values, training=True)}
    found, _, _ = diagnosis.attempts(asked, theirs, (), far, Effort())
    assert [one.mistakes for one in found] == [("dropout left on",)] * known


@pytest.mark.parametrize(("width", "found"), [(2, False), (3, True)])
def test_dropped_weights_of_many_keys_are_found_in_three_features(width, found):
    parts, chosen = np.random.default_rng(5).normal(size=(5, width)), np.array([1, 0, 1, 1, 0]) * 1.25
    shares = precision.solve_shares(parts, chosen @ parts)
    assert shares == (pytest.approx(chosen.tolist()) if found else [])


def test_steps_before_the_pooling_show_no_dropout():
    layer, asked = small()
    noise = np.random.default_rng(2).normal(size=(1, 4, 5, 5)).astype("float32")
    found = parity.diagnose(layer, {"scores": noise}, asked.queries, asked.keys, asked.values)
    assert not found.known
    assert found.note.startswith("why: unknown, none of ")


@pytest.mark.parametrize(("Q", "small_ones"), [(10, True), (7, False)])
def test_rounding_explains_errors_of_a_fifth_of_the_largest_number(Q, small_ones):
    layer, asked = small(Q, D=3, H=1)
    layer.weights = {name: 0 * X for name, X in layer.weights.items()}
    asked = dataclasses.replace(asked, layer=layer)
    theirs = np.zeros((1, Q, 3), "float32")
    theirs[0, 2, 1] = 7  # its root mean square is 7 / sqrt(3 * Q): 0.18 or 0.22 of it
    assert diagnosis.small_errors(asked, {"output": theirs}) is small_ones


# Rounding, and dropout


def imitated(monkeypatch, lefts, numbers=24):
    """The names of roundings that are found, of some that leave these shares of errors in so many numbers."""
    _, asked = small(Q=5, D=6, H=2)
    exact = {"output": asked.oracle["output"]}
    errors = np.zeros(exact["output"].size)
    errors[:numbers] = np.where(np.arange(numbers) % 3, 1e-2, -2e-2)
    errors = errors.reshape(exact["output"].shape)
    listed = [Mistake(f"{left}", "", "", (), {"": lambda plan: plan}) for left in lefts]
    monkeypatch.setattr(precision, "ROUNDINGS", listed)

    def imitation(self, state, names):
        left = float(state[0].mistake.name) if state else 1.0
        return {"output": exact["output"] + (1 - left) * errors}

    monkeypatch.setattr(precision.Bench, "all_of", imitation)
    found = precision.roundings(asked, {"output": exact["output"] + errors}, (), EVERYTHING)
    assert [one.left for one in found] == [pytest.approx(float(one.mistakes[0]), abs=1e-9) for one in found]
    return [one.mistakes[0] for one in found]


def test_an_imitation_of_rounding_may_leave_some_of_the_error(monkeypatch):
    assert imitated(monkeypatch, [0.54]) == ["0.54"]
    assert imitated(monkeypatch, [0.66]) == []


def test_what_an_imitation_leaves_by_hand():
    far = np.array([[3.0, -4.0], [0.0, 0.0]])
    assert precision.remaining(far, far) == 0
    assert precision.remaining(far, 0.5 * far) == 0.5
    assert precision.remaining(far, np.array([[4.0, -4.0], [0.0, 0.0]])) == 0.2
    for strange in (np.nan, np.inf):
        other = np.array([[3.0, -4.0], [0.0, strange]])
        assert precision.remaining(far, other) == precision.remaining(other, far) == np.inf


def test_few_numbers_with_errors_prove_no_rounding(monkeypatch):
    assert imitated(monkeypatch, [0.1], numbers=24) == ["0.1"]
    assert imitated(monkeypatch, [0.1], numbers=23) == []


@pytest.mark.parametrize(("lefts", "found"), [
    ([0.45, 0.4], ["0.4", "0.45"]), ([0.4, 0.55], ["0.4"]), ([0.045, 0.001], ["0.001", "0.045"]),
    ([0.001, 0.055], ["0.001"]),
])  # fmt: skip
def test_only_the_best_imitations_of_rounding_count(monkeypatch, lefts, found):
    assert imitated(monkeypatch, lefts) == found


def dropped(kept, dropped, factor, dtype="float32", others=()):
    """Whether weights, divided by the right ones, look like dropout: so many times the factor, so many times 0."""
    shares = np.array([*[factor] * kept, *[0.0] * dropped, *others])
    return precision.by_shares(small(dtype=dtype)[1], shares)


def test_the_share_of_dropped_weights_is_that_of_the_factor():
    assert dropped(75, 25, 4 / 3).how == ("p about 0.25",)
    # One in four, of a hundred: six standard deviations are 26.
    assert dropped(50, 50, 4 / 3)
    assert not dropped(48, 52, 4 / 3)
    assert dropped(3 * 240, 60, 4 / 3) is None


@pytest.mark.parametrize(("kept", "zeros", "factor", "known"), [
    (18, 6, 4 / 3, True), (17, 6, 4 / 3, False),
    (6, 19, 4, True), (5, 20, 5, False),
    (27, 3, 10 / 9, True), (28, 2, 15 / 14, False),
    (1989, 21, 1.011, True), (1989, 21, 1.009, False),
])  # fmt: skip
def test_so_many_weights_show_dropout(kept, zeros, factor, known):
    assert (dropped(kept, zeros, factor) is not None) is known


@pytest.mark.parametrize(
    ("dtype", "rough"), [("float32", 0.02), ("float16", 0.1), ("bfloat16", 0.1), ("float64", 0.02)]
)
def test_dropped_weights_are_all_the_others_times_one_factor(dtype, rough):
    near, far = (1.25 * (1 + share * rough) for share in (0.9, 1.1))
    assert dropped(80, 20, 1.25, dtype, [near] * 9)
    assert not dropped(80, 20, 1.25, dtype, [far] * 9)
    assert dropped(77, 20, 1.25, dtype, [far] * 3)  # 97 of 100
    assert not dropped(76, 20, 1.25, dtype, [far] * 4)
    assert dropped(5, 28, 6, dtype, [0.55])  # the sixth that is kept
    assert not dropped(5, 28, 6, dtype, [0.45])
    assert dropped(80, 11, 1.25, dtype, [0.045] * 9)
    assert not dropped(80, 11, 1.25, dtype, [0.055] * 9)


def by_spread(*spreads, keys=41, dv=32):
    """What the errors of pooled heads tell that spread as parts would do of which so many, p / (1 - p), are dropped."""
    random = np.random.default_rng(0)
    parts = [np.linalg.qr(random.normal(size=(keys, dv)))[0] for _ in spreads]  # of orthonormal columns
    pooled = [part.sum(0) + spread**0.5 for part, spread in zip(parts, spreads, strict=True)]  # (dv,)
    return precision.by_spread(parts, pooled)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.25, 0.5])
def test_the_share_of_dropped_parts_is_that_of_their_spread(p):
    found = by_spread(*[p / (1 - p)] * 24)
    assert (found.mistakes, found.how, found.sure) == (("dropout left on",), (f"p about {p}",), False)


@pytest.mark.parametrize(("spreads", "sizes", "known"), [
    ([0.0052] * 24, {}, True), ([0.0048] * 24, {}, False),
    ([1.98] * 24, {}, True), ([2.02] * 24, {}, False),
    ([0.4] * 23, {}, False),
    ([0.4 * 1.49, 0.4 * 0.51] * 12, {}, True), ([0.4 * 1.51, 0.4 * 0.49] * 12, {}, False),
    ([0.4] * 24, {"keys": 33}, True), ([0.4] * 24, {"keys": 32}, False),
    ([0.4] * 24, {"dv": 4}, True), ([0.4] * 24, {"dv": 3}, False),
])  # fmt: skip
def test_such_a_spread_shows_dropout(spreads, sizes, known):
    assert (by_spread(*spreads, **sizes) is not None) is known


# The same to a dtype

UNITS = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}


def moved(X, by):
    """The array, with its second number moved by so much."""
    Y = X.copy()
    Y[0, 1] += by
    return Y


def rounded(X, Y):
    found = relate(X, Y, MatrixChange())
    return found and found.rounded


@pytest.mark.parametrize(("dtype", "coarser"), [("float64", "float32"), ("float32", None)])
def test_weights_are_the_same_to_four_units_of_the_largest_number(dtype, coarser):
    X = np.array([[8.0, 0.001, 0.3], [0.1, 0.2, -0.7]])
    assert rounded(X, moved(X, 8 * 3.6 * UNITS[dtype])) == dtype
    assert rounded(X, moved(X, 8 * 4.4 * UNITS[dtype])) == coarser
    assert rounded(X, X.copy()) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_weights_are_the_same_to_two_units_of_each_number(dtype):
    X = np.array([[64.0, 1.0, 1 + 2**-10], [0.25, 2.0, -4.0]])  # the third is none of bfloat16's
    if dtype == "bfloat16":
        X[0, 2] = 1 + 2**-7
    there = moved(X, -1.8 * UNITS[dtype])
    assert rounded(X, there) == rounded(there, X) == dtype
    assert rounded(X, moved(X, -2.2 * UNITS[dtype])) is None
    assert rounded(X, moved(X, -1.0 * UNITS[dtype])) is None  # both are rounded: they were trained apart


def test_the_smallest_numbers_of_float16_have_their_distance():
    X = np.array([[2.0**-12, 0.0, 0.0]])
    assert rounded(X, moved(X, 0.9 * 2**-24)) == "float16"
    assert rounded(X, moved(X, 1.1 * 2**-24)) is None


@pytest.mark.parametrize(
    ("factor", "how"), [(1.018, None), (1.022, "times 1.022"), (0.978, "times 0.978"), (0.982, None)]
)
def test_a_factor_is_beyond_all_rounding(factor, how):
    layer, _ = small(dtype="float64")
    other = layer.to("numpy")
    other.weights = other.weights | {"W_q.kernel": factor * other.weights["W_q.kernel"]}
    row = next(row for row in parity.compare_layers(layer, other).rows if row.name == "W_q.kernel")
    assert (row.relation and row.relation.how) == how
