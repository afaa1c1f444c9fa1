"""A trained sentence encoder, such as all-MiniLM-L6-v2: its attention is mha's on any backend, the rest is NumPy.

Letters: B sentences, T tokens of the longest sentence, D width.

Source: Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding (2018).
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import mha
from mha import parity
from mha.core.options.names import BackendName, FloatName

SIZES = ("num_hidden_layers", "num_attention_heads", "max_position_embeddings", "layer_norm_eps")
KIND = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}  # in config.json


class Encoder:
    """The layers of a BERT model, from token numbers to the last hidden states.

    Args:
        path: the model's model.safetensors; its folder must also hold config.json.
        backend: of the attention layers; None = MHA_BACKEND, else "numpy".
        dtype: of everything.

    Attributes:
        attentions: the attention layers, a list of mha.MultiHeadAttention; you may replace them.
        arrays: all arrays of the file by name, kernels (out, in).

    Raises:
        FileNotFoundError: if one of the two files is missing.
        ValueError: if they are not those of a BERT model; the message names the file, and says what was found.
    """

    def __init__(
        self, path: str | os.PathLike[str], backend: BackendName | None = None, dtype: FloatName = "float32"
    ) -> None:
        config = _config(Path(path).parent / "config.json")
        self.epsilon, self.longest = config["layer_norm_eps"], config["max_position_embeddings"]
        self.layers = [f"encoder.layer.{number}" for number in range(config["num_hidden_layers"])]
        options: Any = {"scheme": "bert", "num_heads": config["num_attention_heads"], "backend": backend}
        layers = (mha.load(path, prefix=f"{layer}.attention", **options) for layer in self.layers)
        self.attentions = [parity.in_dtype(attention, dtype) for attention in layers]
        self.arrays = {name: X.astype(dtype, copy=False) for name, X in safetensors.numpy.load_file(path).items()}
        norms = ("attention.output.LayerNorm", "output.LayerNorm")
        dense = ("intermediate.dense", "output.dense")
        parts = [
            "embeddings.LayerNorm",
            *(f"{layer}.{part}" for layer in self.layers for part in norms),
            *(f"{layer}.{part}" for layer in self.layers for part in dense),
        ]
        needed = [f"{part}.{kind}" for part in parts for kind in ("weight", "bias")]
        needed += [f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")]
        if lacking := [name for name in needed if name not in self.arrays]:
            more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
            raise ValueError(f"{path} lacks {', '.join(lacking[:3])}{more}: it is no encoder of a BERT's names")

    def embedded(self, tokens: np.ndarray) -> np.ndarray:
        """Return the input of the first layer (B, T, D), for token numbers (B, T)."""
        if tokens.shape[1] > self.longest:
            raise ValueError(
                f"{tokens.shape[1]} tokens came, expected at most {self.longest}, the positions of the model"
            )
        X = self.arrays["embeddings.word_embeddings.weight"][tokens]  # (B, T, D)
        X = X + self.arrays["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        X = X + self.arrays["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", X)

    def after(self, number: int, X: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return the output of a layer (B, T, D), from its input and its attention's output, both (B, T, D)."""
        layer = self.layers[number]
        X = self._norm(f"{layer}.attention.output.LayerNorm", X + output)
        inner = gelu(self._dense(f"{layer}.intermediate.dense", X))  # (B, T, 4 D)
        return self._norm(f"{layer}.output.LayerNorm", X + self._dense(f"{layer}.output.dense", inner))

    def _dense(self, name: str, X: np.ndarray) -> np.ndarray:
        return X @ self.arrays[f"{name}.weight"].T + self.arrays[f"{name}.bias"]

    def _norm(self, name: str, X: np.ndarray) -> np.ndarray:
        X = X - X.mean(-1, keepdims=True)
        X = X / np.sqrt((X**2).mean(-1, keepdims=True) + self.epsilon)
        return X * self.arrays[f"{name}.weight"] + self.arrays[f"{name}.bias"]


def tokenizer(folder: str | os.PathLike[str]) -> Any:
    """Load the tokenizer of the model in a folder, a tokenizers.Tokenizer that neither pads nor cuts.

    Raises FileNotFoundError if neither tokenizer.json nor vocab.txt is there, ModuleNotFoundError without the package
    `tokenizers`, and ValueError if the file is broken.
    """
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        message = f"words become tokens by {error.name}: pip install tokenizers"
        raise ModuleNotFoundError(message, name=error.name) from error
    whole, words = Path(folder) / "tokenizer.json", Path(folder) / "vocab.txt"
    found = next((path for path in (whole, words) if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"{folder} has neither tokenizer.json nor vocab.txt, expected one of them with the model"
        )
    try:
        made = tokenizers.Tokenizer.from_file(str(whole)) if found == whole else _of_words(tokenizers, words)
    except Exception as error:  # the package raises nothing more special
        raise ValueError(f"{found} is no tokenizer's file: {error}") from error
    made.no_padding()
    made.no_truncation()
    return made


def gelu(X: np.ndarray) -> np.ndarray:
    """Return X times the normal distribution function of X, in X's dtype."""
    erf = np.vectorize(math.erf, otypes=[float])  # NumPy has none
    return (X * (1 + erf(X.astype(np.float64) / math.sqrt(2))) / 2).astype(X.dtype)


def _config(path: Path) -> dict[str, Any]:
    """Read config.json; ValueError if its model is computed in another way."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, expected one with the model: it has the number of heads")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config["model_type"]  # which every model's configuration has
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no configuration of a model: {error!r}") from error
    for name, expected in KIND.items():
        if (said := config.get(name, expected)) != expected:
            raise ValueError(f"{path} says {name} {said!r}, expected {expected!r}: a BERT, such as MiniLM")
    if lacking := [name for name in SIZES if name not in config]:
        raise ValueError(f"{path} lacks {', '.join(lacking)}")
    return config


def _of_words(tokenizers: Any, path: Path) -> Any:
    """Make a tokenizer from a list of words; tokenizer_config.json may say that it keeps capital letters."""
    beside = path.with_name("tokenizer_config.json")
    config = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    return tokenizers.BertWordPieceTokenizer(str(path), lowercase=config.get("do_lower_case", True))
