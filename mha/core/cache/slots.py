"""The arrays of a cache: their names and shapes, those of an empty and of a frozen one, and integers for them.

Letters: B batch, G heads of keys and values, S slots, K key-value pairs, d width of a key head, dv of a value head.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import Config, numpy_dtype

LOST = 2**31 - 1  # beyond every position: what a sample has lost that has lost what it needs
ARRAYS = "keys", "values", "positions", "lengths", "lost"


def local_config(layer: Any) -> Config:
    """Return the configuration of the heads of a layer that are on this rank, where they are split over several."""
    config: Config = getattr(layer, "kept", None) or layer.config
    return config


def count_ranks(layer: Any) -> int:
    """Return the number of ranks that share the slots of a layer's cache; each has keys and values of its own slots."""
    return getattr(layer, "slot_parts", 1)


def shapes(config: Config, batch_size: int, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a cache's arrays by name, for a layer's configuration and a number of samples and slots."""
    B, G, S = batch_size, config.num_key_value_heads, size
    heads = {"keys": (B, G, S, config.key_dim), "values": (B, G, S, config.value_dim)}
    return heads | {"positions": (B, S), "lengths": (B,), "lost": (B,)}


def dtypes(config: Config) -> dict[str, str]:
    """The dtypes of a cache's arrays by name, for a layer's configuration."""
    return dict.fromkeys(ARRAYS, "int32") | dict.fromkeys(ARRAYS[:2], config.dtype)


def left_of(limits: Any, anywhere: int | None = None) -> int | None:
    """Return how many positions before its own a query sees at most.

    limits: a configuration or the plan of a call, with its window and chunk; anywhere: the result without both.
    """
    left = anywhere if limits.window is None or limits.window[0] is None else limits.window[0]
    if limits.chunk is None:
        return left
    return limits.chunk - 1 if left is None else min(left, limits.chunk - 1)


def empty_arrays(config: Config, batch_size: int, size: int | None, parts: int = 1) -> dict[str, np.ndarray]:
    """The arrays of an empty cache, by name; size: slots, None = as many as a query sees by window or chunk.

    parts: how many ranks have keys and values of equally many of the slots; where they do not divide what a query sees,
    there are more.
    """
    left = left_of(config)
    if size is None and left is None:
        raise ValueError(
            "size is None, expected how many tokens the cache shall hold: only a layer with a window to the left, "
            "or with chunks, knows that by itself"
        )
    S = -(-(left + 1) // parts) * parts if size is None and left is not None else checks.size("size", size)
    if S % parts:
        raise ValueError(f"size is {S}, expected a multiple of the {parts} ranks that have the slots")
    B, kinds = checks.size("batch_size", batch_size), dtypes(config)
    filled = dict.fromkeys(ARRAYS, 0) | {"positions": -1, "lost": -1}
    sizes = shapes(config, B, S) | {name: X for name, X in shapes(config, B, S // parts).items() if name in ARRAYS[:2]}
    return {name: np.full(shape, filled[name], numpy_dtype(kinds[name])) for name, shape in sizes.items()}


def last_heads(steps: Mapping[str, Any], role: Literal["k", "v"]) -> Any:
    """Return the heads of keys or values that queries attend to, from the steps of a call: the last ones."""
    names = f"split_{role}", f"norm_{role}", f"rotate_{role}"
    return [X for name, X in steps.items() if name in names][-1]


def freeze(config: Config, steps: dict[str, np.ndarray], valid_lens: Any, key_positions: Any) -> dict[str, np.ndarray]:
    """Make the arrays of a frozen cache, by name, from the steps of a call with these lengths and positions of keys."""
    both = last_heads(steps, "k"), last_heads(steps, "v")  # (B*G, K, d), (B*G, K, dv)
    keys, values = (X.reshape(-1, config.num_key_value_heads, *X.shape[1:]) for X in both)  # (B, G, K, d)
    (B, _, K, _), each = keys.shape, np.arange(keys.shape[2])
    given: Any = each if key_positions is None else integers("key_positions", key_positions)
    places = np.broadcast_to(np.maximum(given, -1), (B, K))  # (B, K)
    if valid_lens is not None:
        lengths = np.asarray(integers("valid_lens", valid_lens))
        if lengths.ndim != 1:
            raise ValueError(f"valid_lens has shape {lengths.shape}, expected ({B},): how many keys of a sample count")
        places = np.where(each < lengths[:, None], places, -1)  # (B, K)
    heads = (np.where((places >= 0)[:, None, :, None], X, 0).astype(X.dtype) for X in (keys, values))
    found = *heads, places, (places >= 0).sum(1), np.full(B, -1)
    return dict(zip(ARRAYS, [*found[:2], *(X.astype(np.int32) for X in found[2:])], strict=True))


def integers(name: str, value: Any) -> np.ndarray | None:
    """Turn integers of any framework, or nested lists, into a NumPy array; None if only a compiler knows the values."""
    backend = dispatch.backend_of(value)
    known = dispatch.load(backend).value_of(value) if backend else np.asarray(value)
    if known is not None and (known.dtype.kind not in "iu" and known.size):
        raise TypeError(f"{name} is {checks.brief(value)}, expected integers")
    return known
