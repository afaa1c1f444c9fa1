"""Decoding cases: layers, and calls of them with a cache, with random numbers that are the same in every run."""

import dataclasses
from typing import Any

import numpy as np

from mha.core.options.config import DTYPES, Config, numpy_dtype
from mha.core.options.names import BackendName, FloatName
from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary, Temperature
from mha.layer import MultiHeadAttention
from mha.parity.cases.usual import Case

# Of equal widths, as a decoder is: queries, keys and values of a step are the same tokens.
PLAIN: dict[str, Any] = {"num_hiddens": 13, "num_heads": 3, "bias": True, "key_dim": 5, "value_dim": 2}
GROUPED = PLAIN | {"num_heads": 4, "num_key_value_heads": 2, "rotary": Rotary(4)}
NORMS: dict[str, Any] = {"qk_norm": Norm("rms", over="all", after=True), "value_norm": "layer"}
NORMS |= {"temperature": Temperature(0.4, 3)}


@dataclasses.dataclass(frozen=True)
class Portion:
    """One call of a decode: how many tokens, which of them are real, and where the cache is cropped before it."""

    tokens: int = 1
    valid_lens: list[int] | None = None
    positions: list[list[int]] | None = None
    crop: list[int] | None = None


@dataclasses.dataclass(frozen=True)
class Decode:
    """One layer, and calls of it with one cache."""

    name: str  # as files have it
    options: dict[str, Any]  # of `mha.MultiHeadAttention`
    portions: tuple[Portion, ...]  # the calls
    size: int | None = None  # of the cache, None = as the window or the chunk says
    batch: int = 2  # B
    dtypes: tuple[FloatName, ...] = ("float32",)  # those that files are published in

    def layer(self, backend: BackendName, dtype: FloatName) -> MultiHeadAttention:
        """Make the layer on a backend, with random biases, the same weights on each."""
        return Case(self.name, self.options).layer(backend, dtype)

    def steps(self, dtype: FloatName) -> list[dict[str, Any]]:
        """Make the arguments of each call by name, and "crop" where the cache is cropped before it."""
        width, random, steps = Config(**self.options).query_size, np.random.default_rng(2), []
        for portion in self.portions:
            X = random.normal(size=(self.batch, portion.tokens, width)).astype(numpy_dtype(dtype))
            given = {name: getattr(portion, name) for name in ("valid_lens", "positions", "crop")}
            steps.append(dict.fromkeys(("queries", "keys", "values"), X) | given)
        return steps


ONE = Portion()
PADDED_RIGHT = Portion(5, valid_lens=[5, 3])
PADDED_LEFT = Portion(5, positions=[[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
TOKENS = ONE, ONE, Portion(3), ONE  # single ones, and a portion

DECODES = (
    Decode("decode", PLAIN, (PADDED_RIGHT, *TOKENS), 11, dtypes=DTYPES),
    Decode("decode-groups-rotary", GROUPED, (PADDED_LEFT, *TOKENS), 11),
    Decode("decode-ring", PLAIN | {"window": (3, 0)}, (PADDED_RIGHT, *TOKENS, Portion(3), ONE)),
    Decode("decode-chunks", GROUPED | {"chunk": 4}, (PADDED_LEFT, *TOKENS, Portion(3), ONE)),
    Decode("decode-sinks", GROUPED | {"sinks": True}, (PADDED_LEFT, *TOKENS), 11),
    Decode("decode-output-gate", GROUPED | {"output_gate": "element"}, (PADDED_LEFT, *TOKENS), 11),
    Decode("decode-norms", GROUPED | NORMS, (PADDED_LEFT, *TOKENS), 11),
    # Of a draft of three tokens, the first sample keeps one, the second two.
    Decode("decode-draft", GROUPED, (PADDED_LEFT, ONE, Portion(3), Portion(1, crop=[7, 6]), ONE), 11),
)
