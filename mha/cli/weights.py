"""`mha weights show` and `mha convert`: list what a file of weights holds, and convert an attention layer of it."""

import dataclasses
import math
import os
import reprlib
from collections.abc import Container, Mapping
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from mha import weights
from mha.cli import terminal
from mha.cli.terminal import flag, option
from mha.core.options.config import Config, shapes
from mha.core.options.names import SchemeName
from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary
from mha.core.tables import plain_table
from mha.learn.write import commands
from mha.weights import argument_names, models, readers, schemes
from mha.weights.projections import check_parts
from mha.weights.readers import Source

SCHEME = f"auto (found from the names), {', '.join(schemes.SCHEMES)}."
SPELT = "W_q=to_q,W_k=to_k,W_v=to_v,W_o=to_out"


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of weights of any model, or its directory.")],
) -> None:
    """Show what a file of weights, or the directory of a model, holds.

    It lists every array with its shape, dtype and norm (the root of the sum of squares), and the attention layers with
    their naming scheme, their prefix and, if names and shapes show it, their number of heads. For a file that mha
    wrote, it shows the configuration of the layer. All numbers are read, one array at a time.

    Files may be safetensors, one or several with their index, .npz, .h5, .weights.h5 and .keras. Pickles, such as those
    of torch.save, are never opened: the error says how to convert them.

    \b
    Examples:
      mha weights show layer.safetensors
      mha weights show folder/of/a/model

    Exit code 0, even if no attention layer is found; 2 if it is no valid file of weights.
    """
    table = plain_table("array", "shape", "dtype", "norm", folded="array")
    with terminal.file_errors(file), readers.open_weights(file) as source:
        for name in terminal.track("Reading", list(source.entries)):
            entry = source.entries[name]
            norm = _norm(source.read(name)) if entry.dtype in readers.FLOATS else ""
            table.add_row(name, str(entry.shape), entry.dtype, norm)
        layers = _layers(source)
    recorded = [f"{name}={reprlib.repr(value)}" for name, value in source.metadata.items()]
    console = terminal.console()
    console.print(f"{file}: {sum(path.stat().st_size for path in source.paths):,} bytes, {len(source.entries)} arrays")
    console.print(f"metadata: {', '.join(recorded) or 'none'}")
    console.print(table, "", layers, sep="\n")


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file of weights with the layer, or its directory.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; an existing file is replaced.")],
    scheme: Annotated[str, option("SCHEME", f"The naming scheme of IN's arrays: {SCHEME}", "--from")] = "auto",
    prefix: Annotated[str | None, option("PREFIX", "The beginning of the names of the layer's arrays.")] = None,
    num_heads: Annotated[int | None, option("H", "The number of heads, if the arrays do not show it.")] = None,
    rotary: Annotated[str | None, option("BASE", "Rotation: a base, none, or base=B,dim=N,interleaved=true.")] = None,
    qk_norm: Annotated[str | None, option("NORM", "The norm of queries and keys, rms or layer; likewise.")] = None,
    length: Annotated[
        int | None, option("T", "The tokens of a text, if a rotation that a file beside IN says goes by them.")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Do everything except write OUT.")] = False,
) -> None:
    """Convert one attention layer of a checkpoint to a file that mha.load reads on every backend.

    The layer is found by its scheme and prefix and checked. Its weights are written bit for bit, with its
    configuration. What the arrays do not show is read from config.json, or from Meta's params.json, in the folder of
    IN. IN is not changed. It may be of any kind that `mha weights show` shows.

    \b
    Examples:
      mha convert model.safetensors layer.safetensors \\
        --prefix encoder.layer.0.attention --num-heads 12
      mha convert gpt2.safetensors layer.safetensors \\
        --from gpt2 --prefix h.3.attn --num-heads 12 --dry-run

    Exit code 0 if the layer was converted, 2 if not; then OUT stays as it was.
    """
    path = terminal.writable("OUT", target)
    said = layer_options(rotary, qk_norm, length=length)
    with terminal.file_errors(source), readers.open_weights(source) as opened:
        if path in (os.path.realpath(own) for own in opened.paths):
            terminal.fail(f"OUT is {target}, a file of IN; choose another OUT")
        try:
            chosen, at = weights.choose(opened, scheme, prefix)
            own = [name for name in opened.entries if name.startswith(at)]
            chosen = schemes.fitting_twin({name: opened.entries[name].shape for name in own}, chosen, at)
            if schemes.SCHEMES[chosen].interleaved and said.get("rotary"):
                said["rotary"] = dataclasses.replace(said["rotary"], interleaved=True)
            config, arrays = weights.take(
                opened, chosen, at, num_heads, said, lambda names: terminal.track("Reading", names)
            )
        except TypeError as error:  # an argument is needed
            raise ValueError(f"does not say everything: {error}") from error
        names = set(opened.entries)
    console = terminal.console()
    console.print(f"{source}: scheme {chosen}{f', prefix {at}' if at else ''}")
    console.print(_options(config))
    console.print(_origins(config, arrays, chosen, at, names), "", sep="\n")
    if dry_run:
        console.print(f"{target} is not written: --dry-run")
        return
    try:
        weights.save(path, config, arrays)
    except OSError as error:
        terminal.fail(f"{target} cannot be written: {error.strerror}")
    console.print(f"{target} is written")


def layer_options(rotary: str | None, qk_norm: str | None, **numbers: int | None) -> dict[str, Any]:
    """Return the options of a layer that --rotary, --qk-norm and options of numbers give."""
    options = {name: number for name, number in numbers.items() if number is not None}
    with terminal.errors():
        for name, text in {"rotary": rotary, "qk_norm": qk_norm}.items():
            if text is not None:
                options[name] = commands.parse_option(name, text)
    return options


def parse_names(argument: str, text: str | None) -> dict[str, str] | None:
    """Parse --names, W_q=to_q,W_k=to_k,..., to a dict; argument: its name in Python."""
    if text is None:
        return None
    named = {}
    for one in text.split(","):
        role, equals, name = one.partition("=")
        if not equals or role.strip() in named:
            expected = f"{SPELT}, each once"
            terminal.fail(
                f"{argument_names.name(argument)} has {one!r}, expected a projection, =, and its name: {expected}"
            )
        named[role.strip()] = name.strip()
    with terminal.errors():
        check_parts(argument, named)
    return named


def user_layers(argument: str, text: str | None, options: Mapping[str, Any], causal: bool) -> dict[str, Any] | None:
    """Return layers= for models whose projections --names calls so; None without names, which other options need."""
    if (names := parse_names(argument, text)) is not None:
        return {"*": {**names, **options, "causal": causal}}
    if options or causal:
        terminal.fail("--num-heads, --causal and --rotary say what layers of --names compute, which is not given")
    return None


def _norm(array: np.ndarray) -> str:
    """Return the root of the sum of squares, in float64; a large array is read in parts."""
    parts = np.array_split(array.reshape(-1), max(1, array.size // 2**20))
    largest = max(float(np.abs(part).max(initial=0)) for part in parts)
    if largest in (0, math.inf) or math.isnan(largest):
        return f"{largest:.6g}"
    squares = sum(float(np.square(part.astype(np.float64) / largest).sum()) for part in parts)
    return f"{largest * math.sqrt(squares):.6g}"


def _layers(source: Source) -> Table | str:
    """Return a table of the attention layers in a file."""
    if weights.is_own(source):
        config, _ = weights.take(source, "mha", "")
        return f"a layer of mha: {_options(config)}"
    found = schemes.recognise(source.entries, source.format_of)
    if not found:
        if unread := weights.unread_error(source):
            return f"no attention layer that can be read: the file {unread}"
        return f"no attention layer of a known scheme: {', '.join(schemes.SCHEMES)}"
    rows = []
    sizes = {name: entry.shape for name, entry in source.entries.items()}
    for scheme, prefix in found:
        scheme = schemes.fitting_twin(sizes, scheme, prefix)
        heads = schemes.heads_in_shapes(sizes, scheme, prefix)
        try:
            path, form = models.beside(source.path, scheme), source.format_at(prefix)
            recorded = models.options(path, scheme, prefix, form=form)
            heads = recorded.pop("num_heads", heads)
            beside = ", ".join(f"{name}={_option(value)}" for name, value in recorded.items() if value is not None)
        except ValueError as error:  # the file itself can be shown
            beside = str(error)
        shown = "not recorded" if heads is None else str(heads)
        rows.append((scheme, prefix, shown, schemes.SCHEMES[scheme].about, beside))
    columns = ["scheme", "prefix", "heads", "used by"]
    if any(row[-1] for row in rows):
        columns.append("config.json")
    table = plain_table(*columns, folded="prefix")
    for row in rows:
        table.add_row(*row[: len(columns)])
    reasons = [(layer, reason) for layer in found if (reason := weights.unread_error(source, layer))]
    for (_, prefix), reason in reasons[:1]:
        more = f", nor can {len(reasons) - 1} more" if len(reasons) > 1 else ""
        table.caption = f"the layer at prefix {prefix!r} cannot be read{more}: it {reason}"
        table.caption_justify = "left"
    return table


def _option(value: Any) -> str:
    """Format the value of an option, in short."""
    if isinstance(value, Rotary):
        said = {"interleaved": value.interleaved, "own frequencies": value.frequencies}
        return f"Rotary({', '.join([f'base={value.base:g}', *(name for name, given in said.items() if given)])})"
    if isinstance(value, Norm):
        others = ", over all heads" * (value.over == "all") + ", after the rotation" * value.after
        return f"{value.kind}, eps={value.eps:g}{others}"
    return str(value)


def _options(config: Config) -> str:
    return ", ".join(f"{name}={value}" for name, value in vars(config).items())


_AXES = {"i": "in", "o": "out"}  # words for letters of axes; all others stand for themselves


def _origins(
    config: Config, arrays: dict[str, np.ndarray], scheme: SchemeName, prefix: str, names: Container[str]
) -> Table:
    """Return a table of each weight and the array that it comes from; names: of all arrays in the file."""
    table = plain_table("weight", "shape", "norm", "from")
    for name in shapes(config):
        origin = "itself"
        places = [place for weight, place in schemes.SCHEMES[scheme].every if weight == name]
        if places:
            place = next((one for one in places if prefix + one.name in names), places[-1])
            part = f"part {place.part[0] + 1} of {place.part[1]}" if place.part else ""
            axes = ", ".join(_AXES.get(letter, letter) for letter in place.axes)
            kernel = f"({axes})" if len(place.axes) > 1 else ""
            origin = " ".join(filter(None, [f"{prefix}{place.name}", kernel, part]))
            origin = origin if prefix + place.name in names else "zeros, no such array in the file"
        table.add_row(name, str(arrays[name].shape), _norm(arrays[name]), origin)
    return table
