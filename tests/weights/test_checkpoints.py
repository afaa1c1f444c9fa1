"""`mha.load` of checkpoints: one layer among much else in a safetensors file, and every file that is refused.

Letters: H heads, d and dv widths of a query or key head and of a value head, D width of the output.
"""

import json
import os
import re
import time
from pathlib import Path

import malformed
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from layers import agrees, assert_same_weights
from stored import SCHEMES, WIDTHS, asked, heads, stored

import mha
from mha.core import dispatch
from mha.weights import readers, schemes
from mha.weights.argument_names import LackingError

PREFIX = "encoder.layer.1.attention."


def beside(rng):
    """The rest of a model: numbers that are no weights of attention, of any dtype."""
    return {
        "embeddings.position_ids": np.arange(512),
        "embeddings.word_embeddings.weight": rng.normal(size=(29, 19)).astype("float32"),
        "encoder.layer.1.attentionless.scale": np.ones(3, ml_dtypes.bfloat16),
        "lm_head.weight": rng.normal(size=(29, 19)),
    }


def write(path, arrays, **metadata):
    """A file as others write it."""
    safetensors.numpy.save_file({name: np.ascontiguousarray(X) for name, X in arrays.items()}, path, metadata or None)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def checkpoint(path, rng, scheme, prefix=PREFIX, **options):
    """A file with one layer in this scheme and what a model has beside it; returns the layer's configuration."""
    config, arrays = stored(scheme, prefix, **options)
    write(path, arrays | beside(rng), format=schemes.SCHEMES[scheme].format or "pt")
    return config, schemes.to_canonical(arrays, scheme, prefix, heads(scheme))[1]


# 1. What is read


@pytest.mark.parametrize(("bias", "dtype"), [(True, "bfloat16"), (False, "float64")], ids=["bias", "no-bias"])
@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "mha"])
def test_a_layer_is_found_and_read(path, rng, scheme, bias, dtype):
    config, expected = checkpoint(path, rng, scheme, bias=bias, dtype=dtype)
    attention = mha.load(path, num_heads=heads(scheme), backend="numpy", **asked(scheme))
    assert attention.config == config
    assert_same_weights(attention.weights, expected)
    options = {"num_heads": 3, "backend": "numpy"} | asked(scheme)
    assert_same_weights(mha.load(str(path), scheme=scheme, prefix=PREFIX, **options).weights, expected)
    assert_same_weights(mha.load(path, prefix=PREFIX[:-1], **options).weights, expected)


def test_an_own_file_says_everything(path):
    attention = mha.MultiHeadAttention(11, 3, key_dim=5, bias=True, pooling="additive", dropout=0.5, backend="numpy")
    attention.save(path)
    for options in ({}, {"scheme": "mha", "prefix": ""}, {"num_heads": 3}):
        found = mha.load(path, **options, backend="numpy")
        assert found.config == attention.config
        assert_same_weights(found.weights, attention.weights)


@pytest.mark.usefixtures("bounded")
def test_nothing_but_the_layer_is_read(path):
    config, arrays = stored("bert", PREFIX)
    write(path, arrays)
    header, numbers = malformed.split(path.read_bytes())
    header["large"] = {
        "dtype": "F8_E8M0",
        "shape": [8 * 10**9],
        "data_offsets": [len(numbers), len(numbers) + 8 * 10**9],
    }
    path.write_bytes(malformed.join(header, numbers))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + 8 * 10**9)  # a hole, which takes no room on the disk
    assert mha.load(path, num_heads=3, backend="numpy").config == config


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("shape", "options", "text"),
    [
        ((2**28,), {}, "self.query.weight has shape (268435456,), expected 2 axes"),
        ((2**20, 2**8), {}, "outputs"),
        ((15, 2**26), {"num_heads": None}, "num_heads is not given"),
        (
            (15, 2**26),
            {},
            f"has 4026531840 bytes in {PREFIX}self.query.weight, more than there is memory",
        ),
    ],
    ids=["axes", "sizes", "heads", "memory"],
)
def test_numbers_are_read_once_their_shapes_go_together(path, shape, options, text):
    _, arrays = stored("bert", PREFIX)
    write(path, arrays)
    header, numbers = malformed.split(path.read_bytes())
    name, start = f"{PREFIX}self.query.weight", len(numbers)
    size = 4 * int(np.prod(shape))
    left = header.pop(name)["data_offsets"]
    header["other"] = {"dtype": "F32", "shape": [(left[1] - left[0]) // 4], "data_offsets": left}
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, start + size]}
    path.write_bytes(malformed.join(header, numbers))
    os.truncate(path, path.stat().st_size + size)
    refused(path, text, error=LackingError if "not given" in text else ValueError, **options)


# 2. What is refused


def refused(path, *texts, error=ValueError, **options):
    with pytest.raises(error) as raised:
        mha.load(path, **{"num_heads": 3, "backend": "numpy"} | options)
    assert type(raised.value) is error
    assert str(raised.value).isprintable()
    if error is ValueError:
        assert str(raised.value).startswith(f"{path} ")
    for text in texts:
        assert text in str(raised.value)


def test_names_of_ours_without_a_word_on_their_orientation_are_asked_about(path, rng):
    config, expected = checkpoint(path, rng, "mha")
    refused(path, "does not say that mha wrote the file", "Are the kernels (in, out)", "scheme='mha'")
    attention = mha.load(path, scheme="mha", num_heads=3, backend="numpy")
    assert attention.config == config
    assert_same_weights(attention.weights, expected)


def test_an_own_file_is_no_other(path):
    mha.MultiHeadAttention(6, 2, backend="numpy").save(path)
    refused(path, "no attention layer is there with scheme='bert'", scheme="bert")
    refused(path, "no attention layer is there with", prefix="encoder")
    refused(path, "says that its layer has 2 heads, but num_heads is 3; leave it out")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda X: np.where(X.max() == X, np.nan, X).astype(X.dtype), "holds NaN or infinity"),
        (lambda X: X.astype("int32"), "has dtype int32, expected one of float64, float32, float16, bfloat16"),
        (lambda X: X.astype("float64"), "its arrays have dtypes"),
        (lambda X: X[:0], ""),
    ],
    ids=["NaN", "integers", "other dtype", "empty"],
)
@pytest.mark.parametrize("name", ["self.query.weight", "self.key.weight", "self.value.weight", "output.dense.weight"])
def test_a_wrong_array_is_named(path, rng, name, change, text):
    _, arrays = stored("bert", PREFIX)
    arrays[PREFIX + name] = change(arrays[PREFIX + name])
    write(path, arrays | beside(rng))
    refused(path, text)


def test_a_long_header_is_read(path, rng):
    """A large checkpoint has one; a file that says that `save` wrote it is refused with such a header."""
    config, expected = checkpoint(path, rng, "bert")
    header, numbers = malformed.split(path.read_bytes())
    path.write_bytes(malformed.join(json.dumps(header) + " " * 2**21, numbers))
    attention = mha.load(path, num_heads=3, backend="numpy")
    assert attention.config == config
    assert_same_weights(attention.weights, expected)


def test_a_shape_may_not_take_for_ever(path):
    sizes = ["9" * 4000] * 400
    path.write_bytes(
        malformed.join('{"x": {"dtype": "F32", "shape": [' + ",".join(sizes) + '], "data_offsets": [0, 0]}}', b"")
    )
    start = time.process_time()
    refused(path, "x is described as")
    assert time.process_time() - start < 1


WITH_HALF = {name for name, known in dispatch.FRAMEWORKS.items() if "float16" in known.dtypes}


@pytest.mark.backends(*(dispatch.FRAMEWORKS.keys() - WITH_HALF))
def test_a_dtype_that_the_backend_lacks_is_not_the_files_fault(path, rng, backend):
    checkpoint(path, rng, "bert", dtype="float16")
    with pytest.raises(ValueError, match=f"^dtype on backend '{backend}' is 'float16'"):
        mha.load(path, num_heads=3, backend=backend)


@pytest.mark.backends(*WITH_HALF)
def test_half_precision_is_read(path, rng, backend):
    checkpoint(path, rng, "bert", dtype="float16")
    assert mha.load(path, num_heads=3, backend=backend).config.dtype == "float16"


def test_a_file_that_is_cut_while_it_is_read(path):
    write(path, {"large": np.zeros(2**18, "float32")})  # what a file has read ahead is less
    with readers.open_weights(path) as source:
        os.truncate(path, source.places["large"].start + 2**18)
        with pytest.raises(ValueError, match="was cut while it was read: large has 262144 bytes, expected 1048576"):
            source.read("large")


# 3. The page


PAGE = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("bias", [False, True])
def test_ten_lines_read_our_files_without_mha(tmp_path, monkeypatch, rng, bias):
    monkeypatch.chdir(tmp_path)
    attention = mha.MultiHeadAttention(11, 3, bias=bias, **WIDTHS, dtype="float64", backend="numpy")
    attention.weights = {name: rng.normal(size=X.shape) for name, X in attention.weights.items()}
    attention.save("layer.safetensors")
    names = {
        "queries": rng.normal(size=(2, 7, WIDTHS["query_size"])),
        "keys": rng.normal(size=(2, 5, WIDTHS["key_size"])),
        "values": rng.normal(size=(2, 5, WIDTHS["value_size"])),
    }
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "safe_open" in code)
    assert len([line for line in code.splitlines() if line]) == 10
    assert "mha" not in code
    expected = attention(**names)
    exec(code, names)
    assert agrees(names["output"], expected)


def test_the_page_has_every_scheme_with_its_names():
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| (`.*`) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(schemes.SCHEMES)
    axes = {"io": "(in, out)", "oi": "(out, in)", "iHd": "(in, H, d)", "Hdo": "(H, d, out)"}
    for name, arrays, kernels in rows:
        places = {weight: place for weight, place in schemes.SCHEMES[name].places.items() if weight.endswith("kernel")}
        assert re.findall(r"`(.*?)`", arrays) == list(dict.fromkeys(place.name for place in places.values()))
        packed = ", packed" if any(place.part for place in places.values()) else ""
        assert kernels == ", ".join(dict.fromkeys(axes[place.axes] for place in places.values())) + packed
