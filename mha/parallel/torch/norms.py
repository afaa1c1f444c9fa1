"""Norms over all heads, of a layer of PyTorch whose heads are split over ranks: all ranks take the means together.

Letters as in layer.py; H and G are the heads on this rank.
"""

from mha.parallel.parts import NORMS, over_all

from .ranks import share, sum_ranks
from .twins import class_of


def over(part, mesh, heads):
    """A layer of the heads on this rank, a slice, for one call, with the means of all ranks of a mesh.

    Its call has the masks and biases of all heads, since these decide which rows count in a mean.
    """
    for name in over_all(part.config):
        for one in NORMS[name]:
            norm = getattr(part, one)
            norm.__class__ = class_of(NormOverRanks, type(norm))
            norm.num_heads = part.config.num_heads if one == "q_norm" else part.config.num_key_value_heads
            norm.mesh = mesh
    part.__class__ = class_of(OverRanks, type(part))
    part.here = heads
    return part


class NormOverRanks:
    """A norm over the heads of all ranks; it comes before the norm's own class in the bases."""

    def mean(self, X):
        """The mean of each row over all ranks: (B, T, H*d) -> (B, T, 1); heads of keys have equally many copies."""
        return share(sum_ranks(super().mean(X), self.mesh), self.mesh) / self.mesh.size()  # (B, T, 1)


class OverRanks:
    """A layer with norms over all ranks; it comes before the layer's own class in the bases."""

    def zero_unused(self, queries, keys, values, call):
        """The inputs with zeros where no head of any rank uses them, and the call for the heads here."""
        *inputs, call = super().zero_unused(queries, keys, values, call)
        return *inputs, call.part(heads=self.here)
