"""Attention of `transformers` far from the start: with the rounding of angles in the bound, right layers are the same.

Without it they are not: their angles are float32, and at position 8,009 that is most of their error.
"""

import numpy as np
import planted
import pytest
import torch
import transformers

import mha
from mha.parity.rule.problem import problem

T, FIRST = 53, 8009
SMALL = {
    "vocab_size": 37, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 92,
    "intermediate_size": 29, "head_dim": 32, "attn_implementation": "eager", "max_position_embeddings": 16384,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
MODELS = {
    "Llama": ("Llama", {}),
    "Llama, LLaMA 3's frequencies": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama, YaRN": ("Llama", {"rope_parameters": YARN}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Qwen3": ("Qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", MODELS)
def test_right_layers_are_the_same(name):
    kind, options = MODELS[name]
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**SMALL | options)).eval()
    layer = mha.from_native(model, prefix="layers.0.self_attn", backend="numpy")
    places = FIRST + np.arange(T)
    X = 6 * torch.randn(2, T, SMALL["hidden_size"])  # untrained kernels are small
    hidden = torch.full((T, T), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        turns = model.rotary_emb(X, torch.tensor(places)[None])
        theirs = model.layers[0].self_attn(X, turns, hidden)[0].numpy()
    call = planted.DEFAULTS | {"causal": True, "positions": places, "key_positions": places}
    with_angles, without = (
        problem(layer, *[X.numpy()] * 3, call, angles=angles).expected("output").ratio(theirs)
        for angles in (True, False)
    )
    assert with_angles < 0.5
    assert without > 2
