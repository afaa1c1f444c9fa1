"""The layer of examples/latent.py computes what `transformers` does, on random weights."""

import runpy

import numpy as np
import pages
import pytest
from real import theirs

import mha
from mha import parity

H, TURNED = 4, 6
WIDTHS = {"q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": TURNED, "v_head_dim": 8}
SMALL = WIDTHS | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": H, "num_key_value_heads": H}
SMALL |= {"intermediate_size": 32, "first_k_dense_replace": 2, "vocab_size": 37}
YARN = {"rope_type": "yarn", "rope_theta": 99.0, "factor": 4.0, "original_max_position_embeddings": 32}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0}
ROTATIONS = {"plain": {"rope_type": "default", "rope_theta": 99.0}, "YaRN": YARN}
LATENT = runpy.run_path(str(pages.ROOT / "examples" / "latent.py"))["latent"]


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_a_layer_of_latents_computes_the_same(backend, tmp_path, monkeypatch, rotation):
    options = SMALL | {"rope_parameters": ROTATIONS[rotation]}
    model = theirs.saved("DeepseekV3", options, tmp_path)
    X, output, _, _ = theirs.attended(model, "layers.1.self_attn")
    weights = {name: X.detach().numpy() for name, X in model.layers[1].self_attn.named_parameters()}

    def normed(X, name):
        return X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) * weights[f"{name}.weight"]

    queries = normed(X @ weights["q_a_proj.weight"].T, "q_a_layernorm")  # (B, T, r of queries)
    latents, turned = np.split(X @ weights["kv_a_proj_with_mqa.weight"].T, [12], 2)
    latents = normed(latents, "kv_a_layernorm")  # (B, T, r)
    inputs = queries, np.concatenate([latents, turned], 2), latents
    rotary = mha.Rotary(TURNED, base=99.0, interleaved=True)
    scale = None
    if rotation == "YaRN":
        rotary = mha.yarn(TURNED, rope_theta=99.0, factor=4.0, original_max_position_embeddings=32, mscale=1.0,
                          mscale_all_dim=1.0, interleaved=True)  # fmt: skip
        scale = (10 + TURNED) ** -0.5 * (0.1 * np.log(4.0) + 1) ** 2
    monkeypatch.setenv("MHA_BACKEND", backend)
    layer, real = LATENT(weights, H, TURNED, rotary, scale), theirs.real(False)
    found = mha.to_numpy(layer(*inputs, theirs.LENGTHS, causal=True))
    exact = parity.in_dtype(layer.to("numpy"), "float64")(
        *(X.astype("float64") for X in inputs), theirs.LENGTHS, causal=True
    )
    base = layer.to("numpy")(*inputs, theirs.LENGTHS, causal=True)
    for each in (found, output):
        assert parity.error(each[real], exact[real]) <= parity.bound("float32", exact[real], base[real])
