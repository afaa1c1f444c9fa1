"""Packed texts that are cut in the wrong places, key by key, and how a report says in which way.

Letters as in the lessons.
"""

import numpy as np
import pytest

from mha.parity import compare_kernel

STARTS, KEY_STARTS = np.array([0, 5, 12, 16]), np.array([0, 6, 15, 23])
BEFORE, LACKS, CUT = "a text sees the one before it", "a text lacks its last token", "keys are cut where queries are"
UPPER, LOWER, SIDES = {"causal": True}, {"causal": "lower right"}, {"window": (3, 2)}


def near(far):
    return -3 <= far <= 2


# The mistake, its form, the options, and whether query i of text n sees key j of the row. A text has the queries from
# a to b and the keys from c to d.
WAYS = [
    (BEFORE, "", {}, lambda n, i, j, a, b, c, d: c - 1 <= j < d),
    (BEFORE, "upper left of the right keys", UPPER, lambda n, i, j, a, b, c, d: c - 1 <= j < d and j - c <= i - a),
    (BEFORE, "upper left of these keys", UPPER,
     lambda n, i, j, a, b, c, d: c - 1 <= j < d and j - max(c - 1, 0) <= i - a),
    (BEFORE, "lower right of the right keys", LOWER, lambda n, i, j, a, b, c, d: c - 1 <= j < d and j - d <= i - b),
    (BEFORE, "upper left of the right keys", SIDES,
     lambda n, i, j, a, b, c, d: c - 1 <= j < d and near(j - c - i + a)),
    (LACKS, "the key of each text", {}, lambda n, i, j, a, b, c, d: c <= j < d - 1),
    (LACKS, "the key of the last text", {}, lambda n, i, j, a, b, c, d: c <= j < d - (n == 2)),
    (LACKS, "query and key of each text", {}, lambda n, i, j, a, b, c, d: c <= j < d - 1 and i < b - 1),
    (LACKS, "the key of each text, lower right of the right keys", LOWER,
     lambda n, i, j, a, b, c, d: c <= j < d - 1 and j - d <= i - b),
    (LACKS, "the key of each text, lower right of these keys", LOWER,
     lambda n, i, j, a, b, c, d: c <= j < d - 1 and j - d + 1 <= i - b),
    (LACKS, "query and key of each text, lower right of these keys", LOWER,
     lambda n, i, j, a, b, c, d: c <= j < d - 1 and i < b - 1 and j - d + 1 <= i - b + 1),
    (CUT, "", {}, lambda n, i, j, a, b, c, d: a <= j < b),
    (CUT, "upper left of the right keys", UPPER, lambda n, i, j, a, b, c, d: a <= j < b and j - c <= i - a),
    (CUT, "upper left of these keys", UPPER, lambda n, i, j, a, b, c, d: a <= j < b and j - a <= i - a),
    (CUT, "lower right of the right keys", LOWER, lambda n, i, j, a, b, c, d: a <= j < b and j - d <= i - b),
]  # fmt: skip


def attend(q, k, v, sees):
    """Attend row by row: the output (T, H, d), and the log-sum-exp (H, T)."""
    output, sums = np.zeros_like(q), np.zeros(q.shape[1::-1], q.dtype)
    for n, bounds in enumerate(zip(STARTS, STARTS[1:], KEY_STARTS, KEY_STARTS[1:], strict=False)):
        for i in range(*bounds[:2]):
            seen = [j for j in range(len(k)) if sees(n, i, j, *bounds)]
            for h in range(q.shape[1]):
                shares = np.exp(k[seen, h] @ q[i, h] / q.shape[2] ** 0.5)
                if seen:
                    output[i, h], sums[h, i] = shares @ v[seen, h] / shares.sum(), np.log(shares.sum())
                elif i < bounds[1] - 1:
                    sums[h, i] = -np.inf
    return output, sums


@pytest.mark.parametrize(("name", "how", "options", "sees"), WAYS)
def test_a_report_says_how_texts_are_cut(name, how, options, sees):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((starts[-1], 2, 8)) for starts in (STARTS, KEY_STARTS, KEY_STARTS))
    more = {"layout": "THD", "cu_seqlens": STARTS, "cu_seqlens_k": KEY_STARTS, **options}
    report = compare_kernel(attend(q, k, v, sees), q, k, v, **more)
    hows = {one.mistakes: one.how[0].split(" or ") for one in report.diagnosis.explanations if one.sure}
    assert how in hows.get((name,), ()), report


ROWS = {
    "of the text before": [12, 13, 14, 15, 15, 0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8],
    "of the text behind": [5, 6, 7, 8, 9, 12, 13, 14, 15, 15, 15, 15, 0, 1, 2, 3],
    "in reverse": [4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6, 5, 15, 14, 13, 12],
}


@pytest.mark.parametrize("how", ROWS)
def test_a_report_says_whose_log_sum_exp_a_row_has(how):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((starts[-1], 2, 8)) for starts in (STARTS, KEY_STARTS, KEY_STARTS))
    output, sums = attend(q, k, v, lambda n, i, j, a, b, c, d: c <= j < d)
    more = {"layout": "THD", "cu_seqlens": STARTS, "cu_seqlens_k": KEY_STARTS}
    assert compare_kernel((output, sums), q, k, v, **more)
    report = compare_kernel((output, sums[:, ROWS[how]]), q, k, v, **more)
    assert [(one.mistakes, one.how) for one in report.diagnosis.explanations if one.sure] == [
        (("the log-sum-exp of other rows",), (how,))
    ], report
