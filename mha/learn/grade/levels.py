"""The levels of an assignment, as data, in the order of a course."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Level:
    """One level of an assignment.

    Attributes:
        names: functions or classes of a submission for it; one is enough unless `every`.
        points: for passing it.
    """

    number: int
    title: str
    names: tuple[str, ...]
    points: int = 10
    every: bool = False

    @property
    def replaced(self) -> tuple[str, ...]:
        """The names that our own functions stand in for in later levels, if it fails."""
        return () if self.names == LAYER else self.names


LAYER = ("MultiHeadAttention", "multi_head_attention")
LEVELS = (
    Level(1, "masked softmax", ("masked_softmax",)),
    Level(2, "dot-product attention", ("DotProductAttention", "dot_product_attention")),
    Level(3, "heads, split and merged", ("transpose_qkv", "transpose_output"), every=True),
    Level(4, "one head", LAYER),
    Level(5, "many heads", LAYER),
    Level(6, "lengths and masks", LAYER),
    Level(7, "gradients", LAYER),
    Level(8, "grouped heads and rotation", LAYER),
    Level(9, "cache", LAYER),
)
NAMES = tuple(dict.fromkeys(name for level in LEVELS for name in level.names))


def parse_levels(text: str | None) -> tuple[Level, ...]:
    """Read levels from a text as 1-6 or 1,2,5; None = all. Raises ValueError if it is anything else."""
    if text is None:
        return LEVELS
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdigit() or (dash and not last.strip().isdigit()):
            raise ValueError(f"--levels is {text}, expected numbers as 1-6 or 1,2,5")
        numbers |= set(range(int(first), int(last if dash else first) + 1))
    found = tuple(level for level in LEVELS if level.number in numbers)
    if not found or len(found) < len(numbers):
        raise ValueError(f"--levels is {text}, expected numbers from 1 to {LEVELS[-1].number}, such as 1-6")
    return found
