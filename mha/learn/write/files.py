"""Write the files of a layer: its text, with its recipe on the first lines, and the test and the case beside it."""

import hashlib
import itertools
import json
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mha.core import dispatch
from mha.core.options.config import Config
from mha.learn.write.recipe import Recipe, read

MADE_OF, GOES_ON = "# Made of: ", "#   "  # the first line of a file, and further ones
WIDTH = 120  # of a line


def write(
    layer: Any,
    backend: str,
    path: str | Path,
    *,
    call: Collection[str] = (),
    names: str | None = None,
    fused: bool = False,
    kind: str | None = None,
    force: bool = False,
) -> list[Path]:
    """Write a layer as one file that imports its framework and nothing of `mha`, with a test and a case beside it.

    The file is made from the lesson: it has the options of this layer and no others, with the lesson's names, shape
    comments and docstrings. Whether an option is there is decided; sizes and numbers stay arguments of the constructor.
    The layer keeps no weights of `layer`, and checks no arguments. Needs the extra `write`.

    Args:
        layer: an `mha.MultiHeadAttention`, or its configuration, an `mha.core.options.config.Config`.
        backend: name of the framework.
        path: file to write, "attention.py"; beside it come "test_attention.py" and "attention.safetensors".
        call: arguments of a call beside valid_lens, mask and causal: "positions", "score_bias", ...
        names: a scheme of `mha.weights.SCHEMES` whose names the layer's arrays get, so that the framework's own
            `load_state_dict` and the like take its files; where no renaming gives them, the layer gets a method
            `load(path, prefix="")`. None = the names of `mha`.
        fused: whether to pool by the framework's own kernel, in PyTorch, JAX and MLX; those of the last two drop no
            weights, and take the softmax in float32.
        kind: "nnx" for a module of Flax's NNX on JAX; None = the framework's usual, which is "linen" there.
        force: whether to overwrite files.

    Returns the paths of the three files.
    Raises TypeError or ValueError if an argument is not as above, or the framework or its layer lacks an option;
    FileExistsError if a file exists and force is False; ImportError if the extra is not installed.
    """
    config = layer if isinstance(layer, Config) else getattr(layer, "config", None)
    if not isinstance(config, Config):
        raise TypeError(f"layer is a {type(layer).__name__}, expected an mha.MultiHeadAttention or its .config")
    name, path = dispatch.parse_backend("backend", backend), Path(path)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ValueError(f"path is {str(path)!r}, expected a name of a Python module, such as attention.py")
    recipe = Recipe(config, name, call, names, fused, kind)
    texts = {path: file_text(recipe)}
    from mha.learn.write import proof
    from mha.learn.write.lesson import finishing

    beside = path.with_name(f"test_{path.name}"), path.with_suffix(".safetensors")
    texts[beside[0]] = finishing.format_text(proof.test(recipe, path.stem), beside=path.stem)
    cases = proof.cases(recipe)
    if not force:
        there = next((one for one in (path, *beside) if one.exists()), None)
        if there is not None:
            raise FileExistsError(f"{there} exists already; give another path, or force=True to overwrite it")
    for one, text in texts.items():
        one.write_text(text)
    beside[1].write_bytes(cases)
    return [path, *beside]


def check(path: str | Path) -> str:
    """Say whether a file is as `mha.write` wrote it.

    Returns "" if it is; else, in one sentence, whether it was edited or is outdated: written by another version.
    Raises FileNotFoundError if there is no such file, ValueError if it is none that `mha.write` wrote.
    """
    text = Path(path).read_text()
    told, body = split_recipe(text)
    try:
        of = json.loads(told)
        recorded, known = read(of), of["digest"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no file that mha wrote: its first line does not begin with {MADE_OF!r}") from None
    if digest(body) != known:
        return f"{path} was edited: it is not the text that was written"
    if file_text(recorded) != text:
        return f"{path} is outdated: this version writes it otherwise; write it again with --force"
    return ""


def file_text(recipe: Recipe) -> str:
    """The text of a file, with its recipe on the first lines."""
    try:
        from mha.learn.write.lesson import finishing, specialise
        from mha.learn.write.lesson.named import loading, renaming
        from mha.learn.write.lesson.variants import kernels
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        message = f"mha.write needs libcst, which reads the lesson, and ruff: {dispatch.pip_for(dispatch.WRITE)}"
        raise ImportError(message) from None
    if recipe.fused:
        kernels.refuse(recipe)
    renaming.refuse(recipe.config, recipe.names)
    program = specialise.specialise(recipe)
    loading.take_names(program, recipe)
    text = finishing.finish(program, recipe, header(recipe))
    made_of = f"{MADE_OF}{json.dumps(recipe.as_json() | {'digest': digest(text)})}"
    return "\n".join([*fold_line(made_of, GOES_ON), text])


def split_recipe(text: str) -> tuple[str, str]:
    """Split a file's text into its recipe, as JSON, "" = none, and the rest."""
    first, *lines = text.split("\n")
    if not first.startswith(MADE_OF):
        return "", text
    more = list(itertools.takewhile(lambda line: line.startswith(GOES_ON), lines))
    told = " ".join([first.removeprefix(MADE_OF), *(line.removeprefix(GOES_ON) for line in more)])
    return told, "\n".join(lines[len(more) :])


def fold_line(line: str, begin: str, end: str = "") -> list[str]:
    """Break a line at spaces; begin: the begin of the further lines; end: the end of all but the last."""
    width = WIDTH - len(end)
    lines = textwrap.wrap(line, width, subsequent_indent=begin, break_long_words=False, break_on_hyphens=False)
    return [f"{one}{end}" for one in lines[:-1]] + lines[-1:]


def header(recipe: Recipe) -> str:
    """The docstring of a file: its title, its letters, and the command that writes it."""
    version = sys.modules["mha"].__version__  # of the package, which hands this function on
    said = "\n".join(fold_line(f"mha {version}: {recipe.command}", "    ", " \\"))
    return (
        f'"""Multi-head attention in {dispatch.facts("TITLE")[recipe.backend]}: B batch, Q queries, K key-value '
        "pairs, T either, H heads. It checks no arguments.\n\n"
        f"{said}\nSPDX-License-Identifier: Apache-2.0\n"
        '"""\n'
    )


def digest(text: str) -> str:
    """A digest of a text, which shows whether it was edited."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
