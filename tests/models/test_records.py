"""Records of models of PyTorch: where a difference begins is said, and rounding is no difference."""

import json
from importlib import metadata

import numpy as np
import pytest
import small_llama
import torch
from recorded import of_torch
from recorded.of_torch import Decoder, model, recorded
from small_llama_mistakes import Interleaved, NoScale
from torch import nn

from mha import parity

from .verdicts import place

pytestmark = pytest.mark.backends("torch")
# What differs first, and words of the report; others are in `test_records_parts.py`.
PLACES = {
    "tied": ("head", "output", "at head: its input is the same, its output differs"),
    "kernel": ("blocks.1.attention.v_proj", "output", "its input is the same, its output differs"),
    "residual": ("blocks.1.after", "input", "in B it is the output of blocks.1.attention.o_proj"),
}


def llama(mistaken=small_llama.Attention, dtype=torch.float32, **options):
    ids, mask = small_llama.tokens()
    with parity.record(made := small_llama.Model(mistaken, dtype), **options) as record:
        made(ids, mask)
    return record


def test_the_same_model_is_the_same_up_to_rounding():
    report = parity.compare_records(recorded(), recorded(dtype=torch.bfloat16))
    assert report, report
    assert report.first is report.blind is None
    assert report.begins == ""
    assert 0 < max(row.ratio for row in report.rows) < 0.75
    assert report.verdict.startswith("the same: ")
    assert set(report.partners.items()) == {
        (path, path) for path in dict(Decoder().named_modules()) if path != "blocks"
    }
    assert report.alone == ((), ())


@pytest.mark.parametrize("mistake", PLACES)
def test_the_place_is_named(mistake):
    path, what, words = PLACES[mistake]
    report = parity.compare_records(recorded(), recorded(mistake))
    assert not report
    assert place(report) == (path, what)
    assert words in report.begins, report
    printed = " ".join(str(report).split())
    assert words in printed
    said = json.loads(report.to_json())
    assert (said["same"], said["first"]["path"], said["first"]["verdict"]) == (False, path, "differs")
    assert words in said["verdict"]
    before = report.rows[: report.rows.index(report.first)]
    assert {row.verdict for row in before} == {"same"}


@pytest.mark.parametrize("mistake", PLACES)
def test_the_place_is_named_beside_half_precision(mistake):
    report = parity.compare_records(recorded(), recorded(mistake, dtype=torch.bfloat16))
    assert place(report) == PLACES[mistake][:2], report


def test_where_nothing_can_be_told_the_report_says_so_and_is_not_true():
    report = parity.compare_records(recorded(), recorded("scale", dtype=torch.bfloat16))
    assert report.first is None
    assert report.blind.path == "blocks.1.attention.o_proj", report
    assert not report
    assert "of blocks.1.attention.o_proj on nothing can be told" in report.verdict
    judged = parity.compare_records(llama(), llama(NoScale, dtype=torch.bfloat16, weights=True))
    assert judged.layer.path == "layers.1.self_attn"
    assert not judged


def test_a_mistake_of_the_cache_is_found_beside_one_pass():
    report = parity.compare_records(recorded(), of_torch.decoded("last"))
    assert place(report) == ("blocks.0.attention.o_proj", "input"), report


class Cached(nn.Module):
    """A module that is called with a cache."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Linear(3, 3)

    def forward(self, X, past_key_values):
        return {"logits": self.turn(X), "past_key_values": past_key_values}


class Cache:
    """A cache whose methods are called as those of transformers are."""

    def get_seq_length(self):
        return 4

    def crop(self, max_length):
        return "cropped", max_length

    def reorder_cache(self, beam_idx):
        return "reordered", beam_idx


def test_changes_of_a_cache_are_recorded_whatever_they_are_given():
    cache, rows = Cache(), torch.tensor([1, 0])
    with parity.record(made := Cached()) as record:
        made(torch.ones(2, 3), past_key_values=cache)
        assert cache.crop(3) == cache.crop(max_length=3) == ("cropped", 3)
        assert cache.reorder_cache(rows) == cache.reorder_cache(beam_idx=rows) == ("reordered", rows)
        assert cache.reorder_cache([1, 0]) == ("reordered", [1, 0])
    changes = [event[2:] for event in record.events if event[0] == "cache"]
    assert changes[:2] == [["crop", [{"value": 3}]]] * 2
    assert changes[2] == changes[3] == changes[4] == ["reorder_cache", [{"array": changes[2][1][0]["array"]}]]
    assert not vars(cache)


def test_padding_is_not_compared():
    a = llama()
    ids, mask = small_llama.tokens()
    with parity.record(made := small_llama.Model()) as b:
        made(torch.where(mask.bool(), ids, 0), mask)
    assert parity.compare_records(a, b)


class Turned(nn.Module):
    """A module that is called for each kind in an order of its own."""

    def __init__(self, order):
        super().__init__()
        self.order, self.turn, self.last = order, nn.Tanh(), nn.Linear(7, 5)

    def forward(self, X):
        found = {kind: self.turn(X * kind) for kind in self.order}
        return self.last(found[1] - found[2] + found[5])


def test_calls_of_one_module_in_another_order_are_paired_by_contents():
    X = torch.randn(3, 7, generator=torch.Generator().manual_seed(1))
    records = []
    for order in ((1, 2, 5), (5, 1, 2)):
        torch.manual_seed(2)
        with parity.record(made := Turned(order)) as record:
            made(X)
        records.append(record)
    assert parity.compare_records(*records)


def test_attention_is_judged_by_the_oracle_where_weights_are_known():
    right = llama()
    report = parity.compare_records(right, llama(NoScale, weights=True))
    assert place(report) == ("layers.1.self_attn.o_proj", "input")
    assert report.audits[0] is None
    assert report.layer.path == "layers.1.self_attn"
    assert [row.path for row in report.wrong] == ["layers.1.self_attn"]
    assert "1 / sqrt(d)" in str(report) or "scale" in str(report.layer.report.diagnosis), report
    other = parity.compare_records(llama(weights=True), llama(NoScale))  # with the weights of A
    assert other.layer.path == "layers.1.self_attn"
    assert other.audits[1].truth == "the weights of A"


def test_a_record_is_audited_as_its_model_is():
    ids, mask = small_llama.tokens()
    for mistaken in (small_llama.Attention, Interleaved):
        record = llama(mistaken, weights=True)
        theirs = parity.audit(small_llama.Model(mistaken), ids, mask)
        ours = parity.audit_record(record)
        assert bool(ours) == bool(theirs)
        assert [(row.path, row.verdict, row.ratio) for row in ours.layers] == [
            (row.path, row.verdict, row.ratio) for row in theirs.layers
        ]
    assert parity.audit_record(llama(), like=small_llama.Model())
    assert not parity.audit_record(llama(Interleaved), like=small_llama.Model())


def test_recording_leaves_the_model_and_its_output_as_they_were():
    made = model().train()
    hooks = [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in made.modules()]
    before = of_torch.logits(made)
    with parity.record(made, weights=True) as record:
        inside = of_torch.logits(made)
    np.testing.assert_array_equal(before, inside)
    assert made.training
    assert hooks == [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in made.modules()]
    assert record.facts["framework"] == "torch"
    assert record.facts["version"] == metadata.version("torch")
    assert len(record.calls) == 1
    assert "1 call" in repr(record)


def test_an_array_is_kept_as_it_was_when_it_came():
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, X):
            Y = self.inner(X)
            Y *= 2  # which is X, too
            return Y

    X = torch.ones(2, 3)
    with parity.record(made := Changes()) as record:
        made(X)
    first, last = record.calls[0].visits[0].inputs[0], record.calls[0].visits[0].outputs[0]
    assert record.array(first).tolist() == np.ones((2, 3)).tolist()
    assert record.array(last).tolist() == (2 * np.ones((2, 3))).tolist()
