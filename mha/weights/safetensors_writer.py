"""Write safetensors files whose bytes depend only on their content.

The `safetensors` package writes metadata in an order that changes from run to run, and the bytes of an array in memory
order, so that a transposed view would be saved untransposed.
"""

import json
from collections.abc import Mapping

import numpy as np

from mha.core.options import checks
from mha.weights.readers.safetensors_file import DTYPES

_CODES = {name: code for code, name in DTYPES.items()}


def to_bytes(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with these arrays and texts; wide numbers come first, so that all are aligned."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    parts, start = [], 0
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        part = checks.plain(array).tobytes()
        offsets = [start, start + len(part)]
        header[name] = {"dtype": _CODES[checks.dtype_name(array.dtype)], "shape": array.shape, "data_offsets": offsets}
        parts.append(part)
        start += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
