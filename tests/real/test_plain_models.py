"""Models of `transformers` with plain attention: each layer of a small one computes, and is called, as we say.

What enters and leaves its projections while the model runs, with padding, is compared with our layer of its weights and
`config.json`, called as `models.attends` says, within the bounds of `mha.parity`. Letters: B samples, Q queries.
"""

import inspect
import json

import numpy as np
import pytest
from real import small

import mha
from mha import parity
from mha.weights import models
from mha.weights.models.plain import BARTS, EITHER, PLAIN, SPEECH2TEXTS, WHISPERS

KINDS = sorted({kind for kinds in PLAIN.values() for kind in kinds})
SEQ2SEQ = (*BARTS, *SPEECH2TEXTS, *WHISPERS)


def bias_of(made, prefix, kind, heads, queries, keys):
    """What the model adds to the scores of this layer: our `score_bias`."""
    if kind != "t5":
        return mha.alibi(heads, keys) if kind == "alibi" else None
    places = {"umt5": prefix, "mpnet": "encoder."}
    at = places.get(made.config.model_type, f"{prefix.partition('.')[0]}.block.0.layer.0.SelfAttention.")
    table = made.state_dict()[f"{at}relative_attention_bias.weight"].numpy()  # (buckets, H)
    return table[mha.t5_buckets(queries, keys, bidirectional=prefix.startswith("encoder"))].transpose(2, 0, 1)[None]


def assert_called_so(made, count, only=None):
    """Each of `count` layers is called as we say, and would give other numbers otherwise.

    only: the names of arguments that the model is called with; None = all of `small.call`.
    """
    given = {name: value for name, value in small.call(made).items() if only is None or name in only}
    config = json.loads(made.config.to_json_string())
    found = small.attended(made, given)
    assert len(found) == count
    for (scheme, prefix), (queries, keys, values, output) in found.items():
        how = models.convention_of(config, scheme, prefix)
        assert {how.queries, how.keys} - {""} <= inspect.signature(made.forward).parameters.keys()
        layer = mha.from_native(made, scheme=scheme, prefix=prefix, backend="numpy")
        Q, K = queries.shape[1], keys.shape[1]
        lengths = {name: given[name].sum(1).numpy() for name in (how.queries, how.keys) if name in given}
        rows = np.arange(Q) < lengths[how.queries][:, None] if how.queries in lengths else None  # (B, Q)
        call = {"valid_lens": lengths.get(how.keys), "causal": how.causal}
        call["score_bias"] = bias_of(made, prefix, how.bias, layer.config.num_heads, Q, K)
        others = [{"causal": not how.causal}] if Q == K and layer.config.window is None else []
        others += [{"valid_lens": None}] if how.keys in lengths and not how.causal else []
        others += [{"score_bias": None}] if how.bias else []
        ratios = [
            parity.ratio(layer, output, queries, keys, values, rows=rows, **call | other) for other in ({}, *others)
        ]
        assert ratios[0] <= 1 < min(ratios[1:], default=2), (prefix, how, ratios)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_is_called_as_we_say(kind):
    counts = dict.fromkeys(SEQ2SEQ, 6) | {"trocr": 4, "albert": 1}  # whose two layers are the same one
    assert_called_so(small.model(small.configuration(kind)), counts.get(kind, 2))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", sorted(EITHER.keys() - {"big_bird", "megatron-bert"}))  # theirs raises with a decoder
def test_an_encoder_may_be_a_decoder(kind):
    made = small.model(small.configuration(kind, is_decoder=True, add_cross_attention=True))
    assert_called_so(made, 4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["xlm", "flaubert"])
def test_xlm_may_hide_later_tokens(kind):
    assert_called_so(small.model(small.configuration(kind, causal=True)), 2)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", sorted({*BARTS, *WHISPERS} - {"m2m_100", "nllb-moe"}))  # which have no such model
def test_a_decoder_may_be_alone(kind):
    assert_called_so(small.model(small.configuration(kind), "ForCausalLM"), 2)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("kind", "count"), [("t5", 6), ("mt5", 6), ("umt5", 6), ("switch_transformers", 6), ("bloom", 2)]
)
def test_biases_are_added_where_we_say(kind, count):
    assert_called_so(small.model(small.configuration(kind)), count)


ROTATED = ["llama", "qwen3", "gemma2", "gemma3_text", "cohere2", "gpt_oss", "olmo2", "phi3", "gpt_neox", "falcon"]
ROTATED += ["stablelm", "nemotron", "qwen2_moe", "aria_text", "eurobert", "gte", "nomic_bert", "jina_embeddings_v3"]
ROTATED += ["phi", "modernbert", "esm", "lfm2", "internlm3", "iquestcoder", "phimoe", "emu3_text_model"]
ROTATED += ["mllama_text_model"]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ROTATED)
def test_models_that_rotate_positions_are_called_as_we_say(kind):
    assert_called_so(small.model(small.configuration(kind)), 2)


CLIPS = "aimv2 altclip chinese_clip clip clipseg metaclip_2 owlv2 owlvit siglip vision-text-dual-encoder"
SEEING = "aya_vision cohere2_vision idefics3 internvl llava llava_next llava_onevision mistral3 smolvlm video_llava"


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", CLIPS.split())
def test_parts_are_called_as_models_of_their_own(kind):
    assert_called_so(small.model(small.configuration(kind)), 4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [*SEEING.split(), "vipllava", "qwen2_audio", "voxtral", "tipsv2"])
def test_the_part_for_texts_is_called_as_a_model_of_its_own(kind):
    made = small.model(small.configuration(kind))
    assert_called_so(made, 2, only=("input_ids", "attention_mask"))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "mllama", "janus"])
def test_a_text_without_pictures_is_called_as_one_alone(kind):
    made = small.model(small.configuration(kind, **small.told_of_text(kind)))
    assert_called_so(made, 2, only=("input_ids", "attention_mask"))


PAIRS = {
    "encoder-decoder": ("bert", "roberta"),
    "encoder-decoder, other names": ("electra", "bart"),
    "vision-encoder-decoder": ("vit", "trocr"),
    "vision-encoder-decoder, other names": ("deit", "bert"),
    "speech-encoder-decoder": ("wav2vec2", "mbart"),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", PAIRS)
def test_a_decoder_of_a_pair_has_arguments_of_its_own(name):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    encoder, decoder = PAIRS[name]
    parts = small.configuration(encoder), small.configuration(decoder, is_decoder=True, add_cross_attention=True)
    config = CONFIG_MAPPING[name.partition(",")[0]].from_encoder_decoder_configs(*parts)
    assert_called_so(small.model(config), 6)
