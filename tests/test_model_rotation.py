"""The rotation that `config.json` says of a model for long texts, beside a checkpoint; and what of it is refused."""

import json
import re

import pytest
import safetensors.numpy
from test_model_config import MODEL, H, arrays, d

import mha

LLAMA = {"model_type": "llama"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1, 2, 3], "long_factor": [4, 5, 6]}
SIZES = {"original_max_position_embeddings": 32, "max_position_embeddings": 128}


@pytest.fixture
def write(tmp_path, rng):
    """Writes a checkpoint of one layer with a config.json beside it, and returns the path of the first."""

    def written(model, **kind):
        safetensors.numpy.save_file(arrays(rng, **kind), tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(MODEL | model))
        return tmp_path / "model.safetensors"

    return written


ROTATIONS = {
    "LLaMA, YaRN": (
        {"model_type": "llama", "rope_parameters": YARN | {"rope_theta": 9.0, "mscale": 0.5, "truncate": False}},
        {},
        {"rotary": mha.yarn(d, rope_theta=9.0, factor=4.0, original_max_position_embeddings=32, truncate=False)},
    ),
    "Qwen2, YaRN of old": (
        {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"bias": True},
        {"rotary": mha.yarn(d, rope_theta=1e4, factor=4.0, original_max_position_embeddings=128)},
    ),
    "LLaMA, LongRoPE": (
        {"model_type": "llama", "rope_parameters": LONG | {"rope_theta": 9.0}, "original_max_position_embeddings": 32},
        {},
        {"rotary": mha.longrope(d, rope_theta=9.0, short_factor=[1, 2, 3], long_factor=[4, 5, 6], **SIZES)},
    ),
    "LLaMA, dynamic": (
        {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {},
        {"rotary": mha.Rotary(d)},
    ),
    "LLaMA, proportional": (
        {"model_type": "llama", "rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.7}},
        {},
        {"rotary": mha.Rotary(frequencies=(1.0, 1e4 ** (-1 / 3), 0.0))},
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_a_rotation_is_the_one_that_a_model_says(write, name):
    model, kind, options = ROTATIONS[name]
    assert mha.load(write(model, **kind), "numpy").config.rotary == options["rotary"].within(d)


REFUSED = {
    "a rotation of no type": (LLAMA | {"rope_scaling": {"type": "axial"}}, {}, "rope_type is 'axial', expected one of"),
    "YaRN without a factor": (LLAMA | {"rope_scaling": {"type": "yarn"}}, {}, "rope_type 'yarn' lacks factor"),
    "YaRN of a part": (
        LLAMA | {"rope_scaling": YARN | {"partial_rotary_factor": 0.5}},
        {},
        "partial_rotary_factor, which is not",
    ),
    "longrope": (LLAMA | {"rope_parameters": {"rope_type": "longrope"}}, {}, "lacks long_factor, short_factor"),
    "factors of another width": (
        LLAMA | {"rope_parameters": LONG | {"long_factor": [1.0]}},
        {},
        "long_factor is [1.0] (list), expected 3",
    ),
    "a length without a rotation that goes by it": (LLAMA, {"length": 0}, "length is 0, expected at least 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_rotation_that_is_wrong_is_refused(write, case):
    model, options, text = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(text)):
        mha.load(write(model), "numpy", **options)


def test_a_rotation_goes_by_the_length_that_is_said(write, rng):
    says = {"model_type": "llama", "rope_parameters": LONG, "original_max_position_embeddings": 32}
    path, kept = write(says), {"rope_theta": 1e4, "short_factor": [1, 2, 3], "long_factor": [4, 5, 6]} | SIZES
    for length in (None, 32, 33):
        given = {} if length is None else {"length": length}
        assert mha.load(path, "numpy", **given).config.rotary == mha.longrope(d, **kept, length=length)
    assert mha.load(path, "numpy", length=33).config.rotary != mha.load(path, "numpy").config.rotary
    path = write({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    longer = mha.dynamic(d, rope_theta=1e4, factor=2.0, max_position_embeddings=128, length=200)
    assert mha.load(path, "numpy", length=200).config.rotary == longer
    mha.load(path, "numpy", length=200).save(path.with_name("own"))
    with pytest.raises(ValueError, match="has the configuration of its layer itself; leave out length"):
        mha.load(path.with_name("own"), "numpy", length=200)
    with pytest.raises(ValueError, match="length came with arrays, whose rotation is the one that rotary says"):
        mha.from_native(arrays(rng), num_heads=H, rotary=None, length=200, backend="numpy")
    path.with_name("config.json").unlink()
    with pytest.raises(ValueError, match="length is given, but nothing beside the file says a rotation; leave it out"):
        mha.load(path, "numpy", num_heads=H, rotary=mha.Rotary(), length=200)
