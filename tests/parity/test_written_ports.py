"""What `mha.parity` says of some hundred ports: no right one is blamed, wrong ones are noticed, and named if known."""

import pytest

import mha
from mha import parity
from mha.parity.diagnosis.mistakes.of_gradients import DROPOUT, GRADIENT_MISTAKES
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS
from mha.parity.diagnosis.search.numbers import NUMBERS
from mha.parity.diagnosis.wrong_setup.calls import SWAPPED

from .written_ports import PORTS, report_of
from .written_ports.gradients import Backward

RIGHT = [port for port in PORTS if not port.seen]
WRONG = [port for port in PORTS if port.seen]
FORMS = {mistake.name: len(mistake.forms) for mistake in parity.CATALOGUE}
OTHERS = *ROUNDINGS, *GRADIENT_MISTAKES, DROPOUT, *(number.mistake for number in NUMBERS)
KNOWN = {*FORMS} | {mistake.name for mistake in OTHERS} | {SWAPPED}


def is_class(written):
    """Whether a port is a class whose calls take every argument."""
    return isinstance(written.port, type) and not issubclass(written.port, Backward)


def cases(ports, long=()):
    """Parameters of a test, named, each on its backend."""
    return [
        pytest.param(
            port,
            id=f"{port.backend}: {port.id}",
            marks=[
                *[pytest.mark.backends(port.backend)] * (port.backend != "numpy"),
                *[pytest.mark.long("numpy")] * (port.id in long),
            ],
        )
        for port in ports
    ]


def test_there_are_many_of_each_kind():
    assert len({port.id for port in PORTS}) == len(PORTS) >= 60
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
