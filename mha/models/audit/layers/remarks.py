"""The notes of an audit on the layers of layers=: what it took from the model itself, and what it guessed."""

from collections.abc import Mapping, Sequence
from typing import Any

from mha.core.tables import few, plural
from mha.models.audit.layers.partners import Where
from mha.models.audit.layers.reference import Reference, fits
from mha.models.audit.layers.user_layers import parts_of, parts_of_like
from mha.weights.projections import biases_of


def notes_on_biases(user_layers: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[str]:
    """Say which projections have no bias, though others of the layer, or of layers described alike, have one.

    user_layers: by path, the value in layers=; arrays: of the model.
    """
    notes = []
    for user_layer in {id(one): one for one in user_layers.values() if isinstance(one, Mapping)}.values():
        if (parts := parts_of(user_layer)) is None:
            continue
        biases = {path: biases_of(arrays, path, parts) for path, one in user_layers.items() if one is user_layer}
        if not any(any(one.values()) for one in biases.values()):
            continue
        bare = {path: tuple(parts.names[role] for role, X in one.items() if X is None) for path, one in biases.items()}
        for names in dict.fromkeys(filter(None, bare.values())):
            where = [path for path, one in bare.items() if one == names]
            notes.append(
                f"no bias: {', '.join(dict.fromkeys(names))} in {plural(len(where), 'layer')} "
                f"({', '.join(few(where))}), though other projections have one: whether it was left out is not seen "
                "without like="
            )
    return notes


def notes_on_guesses(
    user_layers: Mapping[str, Any], where: Mapping[str, Where], kernels: Sequence[str], reference: Reference
) -> list[str]:
    """Say which layers of like= were paired by order alone, and which kernels lie as their name says.

    user_layers: by path, the value in layers=; where: as of `partners_of`; kernels: the names of their arrays.
    """
    pairs = []
    for path, (other, _) in where.items():
        parts = parts_of_like(user_layers[path])
        if not fits(other, path) and (parts is None or parts.path is None):
            pairs.append(f"{path} with {other or 'the only layer'}")
    notes = []
    if pairs:
        notes.append(
            f"compared by the order of their paths: {', '.join(few(pairs))} of {reference.origin}; if that is wrong, "
            "say like='...' in layers="
        )
    if kernels:
        notes.append(
            f"taken as (out, in), as PyTorch's of this name are: {', '.join(few([*kernels]))} of {reference.origin}; "
            "if they are (in, out), say like=dict(axes='io') in layers="
        )
    return notes
