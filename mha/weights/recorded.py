"""Join the options that a model's configuration records with those that the caller gives."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.positions import Rotary
from mha.weights import argument_names, models
from mha.weights.schemes.sizes import NORMED


def join_options(
    recorded: Mapping[str, Any], num_heads: int | None, given: Mapping[str, Any], where: str
) -> tuple[int | None, bool, dict[str, Any]]:
    """Return the number of heads, whether norms multiply by 1 + w, and the other options of a layer.

    Args:
        recorded: the options that `mha.weights.models` reads.
        num_heads, given: the caller's.
        where: the beginning of the error, such as "has config.json beside it".

    Raises ValueError if the caller contradicts what is recorded.
    """
    heads = argument_names.name("num_heads")
    if num_heads is not None and "num_heads" in recorded and checks.size(heads, num_heads) != recorded["num_heads"]:
        raise ValueError(f"{where}, which says {recorded['num_heads']} heads, but {heads} is {num_heads}; leave it out")
    for name, value in given.items():
        if name in recorded and not _same(value, recorded[name], recorded.get("key_dim", 0)):
            there = argument_names.setting(**{name: recorded[name]})
            raise ValueError(f"{where}, which says {there}, not {value!r}; leave it out")
    options = dict(given) | dict(recorded)
    num_heads = options.pop("num_heads", num_heads)
    return num_heads, checks.flag(models.FOLDED, options.pop(models.FOLDED, False)), options


def fold(config: Config, weights: dict[str, np.ndarray]) -> None:
    """Add 1 to the weights of the norms of queries and keys, in float32 at least."""
    exact = np.float64 if config.dtype == "float64" else np.float32
    for name in NORMED:
        if name not in weights:
            raise ValueError(f"{models.FOLDED} is True, but the layer has no norms of queries and keys")
        weights[name] = (1 + weights[name].astype(exact)).astype(weights[name].dtype)


def _same(given: Any, recorded: Any, width: int) -> bool:
    """Whether a given option has the value that is recorded."""
    if isinstance(given, Rotary) and isinstance(recorded, Rotary):
        return given.within(width) == recorded.within(width)
    return (tuple(given) if isinstance(given, list) else given) == recorded
