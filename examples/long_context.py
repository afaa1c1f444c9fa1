"""Train one layer on a sequence that is too long for the memory of one device, but not for that of four.

Each device has a limit of memory for a step of training: forward, backward and a step of gradient descent. On one
device, the layer does not fit. With its sequence split over four, it does: by ulysses on PyTorch and by a ring on JAX,
which need the least memory there:

    python examples/long_context.py torch                             # out of memory
    torchrun --nproc-per-node 4 examples/long_context.py torch        # trains
    python examples/long_context.py jax                               # too large, says the compiler
    python examples/long_context.py jax --devices 4                   # trains

PyTorch has a process for each device, and the process cannot take more than the limit. XLA says before a program runs
how much it takes on each device.
"""

import ctypes
import datetime
import os
import resource
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import mha
from mha import parallel

D, H, RATE = 512, 8, 1e-6


class Backend(StrEnum):
    """The backends whose layers can be split by sequence."""

    torch = "torch"
    jax = "jax"


def main(
    backend: Annotated[Backend, typer.Argument(help="torch or jax.")],
    rows: Annotated[int, typer.Option(help="Queries, keys and values.", min=1)] = 8192,
    limit: Annotated[int, typer.Option(metavar="MIB", help="The memory of a device for a step.", min=1)] = 112,
    steps: Annotated[int, typer.Option(help="Steps of training.", min=1)] = 2,
    devices: Annotated[int, typer.Option(help="Devices of JAX; for PyTorch, torchrun sets them.", min=1)] = 1,
) -> None:
    """Train a layer on one long sequence, and print the memory that each device took."""
    if backend == Backend.torch:
        with_torch(rows, limit, steps)
    else:
        with_jax(rows, limit, steps, devices)


def with_torch(rows: int, limit: int, steps: int) -> None:
    """Train on the ranks that torchrun has started, each a process with its own limit, or on this process alone."""
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: gives freed memory back to the system
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    layer = mha.MultiHeadAttention(D, H, backend="torch", seed=0).layer
    if ranks > 1:
        distributed.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
        layer = parallel.parallelize(layer, init_device_mesh("cpu", (ranks,)), how="ulysses")
    own = torch.arange(rows).tensor_split(ranks)[rank]
    X = torch.sin(own[:, None] * torch.arange(1, D + 1) / rows)[None]  # (1, rows here, D)
    optimiser = torch.optim.SGD(layer.parameters(), RATE)
    layer(X[:, :8], X[:, :8], X[:, :8]).sum().backward()  # the set-up of a first call is no part of a step
    start = memory("VmRSS")
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int((memory("VmData") + limit) * 2**20), hard))
    try:
        for _ in tracked(steps, f"{rows:,} rows on {ranks} processes", shown=rank == 0):
            optimiser.zero_grad()
            loss = (layer(X, X, X, causal=True) - X).square().sum()
            loss.backward()
            optimiser.step()
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error):
            raise
        typer.echo(f"rank {rank}: {len(own):,} rows take more than {limit} MiB; start more processes", err=True)
        os._exit(1)  # the others wait, and torchrun ends them
    resource.setrlimit(resource.RLIMIT_DATA, (before, hard))  # threads that begin at the end take some, too
    typer.echo(f"rank {rank}: {len(own):,} rows took {memory('VmHWM') - start:.0f} MiB, limit {limit}")
    if ranks > 1:
        distributed.destroy_process_group()


def with_jax(rows: int, limit: int, steps: int, devices: int) -> None:
    """Train on several devices of this process, which are parts of the processor if there are no others."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    import jax
    from jax import numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((devices,), ("sequence",))
    module, variables = mha.MultiHeadAttention(D, H, backend="jax", seed=0).layer.unbind()
    X = jnp.sin(jnp.arange(rows)[None, :, None] * jnp.arange(1, D + 1) / rows)  # (1, rows, D)
    X = jax.device_put(X, NamedSharding(mesh, PartitionSpec(None, "sequence")))
    variables = jax.device_put(variables, NamedSharding(mesh, PartitionSpec()))

    def loss(variables: Any, X: Any) -> Any:
        output = parallel.attend(module, variables, X, X, X, causal=True, mesh=mesh, sequence="sequence", how="ring")
        return jnp.square(output - X).sum()

    def step(variables: Any, X: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(variables, X)
        return value, jax.tree.map(lambda W, change: W - RATE * change, variables, gradients)

    compiled: Any = jax.jit(step).lower(variables, X).compile()
    takes = compiled.memory_analysis().temp_size_in_bytes / 2**20
    if takes > limit:
        typer.echo(
            f"{rows // devices:,} rows on a device take {takes:.0f} MiB, limit {limit}; take more devices", err=True
        )
        raise typer.Exit(1)
    for _ in tracked(steps, f"{rows:,} rows on {devices} devices"):
        _, variables = jax.block_until_ready(compiled(variables, X))
    typer.echo(f"each of {devices} devices: {rows // devices:,} rows took {takes:.0f} MiB, limit {limit}")


def memory(name: str) -> float:
    """The memory of this process in MiB, as Linux counts it: VmRSS, its peak VmHWM, or VmData."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:")) / 2**10


def tracked(steps: int, what: str, shown: bool = True) -> Iterator[int]:
    """The steps, with a progress bar."""
    columns = TextColumn(what), BarColumn(), TextColumn("step {task.completed} of {task.total}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        yield from bar.track(range(steps))


if __name__ == "__main__":
    typer.run(main)
