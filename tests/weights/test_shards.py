"""A checkpoint as it lies on disk: a directory, and an index with shards, of which only what is needed is opened."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import run
from layers import assert_same_weights

import mha

from .checkpoints import FIRST, INDEX, SECOND, SHARDS, H, model, of_layer, opening, places, write_index, write_shards

QUERY, VALUE = f"{SECOND}self.query.weight", f"{SECOND}self.value.weight"


def refusal(path, error=ValueError, **options):
    """The text of the error for a layer at a path, one line that can be printed."""
    with pytest.raises(error) as raised:
        mha.load(path, "numpy", **{"prefix": SECOND} | options)
    assert type(raised.value) is error
    assert str(raised.value).isprintable()
    return str(raised.value)


# 1. What is read


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "index"])
@pytest.mark.parametrize("prefix", [FIRST, SECOND])
def test_a_layer_lies_in_one_shard_or_in_two(tmp_path, prefix, whole):
    index = write_shards(tmp_path)
    attention = mha.load(tmp_path if whole else str(index), "numpy", prefix=prefix)
    assert attention.config.num_heads == H  # as config.json says
    assert_same_weights(attention.weights, of_layer(prefix).weights)


@pytest.mark.parametrize(
    ("prefix", "needed"), [(FIRST, SHARDS[:1]), (SECOND, SHARDS[1:])], ids=["one shard", "two shards"]
)
def test_only_what_is_needed_is_opened(tmp_path, monkeypatch, prefix, needed):
    write_shards(tmp_path)
    for shard in set(SHARDS) - set(needed):
        (tmp_path / shard).unlink()  # a download of what the layer needs
    with opening(monkeypatch) as opened:
        mha.load(tmp_path, "numpy", prefix=prefix)
    assert sorted(opened) == sorted([INDEX, "config.json", *needed])


def test_nothing_of_an_index_is_opened_to_choose_a_layer(tmp_path, monkeypatch):
    write_shards(tmp_path)
    with opening(monkeypatch) as opened:
        assert "2 attention layers are there" in refusal(tmp_path, prefix=None)
    assert opened == [INDEX]


def test_a_directory_has_one_file_of_weights(tmp_path):
    safetensors.numpy.save_file(model(), tmp_path / "consolidated.safetensors")
    options = {"prefix": SECOND, "num_heads": H, "backend": "numpy"}
    assert_same_weights(mha.load(tmp_path, **options).weights, of_layer(SECOND).weights)
    np.savez(tmp_path / "other.npz", table=np.ones(2))  # safetensors come first
    assert_same_weights(mha.load(tmp_path, **options).weights, of_layer(SECOND).weights)
    safetensors.numpy.save_file({"table": np.ones(2)}, tmp_path / "adapter.safetensors")
    text = refusal(tmp_path, num_heads=H)
    both = "adapter.safetensors, consolidated.safetensors"
    assert text == f"{tmp_path} has 2 files of weights, {both}; pass the path of one of them"
    safetensors.numpy.save_file(model(), tmp_path / "model.safetensors")
    assert_same_weights(mha.load(tmp_path, **options).weights, of_layer(SECOND).weights)
    (tmp_path / "model.safetensors").unlink()
    write_index(tmp_path, dict.fromkeys(model(), "consolidated.safetensors"))
    assert_same_weights(mha.load(tmp_path, **options).weights, of_layer(SECOND).weights)


def test_the_commands_take_directories(tmp_path):
    folder, out = tmp_path / "model", tmp_path / "layer.safetensors"
    folder.mkdir()
    write_shards(folder)
    shown = run("weights", "show", str(folder))
    assert shown.exit_code == 0
    size = sum((folder / name).stat().st_size for name in (INDEX, *SHARDS))
    assert f"{folder}: {size:,} bytes, 17 arrays" in shown.stdout
    for prefix in (FIRST, SECOND):
        assert re.search(rf"^bert +{re.escape(prefix)} +{H} ", shown.stdout, re.MULTILINE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for own in (INDEX, *SHARDS):
        refused = run("convert", str(folder), str(folder / own), "--prefix", SECOND)
        assert (refused.exit_code, "a file of IN; choose another OUT" in refused.stderr) == (2, True)
    assert run("convert", str(folder), str(out), "--prefix", SECOND).exit_code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert_same_weights(mha.load(out, "numpy").weights, of_layer(SECOND).weights)
    same = run("compare", str(folder), str(out), "--prefix-a", SECOND)
    assert (same.exit_code, "the same" in same.stdout) == (0, True)


# 2. What is refused


def lacking(folder):
    """A shard that lacks an array of the index."""
    arrays = {name: X for name, X in model().items() if places()[name] == SHARDS[1] and name != QUERY}
    safetensors.numpy.save_file(arrays, folder / SHARDS[1])


def twice(folder):
    """An array in two shards, of which the index names one."""
    arrays = {name: X for name, X in model().items() if places()[name] == SHARDS[1] or name == VALUE}
    safetensors.numpy.save_file(arrays, folder / SHARDS[1])


def unlisted(folder):
    """An array that the index does not list."""
    write_index(folder, {name: shard for name, shard in places().items() if name != f"{SECOND}self.key.bias"})


BROKEN = {
    "missing": (lambda folder: (folder / SHARDS[1]).unlink(), f"has a shard {SHARDS[1]} in its index, which is not"),
    "lacking": (lacking, f"has a shard {SHARDS[1]}, which lacks {QUERY}, expected it there as the index says"),
    "twice": (twice, f"has a shard {SHARDS[1]}, which has {VALUE}, expected it in {SHARDS[2]} alone"),
    "unlisted": (unlisted, f"has a shard {SHARDS[1]}, which has {SECOND}self.key.bias, expected it in the index, too"),
    "cut": (
        lambda folder: (folder / SHARDS[1]).write_bytes((folder / SHARDS[1]).read_bytes()[:-1]),
        f"has a shard {SHARDS[1]}, which has 735 bytes, expected 736 as its header says",
    ),
    "a pickle": (
        lambda folder: (folder / SHARDS[1]).write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94."),
        f"has a shard {SHARDS[1]}, which is a pickle, which may run code and is never opened",
    ),
    "a directory": (
        lambda folder: ((folder / SHARDS[1]).unlink(), (folder / SHARDS[1]).mkdir()),
        f"has a shard {SHARDS[1]}, which cannot be read: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_shard_is_named(tmp_path, name):
    write_shards(tmp_path)
    change, text = BROKEN[name]
    change(tmp_path)
    assert refusal(tmp_path).startswith(f"{tmp_path / INDEX} {text}")
    assert_same_weights(mha.load(tmp_path, "numpy", prefix=FIRST).weights, of_layer(FIRST).weights)


OUTSIDE = ["../model.safetensors", "/etc/passwd", "a/../../b", "..", ".", "", "a/", "a\0b", "a\x1b[2J", 3, None, ["a"]]


@pytest.mark.parametrize("shard", OUTSIDE, ids=repr)
def test_a_shard_is_a_file_in_the_folder_of_its_index(tmp_path, monkeypatch, shard):
    write_shards(tmp_path)
    write_index(tmp_path, places() | {QUERY: shard})
    with opening(monkeypatch) as opened:
        text = refusal(tmp_path, prefix=FIRST)  # the others may not be trusted either
    assert text.startswith(f"{tmp_path / INDEX} is not the index of a checkpoint in shards: it places {QUERY} in ")
    assert text.endswith("expected a file in its own folder")
    assert opened == [INDEX]


def test_a_shard_may_lie_further_inside(tmp_path):
    write_shards(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / SHARDS[1]).rename(tmp_path / "parts" / SHARDS[1])
    write_index(tmp_path, {name: f"parts/{place}" if place == SHARDS[1] else place for name, place in places().items()})
    assert_same_weights(mha.load(tmp_path, "numpy", prefix=SECOND).weights, of_layer(SECOND).weights)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting property name"),
        ('{"weight_map": []}', "it is JSON without a weight_map"),
        (json.dumps({"model_type": "bert"}), "it is JSON without a weight_map"),
        ('{"weight_map": {"a": "b", "a": "c"}}', "the name 'a' comes 2 times"),
        ('{"weight_map": ' + "[" * 100_000, "the JSON nests too deep"),
        ('{"weight_map": {"\\u001b[2J": "a"}}', "is not printable"),
    ],
    ids=["cut", "no names", "config.json", "twice", "deep", "unprintable"],
)
def test_what_is_no_index_is_refused(tmp_path, text, said):
    (tmp_path / INDEX).write_text(text)
    found = refusal(tmp_path)
    assert found.startswith(f"{tmp_path / INDEX} is not the index of a checkpoint in shards: ")
    assert said in found


def test_a_directory_without_weights_says_what_it_has(tmp_path):
    error = mha.weights.FileError
    expected = f"{tmp_path} is a directory without weights, expected model.safetensors or {INDEX} in it; it has "
    assert refusal(tmp_path, error) == expected + "nothing"
    (tmp_path / "config.json").write_text("{}")
    assert refusal(tmp_path, error) == expected + "config.json"
    for number in range(10):
        (tmp_path / f"{number}\x1b[2J.txt").write_text("")
    assert refusal(tmp_path, error).endswith(" and 3 more")
