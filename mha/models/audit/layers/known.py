"""The description of an attention layer of a model before it is called."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from mha.core.options.config import Config
from mha.core.options.norms import SHIFTS
from mha.models.audit.layers.reference import Found
from mha.weights import foreign, models
from mha.weights.schemes.axes import unpack
from mha.weights.schemes.table import ArrayPlace

USER_LAYER = "by layers="  # the kind of a layer that layers= describes
INPUT_OF = {"W_q": "queries", "W_k": "keys", "W_v": "values", "W_o": "merged"}


class RecordedModule:
    """A stand-in for a module of a recorded model.

    Attributes:
        odd: why its weights are not plain arrays.
        native: the kind of a framework's own attention layer, "" = it is none.
        problem: why such a layer is not known.
        take: returns its configuration and its weights.
    """

    odd = native = problem = ""
    take: Callable[[], Found]


@dataclasses.dataclass(frozen=True)
class AttentionLayer:
    """An attention layer of a model.

    Attributes:
        path: of its module.
        kind: its scheme, or its class.
        places: by projection, the path of its module, and which part of that module's output it is.
        native: whether it is watched as a whole, since its projections may be no modules.
        take: from the number of tokens to its configuration and weights.
        attends: how it is called, None = as its own call says.
        reason: why it is not known, "" if it is.
        left_out: whether layers= leaves it out.
        note: further words.
        turned: the same layer with its kernels transposed, where only their use shows how they lie.
    """

    path: str
    kind: str
    places: Mapping[str, ArrayPlace] = dataclasses.field(default_factory=dict)
    native: bool = False
    take: Callable[[int], Found] | None = None
    attends: models.CallConvention | None = None
    reason: str = ""
    left_out: bool = False
    note: str = ""
    turned: Self | None = None

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
        """Return a projection's input or output as (B, T, any); a convolution's is (B, any, T) or (B, any, h, w)."""
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
                found = [way.weights_for(X.shape[1]) for way in ways]
                far = [self.kernel_error(role, X.astype(np.float64), outputs[role], *one) for one in found]
                votes += int(np.sign(far[0] - far[1]))
        return ways[votes > 0]

    def kernel_error(
        self, role: str, X: np.ndarray, output: np.ndarray, config: Config, weights: Mapping[str, np.ndarray]
    ) -> float:
        """Return how far a projection's output is from its input times its kernel (in, out), plus its bias."""
        expected = X @ weights[f"{role}.kernel"] + weights.get(f"{role}.bias", 0)
        return float(np.abs(expected - self.part(role, output, config)).max(initial=0))


def native_kind(module: Any) -> str | None:
    """Return the kind of a framework's own layer, or its class; None if a module is none."""
    if isinstance(module, RecordedModule):
        return module.native or None
    kind = foreign.layer_kind(module)
    return kind and (kind[0] or type(module).__name__)


def read_layer(module: Any) -> Found:
    """Return the configuration and weights of a framework's own layer; TypeError or ValueError if not known."""
    return module.take() if isinstance(module, RecordedModule) else foreign.read_layer(module)


def why_no_norms(arrays: Mapping[str, Any], path: str, user_layer: Mapping[str, Any]) -> str:
    """Say why the norms of queries and keys in a layer of layers= are not known; "" if they are."""
    for role in ("q_norm", "k_norm"):
        own = f"{path}.{user_layer.get(role, role)}"
        if f"{own}.bias" in arrays:
            return (
                f"it has {own}.bias: its norms of queries and keys {SHIFTS}; leave it out with "
                f"layers={{{path!r}: None}}"
            )
        if not {"scheme", role} & user_layer.keys() and any(f"{own}.{kind}" in arrays for kind in ("weight", "scale")):
            return (
                f"it has {own}, of which layers= says nothing; add q_norm='q_norm', k_norm='k_norm' and "
                "qk_norm='rms' or 'layer', or an mha.Norm"
            )
    return ""
