"""The names that type checkers know, which have to be written out for them, are those that there are."""

from typing import get_args

import numpy as np
import pytest

import mha
from mha import checks, dispatch, names, native, weights

WRITTEN = {
    "backends": (names.BackendName, dispatch.KNOWN),
    "schemes": (names.SchemeName, weights.SCHEMES),
    "kinds": (names.KindName, native.KINDS),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_type_checkers_know_the_names_that_there_are(what):
    known, there = WRITTEN[what]
    assert get_args(known) == tuple(there)


def test_dtypes_that_a_type_checker_takes_are_taken():
    for name in get_args(names.FloatName):
        assert mha.MultiHeadAttention(6, 2, dtype=name, backend="numpy").config.dtype == name
    for name in (*get_args(names.FloatName), *get_args(names.IntegerName), "bool"):
        assert checks.dtype_name(mha.zeros(3, name, backend="numpy").dtype) == name
    for written in (np.float64, np.dtype("float64")):
        assert mha.MultiHeadAttention(6, 2, dtype=written, backend="numpy").config.dtype == "float64"
    assert mha.zeros(3, bool, backend="numpy").dtype == bool


@pytest.mark.parametrize("start", get_args(names.KindStart))
def test_the_beginning_of_a_kind_tells_one(start):
    assert native._named_in_full(start) in get_args(names.KindName)
