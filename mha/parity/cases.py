"""The cases of the quick suite: layers and calls with random numbers that are the same in every run."""

import dataclasses
from typing import Any

import numpy as np

from mha.config import DTYPES, Config, numpy_dtype
from mha.layer import MultiHeadAttention
from mha.names import BackendName, FloatName

# The most general widths: letters of different primes, so that a swapped axis cannot fit.
WIDTHS: dict[str, Any] = {
    "num_hiddens": 29, "num_heads": 7, "bias": True,
    "query_size": 17, "key_size": 19, "value_size": 23, "key_dim": 11, "value_dim": 13,
}  # fmt: skip
ADDITIVE = WIDTHS | {"pooling": "additive"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and one call of it, with random numbers that are the same in every run.

    name: in the table; options: of `mha.MultiHeadAttention`; valid_lens, causal: of the call; mask: None, or the shape
    of the random mask of the call; scale: standard deviation of queries, keys and values;
    batch, num_queries, num_keys: sizes B, Q and K; dtypes: those to compare in, where the backend has them.
    """

    name: str
    options: dict[str, Any]
    valid_lens: list | None = None
    mask: tuple[int, ...] | None = None
    causal: bool = False
    scale: float = 1.0
    batch: int = 2
    num_queries: int = 3
    num_keys: int = 5
    dtypes: tuple[FloatName, ...] = ("float32", "float64")

    def layer(self, backend: BackendName, dtype: FloatName) -> MultiHeadAttention:
        """The layer on a backend, with random biases; the same weights on each."""
        attention = MultiHeadAttention(**self.options, dtype=dtype, seed=0, backend=backend)
        random = np.random.default_rng(1)
        attention.weights = {
            name: random.normal(size=X.shape).astype(X.dtype) if name.endswith("bias") else X
            for name, X in attention.weights.items()
        }
        return attention

    def inputs(self, dtype: FloatName) -> tuple[np.ndarray, ...]:
        """Queries (B, Q, query_size), keys (B, K, key_size), values (B, K, value_size) and cotangent (B, Q, D)."""
        config, random = Config(**self.options), np.random.default_rng(2)
        sizes = (
            (self.scale, self.num_queries, config.query_size),
            (self.scale, self.num_keys, config.key_size),
            (self.scale, self.num_keys, config.value_size),
            (1.0, self.num_queries, config.num_hiddens),
        )
        return tuple(random.normal(0, std, (self.batch, T, D)).astype(numpy_dtype(dtype)) for std, T, D in sizes)

    def hiding(self) -> dict[str, Any]:
        """What hides keys in the call: valid_lens, mask and causal, as keyword arguments."""
        mask = None if self.mask is None else np.random.default_rng(3).random(self.mask) < 0.5
        return {"valid_lens": self.valid_lens, "mask": mask, "causal": self.causal}

    def visible(self) -> np.ndarray:
        """Which query sees which key, (B, H, Q, K), by slices and so not by the way of any backend."""
        visible = np.ones((self.batch, self.options["num_heads"], self.num_queries, self.num_keys), bool)
        for b, i in np.ndindex(self.batch, self.num_queries):
            if self.valid_lens is not None:
                length = self.valid_lens[b]
                visible[b, :, i, length if isinstance(length, int) else length[i] :] = False
            if self.causal:
                visible[b, :, i, i + 1 :] = False
        mask = self.hiding()["mask"]
        if mask is not None:
            visible &= mask[:, None] if mask.ndim == 3 else mask
        return visible


# The layers share shapes where they can: JAX compiles each anew.
CASES = (
    Case("no lengths", WIDTHS),
    Case("lengths per sample", WIDTHS, [3, 2], dtypes=DTYPES),
    Case("length zero", WIDTHS, [0, 4]),
    Case("length above K", WIDTHS, [9, 2]),
    Case("scale 0.01", WIDTHS, [3, 2], scale=1e-2, dtypes=DTYPES),
    Case("scale 30", WIDTHS, [3, 2], scale=30.0, dtypes=DTYPES),
    Case("lengths per query", WIDTHS, [[1, 4, 2], [0, 3, 9]]),
    Case("mask", WIDTHS, mask=(2, 7, 3, 5)),
    Case("mask of each sample", WIDTHS, mask=(2, 3, 5)),
    Case("causal", WIDTHS, causal=True),
    Case("lengths, mask, causal", WIDTHS, [[4, 2, 3], [5, 0, 2]], mask=(3, 5), causal=True),
    Case("additive", ADDITIVE, [3, 2], dtypes=DTYPES),
    Case("additive, scale 0.01", ADDITIVE, [3, 2], scale=1e-2),
    Case("additive, scale 30", ADDITIVE, [3, 2], scale=30.0),
    Case("additive, lengths, mask, causal", ADDITIVE, [4, 0], mask=(2, 7, 3, 5), causal=True),
    Case("equal widths, no bias", {"num_hiddens": 77, "num_heads": 7}, [3, 2]),
    Case("one head", {"num_hiddens": 11, "num_heads": 1}, [3, 2]),
    Case("head of width 1", {"num_hiddens": 7, "num_heads": 7, "bias": True}, [3, 2]),
    Case("2053 keys", WIDTHS, [2039], batch=1, num_keys=2053),
)
