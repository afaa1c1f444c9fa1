"""Checks by the ranks of a group of a layer of PyTorch whose sequence is split, in minutes.

Letters as in the lesson; N ranks.
"""

import resource
import threading
import time
from pathlib import Path

import torch
from sequence_over_ranks import HOWS, D, layer_of, part, random, same, ways_of

import mha
from mha import parallel


def check_the_whole_suite(group):
    ways_of(group, "full", None, None)


def check_compiled_calls(group):
    mesh = group.mesh
    X = part(random(2, 6, D), mesh).detach().requires_grad_()
    for how in HOWS:
        layer = layer_of(how, mesh)
        expected = layer(X, X, X, [3, 5])
        found = torch.compile(layer, backend="eager")(X, X, X, [3, 5])
        same(found, expected)
        found.sum().backward()


def check_memory_of_ulysses(group):
    """Forward and backward of ulysses take little more than 12 MiB + 13.5 V/N, beyond inputs, weights and gradients."""
    mesh = group.mesh
    T, width, N = 8192, 512, mesh.size()
    layer = mha.MultiHeadAttention(width, 8, bias=False, seed=0, backend="torch").layer
    parallel.parallelize(layer, mesh, "ulysses")
    inputs = [torch.randn(1, T // N, width, requires_grad=True) for _ in range(3)]
    layer(*(X[:, :8] for X in inputs)).sum().backward()  # so that libraries have what they keep, and gradients are
    page, most, done = resource.getpagesize(), [0], threading.Event()

    def now():
        taken, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
        return (int(taken) - int(shared)) * page

    def watch():
        while not done.is_set():
            most[0] = max(most[0], now())
            time.sleep(0.002)

    before, watcher = now(), threading.Thread(target=watch)
    watcher.start()
    try:
        output = layer(*inputs)
        output.backward(torch.ones_like(output))
    finally:
        done.set()
        watcher.join()
    limit = 1.2 * (12 * 2**20 + 13.5 * T * width * 4 / N)
    assert most[0] > before
    assert most[0] - before <= limit, ((most[0] - before) / 2**20, limit / 2**20)
