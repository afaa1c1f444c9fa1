"""A module with more than attention in it is no wrong attention: a residual and a norm are recognised, and where."""

import numpy as np
import pytest

import mha
from mha import parity

B, Q, K, H, D = 2, 5, 7, 3, 12
random = np.random.default_rng(4)
INPUTS = [random.normal(size=(B, T, D)).astype("float32") for T in (Q, K, K)]
SCALE, SHIFT = random.normal(1, 0.3, size=(2, D))
LENGTHS = [4, 7]


@pytest.fixture(scope="module")
def layer():
    return mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="numpy")


def layer_norm(X):
    X = X - X.mean(-1, keepdims=True)
    return (X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-5) * SCALE + SHIFT).astype("float32")


def rms_norm(X):
    return (X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) * SCALE).astype("float32")


X = INPUTS[0]
MODULES = {
    "the queries are added to the output (a residual)": lambda Y: Y + X,
    "a layer norm of the output": layer_norm,
    "a layer norm of the sum of output and queries (a residual)": lambda Y: layer_norm(Y + X),
    "a layer norm of the output, to which the queries are added (a residual)": lambda Y: layer_norm(Y) + X,
    "an RMS norm of the output": rms_norm,
    "an RMS norm of the sum of output and queries (a residual)": lambda Y: rms_norm(Y + X),
    "an RMS norm of the output, to which the queries are added (a residual)": lambda Y: rms_norm(Y) + X,
}


@pytest.mark.parametrize("more", MODULES)
def test_what_comes_after_attention(layer, more):
    steps = layer.trace(*INPUTS, LENGTHS)
    output = MODULES[more](steps["output"])
    for theirs in (output, {"weights": steps["weights"], "output": output}):
        report = parity.compare(layer, theirs, *INPUTS, LENGTHS)
        assert not report
        diagnosis = report.diagnosis
        assert (diagnosis.more, diagnosis.mistakes, diagnosis.known) == (more, (), True)
        words = f"why: it is more than attention: {more}; give the output before that"
        assert " ".join(str(diagnosis).split()) == words


def test_only_rows_that_count_have_to_fit(layer):
    output = layer_norm(layer(*INPUTS, LENGTHS) + X)
    rows = np.arange(Q) >= np.array([[2], [0]])
    output[~rows] = np.nan
    diagnosis = parity.diagnose(layer, output, *INPUTS, LENGTHS, rows=rows)
    assert diagnosis.more == "a layer norm of the sum of output and queries (a residual)"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_in_other_dtypes(dtype):
    wide = mha.MultiHeadAttention(64, 4, dtype=dtype, seed=0, backend="numpy")
    Y = mha.normal(0, 1, (2, 11, 64), dtype=dtype, backend="numpy")
    total = (wide(Y, Y, Y) + Y).astype("float64")
    total -= total.mean(-1, keepdims=True)
    normed = (total / np.sqrt((total * total).mean(-1, keepdims=True) + 1e-12)).astype(Y.dtype)
    more = parity.diagnose(wide, normed, Y, Y, Y).more
    assert more == "a layer norm of the sum of output and queries (a residual)"


def test_other_errors_are_no_norm_and_no_residual(layer):
    output = layer(*INPUTS)
    noise = random.normal(size=output.shape).astype("float32")
    nearly = layer_norm(output + X) * (1 + 1e-3 * noise)
    for theirs in (output + noise, output + X + 1e-3 * noise, nearly, output + X[::-1]):
        assert parity.diagnose(layer, theirs.astype("float32"), *INPUTS).more == ""
    assert parity.diagnose(layer, np.full_like(output, np.nan), *INPUTS).more == ""
    wrong = layer.trace(*INPUTS)
    wrong["weights"] = wrong["weights"] + 1
    assert parity.diagnose(layer, wrong | {"output": output + X}, *INPUTS).more == ""


def test_few_rows_fit_any_norm(layer):
    few = [Y[:1, :4] for Y in INPUTS]
    assert parity.diagnose(layer, layer_norm(layer(*few)), *few).more == ""
    assert parity.diagnose(layer, layer(*few) + few[0], *few).more.startswith("the queries are added")


def test_queries_of_another_width_cannot_be_added():
    narrow = mha.MultiHeadAttention(D, H, query_size=8, bias=True, seed=0, backend="numpy")
    inputs = [INPUTS[0][..., :8], *INPUTS[1:]]
    assert parity.diagnose(narrow, layer_norm(narrow(*inputs)), *inputs).more == "a layer norm of the output"


@pytest.mark.backends("torch")
def test_a_block_of_torch(backend):
    import torch

    theirs = torch.nn.TransformerEncoderLayer(24, 4, 32, dropout=0.0, batch_first=True).eval()
    Y = mha.normal(0, 1, (3, 7, 24), backend=backend)
    with torch.no_grad():
        theirs.norm1.weight.normal_(1, 0.2, generator=torch.Generator().manual_seed(0))
        output = theirs.norm1(Y + theirs.self_attn(Y, Y, Y)[0])
    diagnosis = parity.diagnose(mha.from_native(theirs.self_attn), output, Y, Y, Y)
    assert diagnosis.more == "a layer norm of the sum of output and queries (a residual)"


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"rotary": mha.Rotary(4)}, marks=pytest.mark.long("numpy"), id="rotated")]
)
def test_attention_over_samples_is_named(options):
    """As PyTorch's layer computes it that was made without batch_first."""
    layer = mha.MultiHeadAttention(D, H, seed=0, backend="numpy", **options)
    X = random.normal(size=(B, Q, D)).astype("float32")
    output = layer(*[X.swapaxes(0, 1)] * 3).swapaxes(0, 1)  # (B, Q, D)
    for theirs in (output, (output, np.ones((Q, H, B, B), "float32") / B)):
        report = parity.compare(layer, theirs, X, X, X)
        assert report.diagnosis.mistakes == ("samples and tokens are swapped",)
    assert "as of PyTorch's layer without batch_first [ratio 0" in " ".join(str(report.diagnosis).split())
    assert not parity.diagnose(layer, output, X, X, X, [4, 5]).known  # no layer could have hidden the keys so
    rows = np.ones((B, Q), bool)
    rows[1, 2] = False
    assert not parity.diagnose(layer, output, X, X, X, rows=rows).known
    nearly = output + np.float32(1e-3)
    assert not parity.diagnose(layer, nearly, X, X, X).known
    cross = [random.normal(size=(B, T, D)).astype("float32") for T in (Q, K, K)]
    assert not parity.diagnose(layer, output, *cross).known


def test_a_few_rows_tell_of_no_norm(layer):
    X = random.normal(size=(1, 67, D)).astype("float32")
    output = layer_norm(layer(X, X, X))
    assert parity.diagnose(layer, output, X, X, X).more == "a layer norm of the output"
    output[:, -1] += 0.01
    assert parity.diagnose(layer, output, X, X, X).more == ""
