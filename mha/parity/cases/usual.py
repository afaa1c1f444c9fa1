"""The usual cases: layers and calls with random numbers that are the same in every run."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha.core.call import ROWS
from mha.core.options.config import DTYPES, Config, numpy_dtype
from mha.core.options.names import BackendName, FloatName
from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary, Temperature
from mha.layer import MultiHeadAttention

WHOLE = "integers", "switch"  # kinds of arguments, whose values a case has
# The most general widths: letters of different primes, so that a swapped axis cannot fit.
WIDTHS: dict[str, Any] = {
    "num_hiddens": 29, "num_heads": 7, "bias": True,
    "query_size": 17, "key_size": 19, "value_size": 23, "key_dim": 11, "value_dim": 13,
}  # fmt: skip
ADDITIVE = WIDTHS | {"pooling": "additive"}
GROUPED = WIDTHS | {"num_heads": 6, "num_key_value_heads": 2}
REST = {"num_heads": 6, "num_key_value_heads": 3, "softcap": 1.5, "window": (3, 1)}
ALL = WIDTHS | REST | {"scale": 0.7, "rotary": Rotary(10), "qk_norm": Norm("layer", 0.01)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and one call of it, with random numbers that are the same in every run.

    Attributes:
        name: as the table shows it.
        options: of `mha.MultiHeadAttention`.
        valid_lens, causal, offset, positions, key_positions, segments, key_segments: of the call.
        mask, score_bias, head_gates: None, or the shapes of these random arrays of the call.
        scale: standard deviation of queries, keys and values.
        batch, num_queries, num_keys: sizes B, Q and K.
        dtypes: those to compare in, if the backend has them.
        quick: the dtypes of the quick suite.
        lesson: the dtypes in which the full suite compares the lesson's own layer, too; JAX compiles its operations one
            by one.
        quick_lesson: whether the quick suite does so.
    """

    name: str
    options: dict[str, Any]
    valid_lens: list | None = None
    mask: tuple[int, ...] | None = None
    causal: bool = False
    score_bias: tuple[int, ...] | None = None
    offset: int | list[int] = 0
    head_gates: tuple[int, ...] | None = None
    positions: list | None = None
    key_positions: list | None = None
    segments: list | None = None
    key_segments: list | None = None
    scale: float = 1.0
    batch: int = 2
    num_queries: int = 3
    num_keys: int = 5
    dtypes: tuple[FloatName, ...] = ("float32", "float64")
    quick: tuple[FloatName, ...] = ("float64",)
    lesson: tuple[FloatName, ...] = ("float64",)
    quick_lesson: bool = False

    def layer(self, backend: BackendName, dtype: FloatName, **options: Any) -> MultiHeadAttention:
        """Make the layer on a backend, with random biases and scales, the same weights on each; options: instead."""
        attention = MultiHeadAttention(**self.options | options, dtype=dtype, seed=0, backend=backend)
        random = np.random.default_rng(1)
        attention.weights = {
            name: X if name.endswith("kernel") else random.normal(size=X.shape).astype(X.dtype)
            for name, X in attention.weights.items()
        }
        return attention

    def inputs(self, dtype: FloatName) -> tuple[np.ndarray, ...]:
        """Make queries (B, Q, query_size), keys (B, K, key_size), values (B, K, value_size), cotangent (B, Q, D)."""
        config, random = Config(**self.options), np.random.default_rng(2)
        sizes = (
            (self.scale, self.num_queries, config.query_size),
            (self.scale, self.num_keys, config.key_size),
            (self.scale, self.num_keys, config.value_size),
            (1.0, self.num_queries, config.num_hiddens),
        )
        return tuple(random.normal(0, std, (self.batch, T, D)).astype(numpy_dtype(dtype)) for std, T, D in sizes)

    def call(self, dtype: str) -> dict[str, Any]:
        """Make the other arguments of the call, by name; every fifth bias of a score is -inf."""
        random = np.random.default_rng(3)
        mask = None if self.mask is None else random.random(self.mask) < 0.5
        call = {"mask": mask} | {name: getattr(self, name) for name in ROWS if ROWS[name].holds in WHOLE}
        if self.score_bias is not None:
            bias = random.normal(size=self.score_bias).astype(numpy_dtype(dtype))
            call["score_bias"] = np.where(random.random(self.score_bias) < 0.2, bias.dtype.type(-np.inf), bias)
        if self.head_gates is not None:
            call["head_gates"] = random.normal(size=self.head_gates).astype(numpy_dtype(dtype))
        return call

    def visible(self) -> np.ndarray:
        """Return which query sees which key, (B, H, Q, K), row by row: no backend computes it so."""
        visible = np.ones((self.batch, self.options["num_heads"], self.num_queries, self.num_keys), bool)
        for b, i in np.ndindex(self.batch, self.num_queries):
            if self.valid_lens is not None:
                length = self.valid_lens[b]
                visible[b, :, i, length if isinstance(length, int) else length[i] :] = False
            if self.segments:
                own = _of_sample(self.segments, b, ())[i]
                others = np.array(_of_sample(self.key_segments or self.segments, b, ()))
                visible[b, :, i] &= (own == others) & (own >= 0)
            place = i + (self.offset if isinstance(self.offset, int) else self.offset[b])
            query = _of_sample(self.positions, b, [place] * self.num_queries)[i]
            visible[b, :, i] &= self._sees(query, np.array(_of_sample(self.key_positions, b, range(self.num_keys))))
        call = self.call("float64")
        hidden = call["score_bias"] == -np.inf if self.score_bias else np.zeros((1, 1), bool)
        for pairs in (call["mask"], ~hidden):
            if pairs is not None:
                visible &= pairs[:, None] if pairs.ndim == 3 else pairs
        return visible

    def _sees(self, query: int, keys: np.ndarray) -> np.ndarray:
        """Return which keys, at these positions (K,), a query at a position sees."""
        left, right = self.options.get("window") or (None, None)
        sees = ((keys <= query) | (not self.causal)) & (not (self.positions and query < 0))
        if left is not None:
            sees &= keys >= query - left
        if right is not None:
            sees &= keys <= query + right
        if chunk := self.options.get("chunk"):
            sees &= keys // chunk == query // chunk
        return sees & (keys >= 0) if self.key_positions else sees


def _of_sample(positions: list | None, b: int, otherwise: Sequence[int]) -> Sequence[int]:
    """Return the positions or segments of a sample, of lists of all or one for all; otherwise: where none are given."""
    if positions is None:
        return otherwise
    return positions[b] if isinstance(positions[0], list) else positions


# The dtypes of the quick suite: float64 shows errors of logic; in a few cases, float32 shows those of precision.
PRECISE: tuple[FloatName, ...] = ("float64", "float32")
full = functools.partial(Case, quick=())  # makes a case that only the full suite has
# The arguments of a call with all of them.
ALL_CALL: dict[str, Any] = {
    "valid_lens": [4, 3], "mask": (2, 3, 5), "score_bias": (2, 1, 3, 5), "offset": [1, 3], "head_gates": (6,),
}  # fmt: skip
# The layers share shapes where they can: JAX compiles each anew.
CASES = (
    full("no lengths", WIDTHS),
    Case("lengths per sample", WIDTHS, [3, 2], dtypes=DTYPES, quick=DTYPES, lesson=DTYPES),
    Case("length zero", WIDTHS, [0, 4]),
    full("length above K", WIDTHS, [9, 2]),
    Case("scale 0.01", WIDTHS, [3, 2], scale=1e-2, dtypes=DTYPES, quick=PRECISE),
    Case("scale 30", WIDTHS, [3, 2], scale=30.0, dtypes=DTYPES, quick=PRECISE),
    Case("lengths per query", WIDTHS, [[1, 4, 2], [0, 3, 9]]),
    Case("mask", WIDTHS, mask=(2, 7, 3, 5)),
    full("mask of each sample", WIDTHS, mask=(2, 3, 5)),
    Case("causal", WIDTHS, causal=True),
    Case("lengths, mask, causal", WIDTHS, [[4, 2, 3], [5, 0, 2]], mask=(3, 5), causal=True),
    Case("additive", ADDITIVE, [3, 2], dtypes=DTYPES, quick=("float32",)),
    full("additive, scale 0.01", ADDITIVE, [3, 2], scale=1e-2),
    Case("additive, scale 30", ADDITIVE, [3, 2], scale=30.0, quick=("float32",)),
    full("additive, lengths, mask, causal", ADDITIVE, [4, 0], mask=(2, 7, 3, 5), causal=True),
    Case("equal widths, no bias", {"num_hiddens": 77, "num_heads": 7}, [3, 2]),
    full("one head", {"num_hiddens": 11, "num_heads": 1}, [3, 2]),
    full("head of width 1", {"num_hiddens": 7, "num_heads": 7, "bias": True}, [3, 2]),
    Case("grouped heads", GROUPED, [3, 2], dtypes=DTYPES, quick_lesson=True),
    full("one head of keys", GROUPED | {"num_key_value_heads": 1}, causal=True),
    Case("window, offset", WIDTHS | {"window": (1, 0)}, causal=True, offset=2),
    full("window, offsets", WIDTHS | {"window": (2, 1)}, [4, 3], offset=[-1, 3]),
    Case("chunks, offsets", WIDTHS | {"chunk": 3}, [4, 5], offset=[-2, 2]),
    full("chunks, causal, window", WIDTHS | {"chunk": 3, "window": (1, None)}, causal=True, offset=1),
    Case("score bias", WIDTHS, [4, 3], score_bias=(2, 3, 5), offset=1, causal=True),
    full("gates, scale, cap", WIDTHS | {"scale": 0.7, "softcap": 1.5}, [3, 2], head_gates=(2, 7), dtypes=DTYPES),
    Case("rotary", WIDTHS | {"rotary": Rotary(10)}, offset=131072, dtypes=DTYPES, quick=("float32",)),
    full("rotary, interleaved, offsets", WIDTHS | {"rotary": Rotary(6, interleaved=True)}, [3, 2], offset=[4, 99]),
    full("rotary, magnified", WIDTHS | {"rotary": Rotary(6, magnitude=1.25)}, [3, 2], offset=5, dtypes=DTYPES),
    full(
        "temperature", WIDTHS | {"temperature": Temperature(0.4, 2), "rotary": Rotary(4)}, [3, 2], offset=[5, -1],
        dtypes=DTYPES,
    ),
    Case(
        "positions, padded left", WIDTHS | {"rotary": Rotary(10)}, causal=True, positions=[[-1, 3, 4], [1, 2, 3]],
        key_positions=[[-1, -1, 3, 2, 4], [-1, 0, 1, 2, 3]],
    ),
    full("positions, window", WIDTHS | {"window": (2, 1)}, [4, 5], positions=[7, 2, 3]),
    full("positions, chunks", WIDTHS | {"chunk": 4}, positions=[7, 2, 3], key_positions=[6, 1, -1, 2, 3]),
    full("positions of keys", WIDTHS | {"window": (1, None)}, offset=2, key_positions=[6, 1, -1, 2, 3]),
    Case(
        "segments", WIDTHS, dtypes=DTYPES, segments=[[0, 0, 1], [2, -1, 4]],
        key_segments=[[0, 1, 1, 0, -1], [-1, 4, 4, 2, 4]],
    ),
    Case(
        "segments, positions that restart", GROUPED | {"rotary": Rotary(10), "window": (1, None)}, causal=True,
        num_queries=5, segments=[3, 3, 3, 0, 0], positions=[0, 1, 2, 0, 1], key_positions=[0, 1, 2, 0, 1],
    ),
    full(
        "segments, lengths, mask, causal", GROUPED | {"sinks": True}, [4, 3], mask=(2, 1, 5, 5), causal=True,
        num_queries=5, segments=[[1, 0, 1, 0, 0], [5, 5, -1, 5, 5]],
    ),
    full("norms", WIDTHS | {"qk_norm": "rms"}, [3, 2], dtypes=DTYPES),
    full(
        "norms over all heads, after the rotation, of values",
        GROUPED | {"qk_norm": Norm("rms", 0.01, "all", True), "value_norm": Norm("layer", 0.01), "rotary": Rotary(4)},
        [3, 2], dtypes=DTYPES,
    ),
    Case("all options", ALL, **ALL_CALL, dtypes=DTYPES),
    Case("additive, all options", ADDITIVE | REST, **ALL_CALL),
    Case("sinks", GROUPED | {"sinks": True}, [3, 0], dtypes=DTYPES),
    full("sinks, scale 30", WIDTHS | {"sinks": True}, [3, 2], scale=30.0, dtypes=DTYPES),
    full("sinks, all options", ALL | {"sinks": True}, **ALL_CALL, dtypes=DTYPES),
    full("additive, sinks", ADDITIVE | {"sinks": True}, [[4, 2, 3], [5, 0, 2]], causal=True),
    Case("output gate", GROUPED | {"output_gate": "element"}, [3, 0], dtypes=DTYPES),
    full("output gate of heads", WIDTHS | {"output_gate": "head"}, [3, 2], dtypes=DTYPES),
    full(
        "output gate, scale 30", GROUPED | {"output_gate": "element"}, [3, 2], scale=30.0, num_queries=23,
        dtypes=DTYPES,
    ),
    full("output gate, all options", ALL | {"output_gate": "element"}, **ALL_CALL, dtypes=DTYPES),
    full(
        "additive, output gate of heads", ADDITIVE | {"output_gate": "head"}, [[4, 2, 3], [5, 0, 2]], causal=True,
        head_gates=(2, 7),
    ),
    Case("2053 keys", WIDTHS, [2039], batch=1, num_keys=2053, quick=("float32",)),
)  # fmt: skip
