"""Find the projections of a layer whose arrays have names of their own, and which axis of each is the input.

Letters: D features, H heads, d width of a head.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import SchemeName
from mha.weights import argument_names, schemes
from mha.weights.foreign.arrays import to_numpy
from mha.weights.kernels import Kernel, without_window

ROLES = ("W_q", "W_k", "W_v", "W_g", "W_o")
NORMS = ("q_norm", "k_norm")
NEEDED = ("W_q", "W_k", "W_v", "W_o")
PART_KEYS = (*ROLES, *NORMS, "axes")  # what may be said of a layer: names, and how its kernels lie
KERNELS = ("weight", "kernel", "w", "vars.0", "")  # what frameworks call the kernel of a module; "" = the module itself
BIASES = ("bias", "b", "vars.1")
SCALES = ("weight", "scale", "gamma", "vars.0", "")
OUTWARD = ("torch", "mlx", "mxnet")  # frameworks whose arrays called weight are (out, in), and what their files say
OUTWARD_FORMATS = ("pt", "mlx")
# The names of scheme "llama", and of "phi3" where queries, keys and values are packed, which take their place.
APART = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "o_proj", "W_g": "gate_proj"}
PACKED = {"W_q": "qkv_proj", "W_o": "o_proj"}


@dataclasses.dataclass(frozen=True)
class Parts:
    """The names of a layer's projections and norms, below the path of the layer.

    Attributes:
        names: by role.
        path: of the layer, {} = the number of a layer; None = not given.
        axes: of kernels, "io" = (in, out), "oi" = (out, in), "" = as their names and classes show.
        tied: whether one projection makes keys and values, the same.
    """

    names: Mapping[str, str]
    path: str | None = None
    axes: str = ""
    tied: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether queries, keys and values are one after another in one array."""
        return self.names["W_q"] == self.names["W_k"] == self.names["W_v"]

    @property
    def is_halved(self) -> bool:
        """Whether keys and values are one after another in one array, without the queries."""
        return not self.is_packed and not self.tied and self.names["W_k"] == self.names["W_v"]

    def part(self, role: str) -> tuple[int, int] | None:
        """Return (i, n) if a projection is part i of n of its module's output; None = all of it."""
        at = ("W_q", "W_k", "W_v").index(role) if role in ("W_q", "W_k", "W_v") else -1
        if at < 0 or not (self.is_packed or (self.is_halved and at)):
            return None
        return (at, 3) if self.is_packed else (at - 1, 2)

    def at(self, path: str) -> "Parts":
        """Return the same with the numbers in a layer's path in the place of {}; ValueError if there are too few."""
        names = {role: fill_numbers(name, path) for role, name in self.names.items()}
        return dataclasses.replace(
            self, names=names, path=None if self.path is None else fill_numbers(self.path, path).rstrip(".")
        )


def check_parts(argument: str, names: Any) -> Parts:
    """Check a caller's names of projections, such as {"W_q": "to_q", ...}, and return them; argument: its name."""
    if not isinstance(names, Mapping):
        raise TypeError(
            f"{argument_names.name(argument)} is {checks.brief(names)}, expected a dict, such as {{'W_q': 'to_q', ...}}"
        )
    for role, name in names.items():
        if role not in PART_KEYS or not isinstance(name, str):
            raise ValueError(
                f"{argument_names.name(argument)} has {role}={name!r}, expected names of {', '.join(PART_KEYS)}"
            )
    if lost := [role for role in NEEDED if role not in names]:
        raise ValueError(
            f"{argument_names.name(argument)} has no {', '.join(lost)}, expected the names of {', '.join(NEEDED)}"
        )
    axes = names.get("axes", "")
    if axes not in ("", "io", "oi"):
        raise ValueError(
            f"{argument_names.name(argument)} has axes={axes!r}, expected io = (in, out), or oi = (out, in)"
        )
    return Parts({role: name for role, name in names.items() if role != "axes"}, None, axes)


@dataclasses.dataclass(frozen=True)
class LayerArrays:
    """The arrays of a layer by the names of a scheme, kernels (out, in), missing biases as 0.

    Attributes:
        scheme: this one.
        arrays: by name.
        biased: by role, whether a projection has a bias.
        unsure: the projections whose class does not show their kernel's orientation.
        guessed: the kernels whose name alone says it.
        convolved: the projections that are convolutions over one token, and take (B, features, tokens).
    """

    scheme: SchemeName
    arrays: Mapping[str, np.ndarray]
    biased: Mapping[str, bool]
    unsure: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    convolved: tuple[str, ...] = ()


def fill_numbers(text: str, path: str) -> str:
    """Put the last numbers of a path in the place of each {} in a text; ValueError if it has too few."""
    numbers, wanted = re.findall(r"\d+", path), text.count("{}")
    if wanted > len(numbers):
        raise ValueError(f"layers has {text!r} for {path}, which has {len(numbers)} numbers for {wanted} of {{}}")
    for number in numbers[len(numbers) - wanted :]:
        text = text.replace("{}", number, 1)
    return text


def array_name(own: str, kinds: Sequence[str], arrays: Collection[str]) -> str | None:
    """Return the name of a module's array of one of these kinds, such as "weight"; None if it has none."""
    every = (f"{own}.{kind}" if kind else own for kind in kinds)
    return next((name for name in every if name in arrays), None)


def missing_kernels(path: str, parts: Parts, arrays: Collection[str]) -> list[str]:
    """Return the names of the projections that have no kernel in a layer at this path."""
    every = dict.fromkeys(parts.names[role] for role in ROLES if role in parts.names)
    return [name for name in every if array_name(join_path(path, name), KERNELS, arrays) is None]


def possible_paths(parts: Parts, arrays: Collection[str]) -> list[str]:
    """Return the paths at which there is a kernel of at least one of these names."""
    ends = [join_path(name, kind) for name in dict.fromkeys(parts.names.values()) for kind in KERNELS]
    found = {
        name.removesuffix(end).rstrip("."): None
        for end in ends for name in arrays if name == end or name.endswith(f".{end}")
    }  # fmt: skip
    return [*found]


def layer_paths(parts: Parts, arrays: Collection[str]) -> list[str]:
    """Return the paths at which there is a layer with kernels of all these names."""
    return [path for path in possible_paths(parts, arrays) if not missing_kernels(path, parts, arrays)]


def join_path(path: str, name: str) -> str:
    """Join two paths; either may be empty."""
    return f"{path}.{name}" if path and name else path or name


def modules_of(path: str, parts: Parts) -> dict[str, str]:
    """Return the paths of the modules of a layer, by the first role of each."""
    names = PACKED if parts.is_packed else APART
    own = {role: join_path(path, parts.names[role]) for role in names if role in parts.names}
    own.pop("W_v" if parts.is_halved else "", None)  # both are in that of W_k
    return own


def biases_of(arrays: Collection[str], path: str, parts: Parts) -> dict[str, str | None]:
    """Return the names of the biases of a layer, by the first role of each module; None if it has none."""
    return {role: array_name(module, BIASES, arrays) for role, module in modules_of(path, parts).items()}


def names_of(arrays: Collection[str], path: str, parts: Parts) -> list[str]:
    """Return the names of the arrays of a layer."""
    own = {role: join_path(path, name) for role, name in parts.names.items()}
    kinds = {role: SCALES if role in NORMS else KERNELS for role in own}
    every = [array_name(own[role], kinds[role], arrays) for role in own]
    every += [array_name(module, BIASES, arrays) for role, module in own.items() if role in ROLES]
    return [name for name in every if name is not None]


def read_arrays(
    arrays: Mapping[str, Any],
    path: str,
    parts: Parts,
    modules: Mapping[str, Any],
    beside: LayerArrays | None = None,
    turned: bool = False,
    whose: str = "",
    formats: Callable[[str], str] = schemes.no_format,
) -> LayerArrays:
    """Read the arrays of a layer, of which none is `missing_kernels`.

    parts: the names of its projections; modules: of the model, {} = none; beside: the same layer of another model,
    whose sizes show how kernels lie; turned: whether kernels are (in, out) where nothing shows it; whose: the owner of
    the arrays, in words, "" = the model; formats: as of `schemes.recognise`.
    Raises ValueError if the sizes are others than those of `beside`, if nothing shows how its kernels lie, or if one is
    of a convolution over several tokens.
    """
    names = PACKED if parts.is_packed else APART
    kernels = {}
    for role, module in modules_of(path, parts).items():
        name = array_name(module, KERNELS, arrays) or module
        outward = dispatch.backend_of(arrays[name]) in OUTWARD
        outward |= formats(name) in OUTWARD_FORMATS
        X, features_first = without_window(name, to_numpy(name, arrays[name]), modules.get(module))
        kernels[role] = Kernel(name, X, modules.get(module), outward, features_first)
    sizes = {} if beside is None else kernel_sizes(beside, parts)
    shown = {role: kernel.by_size(sizes.get(role), whose) for role, kernel in kernels.items()}
    common = set(filter(None, shown.values()))
    others = common.pop() if len(common) == 1 else ""  # as the rest of the same arrays
    said_way = parts.axes or others
    ways = {role: shown[role] or said_way or kernel.orientation for role, kernel in kernels.items()}
    unsure = tuple(parts.names[role] for role, way in ways.items() if not way)
    if unsure and whose:
        first = kernels["W_q"]
        raise ValueError(
            f"nothing says whether the kernels of {whose} are (in, out) or (out, in), such as {first.name} of shape "
            f"{first.X.shape}; say it: like=dict(axes='io') in layers=, or axes=io in --names; else 'oi'"
        )
    found: dict[str, np.ndarray] = {}
    biases = biases_of(arrays, path, parts)
    for role, kernel in kernels.items():
        weight = kernel.out_first(role, ways[role] or ("io" if turned else "oi"))  # (out, in)
        found[f"{names[role]}.weight"] = weight
        if (bias := biases[role]) is not None:
            found[f"{names[role]}.bias"] = to_numpy(bias, arrays[bias]).reshape(-1)  # (out,)
        elif any(biases.values()):
            found[f"{names[role]}.bias"] = np.zeros(len(weight), weight.dtype)  # (out,)
    for kind in ("weight", "bias"):
        if parts.is_halved and (both := found.get(f"k_proj.{kind}")) is not None:
            found[f"k_proj.{kind}"], found[f"v_proj.{kind}"] = np.split(both, 2)  # (G*d, ...)
    for role in NORMS:
        if role in parts.names:
            scale = array_name(join_path(path, parts.names[role]), SCALES, arrays)
            if scale is None:
                raise ValueError(
                    f"{role}={parts.names[role]!r} has no weight at {path or 'the top'} of {whose or 'the model'}"
                )
            found[f"{role}.weight"] = to_numpy(scale, arrays[scale])
    biased = {role: bias is not None for role, bias in biases.items()}
    guessed = tuple(one.name for role, one in kernels.items() if one.is_guess and not (shown[role] or said_way))
    convolved = tuple(parts.names[role] for role, one in kernels.items() if one.convolved)
    return LayerArrays("phi3" if parts.is_packed else "llama", found, biased, unsure, guessed, convolved)


def kernel_sizes(beside: LayerArrays, parts: Parts) -> dict[str, tuple[int, int]]:
    """Return the sizes (out, in) of kernels with the names of `parts`, by those of another layer."""
    packed, output = beside.arrays.get("qkv_proj.weight"), beside.arrays["o_proj.weight"]
    if packed is None:
        held = {role: beside.arrays.get(f"{to}.weight") for role, to in APART.items()}
        found = {role: X.shape for role, X in held.items() if X is not None}
    else:
        rows = (len(packed) - output.shape[1]) // 2  # of keys: what is left of queries, as many as enter W_o
        found = dict.fromkeys(("W_k", "W_v"), (rows, packed.shape[1]))
        found |= {"W_q": (output.shape[1], packed.shape[1]), "W_o": output.shape}
    together = ("W_q", "W_k", "W_v") if parts.is_packed else ("W_k", "W_v") if parts.is_halved else ()
    if together:
        found[together[0]] = sum(found[role][0] for role in together), found[together[0]][1]
    return found
