"""Records without a framework: where a difference begins, which tokens and modules are the same, what rounding is."""

import dataclasses
import json
import types

import numpy as np
import pytest
from recorded import tokens
from recorded.of_numpy import recorded

from mha import parity
from mha.models.records import aligning, flows, pairs, stepping, storing
from mha.models.records import tokens as of_tokens
from mha.models.records.pairs import Matcher, Pair, row_distances
from mha.weights.files import FileError

from .verdicts import place

PLACES = {
    "eps": ("blocks.1.after", "output"), "gelu": ("blocks.1.mlp.act", "output"),
    "residual": ("blocks.1.after", "input"), "scale": ("blocks.1.attention.o", "input"),
}  # fmt: skip
RENAMED = {"embed": "table", "norm": "last", "head": "out", "before": "ln1", "after": "ln2", "attention": "mixer",
           "mlp": "wide", "q": "one", "k": "two", "v": "three", "o": "four"}  # fmt: skip


def renamed(path):
    """A path by other names."""
    return "/".join(RENAMED.get(part, part) for part in path.replace("blocks.", "h_").split("."))


def pair(a, b, where=((0,), (0,))):
    """Two arrays as rows."""
    a, b = (X.reshape(-1, X.shape[-1]) for X in (a, b))
    return Pair(a, b, where, *row_distances(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_model_is_the_same(dtype):
    report = parity.compare_records(recorded(), recorded(dtype=dtype))
    assert report, report
    assert (max(row.far for row in report.rows) > 0) == (dtype == "float64")
    assert max(row.ratio for row in report.rows) < 0.75
    assert len(report.rows) == 28


@pytest.mark.parametrize("rename", [None, renamed], ids=["names", "other names"])
@pytest.mark.parametrize("mistake", PLACES)
def test_the_place_is_named(mistake, rename):
    report = parity.compare_records(recorded(dtype="float64"), recorded(mistake, rename=rename))
    assert place(report) == PLACES[mistake], report
    path = PLACES[mistake][0]
    assert report.first.other == (renamed(path) if rename else path)
    assert (f"({renamed(path)} in B)" in report.begins) == (rename is not None)
    verdicts = [row.verdict for row in report.rows]
    assert verdicts.count("differs") == 1
    assert {*verdicts[: verdicts.index("differs")]} <= {"same"}


def test_pairs_are_kept_as_long_as_their_bytes_have_room(monkeypatch):
    made = []

    def make_pair(matcher, a, b, what, at, where):
        made.append(at)
        return pair(*np.ones((2, 3, 5)))

    monkeypatch.setattr(Matcher, "make_pair", make_pair)
    monkeypatch.setattr(pairs, "KEPT", 2 * np.ones((2, 3, 5)).nbytes)  # of two pairs
    side = [types.SimpleNamespace(number=lambda what, at: at)]
    matcher = Matcher(None, None)
    for at in (1, 2, 1, 3, 1, 2):  # 2 is used least recently when 3 comes
        matcher.pair(side, side, "input", at)
    assert made == [1, 2, 3, 2]


def test_the_first_of_two_mistakes_is_named():
    report = parity.compare_records(recorded(), recorded("scale residual"))
    assert place(report) == PLACES["scale"]
    assert [(row.path, row.what) for row in report.rows if row.verdict == "differs"] == [
        PLACES["scale"], PLACES["residual"],
    ]  # fmt: skip
    assert {row.verdict for row in report.rows[report.rows.index(report.first) :]} == {"differs", "not told"}
    assert report.to_json()


def test_calls_in_another_order_are_paired():
    report = parity.compare_records(recorded(), recorded("order", rename=renamed))
    assert report, report
    assert report.partners["blocks.1.attention.q"] == "h_1/mixer/one"
    paths = {"blocks.{}.attention.k": "h_{}/mixer/two", "blocks.{}.attention.q": "h_{}/mixer/three"}
    report = parity.compare_records(recorded(), recorded(rename=renamed), paths)
    assert report.partners["blocks.0.attention.q"] == "h_0/mixer/three"  # as it is said, though it is another one


@pytest.mark.parametrize("portions", [(4, 1, 1, 5), (1,) * 11], ids=str)
def test_a_decode_lines_up_with_one_pass(portions):
    decode, one = recorded(portions=portions), recorded()
    for a, b in ((one, decode), (decode, one)):
        report = parity.compare_records(a, b)
        assert report, report
        assert len(report.rows) >= 28
    assert place(parity.compare_records(one, recorded("scale", portions=portions))) == PLACES["scale"]
    assert place(parity.compare_records(recorded("gelu", portions=portions), one)) == PLACES["gelu"]


def test_calls_that_b_lacks_are_a_difference():
    two = recorded(portions=(11,))
    two.events += recorded(ids=tokens()[::-1]).events  # the arrays are others, but their numbers are there
    report = parity.compare_records(two, recorded())
    assert not report
    assert report.first is None
    assert "only the first 1 were compared" in str(report)
    assert "only the first 1 were compared" in json.loads(report.to_json())["notes"][0]


def test_other_texts_are_left_out_from_where_they_part():
    other = tokens().copy()
    other[0, 7:] = 1
    report = parity.compare_records(recorded(portions=(5, 6)), recorded(portions=(3, 8), ids=other))
    assert report, report
    assert report.notes == ("their texts differ from position 7 of sample 0 on; what follows there was left out",)
    report = parity.compare_records(recorded(), recorded(ids=other))
    assert place(report) == ("", "input")
    assert "what the model was called with differs" in report.begins


def test_a_file_is_read_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "ROOM", 160)
    monkeypatch.setattr(storing, "PIECE", 999)
    made = recorded(path=tmp_path / "ours")
    assert made.path == str(tmp_path / "ours")
    report = parity.compare_records(tmp_path / "ours", recorded())
    assert report
    assert max(row.far for row in report.rows) == 0
    for events in (made.events[::-1], made.events[1:], made.events[:-3] + made.events[-1:]):
        other = dataclasses.replace(recorded(), events=events)
        other.save(tmp_path / "other")
        with pytest.raises(ValueError, match="other is a damaged record: its events are in no order"):
            parity.compare_records(tmp_path / "other", made)
    (tmp_path / "ours.unfinished").write_bytes(b"")
    with pytest.raises(FileError, match="is not whole"):
        parity.compare_records(tmp_path / "ours", made)


def test_an_unfinished_file_says_so_under_any_name(tmp_path):
    storing.FileStore(tmp_path / "ours").file.close()
    (tmp_path / "ours.unfinished").rename(tmp_path / "other")
    with pytest.raises(FileError, match="other is not whole: the run that records it was killed"):
        parity.compare_records(tmp_path / "other", tmp_path / "other")


# What enters a module, as earlier arrays make it


def arrays(seed=0, *shape, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for _ in range(5)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_flows_are_found(dtype):
    S, unit = arrays(1, 7, 5, dtype=dtype), parity.UNIT[dtype]
    factor = np.dtype(dtype).type(0.25)
    made = {
        ("sum", (2,), (1.0,)): S[2], ("sum", (3,), (0.25,)): factor * S[3], ("sum", (0, 3), (1.0, 1.0)): S[0] + S[3],
        ("sum", (1, 4), (1.0, 0.25)): S[1] + factor * S[4], ("sum", (0, 2, 4), (1.0, 1.0, 1.0)): S[0] + S[2] + S[4],
        ("product", (1, 3), ()): S[1] * S[3],
    }  # fmt: skip
    for (kind, sources, factors), X in made.items():
        flow = flows.flow_of(X, unit, S)
        assert flow is not None, (kind, sources)
        assert (flow.kind, sorted(flow.sources)) == (kind, list(sources))
        np.testing.assert_allclose(flow.factors, factors, rtol=1e-5)
    assert flows.flow_of(S[0] + S[1] * S[2], unit, S) is None
    wrong = S[0] + S[3]
    wrong[6, 4] += 1e-3
    assert flows.flow_of(wrong, unit, S) is None
    assert flows.flow_of(S[0].reshape(35, 1), unit, S).sources == (0,)


def test_a_flow_is_asked_of_bs_own_arrays():
    S, T = arrays(1, 7, 5), arrays(2, 7, 5)  # of A and of B, which differ by much
    flow = flows.flow_of(S[0] + S[1], parity.UNIT["float32"], S)
    sources = [pair(X, Y) for X, Y in zip(S, T, strict=True)]
    chosen = [sources[at] for at in flow.sources]
    far, most, _ = flows.compare_flow(pair(S[0] + S[1], T[0] + T[1]), flow, chosen)
    assert (far <= most).all()
    far, most, _ = flows.compare_flow(pair(S[0] + S[1], T[0] + np.float32(1.001) * T[1]), flow, chosen)
    assert (far > most).all()


# Growth


def test_a_difference_may_grow_as_rows_of_a_show():
    rng = np.random.default_rng(3)
    X, W = rng.normal(size=(40, 64)), rng.normal(size=(64, 64))
    near = X + 1e-5 * rng.normal(size=X.shape)
    inputs = pair(X.astype("float32"), near.astype("float32"))
    right = pair((X @ W).astype("float32"), (near @ W).astype("float32"))
    most = stepping.row_bounds(right, inputs, 0.0)
    assert (right.far <= 0.5 * most).all()
    assert (most <= 12 * right.far).all()
    assert 7 < stepping.largest_growth(inputs, right) < 14  # W enlarges by 8
    wrong = pair((X @ W).astype("float32"), (near @ (1.001 * W)).astype("float32"))
    assert (wrong.far > stepping.row_bounds(wrong, inputs, 0.0)).all()


def test_what_rows_have_in_common_hides_no_growth():
    rng = np.random.default_rng(9)
    X = 100 + rng.normal(size=(20, 64))
    near = X + 1e-4 * rng.normal(size=X.shape)
    inputs, outputs = pair(X, near), pair(X - 100, near - 100)
    assert 0.8 < stepping.largest_growth(inputs, outputs) < 1.5
    assert (outputs.far <= stepping.row_bounds(outputs, inputs, 0.0)).all()


def test_without_a_difference_of_the_input_only_rounding_is_allowed():
    X = np.random.default_rng(4).normal(size=(9, 64)).astype("float32")
    inputs, outputs = pair(X, X), pair(X, X)
    most = stepping.row_bounds(outputs, inputs, 0.0)
    np.testing.assert_allclose(most, 16 * parity.UNIT["float32"] * outputs.size, rtol=0.3)
    assert (stepping.row_bounds(outputs, None, 0.0) < most).all()
    assert (stepping.row_bounds(outputs, inputs, 1e-3) > 100 * most).all()
    assert (stepping.row_bounds(outputs, inputs, 0.0, 1e5) > 100 * most).all()
    half = pair(X, X.astype("float16"))
    assert (stepping.row_bounds(half, inputs, 0.0) > 1000 * most).all()


def test_rows_with_other_integers_are_not_told():
    ids = np.arange(12).reshape(12, 1)
    other = np.where(ids == 5, 0, ids)
    X = np.random.default_rng(5).normal(size=(12, 7)).astype("float32")
    most = stepping.row_bounds(pair(X, X), pair(ids, other), 0.0)
    assert np.isinf(most).tolist() == [at == 5 for at in range(12)]


def test_nan_and_infinity_have_to_be_in_the_same_places():
    X = np.array([[1, np.nan, np.inf], [2, 3, 4]], "float32")
    far, size = row_distances(X, X)
    assert far.tolist() == [0, 0]
    assert np.isfinite(size).all()
    Y = X.copy()
    Y[1, 0] = np.nan
    assert row_distances(X, Y)[0].tolist() == [0, np.inf]
    assert row_distances(X, -X)[0][0] == np.inf


# Tokens


def test_rows_are_tokens_whatever_the_order_of_axes():
    keys = np.arange(6).reshape(2, 3)
    grid = of_tokens.Grid(None, keys)
    X = np.random.default_rng(6).normal(size=(2, 3, 4, 5))
    rows, found = of_tokens.rows_of(X, [grid], False, False)
    np.testing.assert_array_equal(rows, X.reshape(6, 20))
    assert found.tolist() == list(range(6))
    for other in (X.swapaxes(0, 1), X.swapaxes(1, 2)):  # tokens first; heads before tokens
        np.testing.assert_array_equal(of_tokens.rows_of(other, [grid], False, False)[0], rows)
    np.testing.assert_array_equal(of_tokens.rows_of(rows, [grid], False, False)[0], rows)  # (B*Q, F)
    one = of_tokens.rows_of(X[:1, :, 0], [grid], False, False)[0]  # positions, the same for all samples
    np.testing.assert_array_equal(one, np.concatenate([X[0, :, 0]] * 2))
    assert of_tokens.rows_of(X[:, -1:, 0], [grid], False, False) is None
    last, at = of_tokens.rows_of(X[:, -1:, 0], [grid], False, True)
    np.testing.assert_array_equal(last, X[:, -1, 0])
    assert at.tolist() == [2, 5]


def test_padding_has_no_key():
    record = recorded()
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 0]])
    record.arrays.kept["mask"] = mask
    record.names.append("mask")
    call = dataclasses.replace(record.calls[0], arguments={
        "input_ids": {"array": len(record.names) - 1}, "attention_mask": {"array": len(record.names) - 1},
    })  # fmt: skip
    (grid,) = of_tokens.grids_of(record, call, 0)
    far = of_tokens.FAR
    assert grid.keys.tolist() == [[-1, -1, 0, 1], [far, far + 1, far + 2, -1]]
    (later,) = of_tokens.grids_of(record, call, 10)
    assert later.keys[1].tolist() == [far + 10, far + 11, far + 12, -1]


# Modules


def seen(path, out, into=3, numbers=None):
    rng = np.random.default_rng(abs(out))
    told = tuple(aligning.summarise(rng.normal(size=size)) for size in (into, out)) if numbers is None else numbers
    return aligning.ModuleSummary(path, (into, out), told)


def test_modules_are_paired_by_contents_first():
    rng = np.random.default_rng(7)
    told = [(aligning.summarise(X), aligning.summarise(X[::-1] * 3)) for X in rng.normal(size=(3, 20))]
    a = [seen(f"a{at}", 20, 20, told[at]) for at in range(3)]
    b = [seen(f"b{at}", 20, 20, told[(at + 1) % 3]) for at in range(3)]
    assert aligning.pair_modules(a, b, {}) == {"a0": "b2", "a1": "b0", "a2": "b1"}


def test_modules_are_paired_by_the_numbers_of_layers_of_pairs_that_are_known():
    rng = np.random.default_rng(8)
    X, Y = ((aligning.summarise(Z), aligning.summarise(Z)) for Z in rng.normal(size=(2, 20)))
    Z = [(aligning.summarise(W), aligning.summarise(W)) for W in rng.normal(size=(4, 20))]
    a = [seen("x.0.q", 20, 20, X), seen("x.0.k", 20, 20, Y), seen("x.1.q", 20, 20, Z[0]), seen("x.1.k", 20, 20, Z[1])]
    b = [seen("y.0.k", 20, 20, Y), seen("y.0.q", 20, 20, X), seen("y.1.k", 20, 20, Z[2]), seen("y.1.q", 20, 20, Z[3])]
    b = [dataclasses.replace(one, path=one.path.replace(".k", ".u").replace(".q", ".w")) for one in b]
    assert aligning.pair_modules(a, b, {}) == {"x.0.q": "y.0.w", "x.0.k": "y.0.u", "x.1.q": "y.1.w", "x.1.k": "y.1.u"}


def test_modules_are_paired_by_order_size_and_the_ends_of_their_paths():
    a = [seen("m.up", 20), seen("m.gate", 20), seen("m.down", 6), seen("m.norm", 6)]
    b = [seen("x.gate", 21), seen("x.wide.up", 20, 4), seen("x.wide.gate", 20, 4), seen("x.norm", 6, 5)]
    assert aligning.pair_modules(a, b, {}) == {"m.up": "x.wide.up", "m.gate": "x.wide.gate", "m.norm": "x.norm"}


def test_paths_are_patterns_with_numbers():
    said = {"layers.{}.attn": "blocks_{}/mixer", "norm": "last"}
    assert aligning.partner_entry("layers.3.attn.q_proj", said) == ("blocks_3/mixer", "q_proj")
    assert aligning.partner_entry("layers.3.attn", said) == ("blocks_3/mixer", "")
    assert aligning.partner_entry("layers.3.attention", said) is None
    assert aligning.partner_entry("norm", said) == ("last", "")
