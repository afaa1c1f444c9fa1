"""`mha grade`: students' attention, one submission or a class, level by level."""

from pathlib import Path
from typing import Annotated

import typer

from mha.cli import terminal
from mha.cli.terminal import flag, option
from mha.core import dispatch
from mha.core.tables import plain_table, plural
from mha.learn.grade import classes, levels
from mha.learn.grade import hand_out as assignment
from mha.learn.grade.grade import Grader

FLAGGED = 3  # exit code of what passes, but raised an error while it was loaded


def grade(
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="A submission (.py or .ipynb), or a folder with many.")
    ] = None,
    output: Annotated[
        str | None, option("FILE", "Write the grades of a class as CSV, or a folder to hand out.", "--output", "-o")
    ] = None,
    chosen: Annotated[str | None, option("A-B", "Levels to grade, as 1-6 or 1,2,5; default: all.", "--levels")] = None,
    jobs: Annotated[int, option("N", "Of a class: so many submissions at once.", min=1)] = 1,
    seed: Annotated[int, option("N", "Draw the inputs from N.", min=0)] = 0,
    hints: Annotated[int, option("0-2", "0 the level; 1 the step and axis; 2 the mistake.", min=0, max=2)] = 2,
    backend: Annotated[str, option("NAME", "The framework of a submission that imports none.")] = "numpy",
    empty_rows: Annotated[bool, flag("--empty-rows", "Queries that see no key count: their output must be 0.")] = False,
    allow: Annotated[bool, flag("--allow", "Submissions may use the framework's own attention.")] = False,
    limit: Annotated[float, option("SECONDS", "Stop what takes longer in one case.", min=1)] = 20.0,
    json_file: Annotated[
        str | None, option("FILE", "Write all results as JSON to FILE; - is stdout.", "--json")
    ] = None,
    gradescope: Annotated[
        str | None, option("FILE", "Of one submission: write results.json as Gradescope reads it to FILE.")
    ] = None,
    hand_out: Annotated[
        str | None, option("NAME", "Grade nothing: write an assignment in this framework, into the folder of -o.")
    ] = None,
) -> None:
    """Grade attention that students wrote, level by level: what passed, what differs first, why, and a hint.

    The levels: 1 masked_softmax; 2 DotProductAttention or dot_product_attention; 3 transpose_qkv and transpose_output;
    4 MultiHeadAttention with one head, 5 with many; 6 lengths and masks; 7 gradients; 8 grouped heads and rotation;
    9 the cache. Each level has 10 points. A mistake counts once: later levels run with ours in place of what failed.
    The page "Teaching" of the project says how each is called.

    A submission runs in its own process, with limits of time, memory and files. It gets inputs and gives arrays; it
    cannot import mha, nor use the framework's own attention without --allow. This is against accidents, not malice:
    the page "Teaching" has a line for a container.

    If PATH is a folder, each .py, .ipynb and folder in it is a submission. With -o grades.csv, each result is also kept
    in grades.jsonl, and the next run goes on from there; what has changed is graded again.

    With --hand-out, it writes an assignment for these levels: a skeleton, made from the lesson of the framework,
    visible tests, and a readme for students.

    A submission is flagged if one of its statements raised an error while it was loaded, as what is refused does: its
    points are what its levels give, and somebody should read it.

    \b
    Examples:
      mha grade student.py
      mha grade student.ipynb --levels 1-6 --hints 1
      mha grade submissions/ --jobs 2 -o grades.csv
      mha grade submission.py --gradescope results.json
      mha grade --hand-out torch --levels 1-6 -o assignment/

    Exit code 0 if a submission passes all levels, or a class was graded; 1 if a level of a submission did not pass;
    2 if the command is wrong; 3 if all levels pass, or a class was graded, but a submission is flagged.
    """
    with terminal.errors():
        framework, asked = dispatch.parse_backend("--backend", backend), levels.parse_levels(chosen)
        if hand_out is not None:
            _hand_out(hand_out, asked, path, output)
    if path is None:
        terminal.fail("PATH is missing: a submission, or a folder with many")
    given, grader = Path(path), Grader(asked, seed, framework, empty_rows, allow, limit, hints)
    if not given.exists():
        terminal.fail(f"there is no file or folder {path}")
    to_json = terminal.JsonFile(json_file)
    if given.is_dir():
        if gradescope:
            terminal.fail("--gradescope is for one submission, and PATH is a folder; Gradescope runs one at a time")
        _class(grader, given, output, jobs, to_json)
    for name, value in (("--output", output), ("--jobs", jobs > 1)):
        if value:
            terminal.fail(f"{name} is for a class, and PATH is one submission; leave it out")
    results = terminal.writable("--gradescope", gradescope) if gradescope else None
    result = grader.grade(given)
    if json_file != "-":
        terminal.console().print(result)
    to_json.write(result.data())
    if results is not None:
        terminal.write_json(results, classes.gradescope(result.data()))
    raise typer.Exit((FLAGGED if result.problem else 0) if result else 1)


def _hand_out(name: str, asked: tuple[levels.Level, ...], path: str | None, output: str | None) -> None:
    """Write an assignment, and end the command."""
    if path is not None:
        terminal.fail(f"--hand-out grades nothing, and PATH is {path}; leave one of them out")
    if output is None:
        terminal.fail("--hand-out needs a folder: -o assignment/")
    try:
        assignment.write(Path(output), dispatch.parse_backend("--hand-out", name), asked)
    except OSError as error:
        terminal.fail(f"--output is {output}, where nothing can be written: {error.strerror}")
    terminal.console().print(f"wrote {', '.join(assignment.FILES)} to {output}")
    raise typer.Exit(0)


def _class(grader: Grader, folder: Path, output: str | None, jobs: int, to_json: terminal.JsonFile) -> None:
    """Grade a class, print its tables, and end the command."""
    to = Path(terminal.writable("--output", output)) if output else None
    with terminal.progress() as bar:
        task = bar.add_task("submissions", total=None)
        rows = classes.grade_all(
            grader, folder, to, jobs, lambda done, total: bar.update(task, completed=done, total=total)
        )
    if not rows:
        terminal.fail(f"{folder} holds no submission: no .py, no .ipynb, and no folder with one")
    console = to_json.console()
    flagged = [row["name"] for row in rows if row["problem"]]
    last = ("first reason", "flagged") if flagged else ("first reason",)
    grades = plain_table("name", "framework", "points", *[str(level.number) for level in grader.levels], *last)
    for row in rows:
        each = [str(one["points"]) for one in row["levels"]]
        reason = next((f"{one['level']}: {one['reason']}" for one in row["levels"] if one["status"] != "passed"), "")
        problem = (row["problem"],) if flagged else ()
        grades.add_row(row["name"], row["framework"], f"{row['points']} of {row['most']}", *each, reason, *problem)
    console.print(grades)
    made = classes.mistakes(rows)
    if made:
        counts = plain_table("level", "mistake", "students")
        for level, name, count in made:
            counts.add_row(str(level), name, str(count))
        console.print()
        console.print(counts)
    mean = sum(row["points"] for row in rows) / len(rows)
    console.print(f"{plural(len(rows), 'submission')}, {mean:.1f} of {rows[0]['most']} points on average")
    if flagged:
        console.print(f"{len(flagged)} flagged, whose code somebody should read: {', '.join(flagged)}")
    if to is not None:
        console.print(f"grades are in {output}, and what to tell each student in {to.with_suffix('.jsonl').name}")
    made_by = [{"level": level, "mistake": name, "students": count} for level, name, count in made]
    to_json.write({"submissions": rows, "mistakes": made_by})
    raise typer.Exit(FLAGGED if flagged else 0)
