"""Checkpoints as they lie on disk, for tests: one model of two layers, which no two numbers of share."""

import contextlib
import json

import numpy as np
import safetensors.numpy

import mha
from mha.weights import files

H, D = 3, 6
PARTS = ("self.query", "self.key", "self.value", "output.dense")
INDEX = "model.safetensors.index.json"
SHARDS = tuple(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
FIRST, SECOND = "layer.0.attention.", "layer.1.attention."


def model():
    """The arrays of two layers in scheme bert, D = 6, and a table."""
    numbers = iter(np.arange(1000, dtype="float32"))
    arrays = {"embeddings.weight": np.array([next(numbers) for _ in range(4)], "float32")}
    for prefix in (FIRST, SECOND):
        for part in PARTS:
            arrays[f"{prefix}{part}.weight"] = np.array([next(numbers) for _ in range(D * D)], "float32").reshape(D, D)
            arrays[f"{prefix}{part}.bias"] = np.array([next(numbers) for _ in range(D)], "float32")
    return arrays


def places():
    """The shard of each array: queries and keys of layer 1 are in the second, the rest of it in the third."""
    chosen = dict.fromkeys(model(), SHARDS[0])
    for part, shard in zip(PARTS, SHARDS[1:2] * 2 + SHARDS[2:] * 2, strict=True):
        chosen |= {f"{SECOND}{part}.{kind}": shard for kind in ("weight", "bias")}
    return chosen


def write_shards(folder, where=None):
    """Write the model in three shards into a folder, its index, and its configuration; returns the index's path."""
    arrays, where = model(), places() if where is None else where
    for shard in SHARDS:
        held = {name: arrays[name] for name, place in where.items() if place == shard}
        safetensors.numpy.save_file(held, folder / shard, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "num_attention_heads": H}))
    return write_index(folder, where)


def write_index(folder, where, **others):
    """Write the index of a model in shards; returns its path."""
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where} | others))
    return folder / INDEX


def of_layer(prefix):
    """The layer of this prefix that any form of the model has."""
    return mha.from_native(model(), scheme="bert", prefix=prefix, num_heads=H, backend="numpy")


@contextlib.contextmanager
def opening(monkeypatch):
    """The names of the files that mha opens meanwhile, in order."""
    opened, open_file = [], files.open_file

    def keep(path):
        opened.append(path.name if hasattr(path, "name") else str(path).rpartition("/")[2])
        return open_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_file", keep)
        yield opened
