"""Join the options that a model's configuration records with those that the caller gives."""

from collections.abc import Mapping
from typing import Any

from mha.core.options import checks
from mha.core.options.positions import Rotary
from mha.weights import argument_names


def join_options(
    recorded: Mapping[str, Any], num_heads: int | None, given: Mapping[str, Any], where: str
) -> tuple[int | None, dict[str, Any]]:
    """Return the number of heads and the other options of a layer; ValueError if the caller contradicts the model.

    recorded: the options that the configuration of the model has; num_heads, given: the caller's; where: the beginning
    of the error, such as "has config.json beside it".
    """
    heads = argument_names.name("num_heads")
    if num_heads is not None and "num_heads" in recorded and checks.size(heads, num_heads) != recorded["num_heads"]:
        raise ValueError(f"{where}, which says {recorded['num_heads']} heads, but {heads} is {num_heads}; leave it out")
    for name, value in given.items():
        if name in recorded and not _same(value, recorded[name], recorded.get("key_dim", 0)):
            there = argument_names.setting(**{name: recorded[name]})
            raise ValueError(f"{where}, which says {there}, not {value!r}; leave it out")
    options = dict(given) | dict(recorded)
    return options.pop("num_heads", num_heads), options


def _same(given: Any, recorded: Any, width: int) -> bool:
    """Whether a given option has the value that is recorded."""
    if isinstance(given, Rotary) and isinstance(recorded, Rotary):
        return given.within(width) == recorded.within(width)
    return (tuple(given) if isinstance(given, list) else given) == recorded
