"""Naming schemes: find layers by the names that libraries give their arrays, and convert them."""

from mha.weights.schemes.converting import arranged, describe, from_canonical, laid, to_canonical, unpacked
from mha.weights.schemes.finding import ask, choose, is_meant, recognise, shown_heads, unsaid, wanted
from mha.weights.schemes.sizes import BARE, NORMED, PROJECTIONS, TIED
from mha.weights.schemes.table import SCHEMES
from mha.weights.schemes.unread import UnreadError, method_of, of_dtype, of_method, unreadable

__all__ = [
    "BARE",
    "NORMED",
    "PROJECTIONS",
    "SCHEMES",
    "TIED",
    "UnreadError",
    "arranged",
    "ask",
    "choose",
    "describe",
    "from_canonical",
    "is_meant",
    "laid",
    "method_of",
    "of_dtype",
    "of_method",
    "recognise",
    "shown_heads",
    "to_canonical",
    "unpacked",
    "unreadable",
    "unsaid",
    "wanted",
]
