"""A layer of JAX on several devices, at length: batches, large scores, dropout, memory, and two processes."""

import os
import socket
import subprocess
import sys

import pytest
import ranks

pytestmark = pytest.mark.backends("jax")
LONG = "long_devices_of_jax"

# Each process has two devices; together they have a layer whose heads are split over four.
TOGETHER = """
import os, sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import mha
from mha import parallel

rank, address, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, rank, initialization_timeout=60)
assert jax.device_count() == 4 and jax.local_device_count() == 2
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("heads", "sequence"))
whole = mha.MultiHeadAttention(12, 4, bias=True, backend="numpy", seed=0)
attention = mha.MultiHeadAttention(12, 4, bias=True, backend="jax", seed=0)
attention.weights = whole.weights
module, variables = attention.layer.unbind()

def spread(X, spec):
    return jax.make_array_from_callback(X.shape, NamedSharding(mesh, spec), lambda part: np.asarray(X)[part])

is_spec = lambda X: isinstance(X, PartitionSpec)
variables = jax.tree.map(spread, variables, parallel.plan(module), is_leaf=lambda X: is_spec(X) or hasattr(X, "shape"))
X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")
Y = spread(X, PartitionSpec())
for how in ("ring", "ulysses", "gather"):
    call = jax.jit(lambda v, Y: parallel.attend(
        module, v, Y, Y, Y, [3, 5], causal=True, mesh=mesh, heads="heads", sequence="sequence", how=how
    ))
    output = jax.jit(lambda X: X, out_shardings=NamedSharding(mesh, PartitionSpec()))(call(variables, Y))
    expected = whole(X, X, X, [3, 5], causal=True)
    assert np.abs(np.asarray(output.addressable_shards[0].data) - expected).max() < 1e-5, how

layer = module.bind(variables)
collected = parallel.gather(layer)
assert all(np.array_equal(collected[name], X) for name, X in whole.weights.items())
try:
    mha.core.dispatch.load("jax").get_weights(layer)
    raise SystemExit("weights of other processes were taken for granted")
except RuntimeError as error:
    assert "mha.parallel.gather" in str(error), error
path = os.path.join(folder, "whole.safetensors")
parallel.save(layer, path)
zeros = module.bind(jax.tree.map(lambda X: X * 0, variables))
again = parallel.gather(parallel.load(zeros, path))
assert all(np.array_equal(again[name], X) for name, X in whole.weights.items())
try:
    parallel.save(layer, os.path.join(folder, "none", "whole.safetensors"))
    raise SystemExit("a file in no folder was written")
except (OSError, mha.parallel.whole.FileError) as error:
    assert "none" in str(error), error
"""


@pytest.mark.parametrize("name", ranks.checks(LONG))
def test_devices(name, tmp_path):
    assert ranks.outcomes(LONG, 1, tmp_path, 500, [name]) == {name: [""]}


def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "GLOO_SOCKET_IFNAME": "lo"}
    environment = os.environ | ranks.OF_JAX | flags
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(rank), address, str(tmp_path)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in started:
            _, problems = process.communicate(timeout=120)
            assert process.returncode == 0, problems
    finally:
        for process in started:
            process.kill()
