"""The part of the book's names that is the same on every framework; the files beside have the rest.

Only names, argument orders and what is kept after a call are the book's; what is computed is the backend's.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens, d width of a head.

Source: Dive into Deep Learning, sections "Attention Scoring Functions" and "Multi-Head Attention".
"""

import inspect
import threading
from collections.abc import Sequence
from typing import Any

from mha import arrays
from mha.core import dispatch
from mha.core.call import Call
from mha.core.call.of_parts import pooling_lengths
from mha.core.options import checks
from mha.core.options.config import Config

LAYER = ("num_hiddens", "num_heads", "dropout")
LAYER_FIRST = ("key_size", "query_size", "value_size", *LAYER)
ADDITIVE = ("num_hiddens", "dropout")
ADDITIVE_FIRST = ("key_size", "query_size", *ADDITIVE)


def layer_config(arguments: tuple, options: dict[str, Any], bias: str = "bias") -> Config:
    """The configuration for the arguments of `d2l.MultiHeadAttention`, in the order of either edition.

    bias: the book's name for the switch of the biases in this framework; it is off unless given.
    Raises TypeError if the arguments fit neither edition, TypeError or ValueError if one is not as in `Config`.
    """
    settings = _bind("MultiHeadAttention", (LAYER, LAYER_FIRST), {bias: False}, arguments, options)
    return Config(bias=settings.pop(bias), **settings)


def additive_options(arguments: tuple, options: dict[str, Any]) -> dict[str, Any]:
    """The options of `d2l.AdditiveAttention`, from its arguments in the order of either edition.

    They are dropout, num_hiddens, query_size and key_size; a width that is not given is None: the first call shows it.
    Raises TypeError if the arguments fit neither edition, TypeError or ValueError if one is no such number.
    """
    settings = _bind("AdditiveAttention", (ADDITIVE, ADDITIVE_FIRST), {}, arguments, options)
    sizes = {name: settings.get(name) for name in ("query_size", "key_size")}
    return {
        "dropout": checks.probability("dropout", settings["dropout"]),
        "num_hiddens": checks.size("num_hiddens", settings["num_hiddens"]),
    } | {name: None if size is None else checks.size(name, size) for name, size in sizes.items()}


class PerThread(threading.local):
    """Attributes of which every thread has its own; a copied or pickled object starts without any."""

    __slots__ = ()  # torch.compile would write to the dict of a subclass, which is not the thread's

    def __reduce__(self) -> tuple:
        return type(self), ()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} are kept after a call, but this thread has made no call yet")


class KeepsWeights:
    """An attention pooling that keeps the weights of a thread's call until the thread makes its next call."""

    kept: PerThread

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kept = PerThread()

    def weigh(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """Pool as the class that this one extends, and keep the weights."""
        pooled, self.attention_weights = super().weigh(*arguments, **options)  # type: ignore[misc]
        return pooled, self.attention_weights

    @property
    def attention_weights(self) -> Any:
        """The attention weights of this thread's last call; AttributeError if it has made none."""
        return self.kept.attention_weights

    @attention_weights.setter
    def attention_weights(self, weights: Any) -> None:
        self.kept.attention_weights = weights


class DotProduct:
    """An attention pooling, made as `(dropout)`; queries and keys have the same width.

    Called, as every pooling here, as `(queries, keys, values, valid_lens=None, training=None)`, it pools values
    (B, K, dv) for queries (B, Q, query_size) over keys (B, K, key_size). valid_lens are integers (B,) or (B, Q), and
    None hides nothing; training says whether to drop weights, where the framework does not say it otherwise. It returns
    the pooled values (B, Q, dv), and keeps `attention_weights` (B, Q, K); JAX, where nothing is kept after a call,
    returns both. It raises TypeError or ValueError if a shape or dtype does not fit.
    """

    query_size = key_size = weights_dtype = None
    same_width = True

    def __init__(self, dropout: Any) -> None:
        super().__init__(checks.probability("dropout", dropout))  # type: ignore[call-arg]


class Additive:
    """An attention pooling, made as `(num_hiddens, dropout)` or `(key_size, query_size, num_hiddens, dropout)`."""

    same_width = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(**additive_options(arguments, options))


class Layer:
    """The book's layer, made in the argument order of either edition.

    `(num_hiddens, num_heads, dropout, bias=False)`, where every input has width D = num_hiddens, or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.
    """

    bias_name = "bias"  # of the switch of the biases, in this framework's section of the book
    config: Config

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(layer_config(arguments, options, self.bias_name))  # type: ignore[call-arg]

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return self.config.num_heads

    def transpose_qkv(self, X: Any) -> Any:
        """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
        return arrays.transpose_qkv(X, self.num_heads)

    def transpose_output(self, X: Any) -> Any:
        """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
        return arrays.transpose_output(X, self.num_heads)


def visible(own: Any, visible_keys: Any, pooling: Any, queries: Any, keys: Any, values: Any, valid_lens: Any) -> Any:
    """The visible keys (B, 1 or Q, K) of a call of an attention pooling, None if all are; refuses what does not fit.

    own, visible_keys: the backend's module `arrays`, and its function of that name.
    """
    found = visible_keys(queries, keys, Call(pooling_lengths(own, pooling, queries, keys, values, valid_lens)))
    return None if found is None else found[:, 0]  # (B, 1, 1 or Q, K) -> (B, 1 or Q, K)


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
    plt = pyplot("show_heatmaps")
    matrices = arrays.to_numpy(matrices)
    if len(matrices.shape) != 4:
        raise ValueError(f"matrices has shape {matrices.shape}, expected (rows, columns, queries, keys)")
    lowest, highest = matrices.min(), matrices.max()
    rows, columns = matrices.shape[:2]
    figure, axes = plt.subplots(rows, columns, figsize=figsize, sharex=True, sharey=True, squeeze=False)
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


def pyplot(function: str) -> Any:
    """The module of that name of matplotlib; ModuleNotFoundError, with the name of the function, if it is missing."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        message = f"{function} needs {error.name}: {dispatch.pip_for(dispatch.PLOTS)}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return pyplot


def missing(module: str, section: str, files: str, name: str) -> Exception:
    """The error for a name that a module of the book's names lacks.

    section: what the frameworks without them lack; files: those of the others, as `dispatch.backends_with` takes them.
    """
    why = dispatch.FRAMEWORKS[name].lacks.get(section) if name in dispatch.FRAMEWORKS else None
    if why is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return ImportError(f"{module} has no {name}: {why}; it has {', '.join(dispatch.backends_with(files))}")


def _bind(
    name: str, editions: Sequence[Sequence[str]], defaults: dict[str, Any], arguments: tuple, options: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, in the order of the edition that they fit; no call fits both."""
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
