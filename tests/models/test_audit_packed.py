"""An audit of a model whose rows hold several texts, as positions that begin again say: apart, or together and said.

Letters: B samples, T tokens.
"""

import numpy as np
import pytest
import torch
from small_llama import LAYERS, Attention, Model

from mha import parity
from mha.models.audit.calls.layer_call import count_texts, reasons_together
from mha.models.audit.calls.model_calls import History, ModelCall
from mha.models.audit.layers.reference import Reference
from mha.weights.models import CallConvention

pytestmark = pytest.mark.backends("torch")
PLACES = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]])
NUMBERS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]])  # of the texts
B, T = 2, PLACES.shape[1]
SAME = {f"layers.{at}.self_attn": "same" for at in range(LAYERS)}


class Turned(Attention):
    """Attention whose tokens are at given positions."""

    def angles(self, places):
        return super().angles(PLACES[0].float())


class Sharp(Turned):
    """The same with another scale."""

    def scores(self, q, k):
        return 2 * super().scores(q, k)


class Packed(Model):
    """A model of several texts in a row, which keeps them apart, or not."""

    def __init__(self, apart, mistaken=Turned, use_cache=True):
        super().__init__(mistaken, use_cache=use_cache)
        self.apart = apart
        for layer in (self.layers[0], self.layers[2]):
            layer.self_attn.__class__ = Turned

    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=None):
        seen = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
        if attention_mask is not None and attention_mask.ndim == 4:
            seen = attention_mask
        elif self.apart:
            seen = seen & (NUMBERS[:, None, :, None] == NUMBERS[:, None, None])
        x = self.embed(input_ids)
        for layer in self.layers:
            x, _ = layer(x, seen.expand(B, 1, T, T), None)
        return {"logits": x}


class OfLibrary(Packed):
    """The same, as transformers would have it."""

    def save_pretrained(self, place):
        """By which models of that library are known."""


def audited(model, **options):
    ids = torch.randint(0, 37, (B, T), generator=torch.Generator().manual_seed(1))
    report = parity.audit(model.eval(), ids, position_ids=PLACES, **options)
    return {row.path: row.verdict for row in report.layers}, report.notes, report


ONES = torch.ones(B, T, dtype=torch.long)
PAIRS = torch.ones(T, T, dtype=torch.bool).tril()[None, None].expand(B, 1, T, T)


@pytest.mark.parametrize(
    ("kind", "apart", "options", "said"),
    [
        (OfLibrary, False, {}, ["3 texts in a row see each other", "has it with use_cache;", "use_cache=False"]),
        (OfLibrary, False, {"use_cache": False, "attention_mask": ONES}, ["3 texts", "attention_mask=None"]),
        (OfLibrary, False, {"attention_mask": ONES}, ["use_cache=False and attention_mask=None"]),
        (OfLibrary, False, {"use_cache": False}, ["3 texts in a row", "does not keep them apart"]),
        (OfLibrary, True, {"use_cache": False}, []),
        (OfLibrary, True, {}, []),
        (Packed, False, {}, ["3 texts in a row see each other"]),
        (Packed, True, {}, []),
        (Packed, True, {"use_cache": False}, []),
        (OfLibrary, False, {"attention_mask": PAIRS}, []),  # which decides alone
    ],
)
def test_texts_are_apart_or_together_and_together_is_said(kind, apart, options, said):
    found, notes, _ = audited(kind(apart), **options)
    assert found == SAME
    assert len(notes) == bool(said)
    for words in said:
        assert words in notes[0], notes


def test_texts_that_should_be_apart_by_the_call_are_a_leak():
    found, notes, _ = audited(Packed(False), use_cache=False)
    assert set(found.values()) == {"differs"}
    assert notes == ()


@pytest.mark.parametrize("apart", [True, False])
def test_another_mistake_is_seen_either_way(apart):
    found, _, report = audited(OfLibrary(apart, Sharp), use_cache=not apart)
    assert found == SAME | {"layers.1.self_attn": "differs"}
    assert "scale" in str(report)


DECODER, ENCODER = (
    CallConvention(True, "attention_mask", "attention_mask"),
    CallConvention(False, "attention_mask", "attention_mask"),
)


def call(**arguments):
    return ModelCall(1, {name: np.asarray(X) for name, X in arguments.items()}, History())


@pytest.mark.parametrize(
    ("places", "mask", "count"),
    [
        ([[0, 1, 2, 3, 4]], None, 1),
        ([[7, 8, 9, 10, 11]], None, 1),
        ([[0, 1, 0, 0, 1]], None, 3),
        ([[0, 1, 2, 3, 4], [2, 3, 2, 3, 4]], None, 2),
        ([[1, 1, 0, 1, 2]], [[0, 0, 1, 1, 1]], 1),  # padding on the left, as transformers places it
        ([[0, 1, 0, 1, 1]], [[1, 1, 1, 1, 0]], 2),
        ([[0, 2, 4, 6, 8]], None, 1),
    ],
)
def test_texts_in_a_row_are_counted(places, mask, count):
    given = {"position_ids": places} | ({} if mask is None else {"attention_mask": mask})
    B = len(places)
    for attends in (DECODER, ENCODER):
        assert count_texts(call(**given), attends, (B, 5, 5)) == count
    assert count_texts(call(**given), CallConvention(False, "", "attention_mask", cross=True), (B, 5, 5)) == 1


def test_the_arguments_by_which_transformers_lets_texts_together_are_named():
    cached, not_cached = Reference({}, {"use_cache": True}, "a model"), Reference({}, {}, "a model")
    assert reasons_together(call(), DECODER, cached) == ["use_cache"]
    assert reasons_together(call(), DECODER, not_cached) == []
    assert reasons_together(ModelCall(1, {"use_cache": False}, History()), DECODER, cached) == []
    assert reasons_together(ModelCall(1, {}, History(3)), DECODER, not_cached) == ["use_cache"]
    assert reasons_together(call(attention_mask=np.ones((1, 5))), DECODER, cached) == ["use_cache", "attention_mask"]
