"""What the book's names share on every framework: argument orders of its editions, the weights kept, heat maps."""

import inspect
import threading
from collections.abc import Sequence
from typing import Any

from mha import arrays, checks, dispatch
from mha.config import Config

LAYER = ("num_hiddens", "num_heads", "dropout")
LAYER_FIRST = ("key_size", "query_size", "value_size", *LAYER)
ADDITIVE = ("num_hiddens", "dropout")
ADDITIVE_FIRST = ("key_size", "query_size", *ADDITIVE)


def layer_config(arguments: tuple, options: dict[str, Any], bias: str = "bias") -> Config:
    """The configuration that the arguments of `d2l.MultiHeadAttention` ask for, in the order of either edition.

    `bias` is what the book calls the switch of the biases in this framework; it is off unless given.
    Raises TypeError if the arguments are of neither edition, TypeError or ValueError if one is not as in `Config`.
    """
    settings = _bind("MultiHeadAttention", (LAYER, LAYER_FIRST), {bias: False}, arguments, options)
    return Config(bias=settings.pop(bias), **settings)


def additive_options(arguments: tuple, options: dict[str, Any]) -> dict[str, Any]:
    """dropout, num_hiddens, query_size and key_size of `d2l.AdditiveAttention`, from the arguments of either edition.

    A width is None if it was not given: the first call then tells.
    Raises TypeError if the arguments are of neither edition, TypeError or ValueError if one is no such number.
    """
    settings = _bind("AdditiveAttention", (ADDITIVE, ADDITIVE_FIRST), {}, arguments, options)
    sizes = {name: settings.get(name) for name in ("query_size", "key_size")}
    return {
        "dropout": checks.probability("dropout", settings["dropout"]),
        "num_hiddens": checks.size("num_hiddens", settings["num_hiddens"]),
    } | {name: None if size is None else checks.size(name, size) for name, size in sizes.items()}


class Kept(threading.local):
    """Attributes of which every thread has its own; what is copied or pickled starts without any."""

    __slots__ = ()  # torch.compile would write to the dict of a subclass, which is not the thread's

    def __reduce__(self) -> tuple:
        return type(self), ()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} are kept after a call, and this thread has made none yet")


class KeepsWeights:
    """An attention pooling that keeps the weights of a call for the thread that made it, until its next."""

    kept: Kept

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kept = Kept()

    @classmethod
    def adopt(cls, pooling: Any) -> None:
        """Make a pooling of the class that this one extends keep its weights too; its layer has it already."""
        if not issubclass(cls, type(pooling)):
            expected = cls.__bases__[-1].__name__
            raise TypeError(f"the layer's pooling is {type(pooling).__name__}, expected {expected}, the book's")
        pooling.__class__ = cls
        pooling.kept = Kept()

    @property
    def attention_weights(self) -> Any:
        """The attention weights of this thread's last call; AttributeError if it has made none."""
        return self.kept.attention_weights

    @attention_weights.setter
    def attention_weights(self, weights: Any) -> None:
        self.kept.attention_weights = weights


def show_heatmaps(
    matrices: Any,
    xlabel: str,
    ylabel: str,
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str = "Reds",
) -> None:
    """Draw matrices, such as attention weights, as a grid of heat maps with one scale of colours.

    Args:
        matrices: an array of any backend, (rows, columns, queries, keys).
        xlabel, ylabel: names of the keys' and the queries' axis.
        titles: one for each column, or None.
        figsize: width and height of the figure in inches.
        cmap: name of a colour map of matplotlib.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
        TypeError, ValueError: if matrices is no array of four axes.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        message = f"show_heatmaps needs {error.name}: {dispatch.pip(dispatch.PLOTS)}"
        raise ModuleNotFoundError(message, name=error.name) from error
    matrices = arrays.to_numpy(matrices)
    if len(matrices.shape) != 4:
        raise ValueError(f"matrices has shape {matrices.shape}, expected (rows, columns, queries, keys)")
    lowest, highest = matrices.min(), matrices.max()
    rows, columns = matrices.shape[:2]
    figure, axes = pyplot.subplots(rows, columns, figsize=figsize, sharex=True, sharey=True, squeeze=False)
    for row in range(rows):
        for column in range(columns):
            image = axes[row, column].imshow(matrices[row, column], cmap=cmap, vmin=lowest, vmax=highest)
            if titles is not None:
                axes[row, column].set_title(titles[column])
    for column in range(columns):
        axes[-1, column].set_xlabel(xlabel)
    for row in range(rows):
        axes[row, 0].set_ylabel(ylabel)
    figure.colorbar(image, ax=axes, shrink=0.6)


def _bind(
    name: str, editions: Sequence[Sequence[str]], defaults: dict[str, Any], arguments: tuple, options: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, in the order of the one edition that they fit; no call fits both."""
    signatures = [_signature(names, defaults) for names in editions]
    for signature in signatures:
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError:
            continue
        bound.apply_defaults()
        return dict(bound.arguments)
    given = ", ".join([*map(repr, arguments), *(f"{option}={value!r}" for option, value in options.items())])
    expected = " or ".join(f"{name}{signature}" for signature in signatures)
    raise TypeError(f"got {name}({given}), expected {expected}")


def _signature(names: Sequence[str], defaults: dict[str, Any]) -> inspect.Signature:
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = [inspect.Parameter(name, either) for name in names]
    return inspect.Signature([*needed, *(inspect.Parameter(name, either, default=defaults[name]) for name in defaults)])
