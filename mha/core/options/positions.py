"""Rotations and score biases by position, as today's models have them; in NumPy, for every backend."""

import dataclasses
import math
from typing import Any

import numpy as np

from mha.core.options import checks


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotation of queries and keys by their positions: at position p, pair i of components turns by p * frequencies[i].

    Args:
        dim: number of components of a head that turn, an even number 2n; the components after them do not turn.
            None = two for each frequency, or all components if no frequencies are given.
        base: frequency i is base ** (-2i / dim), if no frequencies are given.
        interleaved: True = pair i is components (2i, 2i + 1), as in RoFormer and Meta's LLaMA; False = (i, n + i), as
            in GPT-NeoX and Hugging Face's LLaMA.
        frequencies: the n angles, in radians, by which the pairs turn from one position to the next; None = by base.
        magnitude: number that the components which turn are multiplied by, of queries and of keys.

    The layers of PyTorch, Keras and Flax have no rotation. `mha.yarn`, `mha.longrope`, `mha.dynamic`, `mha.linear` and
    `mha.proportional` make one of what a model's `config.json` says.

    Raises TypeError or ValueError if an argument is not as above.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.2; for the
    magnitude Peng et al., YaRN (2023), section 3.4.
    """

    dim: int | None = None
    base: float = 10000.0
    interleaved: bool = False
    frequencies: tuple[float, ...] | None = None
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        def fill(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        fill("base", checks.positive("base of Rotary", self.base))
        fill("interleaved", checks.flag("interleaved of Rotary", self.interleaved))
        fill("magnitude", checks.positive("magnitude of Rotary", self.magnitude))
        if self.dim is not None:
            fill("dim", checks.size("dim of Rotary", self.dim))
            if self.dim % 2:
                raise ValueError(f"dim of Rotary is {self.dim}, expected an even number: components turn in pairs")
        if self.frequencies is not None:
            given = checks.array_of("frequencies of Rotary", list(self.frequencies), "float64")
            if given.ndim != 1 or given.dtype.kind not in "fiu" or not np.isfinite(given).all() or not given.size:
                raise ValueError("frequencies of Rotary are no list of finite numbers, expected one for each pair")
            fill("frequencies", tuple(float(frequency) for frequency in given))
            if self.dim not in (None, 2 * given.size):
                raise ValueError(
                    f"frequencies of Rotary are {given.size}, expected half as many as dim = {self.dim} components"
                )
            fill("dim", 2 * given.size)

    def within(self, width: int) -> "Rotary":
        """The same rotation for heads of this width, with dim filled in; frequencies that base gives become None.

        Raises ValueError if a head has fewer than dim components, or if dim is None and their number is odd.
        """
        dim = width if self.dim is None else self.dim
        if dim > width or dim % 2:
            raise ValueError(
                f"dim of Rotary is {dim}, expected an even number of at most key_dim = {width}; give dim=, the number "
                "of components that turn"
            )
        plain = dataclasses.replace(self, dim=dim, frequencies=None)
        return plain if self.frequencies in (None, plain.angles()) else dataclasses.replace(self, dim=dim)

    def angles(self) -> tuple[float, ...]:
        """The n angles, in radians, by which a pair turns from one position to the next; dim must be known."""
        if self.frequencies is not None:
            return self.frequencies
        if self.dim is None:
            raise ValueError("dim of Rotary is None, expected a number of components; give dim=")
        return tuple(self.base ** (-2 * i / self.dim) for i in range(self.dim // 2))


@dataclasses.dataclass(frozen=True)
class Temperature:
    """A factor of queries, which grows with their positions p: 1 + scale * ln(1 + floor((max(p, 0) + shift) / floor)).

    Args:
        scale: number by which the logarithm is multiplied: `attn_scale` of Llama 4, `llama_4_scaling_beta` of
            Ministral 3.
        floor: number of positions after which the factor grows again: `floor_scale` of Llama 4,
            `original_max_position_embeddings` of Ministral 3.
        shift: whole number that is added to each position: 1 in Llama 4, 0 in Ministral 3.

    It comes after the rotation. No layer of a framework has it.

    Raises TypeError or ValueError if scale or floor is not positive, or shift is below 0.

    Source: Nakanishi, Scalable-Softmax Is Superior for Attention (2025), and Llama 4 in transformers 5.23.
    """

    scale: float
    floor: int
    shift: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive("scale of Temperature", self.scale))
        object.__setattr__(self, "floor", checks.size("floor of Temperature", self.floor))
        object.__setattr__(self, "shift", checks.whole("shift of Temperature", self.shift))
        if self.shift < 0:
            raise ValueError(f"shift of Temperature is {self.shift}, expected 0 or more")


def alibi(num_heads: int, num_keys: int, *, dtype: Any = "float32") -> np.ndarray:
    """Linear biases of ALiBi, for `score_bias=` of a causal call: (1, H, 1, K), the head's slope times j for key j.

    The paper's bias for query i is slope * (j - i). The term slope * i is the same for all keys of a query, so it
    changes no weight. It is left out here, and the bias fits every query and every offset.

    Args:
        num_heads: number of heads H; num_keys: number of keys K.
        dtype: the dtype of the layer, as a NumPy dtype or its name.

    Raises TypeError or ValueError if a size is no positive number.

    Source: Press et al., Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation
    (2022), section 3; slopes for numbers of heads that are no power of 2 as in the authors' code.
    """
    H, K = checks.size("num_heads", num_heads), checks.size("num_keys", num_keys)
    power = 2 ** math.floor(math.log2(H))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-4 * (2 * h + 1) / power) for h in range(H - power)]
    return (np.array(slopes)[:, None, None] * np.arange(K))[None].astype(dtype)  # (1, H, 1, K)


def t5_buckets(
    num_queries: int,
    num_keys: int,
    *,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
    offset: int = 0,
) -> np.ndarray:
    """T5's bucket of the distance between each query and each key: integers (Q, K) below num_buckets.

    With a model's table (num_buckets, H), the `score_bias` (1, H, Q, K) is `table[buckets].transpose(2, 0, 1)[None]`.

    Args:
        num_queries, num_keys: numbers of queries Q and keys K.
        bidirectional: True = half of the buckets are for keys after the query, as in the encoder; False = these keys
            have the bucket of distance 0, as in the decoder.
        num_buckets: number of buckets, at least 4.
        max_distance: from this distance on, all keys share the last bucket; more than the number of exact buckets.
        offset: position of the first query.

    Raises TypeError or ValueError if an argument is not as above.

    Source: Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (2020),
    section 2.1. Logarithms are computed in float32, as in the authors' code: some borders depend on it.
    """
    Q, K = checks.size("num_queries", num_queries), checks.size("num_keys", num_keys)
    bidirectional = checks.flag("bidirectional", bidirectional)
    num_buckets, max_distance = checks.size("num_buckets", num_buckets), checks.size("max_distance", max_distance)
    first = checks.whole("offset", offset)
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"num_buckets is {num_buckets} and max_distance {max_distance}, expected at least 4 buckets, and more than "
            f"{exact} for max_distance"
        )
    ahead = np.arange(K)[None, :] - (first + np.arange(Q))[:, None]  # (Q, K)
    distance = np.abs(ahead) if bidirectional else np.maximum(-ahead, 0)
    far = np.log(np.maximum(distance, 1).astype("float32") / exact) / math.log(max_distance / exact)  # (Q, K)
    far = exact + (far.astype("float32") * (side - exact)).astype("int64")
    bucket = np.where(distance < exact, distance, np.minimum(far, side - 1))
    return bucket + np.where(bidirectional & (ahead > 0), side, 0)  # (Q, K)
