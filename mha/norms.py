"""The norm of heads, an option of a layer, for every backend."""

import dataclasses
from typing import get_args

from mha import checks
from mha.names import NormName

NORMS: tuple[NormName, ...] = get_args(NormName)


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm of queries and keys over the width of a head, multiplied by a weight.

    Args:
        kind: "rms", which divides by the root of the mean square, or "layer", which takes out the mean first; it adds
            no shift.
        eps: number that is added to the mean square, or to the variance, before its root.

    Raises TypeError or ValueError if the kind is unknown, or eps is not above 0.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019); Ba et al., Layer Normalization (2016);
    Henry et al., Query-Key Normalization for Transformers (2020).
    """

    kind: NormName
    eps: float = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", checks.choice("kind of Norm", self.kind, NORMS))
        object.__setattr__(self, "eps", checks.positive("eps of Norm", self.eps))


def norm(name: str, value: Norm | NormName | None) -> Norm | None:
    """The norm that an argument of this name says, of which a kind is the short form; raises as `Norm` does."""
    return value if value is None or isinstance(value, Norm) else Norm(checks.choice(name, value, NORMS))
