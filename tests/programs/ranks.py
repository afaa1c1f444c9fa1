"""Processes that are the ranks of one group of PyTorch, on this machine alone: one group for many checks.

`python ranks.py MODULE COUNT FOLDER SECONDS CHECK...` calls these functions of a module, whose names begin with
`check_`, on each of COUNT ranks, with a `Group`. It prints JSON: by rank, what came of each, "" if it went well.
"""

import ast
import contextlib
import dataclasses
import datetime
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WAIT = 30  # seconds that a rank waits for another


@dataclasses.dataclass(frozen=True)
class Group:
    """The arguments of a check: which rank it is, of how many, their mesh, and a folder that all share."""

    rank: int
    count: int
    mesh: Any
    folder: Path


def checks(module):
    """The names of the checks in a module of the tests, which is not imported."""
    tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


def refused(call, *parts, kind=ValueError):
    """A call raises an error with these parts in its one line."""
    try:
        call()
    except kind as error:
        text = str(error)
        assert all(part in text for part in parts), text
        assert "\n" not in text, text
    else:
        raise AssertionError(f"nothing raised that says {parts}")


def outcomes(module, count, folder, seconds, names):
    """The results of these checks on each rank: a dict by name of lists; no process is left after so many seconds."""
    command = [sys.executable, __file__, module, str(count), str(folder), str(seconds), *names]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, problems = process.communicate(timeout=seconds + WAIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, problems
    found = json.loads(said)
    unknown = f"no word of it; {problems[-2000:]}"
    return {name: [rank.get(name, unknown) for rank in found] for name in names}


def assert_all_well(module, count, folder, seconds):
    """Each check goes well on each rank of a group of so many."""
    names = checks(module)
    assert outcomes(module, count, folder, seconds, names) == {name: [""] * count for name in names}


def work(module, rank, count, folder, names):
    """One rank: its checks, up to the first that fails, as the others would wait for this rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=WAIT)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, world_size=count, rank=rank)
    group = Group(rank, count, init_device_mesh("cpu", (count,), mesh_dim_names=("ranks",)), folder)
    found = {}
    for name in names:
        try:
            getattr(importlib.import_module(module), name)(group)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        (folder / f"rank{rank}.part").write_text(json.dumps(found), encoding="utf-8")
        (folder / f"rank{rank}.part").replace(folder / f"rank{rank}.json")
        if found[name]:
            break
    sys.stdout.flush()
    os._exit(0)  # a group that lost a rank may not end by itself


def main(module, count, folder, seconds, *names):
    """Start the ranks, wait for them, end them, and print what they found."""
    import torch.distributed  # noqa: F401  once, not in each rank

    importlib.import_module(module)
    count, folder, end = int(count), Path(folder), time.monotonic() + float(seconds)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work, args=(module, rank, count, folder, names)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0, end - time.monotonic()))
    for process in processes:
        process.kill()
    texts = [folder / f"rank{rank}.json" for rank in range(count)]
    print(json.dumps([json.loads(text.read_text(encoding="utf-8")) if text.exists() else {} for text in texts]))


if __name__ == "__main__":
    main(*sys.argv[1:])
