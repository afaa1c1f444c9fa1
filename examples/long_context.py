"""Train one layer on a sequence that is too long for the memory of one device, but not for that of four.

Each device has a limit of memory for a step of training: forward, backward and a step of gradient descent. On one
device, the layer does not fit. With its sequence split over four, in a ring, it does:

    python examples/long_context.py torch                             # out of memory
    torchrun --nproc-per-node 4 examples/long_context.py torch        # trains
    python examples/long_context.py jax                               # too large, says the compiler
    python examples/long_context.py jax --devices 4                   # trains

In the end, it says what this saves, here on PyTorch and on JAX:

    1/4 of the rows on each of 4: 62 MiB instead of 131 for the whole layer; the steps took 1.4 times ...
    1/4 of the rows on each of 4: 56 MiB instead of 190 for the whole layer; the steps took 1.1 times ...

PyTorch has a process with one thread for each device, and the process cannot take more than the limit; the whole layer
is measured in one more process, without a limit. XLA says before a program runs how much it takes on each device. Other
ways to split the sequence: `--how ulysses`, `--how gather`.
"""

import ctypes
import datetime
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from functools import partial
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


class How(StrEnum):
    """The ways to split a sequence."""

    ulysses = "ulysses"
    ring = "ring"
    gather = "gather"


def main(
    backend: Annotated[Backend, typer.Argument(help="torch or jax.")],
    rows: Annotated[int, typer.Option(help="Queries, keys and values.", min=1)] = 8192,
    limit: Annotated[int, typer.Option(metavar="MIB", help="The memory of a device for a step.", min=1)] = 112,
    steps: Annotated[int, typer.Option(help="Steps of training.", min=1)] = 2,
    devices: Annotated[int, typer.Option(help="Devices of JAX; for PyTorch, torchrun sets them.", min=1)] = 1,
    how: Annotated[How, typer.Option(help="How the sequence is split: docs/parallel.md.")] = How.ring,
) -> None:
    """Train a layer on one long sequence; print the memory that each device took, and what splitting saved."""
    if backend == Backend.torch:
        with_torch(rows, limit, steps, how)
    else:
        with_jax(rows, limit, steps, devices, how)


def with_torch(rows: int, limit: int, steps: int, how: How) -> None:
    """Train on the ranks that torchrun has started, each a process with its own limit, or on this process alone."""
    from torch import distributed

    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:
        distributed.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    here = len(range(rows)[rank::ranks])
    try:
        took, seconds = on_this_process(rows, steps, limit, ranks, rank, how)
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error):
            raise
        typer.echo(f"rank {rank}: {here:,} rows take more than {limit} MiB; start more processes", err=True)
        os._exit(1)  # the others wait, and torchrun ends them
    typer.echo(f"rank {rank}: {here:,} rows took {took:.0f} MiB, limit {limit}")
    if ranks == 1:
        return
    each: list[Any] = [None] * ranks
    distributed.all_gather_object(each, (took, seconds))
    if rank == 0:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            whole, of_whole = alone.submit(on_this_process, rows, steps).result()
        memories, times = zip(*each, strict=True)
        typer.echo(saved(ranks, max(memories), whole, sum(times) / of_whole))
    distributed.barrier()  # a process that ends while gloo lets go of what it gathered may crash
    distributed.destroy_process_group()


def on_this_process(
    rows: int, steps: int, limit: int | None = None, ranks: int = 1, rank: int = 0, how: How = How.ring
) -> tuple[float, float]:
    """Train the part of this rank, or the whole layer if there is one; return MiB and the processor's seconds.

    limit: MiB, beyond which PyTorch raises; None = no limit.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: gives freed memory back to the system
    torch.set_num_threads(1)
    layer = mha.MultiHeadAttention(D, H, backend="torch", seed=0).layer
    if ranks > 1:
        layer = parallel.parallelize(layer, init_device_mesh("cpu", (ranks,)), how=how.value)
    own = torch.arange(rows).tensor_split(ranks)[rank]
    X = torch.sin(own[:, None] * torch.arange(1, D + 1) / rows)[None]  # (1, rows here, D)
    optimiser = torch.optim.SGD(layer.parameters(), RATE)
    layer(X[:, :8], X[:, :8], X[:, :8]).sum().backward()  # the set-up of a first call is no part of a step
    start, begun = memory("VmRSS"), time.process_time()
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = before if limit is None else int((memory("VmData") + limit) * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        for _ in tracked(steps, f"{rows:,} rows over {ranks}", shown=rank == 0):
            optimiser.zero_grad()
            loss = (layer(X, X, X, causal=True) - X).square().sum()
            loss.backward()
            optimiser.step()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))  # what comes later takes some, too
    return memory("VmHWM") - start, time.process_time() - begun


def with_jax(rows: int, limit: int, steps: int, devices: int, how: How) -> None:
    """Train on several devices of this process, which are parts of the processor if there are no others."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    import jax
    from jax import numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    module, variables = mha.MultiHeadAttention(D, H, backend="jax", seed=0).layer.unbind()
    X = jnp.sin(jnp.arange(rows)[None, :, None] * jnp.arange(1, D + 1) / rows)  # (1, rows, D)

    def program(devices: int) -> tuple[Any, float, tuple[Any, Any]]:
        """A compiled step on so many devices, the MiB that it takes on each, and its arguments, which lie there."""
        given, attend = (variables, X), module.apply
        if devices > 1:
            mesh = jax.make_mesh((devices,), ("sequence",))
            places = PartitionSpec(), PartitionSpec(None, "sequence")
            given = jax.device_put(given, tuple(NamedSharding(mesh, place) for place in places))
            attend = partial(parallel.attend, module, mesh=mesh, sequence="sequence", how=how.value)

        def loss(variables: Any, X: Any) -> Any:
            return jnp.square(attend(variables, X, X, X, causal=True) - X).sum()

        def step(variables: Any, X: Any) -> Any:
            gradients = jax.grad(loss)(variables, X)
            return jax.tree.map(lambda W, change: W - RATE * change, variables, gradients)

        compiled: Any = jax.jit(step).lower(*given).compile()
        return compiled, compiled.memory_analysis().temp_size_in_bytes / 2**20, given

    def trained(compiled: Any, variables: Any, X: Any, devices: int) -> float:
        """The processor's seconds for all steps."""
        begun = time.process_time()
        for _ in tracked(steps, f"{rows:,} rows over {devices}"):
            variables = jax.block_until_ready(compiled(variables, X))
        return time.process_time() - begun

    compiled, takes, given = program(devices)
    if takes > limit:
        typer.echo(
            f"{rows // devices:,} rows on a device take {takes:.0f} MiB, limit {limit}; take more devices", err=True
        )
        raise typer.Exit(1)
    seconds = trained(compiled, *given, devices)
    typer.echo(f"each of {devices} devices: {rows // devices:,} rows took {takes:.0f} MiB, limit {limit}")
    if devices > 1:
        compiled, whole, given = program(1)
        typer.echo(saved(devices, takes, whole, seconds / trained(compiled, *given, 1)))


def saved(devices: int, takes: float, whole: float, times: float) -> str:
    """What splitting saves a device in MiB, and how many times the processor time of the whole layer all take."""
    return (
        f"1/{devices} of the rows on each of {devices}: {takes:.0f} MiB instead of {whole:.0f} for the whole layer; "
        f"the steps took {times:.1f} times its processor time in all"
    )


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
