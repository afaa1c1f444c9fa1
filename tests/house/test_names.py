"""The names that type checkers know, which have to be written out for them, are those that there are."""

import configparser
import re
from pathlib import Path
from typing import get_args

import pages
import pytest

import mha
from mha import names, weights
from mha.core import dispatch
from mha.core.options import checks
from mha.weights import foreign

from . import imported

FOLDERS = {path.parent.name for path in dispatch.FOLDER.glob("*/__init__.py")}
HAVING = {  # what a backend says that it lacks, or has
    "a section of the book": "learn/d2l/*.py",
    "a section of the next edition": "learn/d2l/next/*.py",
    "models of its own": "models/frameworks/*.py",
}
WRITTEN = {
    "backends": (names.BackendName, dispatch.FRAMEWORKS),
    "schemes": (names.SchemeName, weights.SCHEMES),
    "kinds": (names.KindName, foreign.KINDS),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_type_checkers_know_the_names_that_there_are(what):
    known, there = WRITTEN[what]
    gone = get_args(names.BackendName) != tuple(dispatch.FRAMEWORKS)  # a folder, whose names may stay
    assert tuple(name for name in get_args(known) if name in there or not gone) == tuple(there)


def test_every_folder_is_a_backend_that_can_be_named():
    assert set(dispatch.FRAMEWORKS) == FOLDERS


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_facts_say_what_is_known_to_be_said(name):
    known = dispatch.FRAMEWORKS[name]
    assert set(known.lacks) <= set(dispatch.LACKING)
    assert set(known.dtypes) <= set(get_args(names.FloatName))
    for what, files in HAVING.items():
        assert (what in known.lacks) != (name in dispatch.backends_with(files))
    parallel = Path(mha.parallel.__file__).parent / name / "__init__.py"
    functions = dispatch.facts("PARALLEL", ())[name]
    handed_on = re.findall(r"\w+", parallel.read_text(encoding="utf-8").rpartition('"""')[2]) if functions else ()
    assert set(functions) <= {*handed_on} & {*mha.parallel.__all__}
    assert dispatch.facts("TITLE")[name]
    assert dispatch.facts("SECONDS")[name]


def test_every_fact_is_asked_for():
    """What the core asks is in `Framework`; the rest is asked by its name. ALONE and COMPILES are for tests."""
    text = "".join(path.read_text(encoding="utf-8") for path in imported.sources().values())
    asked = {*re.findall(r'dispatch\.facts\("(\w+)"', text), *map(str.upper, dispatch.Framework.__match_args__)}
    assert {fact for facts in dispatch.FACTS.values() for fact in facts} <= asked


@pytest.mark.parametrize("name", [name for name, known in dispatch.FRAMEWORKS.items() if known.needs != ("numpy",)])
def test_tox_tries_every_backend_alone_and_beside_the_others(name):
    tox = configparser.ConfigParser(interpolation=None)
    tox.read_string(pages.text("tox.ini"))
    assert name in tox["tox"]["env_list"].split(", ")
    assert f"{name}: {{[pins]{name}}}" in tox["testenv"]["deps"].splitlines()
    assert f"{{[pins]{name}}}" in tox["testenv:all"]["deps"].splitlines()


def test_dtypes_that_a_type_checker_takes_are_taken():
    for name in get_args(names.FloatName):
        assert mha.MultiHeadAttention(6, 2, dtype=name, backend="numpy").config.dtype == name
    for name in (*get_args(names.FloatName), *get_args(names.IntegerName), "bool"):
        assert checks.dtype_name(mha.zeros(3, name, backend="numpy").dtype) == name
    assert mha.zeros(3, bool, backend="numpy").dtype == bool


ROOTS = {root for name, known in dispatch.FRAMEWORKS.items() for root in (name, *known.needs)}


@pytest.mark.parametrize("start", [start for start in get_args(names.KindStart) if start.split(".")[0] in ROOTS])
def test_the_beginning_of_a_kind_tells_one(start):
    assert foreign.full_name(start) in get_args(names.KindName)
