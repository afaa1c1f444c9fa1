"""`mha heads`: the attention weights of a trained model's heads for a text, in the terminal and as a picture."""

import os
from typing import Annotated, Any

import numpy as np
import typer
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel

import mha
from mha.cli import grids, terminal
from mha.cli.backends import Backend, choose_backend
from mha.cli.terminal import option
from mha.core import dispatch
from mha.core.tables import wrap
from mha.learn.heads.bert import Encoder, tokenizer
from mha.learn.plot.pictures import ENDINGS


def heads(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The model.safetensors of a BERT model, such as MiniLM.")],
    text: Annotated[str, option("TEXT", "The text that the model reads.")],
    layer: Annotated[int, option("N", "The layer to show; the first is 0.")] = 0,
    head: Annotated[
        list[int] | None, option("N", "A head to show; the first is 0. May be repeated. Default: all.")
    ] = None,
    path: Annotated[
        str | None, option("PICTURE", "Also write a picture: a .png or .svg file.", "--output", "-o")
    ] = None,
    backend: Backend = None,
) -> None:
    """Show which tokens of a text the heads of a trained model attend to.

    It shows the attention weights of one layer as a grid for each head: a row is a token that attends, a column is a
    token that it attends to. The attention runs on the backend, the rest of the model on NumPy.

    The folder of FILE must also hold config.json, and tokenizer.json or vocab.txt.

    \b
    Examples:
      mha heads model.safetensors --text "The cat sat down because it was tired"
      mha heads model.safetensors --text "Bi Sheng set pages" --layer 3 --head 1 --head 4 -o heads.svg

    Exit code 0 if the heads were shown, 2 if a file cannot be used, or if the command is wrong.
    """
    name = choose_backend(backend)
    if path is not None and os.path.splitext(path)[1].lower() not in ENDINGS:
        terminal.fail(f"--output is {path!r}, expected a name that ends in {' or '.join(ENDINGS)}")
    picture = None if path is None else terminal.writable("--output", path)
    with terminal.errors():
        dispatch.load(name)
        if not os.path.isfile(file):
            raise FileNotFoundError(f"there is no file {file}")
        model, words = Encoder(file, name), tokenizer(os.path.dirname(os.path.realpath(file)))
        encoded = words.encode(text)
        if not text.strip():
            raise ValueError(f"--text is {text!r}, expected some words")
        if not 0 <= layer < len(model.attentions):
            raise ValueError(f"--layer is {layer}, expected 0 to {len(model.attentions) - 1}")
        number = model.attentions[layer].config.num_heads
        shown = list(range(number)) if not head else list(dict.fromkeys(head))
        if wrong := [one for one in shown if not 0 <= one < number]:
            raise ValueError(f"--head is {wrong[0]}, expected 0 to {number - 1}")
        weights = attention_weights(model, encoded.ids, layer)  # (H, T, T)
        if picture is not None:
            titled: dict[str, Any] = {"title": f"Layer {layer} of {os.path.basename(file)}", "path": picture}
            mha.plot.heatmaps(weights, encoded.tokens, encoded.tokens, heads=shown, **titled)

    console = terminal.console()
    layers = f"Layer {layer} of 0 to {len(model.attentions) - 1}, {number} heads, {len(encoded.ids)} tokens, on {name}"
    console.print(layers, style="bold")
    print_grids(console, weights, shown, encoded.tokens)
    if path is not None:
        console.print(f"{path} is written")


def attention_weights(model: Encoder, tokens: list[int], layer: int) -> np.ndarray:
    """Return the weights (H, T, T) of a layer for one text, of T token numbers."""
    X = model.embedded(np.array([tokens]))  # (1, T, D)
    for number, attention in enumerate(model.attentions[:layer]):
        X = model.after(number, X, attention(X, X, X))
    _, weights = model.attentions[layer](X, X, X, return_weights=True)
    return weights[0]


def print_grids(console: Console, weights: np.ndarray, shown: list[int], tokens: list[str]) -> None:
    """Print a grid for each of these heads of weights (H, T, T), if the terminal is wide enough; and a legend."""
    marks = grids.marks(console)
    left = len(grids.heat_map(weights[0, :, :0], marks, tokens).split("\n")[0]) + 2  # and the frame
    width = next((columns for columns in (2, 1) if left + columns * len(tokens) <= console.width), None)
    if width is None:
        console.print(
            f"{len(tokens)} tokens do not fit in {console.width} columns; use a wider terminal, or -o for a picture"
        )
        return
    keys = "  ".join(f"{number} {token}" for number, token in enumerate(tokens))
    console.print("\n".join(["Columns:", *wrap(keys, min(console.width, 100), "  ")]))
    frames = (
        Panel(grids.heat_map(weights[one], marks, tokens, width), title=f"head {one}", padding=0, expand=False)
        for one in shown
    )
    console.print(Columns(frames, padding=0, expand=False))
    console.print(f"Attention weight of the column's token: {grids.legend(marks)}")
