"""A layer's heads in equal parts, each a layer itself: the parts' outputs sum to that of the whole."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mha import checks
from mha.config import Config, shapes

Part = tuple[Config, dict[str, np.ndarray]]
# Which axis of a weight has the heads; the rest is the same in every part.
SPLIT = {f"{name}.{kind}": -1 for name in ("W_q", "W_k", "W_v") for kind in ("kernel", "bias")} | {"W_o.kernel": 0}
ONCE = "W_o.bias"  # added by one part alone


def shard(config: Config, weights: dict[str, np.ndarray], index: int, count: int) -> Part:
    """Part `index` of `count` of a layer: so many of its heads in a row, with the heads of keys that they read.

    Args:
        config: the whole layer's, `attention.config`.
        weights: its canonical weights, `attention.weights`.
        index: which part, from 0.
        count: how many parts; a divisor of num_heads and of num_key_value_heads.

    Returns:
        The part's configuration and its canonical weights, which are views of those given where they can be. It takes
        the inputs of the whole; of masks, score biases and gates with an axis of heads, those of its heads. The bias
        of W_o is in part 0 and zero in the others, and all parts have the weights that heads share, so that the sum
        of the parts' outputs is the whole's output, and the sum of the gradients of what is shared is its gradient.
        `mha.MultiHeadAttention(**vars(config), backend=...)` makes a layer for them on any backend.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if the heads cannot be divided so, index is not below count, or weights do not fit the layer.

    Source: Shoeybi et al., Megatron-LM (2019), section 3.
    """
    if not isinstance(config, Config):
        raise TypeError(f"config is {checks.brief(config)}, expected attention.config")
    weights = checks.weights(shapes(config), config.dtype, weights)
    part, index = part_of(config, count), checks.whole("index", index)
    if not 0 <= index < count:
        raise ValueError(f"index is {index}, expected 0 to {count - 1}, a part of {count}")
    return part, {name: _part(name, X, index, count) for name, X in weights.items()}


def part_of(config: Config, count: int) -> Config:
    """The configuration of each of so many equal parts of a layer's heads; raises as `shard`."""
    checks.size("count", count)
    for name in ("num_heads", "num_key_value_heads"):
        heads = getattr(config, name)
        if heads % count:
            common = [n for n in range(1, heads + 1) if config.num_heads % n == config.num_key_value_heads % n == 0]
            raise ValueError(
                f"{name} is {heads}, expected a multiple of the number of parts, {count}; these heads can be split "
                f"into {' or '.join(map(str, common))}"
            )
    heads, groups = config.num_heads // count, config.num_key_value_heads // count
    return dataclasses.replace(config, num_heads=heads, num_key_value_heads=groups)


def unshard(parts: Sequence[Part]) -> Part:
    """The whole of all parts of a layer, in their order: what `shard` undoes.

    Args:
        parts: configuration and canonical weights of each; the biases of W_o are added up.

    Returns:
        The whole's configuration and canonical weights, in arrays of their own.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if there are none, they are of unlike layers, weights do not fit, or what heads share differs.
    """
    parts = [(config, checks.weights(shapes(config), config.dtype, arrays)) for config, arrays in parts]
    if not parts:
        raise ValueError("parts is empty, expected all parts of a layer")
    (first, own), count = parts[0], len(parts)
    for number, (config, arrays) in enumerate(parts):
        if config != first:
            raise ValueError(f"parts[{number}] is a part of {config}, expected {first} as parts[0]")
        for name, X in arrays.items():
            if name not in SPLIT and name != ONCE and not np.array_equal(X, own[name], equal_nan=True):
                raise ValueError(
                    f"parts[{number}] has other numbers in {name} than parts[0], expected the same: all heads share "
                    "them; when parts are trained, add up their gradients"
                )
    heads, groups = first.num_heads * count, first.num_key_value_heads * count
    whole = dataclasses.replace(first, num_heads=heads, num_key_value_heads=groups)
    return whole, {name: _whole(name, [arrays[name] for _, arrays in parts]) for name in own}


def _part(name: str, X: np.ndarray, index: int, count: int) -> np.ndarray:
    if name in SPLIT:
        return np.split(X, count, SPLIT[name])[index]
    return np.zeros_like(X) if name == ONCE and index else X


def _whole(name: str, parts: list[np.ndarray]) -> np.ndarray:
    if name in SPLIT:
        return np.concatenate(parts, SPLIT[name])
    return np.add.reduce(parts).astype(parts[0].dtype) if name == ONCE else parts[0].copy()
