"""Serve the parent process: read requests as lines of JSON, write answers as lines of JSON, and arrays to files."""

import contextlib
import json
import os
import sys
from typing import Any

import numpy as np

from . import guard, submission
from .frameworks import FRAMEWORKS
from .reference import Reference, stand_in
from .tasks import Tasks

load, savez = np.load, np.savez  # as they are before a submission


def serve(arguments: str) -> None:
    """Load a submission, and run the tasks that come in on one pipe; write their results to another.

    arguments: JSON with the submission's path, its folder, its frameworks, of which the first counts, whether their own
    attention is allowed, the limits, and the numbers of the two pipes.
    """
    given = json.loads(arguments)
    sys.dont_write_bytecode = True
    sys.path.insert(0, given["folder"])
    guard.limit(given["memory"], given["file_size"], given["seconds"])
    asked, answers = os.fdopen(given["asked"], encoding="utf-8"), os.fdopen(given["answers"], "w", encoding="utf-8")

    def say(**known: Any) -> None:
        print(json.dumps(known), file=answers, flush=True)

    for name in given["frameworks"]:
        with contextlib.suppress(ImportError, AttributeError):
            if name == "mxnet":
                _let_mxnet_be_imported(given["mxnet"])
            FRAMEWORKS[name].xp  # noqa: B018 - imports it
            if not given["allow"]:
                guard.forbid_own_attention(name)
    submission.imitate_the_book(lambda: sys.modules.get(submission.NAME))
    guard.watch(given["folder"])
    say(begins="import")
    module, problem = submission.load(given["path"])
    names = vars(module)
    given_names = names.get("NAMES")
    aliases: dict[str, str] = given_names if isinstance(given_names, dict) else {}
    say(loaded=problem, defined=[name for name in given["names"] if aliases.get(name, name) in names])
    framework, own = given["frameworks"][0], dict(names)
    for line in asked:
        request = json.loads(line)
        names.clear()
        names.update(own)
        reference = Reference(FRAMEWORKS[framework], **request["like"])
        replaced = stand_in(names, reference, request["failed"], aliases)
        say(number=request["number"], **answer(Tasks(names, aliases, framework), request, given["path"]))
        for owner, name, method in replaced:
            setattr(owner, name, method)


def answer(tasks: Tasks, request: dict[str, Any], path: str) -> dict[str, Any]:
    """Run one task; put its arrays into a file, and return the rest."""
    try:
        with load(request["inputs"], allow_pickle=False) as file:
            given = {name: file[name] for name in file.files}
        arrays, facts = tasks.run(request["kind"], given, request["options"])
        savez(request["results"], **arrays)  # type: ignore[arg-type]
        return {"facts": facts}
    except submission.FailureError as failure:
        return {"failure": failure.kind, "text": str(failure)}
    except NotImplementedError:
        return {"failure": "missing", "text": "it raises NotImplementedError"}
    except RecursionError:
        return {"failure": "raised", "text": "it calls itself without end (RecursionError)"}
    except MemoryError:
        return {"failure": "memory", "text": ""}
    except Exception as error:
        return {"failure": "raised", "text": submission.describe_error(error, path)}


def _let_mxnet_be_imported(path: str) -> None:
    """Run the file that makes MXNet importable beside a new NumPy; it needs nothing of its package."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("import_mxnet", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.enable()
