"""What a configuration and a call say before anything is computed: which options there are, and their names."""

from collections.abc import Collection
from typing import Any

from mha.core.call import ARGUMENTS
from mha.core.options.config import Config
from mha.learn.write.trees.folding import PRESENT

# Of which the existence is decided when a file is written; what they hold stays an argument of its layer.
NUMBERS = "scale", "softcap", "chunk"
SIZES = "query_size", "key_size", "value_size"


def known(config: Config, asked: Collection[str]) -> dict[str, Any]:
    """What is known of a layer with this configuration and of calls with these arguments, by expressions."""
    found: dict[str, Any] = {f"config.{name}": _present(getattr(config, name)) for name in NUMBERS}
    found["config.pooling"] = config.pooling
    found["config.sinks"] = config.sinks
    found["config.output_gate"] = config.output_gate
    found["config.window"] = None if config.window is None else tuple(map(_present, config.window))
    for name in ("qk_norm", "value_norm"):
        norm = getattr(config, name)
        found[f"config.{name}"] = _present(norm)
        if norm is not None:
            found |= {f"config.{name}.{field}": getattr(norm, field) for field in ("kind", "over", "after")}
    found["config.rotary"], found["config.temperature"] = _present(config.rotary), _present(config.temperature)
    if config.rotary is not None:
        found["config.rotary.interleaved"] = config.rotary.interleaved
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


def names(config: Config) -> dict[str, str]:
    """Expressions in the place of those of a configuration that say the same as another in this layer."""
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
    return found


def constructor(config: Config) -> dict[str, tuple[Any, str]]:
    """The arguments of a layer's constructor, by the expression that each stands for: its name and default as text."""
    found: dict[str, Any] = {"config.num_hiddens": ("num_hiddens", ""), "config.num_heads": ("num_heads", "")}
    found["config.dropout"] = "dropout", repr(config.dropout)
    found["config.bias"] = "bias", repr(config.bias)
    for name in (*SIZES, "key_dim", "value_dim", "num_key_value_heads", "scale", "softcap", "window", "chunk"):
        found[f"config.{name}"] = name, repr(getattr(config, name))
    for name, fields in {
        "rotary": ("dim", "base", "frequencies", "magnitude"),
        "qk_norm": ("eps",),
        "value_norm": ("eps",),
        "temperature": ("scale", "floor", "shift"),
    }.items():
        option = getattr(config, name)
        if option is not None:
            found |= {f"config.{name}.{field}": (f"{name}_{field}", repr(getattr(option, field))) for field in fields}
    found["config.dtype"] = "dtype", repr(config.dtype).replace("'", '"')
    return found


def by_width(config: Config) -> bool:
    """Whether the width of a head is that of the output over the number of heads."""
    return config.num_hiddens % config.num_heads == 0 and config.key_dim == config.num_hiddens // config.num_heads


def _present(value: Any) -> Any:
    return None if value is None else PRESENT
