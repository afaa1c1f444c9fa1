"""Files that `mha.write` writes, for tests: configurations with each option, and the proof of a file on its own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import adapters
import numpy as np

import mha
from mha.core.call import ARGUMENTS
from mha.core.options.config import Config

OPTIONS = {
    "nothing more": {},
    "sizes": {"query_size": 7, "key_size": 11, "value_size": 13, "key_dim": 6, "value_dim": 5},
    "head width": {"num_hiddens": 26, "key_dim": 6},
    "shared heads": {"num_key_value_heads": 2},
    "bias": {"bias": True},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "window": {"window": (5, 0)},
    "window to the left": {"window": (5, None)},
    "window to the right": {"window": (None, 5)},
    "chunk": {"chunk": 3},
    "rotary": {"rotary": mha.Rotary(base=500000.0)},
    "rotary in part": {"rotary": mha.Rotary(dim=4, interleaved=True)},
    "frequencies": {"rotary": mha.Rotary(frequencies=(1.0, 0.5, 0.25), magnitude=1.3)},
    "norm": {"qk_norm": "rms"},
    "norm after": {"qk_norm": mha.Norm("layer", over="all", after=True), "rotary": mha.Rotary()},
    "norms": {"value_norm": "rms", "qk_norm": mha.Norm("layer", eps=1e-5)},
    "sinks": {"sinks": True},
    "gate of elements": {"output_gate": "element"},
    "gate of heads": {"output_gate": "head"},
    "temperature": {"temperature": mha.Temperature(0.1, 3)},
    "additive": {"pooling": "additive"},
}
TOGETHER = {
    "num_key_value_heads": 2, "bias": True, "scale": 0.3, "softcap": 2.0, "window": (5, None), "chunk": 4,
    "rotary": mha.Rotary(dim=4), "qk_norm": mha.Norm("rms", over="all"), "value_norm": "layer", "sinks": True,
    "output_gate": "head", "temperature": mha.Temperature(0.1, 3), "query_size": 7,
}  # fmt: skip
KNOWN = {name: value for name, value in TOGETHER.items() if name not in ("softcap", "sinks")}  # to kernels
MORE = tuple(name for name in ARGUMENTS if name not in ("valid_lens", "mask", "causal", "training"))
# Ten files in which each option is one of several: names of options, and arguments of a call.
TEN = {
    "plain": ((), ()),
    "sized": (("sizes", "scale", "bias"), ("return_weights",)),
    "shared": (("shared heads", "rotary", "window"), ("positions",)),
    "capped": (("softcap", "sinks", "window to the left"), ("score_bias",)),
    "chunks": (("chunk", "rotary in part"), ("offset",)),
    "turned": (("frequencies", "norm"), ("positions", "key_positions")),
    "after": (("norm after", "window to the right", "gate of heads"), ("segments",)),
    "norms": (("norms", "temperature", "gate of elements"), ("head_gates",)),
    "wide": (("head width", "additive"), ("positions", "segments")),
    "all": ((), MORE),
}
# What checks a file's style, its form and its types: a file has no annotations.
CHECKERS = {
    "style": "ruff check --isolated --no-cache",
    "form": "ruff format --check --isolated --no-cache --line-length 120",
    "types": "mypy --config-file= --check-untyped-defs --enable-error-code possibly-undefined "
    "--ignore-missing-imports --follow-imports=silent",
    "pyright": "pyright --level error",
}
# Whose types pyright knows. Of others it guesses: a call of `mx.custom_function` is an object, a width of TensorFlow's
# may be None, and Gluon's `forward` has no arguments.
TYPED = ("numpy", "torch", "jax")
# What a process of proofs runs: nothing of `mha` can be imported there. MXNet needs help on today's NumPy, before that.
ALONE = """
import sys
backend, compiled, plugins_at, *arguments = sys.argv[1:]
if backend == "mxnet":
    from mha.core import import_mxnet
    import_mxnet.enable()
    import mxnet
for name in [one for one in sys.modules if one.split(".")[0] == "mha"]:
    del sys.modules[name]
class Absent:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "mha":
            raise ModuleNotFoundError("no mha here", name=name)
sys.meta_path = [Absent, *(finder for finder in sys.meta_path if "import_mxnet" not in type(finder).__module__)]
import pytest
plugins = []
alone = ["-q", "-p", "no:mha", "-p", "no:cacheprovider", "-p", "no:xdist"]
if not compiled:  # compilers warn of what they do themselves
    alone += ["-W", "error::UserWarning"]
else:
    sys.path.append(plugins_at)
    from compiling import Compiling
    plugins.append(Compiling(backend, quick=compiled == "quick"))
sys.exit(pytest.main([*alone, *arguments], plugins))
"""


def config(**options):
    """A configuration with these options, of 4 heads."""
    return Config(**{"num_hiddens": 24, "num_heads": 4} | options)


def drawn(seed):
    """A configuration with options drawn at random, and arguments of a call."""
    random = np.random.default_rng(seed)
    names = [name for name in OPTIONS if random.random() < 0.3]
    options = {}
    for name in names:
        options |= OPTIONS[name]
    if "additive" in names:
        options = {
            name: value for name, value in options.items() if name not in ("scale", "rotary", "qk_norm", "temperature")
        }
    if options.get("rotary") is not None and options["rotary"].frequencies is not None:
        options["key_dim"] = 6
    return config(**options), [name for name in MORE if random.random() < 0.3]


def ten(backend, folder):
    """Write ten files of a framework, in which each option occurs, into a folder."""
    for name, (options, call) in TEN.items():
        given = TOGETHER if name == "all" else {key: one for each in options for key, one in OPTIONS[each].items()}
        mha.write(config(**given), backend, folder / f"{name}.py", call=call)


def refused(folder, checker):
    """What a checker says against the files in a folder, "" if nothing."""
    files = sorted(path.name for path in folder.glob("*.py") if not path.name.startswith("test_"))
    command = [sys.executable, "-m", *CHECKERS[checker].split(), *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def proof(folder, backend, *arguments, compiled=""):
    """The exit code and the output of the proofs in a folder, in a process without `mha`.

    arguments: of pytest; compiled: "" = not, "quick" or "whole", as `compiling.Compiling` has it.
    """
    command = [sys.executable, "-c", ALONE, backend, compiled, str(Path(__file__).parent), str(folder)]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=3600)
    return done.returncode, done.stdout + done.stderr


def counted(text):
    """The lines of code of a file, without docstrings, comments and blank lines; and all its lines."""
    import ast

    said = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            said |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = text.splitlines()
    code = [line for number, line in enumerate(lines, 1) if line.strip() and number not in said]
    return sum(not line.strip().startswith("#") for line in code), len(lines)


def layer_of(path):
    """The class of the layer in a file, which no other test sees."""
    spec = importlib.util.spec_from_file_location("a_written_file", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MultiHeadAttention


def loaded(path, backend, checkpoint, prefix, *inputs):
    """The output of a written layer, of 19 features and 6 heads, with the weights that its `load` takes from a file."""
    layer, inputs = layer_of(path)(19, 6), map(adapters.of(backend).convert, inputs)
    if backend == "mxnet":
        layer.initialize()
    taken = layer.load(checkpoint, prefix)
    return mha.to_numpy(layer(*inputs) if taken is None else layer.apply(taken, *inputs))
