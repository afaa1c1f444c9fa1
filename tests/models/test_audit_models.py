"""`parity.audit` of models of each framework: a mistake in one layer is named, and the model stays as it was."""

import audited
import numpy as np
import pytest

from mha import parity
from mha.core import dispatch

KINDS = {f"{name}.{kind}": one["BACKEND"] for name, one in audited.SAID.items() for kind in one["KINDS"]}
OF_ALL = [pytest.param(kind, marks=pytest.mark.backends(backend)) for kind, backend in KINDS.items()]
# What a reason may say: a mask that is forgotten hides the order, or what lengths hide.
WORDS = {
    "mask": ("order is ignored", "everything is seen"),
    "scale": ("no scale",),
    "heads": ("heads are interleaved",),
}
PLANTED = [
    pytest.param(kind, mistake, marks=pytest.mark.backends(backend))
    for kind, backend in KINDS.items()
    for mistake in WORDS
    if mistake == "mask" or kind.endswith(".taught")
]
LIKE = [
    pytest.param(f"{name}.{one['LIKE']}", marks=pytest.mark.backends(one["BACKEND"]))
    for name, one in audited.SAID.items()
    if one["LIKE"]
]


@pytest.fixture
def made(backend):
    """A function that makes a model, as `audited.make` does."""
    with dispatch.load(backend).context("float32"):
        yield audited.make


def audit_of(one, **options):
    """Audit a model as its users call it."""
    return parity.audit(one.model, *one.args, **{"layers": one.layers} | options, **one.kwargs)


def same(before, after):
    """Whether what an audit has to leave is as it was: functions, settings and hooks, and arrays."""
    assert before[:-1] == after[:-1]
    for X, Y in zip(before[-1], after[-1], strict=True):
        np.testing.assert_array_equal(np.asarray(X), np.asarray(Y))


@pytest.mark.parametrize("kind", OF_ALL)
def test_right_layers_are_the_same_and_the_model_as_it_was(made, kind):
    one = made(kind)
    before = one.state(one.model)
    report = audit_of(one)
    assert [(row.path, row.verdict) for row in report.layers] == [(path, "same") for path in one.paths], report
    assert report
    assert report.mended is None
    assert not report.weighed
    same(before, one.state(one.model))


@pytest.mark.parametrize(("kind", "mistake"), PLANTED)
def test_a_mistake_in_one_layer_is_named_and_no_other_layer_blamed(made, kind, mistake):
    one = made(kind, mistake)
    before = one.state(one.model)
    report = audit_of(one)
    wrong = one.paths if kind == "linen.scanned" else one.paths[-1:]  # one class computes all layers of a stack
    assert [row.path for row in report.wrong] == wrong, report
    assert not report.unknown
    assert not report
    found = [str(reason) for reason in report.first.report.diagnosis.explanations]
    assert any(word in reason for reason in found for word in WORDS[mistake]), found
    assert report.mended.paths == tuple(wrong)
    assert report.mended.moved
    assert report.mended.wrong == ()
    same(before, one.state(one.model))


@pytest.mark.parametrize("kind", LIKE)
def test_a_transposed_kernel_is_named_by_another_model(made, kind):
    one, right = made(kind, "kernel"), made(kind).model
    report = audit_of(one, like=right)
    assert [row.verdict for row in report.layers] == ["same", "differs"], report
    assert report.first.path == one.paths[-1]
    assert report.weighed
    found = [str(reason) for reason in report.first.report.diagnosis.explanations]
    assert any("transposed" in reason for reason in found), found
    assert audit_of(made(kind), like=right)


@pytest.mark.parametrize("kind", [one for one in OF_ALL if ".taught" in one.values[0]])
def test_a_model_that_raises_is_as_it_was(made, kind):
    one = made(kind)
    before = one.state(one.model)
    narrow = [X[..., 1:] if at == one.at else X for at, X in enumerate(one.args)]
    with pytest.raises((RuntimeError, ValueError, TypeError, Exception)):
        parity.audit(one.model, *narrow, layers=one.layers, **one.kwargs)
    same(before, one.state(one.model))
    assert audit_of(one)


@pytest.mark.parametrize("kind", [one for one in OF_ALL if ".taught" in one.values[0]])
def test_attention_that_nobody_knows_is_told(made, kind):
    one = made(kind)
    with pytest.raises(ValueError, match=r"no attention layer of the model is known.*it pools outside"):
        audit_of(one, layers=None)
    first = {path: lesson for pattern, lesson in one.layers.items() for path in one.paths[:1]}
    report = audit_of(one, layers=first)
    assert [(row.path, row.verdict) for row in report.layers] == [(one.paths[0], "same"), (one.paths[1], "not known")]
    assert not report
    assert audit_of(one, layers=first | {one.paths[1]: None})
