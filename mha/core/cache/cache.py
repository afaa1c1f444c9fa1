"""A layer's cache: keys and values of earlier tokens, in slots, with the position of each.

Letters: B batch, G heads of keys and values, S slots, d width of a key head, dv width of a value head.
"""

import os
import weakref
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.cache.slots import ARRAYS, integers, left_of, local_config
from mha.core.cache.steps import SlotState
from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.names import BackendName, CacheKind


class Cache:
    """The cache of a layer: heads of keys and values of the tokens of earlier calls, in slots, with their positions.

    `attention.cache` makes an empty one, `attention.cache_of` a frozen one. A call takes it as `cache=` and returns the
    next one; the old one is used up by that, a frozen one is not. The n-th real token of a sample is in slot n % S;
    padding, which is at a position below 0, is never kept.

    Its arrays are of the layer's framework: keys, values, positions, lengths and lost. config is the layer's; frozen
    says whether nothing is added. To use it after a call has used it up raises ValueError.
    """

    def __init__(self, config: Config, arrays: Any, frozen: bool = False) -> None:
        """Make a cache for a layer of this configuration; arrays: those above, in this order."""
        self.config, self.frozen = config, frozen
        self._arrays = tuple(arrays)
        self._slot_state: SlotState | None = None
        self._owner: Any = None

    def arrays(self) -> tuple[Any, ...]:
        """Return its arrays: keys, values, positions, lengths, lost."""
        if not self._arrays:
            raise ValueError(
                "cache is used up, expected the one that the last call returned: write output, cache = "
                "attention(..., cache=cache)"
            )
        return self._arrays

    @property
    def keys(self) -> Any:
        """Heads of keys, (B, G, S, d), normed and rotated, in the layer's dtype; zeros in an empty slot."""
        return self.arrays()[0]

    @property
    def values(self) -> Any:
        """Heads of values, (B, G, S, dv), in the layer's dtype; zeros in an empty slot."""
        return self.arrays()[1]

    @property
    def positions(self) -> Any:
        """The positions of the tokens in the slots, integers (B, S), -1 = an empty slot."""
        return self.arrays()[2]

    @property
    def lengths(self) -> Any:
        """The number of real tokens that were put in, integers (B,)."""
        return self.arrays()[3]

    @property
    def lost(self) -> Any:
        """The furthest position that was overwritten, integers (B,), -1 = none."""
        return self.arrays()[4]

    @property
    def backend(self) -> BackendName:
        """The name of the backend whose arrays it holds."""
        return dispatch.backend_of(self.keys) or "numpy"

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of samples B and slots S, of all slots, also where this rank has only some of them."""
        keys, _, *others = self.arrays()  # inside a compiled step there may be no others
        B, S = others[0].shape if others else (keys.shape[0], keys.shape[2])
        return B, S

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the layer's keys and values before their projection."""
        return self.config.key_size, self.config.value_size

    def slot_state(self) -> SlotState | None:
        """Return the state of its slots as NumPy's integers; None if only a compiler knows it."""
        if not self._module.is_known(self.lost):
            return None
        if self._slot_state is None:
            known = [self._module.value_of(X) for X in self.arrays()[2:]]
            if any(X is None for X in known):  # as inside `torch.func.vmap`
                return None
            self._slot_state = SlotState.of(*(X.astype(np.int64) for X in known))
        return self._slot_state

    def with_state(self, slot_state: SlotState) -> "Cache":
        """Note the state of its slots, and return this cache."""
        self._slot_state = slot_state
        return self

    def after(self, *arrays: Any) -> "Cache":
        """Make a cache of other arrays that belongs to the same layer."""
        cache = Cache(self.config, arrays, self.frozen)
        cache._owner = self._owner
        return cache

    def __deepcopy__(self, memo: Any) -> "Cache":
        """Copy the arrays; the copy belongs to the same layer."""
        return self.after(*map(self._module.clone, self.arrays()))

    def __copy__(self) -> "Cache":
        """Copy the arrays, too: two caches that share memory would write into each other's slots."""
        return self.__deepcopy__({})

    def set_owner(self, layer: Any) -> "Cache":
        """Note that it belongs to a layer, and return this cache."""
        self._owner = weakref.ref(layer)
        return self

    def owner(self) -> Any:
        """The layer that it belongs to, as far as that is known; else None."""
        return None if self._owner is None else self._owner()

    def use_up(self, written: bool = False) -> None:
        """Drop the arrays after a call, unless the cache is frozen, or a compiler may use them again.

        written: whether they have been written to, so that nobody may.
        """
        if not self.frozen and (written or self.slot_state() is not None):
            self._arrays = ()

    def reorder(self, rows: Any) -> "Cache":
        """Make a cache of these samples, integers (any number,), each as often as it is named; this one stays.

        Raises TypeError or ValueError if they are no integers, or one is no sample of the cache.
        """
        B, module = self.sizes[0], self._module
        known = integers("rows", rows)
        if known is not None and (known.ndim != 1 or (known.size and not 0 <= known.min() <= known.max() < B)):
            raise ValueError(f"rows is {checks.brief(rows)}, expected integers (any number,) from 0 to {B - 1}")
        rows = rows if known is None else self._to_backend(known)
        return self.after(*(module.samples(X, rows) for X in self.arrays()))

    def crop(self, positions: Any) -> "Cache":
        """Make a cache without the tokens from these positions on, integers (B,) or an int; this one stays.

        It takes back a draft: the next token may be at that position. Raises ValueError if a position is below 0 or
        more than one beyond the newest, or where a query there would see a token that was overwritten.
        """
        (B, S), window = self.sizes, left_of(self.config)
        if self.frozen:
            raise ValueError("cache is frozen, expected one that grows: there is nothing to take back")
        known = integers("positions", positions)
        if known is None or known.shape not in ((), (B,)):
            raise ValueError(f"positions is {checks.brief(positions)}, expected an int or integers of shape ({B},)")
        first = np.broadcast_to(known, (B,)).astype(np.int64)  # (B,)
        places, lengths, lost = (self._module.to_numpy(X).astype(np.int64) for X in self.arrays()[2:])
        for b, (at, newest, gone) in enumerate(zip(first, places.max(1, initial=-1), lost, strict=True)):
            if not 0 <= at <= newest + 1:
                raise ValueError(f"positions holds {at} for sample {b}, expected 0 to {newest + 1}: the newest plus 1")
            if gone >= 0 and (window is None or gone >= at - window):
                raise ValueError(
                    f"positions holds {at} for sample {b}, which has lost what is at {gone} and seen from there; make "
                    "the cache with more slots: one more for each token that may be taken back"
                )
        stays = (places >= 0) & (places < first[:, None])  # (B, S)
        left = lengths - ((places >= 0) & ~stays).sum(1)  # (B,)
        # Those that stay are in the order in which they came, the last one of them in slot (left - 1) % S.
        age = (np.arange(S) - lengths[:, None]) % S  # (B, S): the oldest slot first
        order = np.argsort(np.where(stays, age, S), 1, kind="stable")  # (B, S): those that stay, the oldest first
        number = (np.arange(S) - (left - stays.sum(1))[:, None]) % S  # (B, S): of the token that a slot gets
        columns, filled = np.take_along_axis(order, number, 1), number < stays.sum(1)[:, None]  # (B, S)
        places = np.where(filled, np.take_along_axis(places, columns, 1), -1)  # (B, S)
        columns = np.where(filled, columns, order[:, :1])  # (B, S): nothing of what goes, which may be no number
        if self.keys.shape[2] != S and (columns != np.arange(S))[filled].any():
            raise ValueError(
                "positions would move tokens to other slots, expected all tokens that came last: the slots are on "
                "several ranks"
            )
        if self.keys.shape[2] != S:
            heads = [self._module.clone(X) for X in (self.keys, self.values)]
        else:
            index = self._to_backend(columns[:, None, :, None])  # (B, 1, S, 1)
            heads = [self._module.take(X, index, 2) for X in (self.keys, self.values)]
        return self.after(*heads, *map(self._to_backend, (places, left, lost)))

    def to(self, backend: BackendName) -> "Cache":
        """The same cache on another backend, for the layer that `attention.to` gives; this one stays."""
        self._refuse_parts("to")
        module, old = dispatch.load(dispatch.parse_backend("backend", backend)), self._module
        arrays = [np.array(old.to_numpy(X), order="C") for X in self.arrays()]
        for heads in arrays[:2]:  # of another origin, they may hold anything
            heads.swapaxes(1, 2)[arrays[2] < 0] = 0
        with module.context(self.config.dtype):
            return Cache(self.config, map(module.tensor, arrays), self.frozen)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache and its layer's configuration to a safetensors file, which `mha.Cache.load` reads."""
        self._refuse_parts("save")
        arrays = dict(zip(ARRAYS, map(self._module.to_numpy, self.arrays()), strict=True))
        from mha.weights.caches import files

        files.save(path, self.config, arrays, self.frozen)

    @staticmethod
    def load(path: str | os.PathLike[str], backend: BackendName | None = None) -> "Cache":
        """The cache of a file that `save` wrote, on any backend; None = as MHA_BACKEND says, else NumPy.

        Raises ValueError if the file holds no cache, or is damaged, and OSError if it cannot be read.
        """
        from mha.weights.caches import files

        return Cache(*files.load(path)).to(dispatch.backend_name(backend))

    @staticmethod
    def from_native(
        native: Any,
        attention: Any,
        *,
        layer: int | None = None,
        lengths: Any = None,
        positions: Any = None,
        size: int | None = None,
    ) -> "Cache":
        """Convert a cache of another library into one of a layer, so that both can decode on from the same tokens.

        Its keys are rotated and normed already, as ours are. It stays as it is; what its empty slots hold is left out.

        Args:
            native: a cache, recognised by its names or shape, of any framework: Flax's cached_key and cached_value
                (B, S, G, d) with cache_index, in a mapping, in the state of a layer of nnx, or in the layer itself; a
                cache of transformers (DynamicCache, StaticCache), or one of its layers; a cache of mlx-lm (KVCache,
                RotatingKVCache, ChunkedKVCache, BatchKVCache), or the list of those of a model; keras-hub's array
                (B, 2, S, G, d), or (B, layers, 2, S, G, d); the pair (past keys, past values) of ONNX, (B, G, S, d).
            attention: the `mha.MultiHeadAttention` that the cache is for.
            layer: which, where there are several layers.
            lengths: an int or integers (B,), how many slots are filled, from the first on, where `native` does not say
                it: keras-hub's array does not, and ONNX's pair has all filled without.
            positions: integers (S,) or (B, S), where the token of each slot is, in any order as in a ring, below 0 =
                empty, as padding is; None = 0, 1 and so on, in the order of the slots.
            size: number of slots; None = as many as there, with a window (left, right) at least left + 1.

        Raises:
            TypeError, ValueError: if it is no such cache, does not fit the layer, or lacks tokens that the layer sees.
        """
        config = getattr(attention, "config", None)
        if not isinstance(config, Config) or not hasattr(attention, "backend"):
            raise TypeError(f"attention is {checks.brief(attention)}, expected an mha.MultiHeadAttention")
        from mha.weights.caches import foreign

        return Cache.of_layer(attention, foreign.read_cache(native, config, layer, lengths, positions, size))

    def to_native(self, kind: CacheKind) -> Any:
        """A cache of another library with the same tokens, bit for bit, on any backend; this one stays.

        Args:
            kind: "flax.linen", the variables of a layer: {"params": ..., "cache": it}; "flax.nnx", a state for
                `nnx.update(layer, it)` after the layer's `init_cache`; "transformers.DynamicCache" or
                "transformers.StaticCache", of one layer, whose `layers[0]` can take its place among those of a model;
                "mlx_lm.KVCache", of one layer, which can take its place in the list of a model.

        Raises:
            ValueError: if the kind is unknown, or if a token is not in the slot of its position, or samples have not
                as many tokens as each other: none of these kinds keeps positions.
            ModuleNotFoundError: if its library is not installed; the message says how to install it.
        """
        self._refuse_parts("to_native")
        from mha.weights.caches import foreign

        return foreign.make_cache(kind, self)

    @classmethod
    def of_layer(cls, attention: Any, arrays: dict[str, np.ndarray], frozen: bool = False) -> "Cache":
        """Make a cache of these arrays for a layer, on its device; frozen: whether calls add nothing."""
        module = dispatch.load(attention.backend)
        with module.context(attention.config.dtype):
            place = module.place(attention.layer)
            there = [module.tensor(checks.plain(X), place) for X in arrays.values()]
        made = cls(local_config(attention.layer), there, frozen).set_owner(attention.layer)
        _, _, *state = arrays.values()
        return made.with_state(SlotState.of(*(X.astype(np.int64) for X in state)))  # so that no device is asked

    @classmethod
    def of_arrays(cls, facts: tuple[Config, bool], arrays: Any) -> "Cache":
        """Make a cache of arrays that a compiler hands back; facts: config and frozen, which it fixes for all."""
        config, frozen = facts
        return cls(config, arrays, frozen)

    def _refuse_parts(self, method: str) -> None:
        """Raise ValueError if other ranks have some of its slots."""
        here, S = self.keys.shape[2], self.sizes[1]
        if here != S:
            raise ValueError(f"{method} came to a cache with keys of {here} of its {S} slots, expected all of them")

    def __tf_flatten__(self) -> Any:
        """Flatten the cache for TensorFlow, so that a `tf.function` is traced once for caches of one kind."""
        return (self.config, self.frozen), self.arrays()

    __tf_unflatten__ = of_arrays

    @property
    def _module(self) -> Any:
        return dispatch.load(self.backend)

    def _to_backend(self, integers: np.ndarray) -> Any:
        """Turn integers into an array of the backend, where the cache lies."""
        return self._module.tensor(integers.astype(np.int32), self._module.place(None, self.keys))

    def __repr__(self) -> str:
        if not self._arrays:
            return "Cache(used up)"
        (B, S), kind = self.sizes, "frozen, " if self.frozen else ""
        return f"Cache({kind}batch_size={B}, size={S}, dtype={self.config.dtype!r}, backend={self.backend!r})"
