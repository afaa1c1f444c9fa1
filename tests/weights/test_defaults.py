"""Numbers that stand in no file: what kinds of models do by default, and how many bytes a number of a dtype has."""

import json

import numpy as np
import pytest

import mha
from mha.weights import models, readers
from mha.weights.safetensors_writer import to_bytes

# The defaults of transformers' configurations: a config.json may leave out what is as they say.
GEMMA = {"num_heads": 8, "num_key_value_heads": 4, "key_dim": 256, "scale": 0.0625}
GEMMA3 = GEMMA | {"qk_norm": mha.Norm("rms", 1e-6), "fold_one": True}
PLAIN = {"num_heads": 6, "key_dim": 8, "rotary": mha.Rotary(8), "window": None}
WINDOW, GLOBAL = (4095, 0), mha.Rotary(256, 1e6)
QWEN_MOE = PLAIN | {"num_key_value_heads": 4, "qk_norm": mha.Norm("rms", 1e-6)}
EXAONE4 = PLAIN | {"num_key_value_heads": 32, "qk_norm": mha.Norm("rms", 1e-5)}
OLMO3 = PLAIN | {"rotary": mha.Rotary(8, 5e5), "qk_norm": mha.Norm("rms", 1e-5, over="all")}
GEMMA4 = GEMMA | {"scale": 1.0, "qk_norm": mha.Norm("rms", 1e-6), "value_norm": mha.Norm("rms", 1e-6)}
MINIMAX = {"num_heads": 48, "num_key_value_heads": 8, "key_dim": 128, "window": None}
MINIMAX |= {"qk_norm": mha.Norm("rms", 1e-6, over="all")}
GLM = PLAIN | {"num_key_value_heads": 2, "key_dim": 128, "rotary": mha.Rotary(64, interleaved=True)}
OSS = mha.yarn(64, rope_theta=150000, factor=32, original_max_position_embeddings=4096, truncate=False)
GPT_OSS = PLAIN | {"num_key_value_heads": 8, "key_dim": 64, "rotary": OSS, "sinks": True}
COHERE2_MOE = PLAIN | {"num_key_value_heads": 6, "key_dim": 128}
EIGHTHS = 8.0, 1.0, 4.0, 8192
APERTUS = mha.Rotary(8, 12e6, frequencies=mha.llama3_frequencies(8, 12e6, *EIGHTHS))
CWM = mha.Rotary(128, 1e6, frequencies=mha.llama3_frequencies(128, 1e6, 16.0, *EIGHTHS[1:]))
WIDE = PLAIN | {"num_key_value_heads": 8, "key_dim": 128}
GLM4_MOE = PLAIN | {"num_key_value_heads": 8, "rotary": mha.Rotary(4)}
DEFAULTS = [
    ("llama", "llama", {}, PLAIN),
    ("llama", "mistral", {}, PLAIN | {"window": WINDOW}),
    ("llama", "qwen2", {}, PLAIN),
    ("llama", "qwen2", {"use_sliding_window": True, "layer": 27}, PLAIN),
    ("llama", "qwen2", {"use_sliding_window": True, "layer": 28}, PLAIN | {"window": WINDOW}),
    ("llama", "qwen3", {}, PLAIN | {"key_dim": 128, "rotary": mha.Rotary(128), "qk_norm": mha.Norm("rms", 1e-6)}),
    ("llama", "gemma", {"num_attention_heads": ...},
     {"num_heads": 16, "num_key_value_heads": 16, "key_dim": 256, "rotary": mha.Rotary(256), "window": None}),
    ("llama", "gemma2", {"num_attention_heads": ..., "layer": 2},
     GEMMA | {"rotary": mha.Rotary(256), "window": WINDOW, "softcap": 50.0}),
    ("llama", "gemma2", {"num_attention_heads": ..., "layer": 3},
     GEMMA | {"rotary": mha.Rotary(256), "window": None, "softcap": 50.0}),
    ("llama", "gemma3_text", {"num_attention_heads": ..., "layer": 4},
     GEMMA3 | {"rotary": mha.Rotary(256), "window": WINDOW}),
    ("llama", "gemma3_text", {"num_attention_heads": ..., "layer": 5}, GEMMA3 | {"rotary": GLOBAL, "window": None}),
    ("llama", "gemma4_text", {"num_attention_heads": ..., "layer": 4},
     GEMMA4 | {"rotary": mha.Rotary(256), "window": (511, 0)}),
    ("llama", "gemma4_text", {"num_attention_heads": ..., "layer": 5, "use_bidirectional_attention": "vision"},
     GEMMA4 | {"key_dim": 512, "window": None,
               "rotary": mha.proportional(512, rope_theta=1e6, partial_rotary_factor=0.25)}),
    ("llama", "gemma4_text",
     {"num_attention_heads": ..., "layer": 5, "num_global_key_value_heads": 2, "attention_k_eq_v": True},
     GEMMA4 | {"key_dim": 512, "window": None, "num_key_value_heads": 2, "values_are_keys": True,
               "rotary": mha.proportional(512, rope_theta=1e6, partial_rotary_factor=0.25)}),
    ("llama", "smollm3", {"layer": 2}, PLAIN | {"num_key_value_heads": 4, "rotary": mha.Rotary(8, 2e6)}),
    ("llama", "smollm3", {"layer": 3, "num_key_value_heads": None},
     PLAIN | {"num_key_value_heads": 6, "rotary": None}),
    ("llama", "smollm3", {"layer": 3, "use_sliding_window": True, "sliding_window": 8},
     PLAIN | {"num_key_value_heads": 4, "rotary": None, "window": (7, 0)}),
    ("llama", "cohere2", {"layer": 2}, PLAIN | {"rotary": mha.Rotary(8, interleaved=True), "window": WINDOW}),
    ("llama", "cohere2", {"layer": 3}, PLAIN | {"rotary": None}),
    ("llama", "gpt_oss", {"layer": 2}, GPT_OSS | {"window": (127, 0)}),
    ("llama", "gpt_oss", {"layer": 3}, GPT_OSS),
    ("llama", "mixtral", {}, PLAIN | {"num_key_value_heads": 8, "rotary": mha.Rotary(8, 1e6)}),
    ("llama", "ministral", {}, PLAIN | {"num_key_value_heads": 8, "window": WINDOW}),
    ("llama", "starcoder2", {}, PLAIN | {"num_key_value_heads": 2}),
    ("llama", "qwen3_moe", {}, QWEN_MOE),
    ("llama", "qwen3_moe", {"use_sliding_window": True}, QWEN_MOE | {"window": WINDOW}),
    ("llama", "exaone4", {"layer": 2}, EXAONE4 | {"window": WINDOW}),
    ("llama", "exaone4", {"layer": 3}, EXAONE4 | {"rotary": None}),
    ("llama", "exaone4", {"sliding_window": None, "layer": 3}, EXAONE4),
    ("llama", "granite", {}, PLAIN | {"scale": 1.0}),
    ("llama", "granitemoe", {"attention_multiplier": 0.25}, PLAIN | {"scale": 0.25}),
    ("llama", "cohere", {}, PLAIN | {"rotary": mha.Rotary(8, 5e5, interleaved=True)}),
    ("llama", "glm", {}, GLM),
    ("llama", "glm4", {"partial_rotary_factor": 0.25}, GLM | {"rotary": mha.Rotary(32, interleaved=True)}),
    ("llama", "olmo", {"clip_qkv": None}, PLAIN),
    ("llama", "olmo2", {}, PLAIN | {"qk_norm": mha.Norm("rms", 1e-5, over="all")}),
    ("llama", "olmo3", {"layer": 2}, OLMO3 | {"window": WINDOW}),
    ("llama", "olmo3", {"layer": 3}, OLMO3),
    ("llama", "olmo3", {"layer": 2, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
     OLMO3 | {"window": WINDOW}),
    ("llama", "olmo3", {"layer": 3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
     OLMO3 | {"rotary": mha.linear(8, rope_theta=5e5, factor=2.0)}),
    ("llama", "olmoe", {"clip_qkv": None}, PLAIN | {"qk_norm": mha.Norm("rms", 1e-5, over="all")}),
    ("llama", "minimax_m2", {"num_attention_heads": ..., "use_qk_norm": True, "qk_norm_type": "per_layer"},
     MINIMAX | {"rotary": mha.Rotary(128, 5e6)}),
    ("llama", "minimax_m2", {"num_attention_heads": ..., "rotary_dim": 64, "rope_theta": 1e6},
     MINIMAX | {"rotary": mha.Rotary(64, 1e6)}),
    ("llama", "hunyuan_v1_dense", {"attention_head_dim": 8, "use_qk_norm": True, "use_rotary_pos_emb": True},
     PLAIN | {"qk_norm": mha.Norm("rms", 1e-5, after=True)}),
    ("llama", "hunyuan_v1_dense",
     {"rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 1.0, "mscale": 1.0, "beta_slow": 1}},
     PLAIN | {"qk_norm": mha.Norm("rms", 1e-5, after=True), "rotary": mha.dynamic(8, rope_theta=1e4, alpha=9.0)}),
    ("llama", "hunyuan_v1_moe",
     {"rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 1.0, "mscale": 1.0, "beta_slow": 1}},
     PLAIN | {"qk_norm": mha.Norm("rms", 1e-5, after=True), "rotary": mha.dynamic(8, rope_theta=1e4, alpha=9.0)}),
    ("llama", "arcee", {}, PLAIN),
    ("llama", "jais2", {}, PLAIN),
    ("llama", "apertus", {"qk_norm": True, "post_norm": False},
     PLAIN | {"qk_norm": mha.Norm("rms", 1e-5), "rotary": APERTUS}),
    ("llama", "apertus", {"rope_parameters": None, "rope_theta": 9.0},
     PLAIN | {"qk_norm": mha.Norm("rms", 1e-5), "rotary": APERTUS}),
    ("llama", "apertus", {"rope_parameters": {"rope_type": "default"}},
     PLAIN | {"qk_norm": mha.Norm("rms", 1e-5), "rotary": mha.Rotary(8, 12e6)}),
    ("llama", "hy_v3",
     {"mlp_layer_types": ["dense", "sparse"], "qk_norm": True, "enable_attention_fp32_softmax": True},
     WIDE | {"qk_norm": mha.Norm("rms", 1e-5), "rotary": mha.Rotary(128, 11158840.0)}),
    ("llama", "dots1", {"layer": 61}, PLAIN | {"num_key_value_heads": 32, "qk_norm": mha.Norm("rms", 1e-6)}),
    ("llama", "dots1", {"layer": 62},
     PLAIN | {"num_key_value_heads": 32, "qk_norm": mha.Norm("rms", 1e-6), "window": WINDOW}),
    ("llama", "flex_olmo", {},
     PLAIN | {"rotary": mha.Rotary(8, 5e5), "qk_norm": mha.Norm("rms", 1e-6, over="all")}),
    ("llama", "ernie4_5", {}, WIDE | {"num_key_value_heads": 2, "rotary": mha.Rotary(128, 5e5, interleaved=True)}),
    ("llama", "ernie4_5_moe", {}, PLAIN | {"num_key_value_heads": 4, "rotary": mha.Rotary(8, 5e5, interleaved=True)}),
    ("llama", "exaone_moe", {"layer": 2}, EXAONE4 | {"window": WINDOW}),
    ("llama", "exaone_moe", {"layer": 3}, EXAONE4 | {"rotary": None}),
    ("llama", "seed_oss", {"attention_out_bias": False}, WIDE | {"rotary": mha.Rotary(128)}),
    ("llama", "cwm", {"layer": 3}, WIDE | {"rotary": CWM, "window": (8191, 0)}),
    ("llama", "cwm", {"layer": 4}, WIDE | {"rotary": CWM}),
    ("llama", "cwm", {"layer": 4, "rope_parameters": {"rope_type": "default"}},
     WIDE | {"rotary": mha.Rotary(128, 1e6)}),
    ("llama", "helium", {}, WIDE | {"num_key_value_heads": 20, "rotary": mha.Rotary(128, 1e5, interleaved=True)}),
    ("llama", "granitemoeshared", {}, PLAIN | {"scale": 1.0}),
    ("llama", "hyperclovax", {}, PLAIN),
    ("llama", "hyperclovax", {"attention_multiplier": 0.25}, PLAIN | {"scale": 0.25}),
    ("llama", "glm4_moe", {}, GLM4_MOE),
    ("llama", "glm4_moe", {"use_qk_norm": True}, GLM4_MOE | {"qk_norm": mha.Norm("rms", 1e-5)}),
    ("llama", "solar_open", {}, WIDE | {"rotary": mha.Rotary(128, 1e6)}),
    ("llama", "vaultgemma", {"num_attention_heads": ..., "layer": 2},
     GEMMA | {"rotary": mha.Rotary(256), "window": WINDOW, "softcap": 50.0}),
    ("llama", "vaultgemma", {"num_attention_heads": ..., "layer": 3},
     GEMMA | {"rotary": mha.Rotary(256), "window": None, "softcap": 50.0}),
    ("llama", "cohere2_moe", {"layer": 2},
     COHERE2_MOE | {"rotary": mha.Rotary(128, interleaved=True), "window": WINDOW}),
    ("llama", "cohere2_moe", {"layer": 3}, COHERE2_MOE | {"rotary": None}),
    ("llama", "cohere2_moe", {"layer": 0, "first_k_dense_replace": 1},
     COHERE2_MOE | {"rotary": mha.Rotary(128, interleaved=True)}),
    ("llama", "cohere2_moe", {"layer": 4, "first_k_dense_replace": 1}, COHERE2_MOE | {"rotary": None}),
    ("llama", "gpt_oss", {"layer": 3, "rope_parameters": None}, GPT_OSS),
    ("phi3", "phi3", {}, PLAIN),
    ("phi3", "phi3", {"rope_scaling": {"type": "longrope", "short_factor": [2.0] * 4, "long_factor": [3.0] * 4}},
     PLAIN | {"rotary": mha.linear(8, rope_theta=1e4, factor=2.0)}),
    ("neox", "gpt_neox", {}, PLAIN | {"rotary": mha.Rotary(2)}),
    ("neox", "falcon", {}, PLAIN | {"num_key_value_heads": 1}),
    ("neox", "falcon", {"new_decoder_architecture": True}, PLAIN | {"num_key_value_heads": 6}),
    ("neox", "falcon", {"multi_query": False}, PLAIN | {"num_key_value_heads": 6}),
    ("neox", "bloom", {}, PLAIN | {"rotary": None}),
    ("t5", "t5", {}, {"num_heads": 8, "key_dim": 64, "scale": 1.0}),
    ("t5", "mt5", {}, {"num_heads": 6, "key_dim": 64, "scale": 1.0}),
    ("t5", "umt5", {}, {"num_heads": 6, "key_dim": 64, "scale": 1.0}),
    ("t5", "switch_transformers", {}, {"num_heads": 12, "key_dim": 64, "scale": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "kind", "said", "options"), DEFAULTS)
def test_what_a_model_leaves_out_is_the_default_of_its_kind(tmp_path, scheme, kind, said, options):
    model = {"model_type": kind, "num_attention_heads": 6, "hidden_size": 48} | said
    layer = model.pop("layer", 0)
    model = {name: value for name, value in model.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(model))
    found = models.options(tmp_path / "config.json", scheme, f"model.layers.{layer}.self_attn.")
    assert found == options


# The names of dtypes in the format's description, with the bytes of a number.
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4}
BYTES |= {"U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_array_has_so_many_bytes_as_its_dtype_says(tmp_path, more):
    for code in BYTES:
        assert_size(tmp_path, code, more)


def assert_size(tmp_path, code, more):
    size = 15 * BYTES[code] + more
    header = json.dumps({"X": {"dtype": code, "shape": [3, 5], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "file.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    if more:
        with pytest.raises(
            ValueError, match=rf"X has {size} bytes, which does not fit dtype {code} and shape \(3, 5\)$"
        ):
            readers.open_weights(path).__enter__()
        return
    with readers.open_weights(path) as source:
        assert source.entries["X"].shape == (3, 5)


def test_wide_numbers_come_first_so_that_all_are_aligned(tmp_path):
    arrays = {f"{dtype} {n}": np.ones(n, dtype) for n in (3, 5) for dtype in ("bool", "float16", "float64", "float32")}
    data = to_bytes(arrays, {})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    assert [name.split()[0] for name in header] == [*["float64"] * 2, *["float32"] * 2, *["float16"] * 2, *["bool"] * 2]
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        assert (8 + length + start) % arrays[name].itemsize == 0
        assert np.array_equal(
            np.frombuffer(data[8 + length + start : 8 + length + stop], arrays[name].dtype), arrays[name]
        )
