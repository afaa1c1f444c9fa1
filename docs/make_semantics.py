"""Write docs/semantics.md: what `mha` does with each kind of input, and what the book and the frameworks do instead.

Every cell of the page's tables is the result of a call; none is typed by hand. A probe is one call. `mha` makes it on
each backend, and an adapter makes it on each peer, with the same weights and the same numbers. `--check` compares the
page with the results of now.
"""

import difflib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

# Before any framework is imported. With one thread, kernels that write out of bounds always do so in the same order.
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}
sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the frameworks' own layers are made and called there

from semantics.page import page
from semantics.rows import TABLES
from semantics.verdicts import ask_peer

PAGE = Path(__file__).with_name("semantics.md")


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; show how the page differs from a new one.")
    ] = False,
    one: Annotated[tuple[str, str], typer.Option(hidden=True, help="Ask one peer, by name, one probe, by rule.")] = (
        "",
        "",
    ),
) -> None:
    """Write docs/semantics.md from the answers of `mha`, of the book's rule and of the frameworks' own layers.

    Exit code 1 if `mha` itself does not keep a rule, or if the page differs and --check is given.
    """
    if any(one):
        name, rule = one
        probe = next(probe for table in TABLES for probe in table.probes if probe.rule == rule)
        typer.echo(ask_peer(name, probe, probe.expected(), by_itself=True))
        return
    text, broken = page()
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if check:
        difference = difflib.unified_diff(old.splitlines(True), text.splitlines(True), "docs/semantics.md", "now")
        typer.echo("".join(difference), nl=False)
    else:
        PAGE.write_text(text, encoding="utf-8")
    for rule in broken:
        typer.echo(f"mha does not keep: {rule}", err=True)
    raise typer.Exit(1 if broken or (check and text != old) else 0)


if __name__ == "__main__":
    typer.run(main)
