"""The norms of heads, options of a layer, for every backend."""

import dataclasses
from typing import get_args

from mha.core.options import checks
from mha.core.options.names import NormName, OverName

NORMS: tuple[NormName, ...] = get_args(NormName)
OVER: tuple[OverName, ...] = get_args(OverName)
SHIFTS = "add a shift, which no layer of mha does"  # of norms that have a bias


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm of the heads of queries and keys, or of values, multiplied by a weight.

    Args:
        kind: "rms", which divides by the root of the mean square, or "layer", which takes out the mean first; it adds
            no shift.
        eps: number that is added to the mean square, or to the variance, before its root.
        over: "head" = over the width d of each head, with one weight (d,) for all of them; "all" = over all heads
            together, with a weight (H*d,), or (G*d,) for keys.
        after: whether queries and keys are normed after they are rotated; values do not turn.

    Raises TypeError or ValueError if a name is unknown, eps is not above 0, or after is no bool.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019); Ba et al., Layer Normalization (2016);
    Henry et al., Query-Key Normalization for Transformers (2020).
    """

    kind: NormName
    eps: float = 1e-6
    over: OverName = "head"
    after: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", checks.choice("kind of Norm", self.kind, NORMS))
        object.__setattr__(self, "eps", checks.positive("eps of Norm", self.eps))
        object.__setattr__(self, "over", checks.choice("over of Norm", self.over, OVER))
        object.__setattr__(self, "after", checks.flag("after of Norm", self.after))

    def size(self, num_heads: int, width: int) -> int:
        """The number of its weights, for so many heads of this width."""
        return num_heads * width if self.over == "all" else width


def norm(name: str, value: Norm | NormName | None) -> Norm | None:
    """The norm that an argument of this name says, of which a kind is the short form; raises as `Norm` does."""
    return value if value is None or isinstance(value, Norm) else Norm(checks.choice(name, value, NORMS))
