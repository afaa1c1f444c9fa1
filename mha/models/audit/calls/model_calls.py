"""Read the call of a model as its user makes it: what its arguments say of positions, padding and the cache.

Source: the caches of transformers 5.23, pairs of arrays as older models have them, and the caches of mlx-lm 0.32, where
a model has a list of one cache for each layer.

Letters: B batch, Q queries, K keys and values.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache", "kv_cache", "past")
POSITIONS = ("position_ids", "positions")
FRESH = "its cache has tokens from before this was watched"


class UnknownError(Exception):
    """The reason why the arguments of a layer's call are not known."""


@dataclasses.dataclass(frozen=True, eq=False)
class CacheState:
    """The state of a cache before a call."""

    length: int | None = None  # how many tokens it holds; None if it does not say
    padding: np.ndarray | None = None  # how many of them are padding before each text, (B,); None = none
    most: int | None = None  # the number of last tokens that it keeps; None = all
    rounded: bool = False  # whether it keeps them quantised

    def real_tokens(self, tokens: int) -> np.ndarray | None:
        """Return which of the first tokens are not padding, booleans (B, tokens); None = all."""
        return None if self.padding is None else np.arange(tokens) >= self.padding[:, None]


def cache_state(cache: Any) -> CacheState:
    """Return the state of a cache."""
    if isinstance(own := getattr(cache, "kept", None), CacheState):  # as a record has it
        return own
    if hasattr(cache, "get_seq_length"):
        return CacheState(int(cache.get_seq_length()))
    if isinstance(cache, (tuple, list)) and (not cache or cache[0] is None):
        return CacheState(0)
    if counted := layer_caches(cache):
        first, padding = counted[0], None
        length = first.offset if isinstance(first.offset, int) else None
        if hasattr(first, "left_padding"):
            # The offset leaves the padding out; a cache that forgets tokens lowers `left_padding` as padding goes.
            offset, left = (np.asarray(arrays.to_numpy(X)) for X in (first.offset, first.left_padding))
            length = int(getattr(first, "_offset", (offset + left).max()))
            padding = length - offset if (offset < length).any() else None
        most: list[Any] = [getattr(one, "max_size", None) for one in counted]
        rounded = any(hasattr(one, "bits") for one in counted)
        return CacheState(length, padding, None if None in most else max(most), rounded)
    if isinstance(cache, (tuple, list)):
        first = cache[0][0] if isinstance(cache[0], (tuple, list)) else cache[0]
        return CacheState(int(first.shape[-2]) if getattr(first, "ndim", 0) >= 3 else None)
    return CacheState()


def layer_caches(cache: Any) -> list[Any]:
    """Return the caches of single layers that count their tokens."""
    return [one for one in (cache if isinstance(cache, (tuple, list)) else (cache,)) if hasattr(one, "offset")]


def owner_of(cache: Any) -> Any:
    """Return the object that stays while a cache is used; of a list, the first layer's."""
    return next(iter(layer_caches(cache)), cache)


@dataclasses.dataclass
class EarlierInputs:
    """The keys and values (B, T, any) of a layer in earlier calls; cross: of another sequence."""

    keys: np.ndarray
    values: np.ndarray
    cross: bool


@dataclasses.dataclass
class History:
    """The inputs of all layers in earlier calls with one cache."""

    tokens: int = 0  # how many there were
    layers: dict[str, EarlierInputs] = dataclasses.field(default_factory=dict)  # by path
    positions: np.ndarray | None = None  # (B or 1, tokens); None = 0, 1, 2, ...
    known: bool = True  # whether all tokens were seen

    def select(self, rows: Any) -> None:
        """Keep these samples, in this order, as beam search does."""
        rows = np.asarray(arrays.to_numpy(rows)).reshape(-1)
        self.change_samples(lambda X: X[rows])

    def repeat(self, times: int) -> None:
        """Repeat each sample this many times."""
        self.change_samples(lambda X: np.repeat(X, times, 0))

    def change_samples(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change the samples of all arrays alike."""
        for one in self.layers.values():
            one.keys, one.values = change(one.keys), change(one.values)
        if self.positions is not None and len(self.positions) > 1:
            self.positions = change(self.positions)

    def crop(self, tokens: int) -> None:
        """Keep this many tokens; below 0: drop this many."""
        tokens = tokens if tokens >= 0 else self.tokens + tokens
        self.tokens = min(self.tokens, tokens)
        for one in self.layers.values():
            if not one.cross:
                one.keys, one.values = one.keys[:, :tokens], one.values[:, :tokens]
        self.positions = None if self.positions is None else self.positions[:, :tokens]

    def trim(self, tokens: int) -> None:
        """Drop this many tokens, at most all."""
        self.crop(max(self.tokens - tokens, 0))


# Methods of the caches of transformers, and of mlx-lm, that change which tokens are in them.
CHANGES = {
    "reorder_cache": History.select,
    "batch_select_indices": History.select,
    "batch_repeat_interleave": History.repeat,
    "crop": History.crop,
    "trim": History.trim,
}


@dataclasses.dataclass
class ModelCall:
    """A call of the model."""

    number: int  # from 1 on
    arguments: Mapping[str, Any]  # by name
    history: History  # of its cache, which the call adds to
    kept: CacheState = CacheState()  # of the cache before the call

    def array(self, name: str, kind: str = "full_attention") -> np.ndarray | None:
        """Return an argument as an array of NumPy; None if it was not given, or if it is no array.

        kind: which of several masks in one argument, as transformers has for layers with and without a window.
        """
        X = self.arguments.get(name) if name else None
        X = X.get(kind) if isinstance(X, Mapping) else X
        if X is None or isinstance(X, (bool, int, float, str)):
            return None
        if isinstance(X, (list, tuple)):
            X = np.asarray(X)
        return None if dispatch.backend_of(X) is None else np.asarray(arrays.to_numpy(X))

    def texts(self, sizes: tuple[int, int, int], keys: str = "attention_mask") -> np.ndarray | None:
        """Number the texts in each row, (B, K), where positions begin again; -1 = padding.

        None if positions are not told, or if a mask of pairs says who sees whom.
        sizes: of samples, queries and keys; keys: the argument that says which are no padding.
        """
        (B, Q, K), mask = sizes, self.array(keys)
        places = None if mask is not None and mask.ndim == 4 else self.places(Q)
        if places is None or places.shape[1] != K or len(places) not in (1, B):
            return None
        real = np.ones((B, K), bool) if mask is None or mask.shape[-1] != K else np.broadcast_to(mask != 0, (B, K))
        found = np.full((B, K), -1)
        for row, own, counts in zip(found, np.broadcast_to(places, (B, K)), real, strict=True):
            row[counts] = np.cumsum(np.diff(own[counts], prepend=own[counts][:1] - 1) < 1)
        return found

    def places(self, Q: int) -> np.ndarray | None:
        """Return the positions of all tokens so far, (B or 1, K); None = they are 0, 1, 2, ..."""
        earlier, own = self.history.positions, None
        for name in POSITIONS:
            X = self.array(name)
            if X is not None and X.ndim == 3 and X.shape[-1] == Q:  # a position for each way through a picture
                X = X[-3:]  # a text's own are before them in some calls
                if (X[:1] != X).any():
                    raise UnknownError(f"{name} has several positions for some tokens, as pictures do")
                X = X[0]
            if X is not None and X.shape[-1] == Q and X.ndim in (1, 2) and X.dtype.kind in "iu":
                own = X.reshape(-1, Q).astype(np.int64)  # (B or 1, Q)
        if own is None and self.kept.padding is not None:
            own = self.history.tokens + np.arange(Q) - self.kept.padding[:, None]
            before = None if earlier is None or len(earlier) != len(own) else earlier[:, -1] + 1
            if self.history.tokens and (before is None or (before != own[:, 0]).any()):
                raise UnknownError("the padding in its cache is not what it was")
        if earlier is None and own is None:
            return None
        earlier = np.arange(self.history.tokens)[None] if earlier is None else earlier
        own = self.history.tokens + np.arange(Q)[None] if own is None else own
        B = max(len(earlier), len(own))
        return np.concatenate([np.broadcast_to(X, (B, X.shape[1])) for X in (earlier, own)], 1)  # (B or 1, K)


class Histories:
    """The histories of all caches that calls were given, or returned."""

    def __init__(self, note: Callable[[Any, str, tuple[Any, ...]], None] | None = None) -> None:
        """Follow caches; note: takes a cache, and the name and arguments of what changes it, instead of its history."""
        self.by_id: dict[int, tuple[Any, History]] = {}
        self.note = note

    def of(self, arguments: Mapping[str, Any]) -> tuple[Any, History]:
        """Return the cache among the arguments of a call, None if there is none, and its history."""
        cache = next((arguments[name] for name in CACHES if arguments.get(name) is not None), None)
        if cache is None or isinstance(cache, bool):
            return None, History()
        length = cache_state(cache).length
        if length == 0:
            self.keep(cache, history := History())
            return cache, history
        history = self.by_id.get(id(owner_of(cache)), (None, History(known=False)))[1]
        if length is not None and history.tokens != length:
            history = History(known=False)
        return cache, history

    def keep(self, cache: Any, history: History) -> None:
        """Remember a cache and its history, and follow the methods that change it."""
        cache = owner_of(cache)
        self.by_id[id(cache)] = cache, history
        for name in CHANGES:
            if callable(getattr(cache, name, None)) and hasattr(cache, "__dict__") and name not in vars(cache):
                vars(cache)[name] = self.follow_method(getattr(cache, name), name, cache)

    def follow_method(self, own: Any, name: str, cache: Any) -> Any:
        """Wrap a method of a cache, of this name, so that it changes the history, too, or is noted instead."""

        def call(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values())  # one argument, which History calls by another name
            if self.note is not None:
                self.note(cache, name, given)
                return own(*args, **kwargs)
            result = own(*args, **kwargs)
            CHANGES[name](self.by_id[id(cache)][1], *given)
            return result

        return call

    def forget(self) -> None:
        """Give the caches their own methods back."""
        for cache, _ in self.by_id.values():
            for name in CHANGES:
                if hasattr(cache, "__dict__"):
                    vars(cache).pop(name, None)
        self.by_id.clear()


def cache_in(output: Any) -> Any:
    """Return the cache in the output of a call; None if it has none."""
    if isinstance(output, Mapping):
        return next((output[name] for name in CACHES if output.get(name) is not None), None)
    return next((X for name in CACHES if (X := getattr(output, name, None)) is not None), None)
