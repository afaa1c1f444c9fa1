"""Read HDF5 files, as Keras writes them: `.h5`, and `.weights.h5`, in which a layer's arrays are `vars/0`, `vars/1`.

The names of nested groups are joined by dots. The `:0` of TensorFlow's variables is left out, and the underscore of a
layer's private part in Keras 3, whose attributes are groups. Nothing that lies in another file is followed.
"""

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mha.core import dispatch
from mha.weights.readers.source import FLOATS, Entry, Source, dtype_name, in_memory, readable, refuse_bomb, unique

_PRIVATE = re.compile(r"(^|/)_(?=[^/]+/vars/\d+$)")  # "layer/_query_dense/vars/0"


@dataclasses.dataclass(frozen=True)
class Hdf5(Source):
    """An open HDF5 file; datasets: its arrays by name, as h5py has them."""

    datasets: dict[str, Any]

    def read(self, name: str, dtypes: Sequence[str] = FLOATS) -> np.ndarray:
        """Read the array of this name; see `Source.read`."""
        dtype, dataset = self.entries[name].numpy_dtype(name, dtypes), self.datasets[name]
        if dataset.external or dataset.is_virtual:
            raise ValueError(f"has the numbers of {name} in other files, expected all in one")
        refuse_bomb(name, dataset.nbytes, dataset.id.get_storage_size())
        with in_memory(name, dataset.nbytes), readable("HDF5 file", name):
            array = dataset[()]
        return array.view(dtype) if array.dtype.kind == "V" else array


def read(path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> Hdf5:
    """Read the names, shapes and dtypes of the arrays in an HDF5 file; stack: closes it."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ValueError(
            f"is an HDF5 file, which h5py reads: {dispatch.pip_for(dispatch.HDF5)}; or save the weights as safetensors"
        ) from error
    found: list[tuple[str, Any]] = []

    def keep(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            found.append((_PRIVATE.sub(r"\1", name.removesuffix(":0")), thing))

    with readable("HDF5 file", "the file"):
        stack.enter_context(opened := h5py.File(file, "r"))
        opened.visititems(keep)  # which follows no link
    datasets = unique(found)
    return Hdf5(path, {name: _entry(name, dataset) for name, dataset in datasets.items()}, {}, datasets)


def _entry(name: str, dataset: Any) -> Entry:
    with readable("HDF5 file", name):
        if dataset.shape is None:
            return Entry("'nothing'", ())
        is_half = dataset.dtype.kind == "V" and dataset.dtype.itemsize == 2 and dataset.attrs.get("dtype") == "bfloat16"
        return Entry("bfloat16" if is_half else dtype_name(dataset.dtype), dataset.shape)
