"""The README's recipe of a port, which needs two frameworks, runs as it stands and proves what it says."""

from test_readme import BLOCKS


def test_a_port_is_proven(capsys):
    (recipe,) = (block for block in BLOCKS if "parity.ratio" in block)
    assert len([line for line in recipe.splitlines() if line]) <= 10
    exec(recipe, {})
    ratios = [float(line) for line in capsys.readouterr().out.split()]
    assert len(ratios) == 2
    assert all(0 <= ratio <= 1 for ratio in ratios)
