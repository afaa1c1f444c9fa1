"""Canonical weights: their names and shapes, how they are drawn, and the file that holds them.

A layer's weights are a flat dict of NumPy arrays, kernels (in, out), applied as `x @ kernel + bias`, on every backend.
Columns of W_q, W_k and W_v and rows of W_o are head-major: head 0 first.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mha import checks, files
from mha.config import Config

LAYOUT = "1"


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a layer, in canonical order."""
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

    Raises OSError if the file cannot be written.
    """
    from safetensors.numpy import save as to_bytes

    metadata = {"format": "mha", "layout": LAYOUT, "config": json.dumps(asdict(config))}
    # safetensors writes the memory of an array as it lies, so that a transposed view would be saved untransposed.
    data = to_bytes({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
    files.write(path, data)


def load(path: str | os.PathLike[str]) -> tuple[Config, dict[str, np.ndarray]]:
    """Read what `save` wrote: the configuration and its weights, checked against each other.

    Raises OSError if the file cannot be read, and ValueError or TypeError if it is not such a file.
    """
    import safetensors

    path = Path(path)
    data = path.read_bytes()
    try:
        tensors = safetensors.deserialize(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    metadata = header.get("__metadata__", {})
    if metadata.get("format") != "mha" or metadata.get("layout") != LAYOUT or "config" not in metadata:
        raise ValueError(
            f"{path} does not say that it is an mha file of layout {LAYOUT}; its metadata is {metadata}. "
            "Without it the orientation of the kernels and the number of heads are unknown"
        )
    try:
        config = Config(**json.loads(metadata["config"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no valid configuration: {error}") from error
    arrays = {name: _array(path, name, tensor) for name, tensor in tensors}
    try:
        arrays = checks.weights(shapes(config), config.dtype, arrays)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} does not fit its own configuration: {error}") from error
    return config, arrays


_FILE_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _array(path: Path, name: str, tensor: dict) -> np.ndarray:
    if tensor["dtype"] not in _FILE_DTYPES:
        raise ValueError(f"{path}: {name} has dtype {tensor['dtype']}, expected one of {', '.join(_FILE_DTYPES)}")
    array = np.frombuffer(tensor["data"], numpy_dtype(_FILE_DTYPES[tensor["dtype"]])).reshape(tensor["shape"])
    if not np.isfinite(array.astype(np.float64)).all():
        raise ValueError(f"{path}: {name} holds NaN or infinity")
    return array
