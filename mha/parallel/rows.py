"""How the rows of a sequence lie on its devices: consecutive ones, or in zigzag, which balances causal order.

In causal order, later queries see more keys: with consecutive rows, the last device of many works twice the mean. In
zigzag, the rows make 2N pieces, and device r of N has pieces r and 2N-1-r: what the one saves, the other takes.

Source: the exchange is that of PyTorch's context parallelism and of Zhu's zigzag ring attention (2024).
"""

from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

from mha.core.call import Call
from mha.core.engine.visible_range import reach
from mha.core.options import checks

Pieces = tuple[slice, ...]  # of the rows of the whole, in their order


def consecutive(counts: Sequence[int]) -> list[Pieces]:
    """The rows of each device that has so many of them, one device's after another's."""
    return [(slice(*ends),) for ends in pairwise(accumulate(counts, initial=0))]


def zigzag(total: int, devices: int) -> list[Pieces]:
    """The rows of each device in zigzag, pieces as equal in size as possible."""
    ends = [total * number // (2 * devices) for number in range(2 * devices + 1)]
    pieces = [slice(*both) for both in pairwise(ends)]
    return [(pieces[device], pieces[-1 - device]) for device in range(devices)]


def check_zigzag(zigzag: object, how: str | None) -> None:
    """Check that `zigzag` is a flag, and not True without a ring: other ways collect all keys or all rows anyway."""
    if zigzag is not None and checks.flag("zigzag", zigzag) and how != "ring":
        raise ValueError(f'zigzag is True beside how={how!r}, expected None: only a ring has it; write how="ring"')


def balances(call: Call, own: Container[str]) -> bool:
    """Whether zigzag is the default for the ring of a call: in causal order, unless something contradicts it.

    A window makes consecutive rows alike already; positions may have any order; and masks or biases with a row for each
    query, whose names are in `own`, would have to be sent.
    """
    return reach(call) == (None, 0) and not call.by_tokens() and not any(name in own for name in call.pairs())


def as_here(pieces: Pieces) -> list[tuple[slice, int]]:
    """Each piece of a device as a slice of the rows there, with the place of its first row in the whole sequence."""
    ends = accumulate((piece.stop - piece.start for piece in pieces), initial=0)
    return [(slice(*both), piece.start) for both, piece in zip(pairwise(ends), pieces, strict=True)]


def common(own: Pieces, theirs: Pieces) -> list[slice]:
    """Where the rows that another device has, too, lie among those of a device, in the order of the whole."""
    found = []
    for here, first in as_here(own):
        for piece in theirs:
            start, stop = max(first, piece.start), min(first + here.stop - here.start, piece.stop)
            if start < stop:
                found.append(slice(here.start + start - first, here.start + stop - first))
    return found
