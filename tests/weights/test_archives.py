"""Files of weights that are packed: `.npz`, HDF5 and `.keras`. What they claim is checked before it is unpacked.

h5py is imported by tests that need it: other environments collect this file, too.
"""

import io
import re
import sys
import zipfile
import zlib

import malformed
import ml_dtypes
import numpy as np
import pytest
from commands import run
from layers import assert_same_weights
from stored import asked, heads, stored

import mha
from mha.weights import readers, schemes

from .checkpoints import PARTS, SECOND, D, H, model, of_layer

QUERY = f"{SECOND}self.query.weight"


def npz(path, arrays, save=np.savez):
    """Arrays as NumPy stores them."""
    with open(path, "wb") as file:  # a path would get another ending
        save(file, **arrays)


def hdf5(path, arrays):
    """Arrays as h5py stores them: a slash in a name makes a group."""

    import h5py

    with h5py.File(path, "w") as file:
        for name, X in arrays.items():
            file[name] = X


def keras(path, arrays):
    """Arrays as Keras stores a model."""
    hdf5(path.with_name("inner"), arrays)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("config.json", "{}")
        file.writestr("model.weights.h5", path.with_name("inner").read_bytes())


WRITE = {
    "npz": npz,
    "npz, compressed": lambda path, arrays: npz(path, arrays, np.savez_compressed),
    "npz, slashes": lambda path, arrays: npz(path, {name.replace(".", "/"): X for name, X in arrays.items()}),
    "npz, columns first": lambda path, arrays: npz(path, {name: np.asfortranarray(X) for name, X in arrays.items()}),
    "hdf5": hdf5,
    "hdf5, groups": lambda path, arrays: hdf5(path, {name.replace(".", "/"): X for name, X in arrays.items()}),
    "hdf5, of TensorFlow": lambda path, arrays: hdf5(path, {f"{name}:0": X for name, X in arrays.items()}),
    "keras": keras,
}


def refusal(path, **options):
    """The text of the error for a file, one line that names it."""
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} ") as raised:
        mha.load(path, "numpy", **{"prefix": SECOND, "num_heads": H} | options)
    assert type(raised.value) is ValueError
    assert str(raised.value).isprintable()
    return str(raised.value).removeprefix(f"{path} ")


# 1. What is read


@pytest.mark.parametrize("kind", WRITE)
def test_a_layer_is_read_whatever_the_name_of_its_file(tmp_path, kind):
    path = tmp_path / "weights"
    WRITE[kind](path, model())
    attention = mha.load(path, "numpy", prefix=SECOND, num_heads=H)
    assert_same_weights(attention.weights, of_layer(SECOND).weights)
    shown = run("weights", "show", str(path)).stdout
    assert f"{path}: {path.stat().st_size:,} bytes, 17 arrays" in shown
    norm = f"{np.linalg.norm(model()[QUERY].astype('float64')):.6g}"
    assert re.search(rf"^{re.escape(QUERY)} +\(6, 6\) +float32 +{norm} *$", shown, re.MULTILINE)


@pytest.mark.parametrize("ending", [".npz", ".h5", ".weights.h5", ".keras"])
def test_a_directory_may_have_them(tmp_path, ending):
    folder = tmp_path / "model"
    folder.mkdir()
    path = tmp_path / f"model{ending}"
    {".npz": npz, ".keras": keras}.get(ending, hdf5)(path, model())
    path.rename(folder / path.name)
    attention = mha.load(folder, "numpy", prefix=SECOND, num_heads=H)
    assert_same_weights(attention.weights, of_layer(SECOND).weights)


@pytest.mark.parametrize("dtype", ["float16", ">f8"])
@pytest.mark.parametrize("write", [npz, hdf5])
def test_dtypes_are_read_bit_for_bit_in_any_order_of_bytes(tmp_path, write, dtype):
    arrays = {name: (X / 7).astype(dtype) for name, X in model().items()}
    write(tmp_path / "weights", arrays)
    attention = mha.load(tmp_path / "weights", "numpy", prefix=SECOND, num_heads=H)
    assert attention.config.dtype == np.dtype(dtype).newbyteorder("=").name
    kernel = attention.weights["W_q.kernel"]
    assert kernel.dtype.isnative
    assert np.array_equal(kernel, arrays[QUERY].T)


def test_bfloat16_is_read_from_files_of_keras_alone(tmp_path):
    """Keras notes it beside an array; NumPy stores two bytes without a word on what they are."""

    import h5py

    arrays = {name: (X / 7).astype(ml_dtypes.bfloat16) for name, X in model().items()}
    with h5py.File(tmp_path / "a", "w") as file:
        for name, X in arrays.items():
            file.create_dataset(name, data=X).attrs["dtype"] = "bfloat16"
    attention = mha.load(tmp_path / "a", "numpy", prefix=SECOND, num_heads=H)
    assert attention.config.dtype == "bfloat16"
    assert attention.weights["W_q.kernel"].tobytes() == arrays[QUERY].T.tobytes()
    npz(tmp_path / "b", arrays)
    assert f"{QUERY} has dtype '|V2', expected one of float64, float32, float16, bfloat16" in refusal(tmp_path / "b")
    hdf5(tmp_path / "c", arrays)
    assert "has dtype '|V2', expected one of float64, float32, float16, bfloat16" in refusal(tmp_path / "c")


@pytest.mark.parametrize("scheme", ["keras", "keras3", "flax", "mha"])
def test_groups_of_arrays_are_prefixes(tmp_path, scheme):
    config, arrays = stored(scheme, "layers/3/attention/")
    hdf5(tmp_path / "weights", {name.replace(".", "/"): X for name, X in arrays.items()})
    named = {"scheme": "mha"} if scheme == "mha" else {}
    attention = mha.load(tmp_path / "weights", "numpy", num_heads=heads(scheme), **named, **asked(scheme))
    assert attention.config == config
    _, expected = schemes.to_canonical(arrays, scheme, "layers/3/attention/", heads(scheme))
    assert_same_weights(attention.weights, expected)


def test_the_underscore_of_an_attribute_of_keras_is_left_out(tmp_path):
    """Keras calls the parts of a layer as its attributes are called, `_query_dense` in GroupQueryAttention."""
    config, arrays = stored("keras3", "layers/3/")
    names = {name: name.replace("3/", "3/_").replace(".", "/") for name in arrays}
    hdf5(tmp_path / "weights", {names[name]: X for name, X in arrays.items()} | {"_table": np.ones(2)})
    attention = mha.load(tmp_path / "weights", "numpy")
    assert attention.config == config
    assert_same_weights(attention.weights, schemes.to_canonical(arrays, "keras3", "layers/3/")[1])
    with readers.open_weights(tmp_path / "weights") as source:
        assert {"_table", "layers.3.query_dense.vars.0"} <= source.entries.keys()


def damage(path, name):
    """Change a byte in the numbers of a member of an archive."""
    with zipfile.ZipFile(path) as file:
        member = file.getinfo(name)
    data = bytearray(path.read_bytes())
    begin = member.header_offset + 30 + sum(data[member.header_offset + 26 : member.header_offset + 30])  # two lengths
    data[begin + member.file_size - 1] ^= 1
    path.write_bytes(data)


def test_nothing_but_the_layer_is_unpacked(tmp_path):
    npz(tmp_path / "weights", model() | {"table": np.ones(2000)})
    damage(tmp_path / "weights", "table.npy")
    attention = mha.load(tmp_path / "weights", "numpy", prefix=SECOND, num_heads=H)
    assert_same_weights(attention.weights, of_layer(SECOND).weights)
    damage(tmp_path / "weights", f"{QUERY}.npy")
    assert refusal(tmp_path / "weights").startswith(f"is a damaged archive: {QUERY} cannot be read: Bad CRC-32")


# 2. What is refused


def header(shape, dtype="'<f4'", version=(1, 0), end=b""):
    """The beginning of a .npy file that claims this shape and dtype."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text + end


def with_query(data):
    """The model as `.npz`, one array of which is this file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, X in model().items():
            one = io.BytesIO()
            np.save(one, X)
            file.writestr(f"{name}.npy", data if name == QUERY else one.getvalue())
    return made.getvalue()


RIGHT = model()[QUERY].tobytes()
CLAIMS = {
    "more": (header((D, D + 1), end=RIGHT), f"has 144 bytes in {QUERY}, which does not fit dtype float32 and shape"),
    "less": (header((D, D - 1), end=RIGHT), "has 144 bytes in"),
    "negative": (header((-D, -D), end=RIGHT), f"has {QUERY} of shape (-6, -6), expected at most 32 sizes, none"),
    "many axes": (header((1,) * 31 + (D, D), end=RIGHT), "expected at most 32 sizes"),
    "beyond 64 bits": (header((2**64, 2**64), end=RIGHT), "has 144 bytes in"),
    "five thousand digits": (header("(" + "9" * 5000 + ",)", end=RIGHT), "is a damaged archive: "),
    "deep": (header("(" * 9000, end=RIGHT), "is a damaged archive: "),
    "nothing": (b"", "is a damaged archive: "),
    "half a header": (header((D, D))[:20], "is a damaged archive: "),
    "a later version": (header((D, D), version=(3, 0), end=RIGHT), f"{QUERY} has dtype 'of version 3', expected one"),
    "a record": (header((D, D), "[('a', '<f4')]", end=RIGHT), f"{QUERY} has dtype \"[('a', '<f4')]\", expected one of"),
    "integers": (header((D, D), "'<i4'", end=RIGHT), f"{QUERY} has dtype int32, expected one of float64, float32"),
    "objects": (malformed.npy(), f"{QUERY} has dtype 'object', expected one of float64, float32, float16, bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_what_an_array_of_numpy_claims_is_checked(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    data, text = CLAIMS[name]
    (tmp_path / "weights").write_bytes(with_query(data))
    assert text in refusal(tmp_path / "weights")
    assert not (tmp_path / malformed.MARKER).exists()


def test_an_array_of_objects_beside_the_layer_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "weights", model() | {"state": np.array([malformed.Payload()], object)})
    attention = mha.load(tmp_path / "weights", "numpy", prefix=SECOND, num_heads=H)
    assert_same_weights(attention.weights, of_layer(SECOND).weights)
    assert run("weights", "show", "weights").exit_code == 0
    assert not (tmp_path / malformed.MARKER).exists()


# A kernel of 1.6 GB of zeros, packed into a thousandth of it; nothing of it is unpacked.
WIDE = 20_001


def zeros(count):
    """So many zeros and some more, deflated."""
    packer = zlib.compressobj(wbits=-15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * -(-count // 2**20) + b"\3\0"


def packed(path, files, size):
    """An archive of files that are deflated already, each of this size."""
    with zipfile.ZipFile(path, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
            file.getinfo(name).compress_type, file.getinfo(name).file_size = zipfile.ZIP_DEFLATED, size


def bomb_of_numpy(path):
    """Four kernels of zeros, deflated."""
    start = header((WIDE, WIDE))
    packer = zlib.compressobj(wbits=-15)
    data = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH) + zeros(4 * WIDE**2)
    packed(path, {f"{SECOND}{part}.weight.npy": data for part in PARTS}, len(start) + 4 * WIDE**2)


def bomb_of_hdf5(path):
    """Four kernels of which no number was written."""

    import h5py

    with h5py.File(path, "w") as file:
        for part in PARTS:
            file.create_dataset(f"{SECOND}{part}.weight", (WIDE, WIDE), "float32")


def packed_bomb_of_hdf5(path):
    """Four kernels of one number each, in pieces that are packed."""

    import h5py

    with h5py.File(path, "w") as file:
        for part in PARTS:
            kernel = file.create_dataset(f"{SECOND}{part}.weight", (WIDE, WIDE), "float32", compression="gzip")
            kernel[0, 0] = 1


def bomb_of_keras(path):
    """Gigabytes of zeros in the place of an HDF5 file."""
    packed(path, {"model.weights.h5": zeros(2**32)}, 2**32)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("bomb", [bomb_of_hdf5, packed_bomb_of_hdf5, bomb_of_numpy, bomb_of_keras])
def test_what_would_fill_the_memory_is_not_unpacked(tmp_path, bomb):
    path = tmp_path / "weights"
    bomb(path)
    assert path.stat().st_size < 2**24
    text = refusal(path)
    assert re.match(r"has \S+ of \d+ bytes packed into \d+, which is no array of weights; if it is, save", text)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_zeros_of_a_layer_are_no_bomb(tmp_path, save):
    """As large as the largest of which nobody asks: a new layer's biases, or its kernel of outputs, may be zeros."""
    arrays = model() | {f"{SECOND}{part}.bias": np.zeros(D, "float32") for part in PARTS}
    arrays[f"{SECOND}output.dense.weight"] = np.zeros((D, D), "float32")
    npz(tmp_path / "weights", arrays, save)
    weights = mha.load(tmp_path / "weights", "numpy", prefix=SECOND, num_heads=H).weights
    assert not any(weights[f"{name}.bias"].any() for name in ("W_q", "W_k", "W_v", "W_o"))
    readers.source.refuse_bomb("kernel", 2**28, 1)  # 256 MB
    with pytest.raises(ValueError, match="kernel of 268435457 bytes packed into 2684354, which is no array"):
        readers.source.refuse_bomb("kernel", 2**28 + 1, 2684354)
    readers.source.refuse_bomb("kernel", 2**28 + 1, 2684355)  # a hundredth of it


def archive(**files):
    """A zip archive of these files."""
    return malformed.archive({name.replace("__", "."): data for name, data in files.items()})


def one_name_twice(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", header((1,), end=bytes(4)))
        file.writestr("b.npy", header((1,), end=bytes(4)))
    path.write_bytes(path.read_bytes().replace(b"b.npy", b"a.npy"))


ARCHIVES = {
    "twice": (one_name_twice, "has two arrays called 'a', expected different names"),
    "twice, by a slash": (
        lambda path: npz(path, {"a/b": np.ones(2), "a.b": np.ones(2)}),
        "has two arrays called 'a.b', expected different names",
    ),
    "unprintable": (
        lambda path: npz(path, {"\x1b[2J": np.ones(2)}),
        "has an array called '\\x1b[2J', expected a name that can be printed",
    ),
    "another archive": (
        lambda path: path.write_bytes(archive(a__npy=header((1,), end=bytes(4)), b__txt=b"b")),
        "is a zip archive with 'b.txt' in it, expected that of numpy.savez, which has arrays only, or a .keras file",
    ),
    "cut": (
        lambda path: path.write_bytes(with_query(header((D, D), end=RIGHT))[:-1]),
        "is a damaged archive: its list of files cannot be read: File is not a zip file",
    ),
    "encrypted": (
        lambda path: path.write_bytes(archive(a__npy=b"").replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1")),
        "is a damaged archive: a cannot be read: ",
    ),
    "HDF5, cut": (
        lambda path: (hdf5(path, model()), path.write_bytes(path.read_bytes()[:-100])),
        "is a damaged HDF5 file: the file cannot be read: ",
    ),
    "HDF5, twice": (
        lambda path: hdf5(path, {"a": np.ones(2), "a:0": np.ones(2)}),
        "has two arrays called 'a', expected different names",
    ),
    "Keras without HDF5": (
        lambda path: path.write_bytes(malformed.archive({"model.weights.h5": b"weights"})),
        "is a damaged HDF5 file: the file cannot be read: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_wrong_archive_is_refused(tmp_path, name):
    write, text = ARCHIVES[name]
    write(tmp_path / "weights")
    assert refusal(tmp_path / "weights").startswith(text)


def test_text_in_hdf5_is_no_weight(tmp_path):
    import h5py

    arrays = model()
    del arrays[QUERY]
    hdf5(tmp_path / "weights", arrays | {QUERY: "text"})
    assert f"{QUERY} has dtype 'object', expected one of float64, float32" in refusal(tmp_path / "weights")
    hdf5(tmp_path / "nothing", arrays | {QUERY: h5py.Empty("float32")})
    assert f"{QUERY} has dtype 'nothing', expected one of float64, float32" in refusal(tmp_path / "nothing")


@pytest.mark.parametrize("way", ["a link", "a link to a file", "external", "virtual"])
def test_hdf5_reads_no_other_file(tmp_path, way):
    import h5py

    arrays = model()
    query = arrays.pop(QUERY)
    hdf5(tmp_path / "other", {"secret": query})
    query.tofile(tmp_path / "raw")
    hdf5(tmp_path / "weights", arrays)
    with h5py.File(tmp_path / "weights", "a") as file:
        if way == "a link":
            file[QUERY] = h5py.SoftLink(f"/{SECOND}self.key.weight")
        elif way == "a link to a file":
            file[QUERY] = h5py.ExternalLink(str(tmp_path / "other"), "secret")
        elif way == "external":
            file.create_dataset(QUERY, (D, D), "float32", external=[(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)])
        else:
            layout = h5py.VirtualLayout((D, D), "float32")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other"), "secret", (D, D))
            file.create_virtual_dataset(QUERY, layout)
    text = refusal(tmp_path / "weights", scheme="bert")
    lacks = (
        f"lacks {QUERY}, which scheme 'bert' needs" if "link" in way else f"has the numbers of {QUERY} in other files"
    )
    assert lacks in text


def test_without_h5py_the_error_says_what_to_install(tmp_path, monkeypatch):
    hdf5(tmp_path / "weights", model())
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert refusal(tmp_path / "weights") == (
        'is an HDF5 file, which h5py reads: pip install "h5py>=3.8"; or save the weights as safetensors'
    )


# 3. What Keras writes


@pytest.fixture
def saved(tmp_path):
    """Two layers of Keras in a model, and the paths of the files that it is saved in."""
    import keras

    keras.utils.set_random_seed(3)
    inputs = keras.Input((5, 12))
    plain = keras.layers.MultiHeadAttention(3, 4, name="first")
    grouped = keras.layers.GroupQueryAttention(4, 4, 2, name="second")
    hidden = plain(inputs, inputs)
    made = keras.Model(inputs, grouped(hidden, hidden))
    made.save_weights(tmp_path / "model.weights.h5")
    made.save(tmp_path / "model.keras")
    made.save(tmp_path / "model.h5")
    return plain, grouped, tmp_path


@pytest.mark.backends("tensorflow")
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("name", ["model.weights.h5", "model.keras", "model.h5"])
def test_layers_that_keras_saved_are_read(saved, name):
    plain, grouped, folder = saved
    prefixes = ["model_weights.first.first", "model_weights.second.second"]
    if name != "model.h5":
        prefixes = ["layers.multi_head_attention", "layers.grouped_query_attention"]
    for layer, prefix in zip((plain, grouped), prefixes, strict=True):
        expected = mha.from_native(layer, backend="numpy")
        found = mha.load(folder / name, "numpy", prefix=prefix)
        assert found.config == expected.config
        assert_same_weights(found.weights, expected.weights)
