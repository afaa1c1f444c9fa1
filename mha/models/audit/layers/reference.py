"""The reference of an audit: the weights and the configuration that a model's layers should have."""

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mha import weights
from mha.core import dispatch
from mha.core.options.config import Config
from mha.core.options.names import BackendName, SchemeName
from mha.weights import json_text, models, readers, schemes
from mha.weights.foreign.arrays import flatten_names, to_numpy

Layer = tuple[SchemeName, str]  # scheme and prefix
Found = tuple[Config, dict[str, np.ndarray]]  # configuration and canonical weights
MOST = 2**30  # bytes of weights that are kept
GROWING = ("dynamic", "longrope", "su", "yarn")  # rotations that may go by the length of the text
KERNEL = "weight"  # what PyTorch calls the kernel of a module, and the scale of a norm
OTHERS = ("kernel", "scale", "gamma")  # what others do


@dataclasses.dataclass(eq=False)
class Reference:
    """Arrays by name, read when they are used, and the configuration of their model."""

    arrays: Mapping[str, Any]
    config: Mapping[str, Any] | None  # of the model, None = there is none
    origin: str  # where the arrays are from, in words
    own: bool = False  # whether they are the judged model's own
    inside: str = ""  # the path of the part of the model that the configuration is of, "" = all of it
    formats: Callable[[str], str] = schemes.no_format  # of an array, by its name, see `schemes.recognise`
    config_format: str | None = None  # of the arrays of the model that has the configuration, None = the same
    modules: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the model that has the arrays
    kept: dict[Any, Found] = dataclasses.field(default_factory=dict)

    def layers(self) -> list[Layer]:
        """List the layers that the names show, in the order of their numbers."""
        found = schemes.recognise(self.arrays, self.formats)
        at = {prefix for _, prefix in found}
        found += [layer for layer in schemes.recognise(add_torch_names(self.arrays)) if layer[1] not in at]
        return sorted(found, key=lambda layer: natural_key(layer[1]))

    def layer(self, chosen: Layer, given: Mapping[str, Any], tokens: int) -> Found:
        """Return the configuration and the canonical weights of a layer; some are kept for the next call.

        Raises TypeError or ValueError if arrays, configuration and options describe no layer of mha.
        """
        key = chosen, str(given), tokens if self.grows else 0
        if key not in self.kept:
            (own, prefix), recorded, options = self.arrays_of(chosen), self.options(chosen, tokens), dict(given)
            num_heads, options = models.join_options(recorded, options.pop("num_heads", None), options, "the model")
            found = schemes.to_canonical(own, chosen[0], prefix, num_heads, **options)
            schemes.ask(chosen[0], options)  # before it is kept: who asks again is told again
            self.kept[key] = found
            while len(self.kept) > 1 and sum(X.nbytes for one in self.kept.values() for X in one[1].values()) > MOST:
                del self.kept[next(iter(self.kept))]
        return self.kept[key]

    def arrays_of(self, chosen: Layer) -> tuple[dict[str, np.ndarray], str]:
        """Return the arrays of a layer by the names of its scheme, and their prefix."""
        scheme, prefix = chosen
        arrays = with_torch_names(self.arrays, scheme, prefix)
        try:
            names = schemes.layer_names(arrays, scheme, prefix)
        except schemes.UnreadError as error:
            raise error.with_method(schemes.method_of(self.config)) from None
        return {name: to_numpy(name, arrays[name]) for name in names}, prefix

    def options(self, chosen: Layer, tokens: int) -> dict[str, Any]:
        """Return the options that the configuration has for a layer; {} without one."""
        if self.config is None:
            return {}
        length = tokens if self.grows else None
        first = next((name for name in self.arrays if name.startswith(chosen[1])), None)
        form = "" if first is None else self.formats(first)
        return models.options_in(dict(self.config), *self.within(chosen), length, form, self.config_format)

    def within(self, chosen: Layer) -> Layer:
        """Return the same layer with its prefix in the part that the configuration is of."""
        scheme, prefix = chosen
        return scheme, prefix.removeprefix(f"{self.inside}.") if self.inside else prefix

    def for_user_layer(self, chosen: Layer | None) -> "Reference":
        """Drop the configuration if it does not describe this layer, which layers= describes."""
        try:
            if chosen is not None:
                self.options(chosen, 1)
        except (TypeError, ValueError, OverflowError):
            return Reference(self.arrays, None, self.origin, formats=self.formats)
        return self

    @functools.cached_property
    def grows(self) -> bool:
        """Whether the rotation may depend on the length of the text."""
        return any(kind in str(self.config) for kind in GROWING)

    def attends(self, chosen: Layer) -> models.CallConvention | None:
        """Return how the layer is called, None = unknown; ValueError if the model is of no known kind."""
        return None if self.config is None else models.convention_of(dict(self.config), *self.within(chosen))


@contextlib.contextmanager
def open_reference(like: Any, model: Any, adapter: Any, backend: BackendName | None) -> Iterator[Reference]:
    """Open the reference for a model; like: as for `audit`; adapter: None = no model."""
    inside, config = outermost_config({} if adapter is None else adapter.modules(model))
    own_formats = formats_of(backend)
    config_format: str | None = own_formats("")
    if isinstance(like, Reference):
        yield like
    elif like is None:
        yield Reference(
            adapter.arrays(model), config, "the model's own weights", own=True, inside=inside, formats=own_formats
        )
    elif isinstance(like, (str, os.PathLike)):
        with readers.open_weights(like) as source:
            beside = config_beside(source.path)
            own_config = config if beside is None else beside
            inside, config_format = (inside, config_format) if beside is None else ("", None)
            reference = Reference(
                readers.Arrays(source), own_config, os.fspath(like), inside=inside, formats=source.format_of,
                config_format=config_format,
            )  # fmt: skip
            if unread := weights.unread_error(source, next(iter(reference.layers()), None), packed=True):
                raise unread
            yield reference
    elif isinstance(like, Mapping) and not callable(like):  # a module of MLX is a dict, too
        arrays = flatten_names(like)
        formats = formats_of(dispatch.backend_of(next(iter(arrays.values()), None)))
        yield Reference(
            arrays, config, "the arrays of like", inside=inside, formats=formats, config_format=config_format
        )
    elif own_backend := dispatch.backend_of(like):
        other = adapter_of(own_backend)
        modules = other.modules(like)
        there, own = outermost_config(modules)
        there, own, config_format = (inside, config, config_format) if own is None else (there, own, None)
        yield Reference(
            other.arrays(like), own, f"the {type(like).__name__} of like", inside=there,
            formats=formats_of(own_backend), config_format=config_format, modules=modules,
        )  # fmt: skip
    else:
        raise TypeError(f"like is a {type(like).__name__}, expected a path, a mapping of arrays, a model, or None")


def config_beside(path: Path) -> dict[str, Any] | None:
    """Read the configuration beside a file of weights; None if there is none, ValueError if it is damaged."""
    place = path.with_name("config.json")
    try:
        return None if (data := models.read_bytes(place)) is None else models.parse_model(data)
    except ValueError as error:
        raise ValueError(f"{place} cannot be used: {error}") from error


def config_of(model: Any) -> dict[str, Any] | None:
    """Return the configuration that a model has, as it would be written beside its weights; None if it has none.

    A model of transformers has a `config`, one of mlx-lm has `args`, a dataclass.
    """
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        return json_text.parse(config.to_json_string())
    args: Any = getattr(model, "args", None)
    if dataclasses.is_dataclass(args) and hasattr(args, "model_type"):
        return json_text.parse(json.dumps(dataclasses.asdict(args)))  # type: ignore[arg-type]
    return None


def formats_of(backend: BackendName | None) -> Callable[[str], str]:
    """Return a function from names to formats: that of a backend's files."""
    forms = dispatch.facts("FORMATS", ())[backend] if backend else ()
    return lambda name: forms[0] if forms else ""


def outermost_config(modules: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return the path and the configuration of the outermost module with one; None if none has one."""
    for path, module in modules.items():
        if (config := config_of(module)) is not None:
            return path, config
    return "", None


def whole_models(modules: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths of the modules that are whole models of transformers."""
    return frozenset(
        path for path, module in modules.items() if hasattr(module, "save_pretrained") and config_of(module)
    )


def backend_of(model: Any) -> BackendName:
    """Return the backend of a model's framework; TypeError if it is of none."""
    if (backend := dispatch.backend_of(model)) is None:
        *names, last = (dispatch.facts("TITLE")[name] for name in dispatch.backends_with("models/frameworks/*.py"))
        raise TypeError(f"model is a {type(model).__name__}, expected a model of {', '.join(names)} or {last}")
    return backend


def adapter_of(backend: BackendName) -> Any:
    """Return the adapter that watches models of a backend; TypeError if there is none."""
    if backend not in dispatch.backends_with("models/frameworks/*.py"):
        raise TypeError(f"models of {backend} cannot be watched; give what enters and leaves to mha.parity.audit_taps")
    return importlib.import_module(f"mha.models.frameworks.{backend}")


# Arrays of Keras or Flax by the names and in the axes of a PyTorch scheme, whose kernels are mostly (out, in)


def add_torch_names(names: Mapping[str, Any]) -> dict[str, None]:
    """Return the names of arrays, and those that PyTorch would give them."""
    return dict.fromkeys(names) | dict.fromkeys(name for own in names for name in _torch_names(own))


def with_torch_names(arrays: Mapping[str, Any], scheme: SchemeName, prefix: str) -> Mapping[str, Any]:
    """Return the arrays of a layer by the names of a scheme, if they have others."""
    places = {prefix + place.name: (weight, place) for weight, place in schemes.SCHEMES[scheme].every}
    found, of_layer = {}, [name for name in arrays if name.startswith(prefix)]
    if not any(other in places and other not in arrays for own in of_layer for other in _torch_names(own)):
        return arrays
    for own in of_layer:
        name = next((name for name in _torch_names(own) if name in places and name not in arrays), own)
        if name == own and not own.endswith(".bias"):
            continue
        if name in places:
            weight, place = places[name]
            X = to_numpy(own, arrays[own])
            found[own] = name, _in_axes(X, weight, place.axes)
    return {name: arrays[name] for name in of_layer if name not in found} | dict(found.values())


def _torch_names(own: str) -> list[str]:
    """Return the name that PyTorch would give an array, if it is another one."""
    begin, _, kind = own.rpartition(".")
    return [f"{begin}.{KERNEL}"] if kind in OTHERS else []


def _in_axes(X: np.ndarray, weight: str, axes: str) -> np.ndarray:
    """Return a kernel (in, out), (in, H, d) or (H, d, out), or a bias, as a scheme has it."""
    if weight.endswith(".bias") and axes == "o":
        return X.reshape(-1)  # (out,)
    if weight.endswith(".kernel") and axes in ("oi", "io"):
        rows = -1 if weight == "W_o.kernel" else len(X)
        X = X.reshape(rows, X.shape[-1] if rows < 0 else -1)  # (in, out)
        return X.T if axes == "oi" else X
    return X


# Paths


def natural_key(prefix: str) -> list[Any]:
    """Return the sort key of a prefix, in which 2 comes before 10."""
    return [int(X) if X.isdigit() else X for X in re.split(r"(\d+)", prefix)]


def pair_paths(paths: Sequence[str], layers: Sequence[Layer]) -> dict[str, Layer]:
    """Pair each path with a layer of the same name, of the same end, or by order."""
    by_name = {prefix.rstrip("."): (scheme, prefix) for scheme, prefix in layers}
    found = {}
    for path in paths:
        alike = [name for name in by_name if fits(name, path)]
        if path in alike or len(alike) == 1:
            found[path] = by_name[path if path in alike else alike[0]]
    if len(found) < len(paths) and len(paths) == len(layers):
        return dict(zip(sorted(paths, key=natural_key), layers, strict=True))
    return found


def is_at(path: str, other: str) -> bool:
    """Whether a module is another one, or inside of it."""
    return path == other or path.startswith(f"{other}.")


def fits(name: str, path: str) -> bool:
    """Whether a name is a path, or one ends with the other."""
    return name == path or (bool(path) and name.endswith(f".{path}")) or (bool(name) and path.endswith(f".{name}"))
