"""Small models of mlx-lm with random weights, saved as mlx-lm saves them, and what enters and leaves their attention.

Letters: B samples, T tokens, D width.
"""

import importlib
import json
import os
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import utils
from real import small

from mha.weights import readers, schemes

os.environ["HF_HUB_OFFLINE"] = "1"


# What mlx-lm wants, or reads otherwise, beside what transformers writes, by kind.
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 16}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
LINEAR |= {"layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2, "num_experts": 0}
LFM2 = {"block_dim": 32, "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False}
MORE = {
    "afmoe": SLIDING,
    "apertus": {"mlp_bias": False, "post_norm": True, "qk_norm": True, "rope_scaling": LLAMA3},
    "cohere2": {"sliding_window": 4, "sliding_window_pattern": 2},
    "exaone4": {"sliding_window": None, "sliding_window_pattern": None, "rope_scaling": None, "head_dim": 8},
    "gemma3_text": {"sliding_window": 4, "sliding_window_pattern": 2, "rope_local_base_freq": 1e4, "rope_theta": 1e6},
    "gemma4_text": SLIDING | {"global_head_dim": 8, "per_layer_config": None},
    "glm": {"partial_rotary_factor": 1.0},  # the configuration says half, which mlx-lm 0.32 does not read
    "glm4_moe": {"rope_scaling": None, "partial_rotary_factor": 0.5, "head_dim": 8},
    "gpt2": {"n_ctx": 64},
    "gpt_neox": {"rotary_emb_base": 1e4, "rotary_pct": 0.25, "partial_rotary_factor": None},
    "gpt_oss": SLIDING | {"rope_scaling": YARN},
    "lfm2": LFM2 | {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]},
    "mistral": {"sliding_window": None},
    "olmo3": SLIDING | {"rope_theta": 1e4},
    "qwen3_moe": {"head_dim": 8, "num_experts": 2},
    "qwen3_next": LINEAR | {"mlp_only_layers": [0, 1]},
}


def configured(kind, **told):
    """What `config.json` says of a small model of a kind of transformers, in the names of older files."""
    config = json.loads(small.configuration(kind).to_json_string(use_diff=False))
    rotation = {} if kind == "ministral3" else config.pop("rope_parameters", None) or {}
    config |= {name: rotation[name] for name in ("rope_theta", "partial_rotary_factor") if name in rotation}
    config.pop("layer_types", None)
    return config | {"model_type": kind} | MORE.get(kind, {}) | told


def made(config, seed=20170612):
    """A model of mlx-lm whose arrays are all random, norms near 1."""
    module = importlib.import_module(
        f"mlx_lm.models.{utils.MODEL_REMAPPING.get(config['model_type'], config['model_type'])}"
    )
    model = module.Model(module.ModelArgs.from_dict(config))
    rng = np.random.default_rng(seed)
    arrays = [
        (name, mx.array((rng.normal(size=X.shape) * 0.3 + ("norm" in name)).astype("float32")))
        for name, X in tree_flatten(model.parameters())
        if mx.issubdtype(X.dtype, mx.floating)
    ]
    model.update(tree_unflatten(arrays))
    mx.eval(model.parameters())
    model.eval()
    return model


def saved(model, config, folder, quantised=None):
    """Save a model, first quantised if so; returns the model as it is then."""
    if quantised:
        model, config = utils.quantize_model(model, config, **quantised)
    utils.save_model(folder, model)
    utils.save_config(dict(config), Path(folder) / "config.json")
    return model


def places(folder):
    """The layers of attention in a saved model: scheme and prefix."""
    with readers.open_weights(folder) as source:
        return schemes.recognise(source.entries, source.format_of)


def attention_of(model, prefix):
    """The module of a model whose arrays begin with a prefix."""
    return dict(model.named_modules())[prefix.removesuffix(".")]


def calls(model, prefix, tokens, cache=None):
    """The input and output (B, T, D) of the attention at a prefix, as the model is given tokens."""
    module, seen = attention_of(model, prefix), []
    plain = type(module)

    class Watched(plain):
        def __call__(self, *given, **named):
            output = super().__call__(*given, **named)
            x = given[0] if given else next(iter(named.values()))
            seen.append((x, output[0] if isinstance(output, tuple) else output))
            return output

    module.__class__ = Watched
    try:
        mx.eval(model(mx.array(tokens), cache=cache))
    finally:
        module.__class__ = plain
    (pair,) = seen
    return [np.array(X.astype(mx.float32)) for X in pair]
