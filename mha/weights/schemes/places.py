"""The description of a naming scheme: the array of each canonical weight, with its axes, and the options it implies.

Axes, in the order in which an array has them: i and o, a projection's inputs and outputs; H and d, heads and the width
of one, into which the outputs of W_q, W_k and W_v and the inputs of W_o may be split.
"""

import dataclasses
import re
from collections.abc import Container, Mapping
from typing import Any, Literal

from mha.core.options.names import SchemeName
from mha.weights.schemes.sizes import PROJECTIONS


@dataclasses.dataclass(frozen=True)
class ArrayPlace:
    """The array that holds a canonical weight.

    name: of the array, after the layer's prefix.
    axes: "io", "oi", "iHd" or "Hdo" for a kernel, "oi1" for that of a convolution over one token; "o" or "Hd" for a
        bias; "d" for the weight of a norm; "H" for sinks.
    part: None, or (i, n): the weight is part i of n that are packed along the outputs.
    by: how they are packed: "all" = one after another; "group" = group by group: query heads of a group, its head of
        keys, its head of values; "head" = head by head: queries of a head, then its gate.
    """

    name: str
    axes: str
    part: tuple[int, int] | None = None
    by: Literal["all", "group", "head"] = "all"


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The names that one library, or one family of models, uses.

    about: a description in one line.
    places: the array of each canonical weight.
    others: places of weights that some of its models name otherwise.
    tied: projections that may have no arrays of their own, and then are another one, by name.
    gate: places of the output gate, which some of its models have.
    gate_beside_queries: True if a gate that has no array of its own lies in the queries' array, head by head.
    biases: sets of projections that may be the only ones with biases; the biases of the others are then zeros.
    beside: patterns of the names of other weights that stand beside these, each of one array: not of the attention.
    buffers: patterns of what a model makes itself, such as its causal order written down: a file may lack it.
    instead: a scheme with the same names: it is this one if the file says its format, or without one if W_q has a bias.
    format: the format that a file says in its metadata if its arrays lie as here, not as in the scheme `instead`.
    grouped: True if several heads of queries may share one head of keys and values.
    may_rotate: True if some of its models rotate positions and others do not, while the names are the same.
    implied: options that its models have unless others are given; an option of norms only if there are norms.
    interleaved: True if the two components of a pair that rotates are neighbours.
    config: the name of the model's configuration file in the same folder; "" = none.
    unsure: how arrays of these names lie here, and in which models otherwise, where only that file says it; "" = so.
    """

    about: str
    places: dict[str, ArrayPlace]
    others: Mapping[str, ArrayPlace] = dataclasses.field(default_factory=dict)
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gate: Mapping[str, ArrayPlace] = dataclasses.field(default_factory=dict)
    gate_beside_queries: bool = False
    biases: tuple[tuple[str, ...], ...] = ()
    beside: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    instead: SchemeName | None = None
    format: str = ""
    grouped: bool = False
    may_rotate: bool = False
    implied: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    interleaved: bool = False
    config: str = ""
    unsure: str = ""

    @property
    def kernels(self) -> dict[str, None]:
        """The names of the arrays that a layer has in any case, each once, that of the kernel of W_q first."""
        needed = {f"{name}.kernel" for name in PROJECTIONS if name not in self.tied}
        needed |= {"W_q.bias"} if self.instead and not self.format else set()
        return {place.name: None for weight, place in self.places.items() if weight in needed}

    @property
    def names(self) -> list[str]:
        """The names of the arrays that a layer usually has."""
        return [place.name for place in self.places.values()]

    @property
    def every(self) -> list[tuple[str, ArrayPlace]]:
        """Each weight with each of its places, the usual one last."""
        return [*self.others.items(), *self.gate.items(), *self.places.items()]

    def of_layer(self, names: Container[str], prefix: str, gated: bool) -> list[tuple[str, ArrayPlace]]:
        """Return the places, as of `every`, in a layer with arrays of these names; gated: has an output gate."""
        gate, places = dict(self.gate), dict(self.places)
        for name, other in self.tied.items():
            if prefix + places[f"{name}.kernel"].name not in names:
                places |= {f"{name}.{kind}": places[f"{other}.{kind}"] for kind in ("kernel", "bias")}
        if gated and self.gate_beside_queries and not any(prefix + place.name in names for place in gate.values()):
            for part, projection in enumerate(("W_q", "W_g")):
                for kind in ("kernel", "bias"):
                    packed = dataclasses.replace(self.places[f"W_q.{kind}"], part=(part, 2), by="head")
                    (places if projection == "W_q" else gate)[f"{projection}.{kind}"] = packed
        return [*self.others.items(), *gate.items(), *places.items()]

    def pattern(self, name: str) -> str:
        """Return the pattern that fits the name of an array beside the weights, after the prefix; "" if none."""
        return next((one for one in (*self.beside, *self.buffers) if re.fullmatch(one, name)), "")


def separate_places(names: str, kernel: str = "weight", axes: str = "oi", bias: str = "bias") -> dict[str, ArrayPlace]:
    """Return places of a kernel and a bias for each projection; names: of W_q, W_k, W_v and W_o; bias: "" = none."""
    places, heads = {}, "H" in axes
    for projection, name in zip(PROJECTIONS, names.split(), strict=True):
        inward = heads and projection == "W_o"
        places[f"{projection}.kernel"] = ArrayPlace(f"{name}.{kernel}", "Hdo" if inward else axes)
        if bias:
            places[f"{projection}.bias"] = ArrayPlace(f"{name}.{bias}", "Hd" if heads and not inward else "o")
    return places


def joint_places(
    packed: str, output: str, axes: str = "oi", by: Literal["all", "group"] = "all", joint: str = "."
) -> dict[str, ArrayPlace]:
    """Return places of queries, keys and values packed in one array, in this order, and of the output in its own.

    joint: before the words weight and bias in the names of the packed arrays.
    """
    places = {}
    for part, projection in enumerate(PROJECTIONS[:3]):
        places[f"{projection}.kernel"] = ArrayPlace(f"{packed}{joint}weight", axes, (part, 3), by)
        places[f"{projection}.bias"] = ArrayPlace(f"{packed}{joint}bias", "o", (part, 3), by)
    return places | {"W_o.kernel": ArrayPlace(f"{output}.weight", axes), "W_o.bias": ArrayPlace(f"{output}.bias", "o")}


def norm_places(names: str, kind: str = "weight") -> dict[str, ArrayPlace]:
    """Return places of the norms of queries and keys; names: of the two."""
    queries, keys = names.split()
    return {"q_norm.scale": ArrayPlace(f"{queries}.{kind}", "d"), "k_norm.scale": ArrayPlace(f"{keys}.{kind}", "d")}
