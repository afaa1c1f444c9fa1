"""`parity.audit` of models of `transformers`: right ones are not blamed, a wrong layer and its mistake are named.

Letters: B samples, T tokens.
"""

import os

import pytest
from real import mistaken, small

from mha import parity

os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.backends("torch")
SMALL = {"vocab_size": 37, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 3, "num_attention_heads": 4}
DECODER = SMALL | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 16384, "pad_token_id": 0}
TYPES = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4}
GPT2 = {"vocab_size": 37, "n_embd": 24, "n_head": 4, "n_layer": 3, "n_positions": 4096}
T5 = {"vocab_size": 37, "d_model": 24, "d_kv": 5, "num_heads": 4, "num_layers": 2, "d_ff": 29, "pad_token_id": 0}
MODELS = {
    "BertModel": ("bert", SMALL),
    "GPT2LMHeadModel": ("gpt2", GPT2),
    "ViTModel": ("vit", SMALL | {"image_size": 8, "patch_size": 2}),
    "LlamaForCausalLM": ("llama", DECODER),
    "MistralForCausalLM": ("mistral", DECODER | {"sliding_window": 4}),
    "Qwen3ForCausalLM": ("qwen3", DECODER),
    "Gemma3ForCausalLM": ("gemma3_text", DECODER | TYPES),
    "T5ForConditionalGeneration": ("t5", T5 | {"decoder_start_token_id": 0}),
    "GptOssForCausalLM": ("gpt_oss", DECODER | TYPES | {
        "hidden_size": 32, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip
DECODERS = [name for name in MODELS if "ForCausalLM" in name or "LMHead" in name]
# Kinds that are not among those above.
OTHERS = (
    "roberta", "electra", "distilbert", "camembert", "xlm-roberta", "megatron-bert", "bart", "marian", "pegasus",
    "whisper",
    "clip", "siglip", "opt", "biogpt", "deit", "dinov2", "beit", "wav2vec2", "hubert", "gpt_neox", "falcon", "bloom",
    "phi3", "gemma", "gemma2", "qwen2", "mixtral", "olmo2", "olmo3", "glm4", "cohere2", "smollm3", "exaone4", "granite",
    "starcoder2", "nanochat", "helium", "ernie4_5", "umt5", "apertus", "seed_oss", "arcee",
)  # fmt: skip


def made(name, fused=True, dtype="float32", **changed):
    """A model with random weights."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, options = MODELS[name]
    torch.manual_seed(3)
    config = CONFIG_MAPPING[kind](**options | changed)
    config._attn_implementation = "sdpa" if fused and kind != "gpt_oss" else "eager"
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model.to(getattr(torch, dtype))


def given(name, T=13, left=False, dtype="float32"):
    """The arguments of a call with two samples, of which the first has four tokens of padding."""
    import torch

    torch.manual_seed(4)
    if name == "ViTModel":
        return {"pixel_values": torch.randn(2, 3, 8, 8).to(getattr(torch, dtype))}
    ids, mask = torch.randint(1, 37, (2, T)), torch.ones(2, T, dtype=torch.long)
    mask[0, slice(4) if left else slice(-4, None)] = 0
    call = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("T5"):
        call |= {"decoder_input_ids": torch.randint(1, 37, (2, 7))}
    return call


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_a_right_model_is_right(name, fused, left, dtype):
    model = made(name, fused, dtype)
    report = parity.audit(model, **given(name, left=left, dtype=dtype))
    assert report, report
    most = 0.5 if dtype == "float32" else 0.8  # Gemma's norms add 1 to their scales in float32
    assert all(row.verdict == "same" and row.ratio < most for row in report.layers)
    assert len(report.layers) == (6 if name.startswith("T5") else 3)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_right_model_of_another_kind_is_right(kind):
    model = small.model(small.configuration(kind))
    report = parity.audit(model, **small.call(model))
    assert report, report
    assert {row.verdict for row in report.layers} == {"same"}


@pytest.mark.parametrize("kind", ["mistral", "ministral3", "mixtral", "starcoder2", "qwen3_moe", "phi3", "phimoe"])
def test_a_model_with_a_window_is_right(kind):
    model = small.model(small.configuration(kind, sliding_window=4))
    report = parity.audit(model, **small.call(model))
    assert {row.verdict for row in report.layers} == {"same"}, report


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "opt", "bert", "modernbert", "eurobert"])
@pytest.mark.parametrize("given", ["", "use_cache", "attention_mask"])
def test_texts_in_a_row_that_see_each_other_are_no_mistake_and_are_said(kind, given):
    """Each library's model has its own rule; what it computes of the last text alone says which it is."""
    import torch

    model = small.model(small.configuration(kind))
    places, ids = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]]), torch.randint(5, 30, (2, 9))
    call = {"use_cache": {"use_cache": False}, "attention_mask": {"attention_mask": torch.ones(2, 9)}}.get(given, {})
    if kind in ("bert", "modernbert", "eurobert"):
        call.pop("use_cache", None)
    with torch.no_grad():
        whole = model(ids, position_ids=places, **call)[0]
        alone = model(ids[:, 6:], position_ids=places[:, 6:])[0]
    together = (whole[:, 6:] - alone).abs().max() > 1e-3
    report = parity.audit(model, ids, position_ids=places, **call)
    assert report, report
    assert ("3 texts in a row see each other" in " ".join(report.notes)) == bool(together)


@pytest.mark.parametrize("kind", ["roformer", "yoso", "mra"])
def test_models_with_the_names_of_others_are_not_known(kind):
    model = small.model(small.configuration(kind))
    with pytest.raises(ValueError, match=f"model_type is '{kind}'"):
        parity.audit(model, **small.call(model))


def test_texts_beside_pictures_are_not_known():
    """Tokens of pictures see later ones in Gemma 3, and have several positions in Qwen2-VL."""
    import torch

    model = small.model(small.configuration("gemma3", **small.told_of_text("gemma3")))
    call = {name: X for name, X in small.call(model).items() if name in ("input_ids", "attention_mask")}
    types = torch.zeros_like(call["input_ids"])
    assert parity.audit(model, **call, token_type_ids=types)
    types[:, 2:5] = 1
    report = parity.audit(model, **call, token_type_ids=types)
    assert {row.verdict for row in report.layers} == {"not known", "not called"}
    assert "token_type_ids is given" in report.unknown[0].note
    said = small.told_of_text("qwen2_vl")["text_config"]
    model = small.model(small.configuration("qwen2_vl_text", **{**said, "model_type": "qwen2_vl_text"}))
    tokens = torch.randint(5, 90, (2, 11))
    places = torch.arange(11).expand(3, 2, 11).clone()
    assert parity.audit(model, tokens, position_ids=places)
    assert parity.audit(model, tokens, position_ids=places * torch.tensor([1, 2])[:, None])
    places[1, :, 4:6] = 4
    report = parity.audit(model, tokens, position_ids=places)
    assert "position_ids has several positions for some tokens" in report.unknown[0].note


@pytest.mark.parametrize(
    "how",
    [{}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}, {"cache_implementation": "static"},
     {"use_cache": False}],
    ids=["greedy", "beams", "samples", "static cache", "no cache"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma3ForCausalLM", "T5ForConditionalGeneration"])
def test_each_token_of_generate_is_right(name, how):
    if name != "LlamaForCausalLM" and "cache_implementation" in how:
        how = how | {"cache_implementation": "dynamic"}
    model, call = made(name), given(name, left=not name.startswith("T5"))
    call.pop("decoder_input_ids", None)
    with parity.watch(model) as report:
        model.generate(**call, **how, max_new_tokens=5, min_new_tokens=5, pad_token_id=0)
    assert report, report
    assert max(row.calls for row in report.layers) == 5


def test_a_deep_model_is_right():
    assert parity.audit(made("LlamaForCausalLM", num_hidden_layers=24), **given("LlamaForCausalLM"))


@pytest.mark.parametrize(("T", "first"), [(1500, 0), (300, 8000)], ids=["1,500 tokens", "at position 8,000"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["MistralForCausalLM", "Qwen3ForCausalLM"])
def test_long_texts_are_right(name, dtype, T, first):
    import torch

    call = {"input_ids": torch.randint(1, 37, (1, T)), "position_ids": torch.arange(first, first + T)[None]}
    report = parity.audit(made(name, dtype=dtype, num_hidden_layers=2), **call)
    assert report, report
    assert all(row.ratio < 0.7 for row in report.layers)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
LARGE = [(name, {"rope_parameters": YARN} if "GptOss" in name else {}) for name in MODELS]


@pytest.mark.parametrize("first", [0, 8000])
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "options"), LARGE, ids=[name for name, _ in LARGE])
def test_large_weights_in_half_precision_are_right(name, options, dtype, fused, first):
    """Their scores are in the hundreds, so that each rounding of a port shows."""
    import torch

    model, call = made(name, fused, **options), given(name, T=97, dtype=dtype)
    if name in DECODERS and name != "GPT2LMHeadModel":
        call["position_ids"] = torch.arange(first, first + 97)[None]
    for parameter in model.parameters():  # frequencies stay in float32, as they do where weights are loaded
        parameter.data = (2.5 * parameter.data).to(getattr(torch, dtype))
    report = parity.audit(model, **call)
    assert report, report
    assert all(row.ratio < 0.8 for row in report.layers)


def test_packed_texts_are_right():
    import torch

    call = {
        "input_ids": torch.randint(1, 37, (1, 12)),
        "position_ids": torch.tensor([[*range(5), *range(3), *range(4)]]),
    }
    for cached in (False, True):
        for name in ("LlamaForCausalLM", "MistralForCausalLM"):
            report = parity.audit(made(name), **call, use_cache=cached)
            assert report, report


@pytest.mark.parametrize("name", ["ViTModel", "LlamaForCausalLM", "BertModel"])
def test_a_checkpoint_says_the_weights(tmp_path, name):
    import torch

    right, wrong = made(name), made(name)
    right.save_pretrained(tmp_path)
    assert parity.audit(right, **given(name), like=tmp_path)
    with torch.no_grad():
        weight = next(
            X for key, X in wrong.named_parameters() if "1" in key and key.endswith(("o_proj.weight", "value.weight"))
        )
        weight.copy_(weight.flip(0))
    report = parity.audit(wrong, **given(name), like=tmp_path)
    assert len(report.wrong) == 1
    assert ".1." in report.first.path + "."
    assert parity.audit(wrong, **given(name))


PLANTED = [(f"{kind.title()}ForCausalLM", one) for one in mistaken.MISTAKES for kind in one.of]


def test_there_are_sixty_mistakes():
    assert len([one for _, one in PLANTED if one.known]) >= 60


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"])
def test_what_the_mistakes_are_made_in_is_right(name):
    model = made(name)
    mistaken.put(model, 1, mistaken.Right, 4 if "Mistral" in name else None)
    assert parity.audit(model, **given(name, left=True))


@pytest.mark.parametrize(("name", "kind"), PLANTED, ids=[f"{name}: {kind.title}" for name, kind in PLANTED])
def test_a_mistake_is_named_with_its_layer(name, kind):
    model = made(name)
    mistaken.put(model, 1, kind, 4 if "Mistral" in name else None)
    report = parity.audit(model, **given(name, T=19, left=True))
    assert [row.path for row in report.wrong] == ["model.layers.1.self_attn"]
    assert report.mended.wrong == ()
    named = [one for each in report.first.report.diagnosis.explanations if each.sure for one in each.mistakes]
    assert not kind.known or any(one.startswith(kind.known) for one in named), report
