"""The kinds of models whose attention is plain, or almost: their numbers of heads if `config.json` has none.

The kinds of a group are called in the same way. In a row are the names that a kind has for numbers of heads. The first
one may also be called `num_attention_heads`.
"""

from typing import Any

from mha.core.options.names import SchemeName

Rows = dict[str, dict[str, Any]]
STACKS = "encoder_attention_heads", "decoder_attention_heads"


def _rows(name: str, heads: dict[str, int]) -> Rows:
    return {kind: {name: count} for kind, count in heads.items()}


# Encoders of texts. The first ones are decoders if `is_decoder` says so.
EITHER = _rows("num_attention_heads", {
    "bert": 12, "bert-generation": 16, "big_bird": 12, "camembert": 12, "data2vec-text": 12, "electra": 4, "ernie": 12,
    "megatron-bert": 16, "rembert": 18, "roberta": 12, "roberta-prelayernorm": 12, "roc_bert": 12, "xlm-roberta": 12,
    "xlm-roberta-xl": 32,
})  # fmt: skip
BERTS = _rows("num_attention_heads", {
    "align_text_model": 12, "altclip_text_model": 16, "bridgetower_text_model": 12, "chinese_clip_text_model": 12,
    "clap_text_model": 12, "dpr": 12, "layoutlm": 12, "markuplm": 12, "mobilebert": 4,
    "splinter": 12, "tapas": 12, "visual_bert": 12,
})  # fmt: skip
MPNETS = _rows("num_attention_heads", {"mpnet": 12})
ALBERTS = _rows("num_attention_heads", {"albert": 64})
DISTILBERTS = _rows("n_heads", {"distilbert": 12})
XLMS = _rows("n_heads", {"flaubert": 16, "xlm": 16})
SIGLIPS = _rows("num_attention_heads", {"siglip_text_model": 12, "siglip2_text_model": 12, "tipsv2_text_model": 12})
# Decoders of texts.
GPTS = _rows("n_head", {"gpt2": 12, "gpt-sw3": 12, "imagegpt": 8, "openai-gpt": 12})
CLIP_TEXTS = _rows("num_attention_heads", {
    "aimv2_text_model": 6, "clip_text_model": 8, "clipseg_text_model": 8, "groupvit_text_model": 4,
    "metaclip_2_text_model": 8, "owlv2_text_model": 8, "owlvit_text_model": 8, "xclip_text_model": 8,
})  # fmt: skip
OPTS = _rows("num_attention_heads", {"biogpt": 16, "opt": 12}) | _rows("attention_heads", {"xglm": 16})
# Decoders with OPT's names, but not quite as plain: positions rotate; some layers have a window, and scores no scale.
GPT_JS: Rows = {"gptj": {"n_head": 16, "n_embd": 4096, "rotary_dim": 64}}
GPT_NEOS: Rows = {"gpt_neo": {"num_heads": 16, "window_size": 256, "attention_types": [[["global", "local"], 12]]}}
GPT_NEOS["gpt_neo"]["attention_layers"] = None  # which says the types again
TROCRS = _rows("decoder_attention_heads", {"trocr": 16})
# An encoder and a decoder: of texts; of speech.
BARTS: Rows = {kind: dict.fromkeys(STACKS, count) for kind, count in {
    "bart": 16, "blenderbot": 32, "blenderbot-small": 16, "m2m_100": 16, "marian": 16, "mbart": 16, "mvp": 16,
    "nllb-moe": 16, "pegasus": 16, "plbart": 12,
}.items()}  # fmt: skip
WHISPERS = {"whisper": dict.fromkeys(STACKS, 6)}
SPEECH2TEXTS = {"speech_to_text": dict.fromkeys(STACKS, 4)}
# Encoders of pictures, whose patches are no padding.
VITS = _rows("num_attention_heads", {
    "audio-spectrogram-transformer": 12, "beit": 12, "deit": 12, "dinov2": 12, "dinov2_with_registers": 12, "ijepa": 12,
    "pixio": 16, "vit": 12, "vit_mae": 12, "vit_msn": 12, "vivit": 12,
})  # fmt: skip
VITS["vit_mae"]["decoder_num_attention_heads"] = 16
OTHER_VITS = _rows("num_attention_heads", {"data2vec-vision": 12, "dpt": 12, "flava_image_model": 12, "yolos": 12})
TEXTS_OF_VITS = _rows("num_attention_heads", {"flava_text_model": 12})
CLIP_PICTURES = _rows("num_attention_heads", {
    "aimv2_vision_model": 8, "altclip_vision_model": 12, "chinese_clip_vision_model": 12, "clip_vision_model": 12,
    "clipseg_vision_model": 12, "git_vision_model": 12, "kosmos_2_vision_model": 16, "metaclip_2_vision_model": 12,
    "owlv2_vision_model": 12, "owlvit_vision_model": 12, "siglip_vision_model": 12,
})  # fmt: skip
# Their padding is said patch by patch.
IDEFICS = _rows("num_attention_heads", {"idefics2_vision": 12, "idefics3_vision": 16, "smolvlm_vision": 16})
BLIPS = _rows("num_attention_heads", {
    "blip_vision_model": 12, "blip_2_vision_model": 16, "instructblip_vision_model": 16,
    "instructblipvideo_vision_model": 16,
})  # fmt: skip
INTERNVLS = _rows("num_attention_heads", {"internvl_vision": 16, "janus_vision_model": 16})
# Encoders of sounds that are told of padding by a mask of pairs, if at all.
AUDIOS = _rows("encoder_attention_heads", {"qwen2_audio_encoder": 20, "voxtral_encoder": 20})
# Encoders of sounds, whose padding is said sample by sample, not token by token.
WAV2VECS = _rows("num_attention_heads", {
    "data2vec-audio": 12, "hubert": 12, "sew": 12, "unispeech": 12, "unispeech-sat": 12, "wav2vec2": 12,
})  # fmt: skip

PLAIN: dict[SchemeName, Rows] = {
    "bert": EITHER | BERTS,
    "albert": ALBERTS,
    "mpnet": MPNETS,
    "blip": BLIPS,
    "internvl": INTERNVLS,
    "distilbert": DISTILBERTS | XLMS,
    "vit": VITS | OTHER_VITS | TEXTS_OF_VITS,
    "gpt2": GPTS,
    "gpt2-mlx": {"gpt2": GPTS["gpt2"]},
    "opt": OPTS
    | GPT_JS
    | GPT_NEOS
    | SIGLIPS
    | CLIP_TEXTS
    | TROCRS
    | BARTS
    | WHISPERS
    | SPEECH2TEXTS
    | CLIP_PICTURES
    | IDEFICS
    | AUDIOS
    | WAV2VECS,
}
