"""Draw the rules that hide keys, one by one and all together, and the weights of a query that sees no key."""

import os
from typing import Any, NamedTuple

import numpy as np

from mha import arrays
from mha.core.options import checks
from mha.layer import MultiHeadAttention
from mha.learn.plot.pictures import check_sample, figure_class, hatch, save

MOST = 24  # queries, and keys: each weight is written
CELL = 0.36  # inches of a cell
LEAST = 1.7  # inches of a panel, which its title needs
ACROSS = 4  # panels side by side at most
FILL = -1e6  # what the book writes over hidden scores


class MaskedWeights(NamedTuple):
    """The keys that each rule, by name, and all rules let a query see; and the weights of `mha` and of the book."""

    rules: dict[str, np.ndarray]
    seen: np.ndarray
    weights: np.ndarray
    book: np.ndarray


def masks(
    scores: Any,
    valid_lens: Any = None,
    *,
    mask: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    sample: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw which keys each rule lets a query see, which keys all of them do, and the weights that follow.

    The weights are drawn twice: as in `mha`, where a query that sees no key has weights of 0, and as in the book, which
    writes -1e6 over hidden scores, so that such a query weighs all keys equally, padding too. A frame is around the
    row of such a query.

    Args:
        scores: scores of one head, floats (B, Q, K) of any backend.
        valid_lens, mask, causal: as in a call of a layer with one head.
        window: as of a layer.
        sample: number of the sample to draw.
        path: as for `heatmaps`.

    Returns a matplotlib.figure.Figure. Raises ModuleNotFoundError, TypeError, ValueError and OSError: see `heatmaps`.
    """
    new_figure, ending = figure_class(path)
    found = compose(scores, valid_lens, mask=mask, causal=causal, window=window)
    B, Q, K = found.seen.shape
    check_sample(sample, B, "scores", (B, Q, K))
    rules = {name: seen[sample] for name, seen in found.rules.items()}
    seen, weights, book = found.seen[sample], found.weights[sample], found.book[sample]  # (Q, K) each
    across = min(ACROSS, len(rules) + 3)
    down = -(-(len(rules) + 3) // across)
    width, height = max(CELL * K, LEAST) + 0.5, CELL * Q + 0.7
    figure = new_figure(figsize=(across * width, down * height), layout="constrained")
    panels = iter(figure.subplots(down, across, squeeze=False).ravel())
    for name, sees in [*rules.items(), ("all of them", seen)]:
        _draw(next(panels), name, sees.astype(float), ~sees, seen, written=False)
    _draw(next(panels), "weights", weights, ~seen, seen)
    _draw(next(panels), "weights in the book", book, np.zeros_like(seen), seen)
    for panel in panels:
        panel.set_axis_off()
    save(figure, path, ending)
    return figure


def compose(
    scores: Any, valid_lens: Any = None, *, mask: Any = None, causal: Any = False, window: Any = None
) -> MaskedWeights:
    """Compute which keys each rule hides by itself, and all of them together, with a layer of one head."""
    scores = arrays.to_numpy(scores)
    if scores.ndim != 3 or not scores.size:
        raise ValueError(f"scores has shape {scores.shape}, expected (batch, queries, keys), at least one of each")
    if "float" not in checks.dtype_name(scores.dtype):
        raise TypeError(f"scores has dtype {scores.dtype}, expected floats")
    B, Q, K = scores.shape
    if max(Q, K) > MOST:
        raise ValueError(f"scores has {Q} queries and {K} keys, expected at most {MOST}: each weight is written")
    scores = scores.astype(np.float64)
    checks.finite("scores", scores)
    queries, keys = np.zeros((B, Q, 1)), np.zeros((B, K, 1))

    def weights(window: Any = None, **rule: Any) -> np.ndarray:
        layer = MultiHeadAttention(1, 1, window=window, dtype="float64", backend="numpy")
        return layer(queries, keys, keys, **rule, return_weights=True)[1][:, 0]  # (B, Q, K)

    given = {"valid_lens": valid_lens, "mask": mask, "causal": causal or None, "window": window}
    given = {name: value for name, value in given.items() if value is not None}
    names = {"valid_lens": "lengths", "mask": "mask", "causal": "causal", "window": f"window {window}"}
    # With equal scores, a key that is seen has a weight above 0.
    rules = {names[name]: weights(**{name: value}) > 0 for name, value in given.items()}
    seen = weights(**given) > 0
    book = arrays.masked_softmax(np.where(seen, scores, FILL))
    return MaskedWeights(rules, seen, weights(**given, score_bias=scores[:, None]), book)


def _draw(
    panel: Any, title: str, shades: np.ndarray, hides: np.ndarray, seen: np.ndarray, written: bool = True
) -> None:
    """Draw numbers from 0 to 1, (Q, K), hatch what is hidden, and frame the rows of queries that see no key."""
    from matplotlib.patches import Rectangle

    Q, K = shades.shape
    panel.imshow(np.ma.masked_where(hides, shades), cmap="Blues", vmin=0, vmax=1 if written else 2, aspect="auto")
    hatch(panel, hides)
    for q, k in zip(*np.nonzero(~hides), strict=True):
        colour = "white" if written and shades[q, k] > 0.6 else "black"
        if written:
            panel.text(k, q, f"{shades[q, k]:.2f}", ha="center", va="center", fontsize=7, color=colour)
    for q in np.flatnonzero(~seen.any(1)):
        panel.add_patch(Rectangle((-0.5, q - 0.5), K, 1, fill=False, edgecolor="tab:red", linewidth=2, clip_on=False))
    panel.set_title(title, fontsize=9)
    panel.set_xticks(range(K), [f"k{k}" for k in range(K)], fontsize=7)
    panel.set_yticks(range(Q), [f"q{q}" for q in range(Q)], fontsize=7)
    panel.tick_params(length=0)
