"""The kinds of models whose attention is known: the names in `config.json` that each reads, and their defaults."""

import difflib
import reprlib
from collections.abc import Collection
from typing import Any

from mha.core.options.names import SchemeName
from mha.weights.models.plain import PLAIN, VITS
from mha.weights.schemes.sizes import BARE, FOLDED

_QWEN = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28, "layer_types": None}
_GEMMA: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}
_GEMMA |= {"query_pre_attn_scalar": 256, "layer_types": None}
_SMOLLM = {"num_key_value_heads": 4, "rope_theta": 2e6, "no_rope_layers": None, "no_rope_layer_interval": 4}
_SMOLLM |= {"sliding_window": None, "use_sliding_window": False, "layer_types": None, "max_window_layers": None}
_GPT_OSS: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "layer_types": None}
_GPT_OSS |= {"rope_theta": 150000.0, "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "truncate": False}}
_GPT_OSS["rope_parameters"] |= {"original_max_position_embeddings": 4096}
_EXAONE4: dict[str, Any] = {"num_key_value_heads": 32, "sliding_window": 4096, "layer_types": None}
_EXAONE4 |= {"sliding_window_pattern": 4, "rms_norm_eps": 1e-5}
_GLM = {"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5}
_LLAMA4: dict[str, Any] = {"num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e5}
_LLAMA4 |= {"rms_norm_eps": 1e-5, "use_qk_norm": True, "no_rope_layers": None, "no_rope_layer_interval": 4}
_LLAMA4 |= {"layer_types": None, "attention_chunk_size": 8192}
_LLAMA4 |= {"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1}
_GEMMA4: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512}
_GEMMA4 |= {"layer_types": None, "sliding_window_pattern": 6, "rms_norm_eps": 1e-6, "num_kv_shared_layers": 0}
_GEMMA4 |= {"global_head_dim": 512, "num_global_key_value_heads": None, "attention_k_eq_v": False}
_GEMMA4["rope_parameters"] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
_MINIMAX_M2: dict[str, Any] = {"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128}
_MINIMAX_M2 |= {"rms_norm_eps": 1e-6, "rope_theta": 5e6, "partial_rotary_factor": 1.0, "rotary_dim": None}
_OLMO3: dict[str, Any] = {"sliding_window": 4096, "layer_types": None, "sliding_window_pattern": 4}
_OLMO3 |= {"rms_norm_eps": 1e-5, "rope_theta": 5e5}
_QWEN3_NEXT: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25}
_QWEN3_NEXT |= {"layer_types": None, "full_attention_interval": 4, "rms_norm_eps": 1e-6}
_AFMOE: dict[str, Any] = {"num_attention_heads": 16, "num_key_value_heads": None, "head_dim": 128}
_AFMOE |= {"sliding_window": 1024, "layer_types": None, "global_attn_every_n_layers": 4, "rms_norm_eps": 1e-5}
_APERTUS: dict[str, Any] = {"rms_norm_eps": 1e-5, "rope_theta": 12e6}
_APERTUS["rope_parameters"] = {
    "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
_CWM: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192, "layer_types": None}
_CWM |= {"rope_theta": 1e6, "rope_parameters": _APERTUS["rope_parameters"] | {"rope_theta": 1e6, "factor": 16.0}}
_DOTS1: dict[str, Any] = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 62}
_DOTS1 |= {"layer_types": None, "rms_norm_eps": 1e-6}
_HY_V3: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 11158840.0}
_GLM4_MOE: dict[str, Any] = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5}
_GLM4_MOE |= {"use_qk_norm": False}
_HUNYUAN: dict[str, Any] = {"rms_norm_eps": 1e-5, "attention_head_dim": None}  # which says head_dim again
_COHERE2: dict[str, Any] = {"sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None}
_COHERE2_MOE: dict[str, Any] = _COHERE2 | {"num_key_value_heads": None, "head_dim": 128, "mlp_layer_types": None}
_COHERE2_MOE |= {"prefix_dense_sliding_window_pattern": 1, "first_k_dense_replace": 0}
_QWEN2_VL: dict[str, Any] = _QWEN | {"num_key_value_heads": 8, "max_window_layers": 80, "rope_theta": 1e6}
_QWEN3_VL: dict[str, Any] = {"head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 5e5}
_GRANITE4: dict[str, Any] = {"num_key_value_heads": None, "attention_multiplier": 1.0}
_GRANITE4 |= {"position_embedding_type": None, "layer_types": None}
_LLAMA: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "ministral3": {"sliding_window": None, "num_key_value_heads": 8, "head_dim": 128},
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
    "gemma": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 50.0},
    "vaultgemma": _GEMMA | {"attn_logit_softcapping": 50.0},
    "gemma3_text": _GEMMA | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
    "gemma4_text": _GEMMA4,
    "smollm3": _SMOLLM,
    "cohere2": _COHERE2,
    "cohere2_moe": _COHERE2_MOE,
    "gpt_oss": _GPT_OSS,
    "mixtral": {"sliding_window": None, "num_key_value_heads": 8, "rope_theta": 1e6},
    "ministral": {"sliding_window": 4096, "num_key_value_heads": 8, "layer_types": None},
    "starcoder2": {"sliding_window": None, "num_key_value_heads": 2},
    "qwen3_moe": {name: value for name, value in _QWEN.items() if name != "layer_types"} | {"num_key_value_heads": 4},
    "exaone4": _EXAONE4,
    "exaone_moe": _EXAONE4,
    "granite": {"attention_multiplier": 1.0},
    "granitemoe": {"attention_multiplier": 1.0},
    "granitemoeshared": {"attention_multiplier": 1.0},
    "hyperclovax": {"attention_multiplier": None},
    "cohere": {"rope_theta": 5e5},
    "glm": _GLM,
    "glm4": _GLM,
    "glm4_moe": _GLM4_MOE,
    "olmo": {},
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": _OLMO3,
    "olmoe": {"rms_norm_eps": 1e-5},
    "flex_olmo": {"rms_norm_eps": 1e-6, "rope_theta": 5e5},
    "minimax_m2": _MINIMAX_M2,
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN,
    "llama4_text": _LLAMA4,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT | {"num_key_value_heads": 4, "attn_output_gate": True},
    "qwen3_5_moe_text": _QWEN3_NEXT | {"attn_output_gate": True},
    "afmoe": _AFMOE,
    "arcee": {},
    "jais2": {},
    "apertus": _APERTUS,
    "cwm": _CWM,
    "dots1": _DOTS1,
    "ernie4_5": {"num_key_value_heads": 2, "head_dim": 128, "rope_theta": 5e5},
    "ernie4_5_moe": {"num_key_value_heads": 4, "rope_theta": 5e5},
    "helium": {"num_key_value_heads": 20, "head_dim": 128, "rope_theta": 1e5},
    "hy_v3": _HY_V3,
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128, "attention_out_bias": False},
    "solar_open": {"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6},
    "nanochat": {"num_attention_heads": 6, "num_key_value_heads": None, "rms_norm_eps": 1e-6},
    "stablelm": {"num_key_value_heads": 32, "partial_rotary_factor": 0.25},
    "nemotron": {"num_key_value_heads": None, "partial_rotary_factor": 0.5},
    "qwen2_moe": _QWEN | {"num_key_value_heads": 16},
    "aria_text": {},
    "emu3_text_model": {"num_key_value_heads": 8, "rope_theta": 1e6},
    "granitemoehybrid": _GRANITE4,
    "internlm3": {"num_key_value_heads": 2, "head_dim": 128},
    "iquestcoder": {"num_key_value_heads": 8, "head_dim": 128},
    "mllama_text_model": {"num_key_value_heads": 8, "rope_theta": 5e5, "cross_attention_layers": None},
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"), _QWEN2_VL),
    "qwen3_vl_text": _QWEN3_VL | {"num_key_value_heads": 32},
    "qwen3_vl_moe_text": _QWEN3_VL | {"num_key_value_heads": 16, "head_dim": None, "sliding_window": None},
    "phimoe": {"sliding_window": None, "num_key_value_heads": 8, "rope_theta": 1e6},
    "eurobert": {"num_key_value_heads": None},
    "gte": {"rope_theta": 160000.0},
    "nomic_bert": {"rope_theta": 1000.0},
    "jina_embeddings_v3": {"rope_theta": 20000.0},
}
# Encoders: their tokens see later ones, too.
ENCODERS = "eurobert", "gte", "nomic_bert", "jina_embeddings_v3", "modernbert"
NOT_ROTATING = tuple(VITS)  # as modules, they have LLaMA's names; in files, those of scheme "vit"
_PACKED: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10000.0},
    "falcon": {"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": None, "alibi": False},
    "bloom": {"alibi": True},
}
_PHI3 = {"sliding_window": None, "partial_rotary_factor": 1.0}
_PHI3 |= dict.fromkeys(("original_max_position_embeddings", "max_position_embeddings"), 4096)
_PHI: dict[str, Any] = {"num_key_value_heads": None, "partial_rotary_factor": 0.5}
_MODERNBERT: dict[str, Any] = {"local_attention": 128, "layer_types": None, "global_attn_every_n_layers": 3}
_MODERNBERT |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
# They rotate positions, with names of kinds that do not.
_ESM: dict[str, Any] = {"num_attention_heads": 12, "position_embedding_type": "absolute"}
_LFM2: dict[str, Any] = {"num_key_value_heads": 8, "norm_eps": 1e-5, "rope_theta": 1e6, "layer_types": None}
_LFM2 |= {"full_attn_idxs": None}
# What is said of the tables of biases of these models is known, and not needed: they are an argument of the call.
_T5 = {"d_kv": 64} | dict.fromkeys(("relative_attention_num_buckets", "relative_attention_max_distance"))
_BIASED: dict[str, dict[str, Any]] = {
    "t5": _T5 | {"num_heads": 8},
    "mt5": _T5 | {"num_heads": 6},
    "umt5": _T5 | {"num_heads": 6},
    "switch_transformers": _T5 | {"num_heads": 12},
}
KINDS: dict[SchemeName, dict[str, dict[str, Any]]] = PLAIN | {
    "bert": PLAIN["bert"] | {"esm": _ESM},
    "opt": PLAIN["opt"] | {"lfm2": _LFM2, "lfm2_moe": _LFM2},
    "llama": _LLAMA | VITS,
    "neox": _PACKED,
    "phi3": {"phi3": _PHI3, "gte": _LLAMA["gte"]},  # as a module, GTE has LLaMA's names
    "phi": {"phi": _PHI},
    "modernbert": {"modernbert": _MODERNBERT},
    "t5": _BIASED,
}

# What kinds do that no name says.
OF_ALL = "olmo2", "olmo3", "olmoe", "flex_olmo", "minimax_m2"  # they have norms over all heads of queries, and of keys
GATED = "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"  # beside the queries of each head lies its gate
# A token may have several positions; the first two are older files of the next two.
QWEN_VLS = "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"
# In files of a format, the norms of these have the 1 in their weights.
UNFOLDED = {"mlx": GATED}
# What models read whose arrays are of a format, beside the above: in mlx-lm, LLaMA is Mistral, too.
OF_FORMAT: dict[str, dict[str, dict[str, Any]]] = {
    "mlx": {
        **{kind: {"sliding_window": None, "layer_types": None} for kind in ("llama", "mistral", "ministral3")},
        "gemma2": {"sliding_window": None},
        **{kind: {"rope_parameters": None} for kind in ("apertus", "gpt_oss")},
    }
}
EXAONE = "exaone4", "exaone_moe"  # if they have windows, layers without one rotate no positions
HUNYUAN = "hunyuan_v1_dense", "hunyuan_v1_moe"  # their rotation may have an alpha
LFM2 = "lfm2", "lfm2_moe"
ROTATING = "esm", *LFM2  # unlike others of their schemes
IF_SAID = ("glm4_moe",)  # they have norms if use_qk_norm says so
# They have norms of queries and keys.
NORMED: tuple[str, ...] = ("qwen3", "qwen3_moe", "gemma3_text", "gemma4_text", "afmoe", "nanochat", "apertus", "dots1")
NORMED += ("hy_v3", *QWEN_VLS[4:], *LFM2, *EXAONE, *HUNYUAN, *IF_SAID, *OF_ALL, *GATED)
AFTER = (*HUNYUAN, "nanochat")  # after the rotation
BACKWARDS = ("nanochat",)  # pairs turn the other way
# Options that each layer of these has, whatever the file says.
ALWAYS: dict[str, dict[str, Any]] = {
    **{kind: {FOLDED: True, "output_gate": "element"} for kind in GATED},
    "gemma3_text": {FOLDED: True},
    "nanochat": {BARE: True},
    "afmoe": {"output_gate": "element"},
    "gpt_oss": {"sinks": True},
}
# All of their layers have the window, if nothing else is said.
SLIDING = "mistral", "ministral", "ministral3", "mixtral", "starcoder2", "qwen3_moe", "phi3", "phimoe"
BY_TYPES = ("llama",)  # only layer_types gives them windows, where they read it
ROTATING_IN_WINDOWS = "cohere2", "cohere2_moe", "afmoe"  # layers without a window rotate no positions
# Their rotation depends on whether a layer has a window.
BY_WINDOW = "gemma3_text", "gemma4_text", "olmo3", *ROTATING_IN_WINDOWS
INTERLEAVED: tuple[str, ...] = ("cohere", "cohere2", "cohere2_moe", "glm", "glm4", "llama4_text")
INTERLEAVED += ("ernie4_5", "ernie4_5_moe", "helium")  # the two components of a pair are neighbours
# They rotate positions if their position_embedding_type says so.
BY_NAME: dict[str, dict[str | None, bool]] = {
    "esm": {"absolute": False, "rotary": True},
    "granitemoehybrid": {None: False, "nope": False, "rope": True},
}
# A part of a head may turn, by this name.
SHARES = {"gpt_neox": "rotary_pct"}
SHARES |= dict.fromkeys(
    ("glm", "glm4", "glm4_moe", "phi3", "minimax_m2", "stablelm", "nemotron", "phi", *GATED), "partial_rotary_factor"
)
# What a file that lacks a name says by that, and is looked at as if it was there.
UNSAID: dict[str, dict[str, Any]] = {"big_bird": {"attention_type": "block_sparse"}}
# What a name says in files of a kind, and says nothing by it.
NEUTRAL_OF: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},
    "mpnet": {"relative_attention_num_buckets": 32},
    "apertus": {"qk_norm": True},
    "hy_v3": {"qk_norm": True, "enable_attention_fp32_softmax": True},
    "cohere2": {"position_embedding_type": "rope_gptj"},
    "cohere2_moe": {"position_embedding_type": "rope_gptj"},
    "phi3": {"full_attn_mod": 1},
    "minimax_m2": {"use_qk_norm": True, "qk_norm_type": "per_layer"},
    "gemma4_text": {"use_bidirectional_attention": "vision"},  # which is of pictures
}
NEUTRAL_OF |= {kind: {"use_qk_norm": True, "use_rotary_pos_emb": True} for kind in HUNYUAN}


def model_kind(model: dict[str, Any], scheme: SchemeName) -> str:
    """Return the kind of a model; ValueError if no such model with the names of this scheme is known."""
    kind, kinds = str(model.get("model_type")), KINDS.get(scheme, {})
    if kind not in kinds:
        raise kind_error(kind, kinds, f"whose attention is not known in scheme {scheme!r}")
    return kind


def kind_error(kind: str, kinds: Collection[str], what: str) -> ValueError:
    """Return the error for a kind of model that is none of these; what: the consequence, in words."""
    close = difflib.get_close_matches(kind, kinds)
    alike = f"; names like it: {', '.join(close)}" if close else ""
    return ValueError(
        f"model_type is {reprlib.repr(kind)}, {what}: expected one of {len(kinds)} kinds, which the page on weights "
        f"lists{alike}; to say yourself what it computes, pass the arrays to mha.from_native with num_heads=, rotary= "
        "and its other options, or layers= to mha.parity.audit"
    )
