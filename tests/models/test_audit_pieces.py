"""Pieces of an audit of which no framework is needed: arguments by name, masks, patterns, and what a sink is told."""

import contextlib

import numpy as np
import pytest

from mha.models.audit.audit_report import AuditReport, LayerRow
from mha.models.audit.calls.listener import arguments_by_name, replace_attribute
from mha.models.audit.calls.session import Session, split_mask
from mha.models.audit.layers.attention_layer import AttentionLayer
from mha.models.audit.layers.finding import Finder
from mha.models.audit.layers.reference import Reference, with_torch_names


def test_arguments_have_their_names_whatever_the_rest_is_called():
    def call(X, *, mask=None, **options):
        """A call of a module."""

    assert arguments_by_name(call, (1,), {"mask": 2, "other": 3}) == {"X": 1, "mask": 2, "other": 3}
    assert arguments_by_name(call, (), {"mask": 2}) == {"mask": 2}
    assert arguments_by_name(call, (1, 2), {"mask": 2}) == {"mask": 2}


def test_the_order_of_tokens_is_seen_in_a_mask():
    order, keys = np.tri(5, dtype=bool), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)[:, None]
    assert split_mask(order) == {"causal": True}
    found = split_mask(order & keys)
    assert found.keys() == {"causal", "mask"}
    np.testing.assert_array_equal(found["mask"], keys)
    for other in (keys, order.T, np.ones((5, 5), bool), np.tri(5, 7, 2, dtype=bool), np.ones((1, 1), bool)):
        np.testing.assert_array_equal(split_mask(other)["mask"], other)


def test_a_pattern_teaches_the_outermost_modules_that_it_fits():
    modules = dict.fromkeys(("", "blocks", "blocks.0", "blocks.0.to_q", "blocks.10", "blocks.10.to_q"))
    finder = Finder(modules, {}, None, Reference({}, None, "nothing"))
    assert list(finder.match_modules({"blocks.*": None})) == ["blocks.0", "blocks.10"]


def test_a_sink_is_told_of_modules_without_numbers():
    failed = []
    layers = [AttentionLayer("blocks.0", "a", native=True), AttentionLayer("blocks.1", "b", native=True)]
    session = Session(layers, None, None, lambda path, reason: failed.append((path, reason)))
    session.note_no_numbers("blocks.1", "inside a transformation")
    session.note_no_numbers("other", "inside a transformation")
    assert failed == [("blocks.1", "inside a transformation")]
    session.note_pooling("softmax", 4, "blocks.0.pool")
    session.note_pooling("softmax", 4, "other.pool")
    session.note_pooling("softmax", 2, "other.head")
    session.note_pooling("softmax", 2, "other.pool")
    assert session.pools == {"other.pool": ("softmax", 4), "other.head": ("softmax", 2)}


def test_what_is_replaced_is_as_it_was_after_an_error():
    class Own:
        inherited = "of the class"

    own = Own()
    own.mine = "of the object"
    with (
        contextlib.suppress(ZeroDivisionError),
        replace_attribute(own, "mine", 1),
        replace_attribute(own, "inherited", 2),
    ):
        assert (own.mine, own.inherited) == (1, 2)
        raise ZeroDivisionError
    assert vars(own) == {"mine": "of the object"}
    assert own.inherited == "of the class"


class Guarded(dict):
    """Arrays of which only those of one layer may be read."""

    def __getitem__(self, name):
        assert name.startswith("layer.0."), name
        return super().__getitem__(name)


@pytest.mark.parametrize("kernel", ["weight", "kernel"])
def test_of_a_checkpoint_only_the_layer_is_read(kernel):
    X = np.arange(12.0, dtype="f4").reshape(3, 4)  # (in, out)
    arrays = Guarded({"layer.0.q_proj.bias": X[0], "layer.1.q_proj.bias": X[0], "places": np.arange(3)})
    arrays |= {f"layer.{at}.q_proj.{kernel}": X for at in (0, 1)}
    found = with_torch_names(Guarded(arrays), "llama", "layer.0.")
    assert np.array_equal(found["layer.0.q_proj.weight"], X if kernel == "weight" else X.T)
    assert np.array_equal(found["layer.0.q_proj.bias"], X[0])


def rows(*verdicts, kind="llama"):
    """A row for each verdict, of layers that are numbered."""
    return tuple(LayerRow(f"layers.{at}.attn", kind, verdict) for at, verdict in enumerate(verdicts))


def test_layers_that_are_the_same_and_follow_each_other_are_one_line():
    same, other = ["same"] * 5, ["differs", "same", "same", "same", "not known", "not called"]
    printed = str(AuditReport("Model", (*rows(*same, *other), LayerRow("end.0", "own", "same"))))
    for one in ("layers.0 ... 4.attn", "layers.5.attn", "DIFFERS", "layers.9.attn", "layers.10.attn", "end.0"):
        assert one in printed
    assert "5 layers, the worst" in printed
    assert not any(f"layers.{at}.attn " in printed for at in range(5))
    assert all(f"layers.{at}.attn " in printed for at in range(5, 11))  # three in a row are no run


def test_layers_of_two_kinds_are_two_lines():
    report = AuditReport("Model", (*rows(*["same"] * 4), *rows(*["same"] * 4, kind="bert")))
    assert str(report).count("layers.0 ... 3.attn") == 2
    uneven = AuditReport("Model", tuple(LayerRow(path, "own", "same") for path in ("a.0", "a.1", "b.c.0", "b.c.1")))
    assert "a.0 ... b.c.1" in str(uneven)
