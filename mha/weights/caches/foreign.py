"""Convert caches of other libraries: Flax', those of transformers and mlx-lm, the arrays of keras-hub and ONNX.

A cache is recognised by its attributes, so that nothing is imported to read one. To make one,
`mha/weights/frameworks/` has a file for the framework of its arrays.

Letters: B batch, G heads of keys and values, S slots, T those of the other cache, d width of a key head, dv of a value
head.
"""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mha.core import dispatch
from mha.core.cache.slots import ARRAYS, LOST, empty_arrays, integers, left_of
from mha.core.options import checks
from mha.core.options.config import Config
from mha.weights.caches import mlx_lm
from mha.weights.foreign.arrays import to_numpy

# The kinds that are made, and the backend whose arrays each has.
KINDS = {kind: name for name, kinds in dispatch.facts("CACHES", ()).items() for kind in kinds}
FLAX = "cached_key", "cached_value", "cache_index"
EXPECTED = (
    "expected Flax's cached_key, cached_value and cache_index, a cache of transformers or mlx-lm, keras-hub's array "
    "(B, 2, S, H, d), or the pair (past keys, past values) of ONNX"
)


class NativeCache(NamedTuple):
    """The cache of another library.

    Attributes:
        keys: (B, G, T, d).
        values: (B, G, T, dv).
        tokens: how many each sample has, None = not said; more than T: a window has moved on, and the last ones are
            there, the oldest first.
        positions: (B, T), of the tokens in its slots, -1 = empty; None = one after the other.
    """

    keys: np.ndarray
    values: np.ndarray
    tokens: int | None
    positions: np.ndarray | None = None


def read_cache(
    native: Any, config: Config, layer: int | None, lengths: Any, positions: Any, size: int | None
) -> dict[str, np.ndarray]:
    """Return the arrays of a cache for a layer's configuration, by name; other arguments as for `Cache.from_native`."""
    found = _read_native(native, config, layer, lengths)
    places = _places(found, lengths, positions)  # (B, T)
    (B, T), real, left = places.shape, places >= 0, left_of(config)
    oldest = np.where(real.any(1), np.where(real, places, LOST).min(1, initial=LOST), 0)  # (B,)
    gone = np.zeros(B, int)  # how many tokens of a sample are no longer there
    if found.tokens is not None and found.tokens > T:
        gone = oldest
    elif positions is not None and left is not None:  # those before the oldest, where no later query would see them
        gone = np.where(oldest + left <= places.max(1, initial=-1) + 1, oldest, 0)
    arrays = empty_arrays(config, B, max(T, 1 if left is None else left + 1) if size is None else size)
    S = arrays["positions"].shape[1]
    for b in range(B):
        columns = np.argsort(places[b], kind="stable")[(~real[b]).sum() :]  # of the tokens, the oldest first
        number = gone[b] + np.arange(len(columns))  # of each token among those of its sample
        slots, kept = number[-S:] % S, columns[-S:]
        arrays["keys"][b][:, slots] = found.keys[b][:, kept]  # (G, kept, d)
        arrays["values"][b][:, slots] = found.values[b][:, kept]  # (G, kept, dv)
        arrays["positions"][b, slots] = places[b, kept]
        arrays["lengths"][b] = gone[b] + len(columns)
        arrays["lost"][b] = lost = max(gone[b] - 1, places[b, columns[:-S]].max(initial=-1))
        later = arrays["positions"][b].max() + 1
        if lost >= 0 and (left is None or lost >= later - left):
            raise ValueError(
                f"native leaves sample {b}, in {S} slots, without the token at {lost}, which the layer sees from "
                f"{later}; expected a larger size, or a layer with a window that ends before"
            )
    return arrays


def make_cache(kind: Any, cache: Any) -> Any:
    """Make a cache of another library; see `Cache.to_native`."""
    kind = checks.choice("kind", kind, tuple(KINDS))
    backend, tokens = KINDS[kind], _in_order(kind, cache)
    module, own = dispatch.load(backend), dispatch.load(cache.backend)
    place = module.place(None, cache.keys) if backend == cache.backend else None
    native = importlib.import_module(f"mha.weights.frameworks.{backend}")
    heads = [np.array(own.to_numpy(X)) for X in (cache.keys, cache.values)]
    for X in heads:  # what is in empty slots may be no number, which others only hide
        X[:, :, tokens:] = 0
    with module.context(cache.config.dtype):
        return native.make_cache(kind, *(module.tensor(checks.plain(X), place) for X in heads), tokens)


def _read_native(native: Any, config: Config, layer: int | None, lengths: Any) -> NativeCache:
    """Read a cache of any kind, in our order of axes; lengths: None = all slots of ONNX's arrays are filled."""
    if _has(native, FLAX[0]) or isinstance(native, Mapping):
        return _of_flax(native, config, layer)
    if hasattr(native, "get_seq_length"):
        return _of_transformers(native, config, layer)
    if mlx_lm.name_of(native[0] if isinstance(native, list | tuple) and native else native):
        return _of_mlx_lm(native, config, layer)
    if isinstance(native, list | tuple) and len(native) == 2:
        _refuse_number("native is a pair of arrays", layer)
        k, v = _heads(config, "BGSd", **{"native[0]": native[0], "native[1]": native[1]})
        return NativeCache(k, v, k.shape[2] if lengths is None else None)
    if dispatch.backend_of(native) is None:
        raise TypeError(f"native is a {type(native).__name__}, {EXPECTED}")
    return _of_keras_hub(native, config, layer)


def _of_flax(native: Any, config: Config, layer: int | None) -> NativeCache:
    """Read the cache of a layer of Flax: of linen its variables, of nnx the layer itself, or its state."""
    if missing := [name for name in FLAX if not _has(native, name)]:
        names = f"holds {', '.join(map(str, native))}" if isinstance(native, Mapping) else f"is {checks.brief(native)}"
        raise ValueError(f"native {names}, and lacks {', '.join(missing)}; {EXPECTED}, of one layer alone")
    keys, values, index = (native[n] if isinstance(native, Mapping) else getattr(native, n) for n in FLAX)
    if any(X is None for X in (keys, values, index)):
        raise ValueError("native is a layer without a cache, expected one after `init_cache`")
    arrays = {name: to_numpy(name, X, "an array") for name, X in zip(FLAX, (keys, values, index), strict=True)}
    if arrays[FLAX[2]].ndim == 1:  # of a stack of layers, as `nn.scan` makes it
        number = _layer_number(layer, len(arrays[FLAX[2]]))
        arrays = {name: X[number] for name, X in arrays.items()}
    else:
        _refuse_number("native is of one layer", layer)
    index = arrays.pop(FLAX[2])
    if index.dtype.kind not in "iu" or index.ndim:
        raise TypeError(f"cache_index has shape {index.shape} and dtype {index.dtype}, expected one integer")
    heads = _heads(config, "BSGd", **arrays)
    if not 0 <= index <= heads[0].shape[2]:
        raise ValueError(f"cache_index is {index}, expected 0 to {heads[0].shape[2]}, as cached_key has slots")
    return NativeCache(*heads, int(index))


def _of_transformers(native: Any, config: Config, layer: int | None) -> NativeCache:
    """Read a layer in a cache of transformers, or one that was taken out of it."""
    if hasattr(native, "self_attention_cache"):
        raise TypeError(
            f"native is a {type(native).__name__}, which has two caches, expected one: pass its self_attention_cache"
        )
    layers = getattr(native, "layers", [native])
    number = _layer_number(layer, len(layers))
    one = layers[number]
    keys, values = (getattr(one, name, None) for name in ARRAYS[:2])
    if keys is None or values is None:
        raise ValueError(
            f"native has a {type(one).__name__} without keys and values as layer {number}, expected one with tokens; "
            "an empty cache is attention.cache(batch_size, size)"
        )
    tokens = int(one.get_seq_length())
    k, v = _heads(config, "BGSd", keys=keys, values=values)
    if tokens > k.shape[2] and not getattr(one, "is_sliding", False):
        raise ValueError(f"native has {k.shape[2]} tokens of layer {number} as they are, expected {tokens}, as it says")
    return NativeCache(k, v, tokens)


def _of_mlx_lm(native: Any, config: Config, layer: int | None) -> NativeCache:
    """Read a cache of mlx-lm, or one of the list of a model."""
    layers = native if isinstance(native, list | tuple) else [native]
    one = layers[_layer_number(layer, len(layers))]
    slots, tokens, positions = mlx_lm.slots_of(one)
    k, v = _heads(config, "BGSd", keys=one.keys, values=one.values)
    return NativeCache(k[:, :, slots], v[:, :, slots], tokens, positions)


def _of_keras_hub(native: Any, config: Config, layer: int | None) -> NativeCache:
    """Read an array of keras-hub: (B, 2, S, H, d) of a layer, or (B, layers, 2, S, H, d) of a model."""
    both = to_numpy("native", native, "an array")
    if both.ndim == 6:
        both = both[:, _layer_number(layer, both.shape[1])]  # (B, 2, S, G, d)
    else:
        _refuse_number("native is of one layer", layer)
    if both.ndim != 5 or both.shape[1] != 2:
        raise ValueError(f"native has shape {both.shape}, expected (B, 2, S, H, d), keys and values in its second axis")
    return NativeCache(*_heads(config, "BSGd", **{"native[:, 0]": both[:, 0], "native[:, 1]": both[:, 1]}), None)


def _heads(config: Config, layout: str, **arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return keys (B, G, T, d) and values (B, G, T, dv); layout: the order of the axes of the two arrays."""
    found: list[np.ndarray] = []
    for (name, X), width in zip(arrays.items(), (config.key_dim, config.value_dim), strict=True):
        array = to_numpy(name, X, "an array")
        B, T = (found[0].shape[0], found[0].shape[2]) if found else (None, None)
        sizes = {"B": B, "G": config.num_key_value_heads, "S": T, "d": width}
        shown = ", ".join(axis if sizes[axis] is None else str(sizes[axis]) for axis in layout)
        if array.ndim != 4 or any(
            sizes[axis] not in (None, length) for axis, length in zip(layout, array.shape, strict=True)
        ):
            raise ValueError(
                f"{name} has shape {array.shape}, expected ({shown}): {config.num_key_value_heads} heads of width "
                f"{width}, as the layer has"
            )
        if (came := checks.dtype_name(array.dtype)) != config.dtype:
            raise TypeError(f"{name} has dtype {came}, expected {config.dtype} as the layer")
        found.append(array.transpose([layout.index(axis) for axis in "BGSd"]))  # (B, G, T, d)
    return found[0], found[1]


def _places(found: NativeCache, lengths: Any, positions: Any) -> np.ndarray:
    """Return the position of each slot of another cache (B, T), -1 = empty."""
    (B, _, T, _), each = found.keys.shape, np.arange(found.keys.shape[2])
    if positions is not None:
        if lengths is not None:
            raise ValueError("lengths is given beside positions, expected one of the two: -1 is an empty slot")
        given = integers("positions", positions)
        if given is None or given.shape not in ((T,), (B, T)) or given.max(initial=0) > checks.FURTHEST:
            raise ValueError(
                f"positions is {checks.brief(positions)}, expected integers of shape ({T},) or ({B}, {T}), up to "
                f"{checks.FURTHEST}"
            )
        return np.broadcast_to(np.maximum(given, -1), (B, T)).astype(np.int64)  # (B, T)
    if found.positions is not None:
        if lengths is not None:
            raise ValueError("lengths is given, expected None: native says itself which slots are filled")
        return np.broadcast_to(found.positions, (B, T))  # (B, T)
    if found.tokens is not None:
        if lengths is not None:
            raise ValueError(
                f"lengths is given, expected None: native says itself that {found.tokens} slots are filled"
            )
        filled = min(found.tokens, T)
        return np.broadcast_to(np.where(each < filled, found.tokens - filled + each, -1), (B, T))  # (B, T)
    if lengths is None:
        raise ValueError("lengths is None, expected how many slots are filled, or positions: native does not say it")
    given = integers("lengths", lengths)
    if given is None or given.shape not in ((), (B,)) or not 0 <= given.min() <= given.max() <= T:
        raise ValueError(
            f"lengths is {checks.brief(lengths)}, expected an int or integers of shape ({B},), from 0 to {T}"
        )
    return np.where(each < np.broadcast_to(given, B)[:, None], each, -1)  # (B, T)


def _in_order(kind: str, cache: Any) -> int:
    """Return how many tokens each sample has, if each is in the slot of its position; ValueError if not."""
    book = cache.slot_state()
    if book is None:
        raise ValueError("cache has positions that a compiler alone knows, expected to_native outside of it")
    positions, lengths, _ = book.arrays
    fewest, most, size = lengths.min(), lengths.max(), positions.shape[1]
    if fewest != most:
        raise ValueError(
            f"cache has {fewest} tokens of one sample and {most} of another, expected as many of each: {kind} has one "
            "index for all; convert samples of one length, which cache.reorder chooses"
        )
    if most > size:
        raise ValueError(
            f"cache has had {most} tokens in {size} slots, expected each token in the slot of its position, as {kind} "
            "has it; decode with a cache of a larger size"
        )
    if book.tokens is None:
        raise ValueError(
            f"cache has positions other than 0, 1 and so on in its slots, expected each token in the slot of its "
            f"position: {kind} keeps no positions; compare cache.keys and cache.values themselves"
        )
    return int(most)


def _has(native: Any, name: str) -> bool:
    """Whether a mapping or an object has something of this name."""
    return name in native if isinstance(native, Mapping) else hasattr(native, name)


def _layer_number(layer: int | None, count: int) -> int:
    """Return the number of a layer, of so many; None is the only one."""
    if layer is None and count != 1:
        raise ValueError(f"layer is None, expected one from 0 to {count - 1}, as native has")
    number = 0 if layer is None else checks.whole("layer", layer)
    if not 0 <= number < count:
        raise ValueError(f"layer is {layer}, expected one from 0 to {count - 1}, as native has")
    return number


def _refuse_number(why: str, layer: int | None) -> None:
    """Refuse the number of a layer where there is only one."""
    if layer is not None:
        raise ValueError(f"layer is {checks.brief(layer)}, expected None: {why}")
