"""Load a layer of each of two files, where one file says an option that the other does not."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from mha import weights
from mha.core.options.config import SILENT, Config
from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention, restore
from mha.models.files.one_file import File, Layer
from mha.weights import argument_names, schemes

Side = tuple[File, Layer]
Options = dict[str, Any]
Loaded = tuple[MultiHeadAttention, Options]  # with the options that the file does not say
STAND_INS: Options = {"rotary": None, "qk_norm": "rms"}  # of options that change no weight, until the other's are known


def load_both(a: Side, b: Side, given: Options) -> tuple[Loaded, Loaded]:
    """Load the layers of two files; an option that one file lacks is the given one, or else the other file's.

    Raises TypeError, which names the file, if neither says it.
    """
    sides, known = (a, b), STAND_INS | given
    found = [try_to_load(*side, known) for side in sides]
    heads = [one[0].config.num_heads for one in found if not isinstance(one, argument_names.LackingError)]
    if not heads:  # all else has a stand-in
        refuse(sides, found[0])
    known = {"num_heads": heads[0]} | known
    found = [
        try_to_load(*side, known) if isinstance(one, argument_names.LackingError) else one
        for side, one in zip(sides, found, strict=True)
    ]
    first, second = (one for one in found if not isinstance(one, argument_names.LackingError))
    return complete_options(a, first, b, second, given), complete_options(b, second, a, first, given)


def try_to_load(file: File, layer: Layer, known: Mapping[str, Any]) -> Loaded | argument_names.LackingError:
    """Load a layer with known options that its file lacks; or return the error that names another."""
    used: Options = {}
    while True:
        options = {name: X for name, X in used.items() if name != "num_heads"}
        try:
            with file.open() as source:
                config, arrays = weights.take(source, *layer, used.get("num_heads"), options)
            return restore(config, arrays, "numpy"), used
        except argument_names.LackingError as error:
            if error.argument in used or error.argument not in known:
                return error
            used[error.argument] = fit_option(known[error.argument], layer)


def complete_options(side: Side, own: Loaded, other_side: Side, other: Loaded, given: Options) -> Loaded:
    """Give a layer the options that its file lacks and the other file has."""
    (file, layer), (lender, lent_layer) = side, other_side
    (attention, used), (lending, borrowed) = own, other
    options = dict(used)
    for name in STAND_INS.keys() & used.keys() - given.keys():
        value = getattr(lending.config, name)
        if name in borrowed and file.parts and lender.parts:
            continue  # names of their own say nothing of it, nor need they
        if name in borrowed or (name == "qk_norm" and value is None):
            error = try_to_load(file, layer, {one: X for one, X in used.items() if one != name})
            refuse((side, other_side) if name in borrowed else (side,), error)
        options[name] = fit_option(value, layer)
    if file.silent(layer) and attention.config.key_dim == lending.config.key_dim:
        for name in SILENT:
            says = name in borrowed or not lender.silent(lent_layer) or name in schemes.SCHEMES[lent_layer[0]].implied
            if says and name not in used and name not in schemes.SCHEMES[layer[0]].implied:
                value = fit_option(getattr(lending.config, name), layer)
                if value != getattr(attention.config, name):
                    options[name] = value
    changed = {name: X for name, X in options.items() if getattr(attention.config, name) != X}
    if changed:
        attention = restore(dataclasses.replace(attention.config, **changed), attention.weights, "numpy")
    return attention, options


def lendable_options(config: Config) -> Options:
    """Return the options of a layer that another layer, whose file lacks them, may take."""
    return {name: getattr(config, name) for name in ("num_heads", *STAND_INS)}


def fit_option(value: Any, layer: Layer) -> Any:
    """Turn an option of another layer into one of this layer's scheme."""
    scheme = schemes.SCHEMES[layer[0]]
    if isinstance(value, Rotary) and scheme.may_rotate:
        return dataclasses.replace(value, interleaved=scheme.interleaved)
    return value


def refuse(sides: tuple[Side, ...], error: Any) -> NoReturn:
    """Raise TypeError: these files do not say an option."""
    named = [f"{os.fspath(file.path)} ({file.side.upper()})" for file, _ in sides]
    raise TypeError(f"{' and '.join(named)} {'does' if len(named) == 1 else 'do'} not say everything: {error}")
