"""How models call their layers: causal or not, which arguments say what is padding, which biases.

tests/real/test_plain_models.py makes small models and compares what they compute.
"""

import dataclasses
import re

import pytest

from mha.weights import models
from mha.weights.models.call_conventions import CallConvention
from mha.weights.models.kinds import KINDS, NOT_ROTATING
from mha.weights.models.plain import PLAIN

TOKENS, OF_DECODER, OF_ENCODER = "attention_mask", "decoder_attention_mask", "encoder_attention_mask"
BOTH, FORWARD, UNPADDED = (
    CallConvention(False, TOKENS, TOKENS),
    CallConvention(True, TOKENS, TOKENS),
    CallConvention(False, "", ""),
)
PATCHES = CallConvention(False, "", "patch_attention_mask")
SECOND = CallConvention(True, OF_DECODER, OF_DECODER)
T5 = "encoder.block.1.layer.0.SelfAttention.", "decoder.block.1.layer.0.SelfAttention."
T5 = (*T5, "decoder.block.1.layer.1.EncDecAttention.")
BART = "model.encoder.layers.1.self_attn.", "model.decoder.layers.1.self_attn.", "model.decoder.layers.1.encoder_attn."

# Kinds of models with one way to call their layers.
ALIKE = {
    BOTH: "albert align_text_model altclip_text_model bridgetower_text_model flava_text_model mpnet "
    "qwen2_audio_encoder voxtral_encoder bert bert-generation big_bird camembert chinese_clip_text_model "
    "clap_text_model data2vec-audio data2vec-text distilbert dpr electra ernie flaubert hubert layoutlm markuplm "
    "megatron-bert mobilebert rembert roberta roberta-prelayernorm roc_bert sew siglip2_text_model siglip_text_model "
    "splinter tapas tipsv2_text_model unispeech unispeech-sat visual_bert wav2vec2 xlm xlm-roberta xlm-roberta-xl",
    FORWARD: "aimv2_text_model biogpt clip_text_model clipseg_text_model gpt-sw3 gpt2 gpt_neo gptj groupvit_text_model "
    "imagegpt metaclip_2_text_model openai-gpt opt owlv2_text_model owlvit_text_model trocr xclip_text_model xglm",
    PATCHES: "idefics2_vision idefics3_vision smolvlm_vision",
    UNPADDED: "blip_vision_model blip_2_vision_model instructblip_vision_model instructblipvideo_vision_model "
    "flava_image_model internvl_vision janus_vision_model kosmos_2_vision_model "
    "aimv2_vision_model altclip_vision_model audio-spectrogram-transformer beit chinese_clip_vision_model "
    "clip_vision_model clipseg_vision_model data2vec-vision deit dinov2 dinov2_with_registers dpt git_vision_model "
    "ijepa metaclip_2_vision_model owlv2_vision_model owlvit_vision_model pixio siglip_vision_model vit vit_mae "
    "vit_msn vivit yolos",
}
BARTS = "bart blenderbot blenderbot-small m2m_100 marian mbart mvp nllb-moe pegasus plbart speech_to_text"
SCHEME = {kind: scheme for scheme in PLAIN for kind in PLAIN[scheme]}
ONE = [(kind, how) for how, kinds in ALIKE.items() for kind in kinds.split()]


@pytest.mark.parametrize("prefix", ["encoder.layers.1.self_attn.", "decoder.layers.1.self_attn.", "h.1.attn."])
def test_a_model_of_one_stack_calls_all_its_layers_alike(prefix):
    for kind, how in ONE:
        bias = "t5" if kind == "mpnet" else ""
        assert models.convention_of({"model_type": kind}, SCHEME[kind], prefix) == dataclasses.replace(
            how, bias=bias
        ), kind


def test_a_model_of_two_stacks_calls_each_in_its_way():
    for kind in BARTS.split():
        found = [models.convention_of({"model_type": kind}, "opt", prefix) for prefix in BART]
        assert found == [BOTH, SECOND, CallConvention(False, OF_DECODER, TOKENS, cross=True)], kind


def test_sounds_of_whisper_have_no_padding():
    found = [models.convention_of({"model_type": "whisper"}, "opt", prefix) for prefix in BART]
    assert found == [UNPADDED, SECOND, CallConvention(False, OF_DECODER, "", cross=True)]


def test_every_plain_kind_is_a_case_above():
    assert sorted([*(kind for kind, _ in ONE), *BARTS.split(), "whisper"]) == sorted(SCHEME)


ROTATING = [(scheme, kind) for scheme in ("llama", "phi3", "phi", "modernbert") for kind in KINDS[scheme]]


def test_models_that_rotate_positions_are_decoders_but_for_some_texts_and_pictures():
    encoders = ("eurobert", "gte", "nomic_bert", "jina_embeddings_v3", "modernbert")
    for scheme, kind in ROTATING:
        how = UNPADDED if kind in NOT_ROTATING else BOTH if kind in encoders else FORWARD
        how = dataclasses.replace(how, without=PICTURED.get(kind, ()))
        assert models.convention_of({"model_type": kind}, scheme, "layers.1.self_attn.") == how, kind


def test_encoders_and_decoders_that_rotate_positions_unlike_others_of_their_schemes():
    for scheme, kind, how in (("bert", "esm", BOTH), ("opt", "lfm2", FORWARD), ("opt", "lfm2_moe", FORWARD)):
        assert models.convention_of({"model_type": kind}, scheme, "layers.1.self_attn.") == how


def test_tables_of_t5_are_added_to_self_attention():
    expected = CallConvention(False, TOKENS, TOKENS, "t5"), CallConvention(True, OF_DECODER, OF_DECODER, "t5")
    for kind in KINDS["t5"]:
        found = [models.convention_of({"model_type": kind}, "t5", prefix) for prefix in T5]
        assert found == [*expected, CallConvention(False, OF_DECODER, TOKENS, cross=True)], kind


@pytest.mark.parametrize(
    ("model", "bias"),
    [
        ({"model_type": "gpt_neox"}, ""),
        ({"model_type": "falcon"}, ""),
        ({"model_type": "falcon", "alibi": True}, "alibi, scaled"),
        ({"model_type": "bloom"}, "alibi"),
    ],
)
def test_linear_biases_are_scaled_by_falcon_alone(model, bias):
    assert models.convention_of(model, "neox", "h.1.self_attention.") == CallConvention(True, TOKENS, TOKENS, bias)


DECODING = "esm bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
DECODING += "roberta-prelayernorm roc_bert xlm-roberta xlm-roberta-xl"


def test_some_encoders_are_decoders_if_they_say_so():
    for kind in ["esm", *(kind for kind, how in ONE if how == BOTH and kind != "mpnet")]:
        model = {"model_type": kind, "is_decoder": True}
        found = models.convention_of(model, SCHEME.get(kind, "bert"), "encoder.layer.1.attention.")
        assert found == (FORWARD if kind in DECODING.split() else BOTH), kind
        across = models.convention_of(model, SCHEME.get(kind, "bert"), "encoder.layer.1.crossattention.")
        assert across == CallConvention(False, TOKENS, OF_ENCODER, cross=True), kind


@pytest.mark.parametrize("kind", ["flaubert", "xlm"])
def test_xlm_that_hides_later_tokens_hides_no_padding(kind):
    found = models.convention_of({"model_type": kind, "causal": True}, "distilbert", "attentions.1.")
    assert found == CallConvention(True, TOKENS, "")


@pytest.mark.parametrize(("kind", "across"), [("bart", OF_ENCODER), ("whisper", "")])
def test_a_decoder_alone_has_the_usual_arguments(kind, across):
    model = {"model_type": kind, "is_encoder_decoder": False}
    found = [models.convention_of(model, "opt", prefix) for prefix in BART[1:]]
    assert found == [FORWARD, CallConvention(False, TOKENS, across, cross=True)]
    assert models.convention_of(model, "opt", BART[0]) == models.convention_of({"model_type": kind}, "opt", BART[0])


def test_a_layer_of_neither_stack_is_refused():
    with pytest.raises(
        ValueError, match=r"prefix is 'layers\.1\.', expected one with encoder or decoder: a model whose"
    ):
        models.convention_of({"model_type": "bart"}, "opt", "layers.1.")


# Models of several parts

CLIP = {
    "model_type": "clip",
    "text_config": {"model_type": "clip_text_model"},
    "vision_config": {"model_type": "clip_vision_model"},
}
WHOLES = "aimv2 altclip aya_vision chinese_clip clip clipseg cohere2_vision git groupvit idefics3 internvl llava "
WHOLES += "llava_next llava_onevision metaclip_2 mistral3 owlv2 owlvit qwen2_audio siglip siglip2 smolvlm tipsv2 "
WHOLES += "video_llava vipllava vision-text-dual-encoder voxtral blip flava idefics2 janus mllama "
PICTURED = {"gemma3": ("token_type_ids",)} | dict.fromkeys(
    ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), ("pixel_values", "pixel_values_videos")
)


def test_a_part_is_called_as_a_model_of_its_own():
    for kind in [*WHOLES.split(), *PICTURED]:
        model = CLIP | {"model_type": kind}
        text = dataclasses.replace(FORWARD, without=PICTURED.get(kind, ()))
        assert models.convention_of(model, "opt", "text_model.encoder.layers.1.self_attn.") == text, kind
        assert models.convention_of(model, "opt", "vision_model.encoder.layers.1.self_attn.") == UNPADDED, kind


@pytest.mark.parametrize("kind", ["paligemma", "gemma3n", "blip-2", None])
def test_parts_of_another_model_are_refused(kind):
    text = f"model_type is '{kind}', and how it calls its parts is not known: expected one of"
    with pytest.raises(ValueError, match=text):
        models.convention_of(CLIP | {"model_type": kind}, "opt", "text_model.encoder.layers.1.self_attn.")


BERT = {"model_type": "bert", "is_decoder": True, "num_attention_heads": 3}
IN_DECODER = "decoder.bert.encoder.layer.1.attention.", "decoder.bert.encoder.layer.1.crossattention."


@pytest.mark.parametrize(
    ("kind", "across"),
    [("encoder-decoder", TOKENS), ("speech-encoder-decoder", TOKENS), ("vision-encoder-decoder", "")],
)
def test_a_decoder_of_a_pair_has_arguments_of_its_own(kind, across):
    model = {"model_type": kind, "encoder": {"model_type": "bert", "num_attention_heads": 2}, "decoder": BERT}
    assert models.convention_of(model, "bert", "encoder.encoder.layer.1.attention.") == BOTH
    found = [models.convention_of(model, "bert", prefix) for prefix in IN_DECODER]
    assert found == [SECOND, CallConvention(False, OF_DECODER, across, cross=True)]
    assert models.options_in(model, "bert", "encoder.encoder.layer.1.attention.") == {"num_heads": 2}
    assert models.options_in(model, "bert", IN_DECODER[0]) == {"num_heads": 3}


def test_a_decoder_of_two_stacks_is_alone_in_a_pair():
    model = {"model_type": "speech-encoder-decoder", "encoder": {}, "decoder": {"model_type": "mbart"}}
    found = [models.convention_of(model, "opt", f"decoder.{prefix}") for prefix in BART[1:]]
    assert found == [SECOND, CallConvention(False, OF_DECODER, TOKENS, cross=True)]


# What is not known


@pytest.mark.parametrize(
    ("model", "scheme", "text"),
    [
        (
            {"model_type": "roformer"},
            "bert",
            "model_type is 'roformer', whose attention is not known in scheme 'bert': expected one of ",
        ),
        (
            {"model_type": "diffllama"},
            "llama",
            "model_type is 'diffllama', whose attention is not known in scheme 'llama': expected one of ",
        ),
        ({}, "bert", "model_type is 'None', whose attention is not known in scheme 'bert': expected one of "),
        (
            {"model_type": "vit"},
            "timm",
            "scheme is 'timm', expected one of bert, albert, mpnet, blip, internvl, distilbert, vit, ",
        ),
    ],
)
def test_a_model_that_is_not_known_is_refused(model, scheme, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        models.convention_of(model, scheme, "encoder.layers.1.self_attn.")
