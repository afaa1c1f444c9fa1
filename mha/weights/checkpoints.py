"""Choose, check and read one attention layer of a checkpoint, ours or another library's."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.core.options.config import MODERN, Config
from mha.core.options.names import SchemeChoice, SchemeName
from mha.weights import argument_names, models, own_format, readers, schemes
from mha.weights.readers import Entry, Source

LAYER_OPTIONS = (*MODERN, "key_dim", schemes.FOLDED, schemes.BARE, schemes.TIED, models.LENGTH)


def load(
    path: str | os.PathLike[str],
    *,
    scheme: SchemeChoice = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Config, dict[str, np.ndarray]]:
    """Read the configuration and canonical weights of a layer at a path; arguments and errors as for `mha.load`."""
    given = options or {}
    check_options(given)
    with readers.open_weights(path) as source:
        chosen = choose(source, scheme, prefix)
        try:
            return take(source, *chosen, num_heads, given)
        except argument_names.LackingError as error:
            raise error.of(source.path) from None


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError if one of the options of a caller is unknown."""
    for name in options:
        if name not in LAYER_OPTIONS:
            raise TypeError(f"{name} is no argument here, expected one of {', '.join(LAYER_OPTIONS)}")


def choose(source: Source, scheme: str = "auto", prefix: str | None = None) -> tuple[SchemeName, str]:
    """Return the scheme and prefix of the chosen layer of an open file; arguments and errors as for `mha.load`."""
    own = own_format.is_own(source)
    if own and scheme in ("auto", "mha") and prefix in (None, ""):
        return "mha", ""
    with _with_reason(source):
        try:
            chosen, prefix = schemes.choose(source.entries, scheme, prefix, source.format_of)
        except schemes.UnreadError:
            raise
        except ValueError:  # the configuration beside the file may say why names show nothing
            if not schemes.recognise(source.entries, source.format_of) and (found := unread_error(source)):
                raise found from None
            raise
        if (chosen, scheme) == ("mha", "auto") and not own:
            asked = argument_names.setting(scheme="mha"), argument_names.setting(num_heads=argument_names.Code("..."))
            raise ValueError(
                "the names are those of mha, but the metadata does not say that mha wrote the file. Are the kernels "
                f"(in, out), applied as x @ kernel? Then pass {' and '.join(asked)}; else transpose them first"
            )
    return chosen, prefix


def take(
    source: Source,
    scheme: SchemeName,
    prefix: str,
    num_heads: int | None = None,
    options: Mapping[str, Any] | None = None,
    track: Callable[[list[str]], Iterable[str]] = iter,
) -> tuple[Config, dict[str, np.ndarray]]:
    """Read the configuration and canonical weights of a layer in an open file.

    Args:
        source: the file.
        scheme, prefix: as `choose` returns them.
        num_heads, options: as for `mha.load`.
        track: iterates over the names of the arrays while they are read, and may show the progress.

    Raises TypeError and ValueError as `mha.load` does.
    """
    given, heads = dict(options or {}), argument_names.name("num_heads")
    if own_format.is_own(source):
        config, arrays = own_format.read(source)
        if given:
            raise ValueError(
                f"has the configuration of its layer itself; leave out {', '.join(map(argument_names.name, given))}"
            )
        if num_heads is not None and checks.size(heads, num_heads) != config.num_heads:
            raise ValueError(
                f"says that its layer has {config.num_heads} heads, but {heads} is {num_heads!r}; leave it out"
            )
        return config, arrays
    path = models.beside(source.path, scheme)
    try:
        entries = _entries(source, scheme, prefix)
    except schemes.UnreadError:
        raise
    except ValueError:
        models.options(path, scheme, prefix, None, source.format_at(prefix))  # it may say why arrays are not there
        raise
    length = given.pop(models.LENGTH, None)
    found = models.options(path, scheme, prefix, length, source.format_at(prefix))
    if length is not None and "rotary" not in found:
        raise ValueError("length is given, but nothing beside the file says a rotation; leave it out")
    num_heads, options = models.join_options(found, num_heads, given, f"has {path} beside it")
    with _with_reason(source):
        if len(dtypes := {entry.numpy_dtype(name): name for name, entry in entries.items()}) > 1:
            shown = " and ".join(f"{dtype} ({name})" for dtype, name in dtypes.items())
            raise ValueError(f"its arrays have dtypes {shown}, expected one")
        claimed = {name: entry.stand_in(name) for name, entry in entries.items()}
        schemes.describe(claimed, scheme, prefix, num_heads, **options)  # refuses a wrong layer before it is read
        schemes.ask(scheme, options)
    read = {name: source.read(name) for name in track(list(entries))}
    with _with_reason(source):
        return schemes.to_canonical(read, scheme, prefix, num_heads, **options)


def unread_error(
    source: Source, layer: tuple[SchemeName, str] | None = None, packed: bool = False
) -> schemes.UnreadError | None:
    """Return the error for a layer of an open file, if it is of a kind that is not read; else None.

    layer: its scheme and prefix; None = the file is one in which no layer is found. packed: as of `schemes.unreadable`.
    """
    try:
        if layer is not None:
            _entries(source, *layer)
            return None
        with _with_reason(source):
            if found := schemes.unreadable(source.entries, packed):
                raise found
    except schemes.UnreadError as error:
        return error
    except ValueError:  # it is wrong for another reason
        return None
    method = quantising_method(source.path)
    return schemes.UnreadError(schemes.kind_by_method(method), method=method, subject="") if method else None


def _entries(source: Source, scheme: SchemeName, prefix: str) -> dict[str, Entry]:
    """Describe the arrays of a layer; ValueError as of `schemes.layer_names`, UnreadError if they are packed."""
    with _with_reason(source):
        names = schemes.layer_names(source.entries, scheme, prefix)
    entries = {name: source.entries[name] for name in names}
    for name, entry in entries.items():
        if kind := schemes.kind_by_dtype(entry.dtype):
            with _with_reason(source):
                expected = f"expected one of {', '.join(readers.FLOATS)}"
                raise schemes.UnreadError(kind, f"{name} has dtype {entry.dtype}, {expected}")
    return entries


def quantising_method(path: Path) -> str:
    """Return the method of quantising that the configuration beside a file names; "" = it names none."""
    with contextlib.suppress(OSError, ValueError):  # which others report
        data = models.read_bytes(path.with_name("config.json"))
        return "" if data is None else schemes.method_of(models.parse_model(data))
    return ""


@contextlib.contextmanager
def _with_reason(source: Source) -> Iterator[None]:
    """Begin a ValueError with the words that the file lacks the layer; `open_weights` puts the path before both.

    An UnreadError needs no such beginning.
    """
    try:
        yield
    except schemes.UnreadError as error:
        raise error.with_method(quantising_method(source.path), subject="") from None
    except ValueError as error:
        raise ValueError(f"does not hold the layer that is asked for: {error}") from error
