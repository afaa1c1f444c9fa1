"""Find layers by the names that libraries give their arrays, and convert them to canonical weights and back.

Names and shapes cannot show everything: whether positions rotate queries and keys, for example, must be given as an
option. The schemes themselves are in `scheme_table.py`.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mha import checks
from mha.config import DTYPES, Config, shapes, special
from mha.names import SchemeChoice, SchemeName
from mha.positions import Rotary
from mha.weights import packing, said
from mha.weights.scheme_table import SCHEMES, Place
from mha.weights.sizes import NORMED, PROJECTIONS, TIED, configured


def recognise(names: Iterable[str]) -> list[tuple[SchemeName, str]]:
    """Every layer that the names show, as (scheme, prefix), in the order of the names."""
    at = {name: number for number, name in enumerate(names)}
    found: dict[tuple[SchemeName, str], int] = {}
    for scheme, description in SCHEMES.items():
        first, *others = description.kernels
        for name in at:
            prefix = name.removesuffix(first)
            at_start = name == first or (prefix != name and prefix.endswith("."))
            if at_start and all(prefix + kernel in at for kernel in others):
                found[scheme, prefix] = at[name]
    return sorted(found, key=lambda layer: found[layer])


def choose(names: Iterable[str], scheme: str = "auto", prefix: str | None = None) -> tuple[SchemeName, str]:
    """The scheme and prefix of the one layer that fits the arguments.

    Args:
        names: of all arrays.
        scheme: a scheme's name; "auto" = found from the names.
        prefix: beginning of the names of the layer's arrays, the last dot may be left out; None = any.

    Raises:
        TypeError: if scheme or prefix is no str.
        ValueError: if no layer fits, or more than one; the message lists the layers that are there.
    """
    names = list(names)
    known: tuple[SchemeChoice, ...] = ("auto", *SCHEMES)
    scheme = checks.choice(said.name("scheme"), scheme, known)
    if not isinstance(prefix, str | None):
        raise TypeError(f"{said.name('prefix')} is a {type(prefix).__name__}, expected a str or None")
    found = recognise(names)
    fitting = [
        layer
        for layer in found
        if scheme in ("auto", layer[0]) and (prefix is None or layer[1].removesuffix(".") == prefix.removesuffix("."))
    ]
    if len(fitting) == 1:
        return fitting[0]
    if scheme != "auto" and prefix is not None:
        begin = prefix and prefix.removesuffix(".") + "."
        if any(begin + place.name in names for place in SCHEMES[scheme].places.values()):
            return scheme, begin  # `wanted` says what is missing
    if fitting:
        raise ValueError(f"{len(fitting)} attention layers are there, expected one; choose {_listed(fitting)}")
    if prefix is not None and scheme == "auto" and (likely := _likely(names, prefix)):
        return likely, prefix and prefix.removesuffix(".") + "."  # `wanted` says what is missing
    wanted = said.setting(scheme=scheme, prefix=prefix)
    if found:
        near = [layer for layer in found if prefix and layer[1].startswith(prefix)] or found
        raise ValueError(f"no attention layer is there with {wanted}; choose {_listed(near)}")
    arrays = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    raise ValueError(
        "no attention layer of a known scheme is there; rename its arrays as one of mha.weights.SCHEMES does and pass "
        f"them to mha.from_native; the arrays are {arrays or 'none'}"
    )


def wanted(names: Iterable[str], scheme: SchemeName, prefix: str) -> list[str]:
    """The names of the arrays that hold the weights of the layer with this prefix.

    Raises ValueError, which names the arrays, if a kernel is missing or if there are arrays that mha has no place for.
    """
    description = SCHEMES[scheme]
    places = {prefix + place.name for _, place in description.every}
    own = [name for name in names if name.startswith(prefix)]
    foreign = [name for name in own if name not in places and not description.pattern(name[len(prefix) :])]
    if foreign:
        raise ValueError(
            f"the layer at prefix {prefix!r} has {', '.join(foreign[:LISTED])}, for which scheme {scheme!r} has no "
            "place: it computes something else, or the prefix is too short"
        )
    if missing := [prefix + name for name in description.kernels if prefix + name not in own]:
        raise _lacking(missing, scheme, prefix, own)
    return [name for name in own if name in places]


def shown_heads(shapes: Mapping[str, tuple[int, ...]], scheme: SchemeName, prefix: str) -> int | None:
    """The number of heads, if an array of a layer has an axis for them; else None."""
    for place in SCHEMES[scheme].places.values():
        shape = shapes.get(prefix + place.name, ())
        if "H" in place.axes and len(shape) == len(place.axes):
            return shape[place.axes.index("H")]
    return None


def to_canonical(
    arrays: Mapping[str, np.ndarray],
    scheme: SchemeName,
    prefix: str = "",
    num_heads: int | None = None,
    dropout: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> tuple[Config, dict[str, np.ndarray]]:
    """Convert a layer's arrays to its configuration and canonical weights, which are copies.

    Args:
        arrays: NumPy arrays by the scheme's names, with the prefix in front.
        scheme, prefix: as `choose` returns them.
        num_heads: the number of heads H; None if the arrays have an axis for the heads.
        dropout: of the configuration.
        options: of the configuration: those that names and shapes do not show, and sizes, which they must agree with.

    Raises:
        TypeError, ValueError: if an array is missing or has no place in a layer, if shapes, dtypes, biases or heads do
            not fit together, or if a weight is NaN or infinite.
    """
    config = describe(arrays, scheme, prefix, num_heads, dropout, options)
    for _, place in SCHEMES[scheme].every:
        if (name := prefix + place.name) in arrays:
            checks.finite(name, arrays[name])
    canonical = unpacked(arrays, scheme, config, prefix)
    kind = canonical["W_q.kernel"].dtype
    # A bias that is missing is 0, the weight of a norm 1.
    none = {weight: np.full(shape, weight.endswith("_norm.scale"), kind) for weight, shape in shapes(config).items()}
    return config, {weight: checks.plain(canonical.get(weight, none[weight])).copy() for weight in none}


def unpacked(
    arrays: Mapping[str, np.ndarray], scheme: SchemeName, config: Config, prefix: str = ""
) -> dict[str, np.ndarray]:
    """Convert arrays in a scheme's layout, such as weights or their gradients, to canonical names and layouts.

    config: of the layer. Arrays that are missing are left out, and nothing is checked.
    """
    heads = config.num_heads, config.num_key_value_heads
    return {
        weight: _unpack(arrays[prefix + place.name], place, *heads)
        for weight, place in SCHEMES[scheme].of_layer(arrays, prefix, config.output_gate is not None)
        if prefix + place.name in arrays
    }


def describe(
    arrays: Mapping[str, np.ndarray],
    scheme: SchemeName,
    prefix: str = "",
    num_heads: int | None = None,
    dropout: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a layer, from the shapes and dtypes of its arrays alone.

    Arguments and errors as for `to_canonical`, except that numbers are not checked.
    """
    names, description, sizes = wanted(arrays, scheme, prefix), SCHEMES[scheme], dict(options or {})
    of_layer = description.of_layer(names, prefix, sizes.get("output_gate") is not None)
    named = [(weight, dataclasses.replace(place, name=prefix + place.name)) for weight, place in of_layer]
    every, places = dict(named), {weight: place for weight, place in named if place.name in names}
    its_own = {prefix + description.places[f"{name}.kernel"].name for name in description.tied}
    tied = checks.flag(TIED, sizes.pop(TIED, False))
    if (untied := sorted(its_own.difference(names))) and not tied:
        raise _lacking(untied, scheme, prefix, names)
    _check_each(arrays, places, description.grouped)
    num_heads, key_heads = _heads(arrays, places, num_heads, description.grouped)
    groups = _groups(arrays, places, num_heads) if description.grouped else num_heads
    if key_heads is not None:
        sizes.setdefault("num_key_value_heads", key_heads)
    canonical = {weight: _unpack(arrays[place.name], place, num_heads, groups) for weight, place in places.items()}
    biased = tuple(name for name in PROJECTIONS if f"{name}.bias" in canonical)
    if biased not in ((), PROJECTIONS, *description.biases):
        lacking = {every[f"{name}.bias"].name: None for name in PROJECTIONS if name not in biased}
        raise ValueError(f"the layer lacks {', '.join(lacking)}, though other projections of it have biases")
    norms = [weight for weight in NORMED if weight in canonical]
    if len(norms) == 1:
        (absent,) = set(NORMED) - set(norms)
        raise ValueError(f"the layer lacks {every[absent].name}, though it has {every[norms[0]].name}")
    has_sinks = "sinks" in canonical
    if sizes.setdefault("sinks", has_sinks) != has_sinks:
        raise ValueError(
            f"{said.name('sinks')} is {sizes['sinks']}, but the layer has {'' if has_sinks else 'no '}sinks"
        )
    called = {weight: place.name for weight, place in places.items()}
    implied = {name: value for name, value in description.implied.items() if name != "qk_norm" or norms}
    return configured(canonical, called, num_heads, description.grouped, {"dropout": dropout} | implied | sizes)


def ask(scheme: SchemeName, options: Mapping[str, Any]) -> None:
    """Raise TypeError if an option is missing that names and shapes do not show; ValueError if it is wrong."""
    description = SCHEMES[scheme]
    pairs = ", interleaved=True" if description.interleaved else ""
    if "rotary" in description.asks and "rotary" not in options:
        turned = said.setting(rotary=said.Code(f"mha.Rotary(base=...{pairs})"))
        raise said.LackingError(
            "rotary",
            "an mha.Rotary or None",
            f"names of scheme {scheme!r} do not show whether positions rotate queries and keys, and no "
            f"{description.config} is there to say it; pass {turned} as the model's configuration says, or "
            f"{said.setting(rotary=None)} if it rotates none",
        )
    rotary = options.get("rotary")
    if description.interleaved and isinstance(rotary, Rotary) and not rotary.interleaved:
        raise ValueError(
            f"rotary has interleaved=False, expected True: in scheme {scheme!r} the components of a pair lie side by "
            "side; pass rotary=mha.Rotary(base=..., interleaved=True), or rename the arrays as in scheme 'llama' if "
            "the model turns halves"
        )


def from_canonical(config: Config, weights: Mapping[str, np.ndarray], scheme: SchemeName) -> dict[str, np.ndarray]:
    """Canonical weights by a scheme's names and in its layout, as views if possible: the inverse of `to_canonical`.

    Raises ValueError if the scheme has no place for a weight, or for an option.
    """
    description = SCHEMES[scheme]
    places = description.places | dict(description.gate)
    held = {name for name, value in description.implied.items() if getattr(config, name) == value}
    held |= {"num_key_value_heads"} if description.grouped else set()
    held |= {"sinks"} & places.keys()
    if "W_g.kernel" in places and (config.output_gate == "element" or places["W_g.kernel"].axes == "oi"):
        held |= {"output_gate"}
    if options := [name for name in special(config) if name not in held]:
        raise ValueError(f"scheme {scheme!r} has no place for {', '.join(options)}")
    for name in description.implied.keys() - held - {"qk_norm"}:
        raise ValueError(f"scheme {scheme!r} has {name}={description.implied[name]}, not {getattr(config, name)}")
    if foreign := [weight for weight in weights if weight not in places]:
        pooling = "" if config.pooling == "dot" else f" of pooling={config.pooling!r}"
        raise ValueError(f"scheme {scheme!r} has no place for {', '.join(foreign)}{pooling}")
    groups, packed = config.num_key_value_heads, dict[str, list[np.ndarray]]()
    for weight, place in places.items():
        if weight in weights:
            width = config.key_dim if weight.startswith(("W_q", "W_k")) else config.value_dim
            heads = groups if weight.startswith(SHARED) else config.num_heads
            packed.setdefault(place.name, []).append(_lay(weights[weight], place.axes, heads, width))
    arrays = {}
    for place in places.values():
        if place.name in packed:
            pieces = packed[place.name]
            counts = config.num_heads, groups, groups
            sizes = {(len(piece) / heads, *piece.shape[1:]) for piece, heads in zip(pieces, counts, strict=False)}
            if len(sizes) > 1:
                shown = ", ".join(str(piece.shape) for piece in pieces)
                raise ValueError(f"scheme {scheme!r} packs arrays of one shape as {place.name}, not {shown}")
            if place.by == "group":
                arrays[place.name] = packing.packed(pieces, groups, config.key_dim)
            else:
                arrays[place.name] = np.concatenate(pieces, place.axes.index("o")) if place.part else pieces[0]
    return arrays


# Helpers of the functions above


def _lacking(missing: list[str], scheme: SchemeName, prefix: str, names: list[str]) -> ValueError:
    """The error where a layer that has arrays of these names lacks others."""
    return ValueError(
        f"the layer at prefix {prefix!r} lacks {', '.join(missing)}, which scheme {scheme!r} needs; "
        f"it has {', '.join(names) or 'nothing'}"
    )


LISTED = 8  # so many names of a long list are shown
SHARED = "W_k", "W_v"  # the projections whose heads may be shared by several heads of queries


def _likely(names: Iterable[str], prefix: str) -> SchemeName | None:
    """The scheme with the most kernels there, if it is one alone, and they are two at least."""
    begin, held = prefix and prefix.removesuffix(".") + ".", set(names)
    counts = {scheme: sum(begin + name in held for name in one.kernels) for scheme, one in SCHEMES.items()}
    most = max(counts.values())
    best = [scheme for scheme, count in counts.items() if count == most]
    return best[0] if len(best) == 1 and most > 1 else None


def _listed(layers: list[tuple[SchemeName, str]]) -> str:
    listed = "; ".join(said.setting(scheme=scheme, prefix=prefix) for scheme, prefix in layers[:LISTED])
    return listed + (f"; and {len(layers) - LISTED} more" if len(layers) > LISTED else "")


def _check_each(arrays: Mapping[str, np.ndarray], places: Mapping[str, Place], grouped: bool) -> None:
    """Check dtype, axes and packing of each array by itself; grouped: True if packed parts may have unequal widths."""
    first, *_ = (arrays[place.name] for place in places.values())
    for place in places.values():
        array = arrays[place.name]
        if (dtype := checks.dtype_name(array.dtype)) not in DTYPES:
            raise TypeError(f"{place.name} has dtype {dtype}, expected one of {', '.join(DTYPES)}")
        if dtype != checks.dtype_name(first.dtype):
            raise TypeError(f"{place.name} has dtype {dtype}, expected one dtype, {first.dtype} as the others")
        if array.ndim != len(place.axes):
            raise ValueError(f"{place.name} has shape {array.shape}, expected {len(place.axes)} axes, {place.axes}")
        if 0 in array.shape:
            raise ValueError(f"{place.name} has shape {array.shape}, expected no size of 0")
        if place.part and not grouped and array.shape[place.axes.index("o")] % place.part[1]:
            raise ValueError(
                f"{place.name} has shape {array.shape}, expected {place.part[1]} projections of equal width packed "
                f"along axis {place.axes.index('o')}"
            )


def _heads(
    arrays: Mapping[str, np.ndarray], places: Mapping[str, Place], num_heads: int | None, grouped: bool
) -> tuple[int, int | None]:
    """The numbers of heads, of queries and of keys and values, as given and as the arrays' axes show; they must agree.

    grouped: True if the second number may be another one; it is None if no axis shows it.
    """
    heads = said.name("num_heads")
    counts = {} if num_heads is None else {"queries": (checks.size(heads, num_heads), heads)}
    for weight, place in places.items():
        if "H" in place.axes:
            count = arrays[place.name].shape[place.axes.index("H")]
            of = "keys" if grouped and weight.startswith(SHARED) else "queries"
            expected, source = counts.setdefault(of, (count, place.name))
            if count != expected:
                raise ValueError(f"{place.name} has {count} heads, expected {expected} as {source}")
    if "queries" not in counts:
        raise said.LackingError(
            "num_heads",
            "an int",
            "neither names nor shapes show the number of heads; pass "
            f"{said.setting(num_heads=said.Code('...'))} as the model's configuration says",
        )
    return counts["queries"][0], counts["keys"][0] if "keys" in counts else None


def _groups(arrays: Mapping[str, np.ndarray], places: Mapping[str, Place], num_heads: int) -> int:
    """The number of groups in an array that packs queries, keys and values; num_heads if they are not packed."""
    place, output = places["W_q.kernel"], places["W_o.kernel"]
    if not place.part or place.by == "head":
        return num_heads
    merged = arrays[output.name].shape[output.axes.index("i")]
    groups = packing.count_groups(place.name, len(arrays[place.name]), output.name, merged, num_heads)
    bias = places.get("W_q.bias", place).name
    if len(arrays[bias]) != len(arrays[place.name]):
        raise ValueError(f"{bias} has {len(arrays[bias])} numbers, expected {len(arrays[place.name])} as {place.name}")
    return groups


def _unpack(array: np.ndarray, place: Place, num_heads: int, groups: int) -> np.ndarray:
    """Take a canonical weight out of the array that is, or contains, it."""
    if place.part and place.by == "head":
        array = packing.of_heads(place.name, array, place.part[0], num_heads)
    elif place.part and place.by == "group":
        array = packing.unpacked(array, place.part[0], num_heads, groups)
    elif place.part:
        array = packing.section(array, place.part[0], num_heads, groups, place.axes.index("o"))
    if place.axes == "oi":
        return array.T  # (in, out)
    if place.axes == "iHd":
        return array.reshape(len(array), -1)  # (in, H*d)
    if place.axes == "Hdo":
        return array.reshape(-1, array.shape[2])  # (H*dv, out)
    return array.reshape(-1) if place.axes == "Hd" else array  # (H*d,), or as it is


def _lay(array: np.ndarray, axes: str, num_heads: int, width: int) -> np.ndarray:
    """Give a canonical weight these axes; width: of a head."""
    if axes == "oi":
        return array.T  # (out, in)
    if axes == "iHd":
        return array.reshape(-1, num_heads, width)  # (in, H, d)
    if axes == "Hdo":
        return array.reshape(num_heads, width, -1)  # (H, dv, out)
    return array.reshape(num_heads, width) if axes == "Hd" else array  # (H, d), or as it is
