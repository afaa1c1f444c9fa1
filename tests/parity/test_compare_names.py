"""`mha compare --names` and `parity.compare_files(names=)`: checkpoints whose layers have names of their own."""

import numpy as np
import pytest
import safetensors.numpy
from commands import refused, run

from mha import parity

D, H, d, G = 12, 3, 5, 1
NAMES = {"W_q": "to_q", "W_k": "to_k", "W_v": "to_v", "W_o": "to_out"}
PACKED = {"W_q": "qkv", "W_k": "qkv", "W_v": "qkv", "W_o": "proj"}
LLAMA = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "o_proj"}
SPELT = ",".join(f"{role}={name}" for role, name in NAMES.items())


def drawn(at=0):
    """Kernels (in, out) and biases of a layer by their names."""
    rng = np.random.default_rng(at)
    sizes = {"to_q": (D, H * d), "to_k": (D, G * d), "to_v": (D, G * d), "to_out": (H * d, D)}
    found = {f"{name}.kernel": rng.normal(size=shape).astype("f4") for name, shape in sizes.items()}
    return found | {f"{name}.bias": rng.normal(size=shape[1]).astype("f4") for name, shape in sizes.items()}


def outward(layer):
    """The arrays with kernels (out, in)."""
    return {name.replace("kernel", "weight"): np.ascontiguousarray(X.T) for name, X in layer.items()}


def packed(layer):
    """The arrays with queries, keys and values one after another, kernels (out, in)."""
    own = outward(layer)
    of = {"qkv": ("to_q", "to_k", "to_v"), "proj": ("to_out",)}
    kinds = ("weight", "bias")
    return {f"{name}.{kind}": np.concatenate([own[f"{one}.{kind}"] for one in some])
            for name, some in of.items() for kind in kinds}  # fmt: skip


def file(path, layers, **others):
    """Write layers by their prefixes, and other arrays."""
    arrays = {f"{prefix}.{name}": X for prefix, layer in layers.items() for name, X in layer.items()} | others
    safetensors.numpy.save_file({name: np.ascontiguousarray(X) for name, X in arrays.items()}, path)
    return str(path)


@pytest.fixture
def a(tmp_path):
    """A file with two layers."""
    return file(tmp_path / "a", {f"blocks.{at}.attn": outward(drawn(at)) for at in (0, 1)}, table=np.ones(3, "f4"))


def test_names_of_both_files_and_how_kernels_lie(a, tmp_path):
    b = file(tmp_path / "b", {f"layers.{at}": drawn(at) for at in (0, 1)})
    report = parity.compare_files(a, b, names=NAMES, num_heads=H)
    assert report, report
    assert [(first[1], second[1]) for first, second in report.layers] == [
        ("blocks.0.attn.", "layers.0."), ("blocks.1.attn.", "layers.1.")]  # fmt: skip
    assert report.others == (("table",), ())
    assert any("kernels of A are taken as (out, in)" in note for note in report.notes)
    assert not any("kernels of B" in note for note in report.notes)
    result = run("compare", a, b, "--names", SPELT, "--num-heads", str(H))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "all 2 layers are the same" in result.stdout


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("weight", (0, 1, None)), ("weight", (0, 1, None, None)), ("weight", (0, None, 1)), ("kernel", (None, 0, 1))],
    ids=["PyTorch", "of pictures", "MLX", "Keras"],
)
def test_kernels_of_convolutions_over_one_token_have_no_window(a, tmp_path, kind, shape):
    layers = {}
    for at in (0, 1):
        layers[f"blocks.{at}.attn"] = own = outward(drawn(at)) if kind == "weight" else drawn(at)
        for name, X in own.items():
            own[name] = X.reshape([1 if axis is None else X.shape[axis] for axis in shape]) if X.ndim == 2 else X
    b = file(tmp_path / "b", layers)
    assert parity.compare_files(a, b, names=NAMES, num_heads=H)
    own["to_v.bias"] += 1
    assert not parity.compare_files(a, file(tmp_path / "c", layers), names=NAMES, num_heads=H)


@pytest.mark.parametrize("change", ["transposed", "a bias less", "swapped"])
def test_layers_that_differ(a, tmp_path, change):
    layers = {f"blocks.{at}.attn": outward(drawn(at)) for at in (0, 1)}
    if change == "swapped":
        layers = dict(zip(layers, reversed(layers.values()), strict=True))
    elif change == "transposed":
        wrong = layers["blocks.1.attn"]["to_out.weight"]
        layers["blocks.1.attn"]["to_out.weight"] = wrong.T.reshape(wrong.shape)
    else:
        del layers["blocks.1.attn"]["to_v.bias"]
    report = parity.compare_files(a, file(tmp_path / "b", layers), names=NAMES, num_heads=H)
    assert not report
    assert [bool(one) for one in report.reports] == [change != "swapped", False]
    assert ("swapped" in report.verdict) == (change == "swapped")
    assert report.others[0] == ("table",)


def test_other_names_in_b_and_projections_that_are_packed(a, tmp_path):
    b = file(tmp_path / "b", {f"h.{at}": packed(drawn(at)) for at in (0, 1)})
    assert parity.compare_files(a, b, names=NAMES, names_b=PACKED, num_heads=H)
    other = ",".join(f"{role}={name}" for role, name in PACKED.items())
    result = run("compare", a, b, "--names", SPELT, "--names-b", other, "--num-heads", str(H))
    assert result.exit_code == 0, result.stderr


def test_one_file_has_names_of_its_own(a, tmp_path):
    known = {LLAMA[name.partition(".")[0]] + "." + name.partition(".")[2]: X for name, X in outward(drawn(1)).items()}
    b = file(tmp_path / "b", {"model.layers.0.self_attn": known})
    for first, second, prefix in ((a, b, "prefix_a"), (b, a, "prefix_b")):
        where = {prefix: "blocks.1.attn"}
        report = parity.compare_files(first, second, names=NAMES, num_heads=H, rotary=None, **where)
        assert report, report
        assert not parity.compare_files(
            first, second, names=NAMES, num_heads=H, rotary=None, **{prefix: "blocks.0.attn"}
        )


def test_a_configuration_that_no_table_has_is_not_read(a, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "a model of my own", "num_attention_heads": 7}')
    assert parity.compare_files(a, a, names=NAMES, num_heads=H)


def test_kernels_of_which_nothing_shows_how_they_lie(tmp_path):
    layer = {name.removesuffix(".kernel"): X for name, X in drawn().items()}
    a = file(tmp_path / "a", {"attn": drawn()})
    b = file(tmp_path / "b", {"attn": layer})
    with pytest.raises(ValueError, match=r"nothing says whether the kernels of b are .*axes=io in --names"):
        parity.compare_files(a, b, names=NAMES, num_heads=H)
    assert parity.compare_files(a, b, names=NAMES, names_b=NAMES | {"axes": "io"}, num_heads=H)


REFUSED = [
    ("W_q=to_q,W_x=to_k", "--names has W_x='to_k', expected names of W_q"),
    ("W_q=to_q,W_k=to_k", "--names has no W_v, W_o"),
    ("W_q", "--names has 'W_q', expected a projection, =, and its name"),
    (f"{SPELT},W_q=q", "--names has 'W_q=q', expected a projection"),
    (f"{SPELT},axes=xy", "--names has axes='xy', expected io"),
    (
        SPELT.replace("to_out", "out"),
        "--names fits no layer: nowhere are kernels of to_q, to_k, to_v, out together; A has",
    ),
    (None, f"or say what its projections are called, such as --names {SPELT}"),
]


@pytest.mark.parametrize(("names", "words"), REFUSED)
def test_names_that_fit_nothing_are_refused(a, names, words):
    refused(words, "compare", a, a, "--num-heads", str(H), *([] if names is None else ["--names", names]))


def test_names_that_are_no_dict_or_said_twice_are_refused(a):
    with pytest.raises(TypeError, match=r"names is 3 \(int\), expected a dict"):
        parity.compare_files(a, a, names=3)
    with pytest.raises(ValueError, match="scheme_a='llama' is given, but the names"):
        parity.compare_files(a, a, names=NAMES, scheme_a="llama", num_heads=H)
    with pytest.raises(ValueError, match="names_b fits no layer"):
        parity.compare_files(a, a, names=NAMES, names_b=PACKED, num_heads=H)
