"""The helpers of the book's next edition that are the same on every framework."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mha.arrays import to_numpy
from mha.core import dispatch
from mha.learn.d2l.common import pyplot

FORMATS = ("-", "m--", "g-.", "r:")  # of the first lines of a plot


def __getattr__(name: str) -> Any:
    if name == "plt":  # matplotlib is imported on use
        return pyplot("plt")
    raise AttributeError(f"module 'mha.d2l.next' has no attribute {name!r}")


def add_to_class(owner: type) -> Callable[[Callable], Callable]:
    """Make the function that is decorated a method of a class, under its own name."""

    def add(function: Callable) -> Callable:
        setattr(owner, function.__name__, function)
        return function

    return add


def plot(
    X: Any,
    Y: Any = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: Sequence[str] = (),
    xlim: tuple[float, float] | None = None,
    ylim: tuple[float, float] | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    fmts: Sequence[str] = FORMATS,
    figsize: tuple[float, float] = (3.5, 2.5),
    axes: Any = None,
) -> None:
    """Draw lines through points.

    Args:
        X: the places of the points, an array or list of numbers, or one of them for each line.
        Y: their heights, likewise; None = X are the heights, at the places 0, 1, ...
        xlabel, ylabel: names of the axes.
        legend: a name for each line.
        xlim, ylim: the first and the last number of an axis.
        xscale, yscale: "linear" or "log".
        fmts: the format of each line, as matplotlib has it.
        figsize: width and height of the figure in inches.
        axes: those of matplotlib to draw on, which lose what is on them; None = those of a new figure.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
        ValueError: if there are more lines than formats, or places for another number of lines.
    """
    heights = lines(X if Y is None else Y)
    places = [np.arange(len(line)) for line in heights] if Y is None else lines(X)
    places = places * len(heights) if len(places) == 1 else places
    if len(places) != len(heights):
        raise ValueError(f"X has {len(places)} lines, expected 1 or as many as Y, {len(heights)}")
    if len(heights) > len(fmts):
        raise ValueError(f"fmts has {len(fmts)} formats, expected one for each of {len(heights)} lines; give fmts=")
    axes = pyplot("plot").figure(figsize=figsize).gca() if axes is None else axes
    axes.cla()
    for place, height, form in zip(places, heights, fmts, strict=False):
        axes.plot(place, height, form)
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=xlim, ylim=ylim, xscale=xscale, yscale=yscale)
    if legend:
        axes.legend(legend)
    axes.grid()


def lines(points: Any) -> list[np.ndarray]:
    """Numbers of one or of several lines as NumPy arrays, one for each."""
    return [numbers(one) for one in points] if any(np.ndim(one) for one in points) else [numbers(points)]


def numbers(points: Any) -> np.ndarray:
    """An array of any framework, or a list of numbers, as a NumPy array."""
    return to_numpy(points) if dispatch.backend_of(points) else np.array([np.asarray(one) for one in points])
