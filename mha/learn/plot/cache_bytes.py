"""Draw how many bytes a cache takes, a bar for each number of heads of keys."""

import math
import os
from typing import Any

from mha.core.options import checks
from mha.learn.plot.pictures import figure_class, save

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def cache_bytes(
    num_heads: int,
    head_dim: int,
    size: int,
    *,
    batch_size: int = 1,
    layers: int = 1,
    dtype: str = "float32",
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw how many bytes the keys and values of a cache take, for each number G of heads of keys.

    G = H is multi-head attention, G = 1 multi-query attention, and the others are grouped-query attention. The largest
    bar is layers * B * S * H * 2 * d numbers; the others are G / H of it. Positions, 4 * B * S bytes a layer, are not
    counted.

    Args:
        num_heads: number H of heads of queries.
        head_dim: width d of a head of keys, and of one of values.
        size: number S of slots of each sample: the tokens that are kept.
        batch_size, layers: how many samples B, and how many layers of such a model.
        dtype: "float16", "bfloat16", "float32" or "float64".
        path: as for `heatmaps`.

    Returns a matplotlib.figure.Figure. Raises ModuleNotFoundError, TypeError, ValueError and OSError: see `heatmaps`.
    """
    new_figure, ending = figure_class(path)
    bars = by_groups(num_heads, head_dim, size, batch_size=batch_size, layers=layers, dtype=dtype)
    figure = new_figure(figsize=(6.5, 0.9 + 0.3 * len(bars)), layout="constrained")
    panel = figure.subplots()
    for at, (G, count) in enumerate(bars.items()):
        panel.barh(at, count, color="tab:blue" if G in (1, num_heads) else "#8ecae6")
        panel.text(count, at, f" {byte_text(count)}", va="center", fontsize=8)
    names = [f"{name_of(G, num_heads)}, G = {G}" for G in bars]
    panel.set_yticks(range(len(bars)), names, fontsize=8)
    panel.invert_yaxis()
    panel.set_xticks([])
    panel.set_xlim(0, 1.18 * max(bars.values()))
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    panel.set_title(
        f"H = {num_heads}, d = {head_dim}, S = {size:,}, B = {batch_size}, layers: {layers}, {dtype}", fontsize=9
    )
    save(figure, path, ending)
    return figure


def by_groups(
    num_heads: int, head_dim: int, size: int, *, batch_size: int = 1, layers: int = 1, dtype: str = "float32"
) -> dict[int, int]:
    """The bytes of keys and values by the number of heads of keys: each divisor of num_heads, the largest first."""
    given = {"num_heads": num_heads, "head_dim": head_dim, "size": size, "batch_size": batch_size, "layers": layers}
    H, d, S, B, L = (checks.size(name, value) for name, value in given.items())
    number = BYTES[checks.choice("dtype", dtype, tuple(BYTES))]
    return {G: L * B * G * S * 2 * d * number for G in range(H, 0, -1) if H % G == 0}


def name_of(G: int, H: int) -> str:
    """The usual name of a layer with G heads of keys for H heads of queries."""
    return "MHA" if G == H else "MQA" if G == 1 else "GQA"


def byte_text(count: float) -> str:
    """A number of bytes as text, in the largest unit that fits, with three digits."""
    power = 0
    while count >= 1024 and power < len(UNITS) - 1:
        count, power = count / 1024, power + 1
    scale = 100 if count < 10 else 10 if count < 100 else 1
    return f"{math.floor(count * scale + 0.5) / scale:g} {UNITS[power]}"
