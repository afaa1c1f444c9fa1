"""docs/mistakes.md: known mistakes in the lesson of each backend are noticed and named, and nothing is without them."""

import dataclasses
import importlib

import adapters
import make_mistakes
import numpy as np
import pages
import planted
import planted_in_decodes
import planted_in_lessons
import pytest

from mha.core import dispatch
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem

# One for each place in which mistakes are planted, with the step that is the first to be off.
KINDS = [
    ("W_q.kernel is not transposed", "", "W_q"),
    ("Q and K are swapped", "inputs", "W_q"),
    ("the scale lacks its root", "", "scores"),
    ("another number of heads", "1 heads", "scores"),
    ("rotary components are paired the other way", "", "rotate_q"),
    ("the norm comes after the rotation", "", "norm_q"),
    ("lengths are tiled, not repeated", "", "scores"),
    ("gates of other heads", "reversed", "head_gated"),
    ("the output gate comes after W_o", "", "gated"),
    ("the heads are interleaved", "by the split and the merge", "split_q"),
    ("heads of keys are tiled, not repeated", "", "scores"),
    ("the cap comes after the bias", "", "capped"),
    ("the softmax is over another axis", "over heads", "weights"),
    ("NaN in padding comes through", "", "pooled"),
    ("bfloat16 arithmetic", "in matrix products", "W_q"),
]


@pytest.fixture(scope="module")
def rows():
    """The rows of the page by mistake and form."""
    return {(row.name, row.how): row for row in make_mistakes.rows()}


def test_a_lesson_is_itself_where_nothing_is_planted(backend):
    assert make_mistakes.unlike(backend, planted.CALLS[5:8]) is None


@pytest.mark.long("torch", *adapters.SLOW)  # some compile each
def test_a_mistake_in_each_place_is_noticed_and_named_first(backend, rows):
    for name, how, step in KINDS:
        answer = make_mistakes.asked(rows[name, how], backend)
        sure = name != "NaN in padding comes through"  # of NaN alone, nothing is sure
        assert answer.noticed == f"`{step}`", name
        assert answer.output.removeprefix("" if sure else "perhaps ").split()[0] == "1", (name, answer)
        assert answer.whole.split()[0] == "1", (name, answer)


def test_the_lesson_is_as_before_when_a_call_has_ended(backend):
    lesson = dispatch.lesson(backend)
    chapters = [importlib.import_module(f"mha.backends.{backend}.{name}") for name in dispatch.CHAPTERS]
    owners = lesson, *chapters, lesson.AttentionPooling, lesson.MultiHeadAttention
    before = [dict(vars(owner)) for owner in owners]
    make_mistakes.unlike(backend, planted.CALLS[:1])
    for owner, names in zip(owners, before, strict=True):
        assert all(vars(owner)[name] is X for name, X in names.items() if callable(X))


def parts(rows):
    """The two parts of the page, each with what is planted there."""
    page = pages.text("docs/mistakes.md")
    assert page.startswith(make_mistakes.HEAD), "python docs/make_mistakes.py"
    assert page.count(make_mistakes.DECODING) == 1, "python docs/make_mistakes.py"
    planted_there = list(rows.values()), planted_in_decodes.PLANTED
    return zip(page.removeprefix(make_mistakes.HEAD).split(make_mistakes.DECODING), planted_there, strict=True)


def tables(text):
    """The cells of a part's two tables, without their titles: of backends, and by the mistake."""
    counts, shown = ([line[2:-2].split(" | ") for line in table.splitlines()[2:]] for table in text.split("\n\n"))
    return counts, {name: cells for name, *cells in shown}


def test_the_page_counts_every_form_of_every_mistake(rows):
    kept = 8  # forms that change what is kept, and no output
    moved = 1  # moves all positions alike, in front of norms
    for (text, planted_there), (output, whole) in zip(parts(rows), [(moved, moved), (kept, 0)], strict=True):
        ((backends, *numbers),), _ = tables(text)
        assert backends == ", ".join(dispatch.FRAMEWORKS)
        number = len(planted_there)
        assert [*map(int, numbers)] == [number, number, number - output, number - whole], "python docs/make_mistakes.py"


def test_what_no_lesson_has_a_place_for_is_refused():
    layer, inputs, arguments = planted.CALLS[0].made()
    right = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), "float32")
    with pytest.raises(NotImplementedError, match="no lesson has a place for rounded"):
        planted_in_lessons.changed(right, dataclasses.replace(right, rounded=np.round))


def test_a_cell_says_once_what_is_the_same():
    texts = {(form, backend): "1" for form in ("a", "b") for backend in ("numpy", "jax")}
    assert make_mistakes.cell(texts) == "1"
    assert make_mistakes.cell(texts | {("b", "jax"): "2"}) == "1; 2 (b on jax)"
    assert make_mistakes.cell(texts | {("b", "jax"): "2", ("b", "numpy"): "2"}) == "1; 2 (b)"
