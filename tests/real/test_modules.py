"""`mha.from_native` of attention modules of `transformers`: the layer that `mha.load` makes of the saved model."""

import numpy as np
import pytest
from layers import assert_same_weights
from real import theirs

import mha
from mha import parity

SMALL = {"vocab_size": 37, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24, "intermediate_size": 29}
GROUPED = SMALL | {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
GPT2 = {"vocab_size": 37, "n_embd": 24, "n_head": 3, "n_layer": 2}
OPT = {"vocab_size": 37, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "ffn_dim": 29}
T5 = {"vocab_size": 37, "d_model": 24, "d_kv": 5, "num_heads": 3, "num_layers": 2, "d_ff": 29}
TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}

# Its options, the place of the module of the second layer, and an option that its config says.
MODELS = {
    "Bert": (SMALL, "encoder.layer.1.attention", {"num_heads": 3}),
    "GPT2": (GPT2, "h.1.attn", {"num_heads": 3}),
    "OPT": (OPT | {"word_embed_proj_dim": 24}, "decoder.layers.1.self_attn", {"num_heads": 3}),
    "Llama": (GROUPED, "layers.1.self_attn", {"rotary": mha.Rotary(8), "num_key_value_heads": 1}),
    "Mistral": (GROUPED | {"sliding_window": 4}, "layers.1.self_attn", {"window": (3, 0)}),
    "Qwen3": (GROUPED, "layers.1.self_attn", {"qk_norm": mha.Norm("rms")}),
    "Gemma2": (GROUPED | TYPES | {"query_pre_attn_scalar": 64}, "layers.0.self_attn", {"scale": 1 / 8, "softcap": 50}),
    "Gemma3Text": (GROUPED | TYPES, "layers.0.self_attn", {"window": (3, 0), "qk_norm": mha.Norm("rms")}),
    "GPTNeoX": (SMALL, "layers.1.attention", {"rotary": mha.Rotary(2)}),
    "Phi3": (GROUPED | {"pad_token_id": 0}, "layers.1.self_attn", {"rotary": mha.Rotary(8), "num_key_value_heads": 1}),
    "SmolLM3": (GROUPED | {"no_rope_layers": [1, 0], "pad_token_id": 0}, "layers.1.self_attn", {"rotary": None}),
    "Cohere2": (GROUPED | TYPES, "layers.0.self_attn", {"window": (3, 0), "rotary": mha.Rotary(8, interleaved=True)}),
    "T5": (T5, "encoder.block.1.layer.0.SelfAttention", {"scale": 1.0}),
}  # fmt: skip


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", MODELS)
def test_a_module_is_the_layer_of_the_saved_model(tmp_path, kind):
    options, place, said = MODELS[kind]
    model = theirs.saved(kind, options, tmp_path)
    expected = mha.load(tmp_path, "numpy", prefix=place)
    for name, value in said.items():
        assert getattr(expected.config, name) == value
    module = model.get_submodule(place)
    for source, prefix in ((module, None), (model, place)):
        found = mha.from_native(source, prefix=prefix, backend="numpy")
        dropout = 0.1 if kind in ("Bert", "GPT2", "T5") else 0.0  # of attention weights, as the configuration has it
        assert vars(found.config) == vars(expected.config) | {"dropout": dropout}
        assert_same_weights(found.weights, expected.weights)


@pytest.mark.backends("torch")
def test_the_window_is_that_of_the_modules_own_layer(tmp_path):
    model = theirs.saved("Gemma3Text", GROUPED | TYPES, tmp_path)
    layers = [mha.from_native(layer.self_attn, backend="numpy").config for layer in model.layers]
    assert [config.window for config in layers] == [(3, 0), None]
    assert [config.rotary.base for config in layers] == [1e4, 1e6]


@pytest.mark.backends("torch")
def test_self_attention_without_its_output_has_the_identity_there(tmp_path):
    import torch

    model = theirs.saved("Bert", SMALL | {"attention_probs_dropout_prob": 0.0}, tmp_path).double()
    module = model.encoder.layer[1].attention.self
    layer = mha.from_native(module, backend="numpy")
    assert np.array_equal(layer.weights["W_o.kernel"], np.eye(24))
    X = torch.randn(2, 7, 24, dtype=torch.float64)
    with torch.no_grad():
        expected = module(X)[0].numpy()
    found = layer(*[X.numpy()] * 3)
    assert parity.error(expected, found) <= parity.bound("float64", found, found)
