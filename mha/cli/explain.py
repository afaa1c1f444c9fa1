"""`mha explain`: every step of a call, with its shape, its line of code and its meaning; or in numbers."""

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import mha
from mha.cli import terminal
from mha.cli.backends import Backend, choose_backend
from mha.cli.terminal import flag, option
from mha.core.options import checks
from mha.core.options.names import BackendName, LanguageName
from mha.core.tables import plain_table, wrap, wrap_anywhere
from mha.learn import explain
from mha.learn.explain import Step
from mha.learn.languages import LANGUAGES, catalogue

LARGEST = 10**7  # numbers of one step: larger ones take long and show nothing new
MOST_SLOTS = 16  # more are too wide to see at once
# The steps of the example that are shown (queries and keys are split as values are), and a colour for each head.
SHOWN = (
    "queries", "keys", "values", "reshape_v", "permute_v", "split_v", "split_q", "split_k", "scores", "visible",
    "weights", "pooled", "merged", "output",
)  # fmt: skip
COLOURS = "cyan", "magenta"


def show(
    backend: Backend = None,
    batch: Annotated[int | None, option("B", "Number of samples; default: 2.", min=1)] = None,
    queries: Annotated[int | None, option("Q", "Queries per sample; default: 4.", min=1)] = None,
    keys: Annotated[
        int | None, option("K", "Keys and values per sample, or tokens of a prompt; default: 6.", min=1)
    ] = None,
    num_hiddens: Annotated[int | None, option("D", "Hidden units; default: 100.", "--hiddens", min=1)] = None,
    num_heads: Annotated[int | None, option("H", "Heads; default: 5.", "--heads", min=1)] = None,
    num_key_value_heads: Annotated[
        int | None, option("G", "Heads of keys and values; default: H.", "--kv-heads", min=1)
    ] = None,
    lens: Annotated[str | None, option("L,L", "A valid length for each sample; default: 3,2 for 2 samples.")] = None,
    decode: Annotated[
        int | None, option("N", "Put a prompt and N more tokens into a cache, and explain the last.", min=1)
    ] = None,
    slots: Annotated[int | None, option("S", "Slots of the cache, a ring; default: 4.", min=1, max=MOST_SLOTS)] = None,
    values: Annotated[bool, flag("--values", "Show a small example in numbers instead; its sizes are fixed.")] = False,
    lang: Annotated[str, option("NAME", f"The language: {', '.join(LANGUAGES)}.")] = "en",
    to: Annotated[str | None, option("FILE", "Also write every step to FILE; - is stdout.", "--json")] = None,
) -> None:
    """Explain the path of a tensor through the layer.

    It shows every step from inputs to output: its shape in letters and in numbers, the line of the backend's code that
    computes it, and its meaning. With --decode, it explains one token of a decoder with a cache: which position is in
    each slot, and weights by slots. With --values, it shows a small example instead, with numbers easy to follow.

    \b
    Examples:
      mha explain --backend jax
      mha explain --keys 3 --heads 4 --kv-heads 2
      mha explain --decode 2 --slots 4
      mha explain --values --lang ja

    Exit code 0 if all is well, 2 if the command is wrong or if the backend's framework is not installed.
    """
    name = choose_backend(backend)
    given = {
        "--batch": batch, "--queries": queries, "--keys": keys, "--hiddens": num_hiddens, "--heads": num_heads,
        "--kv-heads": num_key_value_heads, "--lens": lens, "--decode": decode, "--slots": slots,
    }  # fmt: skip
    with terminal.errors():
        language = checks.choice("--lang", lang, LANGUAGES)
        to_json = terminal.JsonFile(to)
        sizes = _sizes(given, values)
        explained = explain.example if values else explain.token if decode else explain.steps
        steps = explained(name, language=language, **sizes)
    console = to_json.console()
    if values:
        _show_example(console, name, language, steps)
    else:
        _show_steps(console, name, language, steps, sizes)
    rows = [{field: value for field, value in vars(step).items() if field != "value"} for step in steps]
    if values:
        rows = [row | {"values": step.value.tolist()} for row, step in zip(rows, steps, strict=True)]
    to_json.write({"mha": mha.__version__, "backend": name, "language": language, "steps": rows})


def _sizes(given: dict[str, Any], values: bool) -> dict[str, Any]:
    """Return the arguments of the function that explains, from the typed options; wrong ones end the command."""
    typed = [option for option, size in given.items() if size is not None]
    if values and typed:
        terminal.fail(f"{typed[0]} came with --values, whose sizes are fixed; leave out one of the two")
    if values:
        return {}
    N, S = given["--decode"], given["--slots"]
    if S and not N:
        terminal.fail(f"--slots is {S} without --decode, expected both: add --decode 1")
    if N and given["--queries"]:
        terminal.fail("--queries came with --decode, whose one query is the last token; leave out one of the two")
    defaults = {"--batch": 2, "--queries": 4, "--keys": 6, "--hiddens": 100, "--heads": 5}
    B, Q, K, D, H = (given[option] or default for option, default in defaults.items())
    if D % H:
        near = min((n for n in range(1, min(D, 2 * H) + 1) if D % n == 0), key=lambda n: abs(n - H))
        terminal.fail(f"--hiddens is {D}, expected a multiple of --heads = {H}; choose --heads {near}")
    if H % (G := given["--kv-heads"] or H):
        terminal.fail(f"--kv-heads is {G}, expected a divisor of --heads = {H}: each serves equally many")
    if (largest := max(D * D, B * Q * D, B * (K + (N or 0)) * D, B * H * Q * K)) > LARGEST:
        terminal.fail(f"a step has {largest:,} numbers, expected at most {LARGEST:,}; choose smaller sizes")
    lengths = _lengths(given["--lens"] or ("3,2" if B == 2 else None), B)
    sizes = {"batch": B, "num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "valid_lens": lengths}
    return sizes | ({"prompt": K, "tokens": N, "slots": S or 4} if N else {"queries": Q, "keys": K})


def _lengths(lens: str | None, batch: int) -> list[int] | None:
    """Return the valid lengths in a text, such as 3,2."""
    if lens is None:
        return None
    parts = [part.strip() for part in lens.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        terminal.fail(f"--lens is {lens}, expected whole numbers of at least 0, joined by commas, such as 3,2")
    if len(parts) != batch:
        terminal.fail(f"--lens is {lens}, expected {batch} lengths, one for each sample; --batch says how many")
    return [min(int(part), 2**31 - 1) for part in parts]


def _show_steps(
    console: Console, backend: BackendName, language: LanguageName, steps: list[Step], sizes: dict[str, Any]
) -> None:
    """Print every stage: its arrays, its meaning and the lines that compute it; sizes: the arguments."""
    texts, shapes = catalogue(language)["explain"], {step.name: step.shape for step in steps}
    (B, Q, D), K = shapes["output"], shapes["keys"][1]
    H, d, G = shapes["reshape_q"][2], shapes["split_q"][2], shapes["reshape_k"][2]
    console.print(*_lines(console, texts["title"].format(backend=backend), indent=""), "", sep="\n", style="bold")
    _print(console, texts["sizes"].format(B=B, Q=Q, K=K, D=D, H=H, d=d, dv=shapes["split_v"][2]))
    if G != H:
        _print(console, texts["groups"].format(G=G, times=H // G))
    if "slots" in sizes:
        _print(console, texts["decoded"].format(S=sizes["slots"], K=sizes["prompt"], N=sizes["tokens"]))
    if (valid_lens := sizes["valid_lens"]) is not None:
        _print(console, texts["valid_lens"].format(lengths=", ".join(map(str, valid_lens))))
    widths = [max(len(text) for text in column) for column in zip(*((s.name, s.letters) for s in steps), strict=True)]
    for number, (_, group) in enumerate(itertools.groupby(steps, lambda step: step.stage), 1):
        stage = list(group)
        console.print()
        for mark, step in zip([f"{number}.", *[""] * (len(stage) - 1)], stage, strict=True):
            row = f"{mark:>3} {step.name:{widths[0]}}  {step.letters:{widths[1]}}  {step.shape}"
            console.print(row, style="bold")
        _print(console, stage[0].meaning)
        for file, line, function, source in dict.fromkeys((s.file, s.line, s.function, s.source) for s in stage):
            if file is not None:
                console.print(f"    {file}:{line} {function}", style="dim")
                _print_source(console, source)
    if "slots" in sizes:
        _show_slots(console, language, {step.name: step.value for step in steps})
    console.print()
    _print(console, texts["run"])


def _show_slots(console: Console, language: LanguageName, named: dict[str, np.ndarray]) -> None:
    """Print the effect of one token of each sample on the slots: positions before and after, and weights."""
    words, axes = (catalogue(language)["explain"][table] for table in ("slots", "axes"))
    B, S = named["positions_after"].shape
    weights = named["weights"].reshape(B, -1, S)  # (B, H, S)
    console.print()
    _print(console, words["legend"])
    for b in range(B):
        table = plain_table(axes["B"].format(number=b), *(axes["S"].format(number=slot) for slot in range(S)))
        rows = {words[f"positions_{when}"]: map(str, named[f"positions_{when}"][b]) for when in ("before", "after")}
        rows[words["visible"]] = map(str, named["visible"][b].ravel())
        for head, row in enumerate(weights[b]):
            rows[axes["H"].format(number=head)] = map("{:.2f}".format, row)
        for name, cells in rows.items():
            table.add_row(name, *cells)
        console.print("", table, sep="\n")
        if (lost := named["lost_after"][b]) >= 0:
            _print(console, words["lost"].format(position=lost))


def _show_example(console: Console, backend: BackendName, language: LanguageName, steps: list[Step]) -> None:
    """Print the arrays of the worked example, matrix by matrix, with a note on each stage."""
    words, axes = catalogue(language)["explain"]["example"], catalogue(language)["explain"]["axes"]
    console.print(*_lines(console, words["title"].format(backend=backend), indent=""), "", sep="\n", style="bold")
    for note in ("values", "scale", "padding"):
        _print(console, words[note])
    if console.color_system and not console.no_color:
        heads = (Text("  ").append(axes["H"].format(number=head), colour) for head, colour in enumerate(COLOURS))
        console.print(Text.assemble("    ", words["heads"], *heads))
    named = {step.name: step for step in steps}
    H = named["reshape_q"].shape[2]
    noted = set()
    for step in (named[name] for name in SHOWN):
        console.print()
        console.print(f"    {step.name}  {step.letters}  {step.shape}", style="bold")
        _print_source(console, step.source)
        _print_in_rows(console, list(_matrices(step, H, axes)))
        if step.stage in words and step.stage not in noted:
            noted.add(step.stage)
            _print(console, words[step.stage])


def _matrices(step: Step, H: int, axes: dict[str, str]) -> Iterator[Panel]:
    """Yield the matrices of an array's last two axes, each with a title that names it, and heads in colours."""
    *before, rows, columns = step.letters.strip("()").split(", ")
    for index in np.ndindex(step.shape[:-2]):
        at: dict[str, int] = {}
        for letter, number in zip(before, index, strict=True):
            at |= dict(zip("BH", divmod(number, H), strict=True)) if letter == "B*H" else {letter: number}
        title = ", ".join(axes[letter].format(number=number) for letter, number in at.items() if letter in axes)
        title = f"{index[0]}: {title}" if "B*H" in before else title
        matrix = [[_number(number) for number in row] for row in step.value[index].tolist()]
        width = max(len(text) for row in matrix for text in row)
        lines = Text()
        for i, row in enumerate(matrix):
            named = {rows: i, **at}
            lines.append(f"{axes[rows].format(number=i)}  " if rows in axes else "", "dim")
            for j, text in enumerate(row):
                head = j * H // len(row) if columns.startswith(("H*", "D")) else named.get("H")
                lines.append(f"{text:>{width}} ", COLOURS[head] if head is not None else "")
            lines.rstrip()
            lines.append("\n" if i < len(matrix) - 1 else "")
        yield Panel(lines, title=title, padding=(0, 1), expand=False)


def _print_in_rows(console: Console, matrices: list[Panel]) -> None:
    """Print matrices side by side; the terminal's width decides how many stand in a row."""
    widest = max(console.measure(matrix).maximum for matrix in matrices)
    number = next((n for n in (4, 2) if n <= len(matrices) and n * widest <= console.width), 1)
    for first in range(0, len(matrices), number):
        console.print(Columns(matrices[first : first + number], padding=0))


def _number(value: float | bool) -> str:
    """Format a number of the example; all are whole numbers, quarters or ln 3."""
    if isinstance(value, bool):
        return str(value)
    return str(round(value)) if math.isclose(value, round(value), abs_tol=1e-5) else f"{value:.2f}"


def _print_source(console: Console, source: str | None) -> None:
    """Print the lines that compute a step, if any do."""
    for text in (source or "").splitlines():
        console.print("\n".join(wrap(text, console.width, "      ")), style="cyan")


def _print(console: Console, text: str) -> None:
    console.print("\n".join(_lines(console, text)))


def _lines(console: Console, text: str, indent: str = "    ") -> list[str]:
    """Return a text in any language as lines that fit in a usual terminal."""
    return wrap_anywhere(text, min(console.width, 80), indent)
