"""Draw a report of a whole model: the difference of each layer, relative to its bound for rounding."""

import math
import os
from typing import Any

from mha.learn.plot.pictures import figure_class, save

LEAST = 1e-3  # the smallest ratio that is shown; smaller ones have a bar of this length
MOST = 1e9
COLOURS = {"same": "tab:blue", "differs": "tab:red", "not known": "0.6", "not told": "0.6"}
BAR = 0.22  # inches
LETTER = 0.085  # inches


def ratios(report: Any, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw a bar for each layer: its ratio, on a logarithmic axis with the bound at 1.

    Args:
        report: of `mha.parity.audit`, `watch`, `audit_record` or `compare_records`.
        path: as for `heatmaps`.

    Returns a matplotlib.figure.Figure. Raises ModuleNotFoundError, TypeError, ValueError and OSError: see `heatmaps`.
    """
    new_figure, ending = figure_class(path)
    if not hasattr(report, "bars"):
        came = type(report).__name__
        raise TypeError(f"report is a {came}, expected one of mha.parity.audit, watch, audit_record or compare_records")
    bars: list[tuple[str, float | None, str]] = report.bars()  # name, ratio and verdict
    if not bars:
        raise ValueError("report has no layers, expected one that is complete: draw it when its context has ended")
    longest = max(len(name) for name, _, _ in bars)
    figure = new_figure(figsize=(5 + LETTER * longest, 1.2 + BAR * len(bars)), layout="constrained")
    panel = figure.subplots()
    for at, (_, ratio, verdict) in enumerate(bars):
        width = LEAST if ratio is None else min(max(ratio, LEAST), MOST)
        panel.barh(at, width, color=COLOURS.get(verdict, "0.85"), left=0)
        if ratio is None or not math.isfinite(ratio):
            panel.text(width, at, " infinite" if ratio else f" {verdict}", va="center", fontsize=8)
    panel.set_xscale("log")
    panel.set_xlim(LEAST / 2, 10 * max([1.0, *(min(ratio, MOST) for _, ratio, _ in bars if ratio)]))
    panel.set_yticks(range(len(bars)), [name.replace("$", r"\$") for name, _, _ in bars], fontsize=8)
    panel.invert_yaxis()
    panel.margins(y=0.01)
    panel.axvline(1, color="black", linewidth=1)
    panel.set_xlabel("error, by what rounding explains: the same up to 1")
    save(figure, path, ending)
    return figure
