"""Draw a cache that fills, token by token: the contents of its slots, and which of them each query sees."""

import os
from typing import Any, NamedTuple

import numpy as np

from mha import arrays
from mha.core.options import checks
from mha.layer import MultiHeadAttention
from mha.learn.plot.pictures import figure_class, save

MOST = 64  # tokens, and slots
CELL = 0.5, 0.3  # inches of a slot, across and down
KINDS = {"new": "#ffd166", "seen": "#8ecae6", "not seen": "#e8e8e8", "empty": "white"}


class SlotContents(NamedTuple):
    """The slots of a cache after each of T tokens: positions (T, S), seen (T, S) by its query, and lost (T,)."""

    positions: np.ndarray
    seen: np.ndarray
    lost: np.ndarray


def slots(
    attention: MultiHeadAttention, tokens: int, size: int | None = None, *, path: str | os.PathLike[str] | None = None
) -> Any:
    """Draw the slots of a layer's cache after each of so many tokens, which it decodes one by one.

    A row is a token, a column a slot. A cell says the position of the key that is in the slot by then; its colour says
    whether this token put it there, whether the token's query sees it, or whether the slot is empty. At the right is
    the key that the token has overwritten.

    Args:
        attention: an `mha.MultiHeadAttention` of any backend, with a window or without.
        tokens: how many tokens to decode.
        size: number of slots; None = as many as the window needs, which only a layer with a window knows.
        path: as for `heatmaps`.

    Returns a matplotlib.figure.Figure. Raises ModuleNotFoundError, TypeError, ValueError and OSError: see `heatmaps`;
    ValueError, too, if the cache is too small for the tokens.
    """
    new_figure, ending = figure_class(path)
    from matplotlib.patches import Patch

    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    for name, value in (("tokens", tokens), *((("size", size),) if size is not None else ())):
        if checks.size(name, value) > MOST:
            raise ValueError(f"{name} is {value}, expected at most {MOST}: each slot is drawn after each token")
    filled = fill(attention, tokens, size)
    T, S = filled.positions.shape
    figure = new_figure(figsize=(CELL[0] * S + 3.1, CELL[1] * T + 1.2), layout="constrained")
    panel = figure.subplots()
    _draw(panel, filled)
    patches = [
        Patch(facecolor=colour, edgecolor="0.6", label=kind, hatch="////" if kind == "empty" else None)
        for kind, colour in KINDS.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(KINDS), fontsize=8, frameon=False)
    save(figure, path, ending)
    return figure


def fill(attention: MultiHeadAttention, tokens: int, size: int | None = None) -> SlotContents:
    """Decode tokens of zeros one by one: with equal scores, every key that a query sees has a weight above 0."""
    config, found = attention.config, []
    inputs = [
        arrays.zeros((1, 1, width), config.dtype, backend=attention.backend)
        for width in (config.query_size, config.key_size, config.value_size)
    ]
    cache = attention.cache(1, size)
    for _ in range(tokens):
        before = arrays.to_numpy(cache.positions)[0].copy()  # (S,)
        _, weights, cache = attention(*inputs, causal=True, cache=cache, return_weights=True)  # weights (1, H, 1, S)
        positions = arrays.to_numpy(cache.positions)[0].copy()  # (S,)
        seen = (arrays.to_numpy(weights)[0, :, 0] > 0).any(0)  # (S,)
        found.append((positions, seen, before[positions != before].max(initial=-1)))
    return SlotContents(*(np.stack(part) for part in zip(*found, strict=True)))


def _draw(panel: Any, filled: SlotContents) -> None:
    """Draw a row for each token."""
    from matplotlib.patches import Rectangle

    for t, (positions, seen, lost) in enumerate(zip(*filled, strict=True)):
        for slot, position in enumerate(positions):
            kind = "empty" if position < 0 else "new" if position == t else "seen" if seen[slot] else "not seen"
            style: Any = {"facecolor": KINDS[kind], "edgecolor": "0.6", "hatch": "////" if kind == "empty" else None}
            panel.add_patch(Rectangle((slot - 0.5, t - 0.5), 1, 1, linewidth=0.8, **style))
            if position >= 0:
                panel.text(slot, t, f"k{position}", ha="center", va="center", fontsize=8)
        if lost >= 0:
            panel.text(len(positions) - 0.35, t, f"k{lost} is lost", va="center", fontsize=8, color="tab:red")
    T, S = filled.positions.shape
    panel.set_xlim(-0.5, S - 0.5)
    panel.set_ylim(T - 0.5, -0.5)
    panel.set_xticks(range(S), [f"s{slot}" for slot in range(S)], fontsize=8)
    panel.set_yticks(range(T), [f"t{t}" for t in range(T)], fontsize=8)
    panel.tick_params(length=0)
    panel.xaxis.tick_top()
    panel.set_ylabel("tokens")
    panel.set_title("slots", fontsize=10)
