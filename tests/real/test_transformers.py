"""Trained weights and models of `transformers`: their files are read, and their own layers compute the same.

What is compared is within the bounds of `mha.parity`, float64 NumPy being the oracle: our output and weights of
attention, and theirs. Letters: B sentences, T tokens of the longest, H heads, D width.
"""

import functools
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mha
from mha import parity
from mha.weights import readers, schemes

os.environ["HF_HUB_OFFLINE"] = "1"
EXAMPLE = Path(__file__).parents[2] / "examples" / "minilm.py"


def agree(dtype, found, oracle, base):
    assert parity.error(found, oracle) <= parity.bound(dtype, oracle, base)


# 1. MiniLM, on real sentences of different lengths


@functools.cache
def minilm(dtype):
    """The path of the weights; the lengths (B,); and for each of the six layers its own input, output and weights."""
    import safetensors.torch
    import torch
    from transformers import AutoModel, BertConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE.parent)  # as Python does for a script
        example = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))
    folder = example.model_folder()
    tokens, valid, _ = example.tokenise(folder)
    model = AutoModel.from_config(BertConfig.from_json_file(folder / "config.json"), attn_implementation="eager").eval()
    state = safetensors.torch.load_file(folder / "model.safetensors")
    del state["embeddings.position_ids"]  # 0, 1, 2, ...: in the file, but no weight
    model.load_state_dict(state)
    model.to(getattr(torch, dtype))
    inputs, outputs = [], []
    for layer in model.encoder.layer:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].numpy()))
        layer.attention.output.dense.register_forward_hook(lambda _, __, output: outputs.append(output.numpy()))
    with torch.no_grad():
        result = model(torch.tensor(tokens), torch.tensor(valid), output_attentions=True)
    lengths = valid.sum(1)
    assert len(set(lengths)) > 1  # some are padded
    return (
        folder / "model.safetensors",
        lengths,
        list(zip(inputs, outputs, [X.numpy() for X in result.attentions], strict=True)),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("number", range(6))
def test_each_layer_of_minilm_is_that_of_transformers(backend, number, dtype):
    path, lengths, layers = minilm(dtype)
    X, *theirs = layers[number]

    def results(backend, dtype):
        prefix, inputs = f"encoder.layer.{number}.attention", X.astype(dtype)
        layer = mha.load(path, scheme="bert", prefix=prefix, num_heads=12, backend=backend)
        output, weight = parity.in_dtype(layer, dtype)(inputs, inputs, inputs, lengths, return_weights=True)
        return output, weight  # (B, T, D), (B, H, T, T)

    valid = np.arange(X.shape[1]) < lengths[:, None]  # (B, T): the queries that are no padding
    everything = zip(results(backend, dtype), theirs, results("numpy", "float64"), results("numpy", dtype), strict=True)
    for ours, own, oracle, base in everything:
        rows = (lambda A: A[valid]) if ours.ndim == 3 else (lambda A: A.swapaxes(1, 2)[valid])
        agree(dtype, rows(ours), rows(oracle), rows(base))
        agree(dtype, rows(own), rows(oracle), rows(base))


# 2. Models with random weights, as `transformers` writes them

# Class, its configuration, an attention module in it (the one with number 1 of two), and whether it is causal.
SMALL = {"vocab_size": 37, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24, "intermediate_size": 29}
IMAGES = {"image_size": 16, "patch_size": 8}
MODELS = {
    "bert": ("BertModel", SMALL, "encoder.layer.1.attention", False),
    "roberta": ("RobertaModel", SMALL, "encoder.layer.1.attention", False),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": 37, "dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 29},
        "transformer.layer.1.attention",
        False,
    ),
    "gpt2": ("GPT2Model", {"vocab_size": 37, "n_embd": 24, "n_head": 3, "n_layer": 2}, "h.1.attn", True),
    "opt": (
        "OPTModel",
        {"vocab_size": 37, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "ffn_dim": 29,
         "word_embed_proj_dim": 24},
        "decoder.layers.1.self_attn",
        True,
    ),
    "clip": ("CLIPVisionModel", SMALL | IMAGES, "encoder.layers.1.self_attn", False),
    "vit": ("ViTModel", SMALL | IMAGES, "layers.1.attention", False),
}  # fmt: skip


@functools.cache
def model(name):
    """A model of transformers, the weights drawn at random, biases too."""
    import torch
    import transformers

    kind, options, module, causal = MODELS[name]
    torch.manual_seed(3)
    made = getattr(transformers, kind)(getattr(transformers, kind.replace("Model", "Config"))(**options)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    return made, module, causal


def record(made, module):
    """The input (B, T, D) and output (B, T, D) of an attention module while the model runs."""
    import torch

    seen = {}

    def keep(_, given, named, result):
        seen["input"] = (given[0] if given else named["hidden_states"]).numpy()

    def keep_output(_, __, result):
        seen["output"] = result.numpy()

    part = made.get_submodule(module)
    part.register_forward_hook(keep, with_kwargs=True)
    last = ("dense", "c_proj", "out_lin", "out_proj", "o_proj")  # what W_o is called
    (output,) = (child for name, child in part.named_modules() if name.endswith(last))
    output.register_forward_hook(keep_output)
    with torch.no_grad():
        if hasattr(made.config, "image_size"):
            made(torch.randn(2, 3, 16, 16))
        else:
            made(torch.randint(2, 37, (2, 7)))
    return seen["input"], seen["output"]


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_read_and_computes_the_same(backend, tmp_path, name):
    made, module, causal = model(name)
    made.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    with readers.open_weights(path) as source:
        _, (_, prefix) = schemes.recognise(source.entries)  # the file's names, which need not be the module's
    X, theirs = record(made, module)
    layers = {backend: mha.load(path, prefix=prefix, num_heads=3, backend=backend) for backend in (backend, "numpy")}
    oracle = parity.in_dtype(layers["numpy"], "float64")(*[X.astype("float64")] * 3, causal=causal)
    base = layers["numpy"](X, X, X, causal=causal)
    agree("float32", theirs, oracle, base)
    agree("float32", layers[backend](X, X, X, causal=causal), oracle, base)


def test_a_model_in_shards_is_read_from_its_directory(tmp_path):
    made, module, _ = model("bert")
    made.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 4
    layer = mha.load(tmp_path, prefix=module)
    theirs = made.get_submodule(module)
    assert layer.config.num_heads == 3
    parts = {"q": theirs.self.query, "k": theirs.self.key, "v": theirs.self.value, "o": theirs.output.dense}
    for name, part in parts.items():
        assert np.array_equal(layer.weights[f"W_{name}.kernel"], part.weight.detach().T)
        assert np.array_equal(layer.weights[f"W_{name}.bias"], part.bias.detach())
