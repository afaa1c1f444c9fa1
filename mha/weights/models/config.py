"""Read the options of attention from Hugging Face's `config.json`, or Meta's `params.json`, beside a checkpoint.

Arrays show neither rotations nor windows. A name that is about attention but is not known here is refused, so that
nothing that changes the result is ignored.
"""

import os
import re
import reprlib
from collections.abc import Container, Mapping, Set
from pathlib import Path
from typing import Any

from mha.core.options import checks
from mha.core.options.names import SchemeName
from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary, Temperature
from mha.weights import files, json_text
from mha.weights.models import layers, parts, rotation
from mha.weights.models.kinds import (
    AFTER,
    ALWAYS,
    IF_SAID,
    KINDS,
    LFM2,
    NEUTRAL_OF,
    NORMED,
    NOT_ROTATING,
    OF_ALL,
    OF_FORMAT,
    ROTATING,
    UNFOLDED,
    UNSAID,
    model_kind,
)
from mha.weights.models.plain import PLAIN, STACKS
from mha.weights.schemes.sizes import BARE, FOLDED, TIED
from mha.weights.schemes.table import SCHEMES

LIMIT = 2**24  # bytes; even files with many labels have only a hundredth of this
WIDEST = 2**16  # head_dim; its frequencies are computed before the arrays are read

# Names of numbers of heads; in a file without a kind, the first one counts.
_HEADS: tuple[str, ...] = ("num_attention_heads", "n_head", "n_heads", "attention_heads", "num_heads")
_HEADS += (*STACKS, "decoder_num_attention_heads")
# Names that are about attention, and those of them that do not change the result.
_ABOUT = re.compile(
    r"att(ention|n)|rope|rotary|window|softcap|qk_|alibi|sink|layer_types|position_embedding_type|relative|pruned|yarn"
    r"|floor_scale|mscale|gating|kv_shared|clip_qkv|global_(head|key)|use_prompt"
)
_PASSED = {
    "num_attention_heads", "encoder_attention_heads", "decoder_attention_heads",
    "attention_bias", "add_cross_attention", "cross_attention_hidden_size",  # the arrays show these
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attention_softmax_in_fp32",
    "final_logit_softcapping", "_sliding_window_pattern",  # of the whole model; said by layer_types
    "parallel_attn", "num_ln_in_parallel_attn", "mlp_layer_types",  # layers beside the attention
    "deterministic_flash_attn",
    "output_attentions", "attn_implementation", "_attn_implementation", "reorder_and_upcast_attn",
}  # fmt: skip
_NEUTRAL = {
    "position_embedding_type": "absolute", "scale_attn_weights": True, "partial_rotary_factor": 1, "rotary_pct": 1,
}  # fmt: skip
# What every kind reads whose positions rotate.
_ROTATION = {"rope_theta", "rope_scaling", "rope_parameters", "rope_traditional"}
# The names in a `params.json` of Meta or Mistral.
_SAID = {"n_heads", "n_kv_heads", "dim", "head_dim", "rope_theta", "use_scaled_rope"}
LENGTH = "length"  # an option of the caller's: the number of tokens of a text, where a rotation goes by it


def beside(path: str | os.PathLike[str], scheme: SchemeName) -> Path | None:
    """Return the path of the model's configuration beside a file of weights; None if this scheme has none."""
    return Path(path).with_name(SCHEMES[scheme].config) if SCHEMES[scheme].config else None


def options(
    path: Path | None, scheme: SchemeName, prefix: str, length: int | None = None, form: str = ""
) -> dict[str, Any]:
    """Return the options of `Config`, and FOLDED, that a file records for the layer with this prefix.

    length: the number of tokens of a text, if a rotation goes by it; None = no more than those of its first training.
    form: the format in the metadata of the file of the weights; "" = none.
    Raises ValueError, which names the file, if it cannot be read, or has an option that no layer of mha has.
    """
    if path is None or (data := read_bytes(path)) is None:
        return {}
    try:
        return options_in(parse_model(data), scheme, prefix, length, form)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"has {path} beside it, which does not describe such a layer: {error}") from error


def read_bytes(path: Path) -> bytes | None:
    """Read the bytes of a configuration, at most one more than are allowed; None if there is no such file."""
    try:
        with files.open_file(path) as file:
            return file.read(LIMIT + 1)
    except FileNotFoundError:
        return None


def parse_model(data: bytes) -> dict[str, Any]:
    """Parse a configuration; ValueError if it is too large, or no JSON."""
    if len(data) > LIMIT:
        raise ValueError(f"it has more than {LIMIT} bytes")
    return json_text.parse(data.decode())


def options_in(
    model: dict[str, Any],
    scheme: SchemeName,
    prefix: str,
    length: int | None = None,
    form: str = "",
    config_format: str | None = None,
) -> dict[str, Any]:
    """Return the options, as `options` does, of a parsed file; ValueError, TypeError or OverflowError if wrong.

    config_format: the format of the arrays of the model that has this configuration, if others are read; None = form.
    """
    if length is not None:
        checks.size("length", length)
    config_format = form if config_format is None else config_format
    found = _params(model) if scheme == "meta" else _options(model, scheme, prefix, length, config_format)
    if parts.config_part(model, prefix).get("model_type") in UNFOLDED.get(form, ()):
        found.pop(FOLDED, None)
    return found


def _options(model: dict[str, Any], scheme: SchemeName, prefix: str, length: int | None, form: str) -> dict[str, Any]:
    model = parts.config_part(model, prefix)
    kinds = KINDS.get(scheme, {})
    silent = not kinds or (scheme in PLAIN and "model_type" not in model)
    kind = str(model.get("model_type")) if silent else model_kind(model, scheme)
    if kind == "mllama_text_model" and "cross_attn" in prefix.split("."):
        raise ValueError(f"prefix is {prefix!r}, whose keys are of pictures: how it hides some of them is not known")
    rotates = kinds and (kind in ROTATING or (scheme not in (*PLAIN, "t5") and kind not in NOT_ROTATING))
    defaults = kinds.get(kind, {}) | OF_FORMAT.get(form, {}).get(kind, {})
    _check_names(UNSAID.get(kind, {}) | model, _PASSED | defaults.keys() | (_ROTATION if rotates else set()), kind)
    if not rotates and scheme != "t5":
        heads = _heads(model, defaults, prefix)
        found = {} if heads is None else {"num_heads": checks.size("num_attention_heads", heads)}
        if kind == "gptj":
            dim, width = (checks.size(name, (defaults | model)[name]) for name in ("rotary_dim", "n_embd"))
            return found | {"key_dim": width // found["num_heads"], "rotary": Rotary(dim, interleaved=True)}
        if kind == "gpt_neo":
            local = layers.local(defaults | model, prefix)
            return found | {"scale": 1.0, "window": (local - 1, 0) if local else None}
        return found | {"rotary": None} if scheme == "llama" else found
    if model.get("rope_parameters") is None:
        model = {name: value for name, value in model.items() if name != "rope_parameters"}
    model = defaults | model
    if scheme == "t5":
        num_heads, width = checks.size("num_heads", model["num_heads"]), checks.size("d_kv", model["d_kv"])
        return {"num_heads": num_heads, "key_dim": width, "scale": 1.0}
    heads = next((model[name] for name in _HEADS[:3] if name in model), None)
    num_heads = checks.size("num_attention_heads", heads)
    return {"num_heads": num_heads} | _rotation_options(model, kind, defaults, prefix, num_heads, length)


def _heads(model: dict[str, Any], defaults: dict[str, Any], prefix: str) -> Any:
    """Return the number of heads of a layer by its file, or by the default of its kind; else None."""
    names = [name for name in defaults if name in _HEADS] or [name for name in _HEADS if name in model]
    if not names:
        return None
    first, *others = names
    if "num_attention_heads" in model:
        model = {first: model["num_attention_heads"]} | model
    model, stack = defaults | model, parts.stack_of(prefix)
    of_decoder = [name for name in others if name.startswith("decoder")]
    if not stack and (first, *of_decoder) == STACKS and len({model[name] for name in STACKS}) > 1:
        said = " and ".join(f"{name} is {reprlib.repr(model[name])}" for name in STACKS)
        raise ValueError(f"{said}, and prefix {prefix!r} has neither encoder nor decoder to say which layer it is")
    return model[of_decoder[0] if of_decoder and stack == "decoder" else first]


def _params(model: dict[str, Any]) -> dict[str, Any]:
    """Return the options that `params.json` records; it may lack the rotation."""
    _check_names(model, _SAID)
    num_heads = checks.size("n_heads", model.get("n_heads"))
    groups, width = model.get("n_kv_heads"), model.get("head_dim")
    if width is None:
        width = checks.size("dim", model.get("dim")) // num_heads
    found = {
        "num_heads": num_heads,
        "key_dim": checks.size("head_dim", width),
        "num_key_value_heads": num_heads if groups is None else checks.size("n_kv_heads", groups),
    }
    theta = model.get("rope_theta")
    if theta is None or model.get("use_scaled_rope"):  # which is scaled by a factor that the file lacks
        return found
    return found | {"rotary": Rotary(base=checks.positive("rope_theta", theta), interleaved=True)}


def _check_names(model: dict[str, Any], known: Set[str], kind: str = "") -> None:
    """Raise ValueError if a model of this kind has an option about attention that is not known here, and name it."""
    neutral = _NEUTRAL | NEUTRAL_OF.get(kind, {})
    for name, value in model.items():
        if _ABOUT.search(name) and name not in known and not _is_neutral(name, value, neutral):
            raise ValueError(f"{name} is {reprlib.repr(value)}, which may change the attention and is not known")


def _is_neutral(name: str, value: Any, neutral: Mapping[str, Any]) -> bool:
    """Whether an option leaves the attention as it is; neutral: the values with which others do."""
    if name == "layer_types" and isinstance(value, list):
        return all(kind == "full_attention" for kind in value)
    off = value is False and _NEUTRAL.get(name) is not True
    return value is None or off or value in ([], {}) or (name in neutral and value == neutral[name])


def _rotation_options(
    model: dict[str, Any], kind: str, reads: Container[str], prefix: str, num_heads: int, length: int | None
) -> dict[str, Any]:
    """Return the options of a layer whose positions rotate; reads: the names that a model of this kind has."""
    if kind == "gemma4_text":
        model = layers.gemma4(model, prefix)
    if kind == "modernbert":  # half of the window is before a token, half of it after
        model = model | {"sliding_window": checks.size("local_attention", model["local_attention"]) // 2 + 1}
    width = model.get("head_dim")
    if width is None:
        width = checks.size("hidden_size", model.get("hidden_size", model.get("n_embed"))) // num_heads
    found: dict[str, Any] = {"key_dim": checks.size("head_dim", width)}
    if found["key_dim"] > WIDEST:
        raise ValueError(f"head_dim is {found['key_dim']}, expected at most {WIDEST}")
    name = "num_kv_heads" if kind == "falcon" else "num_key_value_heads"
    if kind == "falcon" and not model["new_decoder_architecture"]:
        found["num_key_value_heads"] = 1 if model["multi_query"] else num_heads
    elif name in model:
        found["num_key_value_heads"] = num_heads if model[name] is None else checks.size(name, model[name])
    slides = layers.slides(model, kind, prefix, reads)
    left = checks.size("sliding_window", model["sliding_window"]) - 1 if slides else 0
    window = (left, left if kind == "modernbert" else 0) if slides else None
    turns = layers.turns(model, kind, prefix, slides)
    rotary = rotation.rotary(model, kind, slides, found["key_dim"], length) if turns else None
    found |= {"rotary": rotary, "window": window}
    if kind == "llama4_text":
        found |= _llama4(model, prefix, turns)
    if kind == "ministral3":
        recorded = rotation.check_options("rope_parameters", model.get("rope_parameters"))
        scale, floor = "llama_4_scaling_beta", "original_max_position_embeddings"
        floor_scale = checks.size(floor, recorded.get(floor))
        found["temperature"] = Temperature(checks.positive(scale, recorded.get(scale)), floor_scale, shift=0)
    if kind in NORMED and (kind not in IF_SAID or checks.flag("use_qk_norm", model["use_qk_norm"])):
        name = "norm_eps" if kind in LFM2 else "rms_norm_eps"
        eps = checks.positive(name, model.get(name, 1e-6))
        found["qk_norm"] = Norm("rms", eps, "all" if kind in OF_ALL else "head", after=kind in AFTER)
    found |= ALWAYS.get(kind, {})
    if kind == "gemma4_text":
        tied = checks.flag("attention_k_eq_v", model["attention_k_eq_v"]) and not slides
        found |= {"value_norm": found["qk_norm"], "scale": 1.0} | ({TIED: True} if tied else {})
    if "query_pre_attn_scalar" in model:
        found["scale"] = checks.positive("query_pre_attn_scalar", model["query_pre_attn_scalar"]) ** -0.5
    if "attention_multiplier" in model and (kind, model["attention_multiplier"]) != ("hyperclovax", None):
        found["scale"] = checks.positive("attention_multiplier", model["attention_multiplier"])
    if (cap := model.get("attn_logit_softcapping")) is not None:
        found["softcap"] = checks.positive("attn_logit_softcapping", cap)
    return found


def _llama4(model: dict[str, Any], prefix: str, turns: bool) -> dict[str, Any]:
    """Return the options of Llama 4 alone: chunks and norms without weights if it rotates, else a temperature."""
    found: dict[str, Any] = {"chunk": layers.chunk(model, prefix, turns)}
    if turns and model["use_qk_norm"]:
        found["qk_norm"] = Norm("rms", checks.positive("rms_norm_eps", model["rms_norm_eps"]), after=True)
        found[BARE] = True
    if not turns and model["attn_temperature_tuning"]:
        scale = checks.positive("attn_scale", model["attn_scale"])
        found["temperature"] = Temperature(scale, checks.size("floor_scale", model["floor_scale"]))
    return found
