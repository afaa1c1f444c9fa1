"""Files of weights that are malformed or do not fit themselves: refused by name, before they take any memory."""

import re

import malformed
import pytest
from calls import make, same_bits

import mha


def test_the_file_that_malformed_ones_begin_as_is_fine(tmp_path):
    for data in (malformed.VALID, malformed.join(malformed.HEADER, malformed.NUMBERS), malformed.metadata(author="x")):
        (tmp_path / "layer.safetensors").write_bytes(data)
        assert mha.load(tmp_path / "layer.safetensors", "numpy").config.num_heads == 3
    assert len(malformed.CORPUS) > 40
    assert set(malformed.SPARSE) <= set(malformed.CORPUS)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", malformed.CORPUS)
def test_malformed_files_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    attention = make("numpy", bias=True)
    before = attention.weights
    path = malformed.write(name, tmp_path)
    for options in ({}, {"num_heads": 3}):
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))} ") as raised:
            attention = mha.load(path, "numpy", **options)
        assert type(raised.value) is ValueError
        assert str(raised.value).isprintable()
    assert same_bits(attention.weights, before)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("length of a gigabyte", "claims a header of 1073741824 bytes, expected at most 100000000"),
        (
            "header of two megabytes of spaces",
            "says that mha wrote it, but has a header of 2098031 bytes, expected at most 1048576",
        ),
        ("metadata missing", "Are the kernels (in, out), applied as x @ kernel? Then pass scheme='mha' and num_heads"),
        ("metadata is empty", "the metadata does not say that mha wrote the file"),
        ("format of torch", "the metadata does not say that mha wrote the file"),
        ("layout of later", "has layout '4', expected '1', '2' or '3' and a configuration; if another version of mha"),
        ("layout missing", "has layout None, expected '1', '2' or '3' and a configuration"),
        ("configuration missing", "has layout '1', expected '1', '2' or '3' and a configuration"),
        ("option missing", "holds no valid configuration"),
        ("configuration cut off", "holds no valid configuration"),
        ("configuration is an array", "expected a JSON object, not [5, 3]"),
        ("num_heads of zero", "num_heads is 0"),
        ("option twice", "name 'num_heads' comes 2 times"),
        ("weight misspelt", "weights lacks W_o.kernel"),
        ("weight too many", "weights has scale"),
        ("shape transposed", "weights['W_o.kernel'] has shape (5, 12)"),
        ("dtype of float64, all weights", "has dtype float64"),
        ("dtype of int32", "W_o.kernel has dtype int32"),
        ("a number is NaN", "holds NaN or infinity, expected finite weights"),
        ("header in UTF-16", "is not a safetensors file: its header is wrong: 'utf-8' codec can't decode"),
        ("weight twice", "the name 'W_o.kernel' comes 2 times"),
        ("format twice", "the name 'format' comes 2 times"),
        (
            "shape negative",
            "W_o.kernel is described as {'data_offsets': [1152, 1392], 'dtype': 'F32', 'shape': [-12",
        ),
        ("num_hiddens beyond 64 bits", "W_o.kernel would have shape (12, 1000000000000000000000000000000), too many"),
        ("gigabytes behind the numbers", "has 8000000000 bytes, expected 2228 as its header says"),
        ("dtype of float64", "W_o.kernel has 240 bytes, which does not fit dtype F64 and shape (12, 5)"),
        ("offsets overlap", "is not a safetensors file: W_o.kernel begins at byte"),
    ],
)
def test_a_refusal_says_why(tmp_path, name, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        mha.load(malformed.write(name, tmp_path))


def test_a_layer_too_large_for_any_memory_is_refused(backend):
    with pytest.raises(ValueError, match=re.escape(f"W_q.kernel would have shape ({2**40}, {2**40}), too many")):
        mha.MultiHeadAttention(2**40, 2, backend=backend)


MEMORY = """
import pathlib, resource, sys
import mha

resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))  # what takes more fails, and does not fill the machine

def peak():
    "The most memory that this process has had so far, in KiB; `ru_maxrss` counts that of its parent too."
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])

valid, folder = map(pathlib.Path, sys.argv[1:])
mha.load(valid, "numpy")
before = peak()
refused = 0
for path in sorted(folder.iterdir()):
    try:
        mha.load(path, "numpy")
    except ValueError:
        refused += 1
print(refused, peak() - before)
"""


def test_malformed_files_take_no_memory(tmp_path, python):
    (tmp_path / "valid").write_bytes(malformed.VALID)
    (tmp_path / "malformed").mkdir()
    for name in malformed.CORPUS:
        malformed.write(name, tmp_path / "malformed")
    refused, grown = map(int, python(MEMORY, str(tmp_path / "valid"), str(tmp_path / "malformed")).split())
    assert refused == len(malformed.CORPUS)
    assert grown < 64 * 1024  # of the 8 GB that some of them claim
