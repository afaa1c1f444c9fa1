"""The values that a configuration and the arguments of a call fix before anything is computed."""

import inspect
from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from mha.core.call import ARGUMENTS
from mha.core.options.config import MODERN, PARTS, ROWS, Config
from mha.learn.write.trees import nodes
from mha.learn.write.trees.folding import PRESENT

SIZES = "query_size", "key_size", "value_size"


def values_of(config: Config, asked: Collection[str]) -> dict[str, Any]:
    """The known values in a layer with this configuration and calls with these arguments, by expression."""
    found = {f"config.{name}": _decided(getattr(config, name)) for name in (*MODERN, "pooling")}
    for name, part in PARTS.items():
        option = getattr(config, name)
        values = {} if option is None else {field.name: getattr(option, field.name) for field in fields(part)}
        found |= {f"config.{name}.{field}": X for field, X in values.items() if isinstance(X, str | bool)}
    if config.rotary is not None:
        found["config.rotary.frequencies"] = _present(config.rotary.frequencies)
        if config.rotary.frequencies is not None:
            found["rotary_frequencies"] = PRESENT  # as a parameter of functions
        if config.rotary.magnitude == 1:
            found["config.rotary.magnitude"] = 1.0
    own = {"key_positions"} if "cache" in asked else set()  # what a layer says itself
    found |= {f"call.{name}": default for name, default in ARGUMENTS.items() if name not in {*asked, *own}}
    found |= {"call.traced": False, "call.lesson": True}
    found["call.gates"] = _present(config.output_gate)
    found["call.sinks"] = PRESENT if config.sinks else None
    found["call.window"], found["call.chunk"] = found["config.window"], found["config.chunk"]
    return found


def names(config: Config) -> dict[str, Any]:
    """The expressions of a configuration that equal another one in this layer, each with the tree of that one."""
    found = {f"config.{name}": "config.num_hiddens" for name in SIZES if getattr(config, name) == config.num_hiddens}
    if config.num_key_value_heads == config.num_heads:
        found["config.num_key_value_heads"] = "config.num_heads"
    if config.value_dim == config.key_dim:
        found["config.value_dim"] = "config.key_dim"
    if config.output_gate:
        found["config.gate_dim"] = (
            found.get("config.value_dim", "config.value_dim") if config.output_gate == "element" else "1"
        )
    if config.rotary is not None and config.rotary.dim == config.key_dim:
        found["config.rotary.dim"] = "config.key_dim"
    return {name: nodes.expression(text) for name, text in found.items()}


def constructor(config: Config) -> dict[str, tuple[Any, str]]:
    """The name and the default, as text, of each argument of a layer's constructor, by its expression in the lesson."""
    found: dict[str, tuple[Any, str]] = {}
    for name, row in ROWS.items():
        value = getattr(config, name)
        if row.part is None:
            text = "" if row.default is MISSING else repr(value).replace("'", '"')
            found[f"config.{name}"] = name, text
        elif value is not None:
            parts = [field.name for field in fields(row.part)]
            found |= {f"config.{name}.{part}": (f"{name}_{part}", repr(getattr(value, part))) for part in parts}
    return found


def by_width(config: Config) -> bool:
    """Whether the width of a head is num_hiddens // num_heads."""
    return config.num_hiddens % config.num_heads == 0 and config.key_dim == config.num_hiddens // config.num_heads


def annotation(name: str) -> str:
    """The name of the type of an argument of a layer's constructor: an option, or a part such as rotary_base."""
    hints: dict[str, Any] = {field.name: field.type for field in fields(Config)}
    for option, part in PARTS.items():
        own = {field.name: field.type for field in fields(part)}
        hints |= {f"{of}_{field}": hint for of in (option, part.__name__.lower()) for field, hint in own.items()}
    word = inspect.formatannotation(hints.get(name, int)).partition(" ")[0].partition("[")[0]
    return "str" if word == "Literal" else word


def _present(value: Any) -> Any:
    return None if value is None else PRESENT


def _decided(value: Any) -> Any:
    """The part of an option that is fixed when a file is written: names, switches; of a number, that it is there."""
    if isinstance(value, tuple):
        return tuple(map(_decided, value))
    return value if isinstance(value, str | bool) else _present(value)
