"""`mha write`: a layer as a file of its own, with its proof beside it; and a check that a file is unchanged."""

import dataclasses
import re
from typing import Annotated, Any, Literal, NoReturn

import typer

from mha import weights
from mha.cli import terminal
from mha.cli.terminal import flag, option
from mha.core.options.config import ROWS, Config
from mha.learn import write as written
from mha.learn.write import commands
from mha.weights import readers, schemes

Number = float | None
Size = int | None


def write(
    backend: Annotated[
        str | None, typer.Argument(metavar="[BACKEND]", help="The framework that the file is for.", show_default=False)
    ] = None,
    output: Annotated[str, option("FILE", "The file to write, a Python module.", "--output", "-o")] = "attention.py",
    num_hiddens: Annotated[Size, option("D", "Width of the output.", min=1)] = None,
    num_heads: Annotated[Size, option("H", "Number of heads.", min=1)] = None,
    dropout: Annotated[float, option("P", "Default for dropout of weights.")] = 0.0,
    bias: Annotated[bool, flag("--bias", "Default: projections add a bias.")] = False,
    query_size: Annotated[Size, option("N", "Width of queries, if not D.", min=1)] = None,
    key_size: Annotated[Size, option("N", "Width of keys, if not D.", min=1)] = None,
    value_size: Annotated[Size, option("N", "Width of values, if not D.", min=1)] = None,
    key_dim: Annotated[Size, option("d", "Width of a head, if not D / H.", min=1)] = None,
    value_dim: Annotated[Size, option("dv", "Width of a head of values.", min=1)] = None,
    num_key_value_heads: Annotated[Size, option("G", "Heads of keys and values, shared.", min=1)] = None,
    scale: Annotated[Number, option("X", "Factor of the dot products.")] = None,
    softcap: Annotated[Number, option("X", "Cap of the scores.")] = None,
    window: Annotated[str | None, option("LEFT,RIGHT", "Keys that a query sees: 4095,0 or 4095,none.")] = None,
    chunk: Annotated[Size, option("N", "Positions of a chunk.", min=1)] = None,
    rotary: Annotated[str | None, option("BASE", "A base, or base=B,dim=N,interleaved=true.")] = None,
    qk_norm: Annotated[str | None, option("KIND", "rms or layer, or kind=rms,eps=1e-6,over=all.")] = None,
    value_norm: Annotated[str | None, option("KIND", "Norm of values, likewise.")] = None,
    temperature: Annotated[str | None, option("PARTS", "scale=0.1,floor=8192,shift=1.")] = None,
    sinks: Annotated[bool, flag("--sinks", "One more score per head, pools nothing.")] = False,
    output_gate: Annotated[Literal["element", "head"] | None, option("KIND", "Gates of the pooled heads.")] = None,
    pooling: Annotated[Literal["dot", "additive"], option("KIND", "The scores.")] = "dot",
    dtype: Annotated[str, option("NAME", "Default for the dtype.")] = "float32",
    call: Annotated[str | None, option("NAME,NAME", "More arguments of a call: positions, ...")] = None,
    names: Annotated[str | None, option("SCHEME", "Take its checkpoints: by names, else by a method load.")] = None,
    fused: Annotated[bool, flag("--fused", "Pool by the framework's own kernel.")] = False,
    kind: Annotated[str | None, option("KIND", "Of JAX's modules: linen, the default, or nnx.")] = None,
    like: Annotated[str | None, option("PATH", "A checkpoint whose layer says the options.")] = None,
    layer: Annotated[Size, option("N", "The layer of PATH; default: its first.", min=0)] = None,
    force: Annotated[bool, flag("--force", "Overwrite files that exist.")] = False,
    check: Annotated[str | None, option("FILE", "Say whether FILE is as it was written.", "--check")] = None,
) -> None:
    """Write a layer as one file that needs its framework and nothing of mha, with its proof beside it.

    The file is made from the lesson: it has the options that are asked for, and no trace of others. Sizes and numbers
    stay arguments of its constructor. Beside FILE come a test and a case file: `pytest test_attention.py` proves the
    copy with the framework, NumPy and safetensors alone. Its calls take valid_lens, mask and causal; others by --call.

    \b
    Examples:
      mha write torch
      mha write torch --num-key-value-heads 2 --rotary 500000 --window 4095,0
      mha write jax --qk-norm rms --call positions,return_weights -o layer.py
      mha write jax --kind nnx --fused
      mha write torch --like checkpoint_dir --names llama
      mha write --check attention.py

    Exit codes: 0 if the file was written, or is as it was written; 1 if --check finds it edited or outdated; 2 if the
    command is wrong, or there is no such file.
    """
    if check is not None:
        _check(check)
    if backend is None:
        terminal.fail("BACKEND is missing, expected a framework, such as torch, or --check FILE")
    G = num_key_value_heads
    heads = num_heads if num_heads is not None else 8 if G is None else 4 * G
    given: dict[str, Any] = {
        "num_hiddens": 64 * heads if num_hiddens is None else num_hiddens,
        "num_heads": heads,
        **{name: value for name, value in locals().items() if name in OPTIONS},
    }
    if like is not None:
        said = [name for name, value in given.items() if name in OPTIONS and value != OPTIONS[name]]
        said += ["num_hiddens"] * (num_hiddens is not None) + ["num_heads"] * (num_heads is not None)
        if said:
            terminal.fail(f"--{said[0].replace('_', '-')} is given beside --like, whose file says it; leave one out")
    elif layer is not None:
        terminal.fail("--layer is given without --like, expected both: it is a layer of a checkpoint")
    with terminal.errors():
        if window is not None:
            given["window"] = commands.parse_window(window)
        for name in commands.PARTS:
            if given[name] is not None:
                given[name] = commands.parse_option(name, given[name])
        config = Config(**given) if like is None else _like(like, layer)
        asked = [] if call is None else call.split(",")
        try:
            paths = written.write(config, backend, output, call=asked, names=names, fused=fused, kind=kind, force=force)
        except FileExistsError as error:
            terminal.fail(str(error).replace("force=True", "--force"))
    console = terminal.console()
    lines = len(paths[0].read_text().splitlines())
    console.print(f"{paths[0]} is written: {lines} lines; prove it with pytest {paths[1]}", highlight=False)


# The options of a layer beside its two sizes, and what they are where nobody gives them.
OPTIONS = {name: row.default for name, row in ROWS.items() if row.default is not dataclasses.MISSING}


def _like(path: str, layer: int | None) -> Config:
    """Return the configuration of a layer of a checkpoint: of its first, or of that with this number in its names."""
    with readers.open_weights(path) as source:
        found = [] if weights.is_own(source) else schemes.recognise(source.entries, source.format_of)
        numbers = {prefix: [int(n) for n in re.findall(r"\d+", prefix)] for _, prefix in found}
        chosen = [one for one in found if layer is None or layer in numbers[one[1]]]
        if layer is not None and not chosen:
            raise ValueError(f"--layer is {layer}, expected one of the {len(found)} attention layers of {path}")
        chosen.sort(key=lambda one: numbers[one[1]])
        config, _ = weights.take(source, *(chosen[0] if chosen else weights.choose(source)))
    return config


def _check(file: str) -> NoReturn:
    """Print whether a file is as it was written; exit code 1 if not."""
    with terminal.file_errors(file):
        problem = written.check(file)
    terminal.console().print(problem or f"{file} is as it was written", highlight=False)
    raise typer.Exit(1 if problem else 0)
