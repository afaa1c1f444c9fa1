"""What is measured: shapes and kinds, their inputs, and the arithmetic that no implementation can avoid."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a self-attention: B samples of T positions, D hidden units, H heads; which keys may be seen."""

    name: str
    B: int
    T: int
    D: int
    H: int
    ragged: bool = False
    causal: bool = False

    def lengths(self) -> np.ndarray | None:
        """How many keys each sample has, (B,): 3/4 of T, any from 1 to T if ragged; None in the causal order."""
        if self.causal:
            return None
        if self.ragged:
            return np.random.default_rng(0).integers(1, self.T, self.B, "int32", endpoint=True)
        return np.full(self.B, self.T * 3 // 4, "int32")

    def inputs(self) -> np.ndarray:
        """The queries, keys and values in one, (B, T, D)."""
        return np.random.default_rng(1).standard_normal((self.B, self.T, self.D), "float32")

    def cotangent(self) -> np.ndarray:
        """What a loss sends back into the output, (B, T, D)."""
        return np.random.default_rng(2).standard_normal((self.B, self.T, self.D), "float32")

    def multiply_adds(self) -> int:
        """Multiply-adds of the forward pass that only matter: four projections, two products, keys that are seen."""
        lengths = self.lengths()
        keys = self.B * self.T if lengths is None else int(lengths.sum())
        pairs = self.B * self.T * (self.T + 1) // 2 if self.causal else self.T * keys
        projections = 2 * (self.B * self.T + keys) * self.D**2  # W_q and W_o of every query, W_k and W_v of every key
        return projections + 2 * pairs * self.D

    def floor(self, kind: str, rate: float) -> float:
        """Milliseconds that these take at a matrix product's rate in GFLOP/s; gradients cost twice the forward pass."""
        return (3 if kind == "training" else 1) * 2 * self.multiply_adds() / rate / 1e6


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("S", 2, 8, 100, 5),
        Shape("M", 8, 128, 512, 8),
        Shape("L", 1, 1024, 768, 12),
        Shape("XL", 1, 4096, 512, 8),
        Shape("R", 16, 512, 512, 8, ragged=True),
        Shape("C", 1, 4096, 512, 8, causal=True),
    )
}
SWEEP = {f"T{T}": Shape(f"T{T}", 1, T, 512, 8) for T in (128, 256, 512, 1024, 2048, 4096, 8192)}
KINDS = ("inference", "training")


def find(name: str) -> Shape:
    """The shape of a name, of those of the tables or of the sweep."""
    return (SHAPES | SWEEP)[name]
