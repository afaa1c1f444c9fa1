"""A small model with names of Llama: its `config.json` and the arrays of one layer."""

H, G, d, D = 4, 2, 6, 20
PREFIX = "model.layers.1.self_attn."
MODEL = {"num_attention_heads": H, "num_key_value_heads": G, "hidden_size": D, "head_dim": d, "rms_norm_eps": 1e-5}
MODEL |= {
    "attention_dropout": 0.1,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "attention_bias": True,
}


def arrays(rng, *, bias=False, normed=False):
    """A layer as LLaMA has it."""
    shapes = {"q_proj.weight": (H * d, D), "k_proj.weight": (G * d, D), "v_proj.weight": (G * d, D)}
    shapes |= {f"{name}_proj.bias": (n * d,) for name, n in (("q", H), ("k", G), ("v", G)) if bias}
    shapes |= {f"{name}_norm.weight": (d,) for name in "qk" if normed}
    shapes |= {"o_proj.weight": (D, H * d)}
    return {PREFIX + name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


WINDOWED = ["full_attention", "sliding_attention"]
WINDOWS = {"use_sliding_window": True, "sliding_window": 8}
LLAMA = {"model_type": "llama"}
