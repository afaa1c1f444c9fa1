"""Case files of a decode: what is written is read, each step is compared on every backend, and what does not fit."""

import copy

import adapters
import numpy as np
import pytest
from commands import run
from malformed import join, split
from written_cases import failed, refusal, written_and_read

from mha import MultiHeadAttention
from mha.core.options.config import DTYPES, numpy_dtype
from mha.parity import case_files
from mha.parity.cases.decodes import DECODES

CASES = {case.name: case for case in DECODES}
DRAFT = CASES["decode-draft"]
LONG = pytest.mark.long(*adapters.COMPILED)


def made(dtype="float32"):
    return case_files.from_case(DRAFT, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_read(tmp_path, dtype):
    found = written_and_read(tmp_path / "case", made(dtype))
    assert found.name == "decode-draft"
    assert found.inputs["step2.queries"].dtype == numpy_dtype(dtype)
    assert {name for name in found.call if name not in ("causal", "size")} == {"step1.positions", "step4.crop"}
    exact = {name for name, bound in found.bounds.items() if bound == 0}
    assert exact == {name for name in found.expected if name.endswith(("positions", "lengths", "lost"))}


@pytest.mark.all_backends
@pytest.mark.parametrize(
    "name", [DRAFT.name, *(pytest.param(name, marks=LONG) for name in CASES if name != DRAFT.name)]
)
def test_a_decode_on_a_backend(backend, name):
    case = case_files.from_case(CASES[name], "float64")
    assert failed(case, backend) == []


def test_each_number_counts_where_a_slot_is_filled():
    case = made()
    case.expected["step3.output"][1, 2, 3] += 2 * case.bounds["step3.output"]
    case.expected["step4.cache.keys"][1, 1, 5, 2] += 2 * case.bounds["step4.cache.keys"]
    case.expected["step5.cache.positions"][0, 7] += 1
    case.expected["step5.cache.lost"][1] += 1
    wrong = ["step3.output", "step4.cache.keys", "step5.cache.positions", "step5.cache.lost"]
    assert failed(case, "numpy") == wrong


def test_what_a_draft_leaves():
    """Of three tokens at 6, 7, 8, and 4, 5, 6: the first stays, and the first two; empty slots hold 0 in a file."""
    case = made()
    for step, places in (("step3", [8, 6]), ("step4", [7, 6]), ("step5", [8, 7])):
        assert case.expected[f"{step}.cache.positions"].max(1).tolist() == places
        assert case.expected[f"{step}.cache.lengths"].tolist() == [place + 1 for place in places]
        empty = case.expected[f"{step}.cache.positions"] < 0
        assert not case.expected[f"{step}.cache.keys"].swapaxes(1, 2)[empty].any()
    assert empty.sum(1).tolist() == [2, 3]


def test_what_an_exception_says():
    case = made()
    case.call["step4.crop"] = np.array([12, 6])
    [result] = case_files.check(case, "numpy")
    assert "positions holds 12 for sample 0, expected 0 to 9" in result.where


def test_write_and_check(tmp_path):
    path = str(tmp_path / "case")
    assert run("case", "write", path, "--case", "decode-ring", "--dtype", "float16").exit_code == 0
    result = run("case", "check", path, "--backends", "numpy")
    assert result.exit_code == 0, result.output
    rows = [line.split()[0] for line in result.stdout.splitlines()[2:-1]]
    parts = ["output", *(f"cache.{name}" for name in ("keys", "values", "positions", "lengths", "lost"))]
    assert rows == [f"step{number}.{part}" for number in range(1, 8) for part in parts]


@pytest.fixture(scope="module")
def data():
    """A file's bytes."""
    return case_files.to_bytes(made())


def refusal_of(path, data, change):
    """The error of a file whose header is changed."""
    header, numbers = split(data)
    described = copy.deepcopy(header)
    change(described)
    return refusal(path, join(described, bytes(numbers)))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("layout", "1", "holds no valid call: it has causal, size, expected causal and offset"),
        ("layout", "3", "has layout '3', expected '1' or '2'; if another version of mha wrote it, use that one"),
        ("call", '{"causal": true}', "holds no valid call: it has causal, expected causal and size"),
        ("call", '{"causal": true, "size": 0}', "size is 0, expected at least 1"),
        (
            "call",
            '{"causal": true, "size": 7}',
            "step1.cache.keys is float64 (2, 2, 11, 5), expected float64 (2, 2, 7, 5)",
        ),
        ("bounds", "{}", "of step1.cache.keys, "),
    ],
)
def test_texts_that_do_not_fit_are_refused(data, tmp_path, key, value, text):
    assert text in refusal_of(tmp_path / "case", data, lambda header: header["__metadata__"].update({key: value}))


@pytest.mark.parametrize(
    ("name", "described", "text"),
    [
        (
            "inputs/step1.queries",
            {"shape": [10, 13]},
            "inputs/step1.queries has shape (10, 13), expected (batch, queries, 13)",
        ),
        (
            "inputs/step3.values",
            {"shape": [3, 2, 13]},
            "step3.values is float32 (3, 2, 13), expected float32 (2, 3, 13)",
        ),
        ("call/step1.positions", {"shape": [5, 2]}, "call/step1.positions is int64 (5, 2), expected int64 (2, 5)"),
        ("step2.cache.lost", {"dtype": "F64"}, "step2.cache.lost is float64 (2,), expected int64 (2,)"),
        ("step2.output", {"shape": [1, 2, 13]}, "step2.output is float64 (1, 2, 13), expected float64 (2, 1, 13)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(data, tmp_path, name, described, text):
    assert text in refusal_of(tmp_path / "case", data, lambda header: header[name].update(described))


@pytest.mark.parametrize(
    ("name", "other", "text"),
    [
        ("inputs/step1.queries", "inputs/step0.queries", "inputs/step1.queries is not there"),
        ("inputs/step5.queries", "inputs/step6.queries", "inputs/step5.keys, inputs/step5.values, "),
        ("step3.cache.lengths", "step3.cache.length", "step3.cache.lengths is not there"),
        ("call/step4.crop", "call/step4.cropped", "call/step4.cropped is there, which such a case has not"),
    ],
)
def test_other_names_are_refused(data, tmp_path, name, other, text):
    assert text in refusal_of(tmp_path / "case", data, lambda header: header.update({other: header.pop(name)}))


def test_steps_of_ones_own():
    """Positions for all samples, and a window that says the size."""
    attention = MultiHeadAttention(14, 2, window=(4, None), seed=0, backend="numpy")
    X = np.random.default_rng(0).normal(size=(3, 2, 14)).astype(np.float32)
    steps = [
        {"queries": X, "keys": X, "values": X, "positions": [0, 2]},
        {"queries": X, "keys": X, "values": X, "crop": 2},
    ]
    case = case_files.make_decode("mine", attention, steps, causal=False)
    assert (case.call["size"], case.call["causal"]) == (5, False)
    assert case.call["step1.positions"].tolist() == [[0, 2]] * 3
    assert case.call["step2.crop"].tolist() == [2, 2, 2]
    whole = attention(X, X, X, positions=[0, 2], key_positions=[0, 2])
    np.testing.assert_allclose(case.expected["step1.output"], whole, rtol=0, atol=case.bounds["step1.output"])
    assert case.expected["step2.cache.positions"].tolist() == [[0, 1, 2, -1, -1]] * 3
    with pytest.raises(ValueError, match="size is None, expected how many tokens the cache shall hold"):
        case_files.make_decode("mine", MultiHeadAttention(14, 2, backend="numpy"), steps)
    with pytest.raises(ValueError, match="steps is empty, expected the arguments of at least one call"):
        case_files.make_decode("mine", attention, [])
    with pytest.raises(ValueError, match=r"step1.queries has shape \(3, 0, 14\), expected no size of 0"):
        case_files.make_decode("mine", attention, [dict.fromkeys(("queries", "keys", "values"), X[:, :0])])
