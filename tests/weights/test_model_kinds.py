"""Which models have plain attention: their numbers of heads, part by part and stack by stack; others are refused.

tests/real/test_plain_models.py makes a model of each kind and compares what it computes.
"""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from stored import stored

import mha
from mha.weights import models
from mha.weights.models.kinds import KINDS
from mha.weights.models.plain import PLAIN

BERT, OPT = "encoder.layer.1.attention.", "decoder.layers.1.self_attn."
# Kinds, and the numbers of heads that they have if a file does not say them.
HEADS = {
    "bert": {
        4: "electra mobilebert",
        12: "bert big_bird camembert data2vec-text ernie roberta roberta-prelayernorm roc_bert xlm-roberta dpr "
        "bridgetower_text_model "
        "layoutlm align_text_model chinese_clip_text_model clap_text_model markuplm splinter tapas visual_bert",
        16: "bert-generation megatron-bert altclip_text_model",
        18: "rembert",
        32: "xlm-roberta-xl",
    },
    "albert": {64: "albert"},
    "mpnet": {12: "mpnet"},
    "blip": {
        12: "blip_vision_model",
        16: "blip_2_vision_model instructblip_vision_model instructblipvideo_vision_model",
    },
    "internvl": {16: "internvl_vision janus_vision_model"},
    "distilbert": {12: "distilbert", 16: "flaubert xlm"},
    "vit": {
        12: "vit deit dinov2 dinov2_with_registers ijepa vit_mae vit_msn vivit beit data2vec-vision dpt yolos "
        "audio-spectrogram-transformer flava_image_model flava_text_model",
        16: "pixio",
    },
    "gpt2": {8: "imagegpt", 12: "gpt2 gpt-sw3 openai-gpt"},
    "gpt2-mlx": {12: "gpt2"},
    "opt": {
        4: "speech_to_text groupvit_text_model",
        6: "whisper aimv2_text_model",
        8: "clip_text_model clipseg_text_model metaclip_2_text_model owlvit_text_model owlv2_text_model "
        "xclip_text_model aimv2_vision_model",
        12: "opt plbart siglip_text_model siglip2_text_model tipsv2_text_model clip_vision_model "
        "altclip_vision_model chinese_clip_vision_model clipseg_vision_model git_vision_model "
        "metaclip_2_vision_model owlv2_vision_model owlvit_vision_model siglip_vision_model wav2vec2 hubert "
        "data2vec-audio sew unispeech unispeech-sat idefics2_vision",
        16: "idefics3_vision smolvlm_vision kosmos_2_vision_model mvp "
        "bart mbart marian pegasus m2m_100 nllb-moe blenderbot-small biogpt xglm trocr",
        20: "qwen2_audio_encoder voxtral_encoder",
        32: "blenderbot",
    },
}
CASES = [
    (scheme, kind, heads) for scheme, rows in HEADS.items() for heads, kinds in rows.items() for kind in kinds.split()
]
MORE = {"big_bird": {"attention_type": "original_full"}}


def test_a_kind_is_known_with_the_heads_that_it_has_by_default():
    place = "encoder.layers.1.self_attn."
    for scheme, kind, heads in CASES:
        model = {"model_type": kind} | MORE.get(kind, {})
        assert models.options_in(model, scheme, place) == {"num_heads": heads}, kind
        assert models.options_in(model | {"num_attention_heads": 2}, scheme, place) == {"num_heads": 2}, kind


def test_every_kind_is_a_case_above():
    others = [("opt", "gptj"), ("opt", "gpt_neo")]  # below
    cases = [*others, *((scheme, kind) for scheme, kind, _ in CASES)]
    assert sorted(cases) == sorted((scheme, kind) for scheme in PLAIN for kind in PLAIN[scheme])


NEVER_LLAMA = "data2vec-vision", "dpt", "yolos", "flava_image_model", "flava_text_model"
VITS = HEADS["vit"][12].split() + HEADS["vit"][16].split()


def test_modules_of_pictures_have_the_names_of_llama_and_rotate_nothing():
    for kind in (kind for kind in VITS if kind not in NEVER_LLAMA):
        found = models.options_in({"model_type": kind, "num_attention_heads": 2}, "llama", "layers.1.attention.")
        assert found == {"num_heads": 2, "rotary": None}, kind
        with pytest.raises(ValueError, match=r"rope_theta is 10000\.0, which may change the attention"):
            models.options_in({"model_type": kind, "rope_theta": 1e4}, "llama", "layers.1.attention.")


# Models whose attention is another one, under the same names.
OTHERS = {
    "bert": "roformer yoso mra nystromformer convbert longformer luke canine",
    "distilbert": "bert",
    "vit": "mobilevit",
    "gpt2": "gpt_bigcode",
    "opt": "wavlm led pegasus_x bigbird_pegasus speecht5 clip",
}


@pytest.mark.parametrize(("scheme", "kind"), [(scheme, kind) for scheme in OTHERS for kind in OTHERS[scheme].split()])
def test_another_kind_is_refused(scheme, kind):
    text = f"model_type is {kind!r}, whose attention is not known in scheme {scheme!r}: expected one of "
    with pytest.raises(ValueError, match=re.escape(text)):
        models.options_in({"model_type": kind, "num_attention_heads": 12}, scheme, BERT)


def test_the_error_for_another_kind_is_short_and_says_what_to_type():
    with pytest.raises(ValueError, match="model_type is 'diffllama'") as raised:
        models.options_in({"model_type": "diffllama"}, "llama", BERT)
    text = f"expected one of {len(KINDS['llama'])} kinds, which the page on weights lists; names like it: llama"
    assert text in str(raised.value)
    assert "pass the arrays to mha.from_native with num_heads=, rotary= " in str(raised.value)
    assert "layers= to mha.parity.audit" in str(raised.value)
    with pytest.raises(ValueError, match="page on weights lists; to say yourself") as raised:
        models.options_in({"model_type": "zzz" * 40}, "llama", BERT)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({}, {}),
        ({"num_attention_heads": 2}, {"num_heads": 2}),
        ({"n_head": 2}, {"num_heads": 2}),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 2}, {"num_heads": 2}),
    ],
)
def test_a_file_without_a_kind_is_taken(scheme, model, found):
    assert models.options_in(model, scheme, OPT) == found
    with pytest.raises(ValueError, match="model_type is 'None', whose attention is not known"):
        models.options_in(model | {"model_type": None}, scheme, OPT)


# What changes the attention, and is no option of a layer.
CHANGED = {
    "bert": {"position_embedding_type": "relative_key_query", "attention_type": "block_sparse"},
    "big_bird": {"attention_type": "block_sparse"},
    "beit": {"use_relative_position_bias": True, "use_shared_relative_position_bias": True},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    "wav2vec2": {"adapter_attn_dim": 16},
    "mvp": {"use_prompt": True},
    "mpnet": {"relative_attention_num_buckets": 31},
    "internvl_vision": {"use_qk_norm": True},
}
SCHEME = {kind: scheme for scheme, kind, _ in CASES}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in CHANGED for name in CHANGED[kind]])
def test_an_option_that_changes_the_attention_is_refused(kind, name):
    model, value = {"model_type": kind}, CHANGED[kind][name]
    with pytest.raises(ValueError, match=f"{name} is {value!r}, which may change the attention and is not known"):
        models.options_in(model | {name: value}, SCHEME[kind], BERT)


def test_big_bird_has_another_attention_if_nothing_is_said():
    with pytest.raises(ValueError, match="attention_type is 'block_sparse', which may change the attention"):
        models.options_in({"model_type": "big_bird"}, "bert", BERT)


TWO = {"encoder_attention_heads": 3, "decoder_attention_heads": 2}


@pytest.mark.parametrize("kind", ["bart", "marian", "pegasus", "whisper", "speech_to_text"])
def test_an_encoder_and_a_decoder_have_heads_of_their_own(kind):
    model = {"model_type": kind} | TWO
    for prefix, heads in (
        ("encoder.layers.1.self_attn.", 3),
        ("model.decoder.layers.1.self_attn.", 2),
        ("model.decoder.layers.1.encoder_attn.", 2),
        ("encoder.model.decoder.layers.1.self_attn.", 2),
    ):
        assert models.options_in(model, "opt", prefix) == {"num_heads": heads}
    text = (
        "encoder_attention_heads is 3 and decoder_attention_heads is 2, and prefix 'layers.1.' has neither encoder nor"
    )
    with pytest.raises(ValueError, match=text):
        models.options_in(model, "opt", "layers.1.")
    assert models.options_in(model | {"decoder_attention_heads": 3}, "opt", "layers.1.") == {"num_heads": 3}


def test_heads_may_be_called_by_their_common_name():
    """As `attribute_map` of transformers has it: this name is the first of a kind's own."""
    common = {"num_attention_heads": 5}
    own = {"bart": "encoder_attention_heads", "trocr": "decoder_attention_heads", "xglm": "attention_heads"}
    for kind, name in own.items():
        for prefix in ("encoder.layers.1.self_attn.", OPT):
            there = 5 if kind != "bart" or "encoder" in prefix else 16
            assert models.options_in({"model_type": kind} | common, "opt", prefix) == {"num_heads": there}
        model = {"model_type": kind, name: 3} | common
        assert models.options_in(model, "opt", "encoder.layers.1.self_attn.") == {"num_heads": 3}
    assert models.options_in({"model_type": "distilbert", "n_heads": 3}, "distilbert", "") == {"num_heads": 3}
    assert models.options_in({"model_type": "gpt2", "n_head": 3}, "gpt2", "") == {"num_heads": 3}


def test_the_decoder_of_a_masked_autoencoder_has_heads_of_its_own():
    model = {"model_type": "vit_mae", "num_attention_heads": 3, "decoder_num_attention_heads": 2}
    for prefix, heads in (("vit.encoder.layer.1.attention.", 3), ("decoder.decoder_layers.1.attention.", 2), ("", 3)):
        assert models.options_in(model, "vit", prefix) == {"num_heads": heads}
    assert models.options_in({"model_type": "vit_mae"}, "vit", "decoder.decoder_layers.1.") == {"num_heads": 16}


def test_positions_of_gpt_j_rotate():
    found = models.options_in({"model_type": "gptj"}, "opt", "h.1.attn.")
    assert found == {"num_heads": 16, "key_dim": 256, "rotary": mha.Rotary(64, interleaved=True)}
    said = {"model_type": "gptj", "n_head": 3, "n_embd": 15, "rotary_dim": 4}
    found = models.options_in(said, "opt", "h.1.attn.")
    assert found == {"num_heads": 3, "key_dim": 5, "rotary": mha.Rotary(4, interleaved=True)}
    with pytest.raises(TypeError, match="rotary_dim is None"):
        models.options_in(said | {"rotary_dim": None}, "opt", "h.1.attn.")


def test_some_layers_of_gpt_neo_have_a_window_and_none_has_a_scale():
    told = {"num_heads": 3, "window_size": 5, "attention_types": [[["local", "global"], 1], [["local"], 2]]}
    default = {"num_heads": 16, "window_size": 256, "attention_types": [[["global", "local"], 12]]}
    for model, windows in ((told, (4, None, 4, 4)), (default, (None, 255, None, 255)), ({}, (None, 255))):
        for layer, left in enumerate(windows):
            found = models.options_in({"model_type": "gpt_neo"} | model, "opt", f"h.{layer}.attn.attention.")
            window = None if left is None else (left, 0)
            assert found == {"num_heads": model.get("num_heads", 16), "scale": 1.0, "window": window}
    with pytest.raises(ValueError, match="attention_types has None for layer 4, expected global or local"):
        models.options_in({"model_type": "gpt_neo"} | told, "opt", "h.4.attn.attention.")


PLACE = "model.layers.1.self_attn."


@pytest.mark.parametrize("said", ["absolute", "rotary"])
def test_positions_of_esm_rotate_if_it_says_so(said):
    model = {"model_type": "esm", "num_attention_heads": 3, "hidden_size": 18, "position_embedding_type": said}
    rotary = mha.Rotary(6) if said == "rotary" else None
    for more in ({}, {"rope_theta": 10000.0}):
        found = models.options_in(model | more, "bert", BERT)
        assert found == {"num_heads": 3, "key_dim": 6, "rotary": rotary, "window": None}
    del model["position_embedding_type"]
    assert models.options_in(model, "bert", BERT)["rotary"] is None
    with pytest.raises(ValueError, match="position_embedding_type is 'relative_key', expected one of"):
        models.options_in(model | {"position_embedding_type": "relative_key"}, "bert", BERT)


@pytest.mark.parametrize("types", [("linear_attention", "full_attention"), ("mamba", "attention")])
@pytest.mark.parametrize(("said", "turns"), [(None, False), ("nope", False), ("rope", True)])
def test_positions_of_granite_4_rotate_if_it_says_so(said, turns, types):
    model = {"model_type": "granitemoehybrid", "num_attention_heads": 3, "hidden_size": 18, "attention_multiplier": 0.3}
    model |= {"position_embedding_type": said, "layer_types": [*types]}
    found = models.options_in(model, "llama", PLACE)
    assert found == {
        "num_heads": 3, "key_dim": 6, "num_key_value_heads": 3, "rotary": mha.Rotary(6) if turns else None,
        "window": None, "scale": 0.3,
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"layer_types has '{types[0]}' for layer 0"):
        models.options_in(model, "llama", PLACE.replace("1", "0"))


@pytest.mark.parametrize(("kind", "width"), [("qwen3_vl_text", 128), ("qwen3_vl_moe_text", 6)])
def test_heads_of_qwen3_vl_with_experts_share_the_width_of_the_model(kind, width):
    model = {"model_type": kind, "num_attention_heads": 3, "hidden_size": 18}
    for more, expected in (({}, width), ({"head_dim": 8}, 8)):
        assert models.options_in(model | more, "llama", PLACE)["key_dim"] == expected


@pytest.mark.parametrize("kind", ["lfm2", "lfm2_moe"])
def test_positions_of_lfm2_rotate_after_norms(kind):
    model = {"model_type": kind, "num_attention_heads": 6, "hidden_size": 36, "layer_types": ["conv", "full_attention"]}
    found = models.options_in(model | {"num_key_value_heads": 2, "norm_eps": 0.1}, "opt", PLACE)
    expected = {"num_heads": 6, "key_dim": 6, "num_key_value_heads": 2, "rotary": mha.Rotary(6, 1e6), "window": None}
    assert found == expected | {"qk_norm": mha.Norm("rms", 0.1)}


def test_norms_and_groups_of_lfm2_are_read(tmp_path):
    model = {"model_type": "lfm2", "num_attention_heads": 6, "hidden_size": 36, "num_key_value_heads": 2}
    rows = {"q_proj": 36, "k_proj": 12, "v_proj": 12, "out_proj": 36}
    named = {f"a.{name}.weight": np.full((size, 36), size, "float32") for name, size in rows.items()}
    named |= {f"a.{letter}_layernorm.weight": np.arange(6.0, dtype="float32") + n for n, letter in enumerate("qk")}
    safetensors.numpy.save_file(named, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model))
    found = mha.load(tmp_path / "model.safetensors", "numpy")
    assert (found.config.qk_norm, found.config.num_key_value_heads) == (mha.Norm("rms", 1e-5), 2)
    assert np.array_equal(found.weights["k_norm.scale"], named["a.k_layernorm.weight"])


def test_tables_of_mpnet_have_the_size_that_its_buckets_have():
    model = {"model_type": "mpnet", "num_attention_heads": 3, "relative_attention_num_buckets": 32}
    assert models.options_in(model, "mpnet", PLACE) == {"num_heads": 3}


def test_layers_of_mllama_that_see_pictures_are_refused():
    model = {"model_type": "mllama_text_model", "hidden_size": 64, "num_attention_heads": 8}
    assert models.options_in(model | {"cross_attention_layers": [1]}, "llama", PLACE)["num_key_value_heads"] == 8
    with pytest.raises(ValueError, match=r"prefix is 'layers\.3\.cross_attn\.', whose keys are of pictures"):
        models.options_in(model, "llama", "layers.3.cross_attn.")


def test_what_is_known_may_be_said_again(tmp_path):
    path, rotary = tmp_path / "model.safetensors", mha.Rotary(4, interleaved=True)
    named = {name: np.ascontiguousarray(X) for name, X in stored("opt", "a.")[1].items()}
    safetensors.numpy.save_file(named, path)
    model = {"model_type": "gptj", "n_head": 3, "n_embd": 15, "rotary_dim": 4}
    (tmp_path / "config.json").write_text(json.dumps(model))
    assert mha.load(path, "numpy", rotary=rotary).config.rotary == rotary
    with pytest.raises(ValueError, match=r"says rotary=Rotary\(dim=4, .*, not None; leave it out"):
        mha.load(path, "numpy", rotary=None)


CLIP = {
    "model_type": "clip",
    "text_config": {"model_type": "clip_text_model", "num_attention_heads": 2},
    "vision_config": {"model_type": "clip_vision_model"},
}


@pytest.mark.parametrize(
    ("prefix", "heads"),
    [
        ("text_model.encoder.layers.1.self_attn.", 2),
        ("vision_model.encoder.layers.1.self_attn.", 12),
        ("model.vision_tower.encoder.layers.1.self_attn.", 12),
        ("model.language_model.layers.1.self_attn.", 2),
    ],
)
def test_a_part_of_a_model_says_its_own_heads(prefix, heads):
    assert models.options_in(CLIP, "opt", prefix) == {"num_heads": heads}


@pytest.mark.parametrize("prefix", ["encoder.layers.1.self_attn.", "my_text_model.encoder.layers.1.self_attn."])
def test_a_layer_outside_of_all_parts_is_of_the_whole_model(prefix):
    with pytest.raises(ValueError, match="model_type is 'clip', whose attention is not known"):
        models.options_in(CLIP, "opt", prefix)
    part = CLIP["text_config"]
    assert models.options_in(part, "opt", "text_model.encoder.layers.1.self_attn.") == {"num_heads": 2}
