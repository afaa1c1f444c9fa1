"""Find the attention layers of a model: by the names of its modules, by their classes, or by layers=."""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mha.layer import MultiHeadAttention
from mha.models.audit.layers.attention_layer import USER_LAYER, AttentionLayer, native_kind, read_layer
from mha.models.audit.layers.partners import NamedReference, Partner, Where, notes_on_guesses, partner_of, partners_of
from mha.models.audit.layers.reference import Layer, Reference, fits, natural_key, pair_paths
from mha.models.audit.layers.user_layers import (
    attends_of,
    check_user_layer,
    has_like_alone,
    notes_on_biases,
    options_of,
    parts_of,
    why_no_norms,
)
from mha.weights import models, schemes
from mha.weights.projections import ROLES, LayerArrays, Parts, join_path, missing_kernels, read_arrays
from mha.weights.schemes.table import ArrayPlace

PLAIN = ("weight", "kernel")  # what frameworks call the kernel of a module
UNSAID = "nothing says what it computes; teach it with layers="


@dataclasses.dataclass(frozen=True)
class Finder:
    """The search for the attention layers of a model."""

    modules: Mapping[str, Any]  # of the model, by path
    arrays: Mapping[str, Any]  # of the model, by name
    odd: Any  # the adapter's function that says why a projection's weights are no plain arrays
    reference: Reference  # the one that has the right layers
    formats: Callable[[str], str] = schemes.no_format  # of the model's arrays, see `schemes.recognise`
    notes: list[str] = dataclasses.field(default_factory=list)  # lines for the report
    by_name: list[str] = dataclasses.field(default_factory=list)  # kernels whose orientation their name alone says

    def layers(self, user_layers: Any) -> list[AttentionLayer]:
        """List the layers, in the order of their paths; user_layers: as layers= of `audit`."""
        every = self.match_modules(user_layers)
        by_hand = {path: user_layer for path, user_layer in every.items() if not has_like_alone(user_layer)}
        natives = [path for path, module in self.modules.items() if path not in by_hand and native_kind(module)]
        natives = [path for path in natives if not any(is_inside(path, other) for other in (*natives, *by_hand))]
        natives = self.first_paths(natives)
        outer = (*by_hand, *natives)
        # The names of the arrays, and those that each module would have as a plain projection.
        plain = (f"{path}.{kernel}" for path in self.modules if path for kernel in PLAIN)
        names = dict.fromkeys((*self.arrays, *plain))
        found = {
            prefix.rstrip("."): (scheme, prefix)
            for scheme, prefix in schemes.recognise(names, self.formats)
            if not any(is_inside(prefix.rstrip("."), path) or prefix.rstrip(".") == path for path in outer)
        }
        found = {path: found[path] for path in self.first_paths(found)}
        if lost := [path for path in every if path not in by_hand and path not in natives and path not in found]:
            raise ValueError(
                f"layers has like= alone for {lost[0]}, which no table knows; say W_q= and the others, too"
            )
        taught = (path for path, user_layer in by_hand.items() if user_layer)
        paths = sorted({*found, *natives, *taught}, key=natural_key)
        by_scheme = pair_paths(paths, self.reference.layers())
        described = {} if self.reference.own else {path: every.get(path) for path in paths}
        where = partners_of(described, self.reference, by_scheme)
        partner = functools.partial(self.partner, where, by_scheme)
        made = [self.by_scheme(path, layer, partner(path)) for path, layer in found.items()]
        made += [self.by_class(path, partner(path)) for path in natives]
        made += [self.by_user(path, user_layer, partner) for path, user_layer in by_hand.items()]
        if self.reference.own:
            self.notes.extend(notes_on_biases(by_hand, self.arrays))
        else:
            self.notes.extend(notes_on_guesses(every, where, self.by_name, self.reference))
        return sorted(made, key=lambda one: natural_key(one.path))

    def partner(
        self, where: Mapping[str, Where], by_scheme: Mapping[str, Layer], path: str, mine: LayerArrays | None = None
    ) -> Partner | None:
        """Return the reference for a layer, as `partner_of`; note what differs."""
        found = partner_of(path, where, by_scheme, self.reference, mine)
        if found is not None and isinstance(reference := found[0], NamedReference):
            self.by_name.extend(reference.guessed)
            bare = [role for role, has in reference.biased.items() if mine and has and mine.biased.get(role) is False]
            self.notes.extend(f"{role} of {path} has no bias, that of {reference.origin} has one" for role in bare)
        return found

    def first_paths(self, paths: Iterable[str]) -> list[str]:
        """Keep the first path of each module."""
        first: dict[int, str] = {}
        for path in paths:
            first.setdefault(id(self.modules.get(path, path)), path)
        return list(first.values())

    def match_modules(self, user_layers: Any) -> dict[str, Any]:
        """Return the modules whose paths fit the patterns of layers=, each with its value there."""
        if user_layers is None:
            return {}
        if not isinstance(user_layers, Mapping):
            raise TypeError(
                f"layers is a {type(user_layers).__name__}, expected a dict by paths, such as 'blocks.*.attn'"
            )
        found: dict[str, Any] = {}
        for pattern, user_layer in user_layers.items():
            paths = [path for path in self.modules if path and fnmatch.fnmatchcase(path, str(pattern))]
            if not paths:
                raise ValueError(f"layers has {pattern!r}, which fits no module; there are {first_names(self.modules)}")
            outer = [path for path in paths if not any(is_inside(path, other) for other in paths)]
            user_layer = check_user_layer(pattern, user_layer)
            found |= dict.fromkeys(self.modules_for(pattern, outer, paths, user_layer), user_layer)
        return found

    def modules_for(self, pattern: Any, outer: list[str], paths: list[str], user_layer: Any) -> list[str]:
        """Return the modules that a pattern describes, or those inside with the projections."""
        parts = parts_of(user_layer) if isinstance(user_layer, Mapping) else None
        if parts is None:
            return outer
        with_all = [path for path in paths if not self.missing_modules(path, parts)]
        found = {
            path: [one for one in with_all if one == path or is_inside(one, path)] or [path] * (pattern != "*")
            for path in outer
        }
        if not any(found.values()):
            names = ", ".join(dict.fromkeys(parts.names.values()))
            below = "" if pattern == "*" else f" that fits {pattern!r}"
            raise ValueError(
                f"no module{below} has all of {names}, as layers= says; there are {first_names(self.modules)}"
            )
        return [one for some in found.values() for one in some]

    def missing_modules(self, path: str, parts: Parts) -> list[str]:
        """Return the names of projections that are no modules with a kernel below a path."""
        lost = missing_kernels(path, parts, self.arrays)
        return [name for name in parts.names.values() if name in lost or join_path(path, name) not in self.modules]

    def by_scheme(self, path: str, layer: Layer, partner: Partner | None) -> AttentionLayer:
        """Describe a layer that a scheme knows by the names of its modules."""
        one = AttentionLayer(path, str((self.reference.config or {}).get("model_type", layer[0])))
        reference, chosen = partner or (self.reference, None)
        try:
            named = isinstance(reference, NamedReference)  # whose configuration is the model's own
            attends = self.reference.attends(layer if named else chosen or layer)
            given = self.reference.options(layer, 1) if named else {}
        except (TypeError, ValueError) as error:
            return dataclasses.replace(one, reason=str(error), unlisted=True)
        if attends is None:
            return dataclasses.replace(one, reason=UNSAID, unlisted=True)
        return self.with_weights(one, layer, reference, chosen, given, attends)

    def by_class(self, path: str, partner: Partner | None) -> AttentionLayer:
        """Describe a layer of a framework's own class, or the book's."""
        module = self.modules[path]
        one = AttentionLayer(path, native_kind(module) or type(module).__name__, native=True)
        try:
            config, weights = read_layer(module)
            attends = None
            if not self.reference.own:
                if partner is None:
                    return dataclasses.replace(one, reason=f"{self.reference.origin} says nothing of it")
                reference, chosen = partner
                attends = reference.attends(chosen)
                given: dict[str, Any] = {} if attends else {"num_heads": config.num_heads}
                given |= {"rotary": None} if isinstance(reference, NamedReference) else {}
                own, weights = reference.layer(chosen, given, 1)
                config = own if attends else config
        except (TypeError, ValueError) as error:
            return dataclasses.replace(one, reason=str(error))
        return dataclasses.replace(one, take=lambda tokens: (config, weights), attends=attends)

    def by_user(self, path: str, user_layer: Any, partner: Callable[..., Partner | None]) -> AttentionLayer:
        """Describe a layer as layers= says; partner: finds its reference."""
        one = AttentionLayer(path, USER_LAYER)
        if user_layer is None:
            return dataclasses.replace(one, kind="left out", reason="left out, as layers= says", left_out=True)
        if callable(user_layer):
            return self.by_function(one, user_layer)
        if reason := why_no_norms(self.arrays, path, user_layer):
            return dataclasses.replace(one, reason=reason)
        attends, options = attends_of(user_layer), options_of(user_layer)
        parts, places, own = parts_of(user_layer), dict[str, ArrayPlace](), None
        if parts is None:
            layer, mine = (user_layer["scheme"], f"{path}."), None
            reference, own = Reference(self.arrays, None, self.reference.origin, True), layer
            one = dataclasses.replace(one, kind=user_layer["scheme"])
        else:
            if lost := self.missing_modules(path, parts):
                role = next(role for role, name in parts.names.items() if name == lost[0])
                below = [name.removeprefix(f"{path}.") for name in self.modules if is_inside(name, path)]
                raise ValueError(
                    f"layers says {role}={lost[0]!r}, but {join_path(path, lost[0])} is no module with a weight or a "
                    f"kernel; below {path} are {first_names(below) or 'none'}"
                )
            taking = functools.partial(read_arrays, self.arrays, path, parts, self.modules)
            try:
                mine = taking()
            except ValueError as error:
                return dataclasses.replace(one, reason=str(error))
            layer, reference = (mine.scheme, f"{path}."), NamedReference(self.reference, taking, True, mine)
            own = layer
            options = {"rotary": None} | options
            roles = {role: name for role, name in parts.names.items() if role in ROLES}
            axes = {name: "oi" + "1" * (name in mine.convolved) for name in roles.values()}
            places = {role: ArrayPlace(f"{path}.{name}", axes[name], parts.part(role)) for role, name in roles.items()}
        if not self.reference.own:
            found = partner(path, None if mine is None or mine.unsure else mine)
            reference, own = found if found is not None else (self.reference, None)
            if not isinstance(reference, NamedReference):
                reference = reference.for_user_layer(own)
                options = {name: X for name, X in options.items() if name in user_layer or reference.config is None}
        described = self.with_weights(one, layer, reference, own, options, attends, places)
        if mine is None or not mine.unsure or not self.reference.own:
            return described
        other = NamedReference(self.reference, functools.partial(taking, turned=True), True, mine)
        other.kept = {}  # of the same names
        names = f"{', '.join(mine.unsure)} of {type(self.modules[join_path(path, mine.unsure[0])]).__name__}"
        turned = self.with_weights(one, layer, other, own, options, attends, places)
        said = "are taken as {}, as they are used: whether that is right is not seen without like="
        described, turned = (
            dataclasses.replace(way, note=f"{names} {said.format(axes)}")
            for way, axes in ((described, "(out, in)"), (turned, "(in, out)"))
        )
        if described.reason or turned.reason:
            return turned if described.reason else described
        return dataclasses.replace(described, turned=turned)

    def by_function(self, one: AttentionLayer, user_layer: Callable[[Any], Any]) -> AttentionLayer:
        """Describe a layer by a function of its module, or of like='s of the same class."""
        module, note = self.modules[one.path], ""
        if not self.reference.own:
            alike = [path for path in self.reference.modules if fits(path, one.path)]
            path = one.path if one.path in alike else alike[0] if len(alike) == 1 else ""
            if type(other := self.reference.modules.get(path)) is type(module):
                module = other
            else:
                note = f"its weights are those that layers= returns: {self.reference.origin} has no such module"
        made = user_layer(module)
        attention, how = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        if not isinstance(attention, MultiHeadAttention):
            came = type(attention).__name__
            raise TypeError(f"layers has a function for {one.path!r} that returns a {came}, expected an mha layer")
        found = attention.config, attention.weights
        return dataclasses.replace(one, native=True, take=lambda tokens: found, attends=attends_of(how), note=note)

    def with_weights(
        self,
        one: AttentionLayer,
        layer: Layer,
        reference: Reference,
        partner: Layer | None,
        given: Mapping[str, Any],
        attends: models.CallConvention,
        places: Mapping[str, ArrayPlace] | None = None,
    ) -> AttentionLayer:
        """Add projections and weights; layer, partner: in the model, and in the reference."""
        own = places or self.places(layer, False)
        reasons = [f"{place.name} is {why}" for place in own.values() if (why := self.odd(self.modules[place.name]))]
        if reasons or partner is None:
            return dataclasses.replace(one, reason=[*reasons, f"{reference.origin} says nothing of it"][0])
        try:
            found = reference.layer(partner, given, 1)
        except (TypeError, ValueError, OverflowError) as error:
            return dataclasses.replace(one, reason=str(error), unlisted=reference.own)
        places = places or self.places(layer, found[0].output_gate is not None)
        return dataclasses.replace(
            one, places=places, take=functools.partial(reference.layer, partner, given), attends=attends
        )

    def places(self, layer: Layer, gated: bool) -> dict[str, ArrayPlace]:
        """Return the projections of a layer, each with the path of its module as its name."""
        scheme, prefix = layer
        found = {}
        for weight, place in schemes.SCHEMES[scheme].of_layer(self.arrays, prefix, gated):
            role, _, kind = weight.partition(".")
            path = (prefix + place.name).rpartition(".")[0]
            if kind == "kernel" and path in self.modules:
                found[role] = dataclasses.replace(place, name=path)
        return found


def is_inside(path: str, other: str) -> bool:
    """Whether the module at a path is inside of another one."""
    return path != other and path.startswith(f"{other}." if other else "")


def first_names(names: Iterable[str], most: int = 8) -> str:
    """Join the first of many names."""
    listed = [name for name in names if name]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
