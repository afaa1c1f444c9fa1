"""Shapes and kinds of the measurements, their inputs, and the arithmetic that no implementation can avoid."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from mha.core.options.names import BackendName
from mha.layer import MultiHeadAttention


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a self-attention, and the keys that a query sees: B samples of T positions, D hidden units, H heads.

    Attributes:
        keys: of a sample, where positions hide none: "equal" = 3/4 of T, "ragged" = any number, "all" = no lengths.
        G: heads of keys and values, None = H.
        window: (left, right), as of the layer, None = all keys.
        segments: number of segments of equal length, packed in each sample, None = no segments.
        decodes: whether it is one token that comes after T others, which are in a cache.
    """

    name: str
    B: int
    T: int
    D: int
    H: int
    keys: Literal["equal", "ragged", "all"] = "equal"
    causal: bool = False
    G: int | None = None
    window: tuple[int | None, int | None] | None = None
    segments: int | None = None
    decodes: bool = False

    def layer(self, backend: BackendName) -> MultiHeadAttention:
        """A layer of these sizes, always with the same weights."""
        options: Any = {"num_key_value_heads": self.G, "window": self.window}
        return MultiHeadAttention(self.D, self.H, **options, seed=0, backend=backend)

    def simpler(self) -> dict[str, "Shape"]:
        """This shape without shared heads of keys, window or segments, one at a time, by a name that says so."""
        names = {f"{self.H} key-value heads": "G", "no window": "window", "no segments": "segments"}
        without: dict[str, Any] = {name: {option: None} for name, option in names.items() if getattr(self, option)}
        return {name: dataclasses.replace(self, **changed) for name, changed in without.items()}

    def lengths(self) -> np.ndarray | None:
        """The number of keys of each sample, (B,); None if positions hide keys, or nothing does."""
        if self.causal or self.window or self.keys == "all":
            return None
        if self.keys == "ragged":
            return np.random.default_rng(0).integers(1, self.T, self.B, "int32", endpoint=True)
        return np.full(self.B, self.T * 3 // 4, "int32")

    def segment_numbers(self) -> np.ndarray | None:
        """The segment of each position, (B, T); None if there are no segments."""
        if self.segments is None:
            return None
        return np.tile(np.arange(self.T, dtype="int32") * self.segments // self.T, (self.B, 1))  # (B, T)

    def call(self) -> dict[str, Any]:
        """The arguments of a call that hide keys, beside the lengths; segments are known before anything compiles."""
        segments = self.segment_numbers()
        return {"causal": self.causal} | ({} if segments is None else {"segments": segments})

    def inputs(self) -> np.ndarray:
        """The queries, which are the keys and values too, (B, T, D), or (B, 1, D) of the token that is decoded."""
        return np.random.default_rng(1).standard_normal((self.B, 1 if self.decodes else self.T, self.D), "float32")

    def cotangent(self) -> np.ndarray:
        """The gradient of a loss by the output, (B, T, D)."""
        return np.random.default_rng(2).standard_normal((self.B, self.T, self.D), "float32")

    def bounds(self) -> tuple[int, int]:
        """The numbers of keys before and after its own position that a query sees, by window and causal order."""
        left, right = self.window or (None, None)
        right = 0 if self.causal else right
        return self.T if left is None else left, self.T if right is None else right

    def mask(self) -> np.ndarray | None:
        """The keys that a query sees as booleans; None = all.

        (B, 1, T) by lengths, (1, T, T) by positions, (B, T, T) by segments, which come alone.
        """
        lengths, positions, segments = self.lengths(), np.arange(self.T), self.segment_numbers()
        if segments is not None:
            return segments[:, :, None] == segments[:, None]  # (B, T, T)
        if lengths is not None:
            return (positions < lengths[:, None])[:, None]  # (B, 1, T)
        if not (self.causal or self.window):
            return None
        left, right = self.bounds()
        after = positions - positions[:, None]  # (T, T): how far a key is after a query
        return ((after >= -left) & (after <= right))[None]  # (1, T, T)

    def multiply_adds(self) -> int:
        """The multiply-adds that a forward pass needs: four projections, and two products with the keys it sees."""
        lengths, segments = self.lengths(), self.segment_numbers()
        ends = np.full(self.B, self.T) if lengths is None else lengths
        if segments is None:
            (left, right), queries = self.bounds(), np.arange(self.T)
            seen = np.minimum(queries + right + 1, ends[:, None]) - np.maximum(queries - left, 0)  # (B, T)
            pairs = int(np.maximum(seen, 0).sum())
        else:
            pairs = self.B * int((np.bincount(segments[0]) ** 2).sum())
        keys = int(ends.sum())
        width = self.D // self.H * (self.G or self.H)  # of the keys of all heads
        projections = 2 * (self.B * self.T * self.D + keys * width) * self.D  # W_q and W_o, W_k and W_v
        return projections + 2 * pairs * self.D

    def floor(self, kind: str, rate: float) -> float:
        """The milliseconds that they take at a rate in GFLOP/s; gradients cost twice the forward pass."""
        return (3 if kind == "training" else 1) * 2 * self.multiply_adds() / rate / 1e6


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("S", 2, 6, 100, 5),
        Shape("S-ragged", 2, 6, 100, 5, keys="ragged"),
        Shape("S-all", 2, 6, 100, 5, keys="all"),
        Shape("S32", 1, 32, 128, 4),
        Shape("S32-ragged", 1, 32, 128, 4, keys="ragged"),
        Shape("S32-all", 1, 32, 128, 4, keys="all"),
        Shape("S64", 8, 64, 256, 8),
        Shape("S64-ragged", 8, 64, 256, 8, keys="ragged"),
        Shape("S64-all", 8, 64, 256, 8, keys="all"),
        Shape("M", 8, 128, 512, 8),
        Shape("L", 1, 1024, 768, 12),
        Shape("XL", 1, 4096, 512, 8),
        Shape("XL-all", 1, 4096, 512, 8, keys="all"),
        Shape("R", 16, 512, 512, 8, keys="ragged"),
        Shape("C", 1, 4096, 512, 8, causal=True),
        Shape("G", 1, 4096, 512, 8, G=2),
        Shape("W", 1, 4096, 512, 8, causal=True, window=(511, 0)),
        Shape("P", 1, 4096, 256, 4, keys="all", segments=16),
        Shape("D", 1, 1024, 512, 8, causal=True, decodes=True),
        Shape("D-8192", 1, 8192, 512, 8, causal=True, decodes=True),
        Shape("D-16", 16, 1024, 512, 8, causal=True, decodes=True),
        Shape("D-16-8192", 16, 8192, 512, 8, causal=True, decodes=True),
        Shape("D-G", 1, 1024, 512, 8, causal=True, G=2, decodes=True),
        Shape("D-G-8192", 1, 8192, 512, 8, causal=True, G=2, decodes=True),
        Shape("D-G-16", 16, 1024, 512, 8, causal=True, G=2, decodes=True),
        Shape("D-G-16-8192", 16, 8192, 512, 8, causal=True, G=2, decodes=True),
    )
}
SWEEP = {f"T{T}": Shape(f"T{T}", 1, T, 512, 8) for T in (128, 256, 512, 1024, 2048, 4096, 8192)}
PASSES = ("inference", "training")
KINDS = (*PASSES, "decoding")


def of_kind(kind: str, shapes: Iterable[Shape]) -> list[Shape]:
    """Those of the shapes that a kind is measured with."""
    return [shape for shape in shapes if shape.decodes == (kind == "decoding")]


def find(name: str) -> Shape:
    """The shape of this name, from the tables or the sweep."""
    return (SHAPES | SWEEP)[name]
