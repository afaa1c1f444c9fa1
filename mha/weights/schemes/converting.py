"""Convert the arrays of a layer, in the names and layout of a scheme, to canonical weights and back.

Names and shapes cannot show everything: whether positions rotate queries and keys, for example, must be given as an
option.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.core.options.config import Config, shapes, special
from mha.core.options.names import SchemeName
from mha.weights import argument_names
from mha.weights.schemes.axes import SHARED, check_each, groups_of, heads_of, pack_parts, unpack, with_axes
from mha.weights.schemes.finding import lacking_error, layer_names
from mha.weights.schemes.sizes import FOLDED, NORMED, PROJECTIONS, TIED, config_of_sizes
from mha.weights.schemes.table import SCHEMES


def to_canonical(
    arrays: Mapping[str, np.ndarray], scheme: SchemeName, prefix: str = "", num_heads: int | None = None, **options: Any
) -> tuple[Config, dict[str, np.ndarray]]:
    """Convert a layer's arrays to its configuration and canonical weights, which are copies.

    Args:
        arrays: NumPy arrays by the scheme's names, with the prefix in front.
        scheme, prefix: as `choose` returns them.
        num_heads: the number of heads H; None if the arrays have an axis for the heads.
        **options: of the configuration: those that names and shapes do not show, and sizes, which they must agree with;
            also FOLDED, BARE and TIED of `sizes`.

    Raises:
        TypeError, ValueError: if an array is missing or has no place in a layer, if shapes, dtypes, biases or heads do
            not fit together, or if a weight is NaN or infinite.
    """
    config = describe(arrays, scheme, prefix, num_heads, **options)
    scheme = fitting_twin({name: X.shape for name, X in arrays.items()}, scheme, prefix)
    for _, place in SCHEMES[scheme].every:
        if (name := prefix + place.name) in arrays:
            checks.finite(name, arrays[name])
    canonical = unpack_arrays(arrays, scheme, config, prefix)
    kind = canonical["W_q.kernel"].dtype
    # A bias that is missing is 0, the weight of a norm 1.
    none = {weight: np.full(shape, weight.endswith("_norm.scale"), kind) for weight, shape in shapes(config).items()}
    weights = {weight: checks.plain(canonical.get(weight, none[weight])).copy() for weight in none}
    if options.get(FOLDED):
        exact = np.float64 if config.dtype == "float64" else np.float32
        for name in NORMED:
            if name not in weights:
                raise ValueError(f"{FOLDED} is True, but the layer has no norms of queries and keys")
            weights[name] = (1 + weights[name].astype(exact)).astype(weights[name].dtype)
    return config, weights


def unpack_arrays(
    arrays: Mapping[str, np.ndarray], scheme: SchemeName, config: Config, prefix: str = ""
) -> dict[str, np.ndarray]:
    """Convert arrays in a scheme's layout, such as weights or their gradients, to canonical names and layouts.

    config: of the layer. Arrays that are missing are left out, and nothing is checked.
    """
    heads = config.num_heads, config.num_key_value_heads
    return {
        weight: unpack(arrays[prefix + place.name], place, *heads)
        for weight, place in SCHEMES[scheme].of_layer(arrays, prefix, config.output_gate is not None)
        if prefix + place.name in arrays
    }


def describe(
    arrays: Mapping[str, np.ndarray], scheme: SchemeName, prefix: str = "", num_heads: int | None = None, **options: Any
) -> Config:
    """Return the configuration of a layer, from the shapes and dtypes of its arrays alone.

    Arguments and errors as for `to_canonical`, except that numbers are not checked.
    """
    names = layer_names(arrays, scheme, prefix)
    scheme = fitting_twin({name: arrays[name].shape for name in names}, scheme, prefix)
    description = SCHEMES[scheme]
    of_layer = description.of_layer(names, prefix, options.get("output_gate") is not None)
    named = [(weight, dataclasses.replace(place, name=prefix + place.name)) for weight, place in of_layer]
    every, places = dict(named), {weight: place for weight, place in named if place.name in names}
    its_own = {prefix + description.places[f"{name}.kernel"].name for name in description.tied}
    tied = checks.flag(TIED, options.pop(TIED, False))
    checks.flag(FOLDED, options.pop(FOLDED, False))  # which `to_canonical` does, to the numbers
    if (untied := sorted(its_own.difference(names))) and not tied:
        raise lacking_error(untied, scheme, prefix, names)
    check_each(arrays, places, description.grouped)
    num_heads, key_heads = heads_of(arrays, places, num_heads, description.grouped)
    groups = groups_of(arrays, places, num_heads) if description.grouped else num_heads
    if key_heads is not None:
        options.setdefault("num_key_value_heads", key_heads)
    canonical = {weight: unpack(arrays[place.name], place, num_heads, groups) for weight, place in places.items()}
    biased = tuple(name for name in PROJECTIONS if f"{name}.bias" in canonical)
    if biased not in ((), PROJECTIONS, *description.biases):
        lacking = {every[f"{name}.bias"].name: None for name in PROJECTIONS if name not in biased}
        raise ValueError(f"the layer lacks {', '.join(lacking)}, though other projections of it have biases")
    norms = [weight for weight in NORMED if weight in canonical]
    if len(norms) == 1:
        (absent,) = set(NORMED) - set(norms)
        raise ValueError(f"the layer lacks {every[absent].name}, though it has {every[norms[0]].name}")
    has_sinks = "sinks" in canonical
    if options.setdefault("sinks", has_sinks) != has_sinks:
        raise ValueError(
            f"{argument_names.name('sinks')} is {options['sinks']}, but the layer has {'' if has_sinks else 'no '}sinks"
        )
    called = {weight: place.name for weight, place in places.items()}
    implied = {name: value for name, value in description.implied.items() if name != "qk_norm" or norms}
    return config_of_sizes(canonical, called, num_heads, description.grouped, implied | options)


def fitting_twin(shapes: Mapping[str, tuple[int, ...]], scheme: SchemeName, prefix: str) -> SchemeName:
    """Return the scheme, or its twin of the same names with transposed kernels, if the shapes fit that one alone.

    nanoGPT has the names of GPT-2, and kernels (out, in): packed ones show it, since queries, keys and values have
    three times as many outputs as the output's kernel has inputs.
    """
    twins = [twin for twin, one in SCHEMES.items() if one.format and scheme in (twin, one.instead)]
    pairs = {one for twin in twins for one in (twin, SCHEMES[twin].instead) if one}
    fitting = []
    for one in pairs:
        packed, output = (SCHEMES[one].places[f"{name}.kernel"] for name in ("W_q", "W_o"))
        first, last = shapes.get(prefix + packed.name, ()), shapes.get(prefix + output.name, ())
        if len(first) == len(last) == 2 and first[packed.axes.index("o")] == 3 * last[output.axes.index("i")]:
            fitting.append(one)
    return fitting[0] if len(fitting) == 1 else scheme


def from_canonical(config: Config, weights: Mapping[str, np.ndarray], scheme: SchemeName) -> dict[str, np.ndarray]:
    """Return canonical weights by a scheme's names and in its layout, as views if possible.

    The inverse of `to_canonical`. Raises ValueError if the scheme has no place for a weight, or for an option.
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
    return arrange(config, weights, scheme)


def arrange(config: Config, weights: Mapping[str, np.ndarray], scheme: SchemeName) -> dict[str, np.ndarray]:
    """Convert as `from_canonical` does, whatever the options of the layer, which arrays need not show."""
    places = SCHEMES[scheme].places | dict(SCHEMES[scheme].gate)
    groups, packed = config.num_key_value_heads, dict[str, list[np.ndarray]]()
    for weight, place in places.items():
        if weight in weights:
            width = config.key_dim if weight.startswith(("W_q", "W_k")) else config.value_dim
            heads = groups if weight.startswith(SHARED) else config.num_heads
            packed.setdefault(place.name, []).append(with_axes(weights[weight], place.axes, heads, width))
    arrays = {}
    for place in places.values():
        if place.name in packed:
            pieces = packed[place.name]
            counts = config.num_heads, groups, groups
            sizes = {(len(piece) / heads, *piece.shape[1:]) for piece, heads in zip(pieces, counts, strict=False)}
            if len(sizes) > 1:
                shown = ", ".join(str(piece.shape) for piece in pieces)
                raise ValueError(f"scheme {scheme!r} packs arrays of one shape as {place.name}, not {shown}")
            packs = place.part is not None
            arrays[place.name] = pack_parts(pieces, place, config.num_heads, groups) if packs else pieces[0]
    return arrays
