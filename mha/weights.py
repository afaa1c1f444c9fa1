"""Canonical weights: their names and shapes, how they are drawn, and the file that holds them.

A layer's weights are a flat dict of NumPy arrays, kernels (in, out), applied as `x @ kernel + bias`, on every backend.
Columns of W_q, W_k and W_v and rows of W_o are head-major: head 0 first.
"""

import collections
import contextlib
import json
import math
import os
import reprlib
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from mha import checks, files
from mha.config import Config

LAYOUT = "1"


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a layer, in canonical order.

    Raises ValueError if one has more numbers than memory has addresses.
    """
    H, d, dv = config.num_heads, config.key_dim, config.value_dim
    kernels = {
        "W_q": (config.query_size, H * d),
        "W_k": (config.key_size, H * d),
        "W_v": (config.value_size, H * dv),
        "W_o": (H * dv, config.num_hiddens),
    }
    named: dict[str, tuple[int, ...]] = {}
    for name, kernel in kernels.items():
        named[f"{name}.kernel"] = kernel
        if config.bias:
            named[f"{name}.bias"] = kernel[1:]
    if config.pooling == "additive":
        named |= {"attention.W_q.kernel": (d, d), "attention.W_k.kernel": (d, d), "attention.w_v.kernel": (d, 1)}
    for name, shape in named.items():
        if math.prod(shape) > sys.maxsize // 8:  # bytes of a float64
            raise ValueError(f"{name} would have shape {shape}, too many numbers for any memory; choose smaller sizes")
    return named


def initial(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Glorot-uniform kernels and zero biases, the same for a seed on every backend, bit for bit.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010), eq. 16.
    """
    random = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes(config).items():
        if name.endswith(".kernel"):
            limit = np.sqrt(6 / sum(shape))
            arrays[name] = random.uniform(-limit, limit, shape).astype(numpy_dtype(config.dtype))
        else:
            arrays[name] = np.zeros(shape, numpy_dtype(config.dtype))
    return arrays


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of this name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def save(path: str | os.PathLike[str], config: Config, arrays: dict[str, np.ndarray]) -> None:
    """Write weights and configuration to a safetensors file; the old file stays until the new one is whole.

    Raises ValueError if a weight holds NaN or infinity, FileError (an OSError and a ValueError) if the path is there
    but no regular file, and OSError if the file cannot be written; nothing is written then.
    """
    from safetensors.numpy import save as to_bytes

    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinity, expected finite weights: `load` would refuse the file")
    metadata = {"format": "mha", "layout": LAYOUT, "config": json.dumps(asdict(config))}
    # safetensors writes the memory of an array as it lies, so that a transposed view would be saved untransposed.
    data = to_bytes({name: checks.plain(array) for name, array in arrays.items()}, metadata)
    files.write(path, data)


def load(path: str | os.PathLike[str]) -> tuple[Config, dict[str, np.ndarray]]:
    """Read what `save` wrote: the configuration and its weights, checked against each other.

    The data is read once its description is right and as long as it says, so that a wrong file takes no memory.

    Raises FileNotFoundError if nothing is there, FileError (an OSError and a ValueError) if the path is no regular
    file or may not be read, and ValueError, which names the path, if it is not such a file.
    """
    with files.open_file(path) as file:
        try:
            return _read(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} {error}") from error


HEADER_LIMIT = 2**20  # bytes; a header that `save` writes has less than 4,000


def _read(file: BinaryIO) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and weights in a file; the ValueErrors continue a sentence that begins with its path."""
    import safetensors

    size = os.fstat(file.fileno()).st_size
    header_size = int.from_bytes(start := file.read(8), "little")
    if header_size > HEADER_LIMIT:
        raise ValueError(
            f"is not a safetensors file of weights: it claims a header of {header_size} bytes, expected at most "
            f"{HEADER_LIMIT}"
        )
    try:
        header = _parse((text := file.read(header_size)).decode())
    except ValueError as error:
        raise ValueError(f"is not a safetensors file: its header is wrong: {error}") from error
    config = _config(header.pop("__metadata__", None))
    try:
        claimed = checks.weights(shapes(config), config.dtype, {name: _claimed(name, header[name]) for name in header})
    except (TypeError, ValueError) as error:
        raise ValueError(f"does not fit its own configuration: {error}") from error
    expected_size = 8 + header_size + sum(array.nbytes for array in claimed.values())
    if size != expected_size:
        raise ValueError(f"has {size} bytes, expected {expected_size} as its header says")
    try:
        # Not read again, the header is the one that was checked, whatever happens to the file.
        tensors = dict(safetensors.deserialize(start + text + file.read(size - 8 - header_size)))
    except safetensors.SafetensorError as error:
        raise ValueError(f"is not a safetensors file: {error}") from error
    arrays = {}
    for name, array in claimed.items():
        arrays[name] = np.frombuffer(tensors[name]["data"], array.dtype).reshape(array.shape)
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"holds NaN or infinity in {name}, expected finite weights")
    return config, arrays


def _parse(text: str) -> dict[str, Any]:
    """The JSON object in a text; a name that comes twice, of which Python would take the last, is an error."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in collections.Counter(name for name, _ in pairs).items():
            if count > 1:
                raise ValueError(f"the name {name!r} comes {count} times")
            if not name.isprintable():  # an error that quotes it could not be printed either
                raise ValueError(f"the name {name!r} is not printable")
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError("the JSON nests too deep") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object, not {reprlib.repr(parsed)}")
    return parsed


def _config(metadata: Any) -> Config:
    """The configuration in a file's metadata."""
    match metadata:
        case {"format": "mha", "layout": str(layout), "config": str(text)} if layout == LAYOUT:
            pass
        case _:
            raise ValueError(
                f"does not say that it is an mha file of layout {LAYOUT}; its metadata is {reprlib.repr(metadata)}. "
                "Without it the orientation of the kernels and the number of heads are unknown"
            )
    try:
        return Config(**_parse(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"holds no valid configuration: {error}") from error


_FILE_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _claimed(name: str, tensor: Any) -> np.ndarray:
    """An array of the shape and dtype that a header claims, which takes the memory of one number."""
    match tensor:
        case {"dtype": str(dtype), "shape": [*shape]} if dtype in _FILE_DTYPES:
            with contextlib.suppress(TypeError, ValueError):
                return np.broadcast_to(np.zeros((), numpy_dtype(_FILE_DTYPES[dtype])), shape)
    raise ValueError(
        f"{name} is described as {reprlib.repr(tensor)}, expected a shape and one of the dtypes "
        f"{', '.join(_FILE_DTYPES)}"
    )
