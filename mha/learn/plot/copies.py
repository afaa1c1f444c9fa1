"""Draw why one head must average: a task that copies several tokens, and what one head and several reach."""

import os
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.learn.plot import copying
from mha.learn.plot.pictures import figure_class, save

MOST = 6  # things: each has its fit
SHARES = np.linspace(0, 1, 41)  # of one head's weight on the first thing
LINES = ["tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown"]


def copies(things: int = 2, *, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw what heads reach in a task that copies several tokens at once, all numbers computed by layers on NumPy.

    A head has one row of weights for a query, so it reads one average of the tokens. Above are the numbers of a sample:
    the wanted ones, and those of the best layers, with one head that looks at all things equally, and with more. Below
    are relative squared errors: of one head, by the share of its weight on the first thing, where one thing gains what
    the others lose; of a fit by gradients, step by step; and of the best constructed layer and the end of the fit,
    beside the least error that so many heads can have, 1 - heads / things, by singular values.

    Args:
        things: how many tokens to copy, 2 to 6.
        path: as for `heatmaps`.

    Returns a matplotlib.figure.Figure. Raises ModuleNotFoundError, TypeError, ValueError and OSError: see `heatmaps`.
    """
    new_figure, ending = figure_class(path)
    if not 2 <= checks.size("things", things) <= MOST:
        raise ValueError(f"things is {things}, expected 2 to {MOST}")
    figure = new_figure(figsize=(11, 3.9 + 0.3 * things), layout="constrained")
    above, below = figure.subfigures(2, height_ratios=(0.9 + 0.3 * things, 3))
    of = copying.task(things)
    heads = range(1, things + 1)
    best = [copying.best_layer(of, copying.shares_of(things, H))(*of[:3]) for H in heads]
    fits = [copying.fit(of, H) for H in heads]
    _numbers(above.subplots(), of, best)
    one, fit, ends = below.subplots(1, 3)
    _shares(one, of, things)
    for H, found in zip(heads, fits, strict=True):
        fit.plot(found, color=LINES[H - 1], label=_heads(H))
        fit.axhline(copying.least(of, H), color=LINES[H - 1], linestyle=":", linewidth=1)
    fit.set_ylim(-0.04, 1.3)
    fit.set_xlabel("step of the fit", fontsize=8)
    fit.set_title("fitted by gradients; dotted: the least", fontsize=9)
    fit.legend(fontsize=8, ncols=3)
    _ends(ends, of, best, fits)
    for panel in (one, fit, ends):
        panel.tick_params(labelsize=8)
    save(figure, path, ending)
    return figure


def _numbers(panel: Any, of: copying.Task, best: list[np.ndarray]) -> None:
    """Draw the numbers of the first sample: the wanted ones, and those of one head, two heads and so on."""
    rows = np.array([of.wanted[0, 0], *(output[0, 0] for output in best)])  # (things + 1, things * n)
    most = np.abs(rows).max()
    panel.imshow(rows, cmap="RdBu", vmin=-2 * most, vmax=2 * most, aspect="auto")
    for row, column in np.ndindex(rows.shape):
        panel.text(column, row, f"{rows[row, column]:z.2f}", ha="center", va="center", fontsize=8)
    names = ["wanted", *(_heads(H) for H in range(1, len(best) + 1))]
    panel.set_yticks(range(len(rows)), names, fontsize=8)
    panel.set_xticks(np.arange(len(best)) * copying.WIDTH + 0.5, [f"thing {at}" for at in range(len(best))], fontsize=8)
    panel.tick_params(length=0)
    for at in range(1, len(best)):
        panel.axvline(at * copying.WIDTH - 0.5, color="white", linewidth=4)
    panel.set_title("a sample: what is wanted, and what the best layers give", fontsize=9)


def _shares(panel: Any, of: copying.Task, things: int) -> None:
    """Draw the errors of the best layer with one head, for each thing and for all, by its weight on the first thing."""
    layers = (copying.best_layer(of, copying.one_head(things, share)) for share in SHARES)
    found = np.array([copying.errors(of, layer(*of[:3])) for layer in layers])  # (shares, things)
    panel.plot(SHARES, found[:, 0], color="0.5", linestyle="--", label="thing 0")
    panel.plot(SHARES, found[:, 1], color="0.5", linestyle=":", label="thing 1" if things == 2 else "any other thing")
    panel.plot(SHARES, found.mean(1), color=LINES[0], label="all")
    panel.set_ylim(-0.04, 1.04)
    panel.set_xlabel("weight on thing 0", fontsize=8)
    panel.set_ylabel("relative squared error", fontsize=8)
    panel.set_title("one head, the best W_o for each weight", fontsize=9)
    panel.legend(fontsize=8)


def _ends(panel: Any, of: copying.Task, best: list[np.ndarray], fits: list[list[float]]) -> None:
    """Draw a bar for the least error of each number of heads."""
    kinds = {
        "the least": [copying.least(of, H) for H in range(1, len(best) + 1)],
        "constructed": [float(copying.errors(of, output).mean()) for output in best],
        "fitted": [found[-1] for found in fits],
    }
    for at, (name, found) in enumerate(kinds.items()):
        places = np.arange(len(best)) + (at - 1) * 0.28
        panel.bar(places, found, width=0.26, label=name, color=("0.8", "#8ecae6", "#ffd166")[at])
        for place, value in zip(places, found, strict=True):
            panel.text(place, value + 0.01, f"{value:.3f}", ha="center", va="bottom", fontsize=7, rotation=90)
    panel.set_xticks(range(len(best)), [_heads(H) for H in range(1, len(best) + 1)], fontsize=8)
    panel.set_ylim(0, 1.3)
    panel.set_title("relative squared error", fontsize=9)
    panel.legend(fontsize=8, ncols=3)


def _heads(number: int) -> str:
    """A number of heads, in words."""
    return "1 head" if number == 1 else f"{number} heads"
