"""The description of an attention layer of a model before it is called."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from mha.core.options.config import Config
from mha.models.audit.layers.reference import Found
from mha.weights import foreign, models
from mha.weights.schemes.axes import unpack
from mha.weights.schemes.table import ArrayPlace

USER_LAYER = "by layers="  # the kind of a layer that layers= describes
INPUT_OF = {"W_q": "queries", "W_k": "keys", "W_v": "values", "W_o": "merged"}


class RecordedModule:
    """A stand-in for a module of a recorded model."""

    odd = ""  # why its weights are not plain arrays
    native = ""  # the kind of a framework's own attention layer, "" = it is none
    take: Callable[[], Found]  # returns the configuration and the weights of such a layer


@dataclasses.dataclass(frozen=True)
class AttentionLayer:
    """An attention layer of a model."""

    path: str  # of its module
    kind: str  # its scheme, or its class
    # By projection, the path of its module, and which part of that module's output it is.
    places: Mapping[str, ArrayPlace] = dataclasses.field(default_factory=dict)
    native: bool = False  # whether it is watched as a whole, since its projections may be no modules
    take: Callable[[int], Found] | None = None  # from the number of tokens to its configuration and weights
    attends: models.CallConvention | None = None  # how it is called, None = as its own call says
    reason: str = ""  # why it is not known, "" if it is
    unlisted: bool = False  # whether that is because no table, or no layer of mha, is what it computes
    left_out: bool = False  # whether layers= leaves it out
    note: str = ""  # further words
    turned: Self | None = None  # the same with its kernels transposed, where only their use shows how they lie

    def weights_for(self, tokens: int) -> Found:
        """Return the configuration and the canonical weights, for a text of this many tokens."""
        if self.take is None:
            raise ValueError(f"{self.path} is not known: {self.reason}")
        return self.take(tokens)

    @property
    def modules(self) -> dict[str, list[str]]:
        """The paths of the modules to watch, each with the projections that it computes."""
        if self.native:
            return {self.path: []}
        found: dict[str, list[str]] = {}
        for role, place in self.places.items():
            found.setdefault(place.name, []).append(role)
        return found

    def tokens_first(self, role: str, X: np.ndarray) -> np.ndarray:
        """Return a projection's input or output as (B, T, any), a convolution's, too."""
        if self.places[role].axes != "oi1" or X.ndim < 3:
            return X
        return X.reshape(*X.shape[:2], -1).swapaxes(1, 2)  # (B, T, any)

    def part(self, role: str, output: np.ndarray, config: Config) -> np.ndarray:
        """Return the output of one projection, (B, T, any), from the output of its module."""
        place, (B, T) = self.places[role], output.shape[:2]
        rows = output.reshape(B * T, -1)  # (B*T, all that the module computes)
        if place.part and place.part[1] == 2:
            rows = np.split(rows, 2, axis=1)[place.part[0]]  # (B*T, G*d)
        elif place.part:
            rows = unpack(rows.T, dataclasses.replace(place, axes="oi"), config.num_heads, config.num_key_value_heads)
        return rows.reshape(B, T, -1)  # (B, T, H*d or G*d)

    def turn_as_used(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Self:
        """Return the layer whose kernels lie as its projections' inputs and outputs show."""
        if self.turned is None:
            return self
        votes, ways = 0, (self, self.turned)
        for role in outputs:
            X = inputs.get(INPUT_OF.get(role, ""))
            if X is not None and X.shape[:-1] == outputs[role].shape[:-1]:
                far = []
                for way in ways:
                    config, weights = way.weights_for(X.shape[1])
                    expected = X.astype(np.float64) @ weights[f"{role}.kernel"] + weights.get(f"{role}.bias", 0)
                    far.append(np.abs(expected - self.part(role, outputs[role], config)).max(initial=0))
                votes += int(np.sign(far[0] - far[1]))
        return ways[votes > 0]


def native_kind(module: Any) -> str | None:
    """Return the kind of a framework's own layer, or its class; None if a module is none."""
    if isinstance(module, RecordedModule):
        return module.native or None
    kind = foreign.layer_kind(module)
    return kind and (kind[0] or type(module).__name__)


def read_layer(module: Any) -> Found:
    """Return the configuration and weights of a framework's own layer; TypeError or ValueError if not known."""
    return module.take() if isinstance(module, RecordedModule) else foreign.read_layer(module)
