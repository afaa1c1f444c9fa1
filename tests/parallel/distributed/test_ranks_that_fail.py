"""A rank that ends or does not answer ends the others in time, with an error that names it."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.backends("torch")

# Groups of three ranks, all at once; in each the last rank fails in its way, after one call that goes well.
FAILING = """
import datetime, json, multiprocessing, os, signal, sys, time
import torch, torch.distributed
from torch.distributed.device_mesh import init_device_mesh
import mha

WAIT, RANKS, FAILING = 8, 3, 2

def end(way):
    os.kill(os.getpid(), signal.SIGSTOP if way == "stops" else signal.SIGKILL)

def work(rank, folder, way, how):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=WAIT)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, world_size=RANKS, rank=rank)
    mesh, X = init_device_mesh("cpu", (RANKS,)), torch.ones(2, 5, 12, requires_grad=True)
    layer = mha.MultiHeadAttention(12, 3, backend="torch", seed=0).layer
    mha.parallel.parallelize(layer, mesh, None if how == "heads" else how)
    output = layer(X, X, X)
    if rank == FAILING and way == "ends inside":
        torch.nn.Linear.forward = lambda *_: end(way)
    elif rank == FAILING:
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
for folder, way, how in json.loads(sys.argv[1]):
    groups.append([fork.Process(target=work, args=(rank, folder, way, how)) for rank in range(RANKS)])
for processes in groups:
    for process in processes:
        process.start()
for processes in groups:
    for process in processes[:FAILING]:
        process.join(40)
for processes in groups:
    for process in processes:
        process.kill()
"""
WAYS = [
    ("stops", "heads"),
    ("ends inside", "heads"),
    ("ends after it", "heads"),
    ("ends inside", "gather"),
    ("ends after it", "ulysses"),
    ("ends before a call", "ring"),
]


# Four ranks in a ring, of which the second ends while keys and values travel: the fourth waits for the third alone.
IN_A_RING = """
import datetime, json, multiprocessing, os, signal, sys
import torch, torch.distributed
from torch.distributed.device_mesh import init_device_mesh
import mha
from mha.parallel.torch.ring.circle import Circle

def work(rank, folder):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=8)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, world_size=4, rank=rank)
    mesh, X = init_device_mesh("cpu", (4,)), torch.ones(2, 5, 12)
    layer = mha.MultiHeadAttention(12, 3, backend="torch", seed=0).layer
    mha.parallel.parallelize(layer, mesh, "ring")
    if rank == 1:
        Circle.meetings = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    try:
        layer(X, X, X)
        said = ""
    except RuntimeError as error:
        said = str(error)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(said, file)
    os._exit(0)

fork = multiprocessing.get_context("fork")
processes = [fork.Process(target=work, args=(rank, sys.argv[1])) for rank in range(4)]
for process in processes:
    process.start()
for process in processes:
    process.join(40)
    process.kill()
"""


def test_the_first_rank_that_ended_is_named_by_all_of_a_ring(tmp_path):
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", IN_A_RING, str(tmp_path)], env=environment, timeout=100, check=True)
    for rank in (0, 2, 3):
        assert "rank 1 does not answer" in json.loads((tmp_path / f"{rank}.json").read_text())


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
    for rank in (0, 1):
        said, seconds = json.loads((folders[way] / f"{rank}.json").read_text())
        assert f"rank 2 does not answer rank {rank}" in said
        assert seconds < 20
