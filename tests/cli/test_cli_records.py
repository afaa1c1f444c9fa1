"""`mha audit` and `mha compare` of records: what they print, and their exit codes."""

import json
from xml.etree import ElementTree

import audited
import numpy as np
import pytest
import small_llama
from commands import keeps_words, refused, run
from recorded.of_torch import recorded
from small_llama_mistakes import Interleaved

from mha import parity

NAMES = ("--names", "W_q=to_q,W_k=to_k,W_v=to_v,W_o=to_out")
CALLED = ("--num-heads", str(audited.H), "--causal")
pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Records: two of a model, right and wrong, without and with weights."""
    folder = tmp_path_factory.mktemp("records")
    for name, mistake in {"right": "", "same": "", "wrong": "eps"}.items():
        recorded(mistake, path=folder / name)
    ids, mask = small_llama.tokens()
    for name, mistaken in {"llama": small_llama.Attention, "mistaken": Interleaved}.items():
        with parity.record(made := small_llama.Model(mistaken), folder / name, weights=True):
            made(ids, mask)
    for name, mistake in {"own": "", "unordered": "mask"}.items():
        one = audited.make("torch.taught", mistake)
        with parity.record(one.model, folder / name, weights=True):
            one.model(*one.args)
    own = {f"model.{name}": X.numpy() for name, X in one.model.state_dict().items()}
    np.savez(folder / "own.npz", **own)
    np.savez(folder / "turned.npz", **{name: X.T if "1.to_out" in name else X for name, X in own.items()})
    (folder / "killed.unfinished").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("compare", "right", "same"), 0, "the same: 28 steps"),
        (("compare", "right", "wrong"), 1, "the difference begins at blocks.1.after: its input is the same"),
        (("compare", "llama", "mistaken"), 1, "heads"),
        (("compare", "right", "wrong", "--path", "blocks.{}.mlp=blocks.{}.mlp"), 1, "the difference begins at"),
        (("compare", "right", "killed"), 2, "killed is not whole: the run that records it was killed"),
        (("compare", "right", "nothing"), 2, "there is no file"),
        (("compare", "right", "right", "--path", "one"), 2, "--path is one, expected the path of a module in A, ="),
        (("compare", "right", "right", "--path", "one=two"), 2, "paths has 'one', which fits no module"),
        (("audit", "llama"), 0, "the same: 3 layers"),
        (("audit", "mistaken"), 1, "first to differ: layers.1.self_attn"),
        (("audit", "own", *NAMES, *CALLED), 0, "the same: 2 layers"),
        (("audit", "own", *NAMES, *CALLED, "--like", "own.npz"), 0, "the same: 2 layers"),
        (("audit", "own", *NAMES, *CALLED, "--like", "turned.npz"), 1, "first to differ: blocks.1"),
        (("audit", "own", *NAMES, "--causal"), 2, "--num-heads is not given"),
        (("audit", "own", "--names", "W_q=q,W_k=k,W_v=v,W_o=o"), 2, "no module has all of q, k, v, o"),
        (("audit", "own", "--causal"), 2, "say what layers of --names compute"),
        (("audit", "own", "--names", "W_q=q"), 2, "--names has no W_k, W_v, W_o"),
        (("compare", "own", "own", *NAMES, *CALLED), 0, "the same: "),
        (("compare", "own", "unordered", *NAMES, *CALLED), 1, "causal order is ignored"),
        (("compare", "own", "unordered", *NAMES, "--names-b", NAMES[1], *CALLED), 1, "causal order is ignored"),
        (("compare", "own", "own", *NAMES, "--causal"), 2, "--num-heads is not given"),
        (("compare", "own", "own", "--causal"), 2, "say what layers of --names compute"),
        (("audit", "right"), 2, "right has no weights, expected some to judge it by"),
        (("audit", "nothing"), 2, "there is no file"),
        (("audit", "killed"), 2, "killed is not whole"),
    ],
)
def test_commands(files, monkeypatch, arguments, code, words):
    monkeypatch.chdir(files)
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert words in " ".join((result.stdout + result.stderr).split()), result.output
    assert code != 2 or len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("name", "other"), [("right", "wrong"), ("llama", "mistaken")])
def test_json(files, monkeypatch, name, other):
    monkeypatch.chdir(files)
    result = run("compare", name, other, "--json", "-")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["same"] is False
    assert said["first"]["path"].startswith(("blocks.1", "layers.1"))
    assert run("compare", name, name, "--json", "report.json").exit_code == 0
    assert json.loads((files / "report.json").read_text())["same"] is True
    assert json.loads(run("audit", "llama", "--json", "-").stdout)["same"] is True


def results_of(folder, code, *arguments):
    """Run a command that writes its results: the XML, the names of failures, and the page before the whole report."""
    result = run(*arguments, "--junit", "results.xml", "--html", "results.html")
    assert result.exit_code == code, result.output
    root = ElementTree.parse(folder / "results.xml").getroot()
    failed = [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]
    page = (folder / "results.html").read_text(encoding="utf-8")
    assert "<table" in page
    assert len(page) < 1_000_000
    return root, failed, page[: page.index("<pre")]


def test_results_of_an_audit(files, monkeypatch):
    monkeypatch.chdir(files)
    root, failed, first = results_of(files, 0, "audit", "llama")
    names = [f"float32, layers.{at}.self_attn" for at in range(3)]
    assert ([case.get("name") for case in root.iter("testcase")], failed) == (names, [])
    assert ("the same: 3 layers" in first, 'class="wrong"' in first, first.count("<rect")) == (True, False, 3)
    _, failed, first = results_of(files, 1, "audit", "mistaken", "--json", "report.json")
    assert failed == names[1:2]
    assert "first to differ: layers.1.self_attn: merged, " in first
    assert "why: " in first
    assert first.count("<svg") == 2
    assert json.loads((files / "report.json").read_text())["first"] == "layers.1.self_attn"


def test_results_of_two_records(files, monkeypatch):
    monkeypatch.chdir(files)
    root, failed, first = results_of(files, 0, "compare", "right", "same")
    assert (len(list(root.iter("testcase"))), failed) == (28, [])
    root, failed, first = results_of(files, 1, "compare", "right", "wrong")
    assert failed == ["blocks.1.after"]
    assert "the difference begins at blocks.1.after" in first
    assert first.count('class="wrong"') == 1
    _, failed, first = results_of(files, 1, "compare", "llama", "mistaken")
    assert "float32, layers.1.self_attn" in failed
    assert "first to differ: layers.1.self_attn: merged, " in first
    assert "why: " in first
    assert first.count("<svg") == 2


def test_a_record_and_weights_are_not_compared(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    (files / "weights").write_bytes(b"12345678")
    refused("weights is no record, but the other file is one; give two of a kind", "compare", "right", "weights")
    refused("--json is for records, which A and B are not", "compare", "weights", "weights", "--json", "-")


def test_no_word_is_broken_on_a_narrow_terminal(files, monkeypatch):
    monkeypatch.chdir(files)
    keeps_words(monkeypatch, "compare", "right", "wrong", code=1)
    keeps_words(monkeypatch, "audit", "llama")
