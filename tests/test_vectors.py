"""The conformance vectors: the same bytes when they are made again, right by the formula and on every backend."""

import re
import runpy

import adapters
import formula
import numpy as np
import pages
import pytest

from mha import dispatch, parity
from mha.parity import case_files

FILES = sorted(path.stem for path in pages.ROOT.glob("vectors/*.safetensors"))
# Tried here: where a framework compiles each shape for seconds, one; where it does not, one in four. `mha case check
# vectors` tries all on all backends, in tox's environment `vectors`.
QUICK = {"all-options-float32": tuple(dispatch.FRAMEWORKS)}
QUICK = dict.fromkeys(FILES, ("numpy",)) | dict.fromkeys(FILES[::4], adapters.EAGER) | QUICK


def read(name):
    return case_files.read(pages.ROOT / "vectors" / f"{name}.safetensors")


def test_there_are_many_and_they_are_small():
    assert len(FILES) >= 60
    assert sum(path.stat().st_size for path in pages.ROOT.glob("vectors/*")) < 4_000_000


def test_made_again_they_are_the_same():
    """Every name and every third file; tox's environment `vectors` compares all bytes."""
    vectors = runpy.run_path(str(pages.ROOT / "vectors" / "write.py"))["VECTORS"]
    names = {f"{one.case.name}-{dtype}" for one in vectors for dtype in one.case.dtypes}
    assert names == set(FILES)
    for one in vectors[::3]:
        made, stored = one.made(one.case.dtypes[0]), read(f"{one.case.name}-{one.case.dtypes[0]}")
        assert case_files.to_bytes(made) == case_files.to_bytes(one.made(one.case.dtypes[0]))
        assert (made.config, list(made.expected)) == (stored.config, list(stored.expected))
        for name, X in made.inputs.items():
            np.testing.assert_array_equal(X, stored.inputs[name])
        for name, X in made.expected.items():
            expected = stored.expected[name]
            assert parity.error(X, expected) <= parity.bound("float64", expected, expected, gradient=True) + 1e-13, name


@pytest.mark.parametrize("name", FILES)
def test_the_formula(name):
    case = read(name)
    wide = {key: np.asarray(X, np.float64) for key, X in (case.weights | case.inputs).items()}
    call = {key: X.astype(np.float64) if key in case_files.FLOATS else X for key, X in case.call.items()}
    *names, _ = case_files.INPUTS

    def both(weights_and_inputs, call):
        return formula.both(case.config, weights_and_inputs, *(weights_and_inputs[key] for key in names), **call)

    for key, expected in zip(("output", "attention_weights"), both(wide, call), strict=True):
        assert parity.error(case.expected[key], expected) <= parity.bound("float64", expected, expected), key

    # The slope of the loss in a random direction, in which numbers that absorb a small step stay.
    gradients = {key.removeprefix("gradients/"): X for key, X in case.expected.items() if key.startswith("gradients/")}
    random, given = np.random.default_rng(5), wide | call
    steps = {key: random.normal(size=X.shape) * (np.abs(given[key]) < 1e9) for key, X in gradients.items()}

    def loss(size):
        moved = {key: given[key] + size * step for key, step in steps.items()}
        output, _ = both(wide | moved, call | {key: moved[key] for key in call if key in moved})
        return (output * wide["cotangent"]).sum()

    parts = [(gradients[key] * step).sum() for key, step in steps.items()]
    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert abs(sum(parts) - slope) <= 2e-6 * max(1, *map(abs, parts))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.backends(*QUICK[name])) for name in FILES])
def test_a_vector(backend, name):
    case = read(name)
    if case.config.dtype in dispatch.load(backend).DTYPES:
        assert [result for result in case_files.check(case, backend) if not result.passed] == []


@pytest.mark.backends("numpy")
def test_the_script_for_other_frameworks(monkeypatch):
    monkeypatch.chdir(pages.ROOT)
    [block] = pages.code("docs/vectors.md")
    assert "mha" not in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
    names = {}
    exec(block, names)
    assert len(names["worst"]) > 20
    assert max(names["worst"].values()) <= 1
    wrong = {}
    exec(block.replace('np.sqrt(config["key_dim"])', 'config["key_dim"]'), wrong)
    assert sum(ratio > 1 for ratio in wrong["worst"].values()) > 20
