"""A configuration as the options of a command, and back: each option of a layer under its own name."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from mha.core.options.config import PARTS as OF_PARTS
from mha.core.options.config import Config
from mha.core.options.positions import Rotary

# The options that have parts, the class of each, and the part that a value alone stands for.
PARTS: dict[str, tuple[Callable[..., Any], str]] = {
    name: (part, "base" if part is Rotary else dataclasses.fields(part)[0].name) for name, part in OF_PARTS.items()
}


def parse_option(option: str, text: str) -> Any:
    """Read the value of an option with parts: "500000", "base=10000,dim=64,interleaved=true", or "none".

    Raises TypeError or ValueError, which name the option, if the text is not of this form.
    """
    kind, alone = PARTS[option]
    if text == "none":
        return None
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for one in text.split(","):
        name, equals, value = one.partition("=")
        if not equals:
            name, value = alone, one
        if name not in fields or name in given:
            raise ValueError(
                f"--{option.replace('_', '-')} is {text!r}, expected {alone} alone, none, or parts such as "
                f"{alone}=...: {', '.join(fields)}, each once"
            )
        given[name] = _value(value)
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--{option.replace('_', '-')} is {text!r}: {error}") from None


def parse_window(text: str) -> tuple[int | None, int | None] | None:
    """Read a window from "4095,0" or "4095,none"; raises ValueError if the text is not of this form."""
    left, comma, right = text.partition(",")
    if text == "none":
        return None
    try:
        if not comma:
            raise ValueError
        sides = [None if side == "none" else int(side) for side in (left, right)]
    except ValueError:
        raise ValueError(
            f"--window is {text!r}, expected two numbers of keys, before and after a query's own, such as 4095,0; no "
            "bound is none"
        ) from None
    return sides[0], sides[1]


def _value(text: str) -> Any:
    """A number, a switch, several numbers between colons, or a name."""
    if text in ("true", "false"):
        return text == "true"
    if ":" in text:
        return tuple(map(_value, text.split(":")))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def options(config: Config) -> dict[str, Any]:
    """The options of a configuration that are not at their defaults, as JSON."""
    plain = dataclasses.asdict(Config(config.num_hiddens, config.num_heads, key_dim=config.key_dim))
    found = {name: value for name, value in dataclasses.asdict(config).items() if value != plain[name]}
    if config.num_hiddens % config.num_heads or config.key_dim != config.num_hiddens // config.num_heads:
        found["key_dim"] = config.key_dim
    return {"num_hiddens": config.num_hiddens, "num_heads": config.num_heads} | found


def command_options(config: Config) -> list[str]:
    """The options of a command for this configuration."""
    words: list[str] = []
    for name in options(config):
        option = f"--{name.replace('_', '-')}"
        value = getattr(config, name)
        if name in PARTS:
            words += [option, _parts(name, value, config)]
        elif name == "window":
            words += [option, ",".join("none" if side is None else str(side) for side in value)]
        elif isinstance(value, bool):
            words.append(option)
        else:
            words += [option, str(value)]
    return words


def _parts(name: str, value: Any, config: Config) -> str:
    kind, alone = PARTS[name]
    found = []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        one = getattr(value, field.name)
        if name == "rotary" and field.name == "dim" and one == config.key_dim:
            continue
        if one == field.default or (name == "rotary" and field.name == "base" and value.frequencies is not None):
            continue
        text = ":".join(map(repr, one)) if isinstance(one, tuple) else str(one).lower()
        if isinstance(one, float) and math.isfinite(one) and one == int(one):
            text = str(int(one))
        found.append((field.name, text))
    if [each for each, _ in found] == [alone]:
        return found[0][1]
    return ",".join(f"{each}={text}" for each, text in found) or f"{alone}={getattr(value, alone)}"
