"""Split a layer's heads into equal parts, each a layer itself; the outputs of the parts add up to the whole output."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mha import checks
from mha.config import Config, shapes

Part = tuple[Config, dict[str, np.ndarray]]
# The axis of a weight that has the heads; other weights are the same in every part. For a layer: `split_axes`.
SPLIT = {f"{name}.{kind}": -1 for name in ("W_q", "W_k", "W_v", "W_g") for kind in ("kernel", "bias")}
SPLIT |= {"W_o.kernel": 0, "sinks": -1}
ONCE = "W_o.bias"  # added by one part alone
NORMS = {"qk_norm": ("q_norm", "k_norm"), "value_norm": ("v_norm",)}  # the parts of a layer that an option makes


def shard(config: Config, weights: dict[str, np.ndarray], index: int, count: int) -> Part:
    """Take part `index` of `count` of a layer: consecutive heads, with the heads of keys and values that they use.

    Args:
        config: configuration of the whole layer, `attention.config`.
        weights: its canonical weights, `attention.weights`.
        index: number of the part, from 0.
        count: number of parts, a divisor of num_heads and of num_key_value_heads.

    Returns:
        The part's configuration and its canonical weights, which are views of the given weights if possible. A part
        takes the inputs of the whole layer; of masks, score biases and gates with an axis of heads, it takes the slice
        of its heads. The bias of W_o is in part 0, and zero in the others. Weights that all heads share are in every
        part. So the outputs of the parts add up to the whole output, and the gradients of the shared weights add up to
        their gradients. `mha.MultiHeadAttention(**vars(config), backend=...)` makes a layer for a part on any backend.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if the heads cannot be divided, if a layer with a norm over all heads is split, if index is not
            below count, or if weights do not fit the layer.

    Source: Shoeybi et al., Megatron-LM (2019), section 3.
    """
    if not isinstance(config, Config):
        raise TypeError(f"config is {checks.brief(config)}, expected attention.config")
    weights = checks.weights(shapes(config), config.dtype, weights)
    part, index = part_of(config, count), checks.whole("index", index)
    if count > 1:
        _refuse_over_all(config)
    if not 0 <= index < count:
        raise ValueError(f"index is {index}, expected 0 to {count - 1}, a part of {count}")
    return part, {name: _part(name, X, index, count) for name, X in weights.items()}


def part_of(config: Config, count: int) -> Config:
    """The configuration of each of `count` equal parts of a layer; raises ValueError if the heads cannot be divided."""
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


def over_all(config: Config) -> list[str]:
    """The options of a layer that are norms over all heads."""
    return [name for name in NORMS if (norm := getattr(config, name)) and norm.over == "all"]


def split_axes(config: Config) -> dict[str, int]:
    """The axis of each weight of a layer that has the heads, by name; other weights are shared by all heads."""
    return SPLIT | {f"{norm}.scale": -1 for name in over_all(config) for norm in NORMS[name]}


def _refuse_over_all(config: Config) -> None:
    """Raise ValueError if a layer has a norm over all heads, of which parts that are layers do not know the mean."""
    for name in over_all(config):
        raise ValueError(
            f'{name} has over="all", expected "head": a part that is a layer itself does not know the mean of all '
            "heads; split the layer with mha.parallel.parallelize on PyTorch, or mha.parallel.attend on JAX"
        )


def unshard(parts: Sequence[Part]) -> Part:
    """Join all parts of a layer, in their order: the inverse of `shard`.

    Args:
        parts: configuration and canonical weights of each part; the biases of W_o are added up.

    Returns:
        The whole layer's configuration and canonical weights, in new arrays.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if there are no parts, if they are of different layers, if one of several has a norm over all
            heads, if weights do not fit, or if weights that heads share differ between parts.
    """
    parts = [(config, checks.weights(shapes(config), config.dtype, arrays)) for config, arrays in parts]
    if not parts:
        raise ValueError("parts is empty, expected all parts of a layer")
    (first, own), count = parts[0], len(parts)
    if count > 1:
        _refuse_over_all(first)
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
