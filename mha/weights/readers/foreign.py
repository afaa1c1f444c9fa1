"""Refuse kinds of files that are never opened, because they may run code or need their own library.

`KINDS` has a row for each: its title, how a file or a directory shows that it is one, and the command that converts it.
Pickles run the code that is in them. `torch.load(..., weights_only=True)`, in the commands here, does not.
"""

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

BEGINNING = 512  # bytes, which show the kind of a file
RUNS = "which may run code and is never opened"
TRUSTED = "if you trust who wrote it, convert it, which runs that code"
UNPACK = "unpack it, and pass the file of weights that is in it"
ORIGIN = "pass the weights of the model that it was made of"

# Commands in Python; {source} is the path of the file or directory, {target} that of a new file beside it, {folder} and
# {name} the two parts of the source, {new} a new folder beside it.
_TORCH = (
    'with open({source}, "rb") as file: import torch; from safetensors.torch import save_file; '
    'walk = lambda X, at="": {{at: X.contiguous().clone()}} if isinstance(X, torch.Tensor) else {{name: Y for key, '
    'inner in (X.items() if isinstance(X, dict) else ()) for name, Y in walk(inner, f"{{at}}.{{key}}".strip("."))'
    '.items()}}; save_file(walk(torch.load(file, map_location="cpu", weights_only=True)), {target})'
)
_SHARDS = (
    "import json, pathlib, torch; from safetensors.torch import save_file; index = pathlib.Path({source}); files = "
    'set(json.loads(index.read_text())["weight_map"].values()); save_file({{name: X.contiguous().clone() for file in '
    'files for name, X in torch.load(index.parent / file, map_location="cpu", weights_only=True).items()}}, {target})'
)
_SCRIPT = (
    "import torch; from safetensors.torch import save_file; save_file({{name: X.contiguous().clone() for name, X in "
    'torch.jit.load({source}, map_location="cpu").state_dict().items()}}, {target})'
)
_EXPORTED = (
    "import torch; from safetensors.torch import save_file; save_file({{name: X.detach().contiguous().clone() for "
    "name, X in torch.export.load({source}).state_dict.items()}}, {target})"
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
_GGUF = (
    "import transformers; transformers.AutoModelForCausalLM.from_pretrained({folder}, gguf_file={name})"
    ".save_pretrained({new})"
)
_ONNX = (
    "import onnx; from onnx.numpy_helper import to_array; from safetensors.numpy import save_file; "
    "save_file({{X.name: to_array(X).copy() for X in onnx.load({source}).graph.initializer}}, {target})"
)
_MXNET = (
    "import mha, mxnet; from safetensors.numpy import save_file; "
    "save_file({{name: X.asnumpy() for name, X in mxnet.nd.load({source}).items()}}, {target})"
)
_VARIABLES = (
    "import tensorflow; from safetensors.numpy import save_file; "
    "read = tensorflow.train.load_checkpoint({source}PART); "
    "save_file({{name: read.get_tensor(name) for name, dtype in read.get_variable_to_dtype_map().items() "
    "if dtype.is_floating}}, {target})"
)
_CHECKPOINT = _VARIABLES.replace("PART", '.removesuffix(".index")')
_SAVED = _VARIABLES.replace("PART", ' + "/variables/variables"')
_DISTRIBUTED = "import torch.distributed.checkpoint.format_utils as all; all.dcp_to_torch_save({source}, {new} + '.pt')"


@dataclasses.dataclass(frozen=True)
class FileKind:
    """A kind of file, or of directory, that is not read.

    Attributes:
        title: what it is.
        do: what to do, in words.
        convert: the code of the command that does it, "" = there is none.
        begins: whether a file is of the kind by its first bytes and its last one.
        endings: of the names of such files.
        inside: names of which a directory of the kind has one.
        packs: whether a zip archive of these names is one.
    """

    title: str
    do: str = "convert it"
    convert: str = ""
    begins: Callable[[bytes, bytes], bool] = lambda start, end: False
    endings: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    packs: Callable[[Collection[str]], bool] = lambda names: False

    def describe(self, path: Path, target: Path | None = None) -> str:
        """Say which kind it is, and what to do with the file or the directory at a path."""
        by = f": {command(self.convert, path, target)}" if self.convert else ""
        return "; ".join(filter(None, (self.title, f"{self.do}{by}")))


def _magic(*magics: bytes, at: int = 0) -> Callable[[bytes, bytes], bool]:
    """Return a function that says whether a file has one of these at a place in its beginning."""
    return lambda start, end: start[at:].startswith(magics)


def _is_pickle(start: bytes, end: bytes) -> bool:
    """Whether a file is a pickle: of protocol 2 or later by its first bytes, of an earlier one by its ends."""
    if start[0] == 0x80:
        return start[1] in range(2, 6)
    return start[0] in b"(c}]lI" and end == b"."


def _is_msgpack(start: bytes, end: bytes) -> bool:
    """Whether a file begins with a mapping in msgpack whose first name is a text."""
    sizes = {0xDE: 3, 0xDF: 5} | dict.fromkeys(range(0x81, 0x90), 1)
    first = start[sizes[start[0]]] if start[0] in sizes else 0
    return 0xA1 <= first <= 0xBF or first == 0xD9


def _is_onnx(start: bytes, end: bytes) -> bool:
    """Whether a file begins with the version of ONNX, and then with the name of who made it, or with the graph."""
    return start[0] == 0x08 and 3 <= start[1] <= 31 and start[2] in (0x12, 0x3A)


# `torch.save` before PyTorch 1.6 begins with a pickle of this number.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_OF_TORCH = f"a pickle of torch.save, {RUNS}"
INDEX = FileKind(
    f"the index of pickles, {RUNS}", "convert them", _SHARDS, endings=(".bin.index.json",)
)  # its shards say that it is one
KINDS = (
    FileKind("a checkpoint of orbax", convert=_ORBAX, inside=("_CHECKPOINT_METADATA", "_METADATA")),
    FileKind(
        "an adapter of peft, which is no model without its own",
        "merge it: peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW), and "
        "pass NEW",
        inside=("adapter_config.json",),
        endings=("adapter_model.bin",),
    ),
    FileKind(
        "a pipeline of diffusers, whose models have directories of their own",
        "pass one of these, such as unet, transformer or text_encoder",
        inside=("model_index.json",),
    ),
    FileKind(
        "a checkpoint of DeepSpeed",
        "convert it: python zero_to_fp32.py . NEW --safe_serialization, in that directory, and pass NEW",
        inside=("zero_to_fp32.py",),
    ),
    FileKind(
        "a distributed checkpoint of PyTorch",
        "convert it to one file, which says then how to go on",
        _DISTRIBUTED,
        inside=(".metadata",),
    ),
    FileKind("a SavedModel of TensorFlow", convert=_SAVED, inside=("saved_model.pb",)),
    FileKind("a checkpoint of TensorFlow", convert=_CHECKPOINT, inside=("checkpoint",), endings=(".index",)),
    INDEX,
    FileKind(
        "a program of TorchScript",
        convert=_SCRIPT,
        packs=lambda names: any("/code/" in f"/{name}" for name in names) and _has(names, "data.pkl"),
    ),
    FileKind(
        "a program of torch.export",
        convert=_EXPORTED,
        endings=(".pt2",),
        packs=lambda names: _has(names, "archive_format") or _has(names, "serialized_exported_program.json"),
    ),
    FileKind(
        f"an archive of torch.save, with a pickle in it, {RUNS}",
        convert=_TORCH,
        packs=lambda names: _has(names, "data.pkl"),
    ),
    FileKind(_OF_TORCH, convert=_TORCH, begins=_magic(_OLD_TORCH), endings=(".bin", ".pt", ".pth", ".ckpt")),
    FileKind(f"a pickle, {RUNS}", TRUSTED, _PICKLE, _is_pickle, (".pkl", ".pickle", ".pdparams")),
    FileKind("msgpack, as Flax writes it", convert=_MSGPACK, begins=_is_msgpack, endings=(".msgpack",)),
    FileKind(
        "one array of numpy.save, expected arrays by name: write them by numpy.savez",
        "",
        begins=_magic(b"\x93NUMPY"),
        endings=(".npy",),
    ),
    FileKind(
        "a GGUF file, as llama.cpp reads it",
        "convert it to floats, and pass the new directory",
        _GGUF,
        _magic(b"GGUF", b"FUGG"),
        (".gguf",),
    ),
    FileKind(
        "a GGML file, which is older than GGUF",
        ORIGIN,
        begins=_magic(b"lmgg", b"fmgg", b"tjgg", b"algg"),
        endings=(".ggml",),
    ),
    FileKind(
        "an ONNX file, in which kernels are often turned and have lost their names",
        f"{ORIGIN}, or take its arrays",
        _ONNX,
        _is_onnx,
        (".onnx",),
    ),
    FileKind("a TFLite file", ORIGIN, begins=_magic(b"TFL3", at=4), endings=(".tflite",)),
    FileKind(
        "a file of MXNet's parameters",
        convert=_MXNET,
        begins=_magic((0x112).to_bytes(8, "little")),
        endings=(".params",),
    ),
    FileKind(
        "a pointer of Git LFS, which stands where the file belongs",
        "fetch the file: git lfs pull",
        begins=_magic(b"version https://git-lfs"),
    ),
    FileKind(
        "a web page",
        "download the file itself again, such as by: hf download MODEL --local-dir FOLDER",
        begins=lambda start, end: start.lstrip().lower().startswith((b"<!doctype html", b"<html")),
    ),
    FileKind("a file in gzip", UNPACK, begins=_magic(b"\x1f\x8b")),
    FileKind("a file in xz", UNPACK, begins=_magic(b"\xfd7zXZ\0")),
    FileKind("a file in zstd", UNPACK, begins=_magic(b"\x28\xb5\x2f\xfd")),
    FileKind("a file in bzip2", UNPACK, begins=_magic(b"BZh")),
    FileKind("an archive of 7-Zip", UNPACK, begins=_magic(b"7z\xbc\xaf\x27\x1c")),
    FileKind("a tar archive, as those of NeMo", UNPACK, begins=_magic(b"ustar", at=257), endings=(".nemo", ".tar")),
)


def refuse(path: Path, file: BinaryIO) -> None:
    """Raise ValueError if a file, which is no safetensors, is of a known kind that is not read."""
    file.seek(0)
    start = file.read(BEGINNING)
    file.seek(-1, os.SEEK_END)
    end = file.read(1)
    for kind in KINDS:
        if kind.begins(start, end):
            raise ValueError(f"is {kind.describe(path)}")


def refuse_archive(path: Path, names: Collection[str]) -> None:
    """Raise ValueError if a zip archive with files of these names is of a known kind that is not read."""
    for kind in KINDS:
        if kind.packs(names):
            raise ValueError(f"is {kind.describe(path)}")


def refuse_shards(path: Path, names: Collection[str]) -> None:
    """Raise ValueError if an index names pickles; path: of the index."""
    if any(name.endswith(".bin") for name in names):
        raise ValueError(f"is {INDEX.describe(path, path.with_name('model.safetensors'))}")


def describe_folder(folder: Path, names: Collection[str]) -> str:
    """Say what a directory of these names is, if it has no weights that can be read, and what converts it; or ""."""
    for kind in KINDS:
        if any(name in kind.inside for name in names):
            tree = folder / "default" if "default" in names and "_CHECKPOINT_METADATA" in names else folder
            return f"is {kind.describe(tree, folder.parent / f'{folder.name}.safetensors')}"
        for name in names:
            if name.endswith(kind.endings):
                return f"has {name!r}, {kind.describe(folder / name, folder / 'model.safetensors')}"
    return ""


def command(code: str, source: Path, target: Path | None = None) -> str:
    """Return the command that runs this code, from the file or directory at source to a new one at target."""
    if target is None:
        target = source.with_suffix(".safetensors")
        target = target.with_name(f"{source.stem}-converted.safetensors") if target == source else target
    places = {"source": os.path.abspath(source), "target": str(target), "name": source.name}
    places |= {"folder": os.path.dirname(places["source"]), "new": str(target.with_suffix(""))}
    written = {name: json.dumps(place, ensure_ascii=False) for name, place in places.items()}
    return f"python -c {shlex.quote(code.format(**written))}"


def _has(names: Collection[str], end: str) -> bool:
    """Whether one of these names ends so."""
    return any(name.endswith(end) for name in names)
