"""Draw attention weights: a heat map for each head, all with one scale of colours."""

import io
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.options import checks
from mha.weights import files

ENDINGS = (".png", ".svg")
CELL = 0.125  # inches of a key if all keys have names, enough for the smallest letters
SIDES = 1.6, 11.25  # the shortest and the longest side of a heat map, in inches
LETTERS = 6.0, 9.0  # the smallest and the largest letters of names, in points
ACROSS = 4  # heat maps side by side at most


def heatmaps(
    weights: Any,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    sample: int = 0,
    heads: Sequence[int] | None = None,
    num_heads: int | None = None,
    hidden: Any = None,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw the attention weights, a heat map for each head; colours go from 0 to the largest weight in the picture.

    A cell of a hidden key is hatched and has no colour; if a query sees no key, this is its whole row. The book's
    `show_heatmaps` gives a hidden key the colour of a weight of 0.

    Args:
        weights: attention weights of one call, an array of any backend: (B, H, Q, K), as `return_weights` returns them,
            or (H, Q, K), or (B*H, Q, K) with `num_heads`, as in `trace` and in the book.
        queries, keys: names of the queries and keys, such as tokens: Q and K strings; None = numbers.
        sample: number of the sample to draw.
        heads: numbers of the heads to draw, in this order; None = all.
        num_heads: H, if weights have three axes and the first is B*H; None = the size of the axis of heads.
        hidden: booleans, True = the query does not see the key, (Q, K), (H, Q, K), or of the shape of weights; None =
            hidden where the weight is exactly 0.
        title: title of the picture.
        path: file to write, its name ends in .png or .svg; None = none.

    Returns:
        A matplotlib.figure.Figure, as large as its contents need. It is not registered with pyplot, so you need not
        close it.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed; the message says how to install it.
        TypeError, ValueError: if an argument is not as above; the message says what was expected.
        OSError: if the file cannot be written.
    """
    new_figure, ending = figure_class(path)
    found, hides = _of_sample(weights, hidden, sample, num_heads)  # (H, Q, K) both
    H, Q, K = found.shape
    shown = _heads(heads, H)
    rows, columns = _names("queries", queries, Q), _names("keys", keys, K)

    across = min(len(shown), ACROSS if len(shown) > ACROSS + 2 else 3)
    down = math.ceil(len(shown) / across)
    width, height = (min(max(CELL * length, SIDES[0]), SIDES[1]) for length in (K, Q))
    letters = max(map(len, [*rows, *columns])) * 0.08  # inches that the names take beside the outer heat maps
    size = across * (width + 0.25) + letters + 1.4, down * (height + 0.45) + letters + 0.9
    large = 9 + width  # letters of titles, in points
    figure = new_figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    drawn = np.ma.masked_where(hides, found)[shown]
    largest = float(drawn.max()) if drawn.count() and drawn.max() > 0 else 1.0
    for place, (head, panel) in enumerate(zip(shown, panels, strict=False)):
        cells = np.ma.masked_where(hides[head], found[head])
        image = panel.imshow(cells, cmap="Blues", vmin=0, vmax=largest, aspect="auto", interpolation="nearest")
        hatch(panel, hides[head])
        panel.set_title(f"head {head}", fontsize=large - 1)
        _ticks(panel.yaxis, rows if place % across == 0 else [], Q, height)
        _ticks(panel.xaxis, columns if place + across >= len(shown) else [], K, width)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    figure.supxlabel("keys", fontsize=large)
    figure.supylabel("queries", fontsize=large)
    figure.colorbar(image, ax=panels, label="attention weight", aspect=40, pad=0.01, shrink=min(1.0, 6 / size[1]))
    if title is not None:
        figure.suptitle(title, fontsize=large + 2, parse_math=False)
    save(figure, path, ending)
    return figure


def figure_class(path: str | os.PathLike[str] | None) -> tuple[Any, str | None]:
    """Import matplotlib's class of pictures; return it with the format of the file to write, None = none.

    Raises ModuleNotFoundError, which says how to install it, if matplotlib is missing, or as `ending_of` does.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        message = f"mha.plot needs {error.name}: {dispatch.pip_for(dispatch.PLOTS)}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return Figure, None if path is None else ending_of(path)


def save(figure: Any, path: str | os.PathLike[str] | None, ending: str | None) -> None:
    """Write a picture to a file, in the format of its ending; None = to no file."""
    if path is None:
        return
    picture = io.BytesIO()
    figure.savefig(picture, format=ending, dpi=120)
    files.write(path, picture.getvalue())


def _of_sample(weights: Any, hidden: Any, sample: Any, num_heads: Any) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a sample and which cells are hidden, both (H, Q, K), float64 and booleans."""
    found = arrays.to_numpy(weights)
    shape = found.shape
    if found.ndim not in (3, 4):
        raise ValueError(f"weights has shape {shape}, expected (batch, heads, queries, keys) or (heads, queries, keys)")
    if not found.size:
        raise ValueError(f"weights has shape {shape}, expected at least one query and one key")
    if "float" not in checks.dtype_name(found.dtype):
        raise TypeError(f"weights has dtype {found.dtype}, expected floats, as return_weights=True returns them")
    found = found.astype(np.float64)
    if not np.isfinite(found).all() or found.min() < 0:
        raise ValueError("weights holds NaN, infinity or numbers below 0, expected attention weights, at least 0")
    number = shape[-3] if num_heads is None else checks.size("num_heads", num_heads)
    if shape[-3] % number or (len(shape) == 4 and shape[1] != number):
        raise ValueError(f"num_heads is {number}, but weights has shape {shape}; expected {shape[-3]} or leave it out")
    four = -1, number, *shape[-2:]
    if hidden is None:
        hides = found == 0
    else:
        hides = checks.array_of("hidden", hidden) if isinstance(hidden, (list, tuple)) else arrays.to_numpy(hidden)
        if hides.dtype != bool:
            raise TypeError(f"hidden has dtype {hides.dtype}, expected bool: True where the key is hidden")
        if hides.shape not in (shape[-2:], (number, *shape[-2:]), shape):
            raise ValueError(
                f"hidden has shape {hides.shape}, expected {shape[-2:]}, {(number, *shape[-2:])} or {shape}"
            )
    found = found.reshape(four)  # (B, H, Q, K)
    hides = np.broadcast_to(hides.reshape(four) if hides.shape == shape else hides, found.shape)  # (B, H, Q, K)
    check_sample(sample, len(found), "weights", shape)
    return found[sample], hides[sample]


def _heads(heads: Any, number: int) -> list[int]:
    """Check the heads to draw, and return them."""
    if heads is None:
        return list(range(number))
    if isinstance(heads, (str, bytes)) or not isinstance(heads, (Sequence, np.ndarray)) or not len(heads):
        raise TypeError(f"heads is {checks.brief(heads)}, expected a list of ints, such as [0, 2], or None for all")
    shown = [checks.whole(f"heads[{place}]", head) for place, head in enumerate(heads)]
    for place, head in enumerate(shown):
        if not 0 <= head < number:
            raise ValueError(f"heads[{place}] is {head}, expected 0 to {number - 1}")
    return shown


def _names(argument: str, names: Any, number: int) -> list[str]:
    """The names of queries or keys, else their numbers."""
    if names is None:
        return list(map(str, range(number)))
    if isinstance(names, (str, bytes)) or not isinstance(names, (Sequence, np.ndarray)):
        raise TypeError(f"{argument} is {checks.brief(names)}, expected a list of {number} strings, or None")
    if len(names) != number:
        raise ValueError(f"{argument} holds {len(names)} names, expected {number}, one for each of the {argument}")
    # A dollar sign begins a formula in matplotlib.
    return [str(name).replace("$", r"\$") for name in names]


def check_sample(sample: Any, B: int, name: str, shape: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError if there is no such sample among B, those of the array of this name and shape."""
    if not 0 <= checks.whole("sample", sample) < B:
        raise ValueError(f"sample is {sample}, expected 0 to {B - 1}, since {name} has shape {shape}")


def ending_of(path: str | os.PathLike[str]) -> str:
    """The format of a file, from the end of its name."""
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in ENDINGS:
        raise ValueError(f"path is {os.fspath(path)!r}, expected a name that ends in {' or '.join(ENDINGS)}")
    return ending[1:]


def _ticks(axis: Any, names: Sequence[str], number: int, side: float) -> None:
    """Name the rows or columns of a heat map, only every second or third one if not all fit; side: length in inches.

    No names = no ticks.
    """
    step = max(1, math.ceil(number * CELL / side - 1e-9))
    places = list(range(0, number, step)) if names else []
    points = 72 * 0.75 * step * side / number
    turned = {"rotation": 90} if axis.axis_name == "x" and any(len(name) > 2 for name in names) else {}
    axis.set_ticks(
        places, [names[place] for place in places], fontsize=min(max(points, LETTERS[0]), LETTERS[1]), **turned
    )
    axis.set_tick_params(length=0)


def hatch(panel: Any, hidden: np.ndarray) -> None:
    """Hatch the hidden cells (Q, K); neighbours in a row become one rectangle."""
    from matplotlib.collections import PolyCollection

    corners = []
    for row, line in enumerate(hidden):
        starts, ends = np.flatnonzero(np.diff(np.pad(line.astype(int), 1))).reshape(-1, 2).T - 0.5  # (runs,) each
        top, bottom = row - 0.5, row + 0.5
        corners += [((a, top), (b, top), (b, bottom), (a, bottom)) for a, b in zip(starts, ends, strict=True)]
    style: Any = {"facecolor": "0.94", "edgecolor": "0.65", "hatch": "////", "linewidth": 0, "antialiased": False}
    panel.add_collection(PolyCollection(corners, **style), autolim=False)
