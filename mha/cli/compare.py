"""`mha compare`: the attention layers of two files, weight by weight, and what they compute."""

from typing import Annotated, Any

import typer

from mha import parity
from mha.cli import terminal, weights
from mha.weights import schemes

SCHEME = f"auto (as they show), {', '.join(schemes.SCHEMES)}."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A safetensors file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    scheme_a: Annotated[
        str, typer.Option("--from-a", metavar="SCHEME", help=f"How A names its arrays: {SCHEME}")
    ] = "auto",
    scheme_b: Annotated[str, typer.Option("--from-b", metavar="SCHEME", help="How B does, likewise.")] = "auto",
    prefix_a: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="What the names of the layer's arrays begin with in A.")
    ] = None,
    prefix_b: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="And in B; as in A, if that is there and nothing is said.")
    ] = None,
    num_heads: Annotated[
        int | None, typer.Option(metavar="H", help="The number of heads, where a file does not say it.")
    ] = None,
    rotary: Annotated[
        str | None, typer.Option(metavar="BASE", help="The base of rotated positions, or none; likewise.")
    ] = None,
    qk_norm: Annotated[
        str | None, typer.Option(metavar="NORM", help="rms or layer: the norm of queries and keys, likewise.")
    ] = None,
) -> None:
    """Compare the attention layers of two files.

    Files of mha, or checkpoints of any known naming scheme. Every weight of B beside A's: the same bits, the same but
    for rounding, or what makes it out of A's, such as a transpose; and the outputs on the same inputs, with the known
    mistake that explains B's. Where both files have as many layers and no prefix is given, all are compared.

    What a file does not say, such as the number of heads, is taken from the options, else from the other file.

    \b
    Examples:
      mha compare layer.safetensors ported.safetensors
      mha compare bert.safetensors keras.safetensors \\
        --prefix-a encoder.layer.0.attention --prefix-b block_0.attention

    Exit code 0 if the layers are the same, also if they are stored in another way or rounded; 1 if they differ; 2 if
    a file is not what it should be, or if the command is wrong.
    """
    said: dict[str, Any] = {"scheme_a": scheme_a, "scheme_b": scheme_b, "prefix_a": prefix_a, "prefix_b": prefix_b}
    said |= weights.options_said(rotary, qk_norm)
    try:
        report = parity.compare_files(
            a, b, num_heads=num_heads, track=lambda pairs: terminal.track("Comparing", pairs), **said
        )
    except FileNotFoundError as error:
        terminal.fail(f"{error.filename} is not there")
    except (OSError, TypeError, ValueError) as error:
        terminal.fail(weights.typed(error))
    terminal.console().print(report)
    raise typer.Exit(0 if report else 1)
