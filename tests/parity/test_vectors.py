"""The conformance vectors: the same bytes when they are made again, right by the formula and on every backend."""

import contextlib
import functools
import json
import re
import runpy

import adapters
import formula
import numpy as np
import pages
import pytest
from written_cases import failed

from mha import parity
from mha.core import dispatch
from mha.parity import case_files
from mha.parity.cases.decodes import DECODES
from mha.weights import own_format

FILES = sorted(path.stem for path in pages.ROOT.glob("vectors/*.safetensors"))
# Tried here: where a framework compiles each shape for seconds, one; where it does not, one in four. `mha case check
# vectors` tries all on all backends, in tox's environment `vectors`.
DECODED = [name for name in FILES if name.startswith("decode")]
QUICK = {"all-options-float32": tuple(dispatch.FRAMEWORKS)}
QUICK = dict.fromkeys(FILES, ("numpy",)) | dict.fromkeys(FILES[::4] + DECODED, adapters.EAGER) | QUICK


def read(name):
    return case_files.read(pages.ROOT / "vectors" / f"{name}.safetensors")


def test_made_again_they_are_the_same():
    """Every name and every third file; tox's environment `vectors` compares all bytes."""
    script = runpy.run_path(str(pages.ROOT / "vectors" / "write.py"))
    vectors = [(one.case, one.made) for one in script["VECTORS"]]
    decodes = [(one, functools.partial(script["decoded"], one)) for one in DECODES]
    names = {f"{one.name}-{dtype}" for one, _ in vectors + decodes for dtype in one.dtypes}
    assert names == set(FILES)
    for one, make in vectors[::3] + decodes:
        made, stored = make(one.dtypes[0]), read(f"{one.name}-{one.dtypes[0]}")
        assert case_files.to_bytes(made) == case_files.to_bytes(make(one.dtypes[0]))
        assert (made.config, list(made.expected)) == (stored.config, list(stored.expected))
        for name, X in made.inputs.items():
            np.testing.assert_array_equal(X, stored.inputs[name])
        for name, X in made.expected.items():
            expected = stored.expected[name]
            assert parity.error(X, expected) <= parity.bound("float64", expected, expected, gradient=True) + 1e-13, name


@pytest.mark.parametrize("name", [name for name in FILES if name not in DECODED])
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


@pytest.fixture(scope="module")
def decoder():
    """The script for decoders, and the names in it after it ran."""
    # NumPy's product of a matrix and a short row may call a number invalid that stands behind the row.
    with contextlib.chdir(pages.ROOT), np.errstate(invalid="ignore"):
        block = pages.text("vectors/check_decodes.py")
        exec(block, names := {})
    return block, names


@pytest.mark.parametrize("name", DECODED)
def test_a_decoder_token_by_token(decoder, name):
    case = read(name)
    wide = {f"inputs/{key}": X.astype(np.float64) for key, X in case.inputs.items()}
    wide |= {f"weights/{key}": X.astype(np.float64) for key, X in case.weights.items()}
    wide |= {f"call/{key}": X for key, X in case.call.items() if np.ndim(X)}
    config = json.loads(own_format.config_text(case.config)) | {"dtype": "float64"}
    found = decoder[1]["decoded"](config, case.call, wide)
    assert list(found) == list(case.expected)
    for key, expected in case.expected.items():
        if key.endswith(("keys", "values")):
            filled = case.expected[f"{key.partition('.')[0]}.cache.positions"] >= 0
            found[key] = np.where(filled[:, None, :, None], found[key], 0)
        assert parity.error(found[key], expected) <= parity.bound("float64", expected, expected), key


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.backends(*QUICK[name])) for name in FILES])
def test_a_vector(backend, name):
    case = read(name)
    if case.config.dtype in dispatch.load(backend).DTYPES:
        assert failed(case, backend) == []


@pytest.mark.backends("numpy")
def test_the_script_for_other_frameworks(monkeypatch):
    monkeypatch.chdir(pages.ROOT)
    block = pages.text("vectors/check_calls.py")
    assert "mha" not in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
    names = {}
    exec(block, names)
    assert len(names["worst"]) > 20
    assert max(names["worst"].values()) <= 1
    wrong = {}
    exec(block.replace('np.sqrt(config["key_dim"])', 'config["key_dim"]'), wrong)
    assert sum(ratio > 1 for ratio in wrong["worst"].values()) > 20


# A mistake in the script for decoders, and the files that show it.
GROUPS, SINKS, RING, DRAFT = "decode-groups-rotary", "decode-sinks", "decode-ring", "decode-draft"
CHUNKS, GATE, NORMS = "decode-chunks", "decode-output-gate", "decode-norms"
MISTAKES = {
    "positions are one too far": (
        "positions.max() + 1 + np",
        "positions.max() + 2 + np",
        {"decode", GROUPS, CHUNKS, SINKS, GATE, NORMS, RING, DRAFT},
    ),
    "padding on the right is kept": ("if real[i] and places", "if places", {"decode", RING}),
    "padding on the left is kept": (
        "if real[i] and places[i] >= 0",
        "if real[i]",
        {GROUPS, CHUNKS, SINKS, GATE, NORMS, DRAFT},
    ),
    "keys are rotated by their number": (
        "k[b, i].reshape(G, -1), places[i])",
        "k[b, i].reshape(G, -1), i)",
        {GROUPS, CHUNKS, SINKS, GATE, NORMS, DRAFT},
    ),
    "heads are in another order": ("[h // (H // G)]", "[h % G]", {GROUPS, CHUNKS, SINKS, GATE, NORMS, DRAFT}),
    "the window is one too wide": ("places[i] - left", "places[i] - left - 1", {RING}),
    "the chunk is one too long": ('config["chunk"])', '(config["chunk"] + 1))', {CHUNKS}),
    "the draft stays": ("positions[gone], cache", "_, cache", {DRAFT}),
    "the length of a draft stays": ("- gone.sum()", "- 0", {DRAFT}),
    "what is lost is not kept": ('max(cache["lost"][b], positions[slot])', "-1", {RING, CHUNKS}),
    "sinks are forgotten": ("(shares.sum() + sink)", "shares.sum()", {SINKS}),
    "the weights of norms are forgotten": (' * arrays[f"weights/{role}_norm.scale"]', "", {NORMS}),
    "the norm comes before the rotation": ('norm["after"] != after', 'norm["after"] == after', {NORMS}),
    "values are not normed": ('normed("v", v[b, i].reshape(G, -1))', "v[b, i].reshape(G, -1)", {NORMS}),
    "the temperature is of the token's number": (
        "i].reshape(H, -1), places[i]), places[i])",
        "i].reshape(H, -1), places[i]), i)",
        {NORMS},
    ),
    "the output gate is forgotten": ("pooled = pooled * gates", "gates", {GATE}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_decoder_is_seen(decoder, monkeypatch, mistake):
    old, new, files = MISTAKES[mistake]
    block, _ = decoder
    assert block.count(old) == 1
    monkeypatch.chdir(pages.ROOT)
    exec(block.replace(old, new), names := {})
    assert {name.rpartition("-")[0] for name, ratio in names["worst"].items() if ratio > 1} == files
