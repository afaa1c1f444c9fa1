"""Read files of weights: names, shapes and dtypes are known before any numbers are read. Nothing is unpickled.

A file is of the kind that its first bytes say, whatever its name: safetensors, the index of several of them, `.npz`,
`.keras` or HDF5. Each kind has its module, whose `read(path, file, stack)` returns a `Source`, and raises ValueError if
the file is not as its kind says. Arrays that are quantised in a file are unpacked by `quantised`.
"""

from mha.weights.readers.opening import open_weights
from mha.weights.readers.safetensors_file import SafetensorsFile
from mha.weights.readers.source import ALL, FLOATS, Arrays, Entry, Source

__all__ = ["ALL", "FLOATS", "Arrays", "Entry", "SafetensorsFile", "Source", "open_weights"]
