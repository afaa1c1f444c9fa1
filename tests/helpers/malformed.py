"""Malformed files of weights, which `mha.load` must refuse.

Most begin as a file that `save` wrote and differ from it in the one thing that their name says.
"""

import copy
import gzip
import io
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mha
from mha.core.options.config import numpy_dtype

Header = dict[str, Any]

# A pickle below makes a file of this name in the working directory of whoever loads it.
MARKER = "a-pickle-was-executed"

# Sizes that all differ, so that no kernel is square and no two weights have the same shape.
SIZES = {"query_size": 7, "key_size": 11, "value_size": 13, "key_dim": 2, "value_dim": 4}


def saved(**options: Any) -> bytes:
    """A file as `save` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "layer.safetensors")
        mha.MultiHeadAttention(5, 3, bias=True, **SIZES, backend="numpy", **options).save(path)
        return path.read_bytes()


def split(data: bytes) -> tuple[Header, bytes]:
    """The header and the numbers of a file that is not malformed."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def join(header: Header | str | bytes, numbers: bytes, claim: int | None = None) -> bytes:
    """A file of this header and these numbers; `claim` is the header's length that the file tells."""
    text = json.dumps(header) if isinstance(header, dict) else header
    text = text.encode() if isinstance(text, str) else text
    return (len(text) if claim is None else claim).to_bytes(8, "little") + text + numbers


VALID = saved()
HEADER, NUMBERS = split(VALID)
TEXT = json.dumps(HEADER)
CONFIG = json.loads(HEADER["__metadata__"]["config"])
KERNEL = HEADER["W_o.kernel"]
START, END = KERNEL["data_offsets"]
SHAPE = KERNEL["shape"]
GIGABYTES = 8 * 10**9


def changed(change: Callable[[Header], Any], numbers: bytes = NUMBERS) -> bytes:
    """The valid file with a change to its header."""
    header = copy.deepcopy(HEADER)
    change(header)
    return join(header, numbers)


def kernel(**description: Any) -> bytes:
    """The valid file with another description of W_o.kernel."""
    return changed(lambda header: header["W_o.kernel"].update(description))


def metadata(**entries: Any) -> bytes:
    """The valid file with other entries in its metadata."""
    return changed(lambda header: header["__metadata__"].update(entries))


def config(**options: Any) -> bytes:
    """The valid file with other options in its configuration."""
    return metadata(config=json.dumps(CONFIG | options))


def twice(entry: str, text: str = TEXT) -> str:
    """A JSON text in which an entry, found in it as it stands, comes two times."""
    assert text.count(entry) == 1
    return text.replace(entry, f"{entry}, {entry}")


def holding(number: float, dtype: str = "float32") -> bytes:
    """A valid file but for one number of its last weight."""
    data = saved(dtype=dtype)
    last = np.array([number]).astype(numpy_dtype(dtype)).tobytes()
    return data[: -len(last)] + last


def converted(code: str, dtype: str) -> bytes:
    """The valid file with all weights in another dtype than its configuration says, and described so."""
    header, numbers = split(VALID)
    for name, tensor in header.items():
        if name != "__metadata__":
            ends = [offset // 4 * np.dtype(dtype).itemsize for offset in tensor["data_offsets"]]
            tensor.update(dtype=code, data_offsets=ends)
    return join(header, np.frombuffer(numbers, "float32").astype(dtype).tobytes())


class Payload:
    """What, once unpickled, runs a command."""

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {MARKER}",)


def archive(files: dict[str, bytes]) -> bytes:
    """A zip archive, as `torch.save` and `numpy.savez` write them."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return data.getvalue()


def npy() -> bytes:
    """A file as `numpy.save` writes it, with an object that has to be unpickled."""
    data = io.BytesIO()
    np.save(data, np.array([Payload()], dtype=object), allow_pickle=True)
    return data.getvalue()


# The beginning of `numpy.save`'s file of a kernel.
NUMPY = b"\x93NUMPY\1\0\x3b\0{'descr': '<f4', 'fortran_order': False, 'shape': (12, 5), }"


def huge(size: int) -> Header:
    """A header that describes a layer of this width, as it should be, and no numbers yet."""
    sizes = dict.fromkeys(("num_hiddens", "query_size", "key_size", "value_size", "key_dim", "value_dim"), size)
    options = json.dumps(CONFIG | sizes | {"num_heads": 1, "bias": False})
    header: Header = {"__metadata__": HEADER["__metadata__"] | {"config": options}}
    for number, name in enumerate(("W_q", "W_k", "W_v", "W_o")):
        ends = [4 * size**2 * number, 4 * size**2 * (number + 1)]
        header[f"{name}.kernel"] = {"dtype": "F32", "shape": [size, size], "data_offsets": ends}
    return header


def without(name: str) -> bytes:
    """The valid file without the last weight and its numbers."""
    start = HEADER[name]["data_offsets"][0]
    return changed(lambda header: header.pop(name), NUMBERS[:start])


LAST = max(set(HEADER) - {"__metadata__"}, key=lambda name: HEADER[name]["data_offsets"])
TENSORS = {name: tensor for name, tensor in HEADER.items() if name != "__metadata__"}
ONE_MORE = {"dtype": "F32", "shape": [1], "data_offsets": [len(NUMBERS), len(NUMBERS) + 4]}

CORPUS: dict[str, bytes] = {
    # Cut off
    "empty": b"",
    "one byte": VALID[:1],
    "seven bytes": VALID[:7],
    "length alone": VALID[:8],
    "cut in the header": VALID[:100],
    "cut after the header": VALID[: -len(NUMBERS)],
    "cut in the numbers": VALID[: -len(NUMBERS) // 2],
    "one byte short": VALID[:-1],
    "one byte more": VALID + b"\0",
    "a second file behind it": VALID + VALID,
    # The header's length
    "length of zero": join(TEXT, NUMBERS, claim=0),
    "length one too small": join(TEXT, NUMBERS, claim=len(TEXT) - 1),
    "length one too large": join(TEXT, NUMBERS, claim=len(TEXT) + 1),
    "length of the whole file": join(TEXT, NUMBERS, claim=len(VALID)),
    "length of a gigabyte": join(TEXT, NUMBERS, claim=2**30),
    "length of 2**63": join(TEXT, NUMBERS, claim=2**63),
    "length of 2**64 - 1": join(TEXT, NUMBERS, claim=2**64 - 1),
    "length with its bytes reversed": VALID[:8][::-1] + VALID[8:],
    "header of two megabytes of spaces": join(TEXT + " " * 2**21, NUMBERS),
    "header of a gigabyte, sparse": join(TEXT, NUMBERS, claim=2**30),
    # The header's text
    "header is text": join("weights of a layer", NUMBERS),
    "header is an array": join("[1, 2]", NUMBERS),
    "header is a number": join("1", NUMBERS),
    "header is null": join("null", NUMBERS),
    "header is a string": join('"W_o.kernel"', NUMBERS),
    "header is empty": join("{}", NUMBERS),
    "header is empty, no numbers": join("{}", b""),
    "header is spaces": join(" " * 64, NUMBERS),
    "header ends in nulls": join(TEXT + "\0\0", NUMBERS),
    "header ends in text": join(TEXT + "x", NUMBERS),
    "header of two objects": join(TEXT + TEXT, NUMBERS),
    "header does not end": join(TEXT[:-1], NUMBERS),
    "header with a comma too many": join(TEXT[:-1] + ",}", NUMBERS),
    "header in single quotes": join(TEXT.replace('"', "'"), NUMBERS),
    "header in Latin-1": changed(lambda header: header["__metadata__"].update(author="x")).replace(b'"x"', b'"\xe9"'),
    "header in UTF-16": join(TEXT.encode("utf-16"), NUMBERS),
    "header with a byte order mark": join(TEXT.encode("utf-8-sig"), NUMBERS),
    "header nests deep": join("[" * 100_000, NUMBERS),
    "header nests deep in a weight": join(TEXT[:-1] + ', "W_p":' + "[" * 50_000 + "]" * 50_000 + "}", NUMBERS),
    "header with a lone surrogate": join(TEXT[:-1] + ', "\\ud800": ' + json.dumps(KERNEL) + "}", NUMBERS),
    # Names
    "weight missing": without(LAST),
    "weight missing, its numbers left": changed(lambda header: header.pop("W_o.kernel")),
    "weight misspelt": changed(lambda header: header.update({"W_o.kernl": header.pop("W_o.kernel")})),
    "weight in capitals": changed(lambda header: header.update({"W_O.KERNEL": header.pop("W_o.kernel")})),
    "weight named as in torch": changed(lambda header: header.update({"W_o.weight": header.pop("W_o.kernel")})),
    "weight without a name": changed(lambda header: header.update({"": header.pop("W_o.kernel")})),
    "weight with a null in its name": changed(lambda header: header.update({"W_o.kernel\0": header.pop("W_o.kernel")})),
    "weight with a terminal's commands": changed(lambda header: header.update({"\x1b[2J": header.pop("W_o.kernel")})),
    "weight too many": changed(lambda header: header.update(scale=ONE_MORE), NUMBERS + bytes(4)),
    "weight too many, empty": changed(lambda header: header.update(scale=ONE_MORE | {"shape": [0]})),
    "no weights": join({"__metadata__": HEADER["__metadata__"]}, b""),
    "weight twice": join(twice(f'"W_o.kernel": {json.dumps(KERNEL)}'), NUMBERS),
    "metadata twice": join(twice(f'"__metadata__": {json.dumps(HEADER["__metadata__"])}'), NUMBERS),
    "format twice": join(twice('"format": "mha"'), NUMBERS),
    "shape twice": join(twice(f'"shape": {SHAPE}'), NUMBERS),
    "option twice": metadata(config=twice('"num_heads": 3', json.dumps(CONFIG))),
    # Descriptions of a weight
    "description is null": changed(lambda header: header.update({"W_o.kernel": None})),
    "description is a number": changed(lambda header: header.update({"W_o.kernel": 1})),
    "description is a text": changed(lambda header: header.update({"W_o.kernel": "F32"})),
    "description is an array": changed(lambda header: header.update({"W_o.kernel": ["F32", SHAPE, [START, END]]})),
    "description is empty": changed(lambda header: header.update({"W_o.kernel": {}})),
    "dtype of float64, all weights": converted("F64", "float64"),
    "dtype of float16, all weights": converted("F16", "float16"),
    "dtype of int32": kernel(dtype="I32"),
    "dtype of float64": kernel(dtype="F64"),
    "dtype unknown": kernel(dtype="F33"),
    "dtype as in NumPy": kernel(dtype="float32"),
    "dtype is an array": kernel(dtype=["F32"]),
    "dtype missing": changed(lambda header: header["W_o.kernel"].pop("dtype")),
    "shape transposed": kernel(shape=SHAPE[::-1]),
    "shape flat": kernel(shape=[SHAPE[0] * SHAPE[1]]),
    "shape of no axes": kernel(shape=[]),
    "shape with an axis more": kernel(shape=[1, *SHAPE]),
    "shape of a hundred axes": kernel(shape=[1] * 98 + SHAPE),
    "shape negative": kernel(shape=[-SHAPE[0], -SHAPE[1]]),
    "shape zero": kernel(shape=[0, SHAPE[1]]),
    "shape of floats": kernel(shape=[float(size) for size in SHAPE]),
    "shape of booleans": kernel(shape=[True, False]),
    "shape of text": kernel(shape=["12", "5"]),
    "shape is a number": kernel(shape=60),
    "shape is nested": kernel(shape=[SHAPE]),
    "shape missing": changed(lambda header: header["W_o.kernel"].pop("shape")),
    "shape whose product overflows to the right one": kernel(shape=[2**63 + SHAPE[0], SHAPE[1] * 2]),
    "shape beyond 64 bits": kernel(shape=[2**64, 2**64]),
    "shape of five thousand digits": join(TEXT.replace(str(SHAPE), "[" + "9" * 5000 + "]"), NUMBERS),
    # Where the numbers are
    "offsets missing": changed(lambda header: header["W_o.kernel"].pop("data_offsets")),
    "offsets reversed": kernel(data_offsets=[END, START]),
    "offsets negative": kernel(data_offsets=[START - len(NUMBERS), END - len(NUMBERS)]),
    "offsets are floats": kernel(data_offsets=[float(START), float(END)]),
    "offsets are text": kernel(data_offsets=[str(START), str(END)]),
    "offsets are null": kernel(data_offsets=None),
    "offsets are one": kernel(data_offsets=[START]),
    "offsets are three": kernel(data_offsets=[START, END, END]),
    "offsets beyond the file": kernel(data_offsets=[START + len(NUMBERS), END + len(NUMBERS)]),
    "offsets at the end of 64 bits": kernel(data_offsets=[2**64 - 1 - END + START, 2**64 - 1]),
    "offsets beyond 64 bits": kernel(data_offsets=[START + 2**64, END + 2**64]),
    "offsets too few for the shape": kernel(data_offsets=[START, END - 4]),
    "offsets too many for the shape": kernel(data_offsets=[START, END + 4]),
    "offsets of another weight": kernel(data_offsets=HEADER["W_q.kernel"]["data_offsets"]),
    "offsets overlap": kernel(data_offsets=[START - 4, END - 4]),
    "offsets leave a hole": join(
        {name: t | {"data_offsets": [o + 4 for o in t["data_offsets"]]} for name, t in TENSORS.items()}
        | {"__metadata__": HEADER["__metadata__"]},
        bytes(4) + NUMBERS,
    ),
    # Numbers
    "a number is NaN": holding(np.nan),
    "a number is infinite": holding(np.inf),
    "a number is minus infinity": holding(-np.inf),
    "a float64 is NaN": holding(np.nan, "float64"),
    "a float16 is infinite": holding(np.inf, "float16"),
    "a bfloat16 is NaN": holding(np.nan, "bfloat16"),
    # Metadata
    "metadata missing": join(TENSORS, NUMBERS),
    "metadata is null": changed(lambda header: header.update(__metadata__=None)),
    "metadata is an array": changed(lambda header: header.update(__metadata__=["mha", "1"])),
    "metadata is a text": changed(lambda header: header.update(__metadata__="mha")),
    "metadata is empty": changed(lambda header: header.update(__metadata__={})),
    "metadata holds a number": metadata(version=1),
    "metadata holds an object": metadata(author={"name": "x"}),
    "format missing": changed(lambda header: header["__metadata__"].pop("format")),
    "format of torch": metadata(format="pt"),
    "format is a number": metadata(format=1),
    "layout missing": changed(lambda header: header["__metadata__"].pop("layout")),
    "layout of later": metadata(layout="4"),
    "layout is a number": metadata(layout=1),
    "layout with a space": metadata(layout="1 "),
    # The configuration
    "configuration missing": changed(lambda header: header["__metadata__"].pop("config")),
    "configuration is an object": metadata(config=CONFIG),
    "configuration is null": metadata(config=None),
    "configuration is empty": metadata(config=""),
    "configuration is text": metadata(config="num_hiddens=5"),
    "configuration is an array": metadata(config="[5, 3]"),
    "configuration is a number": metadata(config="5"),
    "configuration is JSON's null": metadata(config="null"),
    "configuration is an empty object": metadata(config="{}"),
    "configuration nests deep": metadata(config="[" * 100_000),
    "configuration nests deep in an option": metadata(config='{"a":' * 50_000 + "1" + "}" * 50_000),
    "configuration cut off": metadata(config=json.dumps(CONFIG)[:-1]),
    "configuration in Python": metadata(config=repr(CONFIG)),
    "option missing": metadata(config=json.dumps({name: CONFIG[name] for name in CONFIG if name != "num_heads"})),
    "option unknown": config(window=3),
    "option named as a method": config(self=3),
    "option with a lone surrogate": config(**{"\ud800": 3}),
    "num_heads of zero": config(num_heads=0),
    "num_heads negative": config(num_heads=-3),
    "num_heads is a float": config(num_heads=3.0),
    "num_heads is a text": config(num_heads="3"),
    "num_heads is a boolean": config(num_heads=True),
    "num_heads is an array": config(num_heads=[3]),
    "num_heads of another layer": config(num_heads=4),
    "key_size of another layer": config(key_size=12),
    "num_hiddens beyond 64 bits": config(num_hiddens=10**30),
    "num_hiddens of four thousand digits": config(num_hiddens=10**4000),
    "num_hiddens of five thousand digits": metadata(config='{"num_hiddens": ' + "9" * 5000 + "}"),
    "dropout of one": config(dropout=1.0),
    "dropout is NaN": config(dropout=float("nan")),
    "dropout is infinite": config(dropout=float("inf")),
    "dropout of 1e999": metadata(config=json.dumps(CONFIG).replace('"dropout": 0.0', '"dropout": 1e999')),
    "dropout of four hundred digits": config(dropout=10**400),
    "bias is a number": config(bias=1),
    "bias denied": config(bias=False),
    "pooling unknown": config(pooling="max"),
    "pooling of another layer": config(pooling="additive"),
    "configuration's dtype unknown": config(dtype="int8"),
    "configuration's dtype of another layer": config(dtype="bfloat16"),
    "configuration of a layer without numbers": join(huge(20_000), b""),
    "configuration of a layer beyond memory": join(huge(2**40), NUMBERS),
    # Gigabytes that are holes in the file
    "gigabytes of zeros": b"",
    "gigabytes behind the numbers": VALID,
    "gigabytes in one weight": changed(
        lambda header: header.update(
            {LAST: {"dtype": "F32", "shape": [GIGABYTES // 4], "data_offsets": [0, GIGABYTES]}}
        ),
        b"",
    ),
    "gigabytes less a byte": join(huge(20_000), b""),
    # Files of other kinds
    "text": b"These are the weights of a layer.\n",
    "JSON": TEXT.encode(),
    **{f"pickle of protocol {protocol}": pickle.dumps(HEADER, protocol) for protocol in range(6)},
    **{f"pickle with a payload, protocol {protocol}": pickle.dumps(Payload(), protocol) for protocol in range(6)},
    "pickle in the header": join(pickle.dumps(Payload()), NUMBERS),
    "pickle in the configuration": metadata(config=pickle.dumps(Payload(), 0).decode()),
    "pickle behind the numbers": VALID + pickle.dumps(Payload()),
    "npy of objects": npy(),
    "npz": archive({"W_o.kernel.npy": npy()}),
    "torch's archive": archive({"layer/data.pkl": pickle.dumps(Payload(), 2), "layer/version": b"3\n"}),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(88),
    "msgpack": b"\x81\xabW_o.kernel\x01",
    "index of no shards": b'{"weight_map": {"W_o.kernel": "model-00001-of-00001.safetensors"}}',
    "index of a shard outside": b'{"weight_map": {"W_o.kernel": "../layer.safetensors"}}',
    "index of itself": b'{"weight_map": {"W_o.kernel": "index-of-itself.safetensors"}}',
    "npz of nothing": archive({}),
    "npz that is cut": archive({"W_o.kernel.npy": NUMPY + bytes(240)})[:-1],
    "npz of gigabytes that are not there": archive({"W_o.kernel.npy": NUMPY.replace(b"(12, 5)", b"(9**9,)")}),
    "npz of an array that is cut": archive({"W_o.kernel.npy": NUMPY + bytes(239)}),
    "keras of no HDF5": archive({"model.weights.h5": VALID}),
    "gzip": gzip.compress(VALID, mtime=0),
}  # fmt: skip

# How long these files are; the rest of each is a hole, which takes no room on the disk.
SPARSE = {
    "header of a gigabyte, sparse": 8 + 2**30 + len(NUMBERS),
    "gigabytes of zeros": GIGABYTES,
    "gigabytes behind the numbers": GIGABYTES,
    "gigabytes in one weight": len(CORPUS["gigabytes in one weight"]) + GIGABYTES,
    "gigabytes less a byte": len(CORPUS["gigabytes less a byte"]) + 4 * 4 * 20_000**2 - 1,
}


def write(name: str, folder: Path) -> Path:
    """Write a malformed file into a folder; returns its path."""
    path = folder / f"{name.replace(' ', '-').replace('/', '-')}.safetensors"
    path.write_bytes(CORPUS[name])
    if name in SPARSE:
        os.truncate(path, SPARSE[name])
    return path
