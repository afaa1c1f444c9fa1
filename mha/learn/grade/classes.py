"""Grade a class of submissions, several at once; results are kept at once, so that a next run goes on from there."""

import concurrent.futures
import csv
import dataclasses
import hashlib
import io
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mha.learn.grade import files
from mha.learn.grade.grade import Grader
from mha.learn.grade.results import STATUS

Row = dict[str, Any]


def digest(path: Path, grader: Grader) -> str:
    """A digest of the files of a submission and of the way to grade them."""
    found = hashlib.sha256(repr(dataclasses.replace(grader)).encode())
    for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if one.is_file():
            found.update(str(one.relative_to(path)).encode() + one.read_bytes())
    return found.hexdigest()[:16]


def grade_one(grader: Grader, path: Path) -> Row:
    """Grade one submission, and return its row."""
    return grader.grade(path).data() | {"digest": digest(path, grader)}


def earlier_rows(file: Path, wanted: dict[Path, str]) -> dict[Path, Row]:
    """Read the rows of an earlier run for these submissions, unless they have changed since."""
    found: dict[Path, Row] = {}
    by_digest = {(path.name, text): path for path, text in wanted.items()}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            row = dict(json.loads(line))
            if (path := by_digest.get((row["name"], row["digest"]))) is not None:
                found[path] = row
        except (ValueError, KeyError, TypeError):  # a run that was stopped while it wrote
            continue
    return found


def grade_all(
    grader: Grader, folder: Path, output: Path | None, jobs: int, progress: Callable[[int, int], None]
) -> list[Row]:
    """Grade each submission in a folder, so many at once; return their rows by name.

    output: a file for the grades, see `table`; beside it, each row is kept as a line of JSON, from which the next run
    goes on. progress: a function of how many of how many are done.
    """
    wanted = {path: digest(path, grader) for path in files.submissions(folder)}
    record = None if output is None else output.with_suffix(".jsonl")
    rows = {} if record is None else earlier_rows(record, wanted)
    progress(len(rows), len(wanted))
    left = [path for path in wanted if path not in rows]
    if record is not None:
        record.write_text("".join(f"{json.dumps(row)}\n" for row in rows.values()), encoding="utf-8")
    # Processes, not threads: the search for reasons is work of Python.
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(grade_one, grader, path): path for path in left}
        for future in concurrent.futures.as_completed(waiting):
            row = rows[waiting[future]] = future.result()
            if record is not None and output is not None:
                with record.open("a", encoding="utf-8") as opened:
                    opened.write(f"{json.dumps(row)}\n")
            progress(len(rows), len(wanted))
    found = [rows[path] for path in wanted]
    if output is not None:
        output.write_text(table(found), encoding="utf-8")
    return found


def table(rows: list[Row]) -> str:
    """Write rows as CSV: name, framework, points, and the points and the reason of each level."""
    text = io.StringIO()
    levels = [one["level"] for one in rows[0]["levels"]] if rows else []
    columns = [f"level {number}{what}" for number in levels for what in ("", " reason")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "framework", "points", "of", *columns, "problem"])
    for row in rows:
        each = [value for one in row["levels"] for value in (one["points"], one["reason"])]
        writer.writerow([row["name"], row["framework"], row["points"], row["most"], *each, row["problem"]])
    return text.getvalue()


def mistakes(rows: Iterable[Row]) -> list[tuple[int, str, int]]:
    """Count who made which mistake, by level: (level, mistake, how many), the commonest first."""
    counts: Counter[tuple[int, str]] = Counter()
    for row in rows:
        for one in row["levels"]:
            if one["status"] == "passed":
                continue
            status = "unknown" if one["status"] == "wrong" else STATUS[one["status"]]
            made = one["mistakes"][0] if one["mistakes"] else [f"({status})"]
            counts.update((one["level"], name) for name in made)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(level, name, count) for (level, name), count in ordered]


def gradescope(row: Row) -> dict[str, Any]:
    """Return a row as Gradescope reads results.json."""
    return {
        "score": row["points"],
        "output": row["problem"] and f"while it was loaded: {row['problem']}",
        "visibility": "visible",
        "tests": [
            {
                "number": str(one["level"]), "name": one["title"], "score": one["points"], "max_score": one["most"],
                "status": "passed" if one["status"] == "passed" else "failed", "output": one["text"],
                "visibility": "visible",
            }
            for one in row["levels"]
        ],
    }  # fmt: skip
