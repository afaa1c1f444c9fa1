"""Models that mlx-lm has made and saved, plain and quantised: their attention is that of `mha.load`.

Letters: B samples, T tokens, D width.
"""

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import utils
from real import small as of_transformers
from real_mlx import small

import mha
from mha import parity

KINDS = [
    "afmoe", "apertus", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "exaone4", "gemma", "gemma2", "gemma3_text",
    "gemma4_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "helium",
    "hunyuan_v1_dense", "internlm3", "lfm2", "llama", "llama4_text", "ministral3", "mistral", "mixtral", "nemotron",
    "olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe",
    "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2",
]  # fmt: skip
QUANTISED = ("llama", "qwen3", "mistral", "gpt2", "gpt_neox", "phi3", "gemma3_text", "cohere")
HOW = {
    "4 bits": {"group_size": 32, "bits": 4},
    "3 bits": {"group_size": 32, "bits": 3},
    "6 bits": {"group_size": 32, "bits": 6},
    "mxfp4": {"group_size": None, "bits": None, "mode": "mxfp4"},
    "mxfp8": {"group_size": None, "bits": None, "mode": "mxfp8"},
    "nvfp4": {"group_size": None, "bits": None, "mode": "nvfp4"},
}


pytestmark = pytest.mark.backends("mlx")


ADDED = {"gpt2": small.MORE["gpt2"], "llama": {"rope_theta": 1e4}, "gpt_neox": small.MORE["gpt_neox"]}


def tokens():
    return np.random.default_rng(5).integers(1, 90, (2, 13))


def agree(model, folder):
    """Each layer of attention in a model computes what is loaded of it, within the bound of float32."""
    found = small.places(folder)
    assert found
    for _, prefix in found:
        X, output = small.calls(model, prefix, tokens())
        layer = mha.load(folder, "numpy", prefix=prefix)
        assert layer.config.dtype == "float32"
        assert parity.ratio(layer, output, X, X, X, causal=True) <= 1
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_read(tmp_path, kind):
    config = small.configured(kind)
    found = agree(small.saved(small.made(config), config, tmp_path), tmp_path)
    assert len(found) == (1 if kind in ("lfm2", "qwen3_next") else 2)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", QUANTISED)
def test_a_quantised_model_is_read(tmp_path, kind, how):
    config = small.configured(kind)
    model = small.saved(small.made(config), config, tmp_path, HOW[how])
    _, prefix = agree(model, tmp_path)[0]
    assert any(
        name.startswith(prefix) and name.endswith("scales") for name in mx.load(str(tmp_path / "model.safetensors"))
    )


def test_layers_may_have_bits_of_their_own(tmp_path):
    """As `mlx_lm.convert --quant-predicate mixed_4_6` writes it; one projection is not quantised at all."""

    def predicate(path, module):
        if not hasattr(module, "to_quantized") or path.endswith("o_proj"):
            return False
        return {"group_size": 32, "bits": 6 if "v_proj" in path else 4, "mode": "affine"}

    config = small.configured("llama")
    agree(small.saved(small.made(config), config, tmp_path, HOW["4 bits"] | {"quant_predicate": predicate}), tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["quantization"]
    assert said["model.layers.1.self_attn.v_proj"]["bits"] == 6


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_a_model_is_compared_with_its_source(tmp_path, kind):
    """What transformers wrote, and what mlx-lm makes of it: the same; with few bits, about so."""
    import transformers

    said = of_transformers.configuration(kind, **({"intermediate_size": 128} if kind == "gpt_neox" else {}))
    source, there, packed = (tmp_path / name for name in ("source", "there", "packed"))
    made = transformers.AutoModel if kind == "gpt2" else transformers.AutoModelForCausalLM  # as it is published
    made.from_config(said).save_pretrained(source)
    config = json.loads((source / "config.json").read_text()) | ADDED[kind]
    (source / "config.json").write_text(json.dumps(config))
    model, config = utils.load_model(source)
    small.saved(model, config, there)
    report = parity.compare_files(source, there)
    assert report
    assert len(report.layers) == 2
    small.saved(model, config, packed, {"group_size": 32, "bits": 8})
    report = parity.compare_files(source, packed)
    assert not report
    assert len(report.layers) == 2
    layers = [mha.load(folder, prefix=small.places(folder)[0][1]) for folder in (there, packed)]
    for name, X in layers[0].weights.items():
        assert np.abs(X - layers[1].weights[name]).max() <= np.abs(X).max() / 100
