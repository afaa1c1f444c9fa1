"""Canonical weights: their names and shapes, how they are drawn, and the files that hold them.

A layer's weights are a flat dict of NumPy arrays, kernels (in, out), applied as `x @ kernel + bias`, on every backend.
Columns of W_q, W_k and W_v and rows of W_o are head-major: head 0 first.
"""

import contextlib
import json
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from mha import checks, dispatch, files, schemes, tensors
from mha.config import Config, shapes

if TYPE_CHECKING:
    from mha.layer import MultiHeadAttention

LAYOUT = "1"


def initial(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Glorot-uniform kernels and zero biases, the same for a seed on every backend, bit for bit.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010), eq. 16.
    """
    random = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes(config).items():
        if name.endswith(".kernel"):
            limit = np.sqrt(6 / sum(shape))
            arrays[name] = random.uniform(-limit, limit, shape).astype(tensors.numpy_dtype(config.dtype))
        else:
            arrays[name] = np.zeros(shape, tensors.numpy_dtype(config.dtype))
    return arrays


def save(path: str | os.PathLike[str], config: Config, arrays: dict[str, np.ndarray]) -> None:
    """Write weights and configuration to a safetensors file; the old file stays until the new one is whole.

    Raises ValueError if a weight holds NaN or infinity, FileError (an OSError and a ValueError) if the path is there
    but no regular file, and OSError if the file cannot be written; nothing is written then.
    """
    from safetensors.numpy import save as to_bytes

    for name, array in arrays.items():
        checks.finite(name, array)  # `load` would refuse the file
    metadata = {"format": "mha", "layout": LAYOUT, "config": json.dumps(asdict(config))}
    # safetensors writes the memory of an array as it lies, so that a transposed view would be saved untransposed.
    data = to_bytes({name: checks.plain(array) for name, array in arrays.items()}, metadata)
    files.write(path, data)


def load(path: str | os.PathLike[str]) -> tuple[Config, dict[str, np.ndarray]]:
    """Read what `save` wrote: the configuration and its weights, checked against each other.

    The numbers are read once their description is right and as long as it says, so that a wrong file takes no memory.

    Raises FileNotFoundError if nothing is there, FileError (an OSError and a ValueError) if the path is no regular
    file or may not be read, and ValueError, which names the path, if it is not such a file.
    """
    with tensors.opened(path, HEADER_LIMIT) as source:
        return _own(source)


def read(
    path: str | os.PathLike[str],
    *,
    scheme: str = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
    backend: str | None = None,
) -> "MultiHeadAttention":
    """The attention layer that a safetensors file holds, however it names and stores the weights, bit for bit.

    Nothing but the header and the arrays of that layer is read.

    Args:
        path: of a checkpoint, or of a file that `save` wrote, which says all of the below.
        scheme: how the arrays are named and stored, one of `mha.schemes.SCHEMES`; "auto" = as the names show.
        prefix: what the names of the layer's arrays begin with, a last dot left out or not; None = as the names show.
        num_heads: the number of heads, where no array has an axis for them.
        backend: None = MHA_BACKEND, else "numpy".

    Returns:
        The layer, with the sizes, biases and dtype of its arrays; dropout is 0, or what a file of `save` says.

    Raises:
        FileNotFoundError: if nothing is there.
        FileError (an OSError and a ValueError): if the path is no regular file or may not be read.
        TypeError: if an argument is of another type, or num_heads is needed; the message names the argument.
        ValueError: if it is no safetensors file, if none or more than one layer in it is meant, or if its arrays do not
            go together; the message names the path, and lists what was found.
    """
    from mha import layer  # which imports this module

    backend = dispatch.backend_name(backend)
    with tensors.opened(path) as source:
        config, arrays = take(source, *choose(source, scheme, prefix), num_heads)
    return layer.restore(config, arrays, backend)


def choose(source: tensors.Tensors, scheme: str = "auto", prefix: str | None = None) -> tuple[str, str]:
    """The scheme and prefix of the one layer of an open file that is meant; arguments and errors as for `read`."""
    if is_own(source) and scheme in ("auto", "mha") and prefix in (None, ""):
        return "mha", ""
    with _saying():
        chosen, prefix = schemes.choose(source.entries, scheme, prefix)
        if (chosen, scheme) == ("mha", "auto") and not is_own(source):
            raise ValueError(
                "names are those of mha, but the metadata does not say that mha wrote the file. Are the kernels "
                '(in, out), applied as x @ kernel? Then say scheme="mha" and num_heads; else transpose them first'
            )
    return chosen, prefix


def take(
    source: tensors.Tensors,
    scheme: str,
    prefix: str,
    num_heads: int | None = None,
    track: Callable[[list[str]], Iterable[str]] = iter,
) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of a layer in an open file.

    Args:
        source: the file.
        scheme, prefix: as `choose` gives them.
        num_heads: as for `read`.
        track: goes through the names of the arrays as they are read, and may show how far that is.

    Raises TypeError and ValueError as `read` does.
    """
    if is_own(source):
        config, arrays = _own(source)
        if num_heads is not None and checks.size("num_heads", num_heads) != config.num_heads:
            raise ValueError(f"has {config.num_heads} heads, as it says itself, but num_heads is {num_heads!r}")
        return config, arrays
    with _saying():
        names = schemes.wanted(source.entries, scheme, prefix)
        if len(dtypes := {source.entries[name].numpy_dtype(name): name for name in names}) > 1:
            shown = " and ".join(f"{dtype} ({name})" for dtype, name in dtypes.items())
            raise ValueError(f"its arrays have dtypes {shown}, expected one")
        claimed = {name: source.entries[name].claimed(name) for name in names}
        schemes.describe(claimed, scheme, prefix, num_heads)  # what does not go together is not read
        return schemes.to_canonical({name: source.read(name) for name in track(names)}, scheme, prefix, num_heads)


@contextlib.contextmanager
def _saying(problem: str = "does not hold the layer that is asked for") -> Iterator[None]:
    """What a ValueError inside says continues a sentence that begins with the path of a file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{problem}: {error}") from error


def is_own(source: tensors.Tensors) -> bool:
    """Whether a file says that `save` wrote it."""
    return source.metadata.get("format") == "mha"


HEADER_LIMIT = 2**20  # bytes; a header that `save` writes has less than 4,000


def _own(source: tensors.Tensors) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and weights in a file that `save` wrote."""
    config = _config(source.metadata)
    try:
        checks.weights(
            shapes(config), config.dtype, {name: entry.claimed(name) for name, entry in source.entries.items()}
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"does not fit its own configuration: {error}") from error
    arrays = {name: source.read(name) for name in shapes(config)}
    with _saying("is damaged"):
        for name, array in arrays.items():
            checks.finite(name, array)
    return config, arrays


def _config(metadata: dict[str, str]) -> Config:
    """The configuration in a file's metadata."""
    match metadata:
        case {"format": "mha", "layout": layout, "config": text} if layout == LAYOUT:
            pass
        case {"format": "mha"}:
            layout = reprlib.repr(metadata.get("layout"))
            raise ValueError(
                f"has layout {layout}, expected {LAYOUT!r} and a configuration; if another version of mha wrote it, "
                "load it with that one"
            )
        case _:
            raise ValueError(
                f"does not say that it is an mha file of layout {LAYOUT}; its metadata is {reprlib.repr(metadata)}. "
                "Without it the orientation of the kernels and the number of heads are unknown; `mha.weights.read` "
                "takes them from you"
            )
    try:
        return Config(**tensors.parse(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"holds no valid configuration: {error}") from error
