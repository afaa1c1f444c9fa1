"""The vectors of kernels: made again, right by a formula of their own, judges of right kernels, and read with care."""

import inspect
import json
import re
import runpy

import adapters
import kernel_zoo
import numpy as np
import pages
import pytest
from kernel_zoo.calls import Drawn, call, in_layout, parameters

from mha import parity
from mha.core import dispatch
from mha.parity import case_files, compare_kernel
from mha.weights import safetensors_writer

FOLDER = pages.ROOT / "vectors" / "kernels"
FILES = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}


def read(name):
    return case_files.read_kernel(FOLDER / f"{name}.safetensors")


@pytest.fixture(scope="module")
def script():
    """The names in the script for kernels after it ran."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(pages.ROOT)
        exec(pages.text("vectors/check_kernels.py"), names := {})
    return names


def test_made_again_they_are_the_same():
    """Tox's environment `vectors` compares all bytes."""
    made = runpy.run_path(str(pages.ROOT / "vectors" / "write.py"))
    cases = {f"{one.name}-{dtype}": (one, dtype) for one in made["KERNELS"] for dtype in one.also}
    assert sorted(cases) == FILES
    for name, (one, dtype) in cases.items():
        again, stored = made["kernel_file"](one, dtype), read(name)
        for key, X in (again.inputs | {key: X for key, X in again.options.items() if np.ndim(X)}).items():
            np.testing.assert_array_equal(X, (stored.inputs | stored.options)[key], name)
        for key, X in again.expected.items():
            assert parity.error(X, stored.expected[key]) <= parity.bound("float64", X, X, gradient=True) + 1e-13, key
        assert stored.arguments.keys() == again.arguments.keys()
        assert len(case_files.kernel_to_bytes(stored)) < 32_000


@pytest.mark.parametrize("name", FILES)
def test_what_is_read_is_written_again(name):
    assert case_files.kernel_to_bytes(read(name)) == (FOLDER / f"{name}.safetensors").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_the_formula(script, name):
    case = read(name)
    wide = {f"inputs/{key}": X.astype(np.float64) for key, X in case.inputs.items()}
    wide |= {f"call/{key}": X.astype(np.float64) if key in ("bias", "sinks") else X for key, X in arrays_of(case)}
    given = {key: case.options.get(key) for key in ("causal", "window", "scale", "softcap")} | {"layout": case.layout}

    def output(moved):
        return script["computed"](given, wide | moved)

    for key, X in output({}).items():
        expected = case.expected[key]
        assert parity.error(X, expected) <= parity.bound("float64", expected, expected), key
    rng = np.random.default_rng(5)
    for gradient, key in GRADIENTS.items():
        X, by = wide[f"inputs/{key}"], case.expected[gradient]
        step = rng.normal(size=X.shape) * (np.abs(X) < 1e9)
        ends = [output({f"inputs/{key}": X + size * step})["output"] for size in (1e-6, -1e-6)]
        slope, parts = ((ends[0] - ends[1]) * wide["inputs/cotangent"]).sum() / 2e-6, by * step
        assert abs(parts.sum() - slope) <= 2e-6 * max(1, np.abs(parts).sum()), gradient


def arrays_of(case):
    """The options of a case that are arrays."""
    return [(key, X) for key, X in case.options.items() if isinstance(X, np.ndarray)]


@pytest.mark.margin(0.6, 2)  # of large scores 0.55 of a bound: weights are computed again
@pytest.mark.backends(*adapters.EAGER)
def test_right_kernels_are_within_the_bounds(backend, script):
    for name, kernel in kernel_zoo.right(backend).items():
        judged = [one for one in FILES if runs(backend, kernel, read(one), script["ratio"])]
        assert judged, name


def runs(backend, kernel, case, ratio):
    """Whether a kernel can do a case; if so, assert that it is within the bounds, and the same by the rule."""
    held, causal = kernel.holds.get("causal"), case.options.get("causal", False)
    unseeing = np.isneginf(case.expected["lse"]).any()
    if case.dtype == "float64" or case.dtype not in dispatch.FRAMEWORKS[backend].dtypes:
        return False
    if (kernel.layout == "THD") != (case.layout == "THD") or (unseeing and not kernel.empty_rows):
        return False
    if (held or causal) != causal or (causal == "lower right" and not held):
        return False
    own = () if kernel.takes else [*inspect.signature(kernel.call).parameters.values()][3:]
    needed = {one.name for one in own if one.default is one.empty}
    names = parameters(kernel)
    if not needed <= {names.get(key) for key in case.options} or not {*case.options} <= {*names, *kernel.holds}:
        return False
    drawn = Drawn(tuple(case.inputs[key] for key in "qkv"), case.inputs["cotangent"], case.options)
    try:
        found = call(backend, kernel, case, drawn)
    except NotImplementedError:
        return False
    turned = {key: X if key == "lse" else in_layout(X, kernel.layout) for key, X in found.items()}
    for key, X in turned.items():
        expected, bound = case.expected[key], case.bounds[key]
        X = X if X.shape == expected.shape else X.swapaxes(1, 2)
        assert ratio(np.asarray(X).astype(np.float64), expected, bound) <= 1, f"{case.name}: {key}"
    report = compare_kernel(turned, **case.arguments)
    assert report, f"{case.name}: {report}"
    return True


# A mistake in the script, and the files that show it, by the beginnings of their names.
MISTAKES = {
    "heads are tiled": (
        "np.repeat(X, H // G, 1)",
        "np.tile(X, (1, H // G, 1, 1))",
        lambda name: not name.startswith(("heads-of-their-own", "one-head", "small-", "width-40", "two-tiles")),
    ),
    "the maximum is not subtracted": (
        "np.where(np.isfinite(top), top, 0)",
        "0 * np.where(np.isfinite(top), top, 0)",
        lambda name: name.startswith(("large", "low-scores")),
    ),
    "sinks are forgotten": ("+ np.exp(sinks - top)", "", lambda name: name.startswith("sinks")),
    "rows without keys are the mean": (
        "np.where(total == 0, 1, total)) @ v",
        "np.where(total == 0, 1, total) + (total == 0) / K) @ v",
        lambda name: name.startswith(("lengths", "huge", "mask-that", "lower-right-more", "packed-lower")),
    ),
    "lower right is upper left": (
        "i = i + ends",
        "pass",
        lambda name: name.startswith(("lower", "packed-lower", "packed-other")),
    ),
    "the window is one too wide": ("j >= i - left", "j >= i - left - 1", lambda name: name.startswith("window")),
    "lengths are one too long": ("j < lengths", "j <= lengths", lambda name: name.startswith(("lengths", "huge"))),
    "the cap comes last": (
        '(cap * np.tanh(scores / cap) if cap else scores) + arrays.get("call/bias", 0)',
        'scores + arrays.get("call/bias", 0)\n    scores = cap * np.tanh(scores / cap) if cap else scores',
        lambda name: name.startswith("cap-mask-bias"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(script, monkeypatch, mistake):
    old, new, shows = MISTAKES[mistake]
    block = pages.text("vectors/check_kernels.py")
    assert block.count(old) == 1
    monkeypatch.chdir(pages.ROOT)
    with np.errstate(all="ignore"):
        exec(block.replace(old, new), names := {})
    assert {name for name, ratio in names["worst"].items() if not ratio <= 1} == {
        name for name in script["worst"] if shows(name)
    }


def test_the_script_for_other_frameworks(script):
    block = pages.text("vectors/check_kernels.py")
    assert "mha" not in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
    assert len(script["worst"]) == sum(name.endswith(("32", "64")) for name in FILES) > 25
    assert max(script["worst"].values()) <= 1


def damaged(case, arrays=None, without=(), **texts):
    """The bytes of a case file with other arrays and metadata."""
    found = {f"inputs/{key}": X for key, X in case.inputs.items()} | case.expected
    found |= {f"bounds/{key}": X for key, X in case.bounds.items()} | (arrays or {})
    call = {"dtype": "float32", "layout": "BHTD", "causal": False, "window": None, "scale": None, "softcap": None}
    said = {"format": "mha kernel", "layout": "1", "name": "a case", "call": json.dumps(call | texts.pop("call", {}))}
    return safetensors_writer.to_bytes({k: X for k, X in found.items() if k not in without}, said | texts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "mha case"}, "is no case file of a kernel"),
        ({"layout": "2"}, "is no case file of a kernel"),
        ({"name": "a\nb"}, "expected one that can be printed"),
        ({"call": {"dtype": "int8"}}, "dtype is 'int8'"),
        ({"call": {"layout": "BHDT"}}, "layout is 'BHDT'"),
        ({"call": {"softcap": -1.0}}, "softcap is -1.0"),
        ({"call": {"more": 1}}, "its call lacks, or should not have, more"),
        ({"call": {"dtype": "float16"}}, "inputs/q is float32, expected float16"),
        ({"without": ("dk",)}, "it lacks, or should not have, dk"),
        ({"arrays": {"call/more": np.zeros(2)}}, "it lacks, or should not have, call/more"),
        ({"arrays": {"dk": np.zeros((2, 2, 7, 4))}}, "dk does not fit: it has shape"),
        ({"arrays": {"call/lengths": np.array([1, 2, 3])}}, "lengths"),
        ({"arrays": {"call/mask": np.full((5, 7), 3, np.uint8).view(bool)}}, "other bytes than 0 and 1"),
        ({"arrays": {"bounds/dk": np.full((2, 2, 1, 1), -1.0)}}, "bounds/dk are no bounds"),
        ({"arrays": {"bounds/dk": np.full((2, 2, 1, 1), np.nan)}}, "bounds/dk are no bounds"),
        ({"arrays": {"bounds/dk": np.zeros((2, 2, 7, 5))}}, "cannot be broadcast"),
        ({"arrays": {"inputs/q": np.zeros((2, 3, 5, 3), "float32")}}, "q has 3 heads, expected a multiple of"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, words):
    path, case = tmp_path / "case.safetensors", read("plain-float32")
    path.write_bytes(damaged(case))
    assert case_files.read_kernel(path).name == "a case"
    path.write_bytes(damaged(case, **change))
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        case_files.read_kernel(path)
    assert str(path) in str(raised.value)


def test_numbers_that_the_dtype_has_not_are_refused(tmp_path):
    path, case = tmp_path / "case.safetensors", read("plain-bfloat16")
    arrays = {f"inputs/{key}": X.astype("float32") for key, X in case.inputs.items()}
    path.write_bytes(damaged(case, arrays, call={"dtype": "bfloat16"}))
    assert case_files.read_kernel(path).dtype == "bfloat16"
    path.write_bytes(damaged(case, arrays | {"inputs/k": arrays["inputs/k"] + 1e-6}, call={"dtype": "bfloat16"}))
    with pytest.raises(ValueError, match="inputs/k holds numbers that bfloat16 has not"):
        case_files.read_kernel(path)


def test_a_case_is_written_and_read(tmp_path):
    case = read("sinks-bfloat16")
    case_files.write_kernel(tmp_path / "case.safetensors", case)
    again = case_files.read_kernel(tmp_path / "case.safetensors")
    assert (again.name, again.dtype, again.layout) == ("sinks-bfloat16", "bfloat16", "BHTD")
    assert {key: X.dtype.name for key, X in again.inputs.items()} == dict.fromkeys("qkv", "bfloat16") | {
        "cotangent": "bfloat16"
    }


@pytest.mark.margin(1, 1)
def test_tokens_may_come_before_heads(tmp_path):
    case = read("lengths-of-0-float32")
    inputs = {key: X.swapaxes(1, 2) for key, X in case.inputs.items()}
    made = case_files.make_kernel("by tokens", inputs, case.options, "BTHD")
    case_files.write_kernel(tmp_path / "case.safetensors", made)
    again = case_files.read_kernel(tmp_path / "case.safetensors")
    for key, X in again.expected.items():
        turned, bound = (Y if key == "lse" else Y.swapaxes(1, 2) for Y in (case.expected[key], case.bounds[key]))
        assert parity.error(X, turned) <= parity.bound("float64", turned, turned), key
        np.testing.assert_allclose(again.bounds[key], bound, rtol=0.5)  # by the error of NumPy, which sums otherwise


def test_numbers_without_bounds_are_refused():
    X = np.full((1, 1, 2, 3), 1e30, "float32")
    with pytest.raises(ValueError, match="there is no bound for it"):
        case_files.make_kernel("large", {"q": X, "k": X, "v": X, "cotangent": X}, {})
