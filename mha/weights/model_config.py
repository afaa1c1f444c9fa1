"""What the `config.json` beside a checkpoint says of its attention, as Hugging Face stores it.

Arrays show neither rotations nor windows. A name that is about attention and is not known here is refused, so that
nothing that changes the result is passed over.

Source: the configuration and attention classes of transformers 5.23, whose defaults hold where a name is not there.
"""

import os
import re
import reprlib
from pathlib import Path
from typing import Any

from mha import checks
from mha.names import SchemeName
from mha.positions import Rotary, llama3_frequencies
from mha.weights import files, safetensors_reader

NAME = "config.json"
LIMIT = 2**24  # bytes; those of large label sets have a hundredth
SCHEMES: tuple[SchemeName, ...] = ("bert", "distilbert", "vit", "gpt2", "llama", "opt")  # beside which it lies

# What is about attention, by its name, and what of that leaves the result as it is.
_ABOUT = re.compile(
    r"att(ention|n)|rope|rotary|window|softcap|qk_|alibi|sink|layer_types|position_embedding_type|relative|pruned"
)
_PASSED = {
    "num_attention_heads", "encoder_attention_heads", "decoder_attention_heads",
    "attention_bias", "add_cross_attention", "cross_attention_hidden_size",  # arrays tell
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
    "output_attentions", "attn_implementation", "_attn_implementation", "reorder_and_upcast_attn",
}  # fmt: skip
_NEUTRAL = {"position_embedding_type": "absolute", "scale_attn_weights": True, "partial_rotary_factor": 1}

# The kinds of models that rotate positions, and what they read besides.
_ROTATION = {"rope_theta", "rope_scaling", "rope_parameters"}
_WINDOW = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}
KINDS = {
    "llama": _ROTATION,
    "mistral": _ROTATION | {"sliding_window"},
    "qwen2": _ROTATION | _WINDOW,
    "qwen3": _ROTATION | _WINDOW,
}


def beside(path: str | os.PathLike[str]) -> Path:
    """Where the configuration lies of the model that a file is of."""
    return Path(path).with_name(NAME)


def options(path: Path, scheme: SchemeName, prefix: str) -> dict[str, Any]:
    """What a file says of the layer with this prefix: options of `mha.config.Config`; none if it is not there.

    Raises ValueError, which names the file, if it cannot be read, or says what no layer here does.
    """
    if scheme not in SCHEMES:
        return {}
    try:
        with files.open_file(path) as file:
            data = file.read(LIMIT + 1)
    except FileNotFoundError:
        return {}
    try:
        if len(data) > LIMIT:
            raise ValueError(f"it has more than {LIMIT} bytes")
        return _options(safetensors_reader.parse(data.decode()), scheme, prefix)
    except (TypeError, ValueError) as error:
        raise ValueError(f"has {path} beside it, which does not describe such a layer: {error}") from error


def _options(model: dict[str, Any], scheme: SchemeName, prefix: str) -> dict[str, Any]:
    kind = str(model.get("model_type"))
    rotates = scheme == "llama"
    if rotates and kind not in KINDS:
        raise ValueError(
            f"model_type is {reprlib.repr(kind)}, expected one of {', '.join(KINDS)}, whose attention is known; pass "
            "the arrays to mha.from_native to say yourself what it computes"
        )
    known = KINDS[kind] if rotates else set()
    for name, value in model.items():
        if _ABOUT.search(name) and name not in _PASSED | known and not _says_nothing(name, value):
            raise ValueError(f"{name} is {reprlib.repr(value)}, which may change the attention and is not known")
    heads = next((model[name] for name in ("num_attention_heads", "n_head", "n_heads") if name in model), None)
    if heads is None and not rotates:
        return {}
    num_heads = checks.size("num_attention_heads", heads)
    return {"num_heads": num_heads} | (_rotated(model, kind, prefix, num_heads) if rotates else {})


def _says_nothing(name: str, value: Any) -> bool:
    """Whether an option leaves the attention as it is."""
    if name == "layer_types" and isinstance(value, list):
        return all(kind == "full_attention" for kind in value)
    return value is None or value is False or value in ([], {}) or (name in _NEUTRAL and value == _NEUTRAL[name])


def _rotated(model: dict[str, Any], kind: str, prefix: str, num_heads: int) -> dict[str, Any]:
    """The options of a layer whose positions rotate."""
    width = model.get("head_dim")
    if width is None:
        width = checks.size("hidden_size", model.get("hidden_size")) // num_heads
    found: dict[str, Any] = {"key_dim": checks.size("head_dim", width)}
    if "num_key_value_heads" in model:
        groups = model["num_key_value_heads"]
        found["num_key_value_heads"] = num_heads if groups is None else checks.size("num_key_value_heads", groups)
    found |= {"rotary": _rotary(model, found["key_dim"]), "window": _window(model, kind, prefix)}
    if kind == "qwen3":
        found |= {"qk_norm": "rms", "qk_norm_eps": checks.positive("rms_norm_eps", model.get("rms_norm_eps", 1e-6))}
    return found


def _rotary(model: dict[str, Any], width: int) -> Rotary:
    """How positions rotate: `rope_parameters`, or in older files `rope_scaling` with `rope_theta` beside it."""
    where = next((name for name in ("rope_scaling", "rope_parameters") if model.get(name)), "rope_parameters")
    told = model.get(where) or {}
    if not isinstance(told, dict):
        raise TypeError(f"{where} is {reprlib.repr(told)}, expected options by name")
    told = {name: value for name, value in told.items() if not _says_nothing(name, value)}
    kind = told.pop("type", "default")
    kind = told.pop("rope_type", kind)
    base = checks.positive("rope_theta", told.pop("rope_theta", model.get("rope_theta", 10000.0)))
    needs = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if kind not in needs:
        raise ValueError(f"rope_type is {reprlib.repr(kind)}, expected one of {', '.join(needs)}")
    if set(told) != set(needs[kind]):
        lacking, foreign = sorted({*needs[kind]} - {*told}), sorted({*told} - {*needs[kind]})
        problem = f"lacks {', '.join(lacking)}" if lacking else f"has {', '.join(foreign)}, which is not known"
        raise ValueError(f"{where} of rope_type {kind!r} {problem}")
    given = [told[name] for name in needs[kind]]
    if kind == "llama3":
        return Rotary(width, base, frequencies=llama3_frequencies(width, base, *given))
    if kind == "linear":
        factor = checks.positive("factor", *given)
        return Rotary(width, base, frequencies=tuple(angle / factor for angle in Rotary(width, base).angles()))
    return Rotary(width, base)


def _window(model: dict[str, Any], kind: str, prefix: str) -> tuple[int, int] | None:
    """How many keys the layer with this prefix sees before and after its own position; None = all."""
    size = model.get("sliding_window", 4096) if "sliding_window" in KINDS[kind] else None
    if size is None or ("use_sliding_window" in KINDS[kind] and model.get("use_sliding_window", False) is False):
        size = None
    types = model.get("layer_types") if "layer_types" in KINDS[kind] else None
    if kind != "mistral" and not _sees_less(model, types, size, prefix):
        return None
    return None if size is None else (checks.size("sliding_window", size) - 1, 0)


def _sees_less(model: dict[str, Any], types: Any, size: Any, prefix: str) -> bool:
    """Whether the window is one of the layer with this prefix."""
    if _says_nothing("layer_types", types) and (size is None or types):
        return False
    number = re.search(r"(?:^|\.)layers\.(\d+)\.", prefix)
    if number is None:
        raise ValueError(
            f"some layers have a window, and prefix {prefix!r} has no layers.NUMBER to say which layer it is"
        )
    at = int(number[1])
    if types is None:
        return at >= checks.whole("max_window_layers", model.get("max_window_layers", 28))
    told = types[at] if isinstance(types, list) and at < len(types) else None
    if told not in ("full_attention", "sliding_attention"):
        raise ValueError(
            f"layer_types has {reprlib.repr(told)} for layer {at}, expected full_attention or sliding_attention"
        )
    if told == "sliding_attention" and size is None:
        raise ValueError(f"layer_types has a window for layer {at}, but sliding_window is not there or not used")
    return told == "sliding_attention"
