"""Runs as on other machines: every bound and tolerance is scaled, and what a library is told has its effect."""

import json

import machines
import numpy as np
import pages
import pytest
from numpy.lib import NumpyVersion

# What is allowed with all bounds times a factor: of a layer, a row, a kernel, in half precision; and the largest error
# that passes with tolerances of 1e-3.
ALLOWED = """
import json, sys
import numpy as np, pytest
from bounds import scale_bounds
scale_bounds(float(sys.argv[1]))
from mha import parity
from mha.parity.rule import half_precision, problem
X = np.ones((1, 1, 3, 8), "float32")
def largest(compare):
    return max(near for near in (0, 0.4e-3, 0.9e-3, 1.9e-3) if passes(compare, near))
def passes(compare, near):
    try:
        return compare(1 + near) in (True, None)
    except AssertionError:
        return False
print(json.dumps({
    "layer": problem.bound("float32", X, X), "row": problem.row_bounds("bfloat16", X, X + 1).max() ** 2,
    "kernel": parity.compare_kernel(X, X, X, X).rows[0].bound,
    "half": half_precision.LIMITS["a row"], "likeness": half_precision.CONSTANT,
    "assert": largest(lambda X: np.testing.assert_allclose(X, 1, rtol=1e-3)),
    "allclose": largest(lambda X: bool(np.allclose(X, 1, rtol=1e-3, atol=0))),
    "approx": largest(lambda X: X == pytest.approx(1, rel=1e-3)),
}))
"""


def test_each_bound_and_tolerance_is_taken_so_many_times(python):
    path = f"{pages.ROOT}:{pages.ROOT / 'tests' / 'helpers'}"
    half, once, twice = (json.loads(python(ALLOWED, factor, PYTHONPATH=path)) for factor in ("0.5", "1", "2"))
    compared = ("assert", "allclose", "approx")
    assert [[found[name] for name in compared] for found in (half, once, twice)] == [
        [X] * 3 for X in (4e-4, 9e-4, 1.9e-3)
    ]
    for name in once.keys() - compared:
        assert [half[name], twice[name]] == pytest.approx([once[name] / 2, once[name] * 2]), name


@pytest.mark.skipif(NumpyVersion(np.__version__) < "2.4.0", reason="instructions have other names before NumPy 2.4")
def test_a_machine_is_played_by_what_numpy_is_told(python):
    code = "import numpy; print(numpy.__config__.show('dicts')['SIMD Extensions'].get('found', []))"
    assert "X86_V4" not in python(code, **machines.MACHINES["AVX2"].variables())


def test_a_failed_test_is_counted_and_named(monkeypatch, tmp_path):
    tests = tmp_path / "tests"
    (tests / "room").mkdir(parents=True)
    (tests / "room" / "test_it.py").write_text("def test_good(): pass\ndef test_bad(): assert 1 > 2\n")
    (tests / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--backends'), parser.addoption('--bounds')"
    )
    monkeypatch.setattr(machines, "TESTS", tests)
    monkeypatch.setattr(machines, "ROOMS", ("room",))
    assert machines.tested(machines.AS_IT_IS, "numpy", 0.5) == (2, ["tests.room.test_it::test_bad"])
