"""Each known mistake says what right code does instead, and a report says it where one explanation alone is sure."""

import dataclasses

import pytest

from mha.learn.grade.mistakes import OF_STUDENTS
from mha.parity import Diagnosis, Explanation
from mha.parity.diagnosis.mistakes.catalogue import CACHED_CATALOGUE, KERNEL_CATALOGUE
from mha.parity.diagnosis.mistakes.mistake import Mistake, forms_of
from mha.parity.diagnosis.mistakes.of_gradients import DROPOUT, GRADIENT_MISTAKES
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.mistakes.of_tiles import GRADIENTS_OF_TILES
from mha.parity.diagnosis.mistakes.of_weights import of_another_layer
from mha.parity.diagnosis.search.explanations import explain
from mha.parity.diagnosis.search.numbers import NUMBERS

FITTED = [number.mistake for number in NUMBERS]
EVERY = (*CACHED_CATALOGUE, *KERNEL_CATALOGUE, *GRADIENT_MISTAKES, DROPOUT, *GRADIENTS_OF_TILES, *ROUNDINGS, *FITTED,
         *of_another_layer({}), *OF_STUDENTS)  # fmt: skip
LONGEST = 95  # letters, so that `fix: ` and it are one line of a report


def test_every_mistake_has_a_fix_of_one_line():
    assert [one.name for one in EVERY if not one.fix] == []
    assert [one.fix for one in EVERY if len(one.fix) > LONGEST or "\n" in one.fix] == []


def test_a_fix_is_an_order_and_no_sentence():
    assert [one.fix for one in EVERY if one.fix[0].isupper() or one.fix.endswith(".")] == []


def test_a_fix_says_more_than_the_effect():
    assert [one.fix for one in EVERY if one.fix in (one.what, one.name)] == []


def explained(*names, sure=True):
    """An explanation by mistakes of these names, whose fixes are to mend them."""
    mistakes = [Mistake(name, f"{name} does", f"mend {name}", (), {"": lambda plan: plan}) for name in names]
    return explain(forms_of(mistakes), 0.5, 0.0, sure)


@pytest.mark.parametrize(
    ("explanations", "said"),
    [
        ([explained("A")], ["fix: mend A"]),
        ([explained("A", "B")], ["fix: mend A", "fix: mend B"]),
        ([explained("A"), explained("B", sure=False)], ["fix: mend A"]),
        ([explained("A"), explained("B")], []),
        ([explained("A", sure=False)], []),
        ([dataclasses.replace(explained("A"), fix=())], []),
        ([dataclasses.replace(explained("A", "B"), fix=("", "mend B"))], ["fix: mend B"]),
        ([], []),
    ],
)
def test_a_report_says_the_fix_of_what_alone_is_sure(explanations, said):
    text = str(Diagnosis(tuple(explanations), "", 1)).splitlines()
    assert [line for line in text if "fix" in line] == said
    assert not said or text[1 : 1 + len(said)] == said  # behind `why:`


def test_a_report_that_may_be_of_another_call_says_no_fix():
    assert "fix" not in str(Diagnosis((explained("A"),), "or the same, if", 1, {"causal": True}))


def test_an_explanation_may_have_no_fix():
    assert Explanation(("A",), ("",), ("B",), 0.5, 0.0, True).fix == ()
