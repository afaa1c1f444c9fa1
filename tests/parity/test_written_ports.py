"""What `mha.parity` says of ports: no right one is blamed, wrong ones are noticed, and named if known."""

import pytest

import mha

from .written_ports import PORTS, report_of

RIGHT = [port for port in PORTS if not port.wrong]
WRONG = [port for port in PORTS if port.wrong]


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


@pytest.mark.parametrize("written", cases(RIGHT))
def test_a_right_port_is_not_blamed(written):
    report = report_of(written)
    assert report, report


@pytest.mark.parametrize(
    "written", cases([port for port in RIGHT if isinstance(port.port, type) and port.dtype == "float32"])
)
def test_a_right_port_passes_the_suite(written):
    def port(attention, queries, keys, values, valid_lens=None, mask=None, causal=False, offset=0):
        return written.port(attention)(queries, keys, values, valid_lens, mask, causal, offset)

    assert mha.testing.assert_parity(port, "numpy", attention=written.layer, dtypes="float32", empty_rows=False)


@pytest.mark.parametrize("written", cases(WRONG, {port.id for at, port in enumerate(WRONG) if at % 4}))
def test_a_wrong_port_is_noticed_and_named(written):
    """From the output alone; a mistake that no catalogue has gets no name.

    If another call explains it, that is said, and a mistake only beside it.
    """
    report = report_of(written, whole=False)
    assert not report
    assert report.first.name == "output"
    assert {*report.diagnosis.call} == {*written.described}
    if not written.mistake:
        assert report.diagnosis.mistakes == ()
    elif written.described:
        assert written.mistake in " ".join(str(report.diagnosis).split())
    else:
        assert (written.mistake,) in report.diagnosis.alternatives
