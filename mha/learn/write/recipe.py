"""The recipe of a file: a configuration, a framework, the arguments of calls, and three choices about its text."""

import dataclasses
from collections.abc import Collection
from functools import cached_property
from typing import Any

from mha.core import dispatch
from mha.core.call import ARGUMENTS, PACKED
from mha.core.options import checks
from mha.core.options.config import Config, config_of_record
from mha.core.options.names import BackendName
from mha.learn.write import commands

PLAIN = ("valid_lens", "mask", "causal")  # of a call, what every file takes
KINDS = {"jax": ("linen", "nnx")}  # of modules, where a framework has several: the lesson's first
BY_HEADS = ("jax", "mlx")  # whose kernels know shared heads, drop no weights, and take every softmax in float32


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The choices from which a file is made; raises ValueError if a call has no such argument, or a framework no kind.

    Attributes:
        call: arguments of a call beside the plain ones.
        names: a scheme of weights, None = the lesson's names.
        fused: whether the framework's kernel pools.
        kind: of its modules, None = the framework's usual.
    """

    config: Config
    backend: BackendName
    call: Collection[str] = ()
    names: str | None = None
    fused: bool = False
    kind: str | None = None

    def __post_init__(self) -> None:
        for name in self.call:
            checks.choice("call", name, tuple(name for name in ARGUMENTS if name != "training"))
        kinds = KINDS.get(self.backend, ())
        if self.kind is not None and not kinds:
            title = dispatch.facts("TITLE")[self.backend]
            raise ValueError(
                f"kind is {self.kind!r}, expected none for {title}, whose modules are all of one; leave it out"
            )
        if self.kind is not None:
            checks.choice("kind", self.kind, kinds)
        object.__setattr__(self, "call", tuple(sorted(self.call)))
        object.__setattr__(self, "kind", None if self.kind in kinds[:1] else self.kind)

    @cached_property
    def takes(self) -> tuple[str, ...]:
        """The arguments that calls of the file take, in the order of a call."""
        more = {*self.call, *PLAIN}
        if {"key_positions", "cache"} & more:
            more.add("positions")
        if more.intersection(PACKED):
            more.update(PACKED)
        told = "a state of training" in dispatch.FRAMEWORKS[self.backend].lacks
        drops = self.kind != "nnx" and not (self.fused and self.backend in BY_HEADS)
        if drops and (told or self.backend in ("numpy", "tensorflow")):
            more.add("training")
        return tuple(name for name in ARGUMENTS if name in more)

    @property
    def command(self) -> str:
        """The command that writes the file."""
        words = ["mha write", self.backend]
        words += [] if self.kind is None else ["--kind", self.kind]
        words += commands.command_options(self.config)
        words += [] if self.names is None else ["--names", self.names]
        words += ["--fused"] if self.fused else []
        words += ["--call", ",".join(self.call)] if self.call else []
        return " ".join(words)

    def as_json(self) -> dict[str, Any]:
        """The recipe as JSON, without defaults; `read` reads it."""
        found = {"call": self.call, "names": self.names, "fused": self.fused, "kind": self.kind}
        given = {name: X for name, X in found.items() if X}
        return {"backend": self.backend, **given, "config": commands.options(self.config)}


def read(recorded: dict[str, Any]) -> Recipe:
    """Make the recipe from the result of `Recipe.as_json`; KeyError, TypeError or ValueError if it is none."""
    config, backend = config_of_record(recorded["config"]), dispatch.parse_backend("backend", recorded["backend"])
    given = {name: recorded[name] for name in ("call", "names", "fused", "kind") if name in recorded}
    return Recipe(config, backend, **given)
