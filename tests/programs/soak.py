"""Call each backend many thousand times and see that its memory stays: `python tests/programs/soak.py --calls 10000`.

Every backend runs in a process of its own. Its calls are of all kinds, refused ones among them; the memory that counts
is what the process holds after the first tenth of the calls, when everything has been imported, compiled and cached,
and what it holds at the end.
"""

import concurrent.futures
import contextlib
import gc
import importlib
import itertools
import multiprocessing
import tempfile
import time
import weakref
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

import mha
from mha.core import dispatch

B, Q, K, H, D = 2, 17, 23, 4, 64
POINTS = 20  # how often the memory is measured

# How much a process may grow, in MiB. Without a leak it was at most 0.5 in 10,000 calls; one output (B, Q, D) lost in
# each call of one kind, of the nine, is 8.
LIMIT = 4


class Soak:
    """The calls of one backend, all on one layer and its shapes, so that nothing new needs to be compiled."""

    def __init__(self, backend: str, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.backend, self.path, self.rng = backend, folder / "layer.safetensors", rng
        self.attention = mha.MultiHeadAttention(D, H, 0.5, True, backend=backend)
        self.arrays = [rng.normal(size=(B, T, D)).astype("float32") for T in (Q, K, K)]
        self.native = [mha.tensor(array, backend=backend) for array in self.arrays]
        self.weights = self.attention.weights
        self.mask = rng.random((B, H, Q, K)) < 0.5
        self.book = book(backend, self.native)
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        self.calls = itertools.cycle(
            [
                lambda: self.attention(*self.arrays),
                lambda: self.attention(*self.native, self.lengths(), return_weights=True),
                lambda: self.attention(*self.arrays, mask=self.mask, causal=True, training=True),
                lambda: self.attention.gradients(*self.arrays, self.lengths()),
                lambda: self.attention.trace(*self.arrays, self.lengths()),
                lambda: self.attention.weights,
                self.assign,
                self.book,
                self.pull_back,
                lambda: mha.masked_softmax(mha.ones((B, Q, K), backend=backend), self.lengths()),
            ]
        )

    def call(self, number: int) -> None:
        """The call of this number."""
        if number % 10 == 0:
            self.refused(number)
        elif number % 100 == 1:
            self.save_and_load()
        elif number % 100 == 2:
            self.in_a_thread()
        else:
            next(self.calls)()

    def lengths(self) -> np.ndarray:
        return self.rng.integers(0, K + 2, B)

    def pull_back(self) -> None:
        output, pull_back = self.attention.vjp(*self.arrays, self.lengths(), training=True)
        for _ in range(2):
            pull_back(np.ones_like(output))

    def assign(self) -> None:
        self.attention.weights = {name: array + 1e-3 for name, array in self.weights.items()}

    def save_and_load(self) -> None:
        if self.backend == "tensorflow":
            import keras

            # Keras's own advice for layers made in a loop: else TensorFlow keeps 35 KiB for each new variable's name.
            keras.utils.clear_session(free_memory=False)
        self.attention.save(self.path)
        loaded = mha.load(self.path, backend=self.backend)
        mha.sync(loaded, self.attention)
        loaded(*self.arrays)

    def in_a_thread(self) -> None:
        """A call in a thread that ends with it; MXNet itself never gives back the 5 MiB that each thread takes."""
        if self.backend == "mxnet":
            self.thread.submit(self.book).result()
        else:
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                thread.submit(self.book).result()

    def refused(self, number: int) -> None:
        """A call with a wrong argument, which must not outlive it."""
        wrong = [np.ones((B, T, D), "float32") for T in (Q, K, K)]
        where = number // 10 % 3
        wrong[where] = wrong[where][:, :, 1:]
        references = [weakref.ref(array) for array in wrong]
        with contextlib.suppress(ValueError):
            (self.attention, self.attention.gradients, self.attention.trace)[where](*wrong)
            raise RuntimeError(f"call {number} was not refused")
        del wrong
        if any(reference() is not None for reference in references):
            raise RuntimeError(f"call {number} was refused, and yet something keeps its arguments")


def book(backend, native):
    """A call of the book's layer; NumPy has none."""
    if backend == "numpy":
        return lambda: None
    module = dispatch.load(backend)
    attention = importlib.import_module(f"mha.d2l.{backend}").MultiHeadAttention(D, H, 0.5)
    if backend == "jax":
        import jax

        call, variables = jax.jit(attention.apply), attention.init(jax.random.key(0), *native)
        return lambda: call(variables, *native)
    if backend == "mxnet":
        attention.initialize()

    def call():
        with module.context("float32"):
            return attention(*native), attention.attention.attention_weights

    return call


def soak(backend: str, calls: int) -> list[tuple[float, float]]:
    """Make the calls; at each point, the memory in MiB, and the seconds since the start."""
    points = []
    with tempfile.TemporaryDirectory() as folder:
        work = Soak(backend, Path(folder))
        start = time.perf_counter()
        for number in range(calls):
            work.call(number)
            if (number + 1) % (calls // POINTS) == 0:
                gc.collect()
                points.append((psutil.Process().memory_info().rss / 2**20, time.perf_counter() - start))
    return points


def main(
    names: Annotated[str, typer.Option("--backends", help="The backends to soak, joined by commas.")] = ",".join(
        dispatch.FRAMEWORKS
    ),
    calls: Annotated[int, typer.Option(help="Calls for each backend.", min=1000)] = 10_000,
) -> None:
    """Call each backend many times; exit code 1 if one grows or fails."""
    table = Table("backend", "calls", "MiB at 10 %", "at 50 %", "at 100 %", "growth", "calls per second")
    failed = False
    spawn = multiprocessing.get_context("spawn")  # a fork would take the parent's memory along
    for name in track(names.split(","), "Calling", console=Console(stderr=True)):
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            try:
                points = pool.submit(soak, name, calls).result()
            except Exception as error:
                failed = True
                table.add_row(name, f"[bold red]FAILED: {escape(repr(error))}")
                continue
        tenth, half, end = (points[POINTS * share // 10 - 1][0] for share in (1, 5, 10))
        growth = end - tenth
        failed |= growth > LIMIT
        colour = "[bold red]" if growth > LIMIT else ""
        memory = (f"{each:.1f}" for each in (tenth, half, end))
        table.add_row(name, str(calls), *memory, f"{colour}{growth:+.1f}", f"{calls / points[-1][1]:.0f}")
    Console().print(table)
    print(f"a process may grow by {LIMIT} MiB")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
