"""Read the rotation of a model from `config.json`: `rope_parameters`, or in older files `rope_scaling`."""

import dataclasses
import inspect
import reprlib
from collections.abc import Callable
from typing import Any

from mha.core.options import checks
from mha.core.options.positions import Rotary
from mha.core.options.rotations import dynamic, linear, llama3_frequencies, longrope, proportional, yarn
from mha.weights.models.kinds import BACKWARDS, GATED, HUNYUAN, INTERLEAVED, QWEN_VLS, SHARES


def _default(dim: int, *, rope_theta: float) -> Rotary:
    return Rotary(dim, checks.positive("rope_theta", rope_theta))


def _llama3(
    dim: int,
    *,
    rope_theta: float,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> Rotary:
    numbers = factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
    return dataclasses.replace(
        _default(dim, rope_theta=rope_theta), frequencies=llama3_frequencies(dim, rope_theta, *numbers)
    )


TYPES: dict[str, Callable[..., Rotary]] = {
    "default": _default,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": _llama3,
    "proportional": proportional,
}
OF_MODEL = "original_max_position_embeddings", "max_position_embeddings"  # what is said beside the rotation counts
OTHERS = "interleaved", "length"  # what no rotation in a file says


def make_rotary(
    model: dict[str, Any], where: str, recorded: dict[str, Any], width: int, theta: Any, length: int | None
) -> Rotary:
    """Return the rotation that a model records, for heads of a width.

    where: the name of the model's option that has `recorded`, the numbers of the rotation; theta: the base in older
    files; length: the number of tokens of a text, None = no more than those of the first training.
    """
    given = {name: value for name, value in recorded.items() if value not in (None, {}, [])}
    sort = given.pop("type", "default")
    sort = str(given.pop("rope_type", sort))
    if sort not in TYPES:
        raise ValueError(f"rope_type is {reprlib.repr(sort)}, expected one of {', '.join(TYPES)}")
    takes = {name: one for name, one in inspect.signature(TYPES[sort]).parameters.items() if name not in OTHERS}
    given.setdefault("rope_theta", theta)
    given |= {name: model[name] for name in OF_MODEL if name in takes and model.get(name) is not None}
    if "original_max_position_embeddings" in takes and model.get("max_position_embeddings") is not None:
        given.setdefault("original_max_position_embeddings", model["max_position_embeddings"])
    if sort != "proportional" and given.get("partial_rotary_factor") == 1:
        del given["partial_rotary_factor"]
    needed = {name for name, one in takes.items() if one.default is one.empty} - {"dim"}
    if lacking := sorted(needed - given.keys()):
        raise ValueError(f"{where} of rope_type {sort!r} lacks {', '.join(lacking)}")
    if foreign := sorted(given.keys() - takes.keys()):
        raise ValueError(f"{where} of rope_type {sort!r} has {', '.join(foreign)}, which is not known")
    if "length" in inspect.signature(TYPES[sort]).parameters:
        given["length"] = length
    return TYPES[sort](width, **given)


def check_options(where: str, recorded: Any) -> dict[str, Any]:
    """Return options by name; {} for None."""
    if not isinstance(recorded, dict | None):
        raise TypeError(f"{where} is {reprlib.repr(recorded)}, expected options by name")
    return recorded or {}


def rotary(model: dict[str, Any], kind: str, slides: bool, width: int, length: int | None) -> Rotary:
    """Return the rotation of a layer of this kind of model.

    slides: whether it has a window; width: of its heads; length: as of `make_rotary`.

    Gemma 3 and 4, OLMo 3 and ModernBERT have one rotation for layers with a window, and another one for layers without.
    Phi-3's YaRN is LongRoPE.
    """
    where = next((name for name in ("rope_scaling", "rope_parameters") if model.get(name)), "rope_parameters")
    recorded = check_options(where, model.get(where))
    theta = model.get("rope_theta", model.get("rotary_emb_base", 10000.0))
    if kind == "gemma3_text":
        theta = model["rope_local_base_freq"] if slides else theta
    if kind == "modernbert":
        theta = model["local_rope_theta" if slides else "global_rope_theta"]
    if kind in ("gemma3_text", "gemma4_text", "olmo3", "modernbert"):
        if where == "rope_scaling":
            recorded = {} if slides and kind != "modernbert" else recorded
        elif recorded:
            if foreign := sorted(recorded.keys() - {"full_attention", "sliding_attention"}):
                raise ValueError(
                    f"{where} of {kind} has {', '.join(foreign)}, expected full_attention and sliding_attention, each "
                    "with a rotation of its own"
                )
            recorded = check_options(where, recorded.get("sliding_attention" if slides else "full_attention"))
    if kind in HUNYUAN and recorded.get("alpha"):  # beside which the numbers of YaRN say nothing
        recorded = recorded | dict.fromkeys(("mscale", "mscale_all_dim", "beta_fast", "beta_slow"))
    if kind == "ministral3":  # which is told its temperature, and the model's length, there
        recorded = recorded | dict.fromkeys(("llama_4_scaling_beta", "max_position_embeddings"))
    if kind in (*GATED, *QWEN_VLS):  # of pictures; a text's tokens have one position each
        if "mrope" in (recorded.get("rope_type"), recorded.get("type")):  # in older files
            recorded = recorded | {"rope_type": "default"}
        recorded = recorded | dict.fromkeys(("mrope_section", "mrope_interleaved"))
    if kind == "phi3" and (recorded.get("rope_type") or recorded.get("type")) in ("su", "yarn"):  # in older files
        recorded = recorded | {"rope_type": "longrope"}
    if share := SHARES.get(kind):
        factor = recorded.get("partial_rotary_factor", model.get(share))
        if model.get("rotary_dim") is not None:  # in older files of MiniMax M2
            factor = checks.size("rotary_dim", model["rotary_dim"]) / width
        recorded = recorded | {"partial_rotary_factor": None}
        width = int(width * min(checks.positive(share, factor), 2.0))  # Rotary refuses factors above 1
    turned = make_rotary(model, where, recorded, width, theta, length)
    if kind in BACKWARDS:
        turned = dataclasses.replace(turned, frequencies=tuple(-angle for angle in turned.angles()))
    traditional = checks.flag("rope_traditional", model.get("rope_traditional", False))  # as MLX calls it
    return dataclasses.replace(turned, interleaved=traditional or kind in INTERLEAVED)
