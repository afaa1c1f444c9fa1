"""Derive the call of one layer from the call of its model: the arguments that the layer should have had.

Where positions begin again, several texts are in one row. Whether these may see each other, each library has a rule of
its own. Source: `masking_utils` of transformers 5.23.

Letters: B batch, Q queries, K keys and values, T tokens.
"""

from typing import Any

import numpy as np

from mha import arrays
from mha.core.call import PACKED
from mha.core.options import positions
from mha.core.options.config import Config
from mha.models.audit.calls.model_calls import ModelCall, UnknownError
from mha.models.audit.layers.reference import Reference
from mha.weights import models

TABLE = "relative_attention_bias.weight"
WITHOUT_WINDOW = "without window"  # among the arguments: the mask has the window, which goes by other places
Sizes = tuple[int, int, int]  # B, Q, K
LayerArguments = tuple[dict[str, Any], np.ndarray]


def layer_call_arguments(
    call: ModelCall,
    attends: models.CallConvention,
    config: Any,
    reference: Reference,
    path: str,
    sizes: Sizes,
    apart: bool | None = None,
) -> LayerArguments:
    """Return the arguments of a layer's call that follow from the model's, and which queries count, booleans (B, Q).

    apart: whether positions that begin again begin another text, None = as transformers has it.
    Raises UnknownError if the arguments cannot be derived.
    """
    for name in attends.without:
        if (X := call.array(name)) is not None and X.any():
            raise UnknownError(f"{name} is given: how texts are called beside it is not known")
    B, Q, K = sizes
    kind = "sliding_attention" if config.window else "full_attention"
    if call.kept.rounded:
        raise UnknownError("its cache is quantised")
    most, left = call.kept.most, config.window and config.window[0]
    if most is not None and most < K and (left is None or left >= most):
        raise UnknownError(f"its cache keeps {most} of {K} tokens")
    own, of_keys = call.array(attends.queries, kind), call.array(attends.keys, kind)
    if own is None and of_keys is None and not attends.cross:
        own = of_keys = call.kept.real_tokens(K)
    given: dict[str, Any] = {}
    rows = np.ones((B, Q), bool)
    if own is not None and own.ndim == 2 and own.shape[1] >= Q:
        rows = np.broadcast_to(own[:, -Q:] != 0, (B, Q))
    before = K - Q
    by_position = attends.causal or config.window or config.chunk or config.rotary or config.temperature
    places = call.places(Q) if by_position and not attends.cross else None
    if of_keys is not None and of_keys.ndim == 4:
        given = mask_arguments(of_keys, sizes) | ({WITHOUT_WINDOW: True} if config.window else {})
        if places is not None:
            places = np.broadcast_to(places, (B, K))
            return given | {"positions": places[:, before:], "key_positions": places}, rows
        return given | ({"offset": before} if by_position and before else {}), rows
    seen = None
    if of_keys is not None and of_keys.size:
        if of_keys.ndim != 2 or of_keys.shape[1] != K or of_keys.shape[0] not in (1, B):
            raise UnknownError(f"{attends.keys} has shape {of_keys.shape}, expected ({B}, {K}) for its {K} keys")
        seen = np.broadcast_to(of_keys != 0, (B, K))
        seen = None if seen.all() else seen
    if attends.cross:
        return ({} if seen is None else {"mask": seen[:, None]}), rows
    given["causal"] = attends.causal
    if places is not None:
        apart = are_separate(call, attends, reference) if apart is None else apart
        given |= position_arguments(places, seen, sizes, config, attends.causal, apart)
    elif seen is not None:
        given["mask"] = seen[:, None]  # (B, 1, K)
    if by_position and "positions" not in given and before:
        given["offset"] = before
    if attends.bias:
        given["score_bias"] = score_bias(attends, config, reference, path, Q, K)
    return given, rows


def position_arguments(
    places: np.ndarray, seen: np.ndarray | None, sizes: Sizes, config: Config, causal: bool, apart: bool
) -> dict[str, Any]:
    """Return the positions of queries and keys, (B, T), where the call gives them; -1 in padding.

    apart: whether another text begins where positions begin again; else order and window go by the tokens' places.
    """
    B, Q, K = sizes
    if places.shape[1] != K:
        raise UnknownError(f"positions are known of {places.shape[1]} of its {K} keys")
    places = np.broadcast_to(places, (B, K))
    real = np.ones((B, K), bool) if seen is None else seen
    if is_continuous(places, real):
        places = np.where(real, places, -1)
        return {"positions": places[:, K - Q :], "key_positions": places}
    given: dict[str, Any] = {"positions": places[:, K - Q :], "key_positions": places}
    steps = np.diff(places, axis=1)
    regular = ((steps == 1) | (places[:, 1:] == 0)).all()
    if apart and seen is None and K == Q and (regular or not config.chunk):
        texts = np.concatenate([np.zeros((B, 1), int), np.cumsum(steps != 1, 1)], 1)  # (B, K)
        return given | dict.fromkeys(PACKED, texts)
    if config.chunk:
        raise UnknownError("its positions do not follow the order of the tokens, and it has chunks")
    far = np.arange(K) - (K - Q + np.arange(Q))[:, None]  # (Q, K)
    left, right = config.window or (None, None)
    right = 0 if causal else right
    order = (far >= (-K if left is None else -left)) & (far <= (K if right is None else right))
    return given | {"mask": order & real[:, None], "causal": False, WITHOUT_WINDOW: True}


def is_continuous(places: np.ndarray, real: np.ndarray) -> bool:
    """Whether each sample's positions rise by one, also across padding."""
    shift = np.where(real, places - np.arange(places.shape[1]), 0)
    low, high = (f(np.where(real, shift, other), 1) for f, other in ((np.min, 2**40), (np.max, -(2**40))))
    return bool(((low == high) | ~real.any(1)).all())


def mask_arguments(mask: np.ndarray, sizes: Sizes) -> dict[str, Any]:
    """Return the mask, and the bias, in a mask with four axes, which counts alone."""
    B, Q, K = sizes
    mask = mask[..., :K]  # further slots of a cache are empty
    if mask.shape[0] not in (1, B) or mask.shape[2] not in (1, Q) or mask.shape[3] != K:
        raise UnknownError(f"the mask has shape {mask.shape}, expected ({B}, 1, {Q}, {K})")
    if mask.dtype.kind not in "fV":
        return {"mask": mask != 0}
    wide = mask.astype(np.float64)
    hidden = wide < -1e4
    found: dict[str, Any] = {"mask": ~hidden}
    if (wide[~hidden] != 0).any():
        found["score_bias"] = np.where(hidden, 0, wide)
    return found


def score_bias(
    attends: models.CallConvention, config: Any, reference: Reference, path: str, Q: int, K: int
) -> np.ndarray:
    """Return the bias of scores, (1, H, Q or 1, K), that a model of this kind has."""
    if attends.bias.startswith("alibi"):
        slopes = positions.alibi(config.num_heads, K, dtype="float64")
        return slopes * config.key_dim**-0.5 if "scaled" in attends.bias else slopes
    names = [name for name in reference.arrays if name.endswith(TABLE)]
    if not names:
        raise UnknownError(f"{reference.origin} has no {TABLE}")

    def common_length(name: str) -> int:  # the most for its own table, else for that of the first layer of its stack
        return next((at for at, (X, Y) in enumerate(zip(name, path + ".", strict=False)) if X != Y), len(path))

    name = max(names, key=common_length)
    table = np.asarray(arrays.to_numpy(reference.arrays[name])).astype(np.float64)  # (buckets, H)
    buckets = positions.t5_buckets(
        Q, K, bidirectional=not attends.causal, num_buckets=len(table), offset=K - Q,
        max_distance=(reference.config or {}).get("relative_attention_max_distance", 128),
    )  # fmt: skip
    return table[buckets].transpose(2, 0, 1)[None]  # (1, H, Q, K)


def are_separate(call: ModelCall, attends: models.CallConvention, reference: Reference) -> bool:
    """Whether positions that begin again begin a separate text, as transformers has it."""
    return attends.causal and not reasons_together(call, attends, reference)


def reasons_together(call: ModelCall, attends: models.CallConvention, reference: Reference) -> list[str]:
    """List the arguments for which transformers lets texts in one row see each other."""
    by_default = (reference.config or {}).get("use_cache", False)
    cached = call.arguments.get("use_cache")
    reasons = ["use_cache"] if call.history.tokens or (by_default if cached is None else cached) else []
    return reasons + [name for name in (attends.keys,) if call.array(name) is not None]


def count_texts(call: ModelCall, attends: models.CallConvention, sizes: Sizes) -> int:
    """Count the texts in a row of a call whose positions begin again."""
    texts = None if attends.cross else call.texts(sizes, attends.keys)
    return 1 if texts is None else 1 + int(texts.max(initial=0))


def note_on_texts(count: int, reasons: list[str]) -> str:
    """Say that texts see each other; reasons: [] = the model never keeps them apart."""
    found = f"positions begin again: the {count} texts in a row see each other"
    if not reasons:
        return f"{found}: the model does not keep them apart; give a mask (B, 1, T, T), or one text in a row"
    without = " and ".join("use_cache=False" if name == "use_cache" else f"{name}=None" for name in reasons)
    return f"{found}, as transformers has it with {' and '.join(reasons)}; call with {without}, or a mask (B, 1, T, T)"
