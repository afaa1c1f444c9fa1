"""One attention layer out of a safetensors file, ours or another library's: chosen, checked, read."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mha import checks
from mha.config import Config
from mha.names import SchemeChoice, SchemeName
from mha.weights import own_format, safetensors_reader, schemes
from mha.weights.safetensors_reader import Tensors


def load(
    path: str | os.PathLike[str],
    *,
    scheme: SchemeChoice = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of the layer in a file; arguments and errors as for `mha.load`."""
    with safetensors_reader.opened(path) as source:
        return take(source, *choose(source, scheme, prefix), num_heads)


def choose(source: Tensors, scheme: str = "auto", prefix: str | None = None) -> tuple[SchemeName, str]:
    """The scheme and prefix of the one layer of an open file that is meant; arguments and errors as for `mha.load`."""
    own = own_format.is_own(source)
    if own and scheme in ("auto", "mha") and prefix in (None, ""):
        return "mha", ""
    with _explained():
        chosen, prefix = schemes.choose(source.entries, scheme, prefix)
        if (chosen, scheme) == ("mha", "auto") and not own:
            raise ValueError(
                "the names are those of mha, but the metadata does not say that mha wrote the file. Are the kernels "
                '(in, out), applied as x @ kernel? Then pass scheme="mha" and num_heads=...; else transpose them first'
            )
    return chosen, prefix


def take(
    source: Tensors,
    scheme: SchemeName,
    prefix: str,
    num_heads: int | None = None,
    track: Callable[[list[str]], Iterable[str]] = iter,
) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of a layer in an open file.

    Args:
        source: the file.
        scheme, prefix: as `choose` gives them.
        num_heads: as for `mha.load`.
        track: goes through the names of the arrays as they are read, and may show how far that is.

    Raises TypeError and ValueError as `mha.load` does.
    """
    if own_format.is_own(source):
        config, arrays = own_format.read(source)
        if num_heads is not None and checks.size("num_heads", num_heads) != config.num_heads:
            raise ValueError(
                f"says that its layer has {config.num_heads} heads, but num_heads is {num_heads!r}; leave it out"
            )
        return config, arrays
    with _explained():
        names = schemes.wanted(source.entries, scheme, prefix)
        if len(dtypes := {source.entries[name].numpy_dtype(name): name for name in names}) > 1:
            shown = " and ".join(f"{dtype} ({name})" for dtype, name in dtypes.items())
            raise ValueError(f"its arrays have dtypes {shown}, expected one")
        claimed = {name: source.entries[name].claimed(name) for name in names}
        schemes.describe(claimed, scheme, prefix, num_heads)  # what does not go together is not read
        return schemes.to_canonical({name: source.read(name) for name in track(names)}, scheme, prefix, num_heads)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Put what went wrong before the reason, the text of a ValueError; `opened` puts the path before both."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"does not hold the layer that is asked for: {error}") from error
