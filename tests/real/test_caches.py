"""Caches of `transformers` in the middle of a text: a layer of theirs and one of ours go on from each other's.

Letters: B sentences, T tokens, D width.
"""

import numpy as np
import pytest
from real import theirs

import mha
from mha import parity

B, T, FIRST, SIZE = 2, 20, 9, 23
SMALL = {"vocab_size": 37, "num_hidden_layers": 2, "num_attention_heads": 6, "hidden_size": 24, "intermediate_size": 29}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64}
WINDOWS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5}
LONG = {"rope_type": "longrope", "rope_theta": 99.0, "short_factor": [1.5, 4.0], "long_factor": [9.0, 9.0]}
TEMPERED = {"rope_type": "yarn", "rope_theta": 99.0, "factor": 4.0, "llama_4_scaling_beta": 0.4}
TEMPERED |= {"original_max_position_embeddings": 3}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
GEMMA4 = GROUPED | {"global_head_dim": 4, "sliding_window": 5, "pad_token_id": 0}
GEMMA4 |= {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 37}
FEW = {"n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
DENSE = {"num_experts": 2, "mlp_layer_types": ["dense", "dense"], "prefix_dense_intermediate_size": 29}
LLAMA4 = {"intermediate_size_mlp": 32, "attention_chunk_size": 4, "pad_token_id": 0}
MODELS = {
    "Llama": GROUPED,
    "Qwen3": GROUPED,
    "Gemma3Text": GROUPED | WINDOWS,
    "Phi3": GROUPED | {"rope_parameters": LONG, "original_max_position_embeddings": T, "pad_token_id": 0},
    "SmolLM3": GROUPED | WINDOWS | {"no_rope_layers": [1, 0], "use_sliding_window": True, "pad_token_id": 0},
    "Cohere2": GROUPED | WINDOWS,
    "Olmo2": GROUPED,
    "Olmo3": GROUPED | WINDOWS,
    "HunYuanDenseV1": GROUPED,
    "NanoChat": GROUPED,
    "MiniMaxM2": GROUPED | EXPERTS | {"rotary_dim": 2},
    "Ministral3": GROUPED | {"rope_parameters": TEMPERED},
    "Qwen3Next": GROUPED | EXPERTS | LINEAR | {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8},
    "Afmoe": GROUPED | WINDOWS | {"num_experts": 2, "num_experts_per_tok": 1},
    "Gemma4Text": GEMMA4 | {"layer_types": WINDOWS["layer_types"][::-1], "attention_k_eq_v": True},
    "Llama4Text": GROUPED | EXPERTS | LLAMA4,
    "GptOss": GROUPED | WINDOWS | {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32},
}
MODELS |= {
    "Cwm": GROUPED | WINDOWS,
    "Glm4Moe": GROUPED | FEW | {"use_qk_norm": True},
    "Cohere2Moe": GROUPED | EXPERTS | DENSE | {"layer_types": WINDOWS["layer_types"][::-1], "sliding_window": 5},
}
PLACE = "layers.1.self_attn"


def empty(kind, model):
    import transformers

    options = {} if kind == "DynamicCache" else {"max_cache_len": SIZE}
    return getattr(transformers, kind)(config=model.config, **options)


def decoded(model, tokens, cache, first=0):
    """The input and output (B, T, D) of the second layer's attention, as the model is given token after token."""
    import torch

    inputs, outputs = [], []
    module = model.get_submodule(PLACE)
    hooks = [
        module.register_forward_pre_hook(lambda _, __, named: inputs.append(named["hidden_states"]), with_kwargs=True),
        module.register_forward_hook(lambda _, __, result: outputs.append(result[0])),
    ]
    with torch.no_grad():
        for t in range(first, tokens.shape[1]):
            model(tokens[:, t : t + 1], past_key_values=cache, use_cache=True)
    for hook in hooks:
        hook.remove()
    return [torch.cat(X, 1).numpy() for X in (inputs, outputs)]


def agree(layer, X, first, outputs, caches=()):
    """Outputs from the token `first` on, and what caches have at the end, are those of one call up to rounding."""
    results = []
    for dtype in ("float64", "float32"):
        plain = parity.in_dtype(layer.to("numpy"), dtype)
        size = SIZE if layer.config.window is None else None
        output, cache = plain(*[X.astype(dtype)] * 3, causal=True, cache=plain.cache(B, size))
        results.append([output[:, first:], cache.keys, cache.values])
    for found in outputs:
        assert within(found, *(result[0] for result in results))
    for found in caches:
        filled = (mha.to_numpy(found.positions) >= 0)[:, None, :, None]  # a window of theirs has one slot fewer
        assert np.array_equal(*(np.where(filled[:, 0, :, 0], one.positions, -1) for one in (found, cache)))
        for heads, oracle, base in zip(found.arrays()[:2], results[0][1:], results[1][1:], strict=True):
            assert within(*(mha.to_numpy(A) * filled for A in (heads, oracle, base)))


def within(found, oracle, base):
    return parity.error(found, oracle) <= parity.bound("float32", oracle, base)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("name", MODELS)
def test_ours_goes_on_from_theirs(tmp_path, backend, name, kind):
    import torch

    model = theirs.saved(name, MODELS[name], tmp_path)
    layer = mha.load(tmp_path, backend, prefix=PLACE)
    tokens, kept = torch.randint(1, 37, (B, T)), empty(kind, model)
    X, _ = decoded(model, tokens[:, :FIRST], kept)
    cache = mha.Cache.from_native(kept, layer, layer=1, size=None if layer.config.window else SIZE)
    assert mha.to_numpy(cache.lengths).tolist() == [FIRST] * B
    later, expected = decoded(model, tokens, kept, FIRST)
    outputs = []
    for t in range(T - FIRST):
        x = later[:, t : t + 1]
        output, cache = layer(x, x, x, causal=True, cache=cache)
        outputs.append(mha.to_numpy(output))
    end = mha.Cache.from_native(kept.layers[1], layer, size=cache.sizes[1])
    assert mha.to_numpy(end.lengths).tolist() == [T] * B
    agree(layer, np.concatenate([X, later], 1), FIRST, [np.concatenate(outputs, 1), expected], [cache, end])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("prompt", [0, FIRST])
def test_theirs_goes_on_from_ours(tmp_path, backend, kind, prompt):
    import torch

    model = theirs.saved("Llama", MODELS["Llama"], tmp_path)
    layer, tokens, kept = mha.load(tmp_path, backend, prefix=PLACE), torch.randint(1, 37, (B, T)), empty(kind, model)
    before = decoded(model, tokens[:, :prompt], kept)[0] if prompt else np.empty((B, 0, 24), "float32")
    cache = layer.cache(B, SIZE)
    if prompt:
        _, cache = layer(before, before, before, causal=True, cache=cache)
    made = cache.to_native(f"transformers.{kind}")
    assert made.get_seq_length() == prompt
    kept.layers[1:] = made.layers
    X, output = decoded(model, tokens, kept, prompt)
    agree(layer, np.concatenate([before, X], 1), prompt, [output])
    back = mha.Cache.from_native(cache.to_native(f"transformers.{kind}"), layer, size=SIZE)
    for ours, own in zip(cache.arrays(), back.arrays(), strict=True):
        assert np.array_equal(mha.to_numpy(ours), mha.to_numpy(own))


@pytest.mark.backends("torch")
def test_without_tokens_there_is_nothing_to_take(tmp_path):
    model = theirs.saved("Llama", MODELS["Llama"], tmp_path)
    layer = mha.load(tmp_path, "torch", prefix=PLACE)
    with pytest.raises(ValueError, match="StaticLayer without keys and values as layer 0, expected one with tokens"):
        mha.Cache.from_native(empty("StaticCache", model), layer, layer=0)
    with pytest.raises(ValueError, match="layer is None, expected one from 0 to 1"):
        mha.Cache.from_native(empty("DynamicCache", model), layer)


@pytest.mark.backends("tensorflow")
def test_ours_goes_on_from_the_layer_of_keras_hub(backend):
    import keras_hub

    H, d = 6, 4  # Keras rounds 1 / sqrt(d), but not of 4
    attention = mha.MultiHeadAttention(H * d, H, bias=True, dtype="float64", seed=3, backend=backend)
    layer = keras_hub.layers.CachedMultiHeadAttention(H, d, dtype="float64")
    layer.build((B, 1, H * d), (B, 1, H * d))
    layer.set_weights(attention.to_native("keras.layers.MultiHeadAttention").get_weights())
    X, kept, outputs = np.random.default_rng(1).normal(size=(B, T, H * d)), np.zeros((B, 2, SIZE, H, d)), []
    for t in range(T):
        x, seen = X[:, t : t + 1], np.tile(np.arange(SIZE) <= t, (B, 1, 1))
        theirs, kept = layer(x, x, attention_mask=seen, cache=kept, cache_update_index=t)
        if t == FIRST - 1:
            cache = mha.Cache.from_native(kept, attention, lengths=FIRST)
        if t >= FIRST:
            output, cache = attention(x, x, x, causal=True, cache=cache)
            outputs.append(np.abs(output - mha.to_numpy(theirs)).max())
    assert max(outputs) <= 1e-12
    end = mha.Cache.from_native(kept, attention, lengths=T)
    for found, expected in zip(cache.arrays(), end.arrays(), strict=True):
        np.testing.assert_allclose(mha.to_numpy(found), mha.to_numpy(expected), rtol=0, atol=1e-12)
