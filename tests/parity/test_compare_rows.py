"""Which rows count in a comparison: padding on the left, queries that see no key, positions from the first token on."""

import numpy as np
import pytest

import mha
from mha import parity

B, T, H, G, D = 3, 7, 6, 2, 24
PADDING = [0, 4, 2]  # of each sample, on the left
TOKENS = np.arange(T) >= np.array(PADDING)[:, None]  # which places hold tokens, (B, T)
X = np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
CALL = {"mask": TOKENS[:, None, :], "causal": True}
OPTIONS = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "rotary": mha.Rotary(4)}


@pytest.fixture(scope="module")
def layer():
    return mha.MultiHeadAttention(**OPTIONS, bias=True, seed=0, backend="numpy")


def turn(X, positions):
    """Turn halves of the first four components of heads (B, T, any, d) by positions (B, T)."""
    angles = positions[..., None, None] * np.array([1.0, 0.01])  # (B, T, 1, 2)
    a, b = X[..., :2], X[..., 2:4]
    turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    return np.concatenate([*turned, X[..., 4:]], -1)


def port(layer, positions, empty=np.nan):
    """A decoder's attention as its author writes it, in float64: tokens see tokens up to themselves."""
    weights = {name: Y.astype(float) for name, Y in layer.weights.items()}
    q, k, v = (
        (X @ weights[f"W_{one}.kernel"] + weights.get(f"W_{one}.bias", 0)).reshape(B, T, -1, D // H) for one in "qkv"
    )
    q, k = turn(q, positions), turn(k, positions)
    scores = np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k, H // G, 2)) / 2
    seen = (TOKENS[:, None, :] & np.tri(T, dtype=bool))[:, None]  # (B, 1, T, T)
    shares = np.exp(scores) * seen
    with np.errstate(invalid="ignore"):
        shares = shares / shares.sum(-1, keepdims=True)
    shares = np.where(np.isnan(shares), empty, shares)
    pooled = np.einsum("bhqk,bkhd->bqhd", shares, np.repeat(v, H // G, 2)).reshape(B, T, D)
    output = pooled @ weights["W_o.kernel"] + weights.get("W_o.bias", 0)
    steps = {"rotate_q": q, "rotate_k": k, "scores": scores, "weights": shares, "output": output}
    return {name: Y.astype("float32") for name, Y in steps.items()}


def test_rows_that_see_nothing_do_not_count(layer):
    steps = port(layer, np.arange(T)[None])
    for theirs in (steps, steps["output"], {"weights": steps["weights"]}):
        report = parity.compare(layer, theirs, X, X, X, **CALL)
        assert report, str(report)
        assert not parity.compare(layer, theirs, X, X, X, **CALL, empty_rows=True)
    assert report.rows[0].note == f"NaN in {6 * H} rows of queries that see no key: with empty_rows=True they count"
    ratio = parity.ratio(layer, steps["output"], X, X, X, **CALL)
    assert ratio == parity.compare(layer, steps["output"], X, X, X, **CALL).ratio <= 1
    assert parity.ratio(layer, steps["output"], X, X, X, **CALL, empty_rows=True) == np.inf
    uniform = port(layer, np.arange(T)[None], empty=1 / T)["output"]
    report = parity.compare(layer, uniform, X, X, X, **CALL, empty_rows=True)
    assert report.diagnosis.mistakes == ("rows without keys are uniform",)
    assert report.first.place.where == "samples 1-2 of 3; queries 0-3 of 7; only in padding"


def test_what_only_such_rows_show_is_unseen(layer):
    report = parity.compare(layer, layer(X, X, X, **CALL), X, X, X, **CALL)
    unseen = {one.mistake: one.shown_by for one in report.unseen}
    assert unseen["rows without keys are NaN"] == "queries that see no key, with empty_rows=True"
    counted = parity.compare(layer, layer(X, X, X, **CALL), X, X, X, **CALL, empty_rows=True)
    assert "rows without keys are NaN" not in {one.mistake for one in counted.unseen}


def test_only_some_rows_count(layer):
    """Here the padding sees itself, as in an encoder; what it gets is nobody's business."""
    call = {"mask": TOKENS[:, None, :]}
    theirs = layer.trace(X, X, X, **call)
    output = np.where(TOKENS[..., None], theirs["output"], 9).astype("float32")
    assert not parity.compare(layer, output, X, X, X, **call)
    report = parity.compare(layer, output, X, X, X, **call, rows=TOKENS)
    assert report, str(report)
    assert parity.ratio(layer, output, X, X, X, **call, rows=TOKENS) == report.ratio
    wrong = output.copy()
    wrong[1, 5, 3] += 1
    place = parity.compare(layer, wrong, X, X, X, **call, rows=TOKENS.tolist()).first.place
    assert (place.index, place.count, place.picture[2]) == ((1, 5, 3), 1, "sample 1  ----.#.")
    weights = theirs["weights"].reshape(B, H, T, T).copy()
    weights[1, :, :4] = np.nan
    assert parity.compare(layer, {"weights": weights}, X, X, X, **call, rows=TOKENS)
    queries = theirs["W_q"].copy()
    queries[1, :4] = 5
    assert parity.compare(layer, {"W_q": queries}, X, X, X, **call, rows=TOKENS)
    assert not parity.compare(layer, {"W_q": queries}, X, X, X, **call)


@pytest.mark.long("numpy")
@pytest.mark.parametrize("causal", [False, True])
def test_queries_in_padding_that_differ_are_not_blamed_on_a_port(layer, causal):
    """Flax's masks hide all keys from padding, which then has their mean; here padding is on the right."""
    lengths = np.array([T, 3, 5])
    right = layer(X, X, X, lengths, causal=causal)
    tokens = np.arange(T) < lengths[:, None]
    output = np.where(tokens[..., None], right, right.mean(1, keepdims=True))
    for call in ({"valid_lens": lengths}, {"mask": tokens[:, None]}):
        report = parity.compare(layer, output, X, X, X, **call, causal=causal)
        assert not report
        assert (report.diagnosis.mistakes, report.diagnosis.known) == ((), True)
        assert np.array_equal(report.diagnosis.call["rows"], tokens)
        assert "why: only queries in padding differ, " in str(report)
        assert parity.compare(layer, output, X, X, X, **call, causal=causal, **report.diagnosis.call)
        other = np.array(X) + np.float32(1)  # queries of another kind have no padding where keys have
        cross = np.where(tokens[..., None], layer(other, X, X, **call, causal=causal), output)
        assert "rows" not in parity.diagnose(layer, cross, other, X, X, **call, causal=causal).call
    unmasked = parity.diagnose(layer, layer(X, X, X, causal=True), X, X, X, lengths, causal=True)
    assert (unmasked.mistakes, [*unmasked.call]) == (("the lengths are ignored",), ["rows"])  # tokens see none of it
    assert " or only queries in padding differ, " in " ".join(str(unmasked).split())
    wrong = output.copy()
    wrong[1, 1] += 1
    assert "rows" not in parity.diagnose(layer, wrong, X, X, X, lengths, causal=causal).call


def test_the_loss_is_of_the_rows_that_count(layer):
    cotangent = np.random.default_rng(2).normal(size=(B, T, D)).astype("float32")
    for given in (None, cotangent):
        masked = np.where(TOKENS[..., None], np.ones((B, T, D)) if given is None else given, 0).astype("float32")
        theirs = layer.gradients(X, X, X, cotangent=masked)
        assert parity.compare(layer, theirs, X, X, X, cotangent=given, rows=TOKENS)
        assert not parity.compare(layer, theirs, X, X, X, cotangent=given)


def test_the_diagnosis_goes_by_the_rows_that_count(layer):
    wrong = mha.MultiHeadAttention(**OPTIONS, bias=True, scale=1.0, backend="numpy")
    wrong.weights = layer.weights
    output = wrong(X, X, X, mask=TOKENS[:, None, :])
    output[~TOKENS] = 7
    report = parity.compare(layer, output, X, X, X, mask=TOKENS[:, None, :], rows=TOKENS)
    assert report.diagnosis.mistakes == ("no scale",)
    assert not parity.diagnose(layer, output, X, X, X, mask=TOKENS[:, None, :]).known


WRONG_ROWS = {
    "a shape": (np.ones((T, B), bool), ValueError, r"rows has shape \(7, 3\), expected booleans of shape \(3, 7\): "),
    "integers": (np.ones((B, T), int), TypeError, r"rows has dtype int64, expected booleans of shape \(3, 7\)"),
    "a number": (3, TypeError, r"rows is 3 \(int\), expected booleans of shape \(3, 7\): \(batch, queries\), True = "),
    "none of them": (np.zeros((B, T), bool), ValueError, "rows is all False, expected True for the rows that count"),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_bad_rows(layer, case):
    rows, kind, message = WRONG_ROWS[case]
    with pytest.raises(kind, match=message):
        parity.compare(layer, layer(X, X, X), X, X, X, rows=rows)


def test_rows_of_which_none_sees_a_key(layer):
    output = layer(X, X, X, [0, 0, 0])
    with pytest.raises(ValueError, match="no query sees a key, so that no row counts; with empty_rows=True such rows"):
        parity.compare(layer, output, X, X, X, [0, 0, 0])
    with pytest.raises(ValueError, match="no query of rows sees a key, so that no row counts"):
        parity.ratio(layer, output, X, X, X, **CALL, rows=~TOKENS)
    assert parity.compare(layer, output, X, X, X, [0, 0, 0], empty_rows=True)
    assert parity.compare(layer, output[:0], X[:0], X[:0], X[:0], rows=TOKENS[:0])
    with pytest.raises(TypeError, match=r"empty_rows is 1 \(int\), expected True or False"):
        parity.compare(layer, output, X, X, X, empty_rows=1)


# Rotated steps


def from_the_first_token():
    """Positions as many decoders count them: padding is at 1, the first token at 0."""
    return np.where(TOKENS, np.cumsum(TOKENS, 1) - 1, 1)


def test_positions_that_begin_at_the_first_token(layer):
    steps = port(layer, from_the_first_token())
    rotated = {name: steps[name] for name in ("rotate_q", "rotate_k")}
    for theirs in (steps, rotated, {"rotate_q": steps["rotate_q"], "output": steps["output"]}):
        report = parity.compare(layer, theirs, X, X, X, **CALL)
        assert report, str(report)
        row = next(row for row in report.rows if row.name == "rotate_q")
        assert row.note.startswith("all positions of a sample are shifted by one number (0, -4, -2), no score is")
        assert 0 < row.ratio <= 1
    assert report.unseen is not None


def test_a_shift_that_changes_scores_is_no_such_shift(layer):
    steps = port(layer, from_the_first_token())
    right = port(layer, np.arange(T)[None])
    alone = {"rotate_q": steps["rotate_q"]}
    for theirs in (alone, alone | {"rotate_k": right["rotate_k"]}, alone | {"scores": 2 * steps["scores"]}):
        report = parity.compare(layer, theirs, X, X, X, **CALL)
        assert not report
        assert report.first.name == "rotate_q"
    for at in range(T):  # one row turns alone, whether or not it is so large that its sample seems to turn with it
        within = steps["rotate_k"].copy()
        within[0, at] = turn(within[:1, at : at + 1], np.ones((1, 1)))[0, 0]
        report = parity.compare(layer, {"rotate_q": steps["rotate_q"], "rotate_k": within}, X, X, X, **CALL)
        assert [row.passed for row in report.rows] == [False, False]
        assert not any("shifted" in row.note for row in report.rows)


# What is queries, keys and values at once


@pytest.mark.parametrize("rows", [None, TOKENS])
def test_the_gradient_of_one_input_is_the_sum_of_three(layer, rows):
    loss = np.random.default_rng(3).normal(size=(B, T, D)).astype("float32")
    cotangent = loss if rows is None else np.where(rows[..., None], loss, 0).astype("float32")
    three = layer.gradients(X, X, X, **CALL, cotangent=cotangent)
    whole = three["queries"] + three["keys"] + three["values"]
    call = CALL | {"cotangent": loss, "rows": rows}
    for name in ("inputs", "gradient.inputs"):
        report = parity.compare(layer, {name: whole}, X, X, X, **call)
        assert report, str(report)
        assert [row.name for row in report.rows] == ["gradient.inputs"]
    assert not parity.compare(layer, {"inputs": three["queries"] + three["keys"]}, X, X, X, **call)
    report = parity.compare(layer, {"queries": whole}, X, X, X, **call)
    assert "it is the gradient of queries, keys and values at once: give it as 'gradient.inputs'" in report.first.note
    assert not parity.compare(layer, {"queries": three["keys"]}, X, X, X, **call).first.note
    wrong = whole.copy()
    wrong[0, 3] += 1
    place = parity.compare(layer, {"inputs": wrong}, X, X, X, **call).first.place
    assert (place.where, place.picture[0]) == ("samples 0 of 3; tokens 3 of 7; not in padding", "          tokens 0-6")
    with pytest.raises(
        ValueError, match="has 'inputs', which is the gradient of one input that is queries, keys and v"
    ):
        parity.compare(layer, {"inputs": whole}, X, 2 * X, X, **call)
