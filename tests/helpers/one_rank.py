"""What `mha bench --devices` measures, with ways of NumPy that a test makes, on one rank."""

import types

from mha.bench import cases, ranks

OF_RANKS = "mha.bench.frameworks.ranks.numpy"  # what `of_ranks` stands for in `sys.modules`


def of_ranks():
    """What stands for the module of a framework's ranks, with `makers` of ways."""
    makers = {}

    class Group:
        def __init__(self, **ranks):
            assert ranks == {"rank": 0}

        def together(self, value):
            return [value]

        def ways(self, shape, kind):
            assert (shape, kind) == (cases.SHAPES["S"], "training")
            return makers

    module = types.ModuleType("bench")
    module.Group, module.makers = Group, makers
    return module


def measured(memory=False):
    return ranks.measure("numpy", "training", "S", 0, memory, {"rank": 0})
