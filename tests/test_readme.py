"""The code in the README runs as it stands; the recipe of a port, which needs two frameworks, in tests/real."""

import re
from pathlib import Path

import numpy as np
import safetensors.numpy

import mha
from mha import weights
from mha.config import Config
from mha.weights import schemes

BLOCKS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


def test_ten_lines_of_use(backend, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHA_BACKEND", backend)
    names = {}
    exec(BLOCKS[0], names)
    assert capsys.readouterr().out.replace("torch.Size([2, 4, 100])", "(2, 4, 100)") == f"{backend} (2, 4, 100)\n"
    assert tuple(names["weights"].shape) == (2, 5, 4, 6)
    assert names["same"].config == names["attention"].config
    assert list(names["steps"])[-1] == "output"
    assert "W_q.kernel" in names["gradients"]


def test_the_books_code(backend):
    """It is shown for PyTorch; the other tabs have tests of their own."""
    shown = "from mha.d2l import torch as d2l"
    assert shown in BLOCKS[1]
    if backend == "torch":
        exec(BLOCKS[1], {})


def test_layers_of_others(backend):
    """It is shown for PyTorch; the other frameworks have tests of their own."""
    if backend == "torch":
        names = {"mha": mha}
        exec(BLOCKS[2], names)
        taken, given = names["theirs"].state_dict(), names["back"].state_dict()
        assert all((given[name] == X).all() for name, X in taken.items())
    assert "mha.from_native(theirs)" in BLOCKS[2]


def test_a_layer_of_a_checkpoint(backend, monkeypatch, tmp_path):
    """It is shown for PyTorch, with a file of BERT's names."""
    monkeypatch.chdir(tmp_path)
    config = Config(24, 12, bias=True)
    arrays = schemes.from_canonical(config, weights.initial(config), "bert")
    named = {f"encoder.layer.0.attention.{name}": np.ascontiguousarray(X) for name, X in arrays.items()}
    safetensors.numpy.save_file(named, "model.safetensors")
    (block,) = (block for block in BLOCKS if "model.safetensors" in block)
    names = {"mha": mha}
    exec(block.replace("torch", backend), names)
    assert names["attention"].backend == backend
    assert names["attention"].config == config
