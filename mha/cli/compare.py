"""`mha compare`: the attention layers of two files, weight by weight, and by their outputs."""

from typing import Annotated, Any

import typer

from mha import parity
from mha.cli import terminal, weights
from mha.weights import schemes

SCHEME = f"auto (found from the names), {', '.join(schemes.SCHEMES)}."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A file of weights, or a directory with one.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The file or directory to compare with A.")],
    scheme_a: Annotated[
        str, typer.Option("--from-a", metavar="SCHEME", help=f"The naming scheme of A's arrays: {SCHEME}")
    ] = "auto",
    scheme_b: Annotated[
        str, typer.Option("--from-b", metavar="SCHEME", help="The naming scheme of B's arrays, likewise.")
    ] = "auto",
    prefix_a: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="The beginning of the names of the layer's arrays in A.")
    ] = None,
    prefix_b: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="The same for B; default: that of the partner of A's layer.")
    ] = None,
    num_heads: Annotated[
        int | None, typer.Option(metavar="H", help="The number of heads, if a file does not say it.")
    ] = None,
    rotary: Annotated[
        str | None, typer.Option(metavar="BASE", help="The base of the rotary positions, or none; likewise.")
    ] = None,
    qk_norm: Annotated[
        str | None, typer.Option(metavar="NORM", help="The norm of queries and keys, rms or layer; likewise.")
    ] = None,
) -> None:
    """Compare the attention layers of two files.

    A and B are files of mha, or checkpoints of any known naming scheme. For each weight, the report says whether B's
    has the same bits as A's, is the same up to rounding, or differs, and which known change (such as a transpose)
    makes B's from A's. Then it compares the outputs for the same inputs, and names the known mistake that explains
    those of B.

    Without prefixes, all layers are compared: pairs of equal prefixes, else of the same weights, else in the order of
    their prefixes. Swapped layers differ; so do files of which one has a layer without a partner. A prefix chooses one
    layer, and its partner in the other file.

    Arrays that stand beside a layer's weights, such as T5's table of biases, are compared as arrays. The last line says
    which other arrays were not compared.

    If a file does not say something, such as the number of heads or the window, it is taken from the options, or else
    from the other file.

    \b
    Examples:
      mha compare layer.safetensors ported.safetensors
      mha compare bert.safetensors keras.safetensors \\
        --prefix-a encoder.layer.0.attention --prefix-b block_0.attention

    Exit code 0 if the layers are the same, even if they are stored in another way or rounded; 1 if they differ; 2 if
    a file cannot be used, or if the command is wrong.
    """
    said: dict[str, Any] = {"scheme_a": scheme_a, "scheme_b": scheme_b, "prefix_a": prefix_a, "prefix_b": prefix_b}
    said |= weights.options_said(rotary, qk_norm)
    try:
        report = parity.compare_files(
            a, b, num_heads=num_heads, track=lambda pairs: terminal.track("Comparing", pairs), **said
        )
    except FileNotFoundError as error:
        terminal.fail(f"there is no file {error.filename}")
    except (OSError, TypeError, ValueError) as error:
        terminal.fail(error)
    terminal.console().print(report)
    raise typer.Exit(0 if report else 1)
