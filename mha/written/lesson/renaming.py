"""The names of a checkpoint's arrays as those of a layer's parts, so that its framework loads them by itself."""

from mha import checks, dispatch
from mha.config import Config, shapes
from mha.names import BackendName
from mha.weights import SCHEMES
from mha.written.trees import nodes
from mha.written.trees.program import LAYER, Program

# Where a part has an array `weight`, (out, in), and may have one `bias`, as in the files of most schemes.
ALIKE = ("torch", "mlx")


def own_names(config: Config, backend: BackendName, scheme: str) -> dict[str, str]:
    """The names of a layer's arrays in the files of a scheme, by their canonical names.

    Raises ValueError if no renaming of its parts can give them: where arrays are packed, lie otherwise or deeper.
    """
    checks.choice("names", scheme, tuple(SCHEMES))
    if backend not in ALIKE:
        title = dispatch.FRAMEWORKS[backend].title
        raise ValueError(f"names is {scheme!r}, expected none for {title}, whose arrays lie otherwise; leave it out")
    known = SCHEMES[scheme]  # type: ignore[index]
    places = known.places | dict(known.gate)
    found = {}
    for name in shapes(config):
        place = places.get(name)
        if place is None:
            raise ValueError(f"names is {scheme!r}, whose files have no {name}; choose another or leave it out")
        if place.part or place.axes not in ("oi", "o", "d", "H") or place.name.count(".") > 1:
            raise ValueError(
                f"names is {scheme!r}, whose {place.name} is no array of one part of a layer, which no renaming gives; "
                "leave names out, and take the weights with mha.load"
            )
        found[name] = place.name
    return found


def renamed(program: Program, own: dict[str, str]) -> None:
    """Give the parts of a layer the names that these arrays have."""
    parts = {name.partition(".")[0]: other.partition(".")[0] for name, other in own.items()}
    by = {f"self.{part}": nodes.expression(f"self.{other}") for part, other in parts.items()}
    program.definitions[LAYER] = nodes.replaced(program.definitions[LAYER], by, stores=True)
    scales = {other.partition(".")[2] for name, other in own.items() if name.endswith(".scale")}
    if scales and "HeadNorm" in program.definitions:
        (scale,) = scales
        norm = {"self.scale": nodes.expression(f"self.{scale}")}
        program.definitions["HeadNorm"] = nodes.replaced(program.definitions["HeadNorm"], norm, stores=True)
