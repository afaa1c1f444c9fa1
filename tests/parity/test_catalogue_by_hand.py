"""Each form of each known mistake gives what the same mistake gives that is made by other means, see `twins`."""

import numpy as np
import planted
import pytest

from mha.parity.diagnosis.mistakes.catalogue import CATALOGUE, FORMS
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.pipeline.parts import all_steps
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem

from . import twins, twins_of_two

EXACT = ROUNDINGS[-2:]  # those that an exact formula gives, but for a number that lies between two steps
SILENT = {("the rotation is off by one", "both, from position 1 on")}  # it changes no distance


def given(case, *changes):
    """What the right layer gives in a case, and what one with these changes gives."""
    layer, inputs, arguments = case.made()
    plan = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), "float64")
    with np.errstate(all="ignore"):
        for change in changes:
            plan = change(plan)
        return layer(*inputs, **arguments), all_steps(plan, ["output"])["output"]


def of_twin(case, twin):
    """What the twin gives in a case."""
    with np.errstate(all="ignore"):
        return twin(*case.made())


def alike(X, Y, far=1e-10):
    return np.allclose(X, Y, rtol=0, atol=far, equal_nan=True)


def test_every_form_has_a_twin():
    exact = {(mistake.name, how) for mistake in EXACT for how in mistake.forms}
    assert twins.TWINS.keys() == {(form.mistake.name, form.how) for form in FORMS} | exact


@pytest.mark.parametrize("mistake", [*CATALOGUE, *EXACT], ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_every_form_gives_what_its_twin_gives(mistake):
    for how, change in mistake.forms.items():
        case, twin = twins.TWINS[mistake.name, how]
        right, found = given(case, change)
        assert alike(found, of_twin(case, twin)), how
        assert alike(found, right, 1e-7) == ((mistake.name, how) in SILENT), how


@pytest.mark.parametrize("names", twins_of_two.PAIRS, ids=" and ".join)
def test_a_change_begins_with_what_another_has_made(names):
    case, twin = twins_of_two.PAIRS[names]
    first, second = (next(iter(one.forms.values())) for name in names for one in CATALOGUE if one.name == name)
    found = given(case, first, second)[1]
    assert alike(found, of_twin(case, twin))
    assert not any(alike(found, given(case, *some)[1], 1e-7) for some in ([first], [second], []))
