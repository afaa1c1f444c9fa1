"""Arrays that lie quantised in files, unpacked: what `mha.weights.readers.quantised` asks of who packed them."""

import mlx.core as mx
import numpy as np

from mha import checks

from ..arrays import tensor, to_numpy


def unpacked(
    packed: np.ndarray, parts: dict[str, np.ndarray], dtype: np.dtype, group_size: int, bits: int, mode: str
) -> np.ndarray:
    """The floats of an array that lies quantised in a file; parts: its scales and what else is beside it, by name."""
    given = {name: tensor(X) for name, X in parts.items()}
    how = {"group_size": group_size, "bits": bits, "mode": mode, "dtype": getattr(mx, checks.dtype_name(dtype))}
    return to_numpy(mx.dequantize(tensor(packed), **given, **how, stream=mx.cpu))
