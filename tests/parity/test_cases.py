"""The cases of the suites: a name stands for the same call in every version, so that results can be compared."""

import dataclasses
import hashlib
import json

import pytest

from mha.parity.cases import decodes, devices, rare, usual

TABLES = {
    "usual": (usual.CASES, "24de1b8c497c"),
    "rare": (rare.RARE, "87ccb3fc0dc5"),
    "decodes": (decodes.DECODES, "b5d38bb9374f"),
    "four devices": (devices.cases_of(4), "189e4e5cf31f"),
    "five devices": (devices.cases_of(5), "934996b71a75"),
}


def plain(value):
    """What JSON has no form for, as what it has."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value.item()


def digest(cases):
    """A few digits for all that cases say."""
    return hashlib.sha256(json.dumps(cases, default=plain).encode()).hexdigest()[:12]


@pytest.mark.parametrize("table", TABLES)
def test_a_name_stands_for_the_same_call_as_before(table):
    """Who changes a case says so in the changelog, and writes here what comes of it."""
    cases, before = TABLES[table]
    assert digest(cases) == before


@pytest.mark.parametrize("table", TABLES)
def test_no_two_cases_have_one_name(table):
    names = [case.name for case in TABLES[table][0]]
    assert len({*names}) == len(names)
