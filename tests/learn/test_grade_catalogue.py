"""Every known mistake that a level can have is named: each is put into the pipeline, in the cases of the level."""

import functools
import re

import numpy as np
import pages
import pytest

from mha.learn.grade import judging, mistakes
from mha.learn.grade.cases import cases
from mha.learn.grade.process import Answer
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.diagnosis.mistakes.mistake import forms_of

# Blocks of other sizes are often the right ones in another order: other names for the same numbers.
ALIKE = {
    "rotary components are permuted in other blocks": (
        "rotary components of W_k are in another order",
        "rotary components of W_q and W_k are in another order",
        "rotary components are paired the other way",
    )
}
LEVELS = (1, 2, 4, 5, 6, 8)  # 3, 7 and 9 are judged in other ways, see `test_grade.py`


@functools.cache
def benches(level):
    """The cases of a level without dropout, the biases of each, and its pipeline."""
    found = []
    for case in cases(level, 0):
        if not case.options.get("dropout"):
            biased = [name for name in case.weights if name.endswith(".bias") and case.options.get("bias")]
            found.append((case, biased, Bench(case.problem(biased, False), "float32")))
    return found


@np.errstate(all="ignore")
def wrong(level, form):
    """The cases of a level that a form of a mistake changes, judged."""
    step, found = "weights" if level == 1 else "output", []
    for case, biased, bench in benches(level):
        X = bench.steps((form,), step) if bench.possible([form]) else None
        if X is not None:
            X = X.reshape(-1, *X.shape[2:]) if level == 1 else X
            answer = Answer({step: X.astype(np.float32)}, {"biased": biased, "takes_bias": True})
            found.append(judging.judge(case, answer, False))
    return [one for one in found if not one.right]


@functools.cache
def named(level):
    """The forms of mistakes that change a level, and whether each is named: (mistake, form): bool."""
    found = {}
    for form in forms_of(mistakes.of_level(level)):
        if differing := wrong(level, form):
            made = [one.mistakes for one in judging.why(differing, level)]
            names = form.mistake.name, *ALIKE.get(form.mistake.name, ())
            found[form.mistake.name, form.how] = any((name,) in made for name in names)
    return found


@pytest.mark.parametrize(
    "level", [pytest.param(level, marks=() if level in (1, 4) else pytest.mark.long("numpy")) for level in LEVELS]
)
def test_each_mistake_is_named(level):
    assert [form for form, known in named(level).items() if not known] == []


@pytest.mark.long("numpy")
def test_the_page_counts_the_mistakes_of_each_level():
    page = pages.text("docs/teaching.md")
    counts = re.findall(r"level (\d) (?:can have )?(\d+)", " ".join(page.split()), re.IGNORECASE)
    assert [(int(level), int(count)) for level, count in counts] == [
        (level, len({name for name, _ in named(level)})) for level in LEVELS
    ]
    assert f"and {len(mistakes.OF_STUDENTS)} that only students make" in page
