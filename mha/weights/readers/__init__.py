"""Files of weights as they lie on disk: what is in them is known before any numbers are read. Nothing is unpickled."""

from mha.weights.readers.safetensors_file import opened
from mha.weights.readers.source import ALL, FLOATS, Entry, Source

__all__ = ["ALL", "FLOATS", "Entry", "Source", "opened"]
