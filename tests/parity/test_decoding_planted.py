"""Known mistakes of decoding in the lesson of each backend are noticed and named, and nothing is without them."""

import importlib

import adapters
import make_mistakes
import planted_in_decodes
import pytest

from mha.core import dispatch
from mha.parity.diagnosis.mistakes.of_decoding import OF_DECODING

LAST = list({planted.name: planted for planted in planted_in_decodes.PLANTED}.values())  # the last form of each


def test_every_form_of_every_mistake_is_planted():
    known = [(mistake.name, how) for mistake in OF_DECODING for how in mistake.forms]
    planted = [(planted.name, planted.how) for planted in planted_in_decodes.PLANTED]
    assert planted[: len(known)] == known  # and behind them some that any call may have


@pytest.mark.long(*adapters.COMPILED)
def test_a_lesson_is_itself_where_nothing_is_planted(backend):
    assert planted_in_decodes.unlike(backend) is None


@pytest.mark.long(*adapters.COMPILED)  # which compile each
@pytest.mark.parametrize("planted", LAST, ids=[planted.name for planted in LAST])
def test_a_mistake_is_noticed_and_named_first(backend, planted):
    answer = make_mistakes.asked(planted, backend)
    hidden = planted.name == "a crop leaves positions"  # by causal order
    assert answer.noticed == ("`cache.positions`" if hidden else "`output`")
    assert answer.output.split()[0] == ("the" if hidden else "1"), answer
    assert answer.whole.split()[0] == "1", answer


@pytest.mark.long("jax")
def test_the_lesson_is_as_before_when_a_call_has_ended(backend):
    lesson = dispatch.lesson(backend)
    chapters = [importlib.import_module(f"mha.backends.{backend}.{name}") for name in dispatch.CHAPTERS]
    owners = lesson, *chapters, lesson.MultiHeadAttention
    before = [dict(vars(owner)) for owner in owners]
    assert planted_in_decodes.unlike(backend, planted_in_decodes.ragged) is None
    for owner, names in zip(owners, before, strict=True):
        assert all(vars(owner)[name] is X for name, X in names.items() if callable(X))
