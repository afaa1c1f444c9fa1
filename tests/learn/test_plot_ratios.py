"""`mha.plot.ratios`: a bar for each layer, on a logarithmic axis with the bound at 1."""

import numpy as np
import pytest
import small_llama
from recorded.of_torch import recorded
from small_llama_mistakes import Interleaved

import mha
from mha import parity

pytestmark = [pytest.mark.backends("torch"), pytest.mark.all_backends]  # the one environment that has matplotlib


def bars(figure):
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    assert [line.get_xdata()[0] for line in panel.get_lines()] == [1]
    names = [label.get_text() for label in panel.get_yticklabels()]
    return dict(zip(names, [(bar.get_width(), bar.get_facecolor()) for bar in panel.patches], strict=True))


def test_an_audit(tmp_path):
    report = parity.audit(small_llama.Model(Interleaved), *small_llama.tokens())
    found = bars(mha.plot.ratios(report, path=tmp_path / "ratios.png"))
    assert list(found) == [row.path for row in report.layers]
    np.testing.assert_allclose([width for width, _ in found.values()], [row.ratio for row in report.layers])
    assert len({colour for _, colour in found.values()}) == 2
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_of_records():
    report = parity.compare_records(recorded(), recorded("eps"))
    found = bars(mha.plot.ratios(report))
    assert next(iter(found)) == "the model, input"
    assert found["the model, input"][0] == 1e-3  # for 0
    assert found["blocks.1.after, output"][0] == report.first.ratio > 1


def test_wrong_reports_are_refused():
    with pytest.raises(TypeError, match="report is a int, expected one of mha"):
        mha.plot.ratios(3)
    with parity.watch(small_llama.Model()) as report, pytest.raises(ValueError, match="report has no layers"):
        mha.plot.ratios(report)
    with pytest.raises(ValueError, match=r"expected a name that ends in .png or .svg"):
        mha.plot.ratios(report, path="ratios.jpg")
