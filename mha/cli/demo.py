"""`mha demo`: the book's example, its steps from input to output, and the attention weights of each head."""

import inspect
import os
import textwrap
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import mha
from mha.cli import grids, terminal
from mha.cli.backends import Backend, choose_backend
from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.names import BackendName
from mha.core.tables import plain_table, wrap
from mha.layer import restore
from mha.learn.explain.lines import place
from mha.learn.explain.path import INPUTS, letters


def demo(backend: Backend = None) -> None:
    """Show multi-head attention at work on one backend.

    It shows an example from Dive into Deep Learning as code, every step from input to output with its shape and its
    place in the code, and the attention weights of each head.

    \b
    Example:
      mha demo --backend jax
    """
    name = choose_backend(backend)
    with terminal.errors():
        dispatch.load(name)
    # The example is printed just as it runs, and it names no backend: so the option sets the variable.
    os.environ["MHA_BACKEND"] = name
    show(terminal.console())


def example() -> tuple[mha.MultiHeadAttention, Any]:
    """The book's example, which `mha demo` prints and runs: the layer and its output (2, 4, 100)."""
    attention = mha.MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5)
    X, Y = mha.ones((2, 4, 100)), mha.ones((2, 6, 100))
    output = attention(X, Y, Y, mha.tensor([3, 2]))
    return attention, output


def show(console: Console) -> None:
    """Print the demonstration on the backend that MHA_BACKEND chooses.

    Raises ValueError if that names no backend, ModuleNotFoundError if its framework is not installed.
    """
    attention, output = example()
    valid_lens = [3, 2]
    queries, keys = (mha.to_numpy(mha.normal(0, 1, (2, T, 100), seed=seed)) for seed, T in enumerate((4, 6)))
    lesson = restore(attention.config, attention.weights, attention.backend, attention.seed, readable=True)
    steps = {"queries": queries, "keys": keys, "values": keys} | lesson.trace(queries, keys, keys, valid_lens)
    _, weights = lesson(queries, keys, keys, valid_lens, return_weights=True)  # (B, H, Q, K)

    console.print(f"Multi-head attention on the backend {attention.backend!r}\n", style="bold")
    console.print("1. The book's example", style="bold")
    source = textwrap.dedent("\n".join(inspect.getsource(example).splitlines()[2:-1]))
    _paragraphs(console, *source.splitlines(), style="cyan")
    _paragraphs(console, f"output.shape: {checks.shape(output)}", "")

    console.print("2. From input to output", style="bold")
    B, H, Q, K = weights.shape
    D, d, dv = attention.config.num_hiddens, attention.config.key_dim, attention.config.value_dim
    sizes = f"B = {B} samples, Q = {Q} queries, K = {K} keys and values, D = {D} hidden units,"
    _paragraphs(console, sizes, f"H = {H} heads, d = {d} wide in queries and keys, dv = {dv} in values", "")
    console.print(steps_table(attention.backend, attention.config, steps), "")
    run = "This code has just run. With MHA_READABLE=1 it runs in every call, and stops at your breakpoints."
    _paragraphs(console, run, "")

    console.print("3. What each head of sample 0 attends to, in random queries and keys", style="bold")
    marks = grids.marks(console)
    rows = "Rows are queries, columns are keys. A mark shows the attention weight of a key:"
    _paragraphs(console, rows, grids.legend(marks))
    heads = (Panel(grids.heat_map(head, marks), title=f"head {h}", padding=0) for h, head in enumerate(weights[0]))
    console.print(Columns(heads, padding=0, expand=False))
    _paragraphs(console, f"Queries of sample 0 see {valid_lens[0]} keys; the other keys are padding.", "")

    console.print("4. What to try next", style="bold")
    _paragraphs(console, *_next(attention.backend))


def _paragraphs(console: Console, *texts: str, style: str = "") -> None:
    """Print indented texts, each on a new line; "" = an empty line. Lines are no longer than in a usual terminal."""
    for text in texts:
        console.print("\n".join(wrap(text, min(console.width, 80), "   ")), style=style)


def steps_table(backend: BackendName, config: Config, steps: dict[str, Any]) -> Table:
    """Return a table of every step: its shape in letters and numbers, and the line of the lesson that computes it."""
    shapes = letters(config)
    table = plain_table("step", "shape", "here", "code, in mha/backends/")
    for name, step in steps.items():
        where = None if name in INPUTS else place(backend, name)
        code = f"{where.file}:{where.line} {where.function}" if where else ""
        table.add_row(name, shapes[name], str(checks.shape(step)), code)
    return table


def _next(backend: BackendName) -> list[str]:
    known = dispatch.backends().values()
    others = [other.name for other in known if other.installed and other.name != backend]
    missing = [other.name for other in known if not other.installed]
    lines = [f"MHA_BACKEND={name} mha demo" for name in others]
    if missing:
        lines.append(f"mha backends: how to install {', '.join(missing)}")
    lines.append("mha parity: do the installed backends compute the same numbers?")
    return [*lines, f"{dispatch.FOLDER / backend}: the code in eight chapters; compare it with the others"]
