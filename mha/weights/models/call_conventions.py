"""Tell how a model calls an attention layer: causal or not, and which of its own arguments mark padding."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from mha.core.options.names import SchemeName
from mha.weights.models import parts, plain
from mha.weights.models.kinds import ENCODERS, KINDS, LFM2, kind_error, model_kind

_TOKENS, _OF_DECODER, _OF_ENCODER = "attention_mask", "decoder_attention_mask", "encoder_attention_mask"
_CROSS = {"crossattention", "encoder_attn", "cross_attention", "EncDecAttention"}


@dataclasses.dataclass(frozen=True)
class CallConvention:
    """The way a layer is called.

    Attributes:
        causal: whether a query sees no later keys.
        queries, keys: the argument of the model's own call that marks their padding; "" = none, all are tokens. Models
            of sounds shorten their input: there the argument has a number for each sample of it instead.
        bias: added to the scores: "" = nothing; "t5" = a table, which is in the first layer of a stack (in UMT5 in
            each, in MPNet beside them); "alibi" = linear biases; "alibi, scaled" = those divided by the square root of
            a head's width.
        cross: whether keys and values are of another sequence than queries.
        without: arguments of the model's own call that must be 0 or absent: else some tokens see later ones, or have
            several positions, as those of pictures.
    """

    causal: bool
    queries: str
    keys: str
    bias: str = ""
    cross: bool = False
    without: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """The calls of the layers of a kind of model: in a decoder, elsewhere, and between two sequences."""

    decoder: CallConvention
    encoder: CallConvention
    cross: CallConvention = CallConvention(False, _TOKENS, _OF_ENCODER, cross=True)
    two: bool = False  # whether both are there


_FORWARD, _BOTH, _UNPADDED = (
    CallConvention(True, _TOKENS, _TOKENS),
    CallConvention(False, _TOKENS, _TOKENS),
    CallConvention(False, "", ""),
)
_OF_PATCHES = CallConvention(False, "", "patch_attention_mask")
_SECOND = CallConvention(True, _OF_DECODER, _OF_DECODER)
_ENCODER, _DECODER, _VISION = _Pattern(_BOTH, _BOTH), _Pattern(_FORWARD, _FORWARD), _Pattern(_UNPADDED, _UNPADDED)
_PATCHES = _Pattern(_OF_PATCHES, _OF_PATCHES)
_SEQ2SEQ = _Pattern(_SECOND, _BOTH, CallConvention(False, _OF_DECODER, _TOKENS, cross=True), two=True)
_WHISPER = _Pattern(_SECOND, _UNPADDED, CallConvention(False, _OF_DECODER, "", cross=True), two=True)


def _all(pattern: _Pattern, *groups: Iterable[str]) -> dict[str, _Pattern]:
    return {kind: pattern for group in groups for kind in group}


_PATTERNS: dict[str, _Pattern] = {
    **_all(_DECODER, KINDS["llama"], KINDS["neox"], KINDS["phi3"], KINDS["phi"]),
    **_all(_DECODER, plain.GPTS, plain.CLIP_TEXTS, plain.OPTS, plain.GPT_JS, plain.GPT_NEOS, plain.TROCRS, LFM2),
    **_all(
        _ENCODER, plain.EITHER, plain.BERTS, plain.ALBERTS, plain.DISTILBERTS, plain.XLMS, plain.SIGLIPS, plain.WAV2VECS
    ),
    **_all(_ENCODER, ENCODERS, plain.MPNETS, plain.TEXTS_OF_VITS, plain.AUDIOS, ("esm",)),
    **_all(_PATCHES, plain.IDEFICS),
    **_all(_VISION, plain.VITS, plain.OTHER_VITS, plain.CLIP_PICTURES, plain.BLIPS, plain.INTERNVLS),
    **_all(_SEQ2SEQ, plain.BARTS, plain.SPEECH2TEXTS, KINDS["t5"]),
    **_all(_WHISPER, plain.WHISPERS),
}
_BIASES = dict.fromkeys(KINDS["t5"], "t5") | {"bloom": "alibi", "mpnet": "t5"}
# Models whose parts are called as models of their own are.
COMPOSED = (
    "aimv2", "altclip", "aya_vision", "blip", "chinese_clip", "clip", "clipseg", "cohere2_vision", "flava", "gemma3",
    "git", "groupvit", "idefics2", "idefics3", "internvl", "janus", "llava", "llava_next",
    "llava_onevision", "metaclip_2", "mistral3", "mllama", "owlv2", "owlvit", "qwen2_5_vl", "qwen2_audio", "qwen2_vl",
    "qwen3_vl", "qwen3_vl_moe", "siglip", "siglip2", "smolvlm", "tipsv2", "video_llava", "vipllava",
    "vision-text-dual-encoder", "voxtral",
)  # fmt: skip
# Arguments with which their texts are called otherwise: tokens of pictures see later ones, or have several positions.
_PICTURES: dict[str, tuple[str, ...]] = {"gemma3": ("token_type_ids",)}
_PICTURES |= dict.fromkeys(
    ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), ("pixel_values", "pixel_values_videos")
)
# Pairs of models: what the decoder is told of the encoder's padding.
PAIRS = {"encoder-decoder": _TOKENS, "speech-encoder-decoder": _TOKENS, "vision-encoder-decoder": ""}


def convention_of(model: dict[str, Any], scheme: SchemeName, prefix: str) -> CallConvention:
    """Return how a model calls the layer with this prefix.

    model: the contents of its `config.json`; scheme, prefix: as `schemes.recognise` returns them.
    Raises ValueError if the kind of the model, or of its part, is not known, or if it has an encoder and a decoder and
    the prefix does not say which.
    """
    own, whole = parts.config_part(model, prefix), str(model.get("model_type"))
    if own is not model and whole not in (*COMPOSED, *PAIRS):
        raise kind_error(whole, (*COMPOSED, *PAIRS), "and how it calls its parts is not known")
    if whole in PAIRS and own is model.get("decoder"):
        found = _of_part(own | {"is_encoder_decoder": False}, scheme, prefix)
        return _with_arguments(found, {_TOKENS: _OF_DECODER, _OF_ENCODER: PAIRS[whole]})
    of_text = own is model or own is model.get("text_config")
    return dataclasses.replace(_of_part(own, scheme, prefix), without=_PICTURES.get(whole, ()) if of_text else ())


def _of_part(model: dict[str, Any], scheme: SchemeName, prefix: str) -> CallConvention:
    """Return the same for a model without parts."""
    if scheme not in KINDS:
        raise ValueError(f"scheme is {scheme!r}, expected one of {', '.join(KINDS)}, whose models say what they are")
    kind = model_kind(model, scheme)
    pattern, stack = _PATTERNS[kind], parts.stack_of(prefix)
    if pattern.two and not stack:
        raise ValueError(
            f"prefix is {prefix!r}, expected one with encoder or decoder: a model whose model_type is {kind!r} has both"
        )
    if kind in (*plain.EITHER, "esm") and model.get("is_decoder"):
        pattern = _DECODER
    if not _CROSS.isdisjoint(prefix.split(".")):
        found = pattern.cross
    else:
        found = pattern.decoder if stack == "decoder" else pattern.encoder
        bias = "alibi, scaled" if kind == "falcon" and model.get("alibi") else _BIASES.get(kind, "")
        found = dataclasses.replace(found, bias=bias)
    if kind in plain.XLMS and model.get("causal"):  # which then looks at no padding
        found = dataclasses.replace(found, causal=True, keys="")
    if stack == "decoder" and pattern.two and not model.get("is_encoder_decoder", True):  # a decoder alone
        found = _with_arguments(found, {_OF_DECODER: _TOKENS, _TOKENS: _OF_ENCODER})
    return found


def _with_arguments(found: CallConvention, names: dict[str, str]) -> CallConvention:
    """Return the same with other names of arguments."""
    queries, keys = (names.get(name, name) for name in (found.queries, found.keys))
    return dataclasses.replace(found, queries=queries, keys=keys)
