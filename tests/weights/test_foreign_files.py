"""Files that are never opened, known by their content: named, with a command that converts them, which is run here."""

import gzip
import json
import pickle
import re
import shlex

import malformed
import numpy as np
import pytest
import safetensors.numpy
from commands import run
from layers import assert_same_weights

import mha

from .checkpoints import SECOND, H, model, of_layer

NAMES = ["model.safetensors", "pytorch_model.bin", "odd 'name\" \N{SNOWMAN}.pt"]


def refusal(path, error=ValueError):
    """The text of the error for a path, one line."""
    with pytest.raises(error, match=f"^{re.escape(str(path))}") as raised:
        mha.load(path, "numpy", prefix=SECOND, num_heads=H)
    assert type(raised.value) is error
    assert str(raised.value).isprintable()
    return str(raised.value)


def convert(text):
    """Run the command in an error, in this process; nothing else is run for it."""
    python, option, code = shlex.split(text[text.index("python -c ") :])
    assert (python, option) == ("python", "-c")
    exec(compile(code, "the command", "exec"), {})


def assert_is_the_model(path):
    attention = mha.load(path, "numpy", prefix=SECOND, num_heads=H)
    assert_same_weights(attention.weights, of_layer(SECOND).weights)


# 1. What it is


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("thing", [malformed.Payload(), {"weight": 1}, model()], ids=["payload", "dict", "arrays"])
def test_a_pickle_is_known_by_its_content_and_never_run(tmp_path, monkeypatch, protocol, thing):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(thing, protocol))
    text = refusal(tmp_path / "model.safetensors")
    assert "model.safetensors is a pickle, which may run code and is never opened; if you trust who wrote it" in text
    for command in (("weights", "show"), ("convert",)):
        result = run(*command, "model.safetensors", *["out"][: len(command) == 1])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


OTHERS = {
    "old torch.save": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "is a pickle of torch.save, whi"),
    "torch.save": (malformed.archive({"layer/data.pkl": b""}), "is an archive of torch.save, with a pickle in it"),
    "small msgpack": (b"\x81\xa6params\x81\xa1a\x01", "is msgpack, as Flax writes it; convert it: python -c "),
    "larger msgpack": (b"\xde\x00\x20\xa6params" + bytes(9), "is msgpack, as Flax writes it; convert it: python -c "),
    "largest msgpack": (b"\xdf\x00\x00\x00\x20\xd9\x06params", "is msgpack, as Flax writes it; convert it: python -c "),
    "npy": (b"\x93NUMPY\x01\x00v\x00", "is one array of numpy.save, expected arrays by name: write them by num"),
    "GGUF": (b"GGUF\3\0\0\0" + bytes(80), "is a GGUF file, as llama.cpp reads it; convert it to floats, and pass the "),
    "GGML": (b"tjgg\1\0\0\0" + bytes(80), "is a GGML file, which is older than GGUF; pass the weights of the model"),
    "ONNX": (b"\x08\x08\x12\x07pytorch" + bytes(80), "is an ONNX file, in which kernels are often turned and have lo"),
    "TFLite": (b"\x1c\0\0\0TFL3" + bytes(80), "is a TFLite file; pass the weights of the model that it was made of"),
    "MXNet": (b"\x12\1" + bytes(300), "is a file of MXNet's parameters; convert it: python -c "),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS, which stands where the "),
    "page": (b"\n<!DOCTYPE html><html></html>", "is a web page; download the file itself again"),
    "gzip": (gzip.compress(bytes(900_000), mtime=0), "is a file in gzip; unpack it, and pass"),
    "tar": (b"weights/a".ljust(257, b"\0") + b"ustar" + bytes(250), "is a tar archive, as those of NeMo; unpack "),
    "TorchScript": (malformed.archive({"m/data.pkl": b"", "m/code/__torch__.py": b""}), "is a program of Torch"),
    "torch.export": (malformed.archive({"m/archive_format": b"pt2"}), "is a program of torch.export; "),
    "text": (b"Weights of a layer.", "is not a safetensors file: it claims a header of"),
    "text in brackets": (b"(Weights of a layer)", "is not a safetensors file: it claims a header of"),
    "index of pickles": (
        json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}).encode(),
        "is the index of pickles, which may run code and is never opened; convert them: python -c ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_is_named_whatever_the_file_is_called(tmp_path, kind):
    for name in NAMES:
        assert_named(tmp_path, kind, name)


def assert_named(tmp_path, kind, name):
    data, text = OTHERS[kind]
    (tmp_path / name).write_bytes(data)
    said = refusal(tmp_path / name)
    assert said.startswith(f"{tmp_path / name} {text}")
    assert ("weights_only=True" in said) == (kind in ("old torch.save", "torch.save", "index of pickles"))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["config.json", "pytorch_model.bin"], "has 'pytorch_model.bin', a pickle of torch.save, which may run code"),
        (["a.pth"], "has 'a.pth', a pickle of torch.save, which may run code and is never opened; convert it: "),
        (["pytorch_model-1.bin", "pytorch_model.bin.index.json"], "has 'pytorch_model.bin.index.json', the index of "),
        (["flax_model.msgpack"], "has 'flax_model.msgpack', msgpack, as Flax writes it; convert it: python -c "),
        (["_METADATA", "d"], "is a checkpoint of orbax; convert it: python -c "),
        (["_CHECKPOINT_METADATA", "default"], "is a checkpoint of orbax; convert it: python -c "),
        (["m.Q4_K_M.gguf"], "has 'm.Q4_K_M.gguf', a GGUF file, as llama.cpp reads it; convert it to floats, and pass"),
        (["model.onnx", "model.onnx.data"], "has 'model.onnx', an ONNX file, in which kernels are often turned and h"),
        (["adapter_config.json", "adapter_model.bin"], "is an adapter of peft, which is no model without its "),
        (["model_index.json", "unet", "vae"], "is a pipeline of diffusers, whose models have "),
        (["saved_model.pb", "variables"], "is a SavedModel of TensorFlow; convert it: python -c "),
        (["checkpoint", "m.ckpt-1.index"], "is a checkpoint of TensorFlow; convert it: python -c "),
        (["m.ckpt.index", "m.ckpt.meta"], "has 'm.ckpt.index', a checkpoint of TensorFlow; convert it: python -c "),
        (["zero_to_fp32.py", "latest"], "is a checkpoint of DeepSpeed; convert it: python zero_to_fp32.py . NEW"),
        ([".metadata", "__0_0.distcp"], "is a distributed checkpoint of PyTorch; convert it to one file, wh"),
    ],
)  # fmt: skip
def test_a_directory_of_another_kind_is_named(tmp_path, names, text):
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    assert refusal(tmp_path, mha.weights.FileError).startswith(f"{tmp_path} {text}")
    safetensors.numpy.save_file(model(), tmp_path / "model.safetensors")
    assert_is_the_model(tmp_path)  # what can be read goes before


def test_no_file_is_written_over_by_a_command(tmp_path):
    """A pickle that is called model.safetensors is converted to a file of another name."""
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(model()))
    before = (tmp_path / "model.safetensors").read_bytes()
    convert(refusal(tmp_path / "model.safetensors"))
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert_is_the_model(tmp_path / "model-converted.safetensors")


# 2. The commands


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_command_converts_a_pickle(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(model()))
    convert(refusal(tmp_path / name))
    assert_is_the_model((tmp_path / name).with_suffix(".safetensors"))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("old", [True, False], ids=["old", "today's"])
def test_the_command_converts_what_torch_saves(tmp_path, name, old):
    import torch

    arrays = {name: torch.tensor(X) for name, X in model().items()}
    arrays["tied"] = arrays["embeddings.weight"]  # which safetensors refuses to save
    arrays["turned"] = arrays[f"{SECOND}self.query.weight"].T
    torch.save(arrays, tmp_path / name, _use_new_zipfile_serialization=not old)
    text = refusal(tmp_path / name)
    convert(text)
    (made,) = (path for path in tmp_path.iterdir() if path.name != name)
    assert_is_the_model(made)
    assert text.count("weights_only=True") == 1


@pytest.mark.backends("torch")
def test_the_command_converts_pickles_in_parts(tmp_path):
    import torch

    arrays = {name: torch.tensor(X) for name, X in model().items()}
    shards = {name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin" for number, name in enumerate(arrays)}
    for shard in set(shards.values()):
        torch.save({name: X for name, X in arrays.items() if shards[name] == shard}, tmp_path / shard)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    convert(refusal(tmp_path / "pytorch_model.bin.index.json"))
    assert_is_the_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    convert(refusal(tmp_path, mha.weights.FileError))
    assert_is_the_model(tmp_path)


@pytest.mark.backends("torch")
def test_the_command_converts_what_trainers_save_around_a_model(tmp_path):
    import torch

    state = {name: torch.tensor(X) for name, X in model().items()}
    others = {"step": 3, "optimizer": {"state": {0: {"mean": torch.ones(2)}}, "groups": [{"lr": 1.0}]}}
    torch.save({"model": state} | others, tmp_path / "ckpt.pt")
    convert(refusal(tmp_path / "ckpt.pt"))
    attention = mha.load(tmp_path / "ckpt.safetensors", "numpy", prefix=f"model.{SECOND}", num_heads=H)
    assert_same_weights(attention.weights, of_layer(SECOND).weights)


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_the_command_converts_what_torchscript_saves(tmp_path):
    import torch

    module = torch.nn.Linear(2, 3)
    torch.jit.script(module).save(tmp_path / "m.pt")
    convert(refusal(tmp_path / "m.pt"))
    found = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    assert np.array_equal(found["weight"], module.weight.detach())


@pytest.mark.backends("mxnet")
@pytest.mark.filterwarnings("ignore")  # of MXNet itself
def test_the_command_converts_what_mxnet_saves(tmp_path):
    import mxnet

    mxnet.nd.save(str(tmp_path / "m.params"), {name: mxnet.nd.array(X) for name, X in model().items()})
    convert(refusal(tmp_path / "m.params"))
    assert_is_the_model(tmp_path / "m.safetensors")


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("saved", ["SavedModel", "checkpoint"])
def test_the_command_converts_what_tensorflow_saves(tmp_path, saved):
    import tensorflow

    module, folder = tensorflow.Module(), tmp_path / "saved"
    module.kernel = tensorflow.Variable(model()[f"{SECOND}self.query.weight"])
    if saved == "SavedModel":
        tensorflow.saved_model.save(module, str(folder))
    else:
        tensorflow.train.Checkpoint(module=module).write(str(folder / "m.ckpt"))
    convert(refusal(folder, mha.weights.FileError))
    made = folder.with_suffix(".safetensors") if saved == "SavedModel" else folder / "model.safetensors"
    (X,) = safetensors.numpy.load_file(made).values()
    assert np.array_equal(X, module.kernel.numpy())


def tree():
    """The model as nested mappings, as Flax has it."""
    nested = {}
    for name, X in model().items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = X
    return nested


@pytest.mark.backends("jax")
def test_the_command_converts_what_flax_writes(tmp_path):
    import flax.serialization

    (tmp_path / "flax_model.msgpack").write_bytes(flax.serialization.to_bytes(tree()))
    convert(refusal(tmp_path / "flax_model.msgpack"))
    assert_is_the_model(tmp_path / "flax_model.safetensors")
    (tmp_path / "flax_model.safetensors").unlink()
    convert(refusal(tmp_path, mha.weights.FileError))
    assert_is_the_model(tmp_path / "model.safetensors")


@pytest.mark.long("jax")  # what differs from the test above is what reads the tree
@pytest.mark.backends("jax")
@pytest.mark.filterwarnings("ignore")  # of orbax itself
def test_the_command_converts_what_orbax_writes(tmp_path):
    import orbax.checkpoint

    with orbax.checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "step", tree())
    convert(refusal(tmp_path / "step", mha.weights.FileError))
    assert_is_the_model(tmp_path / "step.safetensors")
    with orbax.checkpoint.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=orbax.checkpoint.args.StandardSave(tree()))
    convert(refusal(tmp_path / "run" / "3", mha.weights.FileError))
    assert_is_the_model(tmp_path / "run" / "3.safetensors")
