"""docs/semantics.md says what `mha` does: each of its rules is kept on each backend, and none has changed since."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from semantics import promises, rows, verdicts

PAGE = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text(encoding="utf-8")
PROBES = [(table.title, probe) for table in rows.TABLES for probe in table.probes]


def foreign(probe):
    """Whether a probe takes arrays of a framework that need not be installed here."""
    return callable(probe.call.queries) or callable(probe.call.valid_lens)


@pytest.mark.parametrize("title", [table.title for table in rows.TABLES])
def test_every_rule_of_the_page_is_kept(backend, title):
    for probe in (probe for section, probe in PROBES if section == title and not foreign(probe)):
        word, right = verdicts.ask_mha(dataclasses.replace(probe, backends=(backend,)), probe.expected())
        assert right, f"{probe.rule}: {word}"


@pytest.mark.parametrize("promise", promises.PROMISES, ids=lambda promise: promise.__name__)
def test_every_promise_of_the_page_is_kept(backend, promise):
    assert promises.keeps(promise, backend)


def test_the_page_has_every_rule_once():
    rows = [line.split(" | ")[0].removeprefix("| ").split("<br>") for line in PAGE.splitlines() if line[:2] == "| "]
    rows += [line.split("; ") for line in re.findall(r"^\*\*.* everywhere\*\*.*?: (.*)\.$", PAGE, re.MULTILINE)]
    rules = [probe.rule for _, probe in PROBES]
    assert sorted(cell.replace("\\|", "|") for row in rows for cell in row if cell.strip()) == sorted(rules)
    assert PAGE.endswith("\n" + "".join(f"- {promise.__doc__}\n" for promise in promises.PROMISES))


def test_no_two_readings_of_a_probe_are_the_same():
    for section, probe in PROBES:
        if foreign(probe):
            continue
        known = {name: results for name, results in probe.expected().items() if not callable(results[0])}
        for (one, (exact, _)), (other, (wide, base)) in itertools.combinations(known.items(), 2):
            same = verdicts.agrees("output", exact["output"], wide, base, probe.call.dtype)
            assert not same, f"{section}, {probe.rule}: {one} is {other}"
