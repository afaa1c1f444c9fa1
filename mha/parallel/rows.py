"""How the rows of a sequence lie on its devices: consecutive ones, or in zigzag, which balances causal order.

In causal order, later queries see more keys: with consecutive rows, the last device of many works twice the mean. In
zigzag, the rows make 2N pieces, and device r of N has pieces r and 2N-1-r: what the one saves, the other takes.

Source: the exchange is that of PyTorch's context parallelism and of Zhu's zigzag ring attention (2024).
"""

from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

from mha.call import Call
from mha.engine.reach import reach

Pieces = tuple[slice, ...]  # of the rows of the whole, in their order


def consecutive(counts: Sequence[int]) -> list[Pieces]:
    """The rows of each device that has so many of them, one device's after another's."""
    return [(slice(*ends),) for ends in pairwise(accumulate(counts, initial=0))]


def zigzag(total: int, devices: int) -> list[Pieces]:
    """The rows of each device in zigzag, pieces as equal in size as possible."""
    ends = [total * number // (2 * devices) for number in range(2 * devices + 1)]
    pieces = [slice(*both) for both in pairwise(ends)]
    return [(pieces[device], pieces[-1 - device]) for device in range(devices)]


def balances(call: Call, own: Container[str]) -> bool:
    """Whether zigzag is the default for the ring of a call: in causal order, unless something contradicts it.

    A window makes consecutive rows alike already; positions may have any order; and masks or biases with a row for each
    query, whose names are in `own`, would have to be sent.
    """
    return reach(call) == (None, 0) and not call.by_tokens() and not any(name in own for name in call.pairs())
