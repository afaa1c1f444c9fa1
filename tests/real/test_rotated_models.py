"""Models of `transformers` that rotate positions: their files and `config.json` give layers that compute as they do.

Outputs and gradients of their own attention classes, eager, in causal order and with padding, are compared within the
bounds of `mha.parity`, float64 NumPy being the oracle. They take rotation, norms and softmax in float32, which is no
coarser than the rest in a float32 model. Letters: B sentences, T tokens of the longest, H heads, D width.
"""

import functools

import numpy as np
import pytest
from real import theirs

import mha
from mha import parity
from mha.weights import schemes

SMALL = {
    "vocab_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24,
    "intermediate_size": 29, "pad_token_id": 0, "attn_implementation": "eager",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
WINDOW = {"sliding_window": 4, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
GEMMA = {"sliding_window": 4, "head_dim": 8, "query_pre_attn_scalar": 3, "rms_norm_eps": 1e-2}
ROTATIONS = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 99.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "rope_theta": 99.0, "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [9.0] * 4}
PARTLY = {"rope_type": "proportional", "rope_theta": 99.0, "partial_rotary_factor": 0.5}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32}
GPT_OSS = EXPERTS | {"head_dim": 10, "sliding_window": 4}
# A floor of 8,192, as the models have it, shows nothing in short texts.
LLAMA4 = EXPERTS | {"intermediate_size_mlp": 32, "head_dim": 8, "attention_chunk_size": 3, "floor_scale": 3}
LLAMA4 |= {"attn_scale": 0.4, "rms_norm_eps": 1e-2}
GEMMA4 = {"head_dim": 8, "global_head_dim": 12, "rms_norm_eps": 1e-2, "sliding_window": 4}
GEMMA4 |= {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 37}
FULL = "full_attention"
GATED = {"head_dim": 8, "rms_norm_eps": 1e-2, "layer_types": ["linear_attention", "full_attention"]}
GATED |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
TURNED_IN_PART = {"rope_type": "default", "rope_theta": 99.0, "partial_rotary_factor": 0.5}
AFMOE = {"head_dim": 8, "sliding_window": 4, "rms_norm_eps": 1e-2, "num_experts": 2, "num_experts_per_tok": 1}
OLMO3 = {"sliding_window": 4, "rms_norm_eps": 1e-2, "rope_parameters": {"full_attention": YARN}}
DOTS1 = {"n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
NORMED = {"head_dim": 8, "rms_norm_eps": 1e-2}
GLM4_MOE = DOTS1 | NORMED | {"use_qk_norm": True, "attention_bias": True}
COHERE2_MOE = EXPERTS | {"sliding_window": 4, "head_dim": 8, "num_experts": 2}
DENSE = COHERE2_MOE | {"prefix_dense_intermediate_size": 29, "mlp_layer_types": ["dense", "dense"]}
TWO = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
ERNIE_MOE = {"moe_num_experts": 2, "moe_k": 1, "moe_intermediate_size": 32, "moe_num_shared_experts": 1}
LENGTH = int(max(theirs.LENGTHS))  # by which LongRoPE goes
PHI3 = {
    "hidden_size": 32,
    "rope_parameters": LONG,
    "original_max_position_embeddings": LENGTH,
    "max_position_embeddings": 512,
}
UNGROUPED = {"hidden_size": 32, "num_key_value_heads": 4}
MODELS = {
    "LLaMA 2": ("Llama", {"num_key_value_heads": 4}),
    "LLaMA 3": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 8}),
    "LLaMA, slowed down, biases": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0}, "attention_bias": True},
    ),
    "LLaMA, YaRN": ("Llama", {"rope_parameters": YARN, "num_key_value_heads": 2}),
    "LLaMA, YaRN, whole ends": (
        "Llama",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 2.0, "truncate": False}},
    ),
    "LLaMA, LongRoPE": (
        "Llama",
        {
            "rope_parameters": LONG,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 512,
            "head_dim": 8,
        },
    ),
    "LLaMA, dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 99.0, "factor": 2.0}}),
    "Qwen3, proportional": ("Qwen3", {"rope_parameters": PARTLY, "head_dim": 8, "rms_norm_eps": 1e-2}),
    "Mistral": ("Mistral", {"sliding_window": 4, "head_dim": 10, "num_key_value_heads": 1}),
    "Ministral 3": (
        "Ministral3",
        {"head_dim": 8, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 3}},
    ),
    "Qwen2": ("Qwen2", WINDOW),
    "Qwen2, no window": ("Qwen2", {}),
    "Gemma 2, window": ("Gemma2", GEMMA | {"layer_types": ["full_attention", "sliding_attention"]}),
    "Gemma 2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 3.0}),
    "Gemma 3, window": ("Gemma3Text", GEMMA),
    "Gemma 3": ("Gemma3Text", GEMMA | {"rope_parameters": ROTATIONS, "layer_types": WINDOW["layer_types"][::-1]}),
    "Gemma": ("Gemma", {"head_dim": 8}),
    "GPT-NeoX": ("GPTNeoX", UNGROUPED),
    "GPT-NeoX, half turns": (
        "GPTNeoX",
        UNGROUPED | {"rope_parameters": {"rope_type": "default", "rope_theta": 9.0, "partial_rotary_factor": 0.5}},
    ),
    "Falcon, one group": ("Falcon", {"bias": True}),
    "Falcon, groups": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon, no groups": ("Falcon", {"multi_query": False}),
    "Qwen3": ("Qwen3", WINDOW | {"head_dim": 8, "rms_norm_eps": 1e-2}),
    "Phi-3": ("Phi3", {"sliding_window": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}),
    "Phi-3, LongRoPE": ("Phi3", PHI3 | {"num_key_value_heads": 1}),
    "Phi-3, LongRoPE, a long text": ("Phi3", PHI3 | {"original_max_position_embeddings": LENGTH - 1}),
    "Phi-4-mini": ("Phi3", PHI3 | {"hidden_size": 64, "rope_parameters": LONG | {"partial_rotary_factor": 0.5}}),
    "SmolLM3": ("SmolLM3", {"no_rope_layers": [0, 1], "sliding_window": 4, "use_sliding_window": True}),
    "SmolLM3, no rotation": ("SmolLM3", {"no_rope_layer_interval": 2, "attention_bias": True}),
    "SmolLM3, no rotation, window": (
        "SmolLM3",
        {"no_rope_layers": [1, 0], "sliding_window": 4, "use_sliding_window": True},
    ),
    "Cohere2": ("Cohere2", {"layer_types": WINDOW["layer_types"], "sliding_window": 4, "attention_bias": True}),
    "Mixtral": ("Mixtral", EXPERTS | {"sliding_window": 4}),
    "Ministral": ("Ministral", {"sliding_window": 4, "head_dim": 8}),
    "Ministral, no window": ("Ministral", {"layer_types": WINDOW["layer_types"][::-1], "head_dim": 8}),
    "StarCoder2": ("Starcoder2", {"sliding_window": 4}),
    "Qwen3, experts": (
        "Qwen3Moe",
        EXPERTS | {"moe_intermediate_size": 32, "sliding_window": 4, "use_sliding_window": True, "head_dim": 8},
    ),
    "EXAONE 4": ("Exaone4", {"layer_types": WINDOW["layer_types"], "sliding_window": 4, "head_dim": 8}),
    "EXAONE 4, no window": ("Exaone4", {"layer_types": WINDOW["layer_types"][::-1], "sliding_window": 4}),
    "EXAONE 4, no windows": ("Exaone4", {"layer_types": ["full_attention"] * 2, "sliding_window": None}),
    "Granite": ("Granite", {"attention_multiplier": 0.7}),
    "Granite, experts": ("GraniteMoe", EXPERTS | {"attention_multiplier": 0.7}),
    "Cohere": ("Cohere", {"attention_bias": True}),
    "GLM": ("Glm", {"head_dim": 8, "attention_bias": True}),
    "GLM 4": ("Glm4", {"head_dim": 12, "attention_bias": False}),
    "Llama 4": ("Llama4Text", LLAMA4),
    "Llama 4, chunks on other layers": (
        "Llama4Text",
        LLAMA4 | {"layer_types": ["chunked_attention", "full_attention"]},
    ),
    "Llama 4, no rotation": ("Llama4Text", LLAMA4 | {"no_rope_layers": [1, 0]}),
    "Llama 4, no norm": ("Llama4Text", LLAMA4 | {"use_qk_norm": False, "no_rope_layers": []}),
    "Gemma 4": ("Gemma4Text", GEMMA4 | {"layer_types": ["sliding_attention", "full_attention"]}),
    "Gemma 4, window": ("Gemma4Text", GEMMA4 | {"num_hidden_layers": 3, "layer_types": [*WINDOW["layer_types"], FULL]}),
    "OLMoE": ("Olmoe", EXPERTS | {"num_experts": 2, "rms_norm_eps": 1e-2}),
    "MiniMax M2": ("MiniMaxM2", EXPERTS | {"head_dim": 8, "rotary_dim": 4, "rms_norm_eps": 1e-2}),
    "Hunyuan": ("HunYuanDenseV1", {"head_dim": 8, "rms_norm_eps": 1e-2, "attention_bias": True}),
    "Hunyuan, alpha": (
        "HunYuanDenseV1",
        {"head_dim": 8, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 99.0, "alpha": 7.0, "factor": 1.0}},
    ),
    "OLMo": ("Olmo", {"num_key_value_heads": 4}),
    "OLMo 2": ("Olmo2", {"rms_norm_eps": 1e-2}),
    "OLMo 3": ("Olmo3", OLMO3 | {"layer_types": WINDOW["layer_types"][::-1]}),
    "OLMo 3, window": ("Olmo3", OLMO3 | {"layer_types": WINDOW["layer_types"]}),
    "gpt-oss": ("GptOss", GPT_OSS),
    "gpt-oss, window": ("GptOss", GPT_OSS | {"layer_types": WINDOW["layer_types"], "head_dim": 8}),
    "Qwen3-Next": ("Qwen3Next", GATED | EXPERTS),
    "Qwen3-Next, biases": ("Qwen3Next", GATED | EXPERTS | {"attention_bias": True, "num_key_value_heads": 1}),
    "Qwen3.5": ("Qwen3_5Text", GATED | {"rope_parameters": TURNED_IN_PART | {"mrope_section": [1, 1, 0]}}),
    "AFMoE": ("Afmoe", AFMOE | {"layer_types": WINDOW["layer_types"]}),
    "AFMoE, no window": ("Afmoe", AFMOE | {"global_attn_every_n_layers": 2}),
    "nanochat": ("NanoChat", {"rms_norm_eps": 1e-2}),
    "Gemma 4, keys as values": (
        "Gemma4Text",
        GEMMA4
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "layer_types": WINDOW["layer_types"][::-1]},
    ),
    "Gemma 4, the last without a window": ("Gemma4Text", GEMMA4 | {"attention_k_eq_v": True}),
    "Cohere2, no window": ("Cohere2", {"layer_types": WINDOW["layer_types"][::-1], "sliding_window": 4}),
}
# Layers whose options those above have: what differs is how they are read, which no framework has to compile again.
ALIKE = {
    "Arcee": ("Arcee", {"head_dim": 8, "attention_bias": True}),
    "Jais 2": ("Jais2", {"rope_parameters": YARN}),
    "Apertus": ("Apertus", {"rms_norm_eps": 1e-2}),
    "Apertus, another rotation": ("Apertus", {"rms_norm_eps": 1e-2, "rope_parameters": LLAMA3}),
    "HY V3": ("HYV3", NORMED | TWO),
    "dots.llm1": ("Dots1", DOTS1 | {"rms_norm_eps": 1e-2}),
    "dots.llm1, window": ("Dots1", DOTS1 | {"rms_norm_eps": 1e-2, "max_window_layers": 1, "sliding_window": 4}),
    "FlexOlmo": ("FlexOlmo", EXPERTS | {"num_experts": 2, "rms_norm_eps": 1e-2}),
    "ERNIE 4.5": ("Ernie4_5", {"head_dim": 8, "use_bias": True}),
    "ERNIE 4.5, experts": ("Ernie4_5_Moe", ERNIE_MOE),
    "EXAONE, experts": ("ExaoneMoe", TWO | {"layer_types": WINDOW["layer_types"], "sliding_window": 4, "head_dim": 8}),
    "EXAONE, experts, no window": ("ExaoneMoe", TWO | {"sliding_window_pattern": 2, "rms_norm_eps": 1e-2}),
    "Seed-OSS": ("SeedOss", {"head_dim": 8}),
    "CWM": ("Cwm", {"head_dim": 8, "sliding_window": 4}),
    "CWM, no window": ("Cwm", {"layer_types": WINDOW["layer_types"][::-1], "rope_parameters": LLAMA3}),
    "Helium": ("Helium", {"head_dim": 6, "attention_bias": True}),
    "Hunyuan, experts": ("HunYuanMoEV1", EXPERTS | NORMED | {"num_experts": 2, "moe_topk": 1}),
    "Granite, a shared expert": (
        "GraniteMoeShared",
        EXPERTS | {"attention_multiplier": 0.7, "shared_intermediate_size": 29},
    ),
    "HyperCLOVA X": ("HyperCLOVAX", {"attention_multiplier": 0.7, "head_dim": 8}),
    "HyperCLOVA X, the usual scale": ("HyperCLOVAX", {"head_dim": 8}),
    "GLM 4.5": ("Glm4Moe", GLM4_MOE),
    "GLM 4.5, no norm": ("Glm4Moe", DOTS1 | {"hidden_size": 32}),
    "Solar Open": ("SolarOpen", DOTS1 | {"head_dim": 8, "rope_parameters": YARN}),
    "VaultGemma": ("VaultGemma", GEMMA | {"attn_logit_softcapping": 3.0}),
    "VaultGemma, window": ("VaultGemma", GEMMA | {"layer_types": WINDOW["layer_types"]}),
    "Cohere2, experts": ("Cohere2Moe", COHERE2_MOE | {"layer_types": WINDOW["layer_types"]}),
    "Cohere2, experts, no window": ("Cohere2Moe", COHERE2_MOE | {"sliding_window_pattern": 2}),
    "Cohere2, no experts": ("Cohere2Moe", DENSE | {"layer_types": WINDOW["layer_types"][::-1]}),
    "Cohere2, no experts, a pattern": ("Cohere2Moe", DENSE | {"prefix_dense_sliding_window_pattern": 2}),
}
MODELS |= ALIKE
PADDED_LEFT = "Llama 4", "gpt-oss, window", "Phi-3, LongRoPE, a long text", "SmolLM3, no rotation, window", "Cohere2"
PADDED_LEFT += "Cohere2, no experts", "GLM 4.5", "Helium"
# The place of a layer, and its scheme; others have LLaMA's.
AT = {
    "GPTNeoX": ("layers.1.attention", "neox"),
    "Falcon": ("h.1.self_attention", "neox"),
    "Phi3": ("layers.1.self_attn", "phi3"),
}
BESIDE = "Qwen3Next", "Qwen3_5Text"  # with the queries of each head in the array lies its gate
ARRAYS = {"q_proj": "W_q", "k_proj": "W_k", "v_proj": "W_v", "o_proj": "W_o", "q_norm": "q_norm", "k_norm": "k_norm"}
ARRAYS |= {"query_layernorm": "q_norm", "key_layernorm": "k_norm", "gate_proj": "W_g"}


@functools.cache
def computed(name, folder, left=False):
    """A saved model's file; prefix of layer 1; its attention's input, output and cotangent (B, T, D), and gradients."""
    kind, options = MODELS[name]
    at, scheme = AT.get(kind, ("layers.1.self_attn", "llama"))
    X, output, cotangent, arrays = theirs.attended(theirs.saved(kind, SMALL | options, folder), at, left)
    by_inputs = arrays.pop("inputs")
    if scheme != "llama":
        _, gradients = schemes.to_canonical(arrays, scheme, num_heads=4)
    else:
        gradients = {}
        for parameter, gradient in arrays.items():
            module, _, part = parameter.partition(".")
            if module == "sinks":
                gradients[module] = gradient
                continue
            ours = ".bias" if part == "bias" else ".scale" if "norm" in module else ".kernel"
            if module == "q_proj" and kind in BESIDE:
                gradient, of_gate = np.split(gradient.reshape(4, -1, *gradient.shape[1:]), 2, 1)  # (H, d, ...)
                gradients["W_g" + ours] = of_gate.reshape(-1, *gradient.shape[2:]).T
                gradient = gradient.reshape(-1, *gradient.shape[2:])
            gradients[ARRAYS[module] + ours] = gradient.T
    return folder / "model.safetensors", at, X, output, cotangent, gradients | {"inputs": by_inputs}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def once(name, left):
    marks = pytest.mark.backends("numpy", "torch", "mxnet") if name in ALIKE and not left else ()
    return pytest.param(name, left, marks=marks)


@pytest.mark.parametrize(
    ("name", "left"), [*(once(name, False) for name in MODELS), *(once(name, True) for name in PADDED_LEFT)]
)
def test_outputs_and_gradients_are_those_of_transformers(backend, folder, name, left):
    path, prefix, X, output, cotangent, gradients = computed(name, folder / name, left)

    def results(backend, dtype):
        layer = parity.in_dtype(mha.load(path, prefix=prefix, backend=backend, length=LENGTH), dtype)
        found, pulled = theirs.ours(layer, X, cotangent, left, causal=True)
        if "W_v.kernel" not in gradients:  # one array is both
            pulled["W_k.kernel"] = pulled["W_k.kernel"] + pulled.pop("W_v.kernel")
        return found, pulled

    theirs.assert_agreement(results, backend, output, gradients, left)


@pytest.mark.parametrize(
    "change",
    [
        {"rotary": None},
        {"rotary": mha.Rotary(interleaved=True)},
        {"window": (4, 0)},
        {"window": None},
        {"qk_norm": "rms"},
        {"qk_norm": mha.Norm("layer", 1e-2)},
    ],
)
def test_another_option_is_noticed(folder, change):
    """That the comparison above tells such layers apart."""
    path, prefix, X, output, _, _ = computed("Qwen3", folder / "Qwen3")
    right = mha.load(path, "numpy", prefix=prefix)
    options = vars(right.config) | change
    wrong = mha.MultiHeadAttention(**options, backend="numpy")
    wrong.weights = right.weights
    real = np.arange(X.shape[1]) < theirs.LENGTHS[:, None]  # (B, T)
    right, wrong = (layer(X, X, X, theirs.LENGTHS, causal=True)[real] for layer in (right, wrong))
    assert parity.error(right, output[real]) < 1e-4 < 1e-3 < parity.error(wrong, output[real])
