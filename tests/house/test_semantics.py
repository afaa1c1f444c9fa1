"""docs/semantics.md says what `mha` does: each of its rules is kept on each backend, and none has changed since."""

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import plain_kernel
import pytest
from semantics import kernels, promises, rows, verdicts

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
    rules = [probe.rule for _, probe in PROBES] + [row.title for row in kernels.ROWS]
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


def test_a_second_layer_is_named_where_it_differs(monkeypatch):
    words = {"nnx": "error", "grouped": "same", "flax": "same", "keras": "same", "mlx": "same"}
    monkeypatch.setattr(verdicts, "ask_peer", lambda name, *rest: words[name])
    probe = verdicts.Probe("a rule", None)
    cells = [verdicts.cell(name, probe, {}) for name in ("flax", "keras", "mlx")]
    assert cells == ["same; nnx: error", "same", "same"]
    assert verdicts.cell("flax", dataclasses.replace(probe, without=("nnx",)), {}) == "same"


def test_what_was_not_run_says_why():
    def lacking():
        raise NotImplementedError("Not on CPU. Use another device.")

    assert kernels.refusal(lacking) == "`NotImplementedError: Not on CPU`"
    with pytest.raises(RuntimeError, match="list: it runs here"):
        kernels.refusal(list)


def right(q, k, v, causal=False):
    return plain_kernel.attend(q, k, v, causal)[0]


def tiled(q, k, v, causal=False):
    return plain_kernel.attend(q, k, v, causal, wrong="tiled heads")[0]


def narrow(q, k, v):
    return right(*(X.astype("float32") for X in (q, k, v))).astype(q.dtype)


def coarse(q, k, v):
    noise = np.random.default_rng(3).uniform(-1, 1, size=q.shape) * 2.0**-6
    return (right(q, k, v).astype("float32") + noise).astype(q.dtype)


def nan(q, k, v):
    return right(q, k, v) * q.dtype.type(np.nan)


def equal_lengths(q, k, v, causal=False):
    if q.shape[2] != k.shape[2]:
        raise IndexError
    return right(q, k, v, causal)


def without_causal(q, k, v, causal=False):
    if causal:
        raise NotImplementedError
    return right(q, k, v)


@pytest.mark.parametrize(
    ("kernel", "dtype", "case", "word"),
    [
        (right, "float32", "plain", "same"),
        (tiled, "float32", "6 heads of 2", "heads of keys are tiled, not repeated"),
        (nan, "float32", "plain", "NaN"),
        (equal_lengths, "float32", "33 queries, 65 keys", "error"),
        (narrow, "float64", "plain", "same, in float32 precision"),
        (narrow, "bfloat16", "plain", "same"),
        (coarse, "bfloat16", "plain", "same, but rounds more"),
        (lambda q, k, v: v.sum() + q, "float32", "plain", "other numbers"),
    ],
)
def test_a_kernel_is_said_in_words(kernel, dtype, case, word):
    column = kernels.Column("ours", "numpy", kernel)
    assert list(kernels.verdicts(column, [case], dtype)) == [(case, word)]


def test_cells_of_a_kernel():
    titles = [row.title for row in kernels.ROWS]
    found = dict(zip(titles, kernels.cells_of(kernels.Column("ours", "numpy", without_causal)), strict=True))
    assert (found["`causal`"], found["`bias`"], found["float16"]) == ("—", "—", "same")
    found = dict(zip(titles, kernels.cells_of(kernels.Column("ours", "numpy", equal_lengths)), strict=True))
    assert found["1 and 65 tokens, 1 query of 704 keys"] == "same or error"
