"""Fuzz loading and argument checking with atheris: `python tests/programs/fuzz.py --seconds 60`, or `tox -e fuzz`.

Whatever comes, there are two ways for it to end: a result of the right shape, finite where the inputs are, or an error
of ours, which is a TypeError or ValueError that names the file or the argument. Anything else stops the run with exit
code 1, and the input that did it is left in a file, which `--target NAME --replay FILE` tries again.
"""

import contextlib
import copy
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any, NoReturn

import atheris
import numpy as np
import safetensors.numpy
import typer

with atheris.instrument_imports(include=["mha"]):
    import mha
    from mha import weights
    from mha.core.options.config import Config, numpy_dtype
    from mha.core.options.config import shapes as weight_shapes
    from mha.weights import schemes

sys.path.extend([str(Path(__file__).parents[1] / name) for name in ("", "helpers")])
import malformed

# A file


FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)  # quicker than a disk


H, SIZE = 2, 6
# What a checkpoint may not say, by how the error begins that asks for it.
ASKED: dict[str, dict[str, Any]] = {
    "num_heads is not given": {"num_heads": H},
    "rotary is not given": {"rotary": None},
    "qk_norm is not given": {"qk_norm": "rms"},
}


def told(path: Path) -> mha.MultiHeadAttention:
    """The layer in a file, told what it asks for."""
    said: dict[str, Any] = {}
    while True:
        try:
            return mha.load(path, "numpy", **said)
        except TypeError as error:
            answer = next((answer for words, answer in ASKED.items() if str(error).startswith(words)), {})
            if answer.keys() <= said.keys():
                raise
            said |= answer


def load(data: bytes) -> None:
    """A file of these bytes, ours or a checkpoint, has a layer that can be saved and loaded again, or is refused."""
    path = Path(FOLDER.name, "layer.safetensors")
    path.write_bytes(data)
    with contextlib.suppress(RefusedError), refusal(path):
        attention = told(path)
        arrays = attention.weights
        for name, shape in weight_shapes(attention.config).items():
            if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
                raise RuntimeError(f"{name} is wrong")
        attention.save(path)
        for name, array in mha.load(path, "numpy").weights.items():
            if array.tobytes() != arrays[name].tobytes():
                raise RuntimeError(f"{name} is not as it was")


class RefusedError(Exception):
    """An error of ours."""


@contextlib.contextmanager
def refusal(path: Path) -> Iterator[None]:
    """Turn a ValueError that names the path into a RefusedError."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError or not str(error).startswith(f"{path} ") or not str(error).isprintable():
            raise RuntimeError(f"the error is not ours: {error!r}") from error
        raise RefusedError from error


def checkpoints() -> Iterator[bytes]:
    """A small file of each scheme, with a table beside the layer."""
    for scheme, description in schemes.SCHEMES.items():
        config = Config(6, H, bias="W_q.bias" in description.places, scale=description.implied.get("scale"))
        arrays = schemes.from_canonical(config, weights.initial(config, 0), scheme)
        named = {f"layer.{name}": np.ascontiguousarray(X) for name, X in arrays.items()}
        yield safetensors.numpy.save(named | {"table": np.arange(3)}, {"format": "pt"})


def archives() -> Iterator[bytes]:
    """A small layer as NumPy stores it, plain and packed."""
    arrays = {f"layer.{name}": X for name, X in weights.initial(Config(6, H), 0).items()}
    for save in (np.savez, np.savez_compressed):
        made = io.BytesIO()
        save(made, **arrays)
        yield made.getvalue()


def mutate_file(data: bytes, max_size: int, seed: int) -> bytes:
    """A file with a change anywhere, in the text of its header, in a value there, or in one of its configuration."""
    random = Random(seed)
    way = random.choice(["anywhere", "text", "value", "configuration"])
    try:
        header, numbers = malformed.split(data)
        if way == "value":
            return malformed.join(replaced(header, random), numbers)
        if way == "configuration":
            config = replaced(json.loads(header["__metadata__"]["config"]), random)
            header["__metadata__"]["config"] = json.dumps(config)
            return malformed.join(header, numbers)
        if way == "text":
            return malformed.join(atheris.Mutate(json.dumps(header).encode(), max_size), numbers)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # no header that could be read
    return atheris.Mutate(data, max_size)


def replaced(value: Any, random: Random) -> Any:
    """JSON with another value or name somewhere in it, or without one."""
    if isinstance(value, (dict, list)) and value and random.random() < 0.9:
        changed = copy.copy(value)
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        way = random.randrange(8)
        if way == 0:
            del changed[key]
        elif way == 1 and isinstance(changed, dict):
            changed[random.choice([*value, "W_p", "attention.w_v.kernel"])] = changed.pop(key)
        else:
            changed[key] = replaced(value[key], random)
        return changed
    if isinstance(value, int) and random.random() < 0.5:
        return value + random.choice([-4, -1, 1, 4])
    return random.choice(VALUES)


VALUES = [
    None, True, False, -1, 0, 1, 2, 3, 5, 12, 0.0, 0.5, 1.0, 12.0, 2**31, 2**63, 2**64, 10**400, math.nan, math.inf, "",
    "1", "2", "mha", "F16", "F32", "F64", "BF16", "I8", "float16", "float64", "bfloat16", "additive", "dot", "\ud800",
    "{}", [], [0], [12, 5], [0, 240], {}, {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, [[[]]] * 9,
]  # fmt: skip


# Arguments

LAYERS = [
    mha.MultiHeadAttention(SIZE, H, bias=True, query_size=5, key_size=3, value_size=4, **options, backend="numpy")
    for options in (
        {},
        {"dtype": "float64", "pooling": "additive", "dropout": 0.5},
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
    )
]
DTYPES = [
    "float32", "float64", "float16", "bfloat16", ">f4", "g", "complex64", "int8", "int32", "int64", "uint8", "uint64",
    "bool", "O", "U3", "S2", "M8[s]", "m8[s]", "V4", "f4,i8",
]  # fmt: skip
NAMES = {
    "queries", "keys", "values", "valid_lens", "mask", "causal", "training", "return_weights", "cotangent", "weights",
    "num_hiddens", "num_heads", "dropout", "bias", "query_size", "key_size", "value_size", "key_dim", "value_dim",
    "pooling", "dtype", "seed", "backend", "W_q.kernel", "W_k.kernel", "W_v.kernel", "W_o.kernel",
}  # fmt: skip


class Odd:
    """Objects that look like an array and are none."""

    def __init__(self, data: atheris.FuzzedDataProvider) -> None:
        self.shape = data.PickValueInList([shape(data), shape(data), None, 3, "235", (None,) * 3, (2.0, 3.0, 5.0)])
        self.dtype = data.PickValueInList(["float32", "int64", "bool", np.float32, None, 3])


class Subclass(np.ndarray):
    """An array of a kind that nobody knows."""


class Numberlike:
    """Values that NumPy and Python can turn into a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number

    def __float__(self) -> float:
        return float(self.number)


def array(data: atheris.FuzzedDataProvider, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of small numbers, now and then one that is not finite, lying in memory in one of many ways."""
    numbers = np.resize(np.frombuffer(data.ConsumeBytes(16) + b"\3", "int8"), shape).astype("float32")
    if data.ConsumeProbability() < 0.1 and numbers.size:
        numbers.flat[data.ConsumeIntInRange(0, numbers.size - 1)] = data.PickValueInList([math.nan, math.inf, 3e38])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what NumPy says of such conversions
        try:
            made = numbers.astype(numpy_dtype(dtype))
        except (TypeError, ValueError):
            made = np.zeros(shape, dtype)
    ways = [
        lambda X: X, np.asfortranarray, lambda X: X[::-1] if X.ndim else X, lambda X: X.view(Subclass),
        lambda X: np.ma.masked_array(X), lambda X: X.T, lambda X: np.broadcast_to(X, X.shape),
    ]  # fmt: skip
    return data.PickValueInList(ways)(made)


def odd(data: atheris.FuzzedDataProvider, depth: int = 0) -> Any:
    """Any object at all; whole numbers are small, or too large for a layer of that size to exist."""
    number = data.PickValueInList([data.ConsumeIntInRange(-300, 300), 2**62, 2**63, -(2**63), 2**64, 10**30])
    kinds: list[Callable[[], Any]] = [
        lambda: None, lambda: True, lambda: number, lambda: float(number), lambda: 10**400, lambda: -(10**5000),
        data.ConsumeFloat, lambda: complex(number, 1), lambda: data.ConsumeUnicode(8), lambda: data.ConsumeBytes(4),
        lambda: data.PickValueInList(["float32", "torch", "dot", "", "numpy", "additive", "bfloat16", "nan", "\ud800"]),
        lambda: np.float64(number), lambda: np.bool_(True), lambda: np.array(number), lambda: np.str_("float64"),
        lambda: np.float32, lambda: float, lambda: np.dtype("f4,i8"), lambda: Odd(data), lambda: Odd, lambda: object(),
        lambda: Numberlike(number), lambda: range(3), lambda: {1, 2}, lambda: iter([1]), lambda: memoryview(b"123"),
        lambda: slice(3), lambda: ..., lambda: NotImplemented, lambda: len, lambda: math, lambda: ValueError("x"),
        lambda: SimpleNamespace(name=number), lambda: Odd(data), lambda: Odd(data),
    ]  # fmt: skip
    nested: list[Callable[[], Any]] = [
        lambda: [odd(data, depth + 1) for _ in range(data.ConsumeIntInRange(0, 3))],
        lambda: (odd(data, depth + 1), odd(data, depth + 1)),
        lambda: {"W_q.kernel": odd(data, depth + 1)},
        lambda: endless(), lambda: deep(data.ConsumeIntInRange(0, 100)),
        lambda: array(data, shape(data), data.PickValueInList(DTYPES)),
    ]  # fmt: skip
    return data.PickValueInList(kinds + nested * 3 if depth < 3 else kinds)()


def endless() -> list:
    """A list that holds itself."""
    made: list = []
    made.append(made)
    return made


def deep(depth: int) -> Any:
    """A number in many lists."""
    return [deep(depth - 1)] if depth else 1.0


def shape(data: atheris.FuzzedDataProvider) -> tuple[int, ...]:
    """A shape of few numbers."""
    return tuple(data.ConsumeIntInRange(0, 4) for _ in range(data.ConsumeIntInRange(0, 5)))


def near(data: atheris.FuzzedDataProvider, right: tuple[int, ...], dtype: str) -> Any:
    """An argument that is right, nearly right, or any object."""
    chance = data.ConsumeIntInRange(0, 15)
    if chance == 0:
        return odd(data)
    sizes = list(right)
    if chance == 1 and sizes:
        sizes[data.ConsumeIntInRange(0, len(sizes) - 1)] = data.ConsumeIntInRange(0, 8)
    if chance == 2:
        data.PickValueInList([sizes.reverse, lambda: sizes.append(1), sizes.clear])()
    made = array(data, tuple(sizes), data.PickValueInList(DTYPES) if chance == 3 else dtype)
    return made.tolist() if chance > 12 else made


def call(data: bytes) -> None:
    """A call with such arguments gives what it should, or is refused by the argument's name."""
    given = atheris.FuzzedDataProvider(data)
    attention = given.PickValueInList(LAYERS)
    dtype = attention.config.dtype
    B, Q, K = given.ConsumeIntInRange(0, 3), given.ConsumeIntInRange(0, 4), given.ConsumeIntInRange(0, 4)
    arrays = [near(given, size, dtype) for size in ((B, Q, 5), (B, K, 3), (B, K, 4))]
    options: dict[str, Any] = {}
    if given.ConsumeBool():
        lengths = given.PickValueInList([(B,), (B, Q)])
        options["valid_lens"] = near(given, lengths, given.PickValueInList(["int64", "uint8", "int8", "uint64"]))
    if given.ConsumeBool():
        options["mask"] = near(given, given.PickValueInList([(Q, K), (B, Q, K), (B, H, Q, K), (1, 1, 1, K)]), "bool")
    for name in ("causal", "training", "return_weights"):
        if given.ConsumeBool():
            options[name] = odd(given) if given.ConsumeIntInRange(0, 9) == 0 else given.ConsumeBool()
    doing = given.ConsumeIntInRange(0, 3)
    if doing == 0 and given.ConsumeBool():
        options["cotangent"] = near(given, (B, Q, SIZE), dtype)
    if doing < 2:
        options = {name: options[name] for name in options if name not in ("training", "return_weights")}
    method = [attention.gradients, attention.trace, attention, attention][doing]
    result = ours(lambda: method(*arrays, **options))
    if result is None:
        return
    B, Q, K = *np.shape(arrays[0])[:2], np.shape(arrays[1])[1]
    outputs = {"output": (B, Q, SIZE), "weights": (B, H, Q, K)}
    if doing == 0:
        shapes = {"queries": (B, Q, 5), "keys": (B, K, 3), "values": (B, K, 4)} | weight_shapes(attention.config)
    elif doing == 1:
        shapes, result = outputs, {"output": result["output"], "weights": result["weights"].reshape(B, H, Q, K)}
    elif options.get("return_weights"):
        shapes, result = outputs, dict(zip(outputs, result, strict=True))
    else:
        shapes, result = {"output": (B, Q, SIZE)}, {"output": result}
    moderate = all(np.all(np.abs(np.asarray(X, "float64")) <= 128) for X in (*arrays, options.get("cotangent", 0)))
    for name, expected in shapes.items():
        if result[name].shape != expected and 0 not in expected:
            raise RuntimeError(f"{name} has shape {result[name].shape}, expected {expected}")
        if moderate and dtype in ("float32", "float64") and not np.isfinite(result[name]).all():
            raise RuntimeError(f"{name} is not finite")


def construct(data: bytes) -> None:
    """A layer with such options, or such weights, is as they say, or refused by the option's name."""
    given = atheris.FuzzedDataProvider(data)
    options: dict[str, Any] = {"num_hiddens": 6, "num_heads": 2, "backend": "numpy"}
    sizes = ("query_size", "key_size", "value_size", "key_dim", "value_dim")
    for name in ("num_hiddens", "num_heads", "dropout", "bias", *sizes, "pooling", "dtype", "seed", "backend"):
        chance = given.ConsumeIntInRange(0, 15)
        if chance == 0:
            options[name] = odd(given)
        elif chance < 4 and (name.startswith("num") or name in sizes):
            options[name] = given.ConsumeIntInRange(-1, 9)
    attention = ours(lambda: mha.MultiHeadAttention(**options))
    if attention is None:
        return
    if {name: X.shape for name, X in attention.weights.items()} != weight_shapes(attention.config):
        raise RuntimeError("the weights are not as the configuration says")
    before = attention.weights
    changed: Any = {name: near(given, X.shape, attention.config.dtype) for name, X in before.items()}
    changed = odd(given) if given.ConsumeIntInRange(0, 9) == 0 else changed
    if ours(lambda: setattr(attention, "weights", changed) or True) is None:
        if any(X.tobytes() != before[name].tobytes() for name, X in attention.weights.items()):
            raise RuntimeError("refused weights have changed the layer")
    elif any(not np.array_equal(X, changed[name], equal_nan=True) for name, X in attention.weights.items()):
        raise RuntimeError("the weights are not as they were given")


def ours(work: Callable[[], Any]) -> Any:
    """The result of a function, or None if it raises an error of ours."""
    try:
        return work()
    except ModuleNotFoundError as error:
        if "pip install" in str(error):  # a backend that is not installed here
            return None
        raise
    except (TypeError, ValueError) as error:
        if not any(name in str(error) for name in NAMES):
            raise RuntimeError(f"the error names no argument: {error!r}") from error
        return None


# The run

TARGETS = {"load": load, "call": call, "construct": construct}


def seeds(target: str, folder: Path) -> None:
    """Write the inputs that the others grow from into a folder."""
    random = Random(20170612)
    if target == "load":
        inputs = [*malformed.CORPUS.values(), malformed.VALID, *checkpoints(), *archives()]
    else:
        inputs = [random.randbytes(400) for _ in range(200)]
    for number, data in enumerate(inputs):
        if len(data) <= LONGEST:
            (folder / str(number)).write_bytes(data)


LONGEST = 8192  # bytes of an input


def fuzz(target: str, seconds: int) -> NoReturn:
    """Try inputs on one target, and end the process: 0 once the time is over, 77 at the first that ends wrong."""
    tried, start = itertools.count(), time.monotonic()

    def one(data: bytes) -> None:
        number = next(tried)
        if time.monotonic() > start + seconds:
            print(f"{target}: {number} inputs tried, {number / seconds:.0f} a second", flush=True)
            FOLDER.cleanup()
            os._exit(0)  # libFuzzer would take an exception for a failure
        TARGETS[target](data)

    folder = Path(FOLDER.name, "seeds")
    folder.mkdir()
    seeds(target, folder)
    options = [
        f"-max_len={LONGEST}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={target}-",
        "-verbosity=0",
    ]
    mutator = {"custom_mutator": mutate_file} if target == "load" else {}
    atheris.Setup([sys.argv[0], *options, str(folder)], one, **mutator)
    atheris.Fuzz()
    raise AssertionError("atheris ends the process")


def main(
    seconds: Annotated[int, typer.Option(help="How long to try new inputs, for all targets together.")] = 60,
    target: Annotated[str | None, typer.Option(help=f"One of {', '.join(TARGETS)}; else each in turn.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Try the one input in this file, on the --target.")] = None,
) -> None:
    """Try as many inputs as there is time for; exit code 1 if one ends as it should not."""
    np.seterr(all="ignore")  # inputs that are not finite are among them
    if target is not None:
        if replay is None:
            fuzz(target, seconds)
        TARGETS[target](replay.read_bytes())
        return
    failed = False
    for name in TARGETS:
        command = [sys.executable, __file__, "--target", name, "--seconds", str(seconds // len(TARGETS))]
        result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode:
            failed = True
            print(f"{name}: {result.stderr}")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
