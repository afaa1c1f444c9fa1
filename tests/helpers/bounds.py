"""Take each threshold of a run of tests so many times: what passes with half and with twice has a margin of 2."""

import functools

import numpy as np
import pytest

# Functions of `mha.parity.rule.rules` that return bounds, and their powers: roots of mean squares count as squares.
OF_RULE = {"bound": 1, "row_bounds": 0.5, "mean_bound": 0.5}


def scale_bounds(factor):
    """Scale the bounds of `mha.parity`, and the tolerances of NumPy and pytest, until this process ends."""
    from mha.parity.rule import rules

    for name, power in OF_RULE.items():
        setattr(rules, name, scaled(getattr(rules, name), factor**power))
    from mha.parity.rule import half_precision, kernel  # which take the functions above when they are imported

    half_precision.LIMITS.update({name: factor * limit for name, limit in half_precision.LIMITS.items()})
    half_precision.CONSTANT, half_precision.SHARE = factor * half_precision.CONSTANT, factor * half_precision.SHARE
    kernel.KernelProblem.limits = scaled(kernel.KernelProblem.limits, factor)
    np.testing.assert_allclose = in_tolerances(np.testing.assert_allclose, factor, rtol=1e-7)
    np.allclose, np.isclose = (in_tolerances(one, factor, rtol=1e-5, atol=1e-8) for one in (np.allclose, np.isclose))
    pytest.approx = in_tolerances(pytest.approx, factor, rel=1e-6, abs=1e-12)


def scaled(function, factor):
    """Return the function with its result times the factor; None stays."""

    @functools.wraps(function)
    def scaling(*arguments, **options):
        found = function(*arguments, **options)
        return None if found is None else factor * found

    return scaling


def in_tolerances(function, factor, **defaults):
    """Return a comparison with its tolerances times the factor; defaults: those it takes where none is named."""

    @functools.wraps(function)
    def comparing(*arguments, **options):
        named = {name: X for name, X in options.items() if name in ("rtol", "atol", "rel", "abs")}
        return function(*arguments, **options | {name: factor * X for name, X in (named or defaults).items()})

    return comparing
