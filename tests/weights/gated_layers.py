"""Layers with output gates, as checkpoints name and describe them."""

D, H, d, dv = 13, 3, 6, 7
MODEL = {"num_attention_heads": H, "num_key_value_heads": H, "head_dim": d, "hidden_size": D, "rms_norm_eps": 1e-5}
QWEN = MODEL | {
    "model_type": "qwen3_next",
    "partial_rotary_factor": 0.7,
    "layer_types": ["linear_attention", "full_attention"],
}
AT = "model.layers.1.self_attn."
