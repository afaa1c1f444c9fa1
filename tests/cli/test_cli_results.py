"""The files of results of `mha compare`, which layers of an audit failed, and what pages of all commands show."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import refused, run

import mha
from mha.cli import audit
from mha.parity import AuditReport, LayerRow, Result
from mha.parity.cases.run import pages


@pytest.fixture
def layers(tmp_path):
    """Files of a layer, of its weights in another dtype, and of one whose queries are turned round."""
    layer = mha.MultiHeadAttention(12, 3, seed=5, backend="numpy")
    layer.save(tmp_path / "ours.npz")
    names = {name: f"a.{name[2]}.weight" for name in layer.weights}
    own = {names[name]: X.T for name, X in layer.weights.items()}
    np.savez(tmp_path / "same.npz", **own)
    np.savez(tmp_path / "turned.npz", **{name: X.T if ".q." in name else X for name, X in own.items()})
    return tmp_path


def compared(folder, other, *options):
    """Compare the layer with another file: exit code, XML and page."""
    files = {name: str(folder / f"results.{name}") for name in ("junit", "html")}
    given = (f"--{name}={file}" for name, file in files.items())
    names = ("--names-b", "W_q=q,W_k=k,W_v=v,W_o=o", "--num-heads", "3")
    result = run("compare", str(folder / "ours.npz"), str(folder / other), *names, *given, *options)
    page = (folder / "results.html").read_text(encoding="utf-8")
    return result.exit_code, ElementTree.parse(files["junit"]).getroot(), page


def test_files_that_are_the_same(layers):
    code, root, page = compared(layers, "same.npz")
    assert (code, root.get("name"), list(root.iter("failure"))) == (0, "mha compare", [])
    cases = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert [name for kind, name in cases if kind.endswith("weight")] == [f"float32, W_{name}.kernel" for name in "qkvo"]
    assert any(kind.endswith("output") and "output" in name for kind, name in cases)
    assert "the same layer: the same bits" in page
    assert "<svg" not in page


def test_files_that_differ(layers):
    code, root, page = compared(layers, "turned.npz")
    assert code == 1
    failed = {case.get("name").split(", ")[1] for case in root.iter("testcase") if case.find("failure") is not None}
    assert {"W_q.kernel", "W_q", "output"} <= failed
    assert not {"W_k.kernel", "W_k", "W_v", "W_o.kernel"} & failed
    first = page[: page.index("<pre")]
    assert "the same layer, but for W_q.kernel: " in first
    assert "first to differ: a.: W_q, " in first
    assert 'class="wrong"' in first[first.index("<svg") :]


def test_a_reason_that_no_array_has_fails_by_itself(tmp_path, layers):
    both = dict(np.load(layers / "same.npz"))
    np.savez(tmp_path / "two.npz", **both | {f"b.{name[2:]}": X + 1 for name, X in both.items()})
    code, root, _ = compared(layers, "two.npz", "--prefix-b", "a.")
    assert (code, len(list(root.iter("failure")))) == (0, 0)
    code, root, page = compared(layers, "two.npz")
    assert code == 1
    (case,) = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert (case.get("classname"), case.get("name")) == ("B.verdict", "verdict")
    assert "no partner for 1 layer of B" in case.find("failure").get("message")
    assert "1 of " in page


def test_layers_that_are_not_known_have_failed_and_others_are_left_out():
    rows = [("a", "bert", "not known"), ("b", "bert", "not called"), ("c", "left out", "not known")]
    report = AuditReport("Model", tuple(LayerRow(*row, note="no table has it") for row in rows))
    assert list(audit.results(report)) == [Result("Model", "bert", "a", "", "no table has it", math.inf, 1.0)]


def test_files_that_cannot_be_written(layers):
    ours = str(layers / "ours.npz")
    for option in ("--html", "--junit"):
        refused(f"{option} is {layers}, which is no regular file", "compare", ours, ours, option, str(layers))


def test_bars_grow_by_one_for_each_doubling():
    rows = [
        ("a.b", 0.5, "same"), ("a", 1.9, "differs"), ("c", 2.1, "differs"), ("d", 1e30, "differs"),
        ("e", math.inf, "differs"), ("f", None, "not known"),
    ]  # fmt: skip
    assert [line.rpartition("  ")[2] for line in pages.bars(rows)[1:]] == [".", "#", "##", "#" * 60, "##", "-"]
    assert pages.bars([]) == ()


def test_a_picture_has_a_cell_for_each_character():
    finding = pages.Finding("said\nmore", [("rows", ("          keys 0-6", "sample 0  ##..x--"))], "all of it")
    page = pages.html([], {}, "title", finding).decode()
    cells = [part.split('"')[0] for part in page.split('<rect class="')[1:]]
    assert cells == ["wrong", "same", "wrong-padding", "padding"]
    widths = [part.split('width="')[1].split('"')[0] for part in page.split("<rect ")[1:]]
    assert widths == ["17", "17", "8", "17"]
    left = [int(part.split('x="')[1].split('"')[0]) for part in page.split("<rect ")[1:]]
    assert [x - left[0] for x in left] == [0, 18, 36, 45]
    assert ">sample 0</text>" in page
    assert ">keys 0-6</text>" in page
    assert '<p class="finding">said\nmore</p>' in page


def test_a_page_stays_small_and_shows_what_failed():
    where = "sample 0; head 2 of 12; queries 32-63 of 704"
    passed = [Result("model", "output", f"model.layers.{at}.mlp", "float32", where, 0.5, 1.0) for at in range(9000)]
    wrong = Result("model", "output", "model.layers.9000.self_attn", "float32", where, 3.0, 1.0)
    page = pages.html([*passed, wrong], {}, "mha compare").decode()
    assert len(page) < 1_000_000
    assert page.count("<tr") == pages.ROWS + 1
    assert "model.layers.9000.self_attn" in page
    assert f"{9001 - pages.ROWS} results are not shown." in page
    assert len(list(ElementTree.fromstring(pages.junit([*passed, wrong], {}, "all")).iter("testcase"))) == 9001
