"""Kinds of files that are never opened, because they may run code or need their own library: named, with what converts.

Pickles run the code that is in them. `torch.load(..., weights_only=True)`, in the commands here, does not.
"""

import json
import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

RUNS = "which may run code and is never opened"
# `torch.save` before PyTorch 1.6 begins with a pickle of this number.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_TORCH = (
    'with open({source}, "rb") as file: import torch; from safetensors.torch import save_file; '
    "save_file({{name: X.contiguous().clone() for name, X in torch.load(file, weights_only=True).items()}}, {target})"
)
_SHARDS = (
    "import json, pathlib, torch; from safetensors.torch import save_file; index = pathlib.Path({source}); files = "
    'set(json.loads(index.read_text())["weight_map"].values()); save_file({{name: X.contiguous().clone() for file in '
    "files for name, X in torch.load(index.parent / file, weights_only=True).items()}}, {target})"
)
_PICKLE = (
    'with open({source}, "rb") as file: import pickle; from safetensors.numpy import save_file; '
    "save_file(pickle.load(file), {target})"
)
_TREE = (
    "import numpy; from flax.traverse_util import flatten_dict; from safetensors.numpy import save_file; "
    'save_file({{name: numpy.asarray(X) for name, X in flatten_dict(tree, sep=".").items()}}, {target})'
)
_MSGPACK = (
    'with open({source}, "rb") as file: import flax.serialization; '
    "tree = flax.serialization.msgpack_restore(file.read()); " + _TREE
)
_ORBAX = "import orbax.checkpoint; tree = orbax.checkpoint.StandardCheckpointer().restore({source}); " + _TREE


def refuse(path: Path, file: BinaryIO, start: bytes) -> None:
    """Raise ValueError if a file that begins so is of a known kind that is not read; start: its first 8 bytes.

    They are no size of a header of safetensors, since the file has less.
    """
    file.seek(0)
    if file.read(len(_OLD_TORCH)) == _OLD_TORCH:
        raise ValueError(f"is a pickle of torch.save, {RUNS}; convert it: {_command(_TORCH, path)}")
    if _is_pickle(file, start):
        raise ValueError(
            f"is a pickle, {RUNS}; if you trust who wrote it, convert it, which runs that code: "
            f"{_command(_PICKLE, path)}"
        )
    if _is_msgpack(start):
        raise ValueError(f"is msgpack, as Flax writes it; convert it: {_command(_MSGPACK, path)}")
    if start.startswith(b"\x93NUMPY"):
        raise ValueError("is one array of numpy.save, expected arrays by name: write them by numpy.savez")


def refuse_archive(path: Path, names: Collection[str]) -> None:
    """Raise ValueError if a zip archive with files of these names was written by `torch.save`."""
    if any(name.endswith("data.pkl") for name in names):
        raise ValueError(
            f"is an archive of torch.save, with a pickle in it, {RUNS}; convert it: {_command(_TORCH, path)}"
        )


def refuse_shards(path: Path, names: Collection[str]) -> None:
    """Raise ValueError if an index names pickles; path: of the index."""
    if any(name.endswith(".bin") for name in names):
        target = path.with_name("model.safetensors")
        raise ValueError(f"is the index of pickles, {RUNS}; convert them: {_command(_SHARDS, path, target)}")


def in_folder(folder: Path, names: Collection[str]) -> str:
    """What a directory is that has these names in it and no weights that can be read, with what converts it; or ""."""
    if "_CHECKPOINT_METADATA" in names or "_METADATA" in names:
        tree = folder / "default" if "default" in names else folder
        target = folder.parent / f"{folder.name}.safetensors"
        return f"is a checkpoint of orbax; convert it: {_command(_ORBAX, tree, target)}"
    for ending, kind, code in (
        (".bin.index.json", f"the index of pickles, {RUNS}", _SHARDS),
        ((".bin", ".pt", ".pth", ".ckpt"), f"a pickle of torch.save, {RUNS}", _TORCH),
        (".msgpack", "msgpack, as Flax writes it", _MSGPACK),
    ):
        for name in names:
            if name.endswith(ending):
                command = _command(code, folder / name, folder / "model.safetensors")
                return f"has {name!r}, {kind}; convert it: {command}"
    return ""


def _is_pickle(file: BinaryIO, start: bytes) -> bool:
    """True if a file is a pickle: of protocol 2 or later by its first bytes, of an earlier one by its ends."""
    if start[0] == 0x80:
        return start[1] in range(2, 6)
    if start[0] not in b"(c}]lI":
        return False
    file.seek(-1, os.SEEK_END)
    end = file.read(1)
    return end == b"."


def _is_msgpack(start: bytes) -> bool:
    """True if a file begins with a mapping in msgpack whose first name is a text."""
    sizes = {0xDE: 3, 0xDF: 5} | dict.fromkeys(range(0x81, 0x90), 1)
    first = start[sizes[start[0]]] if start[0] in sizes else 0
    return 0xA1 <= first <= 0xBF or first == 0xD9


def _command(code: str, source: Path, target: Path | None = None) -> str:
    """The command that runs this code, from the file or directory at source to a new file."""
    if target is None:
        target = source.with_suffix(".safetensors")
        target = target.with_name(f"{source.stem}-converted.safetensors") if target == source else target
    places = {"source": os.path.abspath(source), "target": str(target)}
    written = {name: json.dumps(place, ensure_ascii=False) for name, place in places.items()}
    return f"python -c {shlex.quote(code.format(**written))}"
