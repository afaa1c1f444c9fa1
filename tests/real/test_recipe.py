"""Code in the README and in docs/ that needs certain frameworks runs as it stands and proves what it says."""

import numpy as np
import pages
import pytest

import mha
from mha import parity

_, PORT, _, MASKS = pages.code("README.md")


def test_a_port_is_proven(capsys):
    assert len([line for line in PORT.splitlines() if line]) <= 10
    exec(PORT, {})
    ratios = [float(line) for line in capsys.readouterr().out.split()]
    assert len(ratios) == 2
    assert all(0 <= ratio <= 1 for ratio in ratios)


def test_a_mask_means_the_opposite(capsys):
    names = {}
    exec(MASKS, names)
    ours, theirs = (text.split("]]")[0] for text in capsys.readouterr().out.split("tensor(")[1:])
    assert "nan" not in ours
    assert "nan" in theirs
    X, mask = names["X"], names["mask"]
    _, weights = names["attention"](X, X, X, mask=mask, return_weights=True)
    expected, found = names["theirs"](X, X, X, attn_mask=~mask)  # the mask turned round: the same
    np.testing.assert_array_equal(found[0].detach() > 0, weights[0, 0].detach() > 0)
    assert parity.ratio(names["attention"], expected.detach(), X, X, X, mask=mask) <= 1


def test_the_books_code():
    block, _ = pages.code("docs/book.md")
    exec(block, {})


def test_layers_in_and_out():
    block, *_ = pages.code("docs/one-layer.md")
    names = {}
    exec(block, names)
    taken, given = names["theirs"].state_dict(), names["back"].state_dict()
    assert all((given[name] == X).all() for name, X in taken.items())


def test_bert_in_ones_own_tests(capsys):
    (block,) = (one for one in pages.code("docs/one-layer.md") if "BertConfig" in one)
    names = {}
    exec(block, names)
    compared, *left_out = capsys.readouterr().out.splitlines()
    assert compared.startswith("11 cases the same, the largest ratio 0.")
    assert "left out, it takes no score_bias: float32, score bias" in left_out

    names["theirs"].self.scaling = 1.0
    with pytest.raises(AssertionError, match="why: no scale: dot products are not scaled"):
        mha.testing.assert_parity(names["bert"], "torch", attention=names["attention"], empty_rows=False)
