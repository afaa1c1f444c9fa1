"""Case files and `mha case`: whole when written, read with care, and the first step that is wrong is named."""

import contextlib
import copy
import dataclasses
import json

import adapters
import numpy as np
import pytest
import safetensors
from commands import refused, run
from malformed import join, split
from written_cases import failed, refusal, written_and_read

from mha import parity
from mha.core import dispatch
from mha.core.options.config import DTYPES, numpy_dtype
from mha.parity import case_files

CASES = {case.name: case for case in parity.CASES}
CASE = CASES["gates, scale, cap"]
BIASED = CASES["all options"]


@pytest.fixture(scope="module")
def data():
    """A case file's bytes."""
    return case_files.to_bytes(case_files.from_case(BIASED, "float32"))


def changed(data, header=None, metadata=None, numbers=None):
    """A file with a change to its header, to its metadata or to its numbers."""
    described, values = copy.deepcopy(split(data)[0]), bytearray(split(data)[1])
    for change, of in ((header, described), (metadata, described["__metadata__"]), (numbers, values)):
        if change:
            change(of)
    return join(described, bytes(values))


def place(data, name):
    """Where the numbers of an array begin and end, after the header."""
    return slice(*split(data)[0][name]["data_offsets"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_read(tmp_path, dtype):
    found = written_and_read(tmp_path / "case", case_files.from_case(BIASED, dtype))
    assert found.name == "all options"
    assert found.inputs["keys"].dtype == numpy_dtype(dtype)
    assert found.bounds["output"] > 16 * parity.UNIT[dtype] or dtype == "float64"
    if dtype == "float64":  # where bounds are of the results alone
        X = found.expected["gradients/queries"]
        assert found.bounds["gradients/queries"] == parity.bound(dtype, X, X, gradient=True)


def test_others_read_it(data, tmp_path):
    """By the `safetensors` package alone: names, shapes and texts."""
    (tmp_path / "case").write_bytes(data)
    with safetensors.safe_open(tmp_path / "case", "numpy") as file:
        told = {name: json.loads(file.metadata()[name]) for name in ("config", "call", "bounds")}
        shapes = {name: file.get_tensor(name).shape for name in file.keys()}  # noqa: SIM118
    assert told["config"]["rotary"]["frequencies"] == list(BIASED.options["rotary"].within(11).angles())
    assert told["call"] == {"causal": False}
    attention = BIASED.layer("numpy", "float32")
    inputs, call = BIASED.inputs("float32"), BIASED.call("float32")
    steps = {f"steps/{name}": X.shape for name, X in attention.trace(*inputs[:3], **call).items()}
    assert steps.pop("steps/output") == shapes["output"]
    gradients = attention.gradients(*inputs[:3], **call)
    expected = steps | {f"gradients/{name}": X.shape for name, X in gradients.items()}
    expected |= {"output": (2, 3, 29), "attention_weights": (2, 6, 3, 5)}
    assert set(told["bounds"]) == set(expected)
    expected |= {f"weights/{name}": X.shape for name, X in attention.weights.items()}
    given = zip(case_files.INPUTS, inputs, strict=True)
    expected |= {f"inputs/{name}": X.shape for name, X in given}
    expected |= {f"call/{name}": np.shape(X) for name, X in call.items() if name != "causal" and X is not None}
    assert shapes == expected


@pytest.mark.backends(*adapters.EAGER)
def test_a_case_on_a_backend(backend):
    case = case_files.from_case(CASE, "float32")
    assert failed(case, backend) == []
    wrong = case_files.to_bytes(case)
    case.expected["steps/capped"][3, 1, 2] += 2 * case.bounds["steps/capped"]
    assert failed(case, backend) == ["steps/capped"]
    assert wrong != case_files.to_bytes(case)


@pytest.mark.backends("numpy")
def test_the_output_of_each_path_counts(backend, monkeypatch):
    module, case = dispatch.load(backend), case_files.from_case(CASE, "float32")
    attend, trace = module.attend, module.trace

    def wrong_alone(layer, queries, keys, values, call):
        result = attend(layer, queries, keys, values, call)
        return result if call.return_weights else result * 2

    monkeypatch.setattr(module, "attend", wrong_alone)
    assert failed(case, backend) == ["output"]
    monkeypatch.setattr(module, "attend", attend)
    monkeypatch.setattr(module, "trace", lambda *call: (steps := trace(*call)) | {"output": 2 * steps["output"]})
    assert failed(case, backend) == ["output"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["output", "gradients/W_o.kernel"])
def test_half_precision_is_judged_as_by_compare(dtype, name, monkeypatch):
    """Each number is within its bound, and all are off alike."""
    case, results = case_files.from_case(BIASED, dtype), case_files._results
    assert failed(case, "numpy") == []

    def changed(*call):
        return tuple(
            {key: X + 0.5 * case.bounds[name] * (key == name) for key, X in one.items()} for one in results(*call)
        )

    monkeypatch.setattr(case_files, "_results", changed)
    [wrong] = [result for result in case_files.check(case, "numpy") if not result.passed]
    assert (wrong.where, wrong.bound) == (name, 1)


def test_write_and_check(tmp_path):
    path = tmp_path / "case"
    path.write_bytes(b"old")
    result = run("case", "write", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "'all options' in float32, 34 results" in result.stdout
    assert case_files.read(path).name == "all options"
    result = run("case", "check", str(path), "--backend", "numpy")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["all", "options", "bound", "numpy"]
    assert len(lines) == 2 + 34 + 1
    assert all(float(line[2]) <= 1 for line in lines[2:-1])
    assert lines[-1][:4] == ["1", "checks", "on", "numpy,"]
    assert list(tmp_path.iterdir()) == [path]


def test_check_names_the_first_step_that_is_off(data, tmp_path):
    for name, wrong in (("good", []), ("bad", ["steps/rotate_k", "steps/pooled", "gradients/values"])):

        def damage(numbers, wrong=wrong):
            for one in wrong:
                numbers[place(data, one)] = (np.frombuffer(numbers[place(data, one)]) + 1).tobytes()

        (tmp_path / f"{name}.safetensors").write_bytes(changed(data, numbers=damage))
    bad = str(tmp_path / "bad.safetensors")
    result = run("case", "check", bad, "--backends", "numpy")
    assert result.exit_code == 1
    assert result.stdout.count("FAIL") == 3
    [line] = [line for line in result.stdout.splitlines() if line.startswith(bad)]
    assert line.startswith(f"{bad} on numpy: steps/rotate_k leaves its bound first: error 1.0e+00, bound ")
    result = run("case", "check", str(tmp_path), "--backends", "numpy")
    assert result.exit_code == 1
    rows = result.stdout.splitlines()[2:4]
    assert [row.endswith("FAIL") for row in rows] == [True, False]


def test_what_a_backend_raises_is_said(data, tmp_path, monkeypatch):
    def raises(*arguments):
        raise RuntimeError("planted\nby a test")

    (tmp_path / "case").write_bytes(data)
    monkeypatch.setattr(dispatch.load("numpy"), "trace", raises)
    result = run("case", "check", str(tmp_path / "case"), "--backends", "numpy")
    assert result.exit_code == 1
    assert f"{tmp_path / 'case'} on numpy: RuntimeError: planted by a test" in result.stdout


def test_a_dtype_that_a_backend_lacks(data, tmp_path, monkeypatch):
    (tmp_path / "case").write_bytes(data)
    only = dataclasses.replace(dispatch.FRAMEWORKS["numpy"], dtypes=("float64",))
    monkeypatch.setitem(dispatch.FRAMEWORKS, "numpy", only)
    refused("mha: numpy has no float32\n", "case", "check", str(tmp_path / "case"), "--backends", "numpy")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--case", "all option"), "--case is 'all option', expected one of no lengths, "),
        (("--dtype", "float46"), "--dtype is 'float46', expected one of float32, float64, float16, bfloat16"),
        (("--case", "scale 30", "--dtype", "int8"), "--dtype is 'int8', expected one of float32"),
    ],
)
def test_write_says_in_one_line_what_is_wrong(tmp_path, arguments, text):
    path = tmp_path / "case"
    path.write_bytes(b"old")
    refused(text, "case", "write", str(path), *arguments)
    assert path.read_bytes() == b"old"


def test_paths_that_no_file_can_have_are_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for command, path, text in (
        ("write", tmp_path, "which is no regular file"),
        ("write", tmp_path / "none" / "case", "there is no folder"),
        ("check", tmp_path / "none", "there is no file"),
        ("check", tmp_path / "empty", "is a folder without safetensors files"),
    ):
        refused(text, "case", command, str(path))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("format", "mha", "is no case file: its metadata has format 'mha', expected 'mha case'"),
        ("format", None, "its metadata has format None"),
        ("bounds", None, "lacks bounds in its metadata"),
        ("layout", "3", "has layout '3', expected '1' or '2'; if another version of mha wrote it, use that one"),
        ("layout", "2", "holds no valid call: it has causal, expected causal and size"),
        ("name", "a\nb", r"has the name 'a\nb', expected one that can be printed"),
        ("more", " " * 2**20, "bytes, expected at most 1048576"),
        ("config", "[]", "holds no valid configuration: expected a JSON object"),
        ("call", "{}", "holds no valid call: it has nothing, expected causal"),
        ("call", '{"causal": 1}', "causal is 1 (int), expected True or False"),
        ("call", '{"causal": true, "offset": 1}', "it has causal, offset, expected causal"),
        ("bounds", "{}", "holds no valid bounds: of attention_weights, gradients/W_k.bias, "),
    ],
)
def test_texts_that_do_not_fit_are_refused(data, tmp_path, key, value, text):
    def change(told):
        told |= {key: value}
        if value is None:
            del told[key]

    assert text in refusal(tmp_path / "case", changed(data, metadata=change))


@pytest.mark.parametrize(
    ("key", "old", "new", "text"),
    [
        ("config", '"num_heads": 6', '"num_heads": 5', "num_key_value_heads is 3, expected a divisor of num_heads = 5"),
        ("config", "29", "31", "cotangent has shape (2, 3, 29), expected (2, 3, 31) as the output"),
        ("config", "float32", "float16", "inputs/queries has dtype float32, expected float16"),
        ("config", '"layer"', "null", "weights/q_norm.scale, weights/k_norm.scale is there, which such a case has not"),
        ("config", '"softcap": 1.5', '"softcap": null', "steps/capped is there, which such a case has not"),
        ("config", '"window": [3, 1]', '"window": [3]', "holds no valid configuration: window is [3] (list)"),
        ("bounds", "}", ', "x": 1}', "of x there are results or bounds alone"),
        ("bounds", '"output": ', '"output": -', "expected a finite number of at least 0"),
        ("bounds", '"output": ', '"output": NaN, "x": ', "of x there are results or bounds alone"),
        ("bounds", "e-0", "e+999", "is inf, expected a finite number of at least 0"),
    ],
)
def test_texts_of_another_case_are_refused(data, tmp_path, key, old, new, text):
    def change(told):
        assert old in told[key]
        told[key] = told[key].replace(old, new)

    assert text in refusal(tmp_path / "case", changed(data, metadata=change))


@pytest.mark.parametrize(
    ("name", "described", "text"),
    [
        ("output", {"shape": [3, 2, 29]}, "output is float64 (3, 2, 29), expected float64 (2, 3, 29)"),
        ("output", {"dtype": "I64"}, "output is int64 (2, 3, 29), expected float64"),
        ("output", {"dtype": "C64"}, "output has dtype complex64, expected one of float64, float32, float16"),
        ("output", {"data_offsets": [0, 8]}, "is not a safetensors file: output has 8 bytes"),
        ("call/mask", {"dtype": "U8"}, "call/mask has dtype uint8, expected one of float64"),
        ("call/mask", {"shape": [2, 5, 3]}, "mask has shape (2, 5, 3), expected (3, 5), (2, 3, 5) or (2, 6, 3, 5)"),
        ("call/head_gates", {"shape": [2, 3]}, "head_gates has shape (2, 3), expected (6,) or (2, 6)"),
        ("inputs/queries", {"shape": [1, 6, 17]}, "keys has batch size 2, expected 1 as queries"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(data, tmp_path, name, described, text):
    change = changed(data, header=lambda header: header[name].update(described))
    assert ("does not fit its own configuration" in refusal(tmp_path / "case", change)) == (text[:6] != "is not")
    assert text in refusal(tmp_path / "case", change)


@pytest.mark.parametrize(
    ("name", "other", "text"),
    [
        ("output", "outputs", "output is not there"),
        ("inputs/keys", "inputs/key", "inputs/keys is not there"),
        ("weights/W_q.bias", "weights/W_q.b", "weights/W_q.bias is not there"),
        ("call/mask", "call/masks", "call/masks is there, which such a case has not"),
        ("call/offset", "call/off", "holds no valid call: it has causal, expected causal and offset"),
    ],
)
def test_other_names_are_refused(data, tmp_path, name, other, text):
    change = changed(data, header=lambda header: header.update({other: header.pop(name)}))
    assert text in refusal(tmp_path / "case", change)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("weights/W_o.bias", np.float32(np.nan), "is damaged: W_o.bias holds NaN or infinity, expected finite weights"),
        ("call/mask", np.uint8(2), "is damaged: call/mask holds other bytes than 0 and 1"),
        ("inputs/keys", np.float32(1 / 3), "inputs/keys holds numbers that bfloat16 has not"),
    ],
)
def test_damaged_numbers_are_refused(data, tmp_path, name, value, text):
    if "bfloat16" in text:
        data = case_files.to_bytes(case_files.from_case(CASE, "bfloat16"))

    def damage(numbers):
        start = place(data, name).start
        numbers[start : start + value.nbytes] = value.tobytes()

    assert text in refusal(tmp_path / "case", changed(data, numbers=damage))


def test_a_file_that_was_cut_anywhere_is_refused(data, tmp_path):
    for length in np.random.default_rng(0).integers(len(data), size=20):
        refusal(tmp_path / "case", data[:length])


def test_a_bit_that_fell_over_is_refused_or_read(data, tmp_path):
    """In the header: the file is refused, or says something else, such as another name of the case or another bound."""
    size, refused = 8 + int.from_bytes(data[:8], "little"), 0
    for bit in np.random.default_rng(1).integers(8 * size, size=150):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "case").write_bytes(flipped)
        with contextlib.suppress(ValueError):
            case_files.read(tmp_path / "case")
            continue
        refused += 1
    assert refused > 75


def test_what_cannot_be_told_is_refused():
    attention = CASE.layer("numpy", "float16")
    inputs = [np.float16(X) for X in CASE.inputs("float32")]
    with pytest.raises(ValueError, match="steps/W_q of 'x' overflows float16: there is no bound for it; choose"):
        case_files.make("x", attention, (np.float16(6e4) * np.sign(inputs[0]), *inputs[1:]), CASE.call("float16"))
    with pytest.raises(ValueError, match=r"queries has shape \(2, 0, 17\), expected no size of 0"):
        case_files.make("x", attention, (inputs[0][:, :0], *inputs[1:3], inputs[3][:, :0]), {})
    with pytest.raises(ValueError, match=r"name is 'a\\n', expected one that can be printed"):
        case_files.make("a\n", attention, tuple(inputs), {})
