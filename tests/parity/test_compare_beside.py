"""`mha compare` and what is no weight of attention: arrays beside a layer are compared, others are counted."""

import numpy as np
import pytest
import safetensors.numpy
from commands import run

from mha import parity
from mha.core.options.config import numpy_dtype
from mha.weights.readers.safetensors_file import SafetensorsFile
from mha.weights.schemes import from_canonical

from .ported import H, made, with_weights

T5, BERT, GPT2 = "encoder.block.0.layer.0.SelfAttention.", "encoder.layer.0.attention.", "h.0.attn."
TABLE = "relative_attention_bias.weight"


def numbers(*shape, dtype="float32"):
    """Random numbers of a dtype."""
    return np.random.default_rng(5).normal(1, 0.5, shape).astype(numpy_dtype(dtype))


@pytest.fixture
def files(tmp_path):
    """Compare two files of one layer: of a scheme, with further arrays in A and in B, and a change of B's layer."""

    def compare(scheme, prefix, ours, theirs, other=None, change=lambda layer: layer):
        paths = []
        for name, chosen, more in (("a", scheme, ours), ("b", other or scheme, theirs)):
            layer = made(bias=chosen != "t5", **({"scale": 1.0} if chosen == "t5" else {}))
            layer = change(layer) if name == "b" else layer
            arrays = from_canonical(layer.config, layer.weights, chosen)
            held = {prefix + after: np.ascontiguousarray(X) for after, X in arrays.items()}
            paths.append(str(tmp_path / f"{name}.safetensors"))
            safetensors.numpy.save_file(held | more, paths[-1])
        return parity.compare_files(*paths, num_heads=H), paths

    return compare


# 1. Beside the weights of a layer


def test_tables_of_biases_that_differ_are_a_difference(files):
    table = numbers(7, H)
    report, paths = files("t5", T5, {T5 + TABLE: table}, {T5 + TABLE: table + 2})
    assert not report
    (layer,) = report.reports
    assert layer.agree
    assert all(row.same for row in layer.rows)
    assert [row.name for row in layer.beside] == [TABLE]
    assert layer.beside[0].difference == pytest.approx(2 / abs(table).max())
    assert report.verdict.startswith(f"the same layer, but for {TABLE}: differs by ")
    result = run("compare", *paths, "--num-heads", "3")
    assert result.exit_code == 1
    assert f"\n{TABLE}  (7, 3)    DIFFERS " in result.stdout
    assert f"so that outputs are computed without: {TABLE}\n" in result.stdout
    assert "not compared" not in result.stdout  # there is nothing else


@pytest.mark.parametrize(
    ("theirs", "verdict", "note"),
    [
        (lambda X: X, "the same bits", ""),
        (lambda X: X.astype("float64"), "the same numbers", ""),
        (lambda X: X.astype(numpy_dtype("bfloat16")), "the same to bfloat16", ""),
        (lambda X: X.T.copy(), "DIFFERS", "transposed"),
        (lambda X: X[:-1].copy(), "DIFFERS", "of another shape"),
        (lambda X: X[::-1].copy(), "DIFFERS", ""),
    ],
    ids=["copied", "wider", "rounded", "transposed", "cut", "turned"],
)
def test_arrays_beside_a_layer_are_compared_as_arrays(files, theirs, verdict, note):
    table = numbers(7, H)
    report, _ = files("t5", T5, {T5 + TABLE: table}, {T5 + TABLE: theirs(table)})
    (row,) = report.reports[0].beside
    assert (row.verdict, row.note) == (verdict, note)
    assert bool(report) == (verdict != "DIFFERS")


def test_a_table_in_one_file_alone_is_a_difference(files):
    table = {T5 + TABLE: numbers(7, H)}
    report, _ = files("t5", T5, table, {})
    assert not report
    assert report.verdict == f"the same layer, but for {TABLE}: not in B"
    report, _ = files("t5", T5, {}, table)
    assert report.verdict == f"the same layer, but for {TABLE}: not in A"


ORDER = np.array([2, 0, 1])  # of the heads


def moved(layer):
    """The layer with its heads in another order, which computes the same."""
    found = {}
    for name, X in layer.weights.items():
        rows = X.T if name == "W_o.kernel" else X  # columns belong to heads
        rows = rows.reshape(len(rows), H, -1)[:, ORDER].reshape(rows.shape)  # (in, H*d)
        found[name] = np.ascontiguousarray(rows.T if name == "W_o.kernel" else rows)
    return with_weights(layer, **found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("change", "there", "right", "note"),
    [
        (moved, lambda X: X[:, ORDER], True, "heads in another order, that of the weights"),
        (moved, lambda X: X, False, "the same, but the weights have heads in another order"),
        (moved, lambda X: X[:, ORDER[ORDER]], False, ""),
        (moved, lambda X: X[:, ORDER] + 2, False, ""),
        (lambda layer: layer, lambda X: X[:, ORDER], False, ""),
    ],
    ids=["both", "kernels alone", "table another way", "table changed", "table alone"],
)
def test_a_table_with_the_heads_of_the_kernels_is_the_same(files, change, there, right, note, dtype):
    table = numbers(7, H)
    theirs = np.ascontiguousarray(there(table)).astype(numpy_dtype(dtype))
    report, _ = files("t5", T5, {T5 + TABLE: table}, {T5 + TABLE: theirs}, change=change)
    (layer,) = report.reports
    assert layer.agree
    assert bool(report) == right
    (row,) = layer.beside
    assert row.note.removesuffix(f", to {dtype}") == note
    if right:
        assert "stored in another way" in report.verdict
        assert f"{TABLE}: {note}" in report.verdict


def test_a_norm_has_an_old_name_and_a_new_one(files):
    weight, bias = numbers(12), numbers(12) + 3
    old = {f"{BERT}output.LayerNorm.gamma": weight, f"{BERT}output.LayerNorm.beta": bias}
    new = {f"{BERT}output.LayerNorm.weight": weight, f"{BERT}output.LayerNorm.bias": bias}
    report, _ = files("bert", BERT, old, new)
    assert report
    assert [row.name for row in report.reports[0].beside] == ["output.LayerNorm.gamma", "output.LayerNorm.beta"]
    assert report.others == ((), ())
    report, _ = files("bert", BERT, old, new | {f"{BERT}output.LayerNorm.bias": weight})
    assert report.verdict.startswith("the same layer, but for output.LayerNorm.beta: ")


def test_what_a_model_makes_itself_may_be_missing_but_not_differ(files):
    causal = np.tril(np.ones((1, 1, 5, 5), bool))
    hidden = np.where(causal, 0, -np.inf).astype("float32")
    report, _ = files("gpt2", GPT2, {f"{GPT2}bias": causal}, {})
    assert report
    assert report.others == ((f"{GPT2}bias",), ())
    report, _ = files("gpt2", GPT2, {f"{GPT2}bias": causal}, {f"{GPT2}bias": causal.astype("float32")})
    assert report.reports[0].beside[0].verdict == "the same numbers"
    assert files("gpt2", GPT2, {f"{GPT2}bias": hidden}, {f"{GPT2}bias": hidden})[0]
    assert not files("gpt2", GPT2, {f"{GPT2}bias": hidden}, {f"{GPT2}bias": hidden.swapaxes(2, 3).copy()})[0]
    assert files("gpt2", GPT2, {f"{GPT2}bias": causal.astype("uint8")}, {f"{GPT2}bias": causal})[0].others == (
        (f"{GPT2}bias",),  # a dtype that is not read
        (f"{GPT2}bias",),
    )


def test_another_scheme_may_have_it_elsewhere(files):
    norm = {f"{BERT}output.LayerNorm.weight": numbers(12)}
    report, _ = files("bert", BERT, norm, {}, other="d2l")
    assert report
    assert report.reports[0].beside == ()
    assert report.others == ((f"{BERT}output.LayerNorm.weight",), ())


# 2. What is not compared


def test_the_last_line_says_what_was_not_compared_and_nothing_of_it_is_read(files, monkeypatch):
    mlp = {f"encoder.layer.{i}.{name}": numbers(12, 5) for i in range(11) for name in ("in", "out")}
    _, paths = files("bert", BERT, mlp, {name: 0 * X for name, X in mlp.items()} | {"head": numbers(2)})
    read, plain = [], SafetensorsFile.read

    def noted(self, name, *more):
        read.append(name)
        return plain(self, name, *more)

    monkeypatch.setattr(SafetensorsFile, "read", noted)
    result = run("compare", *paths, "--num-heads", "3")
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split("the same layer: the same bits\n")[-1].split())
    kinds = "encoder.layer.0.in, encoder.layer.0.out"
    assert shown == f"not compared: 22 arrays of A ({kinds}); 23 arrays of B ({kinds}, head)"
    assert read
    assert all(name.startswith(BERT) for name in read)
