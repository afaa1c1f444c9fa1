"""Run the notebooks of docs/course/ and write what they print and draw into them: python docs/make_course.py.

Each notebook runs in a Jupyter kernel, and then the solutions of its exercises, in their order. The output of a
solution is written into the text block after its code. `--check` writes nothing, and compares: each backend must print
the same texts and draw the same number of pictures. A cell with the tag "backend" is compared on NumPy alone, a cell
with the tag "timings" never.
"""

import copy
import difflib
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated

import nbformat
import typer
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from mha.core import dispatch

FOLDER = Path(__file__).with_name("course")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
SOLUTION = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def run(notebook: nbformat.NotebookNode, backend: str) -> nbformat.NotebookNode:
    """Run a copy of a notebook on a backend; CellExecutionError shows the cell that raises."""
    done = copy.deepcopy(notebook)
    solutions = [code for cell in markdown(done) for code, _ in SOLUTION.findall(cell.source)]
    whole = nbformat.from_dict(done | {"cells": done.cells + [nbformat.v4.new_code_cell(code) for code in solutions]})
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(whole, timeout=600, kernel_name="python3", record_timing=False, coalesce_streams=True)
        client.extra_arguments = ["--IPKernelApp.log_level=ERROR"]
        client.resources = {"metadata": {"path": folder}}
        client.execute(env=os.environ | QUIET | {"MHA_BACKEND": backend})
    done.cells = whole.cells[: len(done.cells)]
    printed = (text(cell) for cell in whole.cells[len(done.cells) :])
    for cell in markdown(done):
        cell.source = SOLUTION.sub(
            lambda found: f"```python\n{found[1]}```\n\n```text\n{next(printed)}```", cell.source
        )
    return done


def markdown(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells of a notebook that hold text."""
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def text(cell: nbformat.NotebookNode) -> str:
    """The text that a cell prints, with a mark for each picture."""
    return "".join(
        output.text if output.output_type == "stream" else "".join(f"[{kind}]\n" for kind in sorted(output.data))
        for output in cell.outputs
    )


def shown(notebook: nbformat.NotebookNode, backend: str) -> list[str]:
    """The lines of a notebook that must be the same on a backend: its Markdown, and the output of its cells."""
    left_out = {"timings"} if backend == "numpy" else {"timings", "backend"}
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif not left_out & set(cell.metadata.get("tags", [])):
            parts.append(f"{cell.source}\n---\n{text(cell)}")
    return "\n\n".join(parts).splitlines(keepends=True)


def main(
    backends: Annotated[str, typer.Option(help="Backends, joined by commas; all: each of them.")] = "numpy",
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; show how notebooks differ from new ones.")
    ] = False,
    only: Annotated[str, typer.Option(help="The beginning of a notebook's name.")] = "",
) -> None:
    """Run the notebooks of the course, and write the outputs of NumPy into them.

    Exit code 1 if a cell raises or, with --check, a notebook shows something else on one of the backends.
    """
    names, differs = list(dispatch.FRAMEWORKS) if backends == "all" else backends.split(","), False
    if unknown := set(names) - dispatch.FRAMEWORKS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}, expected some of {', '.join(dispatch.FRAMEWORKS)}")
    if names != ["numpy"] and not check:
        raise typer.BadParameter(f"{backends}: the outputs are those of numpy; add --check")
    for path in sorted(FOLDER.glob(f"{only}*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        for name in names:
            try:
                done = run(notebook, name)
            except CellExecutionError as error:
                typer.echo(f"{path.name} on {name}: {error}", err=True)
                raise typer.Exit(1) from None
            if not check:
                nbformat.write(done, path)
                continue
            lines = shown(notebook, name), shown(done, name)
            difference = "".join(difflib.unified_diff(*lines, path.name, f"{path.name} on {name}"))
            typer.echo(difference or f"{path.name} on {name}: the same")
            differs |= bool(difference)
    raise typer.Exit(1 if differs else 0)


if __name__ == "__main__":
    typer.run(main)
