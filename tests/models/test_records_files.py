"""Files of records: written as they come, whole only when closed, and refused when they are not."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from recorded import of_torch, tokens
from recorded.of_torch import recorded

from mha import parity
from mha.weights.files import FileError

from .verdicts import place

pytestmark = pytest.mark.backends("torch")
HELPERS = Path(__file__).parents[1] / "helpers"
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import torch
from mha import parity
from recorded import of_torch, tokens

model = of_torch.model()
with parity.record(model, sys.argv[1], weights=True):
    model(torch.tensor(tokens()))
    if sys.argv[3] == "between":
        os.kill(os.getpid(), signal.SIGKILL)
    model.blocks[1].mlp.act.register_forward_hook(lambda *given: os.kill(os.getpid(), signal.SIGKILL))
    model(torch.tensor(tokens()))
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_file_is_the_record(tmp_path, dtype):
    path = tmp_path / "ours.safetensors"
    written = recorded(path=path, dtype=dtype, weights=True)
    kept = recorded(dtype=dtype, weights=True)
    assert os.listdir(tmp_path) == ["ours.safetensors"]
    for a, b in ((path, kept), (str(path), written), (written, written)):
        report = parity.compare_records(a, b)
        assert report
        assert max(row.far for row in report.rows) == 0
    kept.save(tmp_path / "saved.safetensors")
    with pytest.raises(ValueError, match=r"the record is in .*ours.safetensors already; copy that file"):
        written.save(tmp_path / "other")
    assert (tmp_path / "saved.safetensors").read_bytes() == path.read_bytes()
    assert place(parity.compare_records(path, recorded("residual", dtype=dtype))) == ("blocks.1.after", "input")


def test_other_tools_read_the_file(tmp_path):
    record = recorded(path=tmp_path / "ours", weights=True)
    arrays = safetensors.numpy.load_file(tmp_path / "ours")
    model = of_torch.model()
    np.testing.assert_array_equal(arrays["weights/head.weight"], model.head.weight.detach().numpy())
    (logits,) = [X for name, X in arrays.items() if name.endswith(".head.output")]
    np.testing.assert_array_equal(logits, of_torch.logits(model).astype("float32"))
    assert {name for name in arrays if name[0].isdigit()} == set(record.names)
    with safetensors.safe_open(tmp_path / "ours", "torch") as file:  # which needs arrays that are aligned
        assert all(file.get_tensor(name) is not None for name in file.keys())  # noqa: SIM118
        assert file.metadata()["format"] == "mha record"


def test_equal_arrays_are_stored_once():
    record = recorded()
    blocks = {visit.path: visit for visit in record.calls[0].visits}
    before, attention = blocks["blocks.0.before"], blocks["blocks.0.attention.q_proj"]
    assert before.outputs == attention.inputs == blocks["blocks.0.attention.k_proj"].inputs
    assert before.leaf
    assert not blocks["blocks.0.attention"].leaf
    assert len(record.names) == len(set(record.names)) < len(record.calls[0].visits) + 2


@pytest.mark.parametrize("where", ["between", "within"])
def test_the_file_of_a_killed_run_is_refused(tmp_path, where):
    path = tmp_path / "ours.safetensors"
    recorded(path=path)  # of an earlier run
    done = subprocess.run([sys.executable, "-c", KILLED, path, HELPERS, where], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["ours.safetensors", "ours.safetensors.unfinished"]
    left = tmp_path / "ours.safetensors.unfinished"
    assert left.stat().st_size >= 2**16  # Python 3.14 keeps 2**17 bytes before it writes them
    for given in (path, left):
        with pytest.raises(FileError, match="is not whole: the run that records it was killed, or has not ended"):
            parity.compare_records(given, given)
        with pytest.raises(FileError, match="record it again"):
            parity.audit_record(given)
    recorded(path=path)
    assert os.listdir(tmp_path) == ["ours.safetensors"]
    assert parity.compare_records(path, path)


def test_of_a_run_that_raises_nothing_is_left(tmp_path):
    path = tmp_path / "ours"
    recorded(path=path)
    before = path.read_bytes()
    made = of_torch.model()
    for ids in (tokens() + 99, tokens()[:, :, None, None]):
        with pytest.raises((IndexError, RuntimeError)), parity.record(made, path):
            made(torch.tensor(ids))
    assert os.listdir(tmp_path) == ["ours"]
    assert path.read_bytes() == before
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in made.modules())


def test_a_record_is_used_when_its_context_has_ended(tmp_path):
    made = of_torch.model()
    for path in (None, tmp_path / "ours"):
        with parity.record(made, path) as record:
            made(torch.tensor(tokens()))
            with pytest.raises(ValueError, match="is not complete: save it when its context has ended"):
                record.save(tmp_path / "other")
            with pytest.raises(ValueError, match="a is a record that is not complete"):
                parity.compare_records(record, record)
        assert parity.compare_records(record, record)


# What is replaced in the metadata of a record, and what is said of it then.
DAMAGES = {
    "is a damaged record: its events are in no order": ("events", '[["call"', '[["ended", null], ["call"'),
    "is a damaged record: it has no array of a number in": ("events", '["enter", 0, [0]]', '["enter", 0, [99]]'),
    "has layout '7', expected '1'; if another version of mha wrote it, use that one": ("layout", "1", "7"),
    "is a damaged record: nothing says its model": ("facts", '"model"', '"module"'),
    "is a damaged record: it has no module": ("modules", None, "{}"),
    "is a damaged record: it lacks facts": ("facts", None, None),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_records_are_refused(tmp_path, message):
    path, (name, old, new) = tmp_path / "ours", DAMAGES[message]
    recorded(path=path)
    with safetensors.safe_open(path, "numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata[name] = new if old is None else metadata[name].replace(old, new)
    safetensors.numpy.save_file(arrays, path, {name: X for name, X in metadata.items() if X is not None})
    with pytest.raises(ValueError, match=f"ours {message}".replace("'", ".")):
        parity.compare_records(path, path)


def test_files_that_are_no_records_are_refused(tmp_path):
    path, other = tmp_path / "ours", tmp_path / "weights"
    recorded(path=path)
    safetensors.numpy.save_file({"X": np.ones(3, "float32")}, other)
    with pytest.raises(ValueError, match="weights is no record: its metadata has format None, expected 'mha record'"):
        parity.compare_records(path, other)
    other.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"weights has \d+ bytes, expected \d+ as its header says"):
        parity.compare_records(path, other)
    with pytest.raises(FileNotFoundError):
        parity.compare_records(path, tmp_path / "nothing")
    with pytest.raises(FileError, match="is a directory, expected a regular file"):
        recorded(path=tmp_path)


def test_wrong_arguments_are_refused():
    record, made = recorded(), of_torch.model()
    with pytest.raises(TypeError, match="b is a int, expected the path of a record, or a record"):
        parity.compare_records(record, 3)
    with (
        pytest.raises(TypeError, match=r"model is a int, expected a model of PyTorch, .* or \w+"),
        parity.record(3),
    ):
        pass
    with pytest.raises(TypeError, match=r"weights is 1 .*, expected True or False"), parity.record(made, weights=1):
        pass
    with pytest.raises(TypeError, match="call is a list, expected a tuple"), parity.record(made, call=[]):
        pass
    with parity.record(made) as empty:
        pass
    with pytest.raises(ValueError, match=r"b \(a record in memory\) has no call of its model, expected at least one"):
        parity.compare_records(record, empty)
    with pytest.raises(TypeError, match="paths is a list, expected a dict"):
        parity.compare_records(record, record, paths=["a"])
    with pytest.raises(ValueError, match=r"expected as many \{\} on both sides"):
        parity.compare_records(record, record, paths={"blocks.{}": "blocks"})
    with pytest.raises(ValueError, match=r"paths has 'layers.{}', which fits no module that A called; it called embed"):
        parity.compare_records(record, record, paths={"layers.{}": "blocks.{}"})
    with pytest.raises(ValueError, match=r"paths says that blocks.0 is 'layers.0' in B, which called no such module"):
        parity.compare_records(record, record, paths={"blocks.{}": "layers.{}"})
    with pytest.raises(ValueError, match="has no weights, expected some to judge it by: record it with weights=True"):
        parity.audit_record(record)
