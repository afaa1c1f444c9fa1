"""Checks by the ranks of a group of a layer of PyTorch whose sequence is split, in minutes.

Letters as in the lesson; N ranks.
"""

import resource
import threading
import time
from pathlib import Path

import torch
from sequence_over_ranks import HOWS, D, layer_of, part, random, same, ways_of
from torch import distributed

import mha
from mha import parallel
from mha.parity.cases import devices


def check_the_whole_suite(group):
    ways_of(group, "full", None, None)


def check_the_whole_suite_by_the_kernel(group):
    """But for scores in the thousands in float32, of which PyTorch's kernel rounds the sums on one device, too."""
    before, devices.WIDTHS = devices.WIDTHS, devices.WIDTHS | {"value_dim": 11}
    try:
        ways_of(group, "full", None, ("float64",))
        ways_of(group, "full", [one.name for one in devices.cases_of(group.count) if one.scale == 1], None)
    finally:
        devices.WIDTHS = before


def check_compiled_calls(group):
    mesh = group.mesh
    X = part(random(2, 6, D), mesh).detach().requires_grad_()
    for how in HOWS:
        layer = layer_of(how, mesh)
        expected = layer(X, X, X, [3, 5])
        found = torch.compile(layer, backend="eager")(X, X, X, [3, 5])
        same(found, expected)
        found.sum().backward()


def check_memory(group):
    """Forward and backward take, beyond inputs, weights and their gradients, what docs/scale.md says of the whole."""
    mesh = group.mesh
    T, width, N = 8192, 512, mesh.size()
    inputs = [torch.randn(1, T // N, width, requires_grad=True) for _ in range(3)]
    whole = [torch.randn(1, T, width, requires_grad=True) for _ in range(3)]
    limits = {"ulysses": lambda alone: 1.2 * (12 * 2**20 + 13.5 * T * width * 4 / N)}
    limits |= {"ring": lambda alone: 2 / N * alone, "gather": lambda alone: alone}
    for causal in (True, False):
        alone = taken(layer_of_width(width), whole, causal) if group.rank == 0 else 0
        alone = torch.tensor(float(alone))
        distributed.broadcast(alone, 0, group=mesh.get_group())
        for how, limit in limits.items():
            layer = parallel.parallelize(layer_of_width(width), mesh, how)
            found, most = taken(layer, inputs, causal), limit(float(alone))
            assert 0 < found <= most, (how, causal, found / 2**20, most / 2**20)


def layer_of_width(width):
    return mha.MultiHeadAttention(width, 8, bias=False, seed=0, backend="torch").layer


def taken(layer, inputs, causal):
    """The bytes that a call and its gradients take at most, where libraries and gradients have theirs already."""
    for X in inputs:
        X.grad = torch.zeros_like(X)
    layer(*(X[:, :8] for X in inputs), causal=causal).sum().backward()
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
        output = layer(*inputs, causal=causal)
        output.backward(torch.ones_like(output))
    finally:
        done.set()
        watcher.join()
    return most[0] - before
