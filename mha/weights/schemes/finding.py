"""Find layers by the names that libraries give their arrays."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mha.core.options import checks
from mha.core.options.names import SchemeChoice, SchemeName
from mha.core.options.norms import SHIFTS
from mha.core.options.positions import Rotary
from mha.weights import argument_names
from mha.weights.schemes import refusal
from mha.weights.schemes.table import SCHEMES

_ATTENTION = re.compile(r"att(ention|n)|qkv|(^|[._])(q|k|v|query|key|value)([._]|$)", re.IGNORECASE)
LISTED = 8  # so many names of a long list are shown
Formats = Callable[[str], str]  # the format that the file of an array says in its metadata, "" = none


def no_format(name: str) -> str:
    """Return the format of arrays that are in no file."""
    return ""


def recognise(names: Iterable[str], formats: Formats = no_format) -> list[tuple[SchemeName, str]]:
    """List every layer that names, and the formats of their files, show, as (scheme, prefix), in their order."""
    at = {name: number for number, name in enumerate(names)}
    found: dict[tuple[SchemeName, str], int] = {}
    for scheme, description in SCHEMES.items():
        first, *others = description.kernels
        for name in at:
            prefix = name.removesuffix(first)
            at_start = name == first or (prefix != name and prefix.endswith("."))
            if not at_start or not all(prefix + kernel in at for kernel in others):
                continue
            if not description.format or formats(name) == description.format:
                found[scheme, prefix] = at[name]
                if description.instead:
                    found.pop((description.instead, prefix), None)
    return sorted(found, key=lambda layer: found[layer])


def fits_choice(asked: str, scheme: SchemeName) -> bool:
    """Whether a scheme is one that is asked for; the scheme of the same names in another format counts, too."""
    description = SCHEMES[scheme]
    return asked in ("auto", scheme) or bool(description.format and description.instead == asked)


def choose(
    names: Iterable[str], scheme: str = "auto", prefix: str | None = None, formats: Formats = no_format
) -> tuple[SchemeName, str]:
    """Return the scheme and prefix of the one layer that fits the arguments.

    Args:
        names: of all arrays.
        scheme: a scheme's name; "auto" = found from the names.
        prefix: beginning of the names of the layer's arrays, the last dot may be left out; None = any.
        formats: as of `recognise`; a scheme that is asked for by its name says its own.

    Raises:
        TypeError: if scheme or prefix is no str.
        ValueError: if no layer fits, or more than one; the message lists the layers that are there. Or if a kernel of
            it is missing, or there are arrays that mha has no place for. An UnreadError if the arrays are of a kind
            that is not read.
    """
    names = list(names)
    known: tuple[SchemeChoice, ...] = ("auto", *SCHEMES)
    scheme = checks.choice(argument_names.name("scheme"), scheme, known)
    if not isinstance(prefix, str | None):
        raise TypeError(f"{argument_names.name('prefix')} is a {type(prefix).__name__}, expected a str or None")
    if scheme != "auto" and (own := SCHEMES[scheme].format):
        found = recognise(names, lambda name: own)
    else:
        found = recognise(names, formats)
    fitting = [
        layer
        for layer in found
        if fits_choice(scheme, layer[0]) and (prefix is None or layer[1].removesuffix(".") == prefix.removesuffix("."))
    ]
    if len(fitting) == 1:
        return fitting[0]
    begin = f"{prefix.removesuffix('.')}." if prefix else ""
    if scheme != "auto" and prefix is not None and any(begin + name in names for name in SCHEMES[scheme].names):
        return scheme, begin  # `layer_names` says what is missing
    if fitting:
        raise ValueError(f"{len(fitting)} attention layers are there, expected one; choose {_list_layers(fitting)}")
    if prefix is not None and scheme == "auto" and (likely := _likely(names, begin)):
        return likely, begin  # `layer_names` says what is missing
    near = [layer for layer in found if layer[1].startswith(begin)]
    if not near:
        refusal.refuse(name for name in names if name.startswith(begin))
    if found:
        wanted = argument_names.setting(scheme=scheme, prefix=prefix)
        raise ValueError(f"no attention layer is there with {wanted}; choose {_list_layers(near or found)}")
    shown = sorted(names, key=lambda name: _ATTENTION.search(name) is None)  # which keeps their order otherwise
    arrays = ", ".join(shown[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    raise ValueError(
        "no attention layer of a known scheme is there; rename its arrays as one of mha.weights.SCHEMES does, such as "
        "W_q.weight, W_k.weight, W_v.weight and W_o.weight of 'd2l' where kernels are (out, in), or W_q.kernel and so "
        "on of 'mha' where they are (in, out), and pass them to mha.from_native; the arrays are "
        f"{arrays or 'none'}"
    )


def layer_names(names: Iterable[str], scheme: SchemeName, prefix: str) -> list[str]:
    """Return the names of the arrays that hold the weights of the layer with this prefix; an error as of `choose`."""
    description = SCHEMES[scheme]
    places = {prefix + place.name for _, place in description.every}
    own = [name for name in names if name.startswith(prefix)]
    foreign = [name for name in own if name not in places and not description.pattern(name[len(prefix) :])]
    missing = [prefix + name for name in description.kernels if prefix + name not in own]
    if foreign or missing:
        refusal.refuse(own)
    if foreign:
        norms = [place.name.removesuffix("weight") for weight, place in description.every if weight.endswith(".scale")]
        shifts = all(name in [f"{prefix}{norm}bias" for norm in norms] for name in foreign)
        why = (
            f"the norms {SHIFTS}; leave these arrays out if they are 0"
            if shifts
            else "it computes something else, or the prefix is too short"
        )
        raise ValueError(
            f"the layer at prefix {prefix!r} has {', '.join(foreign[:LISTED])}, for which scheme {scheme!r} has no "
            f"place: {why}"
        )
    if missing:
        raise lacking_error(missing, scheme, prefix, own)
    return [name for name in own if name in places]


def heads_in_shapes(shapes: Mapping[str, tuple[int, ...]], scheme: SchemeName, prefix: str) -> int | None:
    """Return the number of heads, if an array of a layer has an axis for them; else None."""
    for place in SCHEMES[scheme].places.values():
        shape = shapes.get(prefix + place.name, ())
        if "H" in place.axes and len(shape) == len(place.axes):
            return shape[place.axes.index("H")]
    return None


def ask(scheme: SchemeName, options: Mapping[str, Any]) -> None:
    """Raise TypeError if an option is missing that names and shapes do not show; ValueError if it is wrong."""
    description = SCHEMES[scheme]
    pairs = ", interleaved=True" if description.interleaved else ""
    if description.may_rotate and "rotary" not in options:
        turned = argument_names.setting(rotary=argument_names.Code(f"mha.Rotary(base=...{pairs})"))
        raise argument_names.LackingError(
            "rotary",
            "an mha.Rotary or None",
            f"names of scheme {scheme!r} do not show whether positions rotate queries and keys, and no "
            f"{description.config} is there to say it; pass {turned} as the model's configuration says, or "
            f"{argument_names.setting(rotary=None)} if it rotates none"
            + (description.unsure and f"; {description.unsure}"),
        )
    rotary = options.get("rotary")
    if description.interleaved and isinstance(rotary, Rotary) and not rotary.interleaved:
        raise ValueError(
            f"rotary has interleaved=False, expected True: in scheme {scheme!r} the components of a pair lie side by "
            "side; pass rotary=mha.Rotary(base=..., interleaved=True), or rename the arrays as in scheme 'llama' if "
            "the model turns halves"
        )


def lacking_error(missing: list[str], scheme: SchemeName, prefix: str, names: list[str]) -> ValueError:
    """Return the error for a layer that has arrays of these names and lacks others."""
    return ValueError(
        f"the layer at prefix {prefix!r} lacks {', '.join(missing)}, which scheme {scheme!r} needs; "
        f"it has {', '.join(names) or 'nothing'}"
    )


def _likely(names: Iterable[str], begin: str) -> SchemeName | None:
    """Return the scheme with the most kernels whose names begin so, if it is the only one, and has at least two."""
    held = set(names)
    counts = {scheme: sum(begin + name in held for name in one.kernels) for scheme, one in SCHEMES.items()}
    most = max(counts.values())
    best = [scheme for scheme, count in counts.items() if count == most]
    return best[0] if len(best) == 1 and most > 1 else None


def _list_layers(layers: list[tuple[SchemeName, str]]) -> str:
    listed = "; ".join(argument_names.setting(scheme=scheme, prefix=prefix) for scheme, prefix in layers[:LISTED])
    return listed + (f"; and {len(layers) - LISTED} more" if len(layers) > LISTED else "")
