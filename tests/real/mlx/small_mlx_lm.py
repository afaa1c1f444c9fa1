"""Small models of mlx-lm, with random weights or with those of a model of `transformers`, right or with a mistake.

Letters: B samples, T tokens.
"""

import importlib

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_map

B, T, V, LAYERS = 2, 13, 37, 3
SIZES = {
    "vocab_size": V, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4}
GPT2 = {"vocab_size": V, "n_embd": 24, "n_head": 4, "n_layer": LAYERS, "n_positions": 64, "n_ctx": 64}
# The module of each kind, and what its arguments say.
MODELS = {
    "llama": ("llama", SIZES | {"rope_scaling": LLAMA3, "rope_theta": 5e5}),
    "mistral": ("llama", SIZES | WINDOWS),
    "ministral3": ("ministral3", SIZES | WINDOWS | {"rope_parameters": YARN}),
    "qwen2": ("qwen2", SIZES),
    "qwen3": ("qwen3", SIZES | {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "gpt2": ("gpt2", GPT2 | {"layer_norm_epsilon": 1e-5}),
    "phi3": ("phi3", SIZES),
    "gemma": ("gemma", SIZES),
    "gemma2": ("gemma2", SIZES),
    "gemma3_text": ("gemma3_text", SIZES | {"sliding_window": 4, "sliding_window_pattern": 2}),
    "cohere2": ("cohere2", SIZES | {"hidden_size": 32, "sliding_window": 4, "sliding_window_pattern": 2}),
    "olmo2": ("olmo2", SIZES),
    "gptj": ("gptj", GPT2 | {"rotary_dim": 4, "layer_norm_epsilon": 1e-5}),
}


def empty(kind, **changed):
    """A model as mlx-lm makes it."""
    name, said = MODELS[kind]
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return module.Model(module.ModelArgs.from_dict({"model_type": kind} | said | changed))


def made(kind, dtype="float32", **changed):
    """A model with random weights."""
    model = empty(kind, **changed)
    mx.random.seed(3)
    model.update(tree_map(lambda X: 0.4 * mx.random.normal(X.shape), model.parameters()))
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model


def tokens(length=T):
    """Tokens (B, T)."""
    return mx.array(np.random.default_rng(7).integers(1, V, size=(B, length)))


def attention_of(model, at=1):
    """The attention of a layer of a model."""
    layer = model.layers[at]
    return layer["self_attn"] if "self_attn" in layer else layer["attn"]


def of_class(module, **methods):
    """Let a module be of a class of its own, with these methods."""
    module.__class__ = type(type(module).__name__, (type(module),), methods)


def _call(change):
    """Let attention be called with other arguments."""

    def plant(attention):
        run = type(attention).__call__

        def call(self, x, mask=None, cache=None):
            return run(self, *change(x, mask, cache))

        of_class(attention, __call__=call)

    return plant


class Behind:
    """The cache of a layer that has lost count: its positions are one behind."""

    def __init__(self, cache):
        self.cache = cache

    def __getattr__(self, name):
        return self.cache.offset - 1 if name == "offset" and self.cache.offset else getattr(self.cache, name)


def _traditional(attention):
    attention.rope = nn.RoPE(SIZES["head_dim"], traditional=True, base=1e6)


def _wider(attention):
    attention.rope = nn.RoPE(SIZES["head_dim"], base=1e4)


def _unnormed(attention):
    of_class(attention.q_norm, __call__=lambda self, x: x)


def _scaled(attention):
    attention.scale = 1.0


# Mistakes in the attention of a Qwen3, what the reason says, and whether only a cache shows it.
MISTAKES = {
    "no scale": (_scaled, "no scale", False),
    "no mask": (_call(lambda x, mask, cache: (x, None, cache)), "order is ignored", False),
    "neighbours turn": (_traditional, "components are paired the other way", False),
    "another base": (_wider, "another base (10000)", False),
    "no norm": (_unnormed, "norm", False),
    "positions are one behind": (_call(lambda x, mask, cache: (x, mask, cache and Behind(cache))), "", True),
}
