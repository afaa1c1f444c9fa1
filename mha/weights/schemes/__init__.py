"""Naming schemes: find layers by the names that libraries give their arrays, and convert them."""

from mha.weights.schemes.converting import arrange, describe, fitting_twin, from_canonical, to_canonical, unpack_arrays
from mha.weights.schemes.finding import ask, choose, fits_choice, heads_in_shapes, layer_names, no_format, recognise
from mha.weights.schemes.refusal import UnreadError, kind_by_dtype, kind_by_method, method_of, unreadable
from mha.weights.schemes.sizes import BARE, FOLDED, NORMED, PROJECTIONS, TIED
from mha.weights.schemes.table import SCHEMES

__all__ = [
    "BARE",
    "FOLDED",
    "NORMED",
    "PROJECTIONS",
    "SCHEMES",
    "TIED",
    "UnreadError",
    "arrange",
    "ask",
    "choose",
    "describe",
    "fits_choice",
    "fitting_twin",
    "from_canonical",
    "heads_in_shapes",
    "kind_by_dtype",
    "kind_by_method",
    "layer_names",
    "method_of",
    "no_format",
    "recognise",
    "to_canonical",
    "unpack_arrays",
    "unreadable",
]
