"""A checkpoint of a tiny random LLaMA, as its users have it; needs no framework.

Letters: H heads, G heads of keys, D features, d width of a head.
"""

LAYERS, H, G, D, d, WIDE, WORDS, BASE, EPSILON = 3, 4, 2, 28, 6, 37, 41, 10000.0, 1e-5
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": D, "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS, "num_attention_heads": H, "num_key_value_heads": G, "head_dim": d, "vocab_size": WORDS,
    "rope_theta": BASE, "rms_norm_eps": EPSILON, "max_position_embeddings": 64, "attention_bias": False,
    "hidden_act": "silu", "torch_dtype": "float32", "tie_word_embeddings": True,
}  # fmt: skip
SHAPES = {
    "self_attn.q_proj": (H * d, D), "self_attn.k_proj": (G * d, D), "self_attn.v_proj": (G * d, D),
    "self_attn.o_proj": (D, H * d), "mlp.gate_proj": (WIDE, D), "mlp.up_proj": (WIDE, D), "mlp.down_proj": (D, WIDE),
}  # fmt: skip


def checkpoint(rng):
    """The arrays of a tiny random model by the names of its checkpoint, kernels (out, in)."""
    shapes = {"model.embed_tokens": (WORDS, D), "model.norm": (D,)}
    for n in range(LAYERS):
        shapes |= {f"model.layers.{n}.{name}": shape for name, shape in SHAPES.items()}
        shapes |= {f"model.layers.{n}.{name}_layernorm": (D,) for name in ("input", "post_attention")}
    return {f"{name}.weight": rng.normal(size=shape, scale=0.4).astype("float32") for name, shape in shapes.items()}
