"""Rename a layer's parts as in a checkpoint, so that its framework loads the arrays by itself."""

import dataclasses

from mha.core.options import checks
from mha.core.options.config import Config, shapes
from mha.core.options.names import BackendName
from mha.learn.write.recipe import Recipe
from mha.learn.write.trees import nodes
from mha.learn.write.trees.program import LAYER, Program
from mha.weights import SCHEMES
from mha.weights.schemes.table import ArrayPlace

# Where a part has an array `weight`, (out, in), and may have one `bias`, as in the files of most schemes.
ALIKE = ("torch", "mlx")


def places(config: Config, scheme: str) -> dict[str, ArrayPlace]:
    """The place of each weight of a layer, biases included, in the files of a scheme, by its canonical name."""
    known = SCHEMES[scheme]  # type: ignore[index]
    every = known.places | dict(known.gate)
    return {name: every[name] for name in shapes(dataclasses.replace(config, bias=True)) if name in every}


def packs(scheme: str | None) -> bool:
    """Whether the files of a scheme have queries, keys and values in one array."""
    return scheme is not None and SCHEMES[scheme].places["W_q.kernel"].part is not None  # type: ignore[index]


def may_have_biases(scheme: str | None) -> bool:
    """Whether the files of a scheme may have biases."""
    return scheme is None or "W_q.bias" in SCHEMES[scheme].places  # type: ignore[index]


def refuse(config: Config, scheme: str | None) -> None:
    """Raise ValueError if the files of a scheme have no place for the weights of a layer."""
    if scheme is None:
        return
    checks.choice("names", scheme, tuple(SCHEMES))
    found = places(config, scheme)
    lacking = [name for name in shapes(config) if name not in found]
    gate = found.get("W_g.kernel")
    if gate is not None and "H" in gate.axes and config.output_gate == "head":
        lacking.append("output_gate of heads")
    packed = next((place.name for place in found.values() if place.part), None)
    if packed and config.num_key_value_heads < config.num_heads and not SCHEMES[scheme].grouped:  # type: ignore[index]
        lacking.append("num_key_value_heads")
    if lacking:
        raise ValueError(f"names is {scheme!r}, whose files have no {lacking[0]}; choose another or leave it out")
    sizes = {"value_dim": config.key_dim}
    sizes |= {"key_size": config.query_size, "value_size": config.query_size} if packs(scheme) else {}
    for name, size in sizes.items():
        if packed and getattr(config, name) != size:
            raise ValueError(
                f"names is {scheme!r}, whose {packed} packs queries, keys and values, but {name} is "
                f"{getattr(config, name)}, expected {size} as of queries; choose another or leave it out"
            )


def own_names(config: Config, backend: BackendName, scheme: str | None) -> dict[str, str]:
    """The names of a layer's arrays in the files of a scheme, by their canonical names.

    Empty if there is no scheme, or if no renaming of parts fits: arrays are packed, have other axes, or lie deeper.
    """
    if scheme is None:
        return {}
    found = places(config, scheme)
    plain = all(
        not place.part and place.axes in ("oi", "o", "d", "H") and place.name.count(".") <= 1
        for place in found.values()
    )
    return {name: place.name for name, place in found.items()} if plain and backend in ALIKE else {}


def loads(recipe: Recipe) -> bool:
    """Whether a layer needs a method `load` for a scheme's files, because no renaming of its parts fits."""
    return recipe.names is not None and not own_names(recipe.config, recipe.backend, recipe.names)


def rename_parts(program: Program, own: dict[str, str]) -> None:
    """Give the parts of a layer the names that these arrays have."""
    parts = {name.partition(".")[0]: other.partition(".")[0] for name, other in own.items()}
    by = {f"self.{part}": nodes.expression(f"self.{other}") for part, other in parts.items()}
    program.definitions[LAYER] = nodes.replace(program.definitions[LAYER], by, stores=True)
    scales = {other.partition(".")[2] for name, other in own.items() if name.endswith(".scale")}
    if scales and "HeadNorm" in program.definitions:
        (scale,) = scales
        norm = {"self.scale": nodes.expression(f"self.{scale}")}
        program.definitions["HeadNorm"] = nodes.replace(program.definitions["HeadNorm"], norm, stores=True)
