"""A call with a cache as a problem: NumPy makes the same call, and the slots after it are among the results.

Letters as in the lessons; S slots, T = S + K: the slots before the call, and behind them its own tokens.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from mha.core import dispatch
from mha.core.cache import Cache
from mha.core.call import record_steps
from mha.core.call.tracing import by_slots
from mha.core.options.config import numpy_dtype
from mha.core.options.names import FloatName
from mha.layer import MultiHeadAttention
from mha.parity.rule.layouts import CACHED, OF_KEYS, OF_VALUES, PAIRS, PLACED, Sizes
from mha.parity.rule.problem import Expected, Named, Problem


class Slots(NamedTuple):
    """The slots of a call with a cache."""

    keys: np.ndarray  # (B, G, S, d), before the call
    values: np.ndarray  # (B, G, S, dv), before the call
    columns: np.ndarray  # (B, S), the slot or token, of T, that each slot holds after it
    filled: np.ndarray  # (B, S), whether each slot holds any after it


@dataclasses.dataclass(frozen=True)
class Decoding(Problem):
    """A call with a cache; `call` is an ordinary one whose keys are the T slots and tokens.

    keys, values: of its own tokens. A frozen cache has none; then they are one token of padding.
    """

    cached: Any = None  # the call with its cache in NumPy, checked
    slots: Any = None  # the `Slots` of that cache

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Return the sizes of the call; its pairs are of queries and slots."""
        return dataclasses.replace(super().sizes, slots=self.cached.cache.sizes[1])

    @functools.cached_property
    def visible(self) -> np.ndarray:
        """Return which query sees which slot or token, (B, H, Q, T)."""
        B, T = self.call.key_positions.shape
        visible = dispatch.lesson("numpy").visible_keys(self.queries, np.empty((B, T, 0)), self.call)
        return np.broadcast_to(visible, (B, self.config.num_heads, self.sizes.Q, T))

    def by_slots(self, pairs: np.ndarray) -> np.ndarray:
        """Return pairs of queries and slots as they are after the call, (..., S); pairs: (B, ..., T)."""
        columns = self.slots.columns.reshape(-1, *[1] * (pairs.ndim - 2), self.slots.columns.shape[1])
        return np.asarray(dispatch.lesson("numpy").take(pairs, columns, pairs.ndim - 1))

    def matters(self, name: str) -> np.ndarray:
        """Return which numbers of an array count: in slots, those of a token."""
        if name in CACHED:
            filled = self.slots.filled
            return np.ones_like(filled) if name == PLACED else filled[:, None, :, None]  # (B, 1, S, 1)
        counts = super().matters(name)
        if name in (*OF_KEYS, *OF_VALUES):
            return counts[:, :, self.slots.columns.shape[1] :]  # (B, G, K, 1)
        return self.by_slots(counts) if name in PAIRS and name != "weights" else counts

    def gradients(self) -> list[str]:
        """Return no names: a call with a cache has no gradients."""
        return []

    def _expect(self, name: str) -> Expected:
        return Expected(self.oracle[name], 0.0) if name == PLACED else super()._expect(name)

    def _arguments(self, dtype: FloatName) -> tuple[Any, ...]:
        kind, cache, config = numpy_dtype(dtype), self.cached.cache, dataclasses.replace(self.config, dtype=dtype)
        own = Cache(config, [X.astype(kind) for X in cache.arrays()[:2]] + [*cache.arrays()[2:]], cache.frozen)
        floats = {name: X.astype(kind) for name, X in self.cached.differentiable().items()}
        call = self.cached._replace(cache=own, training=False, **floats)
        return *(X.astype(kind) for X in (self.queries, self.keys, self.values)), call

    def _output(self, layer: MultiHeadAttention) -> np.ndarray:
        return self._trace(layer)["output"]

    def _trace(self, layer: MultiHeadAttention) -> Named:
        *inputs, call = self._arguments(layer.config.dtype)
        chapter, own = dispatch.lesson("numpy"), call.cache
        with dispatch.load("numpy").context(layer.config.dtype), record_steps() as steps:
            *_, left = layer.layer.attend(*inputs, call.with_plan(traced=True))
        steps, (B, heads, S, _) = by_slots(steps, own, chapter.take, chapter.repeat_groups), left.keys.shape
        own_heads = {f"cache.{name}": getattr(left, name).reshape(B * heads, S, -1) for name in ("keys", "values")}
        steps |= {**own_heads, PLACED: left.positions}
        # A call may push out tokens that it sees, which are in no slot then; a frozen cache takes no tokens, and stays.
        gone = (*PAIRS,) * self.cached.plan.step.early + (*OF_KEYS, *OF_VALUES, *CACHED) * own.frozen
        return {name: X for name, X in steps.items() if name not in gone}


def as_decoding(asked: Problem) -> Problem:
    """Turn a problem whose call has a cache into a `Decoding`; any other is returned unchanged."""
    cache, chapter = asked.call.cache, dispatch.lesson("numpy")
    if cache is None:
        return asked
    *placed, call = chapter.place(asked.queries, asked.keys, asked.values, asked.call)
    inputs = [asked.queries, *(placed[1:] if cache.frozen else (asked.keys, asked.values))]
    narrow = np.zeros((*inputs[1].shape[:2], 1))  # (B, K, 1): of the heads themselves nothing is needed here
    kept = np.zeros((*call.cache.positions.shape, 1))[:, None]  # (B, 1, S, 1)
    call = call._replace(cache=cache.after(kept, kept, *cache.arrays()[2:]))
    *_, call, left = chapter.remember(narrow, narrow, call)
    slots = Slots(cache.keys, cache.values, call.plan.columns, left.positions >= 0)
    fields: dict[str, Any] = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Problem)}
    fields |= dict(zip(("queries", "keys", "values"), inputs, strict=True)) | {"call": call._replace(cache=None)}
    return Decoding(**fields, cached=asked.call, slots=slots)
