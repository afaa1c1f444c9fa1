"""Split a layer's heads into equal parts, each a layer itself; the outputs of the parts add up to the whole output."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mha.core.options import checks
from mha.core.options.config import Config, shapes

Part = tuple[Config, dict[str, np.ndarray]]
# The axis of a weight that has the heads, whatever the options of its layer; for a layer and its parts: `split_axes`.
SPLIT = {f"{name}.{kind}": -1 for name in ("W_q", "W_k", "W_v", "W_g") for kind in ("kernel", "bias")}
SPLIT |= {"W_o.kernel": 0, "sinks": -1}
ONCE = "W_o.bias"  # added by one part alone
NORMS = {"qk_norm": ("q_norm", "k_norm"), "value_norm": ("v_norm",)}  # the parts of a layer that an option makes
OF_KEYS = {"W_k.kernel", "W_k.bias", "W_v.kernel", "W_v.bias", "k_norm.scale", "v_norm.scale"}  # in their last axis


def shard(config: Config, weights: dict[str, np.ndarray], index: int, count: int) -> Part:
    """Take part `index` of `count` of a layer: consecutive heads, with the heads of keys and values that they use.

    Args:
        config: configuration of the whole layer, `attention.config`.
        weights: its canonical weights, `attention.weights`.
        index: number of the part, from 0.
        count: number of parts, a divisor of num_heads. Where it does not divide num_key_value_heads, parts share heads
            of keys and values: all are copied as often, and a part may have several copies of one.

    Returns:
        The part's configuration and its canonical weights, which are views of the given weights if possible. A part
        takes the inputs of the whole layer; of masks, score biases and gates with an axis of heads, it takes the slice
        of its heads. The bias of W_o is in part 0, and zero in the others. Weights that all heads share are in every
        part. So the outputs of the parts add up to the whole output, and the gradients of the shared weights, and of
        the copies of a head of keys, add up to their gradients. `mha.MultiHeadAttention(**vars(config), backend=...)`
        makes a layer for a part on any backend.

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
    return part, {name: _part(name, X, config, index, count) for name, X in weights.items()}


def part_of(config: Config, count: int) -> Config:
    """The configuration of each of `count` equal parts of a layer; raises ValueError if the heads cannot be divided."""
    checks.size("count", count)
    heads, groups = config.num_heads, config.num_key_value_heads
    if heads % count:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        raise ValueError(
            f"num_heads is {heads}, expected a multiple of the number of parts, {count}; these heads can be split "
            f"into {' or '.join(map(str, divisors))}"
        )
    own = groups // math.gcd(groups, count)  # of count / gcd(G, count) copies of each, the fewest that divide
    return dataclasses.replace(config, num_heads=heads // count, num_key_value_heads=own)


def heads_of_keys(config: Config, count: int) -> list[list[int]]:
    """The numbers of the heads of keys and values of each part, in the order of the heads of queries that use them."""
    own = part_of(config, count).num_key_value_heads
    copies = own * count // config.num_key_value_heads
    return [[number // copies for number in range(index * own, (index + 1) * own)] for index in range(count)]


def over_all(config: Config) -> list[str]:
    """The options of a layer that are norms over all heads."""
    return [name for name in NORMS if (norm := getattr(config, name)) and norm.over == "all"]


def split_axes(config: Config, count: int) -> dict[str, int]:
    """The axis along which each weight of a layer is split into `count` parts, by name.

    A weight without such an axis is in every part: whole if all heads share it, else with its heads of keys.
    """
    whole = names_of_copies(config, count)
    return {name: axis for name, axis in _axes(config).items() if name not in whole}


def names_of_copies(config: Config, count: int) -> set[str]:
    """The names of weights with heads of keys that do not divide by `count`, so that parts have copies of heads."""
    return OF_KEYS & _axes(config).keys() if config.num_key_value_heads % count else set()


def _axes(config: Config) -> dict[str, int]:
    """The axis of heads of each weight that has one, by name; all heads share the other weights."""
    return SPLIT | {f"{norm}.scale": -1 for name in over_all(config) for norm in NORMS[name]}


def _refuse_over_all(config: Config) -> None:
    """Raise ValueError if a layer has a norm over all heads: a part that is a layer cannot compute its mean."""
    for name in over_all(config):
        raise ValueError(
            f'{name} has over="all", expected "head": a part that is a layer itself does not know the mean of all '
            "heads; split the layer with mha.parallel.parallelize on PyTorch, or mha.parallel.attend on JAX"
        )


def unshard(parts: Sequence[Part], num_key_value_heads: int | None = None) -> Part:
    """Join all parts of a layer, in their order: the inverse of `shard`.

    Args:
        parts: configuration and canonical weights of each part; the biases of W_o are added up.
        num_key_value_heads: of the whole layer, where parts have copies of its heads of keys; None = there are no
            copies, so that each head of keys of a part is one of the whole.

    Returns:
        The whole layer's configuration and canonical weights, in new arrays.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if there are no parts, if they are of different layers, if one of several has a norm over all
            heads, if weights do not fit, if weights that heads share, or copies of a head of keys, differ between
            parts, or if a layer with so many heads of keys has other parts.
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
    whole = _whole_of(first, count, num_key_value_heads)
    return whole, {name: _join(name, [arrays[name] for _, arrays in parts], whole) for name in own}


def _part(name: str, X: np.ndarray, config: Config, index: int, count: int) -> np.ndarray:
    if name in names_of_copies(config, count):
        of_heads = X.reshape(*X.shape[:-1], config.num_key_value_heads, -1)  # (any, G, d)
        own = of_heads[..., heads_of_keys(config, count)[index], :]  # (any, heads of keys here, d)
        return own.reshape(*X.shape[:-1], -1)  # (any, heads of keys here * d)
    if name in SPLIT:
        return np.split(X, count, SPLIT[name])[index]
    return np.zeros_like(X) if name == ONCE and index else X


def _whole_of(part: Config, count: int, num_key_value_heads: int | None) -> Config:
    """The configuration of the whole layer that has `count` such parts; raises ValueError if there is none."""
    heads, most = part.num_heads * count, part.num_key_value_heads * count
    groups = most if num_key_value_heads is None else checks.size("num_key_value_heads", num_key_value_heads)
    known = [n for n in range(1, most + 1) if heads % n == 0 and n // math.gcd(n, count) == part.num_key_value_heads]
    if groups not in known:
        raise ValueError(
            f"num_key_value_heads is {groups}, expected {' or '.join(map(str, known))}: of a layer with so many, each "
            f"of {count} parts has {part.num_key_value_heads}"
        )
    return dataclasses.replace(part, num_heads=heads, num_key_value_heads=groups)


def _join(name: str, parts: list[np.ndarray], whole: Config) -> np.ndarray:
    if name in names_of_copies(whole, len(parts)):
        return _without_copies(name, parts, heads_of_keys(whole, len(parts)))
    if name in SPLIT:
        return np.concatenate(parts, SPLIT[name])
    return np.add.reduce(parts).astype(parts[0].dtype) if name == ONCE else parts[0].copy()


def _without_copies(name: str, parts: list[np.ndarray], heads: list[list[int]]) -> np.ndarray:
    """A weight with each head of keys once; heads: those of each part. Raises ValueError if copies of a head differ."""
    found: dict[int, tuple[int, np.ndarray]] = {}  # of each head, the first part that has it
    for number, (X, own) in enumerate(zip(parts, heads, strict=True)):
        for head, columns in zip(own, np.split(X, len(own), -1), strict=True):
            first, expected = found.setdefault(head, (number, columns))
            if not np.array_equal(columns, expected, equal_nan=True):
                raise ValueError(
                    f"parts[{number}] has other numbers in {name} for head {head} of keys than its first copy, in "
                    f"parts[{first}], expected the same; when parts are trained, add up the gradients of all copies"
                )
    return np.concatenate([columns for _, columns in found.values()], -1)
