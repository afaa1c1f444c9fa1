"""Plant deliberate bugs and see the tests fail: `python tests/plant_bugs.py --backends torch,jax`.

Every bug of a backend is a replacement in the source of its module. The changed module takes the place of the real one
in a process of its own, the tests run there, and a bug that no test notices is an error. Bugs of what reads weights,
and of the rules that the tests measure by, are planted in a copy of the package. A pattern that is not found is an
error too, so that the lists cannot go stale.
"""

import concurrent.futures
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mha import backends, dispatch

TESTS = ["test_dropout.py", "test_reference.py", "test_layer.py", "test_parity.py"]
BLOCKS_TESTS = ["test_reference.py", "test_blocks.py"]

# name -> replacements (pattern, replacement), the same for every backend where the line is, else by backend.
# A pattern is a regular expression; a replacement's words in capitals are written each backend's way.
# Those of the path that works on blocks.
BLOCKS_BUGS: dict[str, list[tuple[str, str]] | dict[str, list[tuple[str, str]]]] = {
    "a block forgets its place": [(r"(first|tf\.cast\(first, tf\.int64\)) \+ (\w+\.(arange|range))", r"\2")],
    "a query that sees nothing counts as seeing": [(r"return limits > 0", "return limits >= 0")],
    "unseen positions keep what they hold": [
        (r"queries, keys, values = blank\(queries, keys, values, (sees, seen|\*used\(.*\))\)", "pass"),
    ],
    "lengths of the first queries in every block": {
        "numpy": [(r"valid_lens\[samples, queries\]", "valid_lens[samples, : len(valid_lens[0, queries])]")],
        "torch": [(r"valid_lens\[samples, queries\]", "valid_lens[samples, : len(valid_lens[0, queries])]")],
        "mxnet": [(r"valid_lens\[samples, queries\]", "valid_lens[samples, : len(valid_lens[0, queries])]")],
        "tensorflow": [(r"valid_lens\[samples, queries\]", "valid_lens[samples, : len(valid_lens[0, queries])]")],
        "jax": [(r"(X\.reshape\(X\.shape\[0\], count, -1, .*swapaxes\(0, 1\))", r"jnp.stack(count * [\1[0]])")],
    },
    "causal order ends before the block does": {
        "numpy": [(r"first \+ size if causal", "first + 1 if causal"), (r"min\(K, first \+ size\)", "first + 1")],
        "torch": [(r"first \+ size if causal", "first + 1 if causal")],
        "mxnet": [(r"min\(K, first \+ size\)", "min(K, first + 1)")],
        "tensorflow": [(r"tf\.minimum\(longest, first \+ size\)", "tf.minimum(longest, first + 1)")],
        "jax": [(r"jnp\.minimum\(last, first \+ size\)", "jnp.minimum(last, first // 2)")],
    },
}
BUGS: dict[str, list[tuple[str, str]] | dict[str, list[tuple[str, str]]]] = {
    **BLOCKS_BUGS,
    "split without permuting": [
        (r"X = .*\(.*0, 2, 1, 3\)+  # \(B, H, T, d\)", "X = RESHAPE(X, (B, num_heads, T, width // num_heads))"),
    ],
    "merge without permuting": [
        (r"X = .*\(.*0, 2, 1, 3\)+  # \(B, T, H, d\)", "X = RESHAPE(X, (BH // num_heads, T, num_heads, d))"),
    ],
    "lengths tiled over heads, not repeated": [
        (r"(visible = \S*broadcast_to\(.*\))  # \(B, H, Q, K\)", r"\1; visible = SWAP(visible)"),
    ],
    "length counts one key too many": [(r"each_key < ", "each_key <= ")],
    "length counts one key too few": [(r"each_key < ", "each_key + 1 < ")],
    "causal hides the query's own key": [(r"each_key <= each_query", "each_key < each_query")],
    "causal forgotten where there are lengths": [(r"= causal or ", "= causal and valid_lens is None or ")],
    "causal order ends at the last key": [
        (r"each_key <= each_query\[:, None\]",
         "each_key <= each_query[:, None] + (keys.shape[1] - queries.shape[1])"),
    ],
    "length of the first sample for all": [(r"\[:, None, :, None\]\)", "[:1, None, :, None])")],
    "mask means hide": [
        (r"conditions\.append\(mask\[:, None\] if len\(mask\.shape\) == 3 else mask\)",
         "conditions.append((mask[:, None] if len(mask.shape) == 3 else mask) == False)"),
    ],
    "mask of the first head for all": [
        (r"if len\(mask\.shape\) == 3 else mask\)", "if len(mask.shape) == 3 else mask[:, :1])"),
    ],
    "mask of the first sample for all": [
        (r"mask\[:, None\] if len\(mask\.shape\) == 3", "mask[:1, None] if len(mask.shape) == 3"),
    ],
    "mask of the first query for all": [
        (r"conditions\.append\(mask\[:, None\] if len\(mask\.shape\) == 3 else mask\)",
         "conditions.append((mask[:, None] if len(mask.shape) == 3 else mask)[:, :, :1])"),
    ],
    "no scale": [(r" / math\.sqrt\(d\)", "")],
    "scale by d, not its root": [(r"math\.sqrt\(d\)", "d")],
    "scale by the number of keys": [(r"math\.sqrt\(d\)", "math.sqrt(keys.shape[1])")],
    "square kernels not transposed": {
        "numpy": [(r"arrays\[name\]", "(ARRAY)")], "torch": [(r"arrays\[name\]", "(ARRAY)")],
        "tensorflow": [(r"arrays\[name\]", "(ARRAY)")], "mxnet": [(r"arrays\[name\]", "(ARRAY)")],
        "jax": [(r"tensor\(array\) for name", "tensor(array.T if len(set(array.shape)) == 1 else array) for name")],
    },
    "keys projected in place of values": [
        (r"self\.W_v\(values\)", "self.W_v(values if keys.shape != values.shape else keys)"),
    ],
    "bias of the values dropped": [(r"self\.W_v\(values\)", "self.W_v(values) - self.W_v(values * 0)")],
    "bias of the output dropped": [
        (r"output = self\.W_o\(merged\)", "output = self.W_o(merged) - self.W_o(merged * 0)"),
    ],
    "dropout when not training": {
        "numpy": [(r"if not training or self\.dropout == 0", "if self.dropout == 0")],
        "torch": [(r"self\.dropout, training\)", "self.dropout, True)")],
        "tensorflow": [(r"self\.dropping\(weights, training=training\)", "self.dropping(weights, training=True)")],
        "jax": [(r"deterministic=not training", "deterministic=False"), (r"if training and layer", "if layer")],
        "mxnet": [(r"if training else weights", "if True else weights")],
    },
    "dropout without growing the kept": [
        (r"self\.drop\(weights, training\)", "self.drop(weights, training) * (1 - self.dropout)"),
    ],
    "weights returned after dropout": [
        (r"( +)(weights = visible_softmax\(scores, visible\).*)", r"\1\2\n\1weights = self.drop(weights, training)"),
    ],
    "weak mask fill": [(r"hidden = .*", "hidden = FILL(-10.0)")],
    "fill of float16 in every dtype": [(r"hidden = .*", "hidden = FILL(-65504.0)")],
    "the book's fill, empty rows uniform": [
        (r"hidden = .*", "hidden = FILL(-1e6)"),
        (r"    return \S*where\(visible, weights, .*", "    return weights"),
    ],
    "fill of minus infinity, empty rows NaN": [
        (r"hidden = .*", 'hidden = FILL(-float("inf"))'),
        (r"    return \S*where\(visible, weights, .*", "    return weights"),
    ],
    "empty rows uniform": [(r"    return \S*where\(visible, weights, .*", "    return weights")],
    "softmax over the queries": {
        "numpy": [(r"exponentials\.sum\(-1", "exponentials.sum(-2")],
        "torch": [(r"(torch\.softmax\(.*), -1\)", r"\1, -2)")],
        "tensorflow": [(r"(tf\.nn\.softmax\(.*), -1\)", r"\1, -2)")],
        "jax": [(r"(jax\.nn\.softmax\(.*), -1\)", r"\1, -2)")],
        "mxnet": [(r"(npx\.softmax\(.*)\)", r"\1, axis=-2)")],
    },
    "padding not blanked": [(r"if visible is None:(\n +return queries, keys, values)", r"if True:\1")],
    "queries without keys not blanked": [(r"queries = \S*where\(sees, queries, .*", "queries = queries")],
    "unseen values not blanked": [(r"values = \S*where\(seen, values, .*", "values = values")],
    "additive scores without tanh": [(r"\w+\.tanh\(", "(")],
    "scores in float32 whatever the dtype": {
        "numpy": [(r"np\.promote_types\(X\.dtype, np\.float32\)", "np.float32")],
        "torch": [(r"torch\.promote_types\(X\.dtype, torch\.float32\)", "torch.float32")],
        "tensorflow": [(r"tf\.cast\(X, tf\.float32\) if .*", "tf.cast(X, tf.float32)")],
        "jax": [(r"jnp\.promote_types\(X\.dtype, jnp\.float32\)", "jnp.float32")],
        "mxnet": [(r"onp\.promote_types\(X\.dtype, onp\.float32\)", '"float32"')],
    },
    "no gradient through the weights": {
        "numpy": [(r"by_scores = weights \*", "by_scores = 0 * weights *")],
        "torch": [(r"self\.drop\(weights, training\)", "self.drop(weights.detach(), training)")],
        "tensorflow": [(r"self\.drop\(weights, training\)", "self.drop(tf.stop_gradient(weights), training)")],
        "jax": [(r"self\.drop\(weights, training\)", "self.drop(jax.lax.stop_gradient(weights), training)")],
        "mxnet": [(r"self\.drop\(weights, training\)", "self.drop(weights.detach(), training)")],
    },
}  # fmt: skip

# How each backend writes what the replacements above leave open.
WAYS = {
    "RESHAPE(X, ": {"tensorflow": "tf.reshape(X, "} | dict.fromkeys(("numpy", "torch", "jax", "mxnet"), "X.reshape("),
    "SWAP(visible)": {"tensorflow": "tf.transpose(visible, (1, 0, 2, 3))"}
    | dict.fromkeys(("numpy", "torch", "jax", "mxnet"), "visible.swapaxes(0, 1)"),
    "FILL": {
        "numpy": "scores.dtype.type",
        "torch": "scores.new_tensor",
        "tensorflow": "(lambda fill: tf.constant(fill, scores.dtype))",
        "jax": "scores.dtype.type",
        "mxnet": "(lambda fill: np.full_like(scores, fill))",
    },
    "ARRAY": dict.fromkeys(
        dispatch.FRAMEWORKS, "arrays[name].T if len(set(arrays[name].shape)) == 1 else arrays[name]"
    ),
}


# What reads and writes weights: module of mha.weights, pattern, replacement.
WEIGHTS_TESTS = [
    "test_schemes.py", "test_schemes_refused.py", "test_schemes_named.py", "test_checkpoints.py", "test_files.py",
    "test_files_malformed.py",
]  # fmt: skip
WEIGHTS_BUGS = {
    "kernels (out, in) are not turned": ("schemes", r"return array\.T  # \(in, out\)", "return array"),
    "GPT-2's kernels are turned": ("schemes", r'"c_proj", "io"\)', '"c_proj", "oi")'),
    "packed parts are values, keys, queries": ("schemes", r"part, count = place\.part", r"\g<0>; part = 2 - part"),
    "packed parts are taken along the inputs": (
        "schemes",
        r'np\.split\(array, count, place\.axes\.index\("o"\)\)',
        'np.split(array, count, array.ndim - 1 - place.axes.index("o"))',
    ),
    "heads and their widths are swapped": (
        "schemes",
        r"array\.reshape\(len\(array\), -1\)",
        "array.swapaxes(1, 2).reshape(len(array), -1)",
    ),
    "heads and their widths are swapped in W_o": (
        "schemes",
        r"array\.reshape\(-1, array\.shape\[2\]\)",
        "array.swapaxes(0, 1).reshape(-1, array.shape[2])",
    ),
    "any bias may be missing": ("schemes", r"if biased not in .*:", "if False:"),
    "arrays beside the projections are passed over": ("schemes", r"    if foreign:", "    if False:"),
    "groups of queries are taken": ("schemes", r"if keys != queries:", "if False:"),
    "NaN is taken": ("schemes", r"            checks\.finite\(name, arrays\[name\]\)\n", ""),
    "the source's memory is shared": ("schemes", r"(none\[weight\]\)\))\.copy\(\)", r"\1"),
    "a prefix may end anywhere": ("schemes", r'prefix\.endswith\("\."\)', "True"),
    "arrays may lie on each other": ("safetensors_reader", r"if entry\.start != end:", "if False:"),
    "a file may go on after its arrays": ("safetensors_reader", r"if size != end:", "if size < end:"),
    "a name may come twice": ("safetensors_reader", r"if count > 1:", "if False:"),
    "any length of the header is believed": (
        "safetensors_reader",
        r"if header_size > min\(LIMIT, size - 8\):",
        "if False:",
    ),
    "a cut is not noticed": ("safetensors_reader", r"if len\(data\) != length:", "if False:"),
    "a shape may claim what it likes": ("safetensors_reader", r"if dtype in _BYTES and .*:", "if False:"),
    "nobody is asked which way round kernels are": ("checkpoints", r"if \(chosen, scheme\) == .*:", "if False:"),
    "arrays may have several dtypes": ("checkpoints", r"if len\(dtypes := (.*)\) > 1:", r"if len(dtypes := \1) < 0:"),
    "any layout is taken": ("own_format", r" if layout == LAYOUT:", ":"),
    "a header of ours may have any length": ("own_format", r"if source\.header_size > .*:", "if False:"),
    "an interrupted save leaves its temporary file": ("files", r"except BaseException:", "except Exception:"),
    "every array is read": ("checkpoints", r"for name in track\(names\)", "for name in source.entries"),
}

# What all other tests measure by: module, pattern, replacement.
RULES_TESTS = ["test_rules.py"]
RULES_BUGS = {
    "16 units made 1,600": ("parity/rules", r"\+ 16 \* UNIT", "+ 1600 * UNIT"),
    "a unit twice as large": ("parity/rules", r'"bfloat16": 2\.0\*\*-8', '"bfloat16": 2.0**-7'),
    "1e-12 made 1e-9": ("parity/rules", "1e-12", "1e-9"),
    "1e-10 of gradients made 1e-7": ("parity/rules", "1e-10", "1e-7"),
    "the factor 8 made 400": ("parity/rules", r"else 8\)", "else 400)"),
    "the factor 16 of gradients made 800": ("parity/rules", r"\(16 if gradient", "(800 if gradient"),
    "every result judged as a gradient": ("parity/suite", r"gradient = compute is gradients", "gradient = True"),
    "every gradient measured against the largest": ("parity/rules", r' if name == "W_k\.bias" else 0\.0', ""),
    "a bound of NaN passes": (
        "parity/suite",
        r"return self\.error <= self\.bound < np\.inf",
        "return not (self.error > self.bound or self.bound == np.inf)",
    ),
    "a bound without end passes": ("parity/suite", r"self\.bound < np\.inf", "self.bound"),
    "a bound that says nothing hides behind the others": ("parity/rules", r"if not bound < math\.inf:", "if False:"),
    "padding checked without NaN": (
        "parity/suite",
        r"= np\.nan, np\.nan, np\.inf",
        "= 1e3, 1e3, 1e3",
    ),
    "padding of keys checked without NaN": ("parity/suite", r"= np\.nan, np\.nan, np\.inf", "= np.nan, 1e3, np.inf"),
    "padding not checked in gradients": (
        "parity/suite",
        r"outputs\(attention\(\), hiding, \*X\) \| gradients\(.*\*X\) for",
        "outputs(attention(), hiding, *X) for",
    ),
    "half precision left out of the cases": ("parity/cases", r", dtypes=DTYPES\)", ")"),
    "half precision left out of the plan": ("parity/suite", r"if dtype in known\]", "if dtype in known[:2]]"),
    "half precision left out of what is exact": ("parity/suite", r"for dtype in known\]", "for dtype in known[:2]]"),
    "hidden keys not checked": ("parity/suite", r'"hidden keys": hidden, ', ""),
    "weights of hidden keys not checked": ("parity/suite", r' +found\["weights"\] = weights\[~visible\]\n', ""),
    "output alone not checked": ("parity/suite", r', "output alone": alone', ', "output alone": output'),
    "the answer by hand not checked": ("parity/suite", r", 16 \* UNIT\[dtype\]\)", ", 1600 * UNIT[dtype])"),
}


def source_of(backend: str) -> str:
    """The source of a backend's module, which is not imported."""
    return Path(backends.__path__[0], f"{backend}.py").read_text(encoding="utf-8")


def plant(source: str, backend: str, bug: str) -> str:
    """The source of a backend's module with a bug in it."""
    replacements = BUGS[bug]
    for pattern, replacement in replacements[backend] if isinstance(replacements, dict) else replacements:
        for general, own in WAYS.items():
            replacement = replacement.replace(general, own[backend])
        source, count = re.subn(pattern, replacement, source)
        if not count:
            raise LookupError(f"the bug {bug!r} finds no {pattern!r} in the backend {backend!r}")
    return source


class FirstFailure:
    """A pytest plugin that remembers the first test that failed."""

    def __init__(self):
        self.name = None

    def pytest_runtest_logreport(self, report):
        if report.failed and self.name is None:
            self.name = report.nodeid.rpartition("/")[2]


def try_bug(backend: str, bug: str) -> str | None:
    """Run the tests against a backend with a bug; the first test that fails, or None if none does."""
    real = dispatch.load(backend)
    changed = types.ModuleType(real.__name__)
    changed.__file__ = real.__file__
    sys.modules[real.__name__] = changed
    exec(compile(plant(source_of(backend), backend, bug), real.__file__, "exec"), vars(changed))
    failure = FirstFailure()
    tests = [str(Path(__file__).parent / name) for name in (BLOCKS_TESTS if bug in BLOCKS_BUGS else TESTS)]
    code = pytest.main(["-x", "-p", "no:cacheprovider", "-p", "no:terminal", "--backends", backend, *tests], [failure])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r} for the bug {bug!r} in the backend {backend!r}")
    return failure.name


# Bugs outside the backends, and the tests that must notice them.
PACKAGE_BUGS = {"weights": (WEIGHTS_BUGS, WEIGHTS_TESTS), "rules": (RULES_BUGS, RULES_TESTS)}


def try_package_bug(group: str, bug: str) -> str | None:
    """Run a group's tests in a copy of the package with a bug; the first test that fails, or None if none does."""
    bugs, tests = PACKAGE_BUGS[group]
    module, pattern, replacement = bugs[bug]
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("mha", "backends", "tests", "docs", "pyproject.toml"):
            (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, copy / name)
        path = copy / "mha" / "weights" / f"{module}.py"
        source, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
        if not count:
            raise LookupError(f"the bug {bug!r} finds no {pattern!r} in mha/weights/{module}.py")
        path.write_text(source, encoding="utf-8")
        options = ["-x", "-q", "-p", "no:cacheprovider", "--backends", "numpy"]
        command = [sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in tests)]
        environment = os.environ | {"PYTHONPATH": folder}
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {run.returncode} for the bug {bug!r}: {run.stdout}")
    failed = re.search(r"^FAILED tests/(\S+)", run.stdout, re.MULTILINE)
    return failed and failed[1]


def main(
    names: Annotated[
        str, typer.Option("--backends", help="The backends to plant bugs in, joined by commas.")
    ] = ",".join(dispatch.FRAMEWORKS),
) -> None:
    """Plant every bug in every backend, and those outside of them; exit code 1 if one goes unnoticed."""
    chosen = names.split(",")
    for name in chosen:
        for bug in BUGS:
            plant(source_of(name), name, bug)  # each can be planted: that is seen now, not in a minute
    spawn = multiprocessing.get_context("spawn")
    pools = {name: concurrent.futures.ProcessPoolExecutor(1, spawn) for name in chosen}
    jobs = {pools[name].submit(try_bug, name, bug): (name, bug) for name in chosen for bug in BUGS}
    pools["package"] = concurrent.futures.ProcessPoolExecutor(1, spawn)
    for group, (bugs, _) in PACKAGE_BUGS.items():
        jobs |= {pools["package"].submit(try_package_bug, group, bug): (group, bug) for bug in bugs}
    done = concurrent.futures.as_completed(jobs)
    caught = {jobs[job]: job.result() for job in track(done, "Planting", len(jobs), console=Console(stderr=True))}

    table = Table("bug", *chosen, title="The first test that notices each bug")
    for bug in BUGS:
        table.add_row(bug, *(caught[name, bug] or "[bold red]UNNOTICED" for name in chosen))
    Console(width=None if sys.stdout.isatty() else 60 + 70 * len(chosen)).print(table)
    for group, (bugs, _) in PACKAGE_BUGS.items():
        table = Table(f"bug of {group}", "the first test that notices it")
        for bug in bugs:
            table.add_row(bug, caught[group, bug] or "[bold red]UNNOTICED")
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    unnoticed = [job for job, test in caught.items() if test is None]
    print(f"{len(caught) - len(unnoticed)} of {len(caught)} planted bugs noticed")
    raise typer.Exit(1 if unnoticed else 0)


if __name__ == "__main__":
    typer.run(main)
