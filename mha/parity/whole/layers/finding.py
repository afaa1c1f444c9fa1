"""Find the attention layers of a model: by the names of its modules, by their classes, or as somebody teaches them."""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mha.layer import MultiHeadAttention
from mha.parity.whole.layers.known import ROLES, Known, kind_of, taken
from mha.parity.whole.layers.taught import asked_of, called, lesson_of, renamed
from mha.parity.whole.layers.truth import Layer, Truth, natural, paired
from mha.weights import models, schemes
from mha.weights.schemes.table import Place

KERNELS = ("weight", "kernel")  # what frameworks call the kernel of a module
LISTED = 8  # so many names of a long list are shown
UNSAID = "nothing says what it computes; teach it with layers="


@dataclasses.dataclass(frozen=True)
class Finder:
    """Finds the layers of a model.

    modules: those of the model, by their paths; arrays: its arrays by their names; odd: as of `commands/taps.py`;
    truth: what the layers should be; formats: those of the model's arrays, see `schemes.recognise`.
    """

    modules: Mapping[str, Any]
    arrays: Mapping[str, Any]
    odd: Any
    truth: Truth
    formats: Callable[[str], str] = schemes.unsaid

    def layers(self, taught: Any) -> list[Known]:
        """List the layers, in the order of their paths; taught: as layers= of `audit`.

        Raises TypeError or ValueError if what is taught is wrong.
        """
        by_hand = self.matched(taught)
        natives = [path for path, module in self.modules.items() if path not in by_hand and kind_of(module)]
        natives = [path for path in natives if not any(within(path, other) for other in (*natives, *by_hand))]
        natives = self.once(natives)
        taken = (*by_hand, *natives)
        found = {
            prefix.rstrip("."): (scheme, prefix)
            for scheme, prefix in schemes.recognise(self.shown(), self.formats)
            if not any(within(prefix.rstrip("."), path) or prefix.rstrip(".") == path for path in taken)
        }
        found = {path: found[path] for path in self.once(found)}
        paths = sorted({*found, *natives, *(path for path, lesson in by_hand.items() if lesson)}, key=natural)
        partners = paired(paths, self.truth.layers())
        made = [self.recognised(path, layer, partners.get(path)) for path, layer in found.items()]
        made += [self.framework(path, partners.get(path)) for path in natives]
        made += [self.taught(path, lesson, partners.get(path)) for path, lesson in by_hand.items()]
        return sorted(made, key=lambda one: natural(one.path))

    def once(self, paths: Iterable[str]) -> list[str]:
        """Take each module once, by the first of its paths."""
        first: dict[int, str] = {}
        for path in paths:
            first.setdefault(id(self.modules.get(path, path)), path)
        return list(first.values())

    def shown(self) -> dict[str, None]:
        """The names of the arrays, and those that each module would have if it were a plain projection."""
        every = (f"{path}.{kernel}" for path in self.modules if path for kernel in KERNELS)
        return dict.fromkeys((*self.arrays, *every))

    def matched(self, taught: Any) -> dict[str, Any]:
        """Find the modules that layers= teaches by patterns of their paths, each with what it says."""
        if taught is None:
            return {}
        if not isinstance(taught, Mapping):
            raise TypeError(f"layers is a {type(taught).__name__}, expected a dict by paths, such as 'blocks.*.attn'")
        found: dict[str, Any] = {}
        for pattern, lesson in taught.items():
            paths = [path for path in self.modules if path and fnmatch.fnmatchcase(path, str(pattern))]
            if not paths:
                raise ValueError(f"layers has {pattern!r}, which fits no module; there are {some(self.modules)}")
            outer = [path for path in paths if not any(within(path, other) for other in paths)]
            found |= dict.fromkeys(outer, lesson_of(pattern, lesson))
        return found

    def recognised(self, path: str, layer: Layer, partner: Layer | None) -> Known:
        """Describe a layer that is known by the names of its modules."""
        one = Known(path, str((self.truth.config or {}).get("model_type", layer[0])))
        try:
            attends = self.truth.attends(partner or layer)
        except (TypeError, ValueError) as error:
            return dataclasses.replace(one, reason=str(error))
        if attends is None:
            return dataclasses.replace(one, reason=UNSAID)
        return self.completed(one, layer, self.truth, partner, {}, attends)

    def framework(self, path: str, partner: Layer | None) -> Known:
        """Describe a layer of a framework, or of the book."""
        module = self.modules[path]
        one = Known(path, kind_of(module) or type(module).__name__, native=True)
        try:
            config, weights = taken(module)
            attends = None
            if not self.truth.own:
                if partner is None:
                    return dataclasses.replace(one, reason=f"{self.truth.said} says nothing of it")
                attends = self.truth.attends(partner)
                given = {} if attends else {"num_heads": config.num_heads}
                told, weights = self.truth.layer(partner, given, 1)
                config = told if attends else config
        except (TypeError, ValueError) as error:
            return dataclasses.replace(one, reason=str(error))
        return dataclasses.replace(one, take=lambda tokens: (config, weights), attends=attends)

    def taught(self, path: str, lesson: Any, partner: Layer | None) -> Known:
        """Describe a layer as layers= teaches it."""
        one = Known(path, "as taught")
        if lesson is None:
            return dataclasses.replace(one, kind="left out", reason="left out, as layers= says", left_out=True)
        module = self.modules[path]
        if callable(lesson):
            made = lesson(module)
            attention, how = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
            if not isinstance(attention, MultiHeadAttention):
                came = type(attention).__name__
                raise TypeError(f"layers has a function for {path!r} that returns a {came}, expected an mha layer")
            attends = called(how)
            found = attention.config, attention.weights
            return dataclasses.replace(one, native=True, take=lambda tokens: found, attends=attends)
        attends, scheme, names, options = asked_of(lesson)
        if scheme is not None:
            layer, arrays = (scheme, f"{path}."), self.arrays
        else:
            layer, arrays = renamed(self.arrays, path, names, self.modules)
            options = {"rotary": None} | options
        truth = Truth(arrays, None, self.truth.said, True)
        own: Layer | None = layer
        if not self.truth.own:
            truth, own = self.truth.for_taught(partner), partner
            options = {name: X for name, X in options.items() if name in lesson or truth.config is None}
        packed = names and names["W_q"] == names["W_k"] == names["W_v"]
        parts = {role: (at, 3) for at, role in enumerate(("W_q", "W_k", "W_v"))} if packed else {}
        places = {role: Place(f"{path}.{name}", "oi", parts.get(role)) for role, name in names.items() if role in ROLES}
        one = dataclasses.replace(one, kind=scheme or one.kind)
        return self.completed(one, layer, truth, own, options, attends, places)

    def completed(
        self,
        one: Known,
        layer: Layer,
        truth: Truth,
        partner: Layer | None,
        given: Mapping[str, Any],
        attends: models.Attends,
        places: Mapping[str, Place] | None = None,
    ) -> Known:
        """Give a layer its projections and weights; layer: its own scheme and prefix, partner: those in the truth."""
        own = places or self.places(layer, False)
        reasons = [f"{place.name} is {why}" for place in own.values() if (why := self.odd(self.modules[place.name]))]
        if reasons or partner is None:
            return dataclasses.replace(one, reason=[*reasons, f"{truth.said} says nothing of it"][0])
        try:
            found = truth.layer(partner, given, 1)
        except (TypeError, ValueError, OverflowError) as error:
            return dataclasses.replace(one, reason=str(error))
        places = places or self.places(layer, found[0].output_gate is not None)
        return dataclasses.replace(
            one, places=places, take=functools.partial(truth.layer, partner, given), attends=attends
        )

    def places(self, layer: Layer, gated: bool) -> dict[str, Place]:
        """The projections of a layer, each with the path of its module in the place of the array's name."""
        scheme, prefix = layer
        found = {}
        for weight, place in schemes.SCHEMES[scheme].of_layer(self.arrays, prefix, gated):
            role, _, kind = weight.partition(".")
            path = (prefix + place.name).rpartition(".")[0]
            if kind == "kernel" and path in self.modules:
                found[role] = dataclasses.replace(place, name=path)
        return found


def within(path: str, other: str) -> bool:
    """Whether the module at a path is inside of another one."""
    return path != other and path.startswith(f"{other}." if other else "")


def some(names: Iterable[str]) -> str:
    """The first of many names."""
    listed = [name for name in names if name]
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more
