"""`mha heads`: the heads of a trained model, in the terminal and as a picture; the encoder that computes them."""

import importlib
import json
import math
import os
import re
import sys

import formula
import numpy as np
import pages
import pytest
import safetensors.numpy
from commands import narrow, refused, run
from layers import agrees

import mha
from mha.learn.heads import bert

from . import tiny_bert

pytestmark = pytest.mark.backends("numpy")
TEXT = "The cat sat down."
TOKENS = ["[CLS]", "the", "cat", "sat", "down", ".", "[SEP]"]


@pytest.fixture
def model(tmp_path):
    """The path of a tiny model."""
    return str(tiny_bert.write(tmp_path))


@pytest.fixture
def sentences(monkeypatch):
    """`examples/sentences.py` as a module."""
    monkeypatch.syspath_prepend(pages.ROOT / "examples")
    yield importlib.import_module("sentences")
    del sys.modules["sentences"]


def written_out(path, numbers):
    """Each layer's attention weights (H, T, T) of one text, and the last hidden states, by formulas in float64."""
    arrays = {name: X.astype(np.float64) for name, X in safetensors.numpy.load_file(path).items()}

    def dense(name, x):
        return arrays[f"{name}.weight"] @ x + arrays[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean()) / math.sqrt(x.var() + 1e-12)
        return x * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]

    table = [arrays[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    X = np.array([norm("embeddings.LayerNorm", table[0][n] + table[1][i] + table[2][0]) for i, n in enumerate(numbers)])
    every = []
    for number in range(tiny_bert.LAYERS):
        layer = f"encoder.layer.{number}"
        attention = mha.load(path, prefix=f"{layer}.attention")
        weights = {name: W.astype(np.float64) for name, W in attention.weights.items()}
        output, found = formula.both(attention.config, weights, X[None], X[None], X[None])
        every.append(found[0])
        for i, x in enumerate(X):
            x = norm(f"{layer}.attention.output.LayerNorm", x + output[0, i])
            inner = dense(f"{layer}.intermediate.dense", x)
            inner = np.array([one * (1 + math.erf(one / math.sqrt(2))) / 2 for one in inner])
            X[i] = norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", inner))
    return every, X


def test_the_encoder_is_that_of_its_formulas(model, sentences):
    numbers = bert.tokenizer(os.path.dirname(model)).encode(TEXT).ids
    assert numbers == [tiny_bert.WORDS.index(word) for word in TOKENS]
    every, states = written_out(model, numbers)
    tokens, valid = np.array([[*numbers, 0, 0]]), np.array([[True] * 7 + [False] * 2])
    X, outputs, weights = sentences.states(bert.Encoder(model, "numpy", "float64"), tokens, valid)
    assert agrees(X[0, :7], states)
    assert len(outputs) == tiny_bert.LAYERS
    for found, expected in zip(weights, every, strict=True):
        assert agrees(found[0, :, :7, :7], expected)
        assert not found[..., 7:].any()
    mean = states.mean(0)
    assert agrees(sentences.sentence_embeddings(X, valid)[0], mean / np.linalg.norm(mean))


@pytest.mark.parametrize("number", [0, 1])
def test_heads_are_shown_as_grids(model, number):
    result = run("heads", model, "--text", TEXT, "--layer", str(number))
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Layer {number} of 0 to 1, 3 heads, 7 tokens, on numpy\n")
    assert "0 [CLS]  1 the  2 cat" in result.output
    every, _ = written_out(model, [tiny_bert.WORDS.index(word) for word in TOKENS])
    marks = "·░▒▓█" if "█ to 1.0" in result.output else ".-+#@"
    row = next(line for line in result.output.splitlines() if " cat " in line and "[CLS]" not in line)
    for head, cells in enumerate(re.findall(r"cat (\S{14})", row)):
        assert cells == "".join(2 * marks[min(int(5 * weight), 4)] for weight in every[number][head, 2]), head
    assert [f"head {head}" in result.output for head in range(4)] == [True, True, True, False]


def test_chosen_heads_are_drawn(model, tmp_path):
    picture = tmp_path / "heads.svg"
    result = run("heads", model, "--text", TEXT, "--head", "2", "--head", "0", "-o", str(picture))
    assert result.exit_code == 0, result.output
    assert re.findall(r"head \d", result.output) == ["head 2", "head 0"]
    assert result.output.endswith(f"{picture} is written\n")
    assert picture.read_bytes().startswith(b"<?xml")


def test_a_narrow_terminal(model, monkeypatch):
    narrow(monkeypatch, 20)
    result = run("heads", model, "--text", TEXT, "--head", "0")
    assert max(map(len, result.output.splitlines()[3:])) <= 20  # a column for each key
    assert "0123456" in result.output
    narrow(monkeypatch, 12)
    assert "7 tokens do not fit in 12 columns" in " ".join(run("heads", model, "--text", TEXT).output.split())


REFUSED = [
    ({"--layer": "2"}, "--layer is 2, expected 0 to 1"),
    ({"--layer": "-1"}, "--layer is -1, expected 0 to 1"),
    ({"--head": "3"}, "--head is 3, expected 0 to 2"),
    ({"--text": " "}, "--text is ' ', expected some words"),
    ({"--text": "the " * 8}, "10 tokens came, expected at most 9, the positions of the model"),
    ({"--output": "heads.gif"}, "expected a name that ends in .png or .svg"),
    ({"--output": "nowhere/heads.png"}, "--output is nowhere/heads.png, but there is no folder"),
    ({"--backend": "numpi"}, "--backend is 'numpi', expected one of numpy"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_what_is_refused(model, options, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [part for pair in ({"--text": TEXT} | options).items() for part in pair]
    refused(text, "heads", model, *arguments)


def test_files_that_are_missing_are_named(model, tmp_path):
    for name, text in {
        "vocab.txt": f"{tmp_path} has neither tokenizer.json nor vocab.txt, expected one of them with the model",
        "config.json": f"there is no file {tmp_path / 'config.json'}, expected one with the model",
        "model.safetensors": f"there is no file {model}",
    }.items():
        (tmp_path / name).unlink()
        refused(text, "heads", model, "--text", TEXT)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"model_type": "gpt2"}, "says model_type 'gpt2', expected 'bert': a BERT, such as MiniLM"),
        ({"hidden_act": "relu"}, "says hidden_act 'relu', expected 'gelu'"),
        (
            {"position_embedding_type": "relative_key"},
            "says position_embedding_type 'relative_key', expected 'absolute'",
        ),
        ({"num_hidden_layers": 3}, "encoder.layer.2.attention"),
    ],
)
def test_other_models_are_refused(tmp_path, said, text):
    refused(text, "heads", str(tiny_bert.write(tmp_path, **said)), "--text", TEXT)


def test_broken_files_are_refused(model, tmp_path):
    arrays = safetensors.numpy.load_file(model)
    del arrays["encoder.layer.1.output.dense.bias"]
    safetensors.numpy.save_file(arrays, model)
    refused("lacks encoder.layer.1.output.dense.bias", "heads", model, "--text", TEXT)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer's file"):
        bert.tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for text, problem in (("{", "is no configuration of a model"), ("[]", "is no configuration of a model"),
                          (json.dumps({"model_type": "bert"}), "lacks num_hidden_layers"),
                          (json.dumps(config | {"num_attention_heads": 5}), "5")):  # fmt: skip
        (tmp_path / "config.json").write_text(text)
        refused(problem, "heads", model, "--text", TEXT)


def test_without_tokenizers_it_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused("words become tokens by tokenizers: pip install tokenizers", "heads", model, "--text", TEXT)
