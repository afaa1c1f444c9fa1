"""Checks of split layers in processes of their own: each is a function `check_...(group)` of a module beside this one.

`python ranks.py MODULE COUNT FOLDER SECONDS CHECK...` makes these checks on each of COUNT ranks, the processes of one
group of PyTorch; those of a module `..._of_jax` in one process with eight devices. It prints JSON: by rank, what came
of each, "" if it went well.
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
FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
OF_JAX = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS}


@dataclasses.dataclass(frozen=True)
class Group:
    """The arguments of a check: which rank it is, of how many, their mesh, and a folder that all share."""

    rank: int
    count: int
    mesh: Any
    folder: Path


def long(check):
    """Mark a check that takes long where a quicker one says nearly the same: `--long` has it too."""
    return check


def checks(module):
    """The checks in a module, which is not imported: by name, whether they are marked as long."""
    tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {one.name: bool(one.decorator_list) for one in functions if one.name.startswith("check_")}


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
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | OF_JAX
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
    names = list(checks(module))
    assert outcomes(module, count, folder, seconds, names) == {name: [""] * count for name in names}


def results(module, group, names):
    """What came of each check so far, yielded after each."""
    found = {}
    for name in names:
        try:
            getattr(importlib.import_module(module), name)(group)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        yield found


def work(module, rank, count, folder, names):
    """One rank: its checks, up to the first that fails, as the others would wait for this rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=WAIT)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, world_size=count, rank=rank)
    group = Group(rank, count, init_device_mesh("cpu", (count,), mesh_dim_names=("ranks",)), folder)
    for found in results(module, group, names):
        (folder / f"rank{rank}.part").write_text(json.dumps(found), encoding="utf-8")
        (folder / f"rank{rank}.part").replace(folder / f"rank{rank}.json")
        if any(found.values()):
            break
    sys.stdout.flush()
    os._exit(0)  # a group that lost a rank may not end by itself


def main(module, count, folder, seconds, *names):
    """Start the ranks, wait for them, end them, and print what they found; or of JAX, what this process found."""
    count, folder, end = int(count), Path(folder), time.monotonic() + float(seconds)
    if module.endswith("of_jax"):
        *_, found = results(module, Group(0, count, None, folder), names)
        print(json.dumps([found]))
        return
    import torch.distributed  # noqa: F401  once, not in each rank

    importlib.import_module(module)
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
