"""Every option of `mha.write` alone, drawn ones together, and every scheme of names, each written and proven.

    python tests/write_all.py --backends torch,jax,nnx [--drawn 40] [--only TEXT]

nnx is JAX, with modules of NNX. Exit code 0 if every proof passes.
"""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import writing

import mha
from mha import dispatch


def made(folder, backend, config, call, names=None):
    """Write a file into a folder of its own, and prove it; its exit code and the words of the proof."""
    folder.mkdir()
    kind = backend if backend == "nnx" else None
    backend = "jax" if kind else backend
    mha.write(config, backend, folder / "attention.py", call=call, names=names, kind=kind)
    for command in (["check"], ["format", "--check", "--line-length", "120"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "."],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            return done.returncode, done.stdout
    return writing.proof(folder, backend)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", default=",".join([*dispatch.FRAMEWORKS, "nnx"]))
    parser.add_argument("--drawn", type=int, default=40)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    every = {name: (writing.config(**options), ()) for name, options in writing.OPTIONS.items()}
    every |= {f"drawn {seed}": writing.drawn(seed) for seed in range(given.drawn)}
    every |= {f"names {scheme}": (writing.config(), (), scheme) for scheme in mha.weights.SCHEMES}
    tasks = [(backend, name) for backend in given.backends.split(",") for name in every if given.only in name]
    wrong = 0
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:
        running = [
            (backend, name, pool.submit(made, Path(place, f"{number}"), backend, *every[name]))
            for number, (backend, name) in enumerate(tasks)
        ]
        for backend, name, future in running:
            try:
                code, said = future.result()
            except Exception as error:
                code, said = 1, repr(error)
            wrong += code != 0
            print(f"{backend} {name}: {'proven' if code == 0 else said[-3000:]}", flush=True)
    print(f"{len(tasks) - wrong} of {len(tasks)} are proven")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
