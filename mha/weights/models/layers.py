"""Tell which layers of a model have its window, and which rotate positions, by `config.json`, layer by layer.

A function raises ValueError if the prefix lacks the layer's number, which is needed, or if the model does not describe
that layer.
"""

import re
import reprlib
from collections.abc import Container
from typing import Any

from mha.core.options import checks
from mha.weights.models.kinds import BY_NAME, BY_TYPES, BY_WINDOW, EXAONE, ROTATING_IN_WINDOWS, SLIDING


def slides(model: dict[str, Any], kind: str, prefix: str, reads: Container[str]) -> bool:
    """Whether the layer with this prefix has the model's window; reads: the names that a model of this kind has."""
    if kind == "llama4_text":  # it has chunks instead
        return False
    size, types = model.get("sliding_window"), model.get("layer_types")
    if not model.get("use_sliding_window", True):
        size = None
    if "layer_types" not in reads or (kind in (*SLIDING, *BY_TYPES) and not types):
        return size is not None and kind in SLIDING
    if types and isinstance(types, list) and all(one == "full_attention" for one in types):
        return False
    if not types and size is None and kind not in BY_WINDOW:
        return False
    at = _number(prefix, "have a window")
    if types is None and kind == "smollm3":  # it has a max_window_layers, too, which counts for nothing
        return not _turns_by_number(model, at)
    if types is None and "max_window_layers" in reads:
        return at >= checks.whole("max_window_layers", model["max_window_layers"])
    if types is None and kind in ("cwm", "modernbert"):
        return at % checks.size("global_attn_every_n_layers", model.get("global_attn_every_n_layers", 4)) != 0
    if types is None:
        name = "global_attn_every_n_layers" if kind == "afmoe" else "sliding_window_pattern"
        if kind == "cohere2_moe":  # which counts its first layers apart from the others
            first = checks.whole("first_k_dense_replace", model["first_k_dense_replace"])
            name, at = (f"prefix_dense_{name}", at) if at < first else (name, at - first)
        pattern = checks.size(name, model.get(name, 2))
        return (at + 1) % pattern != 0
    known = "full_attention", "sliding_attention", "attention"  # the last one as older files of hybrid models say it
    recorded = _item("layer_types", types, at, known, "full_attention or sliding_attention")
    if recorded == "sliding_attention" and size is None:
        raise ValueError(f"layer_types has a window for layer {at}, but sliding_window is missing or not used")
    return recorded == "sliding_attention"


def turns(model: dict[str, Any], kind: str, prefix: str, slides: bool) -> bool:
    """Whether the layer with this prefix rotates positions; slides: whether it has a window."""
    if kind == "cohere2_moe" and model["prefix_dense_sliding_window_pattern"] == 1:
        return slides or _dense(model, _number(prefix, "rotate no positions"))
    if kind in ROTATING_IN_WINDOWS or (kind in EXAONE and model["sliding_window"] is not None):
        return slides
    if kind in ("smollm3", "llama4_text"):
        return _turns_by_number(model, _number(prefix, "rotate no positions"))
    if kind in BY_NAME:
        said = model["position_embedding_type"]
        if said not in BY_NAME[kind]:
            raise ValueError(f"position_embedding_type is {reprlib.repr(said)}, expected one of {list(BY_NAME[kind])}")
        return BY_NAME[kind][said]
    return not model.get("alibi")


def chunk(model: dict[str, Any], prefix: str, turns: bool) -> int | None:
    """Return the chunk of a layer of a Llama 4, None = it has none; turns: whether it rotates positions."""
    if (types := model["layer_types"]) is not None:
        at, known = _number(prefix, "have chunks"), ("full_attention", "chunked_attention")
        turns = _item("layer_types", types, at, known, " or ".join(known)) == "chunked_attention"
    return checks.chunk("chunk", model["attention_chunk_size"]) if turns else None


def local(model: dict[str, Any], prefix: str) -> int | None:
    """Return the window of a layer of a GPT-Neo, None = it has none."""
    types = [kind for kinds, count in model["attention_types"] for _ in range(count) for kind in kinds]
    recorded = _item("attention_types", types, _number(prefix, "have a window"), ("global", "local"), "global or local")
    return checks.size("window_size", model["window_size"]) if recorded == "local" else None


def gemma4(model: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the configuration of one layer of a Gemma 4: heads have another width in layers without a window.

    Raises ValueError if the layer has no keys and values of its own; the message names the layer that has them.
    """
    at, model = _number(prefix, "have a window"), _last_is_full(model)
    own = dict(model)
    slides_here = slides(model, "gemma4_text", prefix, model)
    if shared := checks.whole("num_kv_shared_layers", model["num_kv_shared_layers"]):
        first = checks.size("num_hidden_layers", model.get("num_hidden_layers")) - shared
        places = [prefix.replace(f"layers.{at}.", f"layers.{number}.") for number in range(first)]
        owners = [one for one in places if slides(model, "gemma4_text", one, model) == slides_here]
        if at >= first:
            raise ValueError(
                f"num_kv_shared_layers is {shared}: layer {at} has no keys and values of its own, but those of "
                f"{owners[-1] if owners else 'none'}"
            )
    each = model.get("per_layer_config")
    if each is not None:  # as transformers writes it
        return own | each.get(str(at), {})
    if not slides_here:
        own["head_dim"] = model["global_head_dim"]
        if model["attention_k_eq_v"] and model["num_global_key_value_heads"] is not None:
            own["num_key_value_heads"] = model["num_global_key_value_heads"]
    return own


def _last_is_full(model: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a Gemma 4 with a last layer without a window, as transformers makes it."""
    types, count = model["layer_types"], model.get("num_hidden_layers")
    if types is None and count is not None:
        pattern = model["sliding_window_pattern"]
        types = ["full_attention" if (at + 1) % pattern == 0 else "sliding_attention" for at in range(count)]
    return model | {"layer_types": [*types[:-1], "full_attention"]} if isinstance(types, list) and types else model


def _turns_by_number(model: dict[str, Any], at: int) -> bool:
    """Whether layer `at` rotates positions: `no_rope_layers` has a 1 for those that do."""
    listed = model["no_rope_layers"]
    if listed in (None, []):
        return (at + 1) % checks.size("no_rope_layer_interval", model["no_rope_layer_interval"]) != 0
    return bool(_item("no_rope_layers", listed, at, (0, 1), "1 if it rotates positions, else 0"))


def _dense(model: dict[str, Any], at: int) -> bool:
    """Whether layer `at` has no experts, by `mlp_layer_types` or `first_k_dense_replace`."""
    types = model["mlp_layer_types"]
    if types is None:
        return at < checks.whole("first_k_dense_replace", model["first_k_dense_replace"])
    return bool(_item("mlp_layer_types", types, at, ("dense", "sparse"), "dense or sparse") == "dense")


def _item(name: str, listed: Any, at: int, known: tuple[Any, ...], expected: str) -> Any:
    """Return what a list says of layer `at`; ValueError if it is none of what is known, or if the list is too short."""
    found = listed[at] if isinstance(listed, list) and at < len(listed) else None
    if found not in known:
        raise ValueError(f"{name} has {reprlib.repr(found)} for layer {at}, expected {expected}")
    return found


def _number(prefix: str, what: str) -> int:
    """Return the number of the layer with this prefix; what: the difference between layers, for the error."""
    number = re.search(r"(?:^|\.)(?:layers|h)\.(\d+)\.", prefix)
    if number is None:
        raise ValueError(f"some layers {what}, and prefix {prefix!r} has no layers.NUMBER to say which layer it is")
    return int(number[1])
