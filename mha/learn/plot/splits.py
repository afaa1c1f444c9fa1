"""Draw the split into heads beside the reshape that looks like it: which numbers land in which head."""

import os
from typing import Any

import numpy as np

from mha import arrays
from mha.learn.plot.pictures import check_sample, figure_class, save

MOST = 400  # numbers of a sample: each of them is written
CELL = 0.62, 0.42  # inches of a number, across and down
LEAST = 6.2  # inches across that the longest title needs
HEADS = ["#8ecae6", "#ffd166", "#b5d96b", "#f4978e", "#cdb4db", "#ffd6a5", "#9bf6e3", "#d9d9d9"]
RIGHT, WRONG = "X.reshape(B, T, H, d).transpose(0, 2, 1, 3).reshape(B*H, T, d)", "X.reshape(B*H, T, d)"


def splits(X: Any, num_heads: int, *, sample: int = 0, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw how features are split into heads, and how a reshape alone splits them wrongly.

    Above are the features of all heads of a sample. Then come the heads, as `mha.transpose_qkv` gives them, and the
    "heads" that one reshape gives, in the same shape. Each number says from which token t and feature f it comes, and
    has the colour of the head that it belongs to.

    Args:
        X: features of all heads, an array (B, T, H*d) of any backend, such as `attention.trace(...)["W_q"]`.
        num_heads: H.
        sample: number of the sample to draw.
        path: as for `heatmaps`.

    Returns a matplotlib.figure.Figure. Raises ModuleNotFoundError, TypeError, ValueError and OSError: see `heatmaps`.
    """
    new_figure, ending = figure_class(path)
    right = arrays.to_numpy(arrays.transpose_qkv(X, num_heads))  # (B*H, T, d)
    features = arrays.to_numpy(X)
    B, T, width = features.shape
    if not 0 < T * width <= MOST:
        raise ValueError(
            f"X has {T} tokens of {width} features, expected 1 to {MOST} numbers a sample: each is written"
        )
    check_sample(sample, B, "X", features.shape)
    own = slice(sample * num_heads, (sample + 1) * num_heads)
    origins = np.arange(T * width).reshape(1, T, width)
    parts = [
        ("X (B, T, H*d)", features[sample : sample + 1], origins),
        (f"the heads: {RIGHT}", right[own], arrays.transpose_qkv(origins, num_heads)),
        (f"no heads: {WRONG}", features.reshape(right.shape)[own], origins.reshape(right[own].shape)),
    ]
    size = max(CELL[0] * (width + num_heads) + 0.9, LEAST), 3 * (CELL[1] * T + 0.85)
    figure = new_figure(figsize=size, layout="constrained")
    for (title, numbers, places), room in zip(parts, figure.subfigures(3), strict=True):
        room.suptitle(title, x=0.01, ha="left", fontsize=9, family="monospace")
        panels = room.subplots(1, len(numbers), squeeze=False)[0]
        for head, panel in enumerate(panels):
            _draw(panel, numbers[head], places[head], width, num_heads)
            panel.set_title("" if numbers.shape == (1, T, width) else f"head {head}", fontsize=9)
    save(figure, path, ending)
    return figure


def _draw(panel: Any, numbers: np.ndarray, places: np.ndarray, width: int, num_heads: int) -> None:
    """Write numbers (rows, columns) into cells, each with its token and feature, from its place in a sample of X."""
    from matplotlib.colors import to_rgb

    tokens, features = np.divmod(places, width)  # (rows, columns) both
    heads = features * num_heads // width
    panel.imshow(np.array([to_rgb(colour) for colour in HEADS])[heads % len(HEADS)], aspect="auto")
    for row, column in np.ndindex(numbers.shape):
        text = f"{float(numbers[row, column]):.3g}\n"
        panel.text(column, row, text, ha="center", va="center", fontsize=8, linespacing=1.0)
        origin = f"\nt{tokens[row, column]} f{features[row, column]}"
        panel.text(column, row, origin, ha="center", va="center", fontsize=6, linespacing=1.6)
    panel.set_xticks(np.arange(1, numbers.shape[1]) - 0.5, [])
    panel.set_yticks(np.arange(len(numbers)), [f"t{row}" for row in range(len(numbers))], fontsize=7)
    panel.tick_params(length=0)
    panel.grid(True, axis="x", color="white", linewidth=1)
    panel.hlines(np.arange(1, len(numbers)) - 0.5, -0.5, numbers.shape[1] - 0.5, color="white", linewidth=1)
