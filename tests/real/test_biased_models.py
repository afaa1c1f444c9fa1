"""Models of `transformers` that add biases to the scores: their files give layers that compute as they do.

The biases are arguments of the call: T5's a table in the file, ALiBi's computed. Otherwise as for models that rotate.
Letters: T tokens of the longest sentence, H heads, d the width of one.
"""

import functools

import numpy as np
import pages
import pytest
import safetensors.numpy
from real import theirs

import mha
from mha import parity
from mha.weights import schemes

BUCKETS = {"num_buckets": 8, "max_distance": 9}
T5 = {
    "vocab_size": 37, "d_model": 24, "d_kv": 5, "num_heads": 4, "d_ff": 29, "num_layers": 2, "pad_token_id": 0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9, "attn_implementation": "eager",
}  # fmt: skip
ENCODER, DECODER = "encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.0.SelfAttention"
ALIBI = {"vocab_size": 37, "num_hidden_layers": 2, "num_attention_heads": 16, "hidden_size": 32, "pad_token_id": 0}
# Their eager attention adds the bias twice, once of it with the mask; their sdpa adds it once.
FALCON = ALIBI | {"alibi": True, "multi_query": False, "bias": True, "attn_implementation": "sdpa"}
T = max(theirs.LENGTHS)


PAGE = {"mha": mha}
for block in pages.code("docs/models.md"):
    if "def " in block:
        exec(block, PAGE)


# The kind of model and its options, the place of a layer, its scheme, and its biases if no table in the file has them.
MODELS = {
    "T5, encoder": ("T5", T5, ENCODER, "t5", None),
    "T5, decoder": ("T5", T5, DECODER, "t5", None),
    "mT5": ("MT5", T5, ENCODER, "t5", None),
    "UMT5, later layer": ("UMT5", T5, DECODER.replace("block.0", "block.1"), "t5", None),
    "Switch Transformers": ("SwitchTransformers", T5 | {"num_experts": 2}, DECODER, "t5", None),
    "Falcon": ("Falcon", FALCON, "h.1.self_attention", "neox", PAGE["falcon_bias"](16, 2, T)),
    "BLOOM": ("Bloom", ALIBI | {"attn_implementation": "eager"}, "h.1.self_attention", "neox", mha.alibi(16, T)),
}


@functools.cache
def computed(name, folder):
    """A saved model's file; its attention's input, output and cotangent (B, T, D), and gradients."""
    kind, options, at, scheme, _ = MODELS[name]
    changed = {"residual": lambda X: 0 * X} if kind == "Bloom" else {}  # which it adds to its output
    X, output, cotangent, arrays = theirs.attended(theirs.saved(kind, options, folder), at, **changed)
    others = {"inputs": arrays.pop("inputs")}
    if scheme == "t5":
        others["table"] = arrays["relative_attention_bias.weight"]
    _, gradients = schemes.to_canonical(arrays, scheme, num_heads=4 if scheme == "t5" else 16)
    return folder / "model.safetensors", X, output, cotangent, gradients | others


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_those_of_transformers(backend, folder, name):
    _, _, at, scheme, bias = MODELS[name]
    path, X, output, cotangent, gradients = computed(name, folder / name)
    causal = at != ENCODER
    if scheme == "t5":
        table = safetensors.numpy.load_file(path)[f"{at}.relative_attention_bias.weight"]  # (buckets, H)
        buckets = mha.t5_buckets(T, T, bidirectional=not causal, **BUCKETS)  # (T, T)
        bias = PAGE["t5_bias"](path, at, T, bidirectional=not causal, **BUCKETS)

    def results(backend, dtype):
        layer = parity.in_dtype(mha.load(path, prefix=at, backend=backend), dtype)
        found, pulled = theirs.ours(layer, X, cotangent, causal=causal, score_bias=bias.astype(dtype))
        by_bias = pulled.pop("score_bias")
        if scheme == "t5":
            pulled["table"] = np.zeros(table.shape, dtype)
            np.add.at(pulled["table"], buckets, by_bias[0].transpose(1, 2, 0))
        return found, pulled

    theirs.assert_agreement(results, backend, output, gradients)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("T5, encoder", lambda bias: bias[..., ::-1]),
        ("Falcon", lambda bias: bias * 2**0.5),
        ("Falcon", lambda bias: mha.alibi(16, T) / np.float32(2**0.5)),
        ("BLOOM", lambda bias: bias / 2**0.5),
    ],
)
def test_another_bias_is_noticed(folder, name, change):
    """That the comparison above tells such biases apart."""
    _, _, at, scheme, bias = MODELS[name]
    path, X, output, *_ = computed(name, folder / name)
    if scheme == "t5":
        bias = PAGE["t5_bias"](path, at, T, **BUCKETS)
    layer = mha.load(path, "numpy", prefix=at)
    real = np.arange(T) < theirs.LENGTHS[:, None]  # (B, T)
    biases = (bias, change(bias).astype("float32"))
    right, wrong = (layer(X, X, X, theirs.LENGTHS, causal=at != ENCODER, score_bias=each)[real] for each in biases)
    assert parity.error(right, output[real]) < 1e-4 < 1e-3 < parity.error(wrong, output[real])
