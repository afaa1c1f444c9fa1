"""The rule of half precision by written numbers: its limits from both sides, and where its search ends."""

import dataclasses
import functools

import numpy as np
import pytest

from mha.core.options.config import Config
from mha.core.options.positions import Rotary
from mha.parity.rule.half_precision import HalfPrecision, likeness, row_errors
from mha.parity.rule.styles import EXACT, FUSED, PLAIN, STEPS, TILES, Border

pytestmark = pytest.mark.margin(1, 1)

B, Q, D = 3, 64, 256
UNIT, ERROR = 2.0**-8, 2.0**-6  # of bfloat16; of each number in each style that is written down
USUAL = Border()  # of a layer without a rotation and norms


# Limits as written numbers: each style errs by ERROR in each number, plus or minus


def signs(seed):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (B, Q, D))


# Rows that are not alike at all, and rows of which 2 or 4 are alike: on the average 1.25 or 3.25, as 0.75 are so by
# chance.
APART = functools.reduce(np.kron, [[[1, 1], [1, -1]]] * 8)[: B * Q].reshape(B, Q, D)
PAIRS, FOURS = (APART[:, ::size].repeat(size, 1) for size in (2, 4))
ORACLE, LEFT, OTHER = signs(1), signs(2), signs(3)


class Written:
    """A simulation whose outputs are written down: `usual`, or others by style. asked: the styles in turn.

    by_chance: the outputs of its draws of rounding; None = they are as usual.
    """

    dtype, num_keys = "bfloat16", 100

    def __init__(self, usual, others=None, largest=0.0, change=None, by_chance=None):
        self.config, self.usual, self.others, self.by_chance = Config(D, 8), usual, others or {}, by_chance
        self.largest, self.change, self.asked = np.broadcast_to(largest, (B, Q)), change, []

    def output(self, border, core, rows=None):
        self.asked.append((border, core))
        found = self.others.get((border, core), self.usual)
        return found if rows is None else found[:, rows]

    def drawn(self, seed):
        return self if self.by_chance is None else Written(self.by_chance[seed])

    def once(self, name, make, *key):
        return make(*key)

    def change_of_scale(self, border):
        return self.change

    def largest_scores(self, border):
        return self.largest


def judged(left, noise=APART, counts=True, others=None, largest=0.0, change=None, style=None, of=None, by_chance=None):
    """The judgement of a style's output and what is left besides, which is given by ERROR."""
    written = Written(ORACLE + ERROR * noise, others, largest, change, by_chance)
    rule = HalfPrecision(written, ORACLE, np.broadcast_to(counts, (B, Q)), style)
    return rule.judge((written.usual if of is None else of) + ERROR * left)


def within(*places):
    """1 in these samples, rows and features, 0 elsewhere."""
    found = np.zeros((B, Q, D))
    found[places] = 1
    return found


# For n numbers a mean square may be a limit times 1 + 4 / sqrt(n) + 8 / n: 1.7 in all rows, 1.8 in a sample, 3.2 in 16
# rows, 12 in a row, 3.5 in a feature. A likeness may be 10 + sqrt(n) / 4 standard deviations; R rows of one sign, which
# are sqrt(n) of these, count as sqrt(n) (1 - 4 / sqrt(R)).
ROOTS = {
    "the mean square of all rows": (1.730948**0.5, LEFT),
    "the mean square of a sample": (1.857129**0.5, LEFT * within(1)),
    "the mean square of 16 rows": (3.406250**0.5, LEFT * within(2, slice(32, 48))),
    "the mean square of a row": (15.375**0.5, LEFT * within(0, 5)),
    "the mean square of a feature": (4.656196**0.5, LEFT * within(..., 9)),
    "the mean of a feature": (1.366024, within(..., 9)),
    "the likeness to the output's size": (0.414871, ORACLE),
    "the likeness to another scale": (0.414871, OTHER),
}


@pytest.mark.parametrize("share", [0.95, 1.05])
@pytest.mark.parametrize("name", ROOTS)
def test_what_a_style_leaves_by_its_limits(name, share):
    root, left = ROOTS[name]
    found = judged(share * root * left, change=ERROR * OTHER)
    assert (found.ratio, found.worst) == (pytest.approx(share, rel=1e-3), name)
    assert found.left == pytest.approx((share * root) ** 2 * np.mean(left**2))
    assert found.limit == pytest.approx(12 * ERROR)
    assert found.ties == 0
    own = np.zeros((B, Q), bool)
    own[0, 5] = True  # where the rows that are worst stand out
    assert np.array_equal(found.rows, own if name == "the mean square of a row" else ~own | own)


@pytest.mark.parametrize("times", [3.1, 2.9])
def test_a_row_whose_usual_error_is_small_by_chance_is_measured_by_draws_of_rounding(times):
    """Only where these err more than three times as much, as a root mean square of four."""
    sizes = np.array([0.5, 0.5, 0.5, (4 - 3 * 0.25) ** 0.5]) * times
    draws = [ORACLE + ERROR * size * LEFT for size in sizes]
    found = judged(1.1 * 15.375**0.5 * LEFT * within(0, 5), by_chance=draws)
    assert found.ratio < 0.6 if times > 3 else found.ratio == pytest.approx(1.1, rel=1e-3)


@pytest.mark.parametrize("share", [0.95, 1.05])
def test_the_largest_error(share):
    """8 times that of the style and 16 units of the largest number: 12 times ERROR, of which the style has one."""
    found = judged((12 * share - 1) * APART * within(0, 5, 9))
    assert (found.ratio, found.worst) == (pytest.approx(share), "the largest error")


@pytest.mark.parametrize("share", [0.95, 1.05])
@pytest.mark.parametrize(("name", "left"), [("the output's size", ORACLE), ("another scale", OTHER)])
def test_the_likeness_of_one_sample_alone(name, left, share):
    found = judged(share * 0.65625 * left * within(1), change=ERROR * OTHER)
    assert (found.ratio, found.worst) == (pytest.approx(share, rel=1e-3), f"the likeness to {name}")


@pytest.mark.parametrize("share", [0.95, 1.05])
@pytest.mark.parametrize(
    ("name", "noise", "root"),
    [
        ("the mean square of all rows", FOURS, 1.756194**0.5),
        ("the mean square of a feature", FOURS, 5.795416**0.5),
        ("the mean of a feature", PAIRS, 1.527261),
        ("the likeness to the output's size", FOURS, 0.747916),
        ("the likeness to another scale", FOURS, 0.747916),
    ],
)
def test_rows_that_are_alike_count_as_fewer(name, noise, root, share):
    found = judged(share * root * ROOTS[name][1], noise, change=ERROR * OTHER)
    assert (found.ratio, found.worst) == (pytest.approx(share, rel=1e-3), name)


def test_rows_that_do_not_count_are_left_out():
    counts = np.ones((B, Q), bool)
    counts[0, 5] = False
    found = judged(9 * LEFT * within(0, 5), counts=counts)
    assert (found.ratio, found.left) == (0.125, 0)  # the style's own error in a row, by 8 times that
    assert not found.rows[0, 5]


def test_rows_that_are_judged_together_are_of_one_sample():
    counts = ~within(0, slice(5)).any(-1)
    found = judged(1.05 * 3.406250**0.5 * LEFT * within(1, slice(16)), counts=counts)
    assert (found.ratio, found.worst) == (pytest.approx(1.05, rel=1e-3), "the mean square of 16 rows")


def test_numbers_that_are_large_may_be_off_by_their_own_rounding():
    """A quarter of the 256 features of a row is 16 times as large, and so is UNIT of it: 4 times ERROR."""
    large = np.where(np.arange(D) < 64, 16.0, 1.0)
    written = Written(ORACLE * large + ERROR * APART)
    rule = HalfPrecision(written, ORACLE * large, np.ones((B, Q), bool))
    left = [rule.judge(written.usual + ERROR * LEFT * (large == size)).left for size in (16, 1)]
    assert left == pytest.approx([0.25 / 16, 0.75])


def test_rows_of_zeros_have_no_error():
    there = 1 - within(0, 5)
    written = Written(there * (ORACLE + ERROR * APART))
    rule = HalfPrecision(written, there * ORACLE, np.ones((B, Q), bool))
    same, wrong = (rule.judge(written.usual + error * within(0, 5, 9)) for error in (0, 1e-6))
    assert (same.ratio, same.left) == (0.125, 0)
    assert wrong.ratio == np.inf


def test_the_error_of_a_row_of_few_features_is_drawn_to_the_usual_one():
    """16 features of the usual error, 4 times the size of the row, beside its own 4."""
    oracle, own = np.ones((4, 4)), np.array([1.0, 2.0, 3.0, 2.0])
    oracle[3] = 0
    found = row_errors(oracle + own[:, None] * [1, -1, -1, 1], oracle)
    assert np.square(found) == pytest.approx([3.4, 4, 5, 0.8])
    assert row_errors(oracle * 0, oracle * 0).tolist() == [0] * 4


def test_a_likeness_by_written_numbers():
    """Of 64 rows, 4 standard deviations of rows of any sign are half: 32 of 64."""
    change = np.zeros((80, 8))
    change[3:67] = signs(5)[0, :64, :8]
    # 512 numbers: sqrt(512) / 2 standard deviations, by 10 + sqrt(512) / 4.
    assert likeness(change, change) == pytest.approx(0.722611, rel=1e-4)
    for opposite, found in ((16, 0), (15, 0.045163)):  # 64 - 2 * 15 - 32 = 2 rows
        rows = np.where(np.arange(80) < 3 + opposite, -1, 1)[:, None]
        assert likeness(rows * change, change) == pytest.approx(found, rel=1e-4)
        assert likeness(-rows * change, change) == pytest.approx(found, rel=1e-4)
    change[3:67, :4] *= 2
    # As many as 20^2 / (4 * 16 + 4 * 1) / 8 of 512 numbers: 376.47.
    assert likeness(change, change) == pytest.approx(64 / 2 * 20 / 1280**0.5 / (10 + 376.4706**0.5 / 4), rel=1e-4)


def test_what_one_row_shows_is_no_likeness():
    change = np.where(np.arange(80) == 5, 1.0, 0.001)[:, None] * signs(5)[0, :64, :8].repeat(2, 0)[:80]
    assert likeness(change, change) == 0


def test_an_output_from_which_the_error_of_a_style_was_taken():
    counts = ~within(0, 5).any(-1)
    written = Written(ORACLE + ERROR * APART)
    rule, theirs = HalfPrecision(written, ORACLE, counts), written.usual + ERROR * LEFT
    found = rule.judge(theirs)
    without = rule.without(found)
    assert np.array_equal(without.taken, ERROR * APART * counts[..., None])
    again = without.judge(theirs - without.taken)
    assert (again.ratio, again.worst) == (pytest.approx(found.ratio), "the mean square of all rows")


def test_rows_of_a_kernel_are_those_of_each_head_of_a_sample():
    counts = np.array([[True, False], [False, True]])
    rule = HalfPrecision(Written(ORACLE), np.zeros((2, 2, 6)), counts, num_heads=3)
    assert np.array_equal(rule.counts, counts[[0, 0, 0, 1, 1, 1]])


def test_usual_code_is_in_each_row_the_style_that_errs_more():
    steps = ORACLE + ERROR * np.where(np.arange(Q) % 2, 2, 0.5)[:, None] * signs(4)
    steps[0, 5, 7] = np.inf
    written = Written(ORACLE + ERROR * APART, {(USUAL, STEPS[0]): steps})
    base = HalfPrecision(written, ORACLE, np.ones((B, Q), bool)).base()
    further = (np.arange(Q) % 2 == 1) & np.array([np.arange(Q) != 5, np.arange(Q) >= 0, np.arange(Q) >= 0])
    assert np.array_equal(base, np.where(further[..., None], steps, written.usual))


# Rows in which rounded scores are ties: those of more than an eighth of 1 / UNIT


STEPPED, SOME = ORACLE + ERROR * signs(4), within(0, slice(0, 60, 5))


def stepped(left, score, core=STEPS[0]):
    """The judgement of an output in steps beside rows whose largest score is given."""
    return judged(left, others={(USUAL, core): STEPPED}, largest=score * SOME.any(-1), of=STEPPED)


def test_rows_with_ties():
    largest = 32 * np.where(SOME.any(-1), 1.05, 0.95)
    for counts, there in ((True, True), (~SOME.any(-1), False)):
        rule = HalfPrecision(Written(ORACLE, largest=largest), ORACLE, np.broadcast_to(counts, (B, Q)))
        assert np.array_equal(rule.ties(USUAL), SOME.any(-1))
        assert rule.has_ties is there


def test_rows_with_ties_are_not_judged_where_scores_are_rounded():
    below, above, fused = (
        stepped(5 * LEFT * SOME, share * 32, core)
        for share, core in ((0.95, STEPS[0]), (1.05, STEPS[0]), (1.05, PLAIN))
    )
    assert (below.core, above.core, fused.core) == (STEPS[0], STEPS[0], PLAIN)
    assert (below.ties, above.ties, fused.ties) == (0, 12, 0)
    assert min(below.ratio, fused.ratio) > 1 > above.ratio
    assert (below.left, above.left, fused.left) == (1.5625, 0, 1.5625)
    assert "; 12 rows, whose rounded scores are ties, are not judged so" in str(above)
    assert "ties" not in f"{below} {fused}"


@pytest.mark.parametrize(("left", "ties"), [(0.019, 0), (0.021, 12)])
def test_rows_with_ties_are_judged_where_all_is_very_near(left, ties):
    found = stepped((left * B * Q) ** 0.5 * LEFT * within(0, 5), 1.05 * 32)
    assert (found.ties, found.left) == (ties, pytest.approx(0 if ties else left))


def test_a_call_of_ties_alone_is_judged_by_its_largest_error():
    def judge(left):
        return judged(left, others={(USUAL, STEPS[0]): STEPPED}, largest=99.0, of=STEPPED)

    assert judge(2 * LEFT).ties == B * Q
    assert judge(2 * LEFT).ratio < 1 < judge(9 * LEFT).ratio


# The search


@pytest.mark.parametrize("own", [0, 1, 4])
@pytest.mark.parametrize("near", [True, False])
def test_the_search_ends_with_a_style_that_is_near(own, near):
    """Near by the usual errors, and by its own: by those, 0.1 is twice as much where it has none itself."""
    left = (0.2 if own else 0.1) + (-0.01 if near else 0.01)
    noisy = ORACLE + own * ERROR * signs(4)
    theirs = noisy + left**0.5 * ERROR * LEFT
    written = Written(ORACLE + ERROR * APART, {(USUAL, FUSED[1]): noisy, (USUAL, STEPS[1]): theirs})
    found = HalfPrecision(written, ORACLE, np.ones((B, Q), bool)).judge(theirs)
    assert found.core == (FUSED[1] if near else STEPS[1])
    assert ((USUAL, FUSED[2]) in written.asked) is not near


@pytest.mark.parametrize("near", [True, False])
def test_wide_code_has_the_errors_of_usual_code(near):
    """They are twice ERROR, in steps; it is near if it leaves a fiftieth of their square."""
    left, wide = 0.019 if near else 0.021, ORACLE + ERROR / 4 * APART
    theirs = wide + 2 * left**0.5 * ERROR * LEFT
    others = {EXACT: wide, (USUAL, STEPS[0]): ORACLE + 2 * ERROR * signs(4), (USUAL, STEPS[3]): theirs}
    found = judged(0 * LEFT, others=others, of=theirs)
    assert (found.border, found.core) == (EXACT if near else (USUAL, STEPS[3]))
    assert found.left == pytest.approx(left if near else 0)
    if near:
        assert str(found) == "nothing but the output, as code in float32 does (0.019 of its error's square is left)"
        assert found.limit == pytest.approx(20 * ERROR)  # 8 times 2, and 16 units of the largest number
    assert judged(0 * LEFT, others=others, of=theirs, style="steps").core == STEPS[3]


SEARCHED = np.isin(np.arange(Q), np.linspace(0, Q - 1, 32).astype(int))[:, None]  # at first


def test_another_style_is_searched_by_the_queries_in_which_one_leaves_most():
    theirs = STEPPED + 5 * ERROR * LEFT * ~SEARCHED
    others = {(USUAL, FUSED[1]): STEPPED}
    assert judged(0 * LEFT, others=others, of=theirs).ratio > 1
    others[USUAL, STEPS[1]] = theirs + 0.7 * ERROR * OTHER
    found = judged(0 * LEFT, others=others, of=theirs)
    assert (found.core, found.ratio < 1) == (STEPS[1], True)


def test_there_are_three_searches():
    """The third by the queries in which the style of the second leaves most."""
    first, others = np.flatnonzero(SEARCHED), np.flatnonzero(~SEARCHED)
    second = np.isin(np.arange(Q), [*first[::2], *others[:17]])[:, None]
    theirs = STEPPED + 5 * ERROR * LEFT
    styles = {
        (USUAL, FUSED[1]): np.where(SEARCHED, theirs, STEPPED),
        (USUAL, FUSED[2]): np.where(second, theirs, STEPPED),
    }
    two = judged(0 * LEFT, others=styles, of=theirs)
    three = judged(0 * LEFT, others=styles | {(USUAL, STEPS[1]): theirs + 0.7 * ERROR * OTHER}, of=theirs)
    assert (two.core, two.ratio > 1) == (FUSED[2], True)
    assert (three.core, three.ratio < 1) == (STEPS[1], True)


@pytest.mark.parametrize(("left", "largest"), [(7.9, 7.9), (8.1, 7.9), (8.1, 8.1)])
@pytest.mark.parametrize("style", [None, "steps"])
def test_where_the_likeliest_styles_are_far_off_usual_code_judges(left, largest, style):
    """Of these styles one is the nearest, and one that is tried later is the output's own.

    Scores above 8 are moved by 1 / 32 and more: then right styles may leave that much of each other.
    """
    theirs = ORACLE + ERROR * (APART + left**0.5 * LEFT)
    nearest = theirs + (left - 0.05) ** 0.5 * ERROR * OTHER
    others = {(USUAL, STEPS[1]): nearest, (USUAL, STEPS[5]): theirs}
    found = judged(0 * LEFT, others=others, largest=largest, of=theirs, style=style)
    usual = STEPS[0] if style else FUSED[0]
    assert (found.core, found.ratio <= 1) == ((usual, False) if left > 8 > largest else (STEPS[5], True))


@pytest.mark.parametrize("left", [0.45, 0.55])
def test_a_rare_style_counts_only_where_it_leaves_little(left):
    """It errs twice as much as others, so that more would hide a mistake that makes such errors."""
    cut, noise = dataclasses.replace(USUAL, cut=True), 2.0
    rare = ORACLE + noise * ERROR * OTHER
    own = ((noise**2 + 1) / 2) ** 0.5 * ERROR  # its usual error, beside that of the likeliest of its kind
    found = judged(0 * LEFT, others={(cut, PLAIN): rare}, of=rare + left**0.5 * own * LEFT)
    assert (found.border == cut, found.ratio <= 1) == (left < 0.5, left < 0.5)


@pytest.mark.parametrize("left", [3.9, 4.1])
def test_there_is_one_search_where_the_nearest_style_leaves_much(left):
    """Another style is nearer in other queries than those of the first search."""
    theirs = STEPPED + ERROR * LEFT * np.where(SEARCHED, left**0.5, 5)
    other = theirs + ERROR * OTHER * SEARCHED * (1.2 * left) ** 0.5
    found = judged(0 * LEFT, others={(USUAL, FUSED[1]): STEPPED, (USUAL, STEPS[1]): other}, of=theirs)
    assert found.core == (STEPS[1] if left < 4 else FUSED[1])


def test_the_style_that_leaves_least_of_all_is_chosen():
    """The second search finds one that is nearer in the queries of that search alone."""
    few = np.isin(np.arange(Q), np.flatnonzero(~SEARCHED)[:3])[:, None]
    theirs = STEPPED + 5 * ERROR * LEFT * few
    others = {(USUAL, FUSED[1]): STEPPED, (USUAL, STEPS[1]): theirs + 2**0.5 * ERROR * OTHER * ~few}
    found = judged(0 * LEFT, others=others, of=theirs)
    assert (found.core, found.worst) == (FUSED[1], "the mean square of a row")
    assert np.array_equal(found.rows, np.broadcast_to(few[:, 0], (B, Q)))


def test_tiles_are_tried_that_are_smaller_than_the_number_of_keys():
    small, large = (judged(0 * LEFT, others={(USUAL, core): STEPPED}, of=STEPPED) for core in (TILES[2], TILES[1]))
    assert Written.num_keys == 100
    assert (small.core, small.left) == (TILES[2], 0)  # 64
    assert large.left > 1  # 128


@pytest.mark.parametrize(
    ("options", "usual", "others"),
    [
        ({}, {}, ["scaled"]),
        ({"pooling": "additive", "bias": True}, {}, ["products last", "products", "last"]),
        ({"qk_norm": "rms"}, {"norms"}, ["norms"]),
        ({"value_norm": "rms", "output_gate": "head"}, {"norms"}, ["norms", "gates", "scaled"]),
        ({"rotary": Rotary()}, {"angles", "cosines", "turns"}, ["angles", "turns", "cosines", "cosines turns"]),
    ],
)
def test_borders_that_a_layer_may_have(options, usual, others):
    """Each is named by the places in which it is another than the usual one."""
    config = Config(D, 8, **options)
    assert Border.usual(config) == Border(**dict.fromkeys(usual, True))
    fields = [field.name for field in dataclasses.fields(Border)]
    found = [
        " ".join(name for name in fields if getattr(one, name) != getattr(Border.usual(config), name))
        for one in Border.usual(config).variations(config)
    ]
    assert found == others


def test_the_search_leaves_out_rows_with_ties_where_no_style_is_near():
    others = {(USUAL, FUSED[1]): STEPPED + ERROR * LEFT, (USUAL, STEPS[1]): STEPPED + 10 * ERROR * LEFT * SOME}
    assert judged(0 * LEFT, others=others, largest=99 * SOME.any(-1), of=STEPPED).core == STEPS[1]
    assert judged(0 * LEFT, others=others, of=STEPPED).core == FUSED[1]
    others = {(USUAL, FUSED[1]): STEPPED + 10 * ERROR * LEFT * SOME, (USUAL, STEPS[1]): STEPPED + 0.3 * ERROR * LEFT}
    assert judged(0 * LEFT, others=others, largest=99 * SOME.any(-1), of=STEPPED).core == STEPS[1]


@pytest.mark.parametrize(
    ("least", "left", "chosen"),
    [(0.5, 0.54, STEPS[2]), (0.5, 0.56, STEPS[1]), (0, 0.19, STEPS[2]), (0, 0.21, STEPS[1])],
)
def test_of_styles_that_leave_as_much_in_clear_rows_all_rows_decide(least, left, chosen):
    """As much is up to a tenth more, or what is near."""
    others = {
        (USUAL, STEPS[1]): STEPPED + ERROR * (least**0.5 * LEFT + 10 * OTHER * SOME),
        (USUAL, STEPS[2]): STEPPED + ERROR * (left**0.5 * LEFT + OTHER * SOME),
    }
    assert judged(0 * LEFT, others=others, largest=99 * SOME.any(-1), of=STEPPED).core == chosen


@pytest.mark.parametrize(("left", "passes"), [(1.29, True), (1.34, False)])
def test_what_is_near_to_no_style_is_judged_by_usual_errors(left, passes):
    """The mean square of all rows may be 1.73."""
    found = judged(left * LEFT, signs(4), others={EXACT: ORACLE}, of=ORACLE)
    assert ((found.border, found.core), found.left) == (EXACT, pytest.approx(left**2))
    assert (found.ratio <= 1) is passes
