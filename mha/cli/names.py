"""Read --names: the names of projections in files whose names no scheme has."""

from collections.abc import Mapping
from typing import Any

from mha.cli import terminal
from mha.weights import argument_names
from mha.weights.projections import check_parts

SPELT = "W_q=to_q,W_k=to_k,W_v=to_v,W_o=to_out"


def parse_names(argument: str, text: str | None) -> dict[str, str] | None:
    """Parse --names, W_q=to_q,W_k=to_k,..., to a dict; argument: its name in Python."""
    if text is None:
        return None
    named = {}
    for one in text.split(","):
        role, equals, name = one.partition("=")
        if not equals or role.strip() in named:
            expected = f"{SPELT}, each once"
            terminal.fail(
                f"{argument_names.name(argument)} has {one!r}, expected a projection, =, and its name: {expected}"
            )
        named[role.strip()] = name.strip()
    with terminal.errors():
        check_parts(argument, named)
    return named


def user_layers(argument: str, text: str | None, options: Mapping[str, Any], causal: bool) -> dict[str, Any] | None:
    """Return layers= for models whose projections --names calls so; None without names, which other options need."""
    if (names := parse_names(argument, text)) is not None:
        return {"*": {**names, **options, "causal": causal}}
    if options or causal:
        terminal.fail("--num-heads, --causal and --rotary say what layers of --names compute, which is not given")
    return None
