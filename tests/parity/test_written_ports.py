"""What `mha.parity` says of some hundred ports: no right one is blamed, wrong ones are noticed, and named if known."""

import numpy as np
import pytest
from ports import Port

import mha
from mha import parity
from mha.parity.diagnosis.blind_spots.sight import BARELY
from mha.parity.diagnosis.mistakes.of_gradients import DROPOUT, GRADIENT_MISTAKES
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.search.numbers import NUMBERS
from mha.parity.diagnosis.wrong_setup.calls import SWAPPED

from .written_ports import PORTS, made, report_of
from .written_ports.gradients import Backward

RIGHT = [port for port in PORTS if not port.seen]
WRONG = [port for port in PORTS if port.seen]
FORMS = {mistake.name: len(mistake.forms) for mistake in parity.CATALOGUE}
OTHERS = *ROUNDINGS, *GRADIENT_MISTAKES, DROPOUT, *(number.mistake for number in NUMBERS)
KNOWN = {*FORMS} | {mistake.name for mistake in OTHERS} | {SWAPPED}
# Green ones of which the list of what was unseen is looked at; others take as long and say nearly the same.
LOOKED_AT = {
    "einsum, heads behind tokens", "kernels (out, in), a mask of minus infinity", "head by head, outputs added",
    "groups without a copy", "float64 throughout",
}  # fmt: skip


def is_class(written):
    """Whether a port is a class whose calls take every argument."""
    return isinstance(written.port, type) and not issubclass(written.port, Backward)


def cases(ports, long=()):
    """Parameters of a test, named, each on its backend."""
    return [
        pytest.param(
            port, id=f"{port.backend}: {port.id}",
            marks=[*[pytest.mark.backends(port.backend)] * (port.backend != "numpy"),
                   *[pytest.mark.long("numpy")] * (port.id in long)],
        )
        for port in ports
    ]  # fmt: skip


def test_there_are_many_of_each_kind():
    assert len({port.id for port in PORTS}) == len(PORTS) >= 90
    assert len(RIGHT) >= 25
    assert {port.mistake for port in WRONG} - {""} <= KNOWN
    assert len([port for port in WRONG if not (port.mistake or port.described)]) >= 15


@pytest.mark.parametrize("written", cases(RIGHT))
def test_a_right_port_is_not_blamed(written):
    report = report_of(written)
    assert report, report


@pytest.mark.parametrize("written", cases([port for port in RIGHT if is_class(port) and port.dtype == "float32"]))
def test_a_right_port_passes_the_suite(written):
    def port(attention, queries, keys, values, valid_lens=None, mask=None, causal=False, offset=0):
        return written.port(attention)(queries, keys, values, valid_lens, mask, causal, offset)

    assert mha.testing.assert_parity(port, "numpy", attention=written.layer, dtypes="float32", empty_rows=False)


@pytest.mark.parametrize("written", cases(WRONG, {port.id for at, port in enumerate(WRONG) if at % 4}))
def test_a_wrong_port_is_noticed_and_named(written):
    """From the output alone, if it shows there; a mistake that no catalogue has gets no name.

    If another call explains it, that is said, and a mistake only beside it.
    """
    report = report_of(written, whole=written.seen != "output")
    assert not report
    assert report.first.name.startswith({"output": "output", "gradients": "gradient."}[written.seen])
    assert {*report.diagnosis.call} == {*written.described}
    if not written.mistake:
        assert report.diagnosis.mistakes == ()
    elif written.described:
        assert written.mistake in " ".join(str(report.diagnosis).split())
    else:
        assert any({written.mistake, written.second} - {""} <= {*names} for names in report.diagnosis.alternatives)


def applies(wrong, green):
    """Whether a mistake can be made in the layer and the call of another port."""
    options = {name: X for name, X in wrong.layer.items() if name not in ("num_hiddens", "num_heads", "bias")}
    alike = all(green.layer.get(name) == X for name, X in options.items())
    return alike and all(green.call.get(name) is X for name, X in wrong.call.items())


@pytest.mark.parametrize(
    "written",
    cases([port for port in RIGHT if port.backend == "numpy"], {port.id for port in RIGHT} - LOOKED_AT),
)  # fmt: skip
def test_what_a_green_port_leaves_unseen_passes_and_no_other_does(written):
    report = report_of(written, whole=False)
    unseen = {one.mistake for one in report.unseen}
    layer, inputs, call = made(written)
    known = [port for port in WRONG if is_class(port) and port.mistake in FORMS and not port.second and not port.really]
    tried = [port for port in known if applies(port, written)]
    assert tried
    for wrong in tried:
        with np.errstate(all="ignore"):
            output, right = (Y(layer)(*inputs, **call)[0].astype(inputs[0].dtype) for Y in (wrong.port, Port))
        if np.array_equal(output, right):  # as a wrong order of groups in a layer without any
            continue
        ratio = parity.compare(layer, output, *inputs, **call).ratio
        if ratio < BARELY:
            assert wrong.mistake in unseen, (wrong.id, ratio)
        elif ratio > 1 and FORMS.get(wrong.mistake) == 1:
            assert wrong.mistake not in unseen, (wrong.id, ratio)
