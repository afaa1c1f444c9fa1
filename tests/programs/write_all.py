"""Every option of `mha.write` alone, drawn ones together, and every scheme of names: written, proven and compiled.

    python tests/programs/write_all.py --backends torch,jax,nnx [--drawn 40] [--only TEXT]

Checkers of style and types read them, too. nnx is JAX, with modules of NNX.
Exit code 0 if nothing is wrong.
"""

import argparse
import functools
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import compiling
import writing

import mha
from mha.core import dispatch
from mha.learn.write.lesson.variants.kernels import KERNELS


def every(drawn):
    """What is asked for by names of files: configurations, and what else `mha.write` is told."""
    found = {name.replace(" ", "_"): (writing.config(**options), {}) for name, options in writing.OPTIONS.items()}
    found["together"] = writing.config(**writing.TOGETHER), {"call": writing.MORE}
    for seed in range(drawn):
        config, call = writing.drawn(seed)
        found[f"drawn_{seed}"] = config, {"call": call}
    for scheme in mha.weights.SCHEMES:
        found[f"names_{scheme.replace('-', '_')}"] = writing.config(), {"names": scheme}
    for name, options in {"plain": {}, "known": writing.KNOWN}.items():
        of_kernel = {"call": [one for one in writing.MORE if one not in ("score_bias", "return_weights")]}
        found[f"kernel_{name}"] = writing.config(**options), of_kernel | {"fused": True}
    return found


def written(path, backend, config, given):
    """Write one file and its proof; what went wrong, or ""."""
    backend, kind = ("jax", "nnx") if backend == "nnx" else (backend, None)
    try:
        mha.write(config, backend, path, kind=kind, **given)
    except Exception as error:
        return f"is not written: {error!r}"
    return ""


def proven(folder, backend, compiled=""):
    """What the proofs in a folder say, or "" if they pass."""
    code, output = writing.proof(folder, backend, "--tb=short", compiled=compiled)
    return output if code else ""


def checks(folder, backend):
    """Functions that say what is wrong with the files in a folder, by what each is about."""
    found = {"proven": functools.partial(proven, folder, backend)}
    if backend in compiling.COMPILERS:
        found["compiled"] = functools.partial(proven, folder, backend, "whole")
    for checker in writing.CHECKERS:
        if checker != "pyright" or backend in writing.TYPED:
            found[checker] = functools.partial(writing.refused, folder, checker)
    return found


def wrong_of(backend, files, folder):
    """Write, prove, compile and check files of one framework, and print a line for each; how many are wrong."""
    if backend not in ("nnx", *KERNELS):
        files = {name: one for name, one in files.items() if not one[1].get("fused")}
    with ProcessPoolExecutor(2) as pool:
        running = {name: pool.submit(written, folder / f"{name}.py", backend, *given) for name, given in files.items()}
    wrong = {name: one.result() for name, one in running.items() if one.result()}
    with ThreadPoolExecutor(2) as pool:
        outputs = {name: pool.submit(check) for name, check in checks(folder, backend).items()}
    said = {name: one.result() for name, one in outputs.items()}
    for name, output in said.items():
        named = {file for file in files if re.search(rf"\b(test_)?{file}\.py\b", output)}
        wrong |= dict.fromkeys(named, f"is not {name}")
        if output:
            print(f"{backend} {name}: {output[-6000:]}")
        if output and not named:
            wrong[name] = "names no file"
    for name in files:
        print(f"{backend} {name}: {wrong.get(name, ', '.join(said))}", flush=True)
    return len(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", default=",".join([*dispatch.FRAMEWORKS, "nnx"]))
    parser.add_argument("--drawn", type=int, default=40)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    files = {name: one for name, one in every(given.drawn).items() if given.only in name}
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        for backend in given.backends.split(","):
            folder = Path(place, backend)
            folder.mkdir()
            wrong += wrong_of(backend, files, folder)
    print(f"{wrong} wrong of {len(files)} files of each of {given.backends}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
