"""`mha.parity.compare`: where another implementation first differs, from any layout, step, gradient and framework."""

import io
import re
from contextlib import redirect_stdout

import adapters
import numpy as np
import pytest
from calls import own

import mha
from mha import parity

B, Q, K, H, D = 2, 5, 7, 3, 12
LENGTHS = [4, 7]


@pytest.fixture
def layer():
    attention = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="numpy")
    random = np.random.default_rng(1)
    attention.weights = {
        name: X if X.ndim == 2 else random.normal(size=X.shape).astype(X.dtype) for name, X in attention.weights.items()
    }
    return attention


@pytest.fixture
def inputs():
    random = np.random.default_rng(2)
    return [random.normal(size=(B, T, D)).astype("float32") for T in (Q, K, K)]


def everything(attention, inputs, cotangent=None):
    """All steps and gradients of a call."""
    gradients = attention.gradients(*inputs, LENGTHS, cotangent=cotangent)
    return attention.trace(*inputs, LENGTHS) | {f"gradient.{name}": X for name, X in gradients.items()}


def heads_first(X, num_heads):
    """(B*H, T, d) -> (B, H, T, d)."""
    return X.reshape(-1, num_heads, *X.shape[1:])  # (B, H, T, d)


def test_all_that_a_backend_gives_is_the_same(backend, layer, inputs):
    attention = layer.to(backend)
    cotangent = np.random.default_rng(3).normal(size=(B, Q, D)).astype("float32")
    arrays = [own(backend, X) for X in (*inputs, cotangent)]
    theirs = everything(attention, arrays[:3], arrays[3])
    report = parity.compare(attention, theirs, *arrays[:3], own(backend, np.array(LENGTHS)), cotangent=arrays[3])
    assert report, str(report)
    assert report.first is None
    assert [row.name for row in report.rows] == list(theirs)
    assert all(0 <= row.ratio <= 1 and row.place is None for row in report.rows)
    assert report.ratio == max(row.ratio for row in report.rows)
    assert f"the same: {len(theirs)} arrays within what float32 explains\n" in str(report)


def test_the_ratio_is_that_of_the_rule(layer, inputs):
    output = layer(*inputs, LENGTHS)
    output[1, 2, 3] += 1e-4
    report = parity.compare(layer, output, *inputs, LENGTHS)
    assert report.ratio == pytest.approx(parity.ratio(layer, output, *inputs, LENGTHS), rel=1e-12)
    assert not report
    place = report.first.place
    assert (report.first.name, place.index, place.count, place.of) == ("output", (1, 2, 3), 1, B * Q * D)
    assert place.theirs == pytest.approx(place.expected + 1e-4, abs=1e-6)
    assert place.where == "samples 1 of 2; queries 2 of 5; features 3 of 12"
    assert place.picture == ("          queries 0-4", "sample 0  .....", "sample 1  ..#..")


def test_a_pair_is_the_output_and_the_weights(layer, inputs):
    output, weights = layer(*inputs, LENGTHS, return_weights=True)
    assert [row.name for row in parity.compare(layer, (output, weights), *inputs, LENGTHS).rows] == [
        "weights",
        "output",
    ]
    assert [row.name for row in parity.compare(layer, (output, None), *inputs, LENGTHS).rows] == ["output"]
    assert parity.compare(layer, (output, 2 * weights), *inputs, LENGTHS).first.name == "weights"


@pytest.mark.parametrize("turn", [
    lambda X: heads_first(X, H),
    lambda X: heads_first(X, H).transpose(0, 2, 1, 3),
    lambda X: heads_first(X, H).transpose(0, 2, 1, 3).reshape(B, X.shape[1], D),
])  # fmt: skip
def test_layouts_are_told_by_the_shape(layer, inputs, turn):
    steps = layer.trace(*inputs, LENGTHS)
    theirs = {name: turn(steps[name]) for name in ("split_q", "split_k", "split_v", "pooled")}
    theirs |= {name: heads_first(steps[name], H) for name in ("scores", "weights")}
    theirs |= {"W_q": heads_first(steps["split_q"], H).transpose(0, 2, 1, 3)}  # as Keras has it
    assert parity.compare(layer, theirs, *inputs, LENGTHS)
    wrong = theirs["split_k"].copy()
    wrong[-1, -1, -1] += 1
    report = parity.compare(layer, theirs | {"split_k": wrong}, *inputs, LENGTHS)
    place = report.first.place
    assert report.first.name == "split_k"
    assert wrong[place.index] == np.float32(place.theirs)  # the index is one of theirs
    assert place.where.startswith("samples 1 of 2; ")


def test_a_layout_that_the_shape_does_not_tell(layer, inputs):
    X = inputs[0][:, :H]  # as many queries as heads
    split = heads_first(layer.trace(X, X, X)["split_q"], H)
    report = parity.compare(layer, {"split_q": split}, X, X, X)
    assert "which may be (B, H, T, d) or (B, T, H, d); say which with layout=" in report.first.note
    for layout in ("(B, H, T, d)", "BHTd", "bhtd"):
        assert parity.compare(layer, {"split_q": split}, X, X, X, layout=layout)
    other = split.transpose(0, 2, 1, 3)
    assert parity.compare(layer, {"split_q": other}, X, X, X, layout="(B, T, H, d)")
    assert not parity.compare(layer, {"split_q": other}, X, X, X, layout="(B, H, T, d)")


def test_heads_of_keys_that_are_repeated_already(inputs):
    attention = mha.MultiHeadAttention(D, 6, num_key_value_heads=2, seed=0, backend="numpy")
    keys = heads_first(attention.trace(*inputs)["split_k"], 2)
    assert parity.compare(attention, {"split_k": keys}, *inputs)
    assert parity.compare(attention, {"split_k": np.repeat(keys, 3, 1)}, *inputs)
    assert not parity.compare(attention, {"split_k": np.tile(keys, (1, 3, 1, 1))}, *inputs)


def test_gradients_by_either_name_and_with_axes_of_heads(layer, inputs):
    gradients = layer.gradients(*inputs, LENGTHS)
    assert parity.compare(layer, gradients, *inputs, LENGTHS)
    kernel = gradients["W_q.kernel"]
    assert parity.compare(layer, {"gradient.W_q.kernel": kernel.reshape(D, H, -1)}, *inputs, LENGTHS)  # Keras, Flax
    report = parity.compare(layer, {"W_q.kernel": kernel.T}, *inputs, LENGTHS)
    assert report.first.note == "theirs is the transpose of ours"
    report = parity.compare(layer, {"queries": 2 * gradients["queries"]}, *inputs, LENGTHS)
    assert (report.first.name, report.first.note) == ("gradient.queries", "theirs is 2 times ours")
    assert "the scale is forgotten in gradients" in str(report)
    wrong = kernel.copy()
    wrong[:, 4:8] = 0  # those of head 1
    place = parity.compare(layer, {"W_q.kernel": wrong}, *inputs, LENGTHS).first.place
    assert place.where == "heads 1 of 3"
    assert place.picture[1:] == ("head 0  ............", "head 1  ############", "head 2  ............")


def test_what_cannot_reach_the_output_does_not_count(layer, inputs):
    theirs = layer.trace(*inputs, LENGTHS)
    theirs["scores"][:H, :, 4:] = -1e9  # hidden
    theirs["split_k"][:H, 4:] = np.nan
    theirs["W_v"][0, 4:] = 7
    assert parity.compare(layer, theirs, *inputs, LENGTHS)
    theirs["weights"][:H, :, 4:] = 1e-3  # what is hidden has no weight
    report = parity.compare(layer, theirs, *inputs, LENGTHS)
    assert report.first.name == "weights"
    assert report.first.place.where == "samples 0 of 2; keys 4-6 of 7; only in padding"
    assert report.first.place.picture[1] == "sample 0, head 0, query 0  ....xxx"


def test_a_key_counts_if_one_head_of_its_group_sees_it(inputs):
    attention = mha.MultiHeadAttention(D, 6, num_key_value_heads=2, seed=0, backend="numpy")
    mask = np.ones((1, 6, Q, K), bool)
    mask[:, 1:, :, 0] = False
    keys = attention.trace(*inputs, mask=mask)["split_k"]
    keys[1, 0] += 1  # of the group of which no head sees the first key
    assert parity.compare(attention, {"split_k": keys}, *inputs, mask=mask)
    keys[0, 0] += 1
    assert not parity.compare(attention, {"split_k": keys}, *inputs, mask=mask)


def test_padding_of_large_numbers_hides_no_mistake(layer, inputs):
    theirs = layer.trace(*inputs, LENGTHS)["split_k"]
    padded = [X.copy() for X in inputs]
    padded[1][0, 4:] = 1e30
    assert parity.compare(layer, {"split_k": theirs}, *padded, LENGTHS)
    theirs[0, 0, 0] += 1e-3
    assert not parity.compare(layer, {"split_k": theirs}, *padded, LENGTHS)


def test_nan_is_a_result_with_its_place(layer, inputs):
    output = layer(*inputs, LENGTHS)
    output[1, 3] = np.nan
    report = parity.compare(layer, output, *inputs, LENGTHS)
    assert report.ratio == np.inf
    assert report.first.place.index == (1, 3, 0)
    assert np.isnan(report.first.place.theirs)
    assert report.first.note == f"NaN in {D} of {B * Q * D} numbers"
    assert report.first.place.where == "samples 1 of 2; queries 3 of 5"


def test_infinity_where_it_is_expected_is_the_same():
    layer = mha.MultiHeadAttention(D, 1, key_dim=4, value_dim=1, value_size=1, dtype="float64", seed=0, backend="numpy")
    X, V = (np.random.default_rng(0).normal(size=(2, 5, width)) for width in (D, 1))
    V[0, 0] = np.inf
    output = layer(X, X, V)
    assert np.isinf(output[0]).all()
    output[1, 2, 3] += 1
    assert parity.compare(layer, output, X, X, V).first.place.index == (1, 2, 3)


def test_in_self_attention_the_step_says_whether_its_rows_are_queries_or_keys(inputs):
    X = inputs[0]
    attention = mha.MultiHeadAttention(D, H, rotary=mha.Rotary(), qk_norm="rms", seed=0, backend="numpy")
    call = {"head_gates": np.linspace(0.5, 1.5, H, dtype="float32")}
    keys = {"W_k", "W_v", "split_k", "split_v", "norm_k", "rotate_k"}
    queries = {"W_q", "split_q", "norm_q", "rotate_q", "pooled", "head_gated", "merged"}
    steps = attention.trace(X, X, X, **call)
    assert keys | queries == set(steps) - {"scores", "weights", "output"}
    for name in keys | queries:
        wrong = steps[name].copy()
        wrong[-1, 3] += 1
        place = parity.compare(attention, {name: wrong}, X, X, X, **call).first.place
        rows = "keys" if name in keys else "queries"
        assert place.where.split("; ")[-1] == f"{rows} 3 of 5", name
        assert place.picture[0].split() == [rows, "0-4"], name


@pytest.mark.parametrize("shape", [(B, H, Q, K), (1, H, Q, K), (B, 1, 1, K), (1, 1, Q, 1), (B, H)])
def test_a_gradient_of_a_bias_or_of_gates_has_its_place_by_axes(layer, inputs, shape):
    name = "score_bias" if len(shape) == 4 else "head_gates"
    given = {name: np.linspace(0.5, 1.5, np.prod(shape), dtype="float32").reshape(shape)}
    wrong = layer.gradients(*inputs, **given)[name].copy()
    wrong[(-1,) * len(shape)] += 1
    place = parity.compare(layer, {f"gradient.{name}": wrong}, *inputs, **given).first.place
    at = [f"axis {i}: {size - 1} of {size}" for i, size in enumerate(shape) if size > 1]
    assert place.where == "; ".join(at)
    head, *rows = place.picture
    assert head.split() == ["numbers", f"0-{shape[-1] - 1}"]
    assert [row.partition("  ")[2].strip() for row in rows] == [
        "." * (shape[-1] - 1) + ".#"[last] for last in [False] * (len(rows) - 1) + [True]
    ]


@pytest.mark.parametrize("kernel", ["W_q", "W_k", "W_v", "W_o"])
def test_a_gradient_of_a_kernel_has_its_place_by_heads(kernel):
    sizes = {"query_size": 11, "key_size": 13, "value_size": 17, "key_dim": 5, "value_dim": 7}
    attention = mha.MultiHeadAttention(19, 6, num_key_value_heads=2, **sizes, bias=True, seed=0, backend="numpy")
    inputs = [np.random.default_rng(0).normal(size=(B, T, sizes[f"{name}_size"])).astype("float32")
              for name, T in (("query", Q), ("key", K), ("value", K))]  # fmt: skip
    heads, width, across, of = {
        "W_q": (6, 5, "inputs", 11), "W_k": (2, 5, "inputs", 13),
        "W_v": (2, 7, "inputs", 17), "W_o": (6, 7, "outputs", 19),
    }[kernel]  # fmt: skip
    gradients = attention.gradients(*inputs)
    wrong = gradients[f"{kernel}.kernel"].copy()
    by_head = wrong if kernel == "W_o" else wrong.T
    by_head[width + 1 : width + 3, [0, 3]] += 1  # two features of head 1
    place = parity.compare(attention, {f"gradient.{kernel}.kernel": wrong}, *inputs).first.place
    assert place.where == f"heads 1 of {heads}; {across} 0, 3 of {of}"
    head, *rows = place.picture
    assert head.split() == [across, f"0-{of - 1}"]
    assert rows == [f"head {h}  {('#..#' if h == 1 else '....') + '.' * (of - 4)}" for h in range(heads)]
    wrong = gradients[f"{kernel}.bias"].copy()
    wrong[2:4] += 1
    place = parity.compare(attention, {f"gradient.{kernel}.bias": wrong}, *inputs).first.place
    assert place.where == f"axis 0: 2-3 of {len(wrong)}"
    assert place.picture == (f"       numbers 0-{len(wrong) - 1}", f"row 0  {'..##' + '.' * (len(wrong) - 4)}")


def test_a_shape_that_does_not_fit_is_a_result(layer, inputs):
    steps = layer.trace(*inputs, LENGTHS)
    cases = {
        "weights": (steps["weights"].reshape(B, H, Q, K).mean((0, 1)), "it has shape (5, 7), expected (B*H, Q, K) = "),
        "output": (steps["output"].swapaxes(0, 1), "it looks like (Q, B, D): swap the first two axes"),
        "scores": (steps["scores"][:, :2], "it has shape (6, 2, 7), expected (B*H, Q, K) = (6, 5, 7) or (B, H, Q, K)"),
    }
    for name, (X, expected) in cases.items():
        report = parity.compare(layer, {"W_q": steps["W_q"], name: X}, *inputs, LENGTHS)
        assert [row.name for row in report.rows] == ["W_q", name]
        assert report.first.name == name
        assert report.first.ratio == np.inf
        assert expected in report.first.note
        assert "nothing can be tried" in str(report)
    for wrong in (steps["output"][:, :2], steps["output"][:, :, 1:].swapaxes(0, 1)):
        assert "it looks like" not in parity.compare(layer, {"output": wrong}, *inputs, LENGTHS).first.note


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_weights_may_be_means_over_the_heads(dtype):
    """As PyTorch's layer returns them, beside the output."""
    layer = mha.MultiHeadAttention(D, H, dtype=dtype, seed=3, backend="numpy")
    X = tuple(mha.normal(0, 1, (B, T, D), dtype=dtype, backend="numpy") for T in (Q, K, K))
    output, weights = layer(*X, LENGTHS, return_weights=True)
    means = weights.mean(1, dtype="float64").astype(dtype)  # (B, Q, K)
    report = parity.compare(layer, (output, means), *X, LENGTHS)
    assert report, report
    assert [row.name for row in report.rows] == ["mean weights", "output"]
    assert report.rows[0].note == "means over the heads were given"
    wide = parity.in_dtype(layer, "float64")(*(Y.astype("float64") for Y in X), LENGTHS, return_weights=True)[1].mean(1)
    rough = weights.mean(1, dtype="float64" if dtype == "float64" else "float32").astype(dtype)
    bound = parity.bound(dtype, wide, rough)
    assert bound <= report.rows[0].bound <= (1.5 if dtype == "float32" else 1) * bound  # or of rounding by chance
    wrong = means.copy()
    wrong[1, 2, 0] += 0.125
    row = parity.compare(layer, (output, wrong), *X, LENGTHS).first
    assert (row.name, row.place.index, row.place.count) == ("mean weights", (1, 2, 0), 1)
    assert row.place.where == "samples 1 of 2; queries 2 of 5; keys 0 of 7; not in padding"
    assert row.place.picture[3].startswith("sample 1, query 2  #")
    assert "mean weights, 1 of 70 numbers; worst at (1, 2, 0)" in str(
        parity.compare(layer, {"weights": wrong}, *X, LENGTHS)
    )


def test_beside_means_of_weights_a_mistake_and_a_call_are_found(layer, inputs):
    def given(**call):
        output, weights = layer(*inputs, **call, return_weights=True)
        return output, weights.mean(1)

    assert parity.compare(layer, given(causal=True), *inputs).diagnosis.call == {"causal": True}
    scaled = mha.MultiHeadAttention(**vars(layer.config) | {"scale": 1.0}, backend="numpy")
    scaled.weights = layer.weights
    output, weights = scaled(*inputs, return_weights=True)
    assert parity.compare(layer, (output, weights.mean(1)), *inputs).diagnosis.mistakes == ("no scale",)
    seen = (np.arange(Q) != 1)[:, None] & np.ones(K, bool)
    weights = layer(*inputs, mask=seen, return_weights=True)[1].mean(1)
    assert parity.compare(layer, {"weights": np.where(seen, weights, np.nan)}, *inputs, mask=seen)
    assert parity.compare(layer, {"weights": given()[1]}, *inputs, LENGTHS).diagnosis.mistakes == (
        "the lengths are ignored",
    )


def test_other_dtypes_are_said(layer, inputs):
    steps = {name: X.astype("float64") for name, X in layer.trace(*inputs).items()}
    report = parity.compare(layer, steps, *inputs)
    assert report
    assert {row.note for row in report.rows} == {"in float64"}
    assert not parity.compare(layer, steps["output"].astype("float16"), *inputs)


WRONG = {
    "an unknown step": (lambda X: {"weigths": X}, ValueError,
                        "theirs has 'weigths', expected some of W_q, .*did you mean 'weights'"),
    "nothing": (lambda X: {}, ValueError, "theirs is empty, expected an array or a mapping of some of W_q"),
    "a function": (lambda X: len, TypeError, "theirs is a builtin_function_or_method, which can be called, expected"),
    "a list": (lambda X: X.tolist(), TypeError, f"theirs is a list, expected an array of {adapters.NAMES}"),
    "None": (lambda X: {"output": None}, TypeError, r"theirs\['output'\] is a NoneType, expected an array"),
    "a triple": (lambda X: (X, None, None), ValueError,
                 r"theirs is a tuple of 3, expected the pair \(output, weights\), or theirs\[0\] alone"),
    "no output": (lambda X: (None, X), TypeError, r"theirs\['output'\] is a NoneType, expected an array"),
    "integers": (lambda X: X.astype(int), TypeError, "theirs has dtype int64, expected float32"),
    "one twice": (lambda X: {"queries": X, "gradient.queries": X}, ValueError, "theirs has gradient.queries twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_compared_is_said_in_one_line(layer, inputs, case):
    theirs, kind, message = WRONG[case]
    with pytest.raises(kind, match=message) as raised:
        parity.compare(layer, theirs(layer(*inputs)), *inputs)
    assert "\n" not in str(raised.value)


def test_other_bad_arguments(layer, inputs):
    output = layer(*inputs)
    with pytest.raises(TypeError, match=r"attention is a function, expected an mha\.MultiHeadAttention"):
        parity.compare(everything, output, *inputs)
    with pytest.raises(ValueError, match=r"""layout is 'BTD', expected "\(B\*H, T, d\)" or"""):
        parity.compare(layer, output, *inputs, layout="BTD")
    with pytest.raises(TypeError, match=r"others is \[\] \(list\), expected a mapping of names"):
        parity.compare(layer, output, *inputs, others=[])
    with pytest.raises(ValueError, match=r"cotangent has shape \(2, 5, 7\) and dtype float32, expected \(2, 5, 12\)"):
        parity.compare(layer, output, *inputs, cotangent=np.ones((B, Q, K), "float32"))
    with pytest.raises(TypeError, match="mask has dtype float32, expected booleans"):
        parity.compare(layer, output, *inputs, mask=np.ones((Q, K), "float32"))
    with pytest.raises(ValueError, match="is the weight itself, expected the gradient of the loss by it"):
        parity.compare(layer, {"W_q.kernel": layer.weights["W_q.kernel"]}, *inputs)


@pytest.mark.backends("torch")
def test_inputs_of_several_frameworks(backend, layer, inputs):
    queries = mha.tensor(inputs[0], backend=backend)
    with pytest.raises(TypeError, match=r"keys is of numpy, expected torch as queries; convert with mha\.to_numpy"):
        parity.compare(layer, layer(*inputs), queries, *inputs[1:])
    theirs = {"output": mha.tensor(layer(*inputs), backend=backend), "weights": layer.trace(*inputs)["weights"]}
    assert parity.compare(layer, theirs, *inputs)  # each of their arrays may be of another


def test_a_report_prints_as_a_table(layer, inputs):
    theirs = layer.trace(*inputs, LENGTHS)
    theirs["weights"] = layer.trace(*inputs)["weights"]
    report = parity.compare(layer, theirs, *inputs, LENGTHS)
    assert not report  # although most of its rows are the same
    with redirect_stdout(io.StringIO()) as out:
        print(report)
    lines = out.getvalue().splitlines()
    assert out.getvalue().strip() == repr(report)
    assert lines[0].split() == ["array", "ratio", "result", "worst", "at", "theirs", "expected", "where"]
    assert [line.split()[0] for line in lines[2 : 2 + len(theirs)]] == list(theirs)
    assert max(map(len, lines)) <= 100
    assert any(
        re.match(r"first to differ: weights, \d+ of 210 numbers; worst at \(\d, \d, \d\): theirs", line)
        for line in lines
    )
    assert "  sample 0, head " in out.getvalue()
    assert "# differs, . the same, x differs in padding, - padding" in out.getvalue()
