"""A rank that ends or does not answer ends the others in time, with an error that names it."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.backends("torch")

# Groups of ranks, all at once; in each one rank fails in its way, after one call that goes well.
FAILING = """
import datetime, json, multiprocessing, os, signal, sys, time
import torch, torch.distributed
from torch.distributed.device_mesh import init_device_mesh
import mha
from mha.parallel.torch.ring.circle import Circle

WAIT = 8

def end(way):
    os.kill(os.getpid(), signal.SIGSTOP if way == "stops" else signal.SIGKILL)

def work(rank, folder, way, how, count, failing):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=WAIT)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, world_size=count, rank=rank)
    mesh, X = init_device_mesh("cpu", (count,)), torch.ones(2, 5, 12, requires_grad=True)
    layer = mha.MultiHeadAttention(12, 3, backend="torch", seed=0).layer
    mha.parallel.parallelize(layer, mesh, None if how == "heads" else how)
    output = layer(X, X, X)
    if rank == failing and way == "ends inside":
        torch.nn.Linear.forward = lambda *_: end(way)
    elif rank == failing and way == "ends while keys travel":
        Circle.meetings = lambda *_: end(way)
    elif rank == failing:
        end(way)
    before = time.monotonic()
    try:
        output.sum().backward() if way == "ends after it" else layer(X, X, X)
        said = ""
    except RuntimeError as error:
        said = str(error)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump([said, time.monotonic() - before], file)
    os._exit(0)

fork, groups = multiprocessing.get_context("fork"), []
for folder, way, how, count, failing in json.loads(sys.argv[1]):
    given = [(rank, folder, way, how, count, failing) for rank in range(count)]
    groups.append(([fork.Process(target=work, args=one) for one in given], failing))
for processes, _ in groups:
    for process in processes:
        process.start()
for processes, failing in groups:
    for rank, process in enumerate(processes):
        process.join(0 if rank == failing else 40)
for processes, _ in groups:
    for process in processes:
        process.kill()
"""
# How the rank fails and what is split; of how many ranks it is which. In a ring of four, of which the second ends, the
# fourth waits for the third alone.
WAYS = [
    ("stops", "heads", 3, 2),
    ("ends inside", "heads", 3, 2),
    ("ends after it", "heads", 3, 2),
    ("ends inside", "gather", 3, 2),
    ("ends after it", "ulysses", 3, 2),
    ("ends before a call", "ring", 3, 2),
    ("ends while keys travel", "ring", 4, 1),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each way, where the ranks that go on wrote what was raised, and after how many seconds."""
    found = {way: tmp_path_factory.mktemp("ranks") for way in WAYS}
    told = json.dumps([[str(folder), *way] for way, folder in found.items()])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", FAILING, told], env=environment, start_new_session=True)
    try:
        assert process.wait(100) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_fails_is_named_by_the_others(folders, way):
    *_, count, failing = way
    for rank in {*range(count)} - {failing}:
        said, seconds = json.loads((folders[way] / f"{rank}.json").read_text())
        assert f"rank {failing} does not answer" in said
        assert count > 3 or f"does not answer rank {rank}" in said
        assert seconds < 20
